"""The cache of compiled libraries: files in a folder that nobody but the user can write to.

The name of a file is the key of its source and the digest of its bytes, so that a file is an entry, complete or absent,
and damage is recognized before it is loaded. Any number of processes share the folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ortpartial.model import open_regular, replace_file

if sys.platform != "win32":
    import grp
    import pwd

__all__ = ["find_cache", "load_entry", "store_entry"]

#: Entries beyond these limits are dropped, the least recently used first.
_ENTRIES, _BYTES = 256, 2**26


def find_cache() -> Path | None:
    """The folder of the cache, which is made: in ``$ORTPARTIAL_CACHE``, or where the system keeps caches of the user.

    A library is code that runs as the user, so that the folder and its parents must be safe from other users.

    Returns
    -------
    pathlib.Path or None
        None where it cannot be made, or another user could write to it.

    Examples
    --------
    >>> folder = find_cache()
    """
    try:
        folder = (_locate_caches() / "native").resolve()
        if sys.platform == "win32":  # The profile of a user is closed to others by its access list.
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        if not _is_safe(folder):
            return None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_private = _is_of_user(status := folder.stat()) and not stat.S_IMODE(status.st_mode) & 0o077
        return folder if is_private and _is_safe(folder) else None
    except (OSError, RuntimeError):  # RuntimeError: the user has no home.
        return None


def load_entry(folder: Path, key: str) -> ctypes.CDLL | None:
    """Load a library from the cache.

    Parameters
    ----------
    folder : pathlib.Path
        The cache.
    key : str
        The key of the source, in hexadecimal digits.

    Returns
    -------
    ctypes.CDLL or None
        None where there is no such entry; a damaged file, a file of another user and anything but a regular file is
        removed.
    """
    for file in folder.glob(f"{key}-*.so"):
        with suppress(OSError), open_regular(file) as entry:
            if _is_of_user(os.fstat(entry.fileno())) and file == _name_entry(folder, key, entry.read()):
                # Nobody else can exchange it now: `find_cache` has found that the folder is the user's alone.
                library = ctypes.CDLL(str(file))
                with suppress(OSError):
                    os.utime(file)  # The time of its last use.
                return library
        with suppress(OSError):
            file.unlink()
    return None


def store_entry(folder: Path, key: str, library: bytes) -> Path:
    """Store a library in the cache, and drop old libraries where there are many.

    Parameters
    ----------
    folder : pathlib.Path
        The cache.
    key : str
        The key of the source, in hexadecimal digits.
    library : bytes
        Its file.

    Returns
    -------
    pathlib.Path
        The entry.

    Raises
    ------
    OSError
        It cannot be written.
    """
    entry = _name_entry(folder, key, library)
    with replace_file(entry) as file:
        file.write(library)
    for old in _list_surplus(folder):
        if old != entry:
            with suppress(OSError):  # Windows keeps a file that is loaded.
                old.unlink()
    return entry


def _name_entry(folder: Path, key: str, library: bytes) -> Path:
    return folder / f"{key}-{hashlib.sha256(library).hexdigest()[:32]}.so"


def _list_surplus(folder: Path) -> Iterator[Path]:
    """The entries beyond the limits."""
    entries = []
    for file in folder.glob("*.so"):
        with suppress(FileNotFoundError):  # Another process drops entries, too.
            entries.append((file.stat().st_mtime_ns, file.stat().st_size, file))
    total = 0
    for count, (_, size, file) in enumerate(sorted(entries, reverse=True), 1):
        total += size
        if count > _ENTRIES or total > _BYTES:
            yield file


def _locate_caches() -> Path:
    """The folder of all caches of this package, by the convention of the system."""
    if chosen := os.environ.get("ORTPARTIAL_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "ortpartial" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ortpartial"
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The convention is to ignore a relative path.
    return (base if base.is_absolute() else Path.home() / ".cache") / "ortpartial"


def _is_of_user(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to the user of this process."""
    return sys.platform == "win32" or status.st_uid == os.geteuid()


def _is_safe(folder: Path) -> bool:
    """Whether no other user can write to a folder or rename it, as far as it is there."""
    if sys.platform == "win32":
        return True
    for place in (folder, *folder.parents):
        with suppress(FileNotFoundError):
            status = place.stat()
            mode = stat.S_IMODE(status.st_mode)
            is_open = mode & stat.S_IWOTH or (mode & stat.S_IWGRP and not _is_group_of_user(status.st_gid))
            if status.st_uid not in (0, os.geteuid()) or (is_open and not mode & stat.S_ISVTX):
                return False
    return True


def _is_group_of_user(group: int) -> bool:
    """Whether a group is that of the user alone, for which some systems let folders be written to by default."""
    if sys.platform == "win32":
        return True
    try:
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return group == user.pw_gid and entry.gr_name == user.pw_name and {*entry.gr_mem} <= {user.pw_name}
