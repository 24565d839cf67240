"""Saving and loading adapters, in the form that the name of the file says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

from ortpartial.arguments import checked
from ortpartial.exceptions import FileMissingError, ModelError, SettingError
from ortpartial.model import Model, check_finite, is_base, read_adapter, write

from .insertion import insert, read_copy, remove_adapter, strip_adapter
from .matching import match_products
from .onnx_adapter import make_base, read_onnx_adapter, write_onnx_adapter
from .peft_files import read_peft, write_peft
from .products import find_products

__all__ = ["load_adapter", "save_adapter"]

#: Methods that return the trained model, of optimizers, of a `TrainingSession` and of an `OnnxLayer`.
_METHODS = ("get_trained_onnx", "inference_model", "to_onnx")

#: Endings of files of adapters; other paths are folders.
_ONNX, _SAFETENSORS = ".onnx_adapter", ".safetensors"


@checked
def save_adapter(trained: object, path: str | os.PathLike[str], base: str | os.PathLike[str] | None = None) -> None:
    """Write the adapter of a trained model to a file, and the model that it is loaded beside.

    Parameters
    ----------
    trained : optimizer, OnnxLayer, TrainingSession, onnx.ModelProto, bytes, path or Model
        The holder of an adapter, such as of `add_lora`, after its training.
    path : path
        ``<name>.onnx_adapter`` for onnxruntime 1.20 or later and onnxruntime-genai: the factor of A and B, alpha /
        rank, is a part of B there, and Dropout is left out. A folder, which gets PEFT's ``adapter_model.safetensors``
        and ``adapter_config.json``, or ``<name>.safetensors``, which holds both.
    base : path, optional
        Where to write the model that was trained, unchanged but for optional inputs: the weights of the adapter.
        Without them it computes the same as before, to the last bit; onnxruntime gives it the weights of the adapter of
        ``RunOptions.add_active_adapter``, and onnxruntime-genai of ``set_active_adapter``. It is written once: adapters
        of every rank and alpha, for the same targets or some of them, swap on a session. It needs onnxruntime 1.20 or
        later: 1.19.2 does not set a product of rank 0 to zero.

    Raises
    ------
    ModelError
        The model holds no adapter.
    RuntimeMissingError
        The installed onnxruntime has no `AdapterFormat`, as 1.19 has none.
    ConvergenceError
        A weight of the adapter is not finite.
    SettingError
        The path ends as no adapter does, or is that of the base.
    OSError
        A file cannot be written; the former file remains.

    Examples
    --------
    >>> import onnx
    >>> from ortpartial.adapters import add_lora
    >>> from ortpartial.graph import build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 3]), constant([[1.0, 2.0]] * 3, hint="fc.weight")
    >>> adapted = add_lora(build([x], {"y": x @ w}), "fc", rank=2, random_state=0)
    >>> save_adapter(adapted, "my.safetensors", base="base.onnx")
    >>> [i.name for i in onnx.load("base.onnx").graph.input]
    ['x', 'fc.lora_A.weight', 'fc.lora_B.weight']
    """
    _check_path(path)
    if base is not None and os.path.realpath(base) == os.path.realpath(path):
        raise SettingError(f"path and base are both {os.fspath(path)!r}; the base is a model, such as 'base.onnx'.")
    proto = _read_trained(trained)
    adapter = read_adapter(proto)
    if adapter is None:
        raise ModelError("The model holds no adapter; add one by add_lora, add_dora or add_ia3, train the model that "
                         "it returns, and save that.")
    if is_base(proto, adapter):
        raise ModelError("The model is a base that `save_adapter` has written, whose adapters are inputs; give the "
                         "model that was trained.")
    names = set(adapter.weights)
    arrays = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer if t.name in names}
    check_finite(arrays, {n: np.zeros(1) for n in arrays}, "get_trained_onnx")
    strip_adapter(proto)
    products = match_products(proto.graph, adapter, arrays)
    if Path(path).suffix == _ONNX:
        write_onnx_adapter(adapter, arrays, path, proto)
    else:
        write_peft(adapter, arrays, path, list(products.values()))
    if base is not None:
        make_base(proto, adapter)
        write(proto, base)


@checked
def load_adapter(model: Model | ModelProto | bytes | str | os.PathLike[str], path: str | os.PathLike[str]
                 ) -> ModelProto:
    """Add an adapter that was saved to the model that it was trained for.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path, or a `Model` returned by `load`
        The base; it is not written to. A base that `save_adapter` has written will do, too, or a model with another
        adapter, which is left out.
    path : path
        ``<name>.onnx_adapter``, ``<name>.safetensors``, or a folder of PEFT.

    Returns
    -------
    onnx.ModelProto
        The model with the adapter, whose weights ``weights_to_train="adapter"`` trains further.

    Raises
    ------
    ModelError
        The adapter is for another base, or damaged.
    RuntimeMissingError
        The installed onnxruntime reads no `.onnx_adapter` file.
    SettingError
        The path ends as no adapter does.
    FileMissingError, OSError
        It is not there, or cannot be read.

    Examples
    --------
    >>> from ortpartial.adapters import add_lora
    >>> from ortpartial.graph import build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 3]), constant([[1.0, 2.0]] * 3, hint="fc.weight")
    >>> base = build([x], {"y": x @ w})
    >>> save_adapter(add_lora(base, "fc", rank=2, random_state=0), "my.safetensors")
    >>> [t.name for t in load_adapter(base, "my.safetensors").graph.initializer]
    ['fc.weight', 'fc.lora_A.weight', 'fc.lora_B.weight']
    """
    _check_path(path)
    if not Path(path).exists():
        raise FileMissingError(f"There is no adapter {os.fspath(path)!r}; give the file or the folder that "
                               f"save_adapter or PEFT has written.")
    proto = remove_adapter(model)
    if Path(path).suffix == _ONNX:
        adapter, arrays = read_onnx_adapter(path, proto)
    else:
        adapter, arrays = read_peft(path, find_products(proto.graph))
    insert(proto, adapter, arrays)
    return proto


def _check_path(path: str | os.PathLike[str]) -> None:
    """Refuse a file that is no adapter."""
    file = Path(path)
    if file.suffix not in (_ONNX, _SAFETENSORS) and (file.suffix in (".onnx", ".bin", ".pt") or file.is_file()):
        raise SettingError(f"{os.fspath(path)!r} is to end in {_ONNX} or {_SAFETENSORS}, or to name a folder for the "
                           f"files of PEFT.")


def _read_trained(trained: Any) -> ModelProto:
    """The model of a trainer, which may be written to."""
    for name in _METHODS:
        if callable(method := getattr(trained, name, None)):
            proto: ModelProto = method()
            return proto
    return read_copy(trained)
