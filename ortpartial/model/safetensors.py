"""Files of the safetensors format, by the library of that name: written whole or not at all, checked when read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, TensorSpec, safe_open, serialize

from ortpartial.exceptions import ModelError

from .atomic import flush_folder, replace_file
from .regular_file import open_regular

__all__ = ["read_tensors", "write_tensors"]

#: The dtypes that become numpy arrays again: safetensors 0.8.0 writes float8, too, and cannot read it.
_DTYPES = frozenset({"bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
                     "float16", "bfloat16", "float32", "float64", "complex64"})


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
        The file cannot be written; the former file remains.

    Examples
    --------
    >>> write_tensors({"w": np.arange(3.0)}, "weights.safetensors", {"epoch": "7"})
    >>> read_tensors("weights.safetensors")
    ({'w': array([0., 1., 2.])}, {'epoch': '7'})
    """
    contents = {n: np.asarray(a, a.dtype.newbyteorder("<"), order="C") for n, a in arrays.items()}
    for name, a in contents.items():
        if a.dtype.name not in _DTYPES:
            raise ModelError(f"The array {name!r} has dtype {a.dtype}, which a safetensors file cannot hold.")
    tensors = {n: TensorSpec(dtype=a.dtype.name, shape=a.shape, data_ptr=a.ctypes.data, data_len=a.nbytes)
               for n, a in contents.items()}
    target = Path(path)
    with replace_file(target) as file:
        file.write(serialize(tensors, dict(metadata) if metadata else None))
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
        The file is no safetensors file, or not whole.
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
    if "\0" in str(path):
        raise ModelError(f"The name of a file has no NUL, as {str(path)!r} has.")
    open_regular(path).close()  # The library waits for a pipe, and its errors have no number and no name of a file.
    try:
        with safe_open(path, "numpy") as file:
            return file.get_tensors(), file.metadata() or {}
    except (SafetensorError, OverflowError, ValueError):  # The last are numpy's, on a shape like 0 x 2^62.
        raise ModelError(f"{str(path)!r} is no safetensors file, or a damaged one.") from None
    except AttributeError as e:
        raise ModelError(f"{str(path)!r} has a tensor that numpy cannot hold: {e}.") from None
