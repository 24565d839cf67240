"""The state of a torch module: initializers as parameters and buffers, and the export of a module to ONNX."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from onnx import ModelProto, helper

from ortpartial.autodiff import find_trainable, resolve_weights
from ortpartial.model import Model, replace_weights
from ortpartial.rewrites import find_statistics, to_inference_mode

__all__ = ["as_array", "as_tensor", "choose_state", "export_module", "find_owner", "register"]


def choose_state(model: Model, names: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Choose the initializers that become parameters, and those that become buffers.

    Parameters
    ----------
    model : Model
        The graph.
    names : sequence of str, optional
        The parameters; by default the initializers on a differentiable path to an output.

    Returns
    -------
    tuple of list of str and list of str
    """
    outputs = [n for n, v in model.outputs.items() if v.is_float]
    reached = find_trainable(model.outputs[o] for o in outputs)
    differentiable = [n for n, v in model.initializers.items() if v in reached]
    parameters = differentiable if names is None else resolve_weights(model, names, outputs) if len(names) else []
    running = find_statistics(model)
    buffers = [n for n in model.initializers if (n in differentiable or n in running) and n not in parameters]
    return parameters, buffers


def register(module: torch.nn.Module, name: str, tensor: torch.Tensor, is_parameter: bool) -> str:
    """Register a tensor in a module under a dotted name, underscored until it is free.

    Parameters
    ----------
    module : torch.nn.Module
        The module; empty modules are added for the parts of the name.
    name : str
        The name.
    tensor : torch.Tensor
        The tensor.
    is_parameter : bool
        Whether it becomes a parameter; a buffer otherwise.

    Returns
    -------
    str
        The key in the state_dict.

    Examples
    --------
    >>> register(torch.nn.Module(), "fc.forward", torch.ones(1), True)
    'fc.forward_'
    """
    *path, last = (part or "_" for part in name.split("."))
    parents: list[str] = []
    for part in path:
        while part not in module._modules and hasattr(module, part):
            part += "_"
        if part not in module._modules:
            module.add_module(part, torch.nn.Module())
        module, parents = module._modules[part], [*parents, part]
    while hasattr(module, last):
        last += "_"
    if is_parameter:
        module.register_parameter(last, torch.nn.Parameter(tensor))
    else:
        module.register_buffer(last, tensor)
    return ".".join([*parents, last])


def find_owner(module: torch.nn.Module, key: str) -> tuple[torch.nn.Module, dict[str, Any], str]:
    """Find the submodule and the dict that hold a tensor.

    Parameters
    ----------
    module : torch.nn.Module
        The module.
    key : str
        The key of the tensor in its state_dict.

    Returns
    -------
    tuple of torch.nn.Module, dict and str
        The submodule, its dict of parameters or of buffers, and the name there.
    """
    *path, last = key.split(".")
    for part in path:
        module = module._modules[part]
    return module, module._buffers if last in module._buffers else module._parameters, last


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Copy an array into a tensor, even one of bfloat16, which torch cannot read from numpy.

    Parameters
    ----------
    array : numpy.ndarray
        The content.

    Returns
    -------
    torch.Tensor
    """
    if array.dtype.name == "bfloat16":
        return torch.tensor(array.astype(np.float32)).to(torch.bfloat16)
    return torch.tensor(array)


def as_array(t: torch.Tensor, kind: int) -> np.ndarray:
    """Copy a tensor into an array of an ONNX dtype.

    Parameters
    ----------
    t : torch.Tensor
        The tensor.
    kind : int
        A `TensorProto.DataType`.

    Returns
    -------
    numpy.ndarray
    """
    t = t.detach().cpu()
    return (t.float() if t.dtype is torch.bfloat16 else t).numpy().astype(helper.tensor_dtype_to_np_dtype(kind))


def export_module(module: torch.nn.Module, example: tuple[Any, ...]) -> ModelProto:
    """Export a module by torch's TorchScript exporter, in inference mode but with its Dropout and BatchNormalization.

    Parameters
    ----------
    module : torch.nn.Module
        The module; it is not changed.
    example : tuple of torch.Tensor
        Inputs to trace it with.

    Returns
    -------
    onnx.ModelProto
    """
    names = [f"input_{i}" for i in range(len(example))] if len(example) > 1 else ["input"]
    stream, traced = io.BytesIO(), copy.deepcopy(module)  # Tracing updates running statistics.
    with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng():
        # Only this exporter keeps the names of weights; torch 2.13.0 warns that it is deprecated.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            traced, example, stream, dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
            input_names=names, dynamic_axes={n: {0: "N"} for n, t in zip(names, example, strict=True) if t.dim()},
            opset_version=17, verbose=False)
    model, state = to_inference_mode(ModelProto.FromString(stream.getvalue())), module.state_dict()
    sizes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    return replace_weights(model, {n: t.numpy(force=True) for n, t in state.items() if sizes.get(n) == tuple(t.shape)})
