"""Arrays of .npz files, which may be hostile: headers are checked before memory is taken, and nothing is unpickled."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np

from ortpartial.exceptions import DataError
from ortpartial.model import available_memory, open_regular

__all__ = ["StoredArray", "open_arrays"]

#: Bytes within which the header of an array ends; numpy takes up to 10,000.
_HEADER = 2**14

#: Readers of headers by their version; the third is for columns whose names are not Latin.
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class StoredArray:
    """An array in an .npz file.

    Parameters
    ----------
    name : str
        Its name.
    archive : zipfile.ZipFile
        The file, which is open.
    member : zipfile.ZipInfo
        Where it is in there.
    shape : tuple of int
        As its header says.
    dtype : numpy.dtype
        As its header says; of numbers.
    """

    name: str
    archive: ZipFile
    member: ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """Read the array."""
        with _naming(self.name, self.archive), self.archive.open(self.member) as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


@contextmanager
def open_arrays(path: Path, shapes: Mapping[str, Any] | None, texts: bool = False
                ) -> Iterator[dict[str, StoredArray]]:
    """Open arrays of an .npz file, and none but these.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    shapes : dict of str to tuple
        The names of the arrays, and the shapes that they are declared with: sizes, names of sizes, or None; None where
        there is no shape. The first size is the number of rows, which may be any. Without it, all arrays.
    texts : bool
        Whether arrays may be of texts, such as labels; Python objects are refused in any case.

    Yields
    ------
    dict of str to StoredArray
        The arrays of the file.

    Raises
    ------
    DataError
        The file is none of arrays, or an array is encrypted or damaged, does not hold numbers, has another shape than
        declared, or is larger than the memory.
    OSError
        It cannot be read.

    Examples
    --------
    >>> np.savez("data.npz", x=np.ones((3, 2)), unused=np.zeros(100))
    >>> with open_arrays(Path("data.npz"), {"x": ("N", 2), "y": ("N", 1)}) as arrays:
    ...     {n: a.read().shape for n, a in arrays.items()}
    {'x': (3, 2)}
    """
    with open_regular(path, whole=False) as file:
        try:
            archive = ZipFile(file)
        except (BadZipFile, ValueError, NotImplementedError):
            raise DataError(f"{str(path)!r} is no .npz file of arrays of numbers, and no .csv file.") from None
        arrays = {}
        for n, member in _find_members(archive, shapes).items():
            with _naming(n, archive):
                arrays[n] = _read_header(n, archive, member, "biufcUS" if texts else "biufc")
                _check_shape(arrays[n].shape, shapes[n] if shapes is not None else None)
        needed, memory = sum(a.nbytes for a in arrays.values()), available_memory()
        if needed > memory:
            raise DataError(f"The arrays of {str(path)!r} take {needed / 2**30:.1f} GiB, where "
                            f"{memory / 2**30:.1f} GiB are available.")
        yield arrays


@contextmanager
def _naming(name: str, archive: ZipFile) -> Iterator[None]:
    """A context in which faults of an array, for which Python and numpy have many errors, are a DataError."""
    try:
        yield
    except Exception as e:
        reason = " ".join(str(e).split()) or type(e).__name__
        raise DataError(f"The array {name!r} of {archive.filename!r} cannot be read: {reason}") from None


def _find_members(archive: ZipFile, names: Collection[str] | None) -> dict[str, ZipInfo]:
    """The members of an archive that are arrays of these names, or of any."""
    members: dict[str, ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name in members:
            raise DataError(f"{archive.filename!r} has two arrays of the name {name!r}.")
        if name != member.filename and (names is None or name in names):
            members[name] = member
    return members


def _read_header(name: str, archive: ZipFile, member: ZipInfo, kinds: str) -> StoredArray:
    """Dtype and shape in the header of an array, which must agree with the size of the array."""
    if member.flag_bits & 1:
        raise ValueError("it is encrypted.")
    if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise ValueError(f"it is compressed by method {member.compress_type}; write it with numpy.savez_compressed.")
    with archive.open(member) as file:
        start = BytesIO(file.read(_HEADER))  # numpy reads a header of any length before it refuses it.
    try:
        shape, _, dtype = _READERS[np.lib.format.read_magic(start)](start)
    except Exception:  # also errors of Python's parser, which reads it
        raise ValueError("its header is damaged.") from None
    if dtype.kind not in kinds:
        raise ValueError("it holds Python objects." if dtype.hasobject else f"it holds {dtype}, and no numbers.")
    array = StoredArray(name, archive, member, shape, dtype)
    size = member.file_size - start.tell()
    if min(shape, default=0) < 0 or array.nbytes != size:
        raise ValueError(f"its shape is {shape} of {dtype}, and it holds {size} bytes.")
    return array


def _check_shape(shape: tuple[int, ...], declared: Any) -> None:
    """Raise an error for sizes of a row that differ from the model's."""
    if declared is None:
        return
    sizes = zip(shape[1:], declared[1:], strict=False)
    if len(shape) != len(declared) or any(isinstance(d, int) and d != n for n, d in sizes):
        raise ValueError(f"its shape is {shape}, and a step reads {list(declared)}.")
