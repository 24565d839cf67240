"""Regular files opened for reading: a pipe, a socket or a device would wait without end, or has no end."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

from ortpartial.exceptions import FileMissingError

from .validation import available_memory

__all__ = ["open_regular", "read_regular"]

#: Kinds of paths that are no files, by the tests of their mode.
_KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"),
          (stat.S_ISBLK, "a device"), (stat.S_ISDIR, "a folder"))


def open_regular(path: str | os.PathLike[str], *, whole: bool = True, advice: str = "") -> BinaryIO:
    """Open a regular file for reading; links are followed.

    Parameters
    ----------
    path : path
        The file.
    whole : bool
        Whether it will be read as a whole, so that it must fit into memory.
    advice : str
        Which file to give, where there is none: the end of a sentence.

    Returns
    -------
    binary file

    Raises
    ------
    FileMissingError
        There is no such file.
    OSError
        It cannot be opened, it is no regular file, or it is larger than the memory.

    Examples
    --------
    >>> open_regular("/dev/zero")
    Traceback (most recent call last):
        ...
    OSError: '/dev/zero' is a device, where a regular file is expected.
    """
    try:
        file = open(os.fspath(path), "rb", opener=_open)  # noqa: SIM115 (the caller closes it)
    except (FileNotFoundError, NotADirectoryError):
        raise FileMissingError(f"There is no file {os.fspath(path)!r}{advice and f'; {advice}'}.") from None
    size, memory = os.fstat(file.fileno()).st_size, available_memory() if whole else 0
    if whole and size > memory:
        file.close()
        raise OSError(f"{os.fspath(path)!r} has {size / 2**30:.1f} GiB, where {memory / 2**30:.1f} GiB are available.")
    return file


def read_regular(path: str | os.PathLike[str], advice: str = "") -> bytes:
    """Read a regular file.

    Parameters
    ----------
    path : path
        The file.
    advice : str
        As for `open_regular`.

    Returns
    -------
    bytes

    Raises
    ------
    FileMissingError, OSError
        As for `open_regular`.

    Examples
    --------
    >>> with open("notes.txt", "wb") as file:
    ...     _ = file.write(b"content")
    >>> read_regular("notes.txt")
    b'content'
    """
    with open_regular(path, advice=advice) as file:
        return file.read()


def _open(path: str, flags: int) -> int:
    """A descriptor of a regular file, no folder, pipe, socket or device, checked once it is open."""
    _check(path, os.stat(path))  # Opening a device may do something.
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    try:
        _check(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check(path: str, status: os.stat_result) -> None:
    for is_kind, kind in _KINDS:
        if is_kind(status.st_mode):
            error = IsADirectoryError if is_kind is stat.S_ISDIR else OSError
            raise error(f"{path!r} is {kind}, where a regular file is expected.")
