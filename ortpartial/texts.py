"""Texts of files that may be hostile: names as they are shown, and JSON."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["parse_json", "printable"]


def printable(text: str, keep: str = "") -> str:
    """A text that gives no orders to a terminal: what is not printable is written as Python writes it.

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
    >>> print(printable("weight\\x1b[2J"))
    weight\\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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
        It is no JSON, or nested too deeply.

    Examples
    --------
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
        ...
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
