"""How does a torch module hold the initializers of a graph? Which, under which names, and how it is exported to one."""

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
    """The initializers that become parameters, and those that become buffers.

    Parameters
    ----------
    model : Model
        The graph.
    names : sequence of str, optional
        Those that become parameters; by default those on a differentiable path.

    Returns
    -------
    tuple of list of str and list of str
    """
    outputs = [n for n, v in model.outputs.items() if v.is_float]
    reached = find_trainable(model.outputs[o] for o in outputs)
    usual = [n for n, v in model.initializers.items() if v in reached]
    parameters = usual if names is None else resolve_weights(model, names, outputs) if len(names) else []
    running = find_statistics(model)
    buffers = [n for n in model.initializers if (n in usual or n in running) and n not in parameters]
    return parameters, buffers


def register(module: torch.nn.Module, name: str, tensor: torch.Tensor, is_parameter: bool) -> str:
    """Put a tensor into a module under a dotted name, underscored where it is taken.

    Parameters
    ----------
    module : torch.nn.Module
        The module; empty modules are added to it for the parts of the name.
    name : str
        The name.
    tensor : torch.Tensor
        The tensor.
    is_parameter : bool
        Whether it is a parameter, or a buffer.

    Returns
    -------
    str
        The name that it has got.

    Examples
    --------
    >>> register(torch.nn.Module(), "fc.forward", torch.ones(1), True)
    'fc.forward_'
    """
    *path, last = (part or "_" for part in name.split("."))
    found: list[str] = []
    for part in path:
        while part not in module._modules and hasattr(module, part):
            part += "_"
        if part not in module._modules:
            module.add_module(part, torch.nn.Module())
        module, found = module._modules[part], [*found, part]
    while hasattr(module, last):
        last += "_"
    if is_parameter:
        module.register_parameter(last, torch.nn.Parameter(tensor))
    else:
        module.register_buffer(last, tensor)
    return ".".join([*found, last])


def find_owner(module: torch.nn.Module, key: str) -> tuple[torch.nn.Module, dict[str, Any], str]:
    """Where a module holds a tensor.

    Parameters
    ----------
    module : torch.nn.Module
        The module.
    key : str
        The key of the tensor in its state_dict.

    Returns
    -------
    tuple of torch.nn.Module, dict and str
        The module inside that holds it, the dict in which it does, and the name there.
    """
    *path, last = key.split(".")
    for part in path:
        module = module._modules[part]
    return module, module._buffers if last in module._buffers else module._parameters, last


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """A copy of an array, even of bfloat16, which torch does not know from numpy.

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
    """The content of a tensor in a dtype of ONNX.

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
    """A module as torch's TorchScript exporter writes it, in inference mode, but with all that trains in it.

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
    stream, traced = io.BytesIO(), copy.deepcopy(module)  # running statistics move while it is traced
    with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng():
        # This exporter is the one that keeps the names of weights; torch 2.13.0 warns that another is newer.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            traced, example, stream, dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
            input_names=names, dynamic_axes={n: {0: "N"} for n, t in zip(names, example, strict=True) if t.dim()},
            opset_version=17, verbose=False)
    model, state = to_inference_mode(ModelProto.FromString(stream.getvalue())), module.state_dict()
    sizes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    return replace_weights(model, {n: t.numpy(force=True) for n, t in state.items() if sizes.get(n) == tuple(t.shape)})
