"""The state of a training kit: a safetensors file with a checksum and the number of steps that were taken."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
from safetensors import TensorSpec, serialize

from ortpartial.exceptions import ModelError
from ortpartial.model import read_regular, read_tensors

from .manifest import Tensor

__all__ = ["pack_state", "read_state"]

_CHECKSUM = re.compile(rb'"crc32":"([0-9a-f]{8})"')
#: `int` would also take digits of other scripts, and raise an error of its own on thousands of them.
_STEPS = re.compile("[0-9]{1,18}")
_RESERVED = "__metadata__"
_BLANK = b'"crc32":"00000000"'


def pack_state(arrays: Mapping[str, np.ndarray], steps: int) -> bytes:
    """Write a state as the content of its file.

    Parameters
    ----------
    arrays : dict of str to numpy.ndarray
        The state by name.
    steps : int
        The number of steps that were taken.

    Returns
    -------
    bytes

    Raises
    ------
    ModelError
        The format has no such name.
    """
    if _RESERVED in arrays:
        raise ModelError(f"The state has a tensor {_RESERVED!r}, a name that safetensors files cannot hold: rename it.")
    contents = {n: np.asarray(a, a.dtype.newbyteorder("<"), order="C") for n, a in arrays.items()}
    tensors = {n: TensorSpec(dtype=a.dtype.name, shape=a.shape, data_ptr=a.ctypes.data, data_len=a.nbytes)
               for n, a in contents.items()}
    data = bytes(serialize(tensors, {"crc32": "00000000", "steps": f"{steps:012d}"}))
    return data.replace(_BLANK, b'"crc32":"%08x"' % crc32(data), 1)


def read_state(path: Path, tensors: Sequence[Tensor]) -> tuple[dict[str, np.ndarray], int]:
    """Read a state, and check that it is whole.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    tensors : sequence of Tensor
        The tensors of the file.

    Returns
    -------
    arrays : dict of str to numpy.ndarray
        In the order of `tensors`.
    steps : int
        The number of steps that were taken.

    Raises
    ------
    ModelError
        It is damaged, or the state of another kit.
    OSError
        It cannot be read.
    """
    data = read_regular(path)
    checksum = _CHECKSUM.search(data)
    is_whole = checksum is not None and int(checksum[1], 16) == crc32(data.replace(checksum[0], _BLANK, 1))
    try:
        arrays, texts = read_tensors(path) if is_whole else ({}, {})
        steps = int(_STEPS.fullmatch(texts["steps"])[0])  # type: ignore[index]
    except (KeyError, TypeError, ValueError):  # A ModelError is a ValueError.
        raise ModelError(f"{path.name} is damaged: restore a copy of it, or export the kit again.") from None
    expected = {t.name: (t.dtype, t.shape) for t in tensors}
    if {n: (a.dtype.name, a.shape) for n, a in arrays.items()} != expected:
        raise ModelError(f"{path.name} is the state of another kit: its tensors are not those of kit.json.")
    return {t.name: arrays[t.name] for t in tensors}, steps
