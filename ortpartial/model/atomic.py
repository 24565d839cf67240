"""Atomic replacement: files and folders are written under a temporary name, and renamed once they are on the disk."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

__all__ = ["flush", "flush_folder", "make_folder", "replace_file", "write_files"]

_TEMPORARY = ".ortpartial-{}.tmp"

#: Advice about errors of the system.
_HINTS = {
    errno.ENOENT: "create its folder first",
    errno.EACCES: "choose a folder that can be written to",
    errno.EROFS: "choose a folder that can be written to",
    errno.ENOSPC: "nothing was written; free some space, or choose another place",
    errno.EDQUOT: "nothing was written; free some space, or choose another place",
    errno.EFBIG: "nothing was written; choose a place that takes files of this size",
}


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which replaces another at the end of the context.

    Its writer holds a lock on it until then: a temporary file without a lock is left of a process that was killed, and
    is removed by the next that writes into the folder.

    Parameters
    ----------
    path : pathlib.Path
        The file to replace.

    Yields
    ------
    file

    Raises
    ------
    OSError
        The file cannot be written, and the former file remains.
    """
    with _naming(path):
        if path.exists() and not path.is_file():  # A device or a pipe has no content that could be lost.
            with path.open("wb") as file:
                yield file
            return
        temporary, descriptor = _create(path.parent, _open_new)
        try:
            with open(descriptor, "wb") as file:
                yield file
                flush(file)
                if path.exists():
                    temporary.chmod(path.stat().st_mode & 0o777)
                os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def make_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to write files to, which is given its name at the end of the context.

    Parameters
    ----------
    path : pathlib.Path
        The folder, which is not there yet.

    Yields
    ------
    pathlib.Path

    Raises
    ------
    OSError
        The folder cannot be made; nothing of it is there.
    """
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary, descriptor = _create(path.parent, _open_new_folder)
        try:
            yield temporary
            os.fsync(descriptor)
            os.rename(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        finally:
            os.close(descriptor)
        flush_folder(path.parent)


def write_files(contents: Mapping[str, bytes], folder: str | os.PathLike[str]) -> dict[str, Path]:
    """Write files into a folder, which is complete or not there whenever the process ends.

    In an existing folder, all files are written before the first replaces a former file.

    Parameters
    ----------
    contents : dict of str to bytes
        By the name of the file; the first is replaced last.
    folder : path
        The folder, which is made with its parents.

    Returns
    -------
    dict of str to pathlib.Path
        The files by name.

    Raises
    ------
    OSError
        A file cannot be written; all former files remain.

    Examples
    --------
    >>> write_files({"a.txt": b"A"}, "letters")["a.txt"].as_posix()
    'letters/a.txt'
    """
    root = Path(folder)
    with nullcontext(root) if root.is_dir() else make_folder(root) as place, ExitStack() as stack:
        for name, data in contents.items():
            file = stack.enter_context(replace_file(place / name))
            file.write(data)
            flush(file)
    return {name: root / name for name in contents}


def flush(file: BinaryIO) -> None:
    """Wait until the written data are on the disk.

    Parameters
    ----------
    file : file
        The file; a device or a pipe has nothing to wait for.
    """
    file.flush()
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk.

    Parameters
    ----------
    folder : pathlib.Path
        The folder.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """A context in which errors of the system name this path in place of a temporary file, with advice."""
    try:
        yield
    except OSError as e:
        if e.errno is None or not (e.filename is None or _TEMPORARY.partition("{")[0] in str(e.filename)):
            raise
        text, hint = str(e.strerror), _HINTS.get(e.errno, "")
        raise OSError(e.errno, text if hint in text else f"{text}; {hint}", str(path)) from None


def _create(folder: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """A new temporary file or folder, and a descriptor that holds its lock."""
    _remove_abandoned(folder)
    while True:
        temporary = folder / _TEMPORARY.format(secrets.token_hex(8))
        descriptor = make(temporary)
        with suppress(OSError):  # Some network file systems have no locks.
            _lock(descriptor)
        if os.fstat(descriptor).st_nlink:
            return temporary, descriptor
        os.close(descriptor)  # Another process has removed it before it was locked.


def _open_new(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def _open_new_folder(path: Path) -> int:
    path.mkdir()
    return os.open(path, os.O_RDONLY)


def _remove_abandoned(folder: Path) -> None:
    """Remove temporary files and folders whose writers were killed: the locks of a process end with it."""
    for temporary in folder.glob(_TEMPORARY.format("*")):
        with suppress(OSError):
            descriptor = os.open(temporary, os.O_RDONLY)
            try:
                _lock(descriptor, wait=False)
                if temporary.is_dir():
                    shutil.rmtree(temporary)
                else:
                    temporary.unlink()
            finally:
                os.close(descriptor)


def _lock(descriptor: int, wait: bool = True) -> None:
    """Lock a file or a folder for as long as the descriptor is open."""
    if sys.platform != "win32":  # which does not let an open file be removed
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
