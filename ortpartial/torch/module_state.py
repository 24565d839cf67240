"""The state of a torch module: initializers as parameters and buffers, and the export of a module to ONNX."""

from __future__ import annotations

import copy
import inspect
import io
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from onnx import ModelProto, helper, numpy_helper
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_unflatten

from ortpartial.graph import mark_gradient_stop
from ortpartial.model import replace_weights
from ortpartial.rewrites import to_inference_mode

__all__ = ["as_array", "as_tensor", "export_module", "find_owner", "match_state", "register",
           "register_unread"]

#: The opset of an exported module: LayerNormalization came with 17, Col2Im with 18.
_OPSET = 18
#: Arguments that are no inputs of a graph, but constants.
_CONSTANTS = (bool, int, float, str, torch.dtype, type(None))


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
    """Register what a graph does not hold of the state of its module, so that each takes the state of the other.

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
    state: dict[str, Any], prefix: str, module: torch.nn.Module, model: ModelProto, unread: Collection[str],
    errors: list[str],
) -> None:
    """Prepare a state_dict for the layer of a graph: leave out, or check, what the graph does not read.

    Parameters
    ----------
    state : dict of str to torch.Tensor
        The state, which is changed.
    prefix : str
        What the keys of the layer start with in it.
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


def export_module(module: torch.nn.Module, example: tuple[Any, ...] | Mapping[str, Any]) -> ModelProto:
    """Export a module by torch's TorchScript exporter, in inference mode but with its Dropout and BatchNormalization.

    Inputs are named as the arguments of the module's `forward`, outputs by the keys of what it returns. The tensors of
    a nested argument are inputs in their order, such as ``"pair_0"`` and ``"pair_1"``; numbers and None are constants.

    Parameters
    ----------
    module : torch.nn.Module
        The module; it is not changed.
    example : tuple or dict of str to object
        Arguments to trace it with, positional or by keyword: tensors, structures of them, numbers, strings and None.

    Returns
    -------
    onnx.ModelProto
    """
    args, kwargs = ((), dict(example)) if isinstance(example, Mapping) else (example, {})
    arguments = _name_arguments(module, args, kwargs)
    if strangers := [n for n, t in arguments.items() if not isinstance(t, (torch.Tensor, *_CONSTANTS))]:
        raise TypeError(f"The example {strangers[0]!r} is {type(arguments[strangers[0]]).__name__}; give a tensor for "
                        f"each input.")
    inputs = {n: t for n, t in arguments.items() if isinstance(t, torch.Tensor)}
    stream, traced = io.BytesIO(), copy.deepcopy(module)  # Tracing updates running statistics.
    with warnings.catch_warnings(), torch.no_grad(), torch.random.fork_rng(), _writing_detach():
        # Only this exporter keeps the names of weights; torch 2.13.0 warns that it is deprecated.
        warnings.simplefilter("ignore")
        parameters = inspect.signature(module.forward).parameters
        if len(args) < len(parameters) or not all(map(torch.is_tensor, args)):
            args, kwargs = _take_tensors(traced, args, kwargs), {}
        outputs = _name_outputs(traced(*args, **kwargs), {*inputs, *module.state_dict()})
        torch.onnx.export(
            traced, args, stream, kwargs=kwargs or None, dynamo=False, training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False, input_names=list(inputs), output_names=outputs,
            dynamic_axes={n: {0: "N"} for n, t in inputs.items() if t.dim()}, opset_version=_OPSET,
            verbose=False)
    model, state = to_inference_mode(_mark_detached(ModelProto.FromString(stream.getvalue()))), module.state_dict()
    sizes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    return replace_weights(model, {n: t.numpy(force=True) for n, t in state.items() if sizes.get(n) == tuple(t.shape)})


@contextmanager
def _writing_detach() -> Iterator[None]:
    """Have the exporter, which drops it, write `detach` as an operator of our own."""

    def write(g: Any, x: Any) -> Any:
        is_real = x.type().scalarType() in ("Float", "Double", "Half", "BFloat16")
        if not is_real or "Constant" in x.node().kind():
            return x
        return g.op("ortpartial::StopGradient", x).setType(x.type())

    torch.onnx.register_custom_op_symbolic("aten::detach", write, _OPSET)
    try:
        yield
    finally:
        torch.onnx.unregister_custom_op_symbolic("aten::detach", _OPSET)


def _mark_detached(model: ModelProto) -> ModelProto:
    """Turn each StopGradient of a new model into an Identity that stops the gradient."""
    for node in model.graph.node:
        if node.op_type == "StopGradient":
            node.op_type, node.domain = "Identity", ""
            mark_gradient_stop(node)
    imports = [i for i in model.opset_import if i.domain != "ortpartial"]
    del model.opset_import[:]
    model.opset_import.extend(imports)
    return model


def _name_arguments(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What a call passes, in the order of the arguments of `forward` and by their names; structures part by part."""
    arguments: dict[str, Any] = {}
    signature = inspect.signature(module.forward)
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        is_named = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        for path, leaf in tree_flatten_with_path(value)[0]:
            entries = [[getattr(entry, a) for a in ("key", "idx", "name") if hasattr(entry, a)] for entry in path]
            parts = [str(entry) for (entry,) in entries]
            arguments["_".join(parts if is_named else [name, *parts])] = leaf
    return arguments


def _take_tensors(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Let a module take the tensors among its arguments alone, and return those; all else is as in this call.

    The exporter of torch 2.13.0 takes defaults that are numbers for inputs, and drops what is passed by name.
    """
    forward = module.forward
    bound = inspect.signature(forward).bind(*args, **kwargs)
    leaves, structure = tree_flatten((bound.args, bound.kwargs))

    def call(*tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        passed = [next(rest) if torch.is_tensor(leaf) else leaf for leaf in leaves]
        positional, named = tree_unflatten(passed, structure)
        return forward(*positional, **named)

    module.forward = call
    return tuple(t for t in leaves if torch.is_tensor(t))


def _name_outputs(outputs: Any, taken: Collection[str]) -> list[str] | None:
    """Names of what a module returns: its keys or fields, or numbers; None if it is nested."""
    if isinstance(outputs, torch.Tensor):
        names, values = ["output"], [outputs]
    elif isinstance(outputs, Mapping):
        names, values = list(map(str, outputs)), list(outputs.values())
    elif isinstance(outputs, (tuple, list)):
        fields = getattr(outputs, "_fields", None)
        names, values = list(fields or [f"output_{i}" for i in range(len(outputs))]), list(outputs)
    else:
        return None
    if not all(isinstance(v, torch.Tensor) for v in values):
        return None
    return [n if n not in taken else f"{n}_output" for n in names]
