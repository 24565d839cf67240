"""Files of the safetensors format: a header in JSON, then the content of one tensor after the other."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from ortpartial.exceptions import ModelError

from .atomic import flush_folder, replace_file

__all__ = ["read_tensors", "write_tensors"]

#: The dtypes by the names of the format.
_DTYPES = {name: np.dtype(dtype) for name, dtype in {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4",
    "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}.items()}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

#: Bytes of a header at most, as in the library safetensors.
_HEADER = 10**8


def write_tensors(
    arrays: Mapping[str, np.ndarray], path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays to a safetensors file, which holds either its former content or all of them, whenever it is read.

    Parameters
    ----------
    arrays : dict of str to numpy.ndarray
        The arrays by name; bool, integers, float16, bfloat16, float32, float64 and complex64.
    path : path
        The file.
    metadata : dict of str to str, optional
        Texts that are stored beside them.

    Raises
    ------
    ModelError
        The format has no such dtype.
    OSError
        The file cannot be written; the former one remains.

    Examples
    --------
    >>> write_tensors({"w": np.arange(3.0)}, "weights.safetensors", {"epoch": "7"})
    >>> read_tensors("weights.safetensors")
    ({'w': array([0., 1., 2.])}, {'epoch': '7'})
    """
    # Those with big elements come first, so that every tensor begins at a multiple of the size of its elements.
    ordered = dict(sorted(arrays.items(), key=lambda pair: -pair[1].dtype.itemsize))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, a in ordered.items():
        if a.dtype not in _NAMES:
            raise ModelError(f"The array {name!r} has dtype {a.dtype}, which a safetensors file cannot hold.")
        end = start + a.nbytes
        header[name] = {"dtype": _NAMES[a.dtype], "shape": list(a.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target = Path(path)
    with replace_file(target) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for a in ordered.values():
            file.write(np.asarray(a, order="C").reshape(-1).view(np.uint8).data)
    flush_folder(target.parent)


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read the arrays of a safetensors file, and the texts beside them.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    arrays : dict of str to numpy.ndarray
    metadata : dict of str to str

    Raises
    ------
    ModelError
        It is no safetensors file, or not a whole one.
    OSError
        It cannot be read.

    Examples
    --------
    >>> _ = Path("notes.safetensors").write_text("These are no tensors.")
    >>> read_tensors("notes.safetensors")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.ModelError: 'notes.safetensors' is no safetensors file, or a damaged one.
    """
    with open(path, "rb") as file:
        try:
            return _read(file)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):  # as anything may stand in there
            raise ModelError(f"{str(path)!r} is no safetensors file, or a damaged one.") from None


def _read(file: BinaryIO) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays and texts of an open file."""
    length = int.from_bytes(file.read(8), "little")
    size = os.fstat(file.fileno()).st_size - 8 - length
    if length > _HEADER or size < 0:
        raise ValueError
    header = json.loads(file.read(length))
    metadata = header.pop("__metadata__", {})
    arrays, position = {}, 0
    for name, entry in sorted(header.items(), key=lambda pair: pair[1]["data_offsets"]):
        dtype, shape, (start, end) = _DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
        if start != position or end > size or min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != end - start:
            raise ValueError
        arrays[name] = np.fromfile(file, np.uint8, end - start).view(dtype).reshape(shape)
        position = end
    if position != size:
        raise ValueError
    return arrays, {str(n): str(text) for n, text in metadata.items()}
