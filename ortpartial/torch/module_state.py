"""The state of a torch module: initializers as parameters and buffers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch
from onnx import ModelProto, helper, numpy_helper

from ortpartial.annotations import Settings

__all__ = ["as_array", "as_tensor", "find_owner", "match_state", "register", "register_unread"]


def register(module: torch.nn.Module, name: str, tensor: torch.Tensor, is_parameter: bool) -> str:
    """Register a tensor in a module under a dotted name, underscored until it is free.

    Parameters
    ----------
    module : torch.nn.Module
        The module; empty modules are added for the parts of the name.
    name : str
        The name.
    tensor : torch.Tensor
        The tensor; a parameter that is registered already is tied.
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
        is_tied = isinstance(tensor, torch.nn.Parameter)
        module.register_parameter(last, tensor if is_tied else torch.nn.Parameter(tensor))
    else:
        module.register_buffer(last, tensor)
    return ".".join([*parents, last])


def register_unread(module: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> list[str]:
    """Register state of a module that its graph does not hold, so that each takes the state of the other.

    Parameters
    ----------
    module : torch.nn.Module
        The layer of the graph.
    state : mapping of str to torch.Tensor
        The state of the module that was exported, its parameters themselves.

    Returns
    -------
    list of str
        The keys that were registered, as buffers. Another name of a tied parameter is a parameter of the layer.
    """
    own, unread = module.state_dict(keep_vars=True), []
    held = {id(t): own[key] for key, t in state.items() if key in own}
    for key, t in state.items():
        if key in own:
            continue
        if isinstance(tied := held.get(id(t)), torch.nn.Parameter):
            register(module, key, tied, True)
        else:
            register(module, key, t.detach().clone(), False)
            unread.append(key)
    return unread


def match_state(
    state: Settings, prefix: str, module: torch.nn.Module, model: ModelProto, unread: Collection[str],
    errors: list[str],
) -> None:
    """Prepare a state_dict for the layer of a graph: leave out, or check, state that the graph does not read.

    Parameters
    ----------
    state : dict of str to torch.Tensor
        The state, which is changed.
    prefix : str
        The prefix of the layer's keys in it.
    module : torch.nn.Module
        The layer.
    model : onnx.ModelProto
        Its graph.
    unread : collection of str
        The keys of the layer that the graph does not read.
    errors : list of str
        Gets a message for each tensor that contradicts a constant of the graph.
    """
    own = module.state_dict(keep_vars=True)
    for key in unread:  # The state of a layer of an earlier version has no tensor for it.
        state.setdefault(prefix + key, own[key])
    constants = {t.name: t for t in model.graph.initializer if t.name not in own or t.name in unread}
    for key in [k.removeprefix(prefix) for k in state if k.startswith(prefix)]:
        if key in constants:
            expected, t = as_tensor(numpy_helper.to_array(constants[key])), state[prefix + key]
            if not torch.equal(expected, t.detach().cpu().to(expected.dtype)):
                errors.append(f"{key!r} is a constant of the graph, which holds another content; export the module "
                              f"again.")
        # BatchNorm counts batches only for a momentum of None, which no exporter writes.
        is_counter = key.endswith("num_batches_tracked") and f"{key[:-19]}running_mean" in own
        if key not in own and (key in constants or is_counter):
            del state[prefix + key]


def find_owner(module: torch.nn.Module, key: str) -> tuple[torch.nn.Module, str, str]:
    """Find the submodule that holds a tensor.

    Parameters
    ----------
    module : torch.nn.Module
        The module.
    key : str
        The key of the tensor in its state_dict.

    Returns
    -------
    tuple of torch.nn.Module, str and str
        The submodule, its attribute of all its parameters or of its buffers, and the name there.
    """
    *path, last = key.split(".")
    for part in path:
        module = module._modules[part]
    return module, "_buffers" if last in module._buffers else "_parameters", last


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Copy an array into a tensor, even of bfloat16, which torch cannot read from numpy.

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
