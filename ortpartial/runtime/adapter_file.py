"""Adapter files: onnxruntime's `AdapterFormat`, which its sessions and onnxruntime-genai load beside a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ortpartial.exceptions import ModelError, RuntimeMissingError
from ortpartial.model import open_regular, replace_file

from .device import import_onnxruntime, runtime_version
from .errors import clean_message

__all__ = ["check_adapter_files", "has_adapter_files", "read_adapter_file", "write_adapter_file"]

#: The dtypes of which onnxruntime 1.32.0 makes a tensor from an array, and an array again.
_DTYPES = ("float16", "float32", "float64")


def has_adapter_files() -> bool:
    """Whether the installed onnxruntime has an `AdapterFormat`, as it has from 1.20 on.

    Returns
    -------
    bool

    Examples
    --------
    >>> has_adapter_files() in (True, False)
    True
    """
    return hasattr(import_onnxruntime(), "AdapterFormat")


def check_adapter_files() -> None:
    """Refuse to work with adapter files where onnxruntime does not know them.

    Raises
    ------
    RuntimeMissingError
        The installed onnxruntime has no `AdapterFormat`.

    Examples
    --------
    >>> if has_adapter_files():
    ...     check_adapter_files()
    """
    if not has_adapter_files():
        raise RuntimeMissingError(f"onnxruntime {runtime_version()} has no AdapterFormat, which 1.20 brought; give the "
                                  f"adapter a path that ends in .safetensors, or install a newer onnxruntime.")


def write_adapter_file(arrays: Mapping[str, np.ndarray], path: str | os.PathLike[str], model_version: int = 1) -> None:
    """Write the weights of an adapter to a file, which holds either its former content or all of them.

    Parameters
    ----------
    arrays : dict of str to numpy.ndarray
        Inputs of a model by name, as they are while the adapter is active; float16, float32 or float64.
    path : path
        The file, ``<name>.onnx_adapter``.
    model_version : int
        A number from 0 to 2³¹ - 1 that stands for the model; onnxruntime stores it, and does not compare it.

    Raises
    ------
    RuntimeMissingError
        The installed onnxruntime has no `AdapterFormat`.
    ModelError
        The format has no such dtype.
    OSError
        The file cannot be written; the former one remains.

    Examples
    --------
    >>> if has_adapter_files():
    ...     write_adapter_file({"lora_A": np.ones((4, 2), np.float32)}, "twos.onnx_adapter", 7)
    """
    check_adapter_files()
    for name, a in arrays.items():
        if a.dtype.name not in _DTYPES:
            raise ModelError(f"The array {name!r} has dtype {a.dtype}, and an .onnx_adapter file holds "
                             f"{', '.join(_DTYPES)}; save the adapter as safetensors.")
    ort = import_onnxruntime()
    adapter = ort.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(model_version)
    adapter.set_parameters({n: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(a)) for n, a in arrays.items()})
    with replace_file(Path(path)) as file:
        try:
            adapter.export_adapter(f"/dev/fd/{file.fileno()}")  # onnxruntime writes to a path alone, and not at once.
        except RuntimeError:  # which does not say why; the same from Python does.
            file.write(bytes(sum(a.nbytes + 1024 for a in arrays.values())))
            file.flush()
            raise


def read_adapter_file(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], int]:
    """Read the weights of an adapter from a file.

    Parameters
    ----------
    path : path
        The file, ``<name>.onnx_adapter``.

    Returns
    -------
    arrays : dict of str to numpy.ndarray
        Copies, by name.
    model_version : int

    Raises
    ------
    RuntimeMissingError
        The installed onnxruntime has no `AdapterFormat`.
    ModelError
        The file is no adapter, is cut off, or has a newer format.
    OSError
        It cannot be read.

    Examples
    --------
    >>> if has_adapter_files():
    ...     write_adapter_file({"lora_A": np.ones((4, 2), np.float32)}, "twos.onnx_adapter", 7)
    ...     assert read_adapter_file("twos.onnx_adapter")[1] == 7
    """
    check_adapter_files()
    open_regular(path).close()  # The errors of the system, which onnxruntime has no class for; it waits for a pipe.
    try:
        adapter = import_onnxruntime().AdapterFormat.read_adapter(os.fspath(path))
        arrays = {n: np.array(value.numpy()) for n, value in adapter.get_parameters().items()}
    except Exception as e:  # onnxruntime's classes of errors have no common base.
        if "format version" in str(e):
            raise ModelError(f"{os.fspath(path)!r} is of a newer format than onnxruntime {runtime_version()} reads; "
                             f"install a newer onnxruntime.") from None
        raise ModelError(f"{os.fspath(path)!r} is no whole .onnx_adapter file: {clean_message(e)}") from None
    return arrays, int(adapter.get_model_version())
