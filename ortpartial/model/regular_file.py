"""Regular files opened for reading: a pipe, a socket or a device would wait without end, or has no end."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

from .validation import available_memory

__all__ = ["open_regular", "read_regular"]

#: What is no file, by the tests of its mode.
_KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"),
          (stat.S_ISBLK, "a device"))


def open_regular(path: str | os.PathLike[str], *, whole: bool = True) -> BinaryIO:
    """Open a regular file for reading; links are followed.

    Parameters
    ----------
    path : path
        The file.
    whole : bool
        Whether it will be read as a whole, so that it must fit into memory.

    Returns
    -------
    binary file

    Raises
    ------
    OSError
        There is no such file, it cannot be opened, it is no regular file, or it is larger than the memory.

    Examples
    --------
    >>> open_regular("/dev/zero")
    Traceback (most recent call last):
        ...
    OSError: '/dev/zero' is a device, where a regular file is expected.
    """
    file = open(os.fspath(path), "rb", opener=_open)  # noqa: SIM115 (the caller closes it)
    size, memory = os.fstat(file.fileno()).st_size, available_memory() if whole else 0
    if whole and size > memory:
        file.close()
        raise OSError(f"{os.fspath(path)!r} has {size / 2**30:.1f} GiB, where {memory / 2**30:.1f} GiB are available.")
    return file


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    bytes

    Raises
    ------
    OSError
        As for `open_regular`.

    Examples
    --------
    >>> with open("notes.txt", "wb") as file:
    ...     _ = file.write(b"content")
    >>> read_regular("notes.txt")
    b'content'
    """
    with open_regular(path) as file:
        return file.read()


def _open(path: str, flags: int) -> int:
    """A descriptor of what is no pipe, socket or device, checked once it is open: Python refuses folders itself."""
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
            raise OSError(f"{path!r} is {kind}, where a regular file is expected.")
