"""Texts of files that may be hostile: names as they are shown, messages, and JSON; names that are free."""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any

__all__ = ["free_name", "is_number", "parse_json", "printable", "reserve_name", "shorten"]

#: The characters of a message at most: a name in it may have millions.
_LONGEST = 960


def printable(text: str, keep: str = "") -> str:
    r"""A text that gives no orders to a terminal: unprintable characters are written as by Python.

    Parameters
    ----------
    text : str
        Such as a name of a file of somebody else.
    keep : str
        Characters that stay as they are, such as line breaks.

    Returns
    -------
    str

    Examples
    --------
    >>> print(printable("weight\x1b[2J"))
    weight\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shorten(text: str, longest: int = _LONGEST, keep: str = "") -> str:
    """A text as `printable` shows it, cut in the middle where it is long.

    Parameters
    ----------
    text : str
        Such as a message with names of a file of somebody else.
    longest : int
        The number of characters from which on it is cut.
    keep : str
        Characters that stay as they are.

    Returns
    -------
    str

    Examples
    --------
    >>> shorten("The weight '" + 10_000 * "w" + "' is missing.", 40)
    "The weight 'wwwww [...] wwww' is missing."
    """
    # Only the shown part is escaped, so that a name of 10 MB takes no seconds.
    if len(text) <= longest and len(shown := printable(text, keep)) <= longest:
        return shown
    half = (longest - 6) // 2
    return f"{printable(text[:half], keep)[:half]} [...] {printable(text[-half:], keep)[-half:]}"


def parse_json(text: str | bytes) -> Any:
    """The content of a text of JSON.

    Parameters
    ----------
    text : str or bytes
        The text.

    Returns
    -------
    object

    Raises
    ------
    ValueError
        It is no JSON, nested too deeply, or has a key twice.

    Examples
    --------
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
        ...
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(text, object_pairs_hook=_join_pairs)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _join_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; readers differ in which of two equal keys they take."""
    if len(joined := dict(pairs)) < len(pairs):
        raise ValueError("it has a key twice")
    return joined


def is_number(text: str) -> bool:
    """Whether a text is a number, as Python reads it.

    Parameters
    ----------
    text : str
        The text.

    Returns
    -------
    bool
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


def free_name(name: str, taken: Container[str]) -> str:
    """A name, underscored until nothing else has it.

    Parameters
    ----------
    name : str
        The name.
    taken : container of str
        The names of others.

    Returns
    -------
    str

    Examples
    --------
    >>> free_name("mask", {"mask", "mask_"})
    'mask__'
    """
    while name in taken:
        name += "_"
    return name


def reserve_name(name: str, taken: set[str]) -> str:
    """A free name, which is taken from now on.

    Parameters
    ----------
    name : str
        The name.
    taken : set of str
        The names of others, which it is added to.

    Returns
    -------
    str
    """
    name = free_name(name, taken)
    taken.add(name)
    return name
