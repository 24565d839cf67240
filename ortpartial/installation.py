"""Optional parts: the commands that install them, and names of modules that are there only with them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from .exceptions import RuntimeMissingError

T = TypeVar("T")

__all__ = ["get_optional", "install_command"]


def install_command(extra: str) -> str:
    """The command that installs an optional part.

    Parameters
    ----------
    extra : str
        The name of the extra in pyproject.toml.

    Returns
    -------
    str
        In backquotes, with where to run it: the name of the project is not on the index.

    Examples
    --------
    >>> print(install_command("plot"))
    `pip install '.[plot]'` in a clone of https://github.com/ortpartial/ortpartial
    """
    return f"`pip install '.[{extra}]'` in a clone of https://github.com/ortpartial/ortpartial"


def get_optional(get: Callable[[], T]) -> T:
    """The value of a name of a module, for its `__getattr__`.

    Parameters
    ----------
    get : callable
        Imports the optional part, and returns the value.

    Returns
    -------
    object

    Raises
    ------
    RuntimeMissingError
        The part is missing, and an import statement asks for it.
    AttributeError
        It is missing, and code asks for the attribute: `hasattr` is False, and `help` goes on.
    """
    try:
        return get()
    except RuntimeMissingError as e:
        # An import statement asks by `hasattr`, and would hide the message of an AttributeError.
        if sys._getframe(2).f_code.co_filename == "<frozen importlib._bootstrap>":
            raise
        raise AttributeError(str(e)) from None
