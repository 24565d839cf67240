"""FlatBuffers read with every offset checked, so that a malformed file gives an error and nothing else."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ortpartial.exceptions import CheckpointError

__all__ = ["Budget", "Table", "read_root"]


class Budget:
    """The bytes that may still be read: as many as the file has.

    A file whose tables share their content could stand for far more than it holds; no writer makes such files.
    """

    __slots__ = ("left",)

    def __init__(self, size: int):
        self.left = size

    def spend(self, size: int) -> None:
        """Count bytes as read.

        Raises
        ------
        CheckpointError
            More has been read than there is.
        """
        self.left -= size
        if self.left < 0:
            raise CheckpointError("its tables overlap")


class Table:
    """A table of a FlatBuffer: fields by their numbers, each with a default where the file leaves it out.

    Parameters
    ----------
    data : bytes
        The whole buffer.
    start : int
        Where the table begins.
    budget : Budget
        The bytes that may still be read.

    Raises
    ------
    CheckpointError
        From here and from all methods: something lies outside of the buffer.
    """

    __slots__ = ("_budget", "_data", "_fields", "_start")

    def __init__(self, data: bytes, start: int, budget: Budget):
        self._data, self._start, self._budget = data, start, budget
        vtable = start - self._unpack("<i", start)
        size, length = self._unpack("<H", vtable), self._unpack("<H", vtable + 2)
        if size < 4 or size % 2:
            raise CheckpointError("it has a table whose list of fields is malformed")
        self._slice(vtable, size)
        budget.spend(length)
        self._fields = struct.unpack_from(f"<{size // 2 - 2}H", data, vtable + 4)

    def _slice(self, start: int, size: int) -> tuple[int, int]:
        """The range of bytes, once it is known to lie inside of the buffer."""
        if start < 0 or size < 0 or start + size > len(self._data):
            raise CheckpointError("it refers to what lies outside of it")
        return start, start + size

    def _unpack(self, code: str, start: int) -> Any:
        self._slice(start, struct.calcsize(code))
        return struct.unpack_from(code, self._data, start)[0]

    def _place(self, field: int) -> int | None:
        """Where the content of a field is; None where the file leaves it out."""
        offset = self._fields[field] if field < len(self._fields) else 0
        return self._start + offset if offset else None

    def _follow(self, field: int) -> int | None:
        """The place to which a field refers."""
        place = self._place(field)
        return None if place is None else place + self._unpack("<I", place)

    def number(self, field: int, code: str, default: object = 0) -> Any:
        """A number, in a code of `struct`: ``"q"`` for int64, ``"i"`` for int32, ``"f"`` for float, ``"?"``."""
        place = self._place(field)
        return default if place is None else self._unpack(f"<{code}", place)

    def vector(self, field: int, dtype: str) -> np.ndarray | None:
        """A vector of numbers as a view of the buffer; None where the file leaves it out."""
        place = self._follow(field)
        if place is None:
            return None
        count, size = self._unpack("<I", place), np.dtype(dtype).itemsize
        start, _ = self._slice(place + 4, count * size)
        self._budget.spend(count * size)
        return np.frombuffer(self._data, dtype, count, start)

    def text(self, field: int) -> str:
        """A string, "" where the file leaves it out."""
        content = self.vector(field, "u1")
        try:
            return "" if content is None else content.tobytes().decode()
        except UnicodeDecodeError:
            raise CheckpointError("it has a name that is no UTF-8") from None

    def table(self, field: int) -> Table | None:
        """A table; None where the file leaves it out."""
        place = self._follow(field)
        return None if place is None else Table(self._data, place, self._budget)

    def tables(self, field: int) -> list[Table]:
        """A vector of tables, empty where the file leaves it out."""
        place = self._follow(field)
        offsets = self.vector(field, "<u4")
        if place is None or offsets is None:
            return []
        return [Table(self._data, place + 4 + 4 * i + int(offset), self._budget) for i, offset in enumerate(offsets)]


def read_root(data: bytes, identifier: bytes) -> Table:
    """The root table of a buffer.

    Parameters
    ----------
    data : bytes
        The buffer.
    identifier : bytes
        The four bytes that tell the kind of the file.

    Returns
    -------
    Table

    Raises
    ------
    CheckpointError
        The buffer is too short or of another kind.

    Examples
    --------
    >>> read_root(b"no such file", b"ODTC")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.CheckpointError: it does not begin as one does
    """
    if len(data) < 8 or data[4:8] != identifier:
        raise CheckpointError("it does not begin as one does")
    return Table(data, struct.unpack_from("<I", data)[0], Budget(2 * len(data)))
