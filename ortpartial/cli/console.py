"""Output of commands: lines, tables, colors on a terminal alone, and JSON."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from ortpartial.texts import printable, shorten

__all__ = ["clean", "close_output", "format_seconds", "format_table", "has_colors", "paint", "print_error",
           "print_json", "print_line", "show_warning"]

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}

#: Texts that `paint` has written and `clean` has not seen yet: the only texts whose escape sequences stay.
_PAINTED: set[str] = set()

#: The characters of a cell of a table.
_LONGEST_CELL = 200


def has_colors(stream: TextIO) -> bool:
    """Whether colors are wanted: on a terminal that has some, without the variable NO_COLOR.

    Parameters
    ----------
    stream : file
        Where to print.

    Returns
    -------
    bool

    References
    ----------
    .. [1] https://no-color.org
    """
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str, stream: TextIO | None = None) -> str:
    """A text in a style, where colors are wanted.

    Parameters
    ----------
    text : str
        The text.
    style : str
        "bold", "dim", "red", "green" or "yellow".
    stream : file, optional
        Where it will be printed; stdout by default.

    Returns
    -------
    str
    """
    if not text or not has_colors(stream or sys.stdout):
        return text
    painted = f"\033[{_STYLES[style]}m{printable(text)}\033[0m"
    _PAINTED.add(painted)
    return painted


def print_error(text: str) -> None:
    """Print an error as a line to stderr.

    Parameters
    ----------
    text : str
        The message; line breaks become spaces.
    """
    print(f"{paint('ortpartial:', 'red', sys.stderr)} {shorten(' '.join(text.split()))}", file=sys.stderr)


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as a line, without the place in the code: `warnings.showwarning` of a command.

    Parameters
    ----------
    message : Warning or str
        The warning.
    """
    print(f"{paint('warning:', 'yellow', sys.stderr)} {shorten(' '.join(str(message).split()))}", file=sys.stderr)


def print_line(text: str, file: TextIO | None = None) -> None:
    """Print a line at once; where nobody reads any more, as after `head` has ended, work goes on without lines.

    Parameters
    ----------
    text : str
        The line; characters that give orders to a terminal are printed as escapes.
    file : file, optional
        Where to print; stdout by default.
    """
    file = file or sys.stdout
    try:
        file.write(f"{clean(text)}\n")  # At once, where `print` lets Ctrl-C in before the end of the line.
        file.flush()
    except BrokenPipeError:
        close_output(file)


def clean(line: str) -> str:
    r"""A line with nothing that could give orders to a terminal, but for the output of `paint`.

    Parameters
    ----------
    line : str
        The line, with names from files.

    Returns
    -------
    str

    Examples
    --------
    >>> print(clean("w\x1b[2J\n"))
    w\x1b[2J\n
    """
    for text in list(_PAINTED):
        before, painted, after = line.partition(text)
        if painted:
            line = clean(before) + painted + clean(after)
            _PAINTED.discard(text)
            return line
    return printable(line)


def close_output(file: TextIO) -> None:
    """Discard all further output to a broken pipe, also when Python flushes it at exit.

    Parameters
    ----------
    file : file
        Such as stdout.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, file.fileno())
    os.close(null)


def print_json(record: Mapping[str, object]) -> None:
    """Print an object of JSON as a line; NaN and infinity, which JSON does not know, are null.

    Parameters
    ----------
    record : dict
        Numbers, of numpy too, texts, lists and dicts.
    """
    text = json.dumps(_to_json(record), ensure_ascii=False)
    print_line("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text))


def _to_json(value: object) -> Any:
    if isinstance(value, Mapping):
        return {str(n): _to_json(v) for n, v in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _to_json(value.tolist())
    if isinstance(value, list | tuple):
        return [_to_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "<") -> list[str]:
    """The lines of a table.

    Parameters
    ----------
    head : sequence of str
        The names of the columns.
    rows : iterable of sequence of str
        Their texts.
    align : str
        "<" or ">" for each column, to the left or, by default, to the right.

    Returns
    -------
    list of str

    Examples
    --------
    >>> format_table(["engine", "us"], [["epoch", "7.5"], ["step", "12.1"]])
    ['engine    us', 'epoch    7.5', 'step    12.1']
    """
    lines = [[shorten(text, _LONGEST_CELL) for text in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(f"{text:{side}{w}}" for text, w, side in zip(line, widths, align.ljust(len(head), ">"),
                                                                   strict=True)).rstrip() for line in lines]


def format_seconds(seconds: float) -> str:
    """A time in words.

    Parameters
    ----------
    seconds : float
        The time.

    Returns
    -------
    str

    Examples
    --------
    >>> format_seconds(7.54e-6), format_seconds(0.0123), format_seconds(12.3)
    ('7.5 us', '12.3 ms', '12.3 s')
    """
    scale, unit = (1e6, "us") if seconds < 1e-3 else (1e3, "ms") if seconds < 1 else (1, "s")
    return f"{seconds * scale:.3g} {unit}"
