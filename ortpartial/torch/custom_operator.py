"""A layer as operators of torch, which torch.compile, torch.export and the exporters to ONNX see as a single node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import torch
from onnx import ModelProto
from torch.autograd.function import FunctionCtx

from ortpartial.exceptions import ModelError
from ortpartial.graph import Value

from .autograd import CompiledLayer

__all__ = ["CallSignature", "describe_call", "find_layer", "onnx_layer", "register_layer"]


class Layer(Protocol):
    """An `OnnxLayer`, as far as its operators and exporters use it."""

    input_names: list[str]
    output_names: list[str]
    state_names: dict[str, str]

    def compile_form(self, *, training: bool) -> CompiledLayer:
        """The compiled layer in a mode."""

    def write_form(self, compiled: CompiledLayer) -> ModelProto:
        """A model that computes a compiled form."""

    def check_inputs(self, tensors: Sequence[torch.Tensor]) -> None:
        """Refuse inputs on which an operator would crash."""

    def prepare_run_apart(self) -> None:
        """Let calls be run outside of the graphs of torch.compile."""


#: Operators take numbers, strings and tensors: a layer is found by its key, which no other layer of the process has.
_LAYERS: WeakValueDictionary[str, Layer] = WeakValueDictionary()
_COUNT = 0


def register_layer(layer: Layer) -> str:
    """Register a layer as long as it lives.

    Parameters
    ----------
    layer : OnnxLayer
        The layer.

    Returns
    -------
    str
        Its key.
    """
    global _COUNT
    key, _COUNT = f"layer_{_COUNT}", _COUNT + 1
    _LAYERS[key] = layer
    return key


def find_layer(key: str) -> Layer:
    """The layer of a key.

    Parameters
    ----------
    key : str
        The result of `register_layer`.

    Returns
    -------
    OnnxLayer

    Raises
    ------
    ModelError
        It is gone, or was made in another process.
    """
    layer = _LAYERS.get(key)
    if layer is None:
        raise ModelError(f"The OnnxLayer {key!r} of a compiled or exported program is not in this process any more; "
                         f"keep the module that it was compiled from.")
    return layer


class CallSignature(NamedTuple):
    """The values that a traced call of a layer passes to the operator and takes from it.

    Parameters
    ----------
    dtypes : tuple of torch.dtype
        Of the inputs.
    initializers : tuple of str
        The keys in the state_dict of the initializers that are read.
    masks : tuple
        Of each mask of Dropout, the sizes (numbers, or an input and its axis), the dtype and the probability to keep.
    statistics : tuple
        The key of each running statistic, and its momentum; the batch's statistics are the last outputs.
    n_outputs : int
        The number of outputs of the graph.
    """

    dtypes: tuple[torch.dtype, ...]
    initializers: tuple[str, ...]
    masks: tuple[tuple[tuple[Any, ...], torch.dtype, float], ...]
    statistics: tuple[tuple[str, float], ...]
    n_outputs: int


def describe_call(key: str, training: bool) -> CallSignature | None:
    """Describe a call of a layer to who traces it.

    Parameters
    ----------
    key : str
        The key of the layer.
    training : bool
        The mode.

    Returns
    -------
    CallSignature or None
        None where the graph depends on the sizes of its inputs, so that no operator stands for it.
    """
    layer, compiled = find_layer(key), _compile(key, training)
    if compiled.needs_sizes:
        layer.prepare_run_apart()
        return None
    return CallSignature(
        tuple(compiled.dtypes), tuple(layer.state_names[n] for n in compiled.initializers),
        tuple((tuple(sizes), getattr(torch, mask.value.dtype.name), mask.keep)
              for mask, sizes in zip(compiled.masks.values(), compiled.mask_sizes, strict=True)),
        tuple((layer.state_names[s.name], s.momentum) for s in compiled.statistics), len(layer.output_names))


def _compile(key: str, training: bool) -> CompiledLayer:
    return find_layer(key).compile_form(training=training)


def _needs(leaves: Sequence[object], wanted: Sequence[int]) -> tuple[bool, ...]:
    return tuple([i in wanted for i in range(len(leaves))])


# Dynamo takes its result for a constant. `torch.compiler.assume_constant_result` of torch 2.13.0, which sets this and
# nothing else, imports dynamo, in two seconds.
describe_call._dynamo_marked_constant = True  # type: ignore[attr-defined]


@torch.library.custom_op("ortpartial::onnx_layer", mutates_args=())
def onnx_layer(leaves: list[torch.Tensor], layer: str, training: bool, wanted: list[int]) -> list[torch.Tensor]:
    """Compute the outputs of a layer, and further inputs of its gradient by the wanted leaves.

    Parameters
    ----------
    leaves : list of torch.Tensor
        Inputs, initializers and masks.
    layer : str
        The key of the layer.
    training : bool
        The mode.
    wanted : list of int
        The leaves that need a gradient.

    Returns
    -------
    list of torch.Tensor
    """
    find_layer(layer).check_inputs(leaves)
    function = _compile(layer, training).function
    return (function.traceable_gradient(_needs(leaves, wanted)) if wanted else function).run(leaves)


@onnx_layer.register_fake
def _(leaves: list[torch.Tensor], layer: str, training: bool, wanted: list[int]) -> list[torch.Tensor]:
    function = _compile(layer, training).function
    values = dict(function.function.outputs)
    if wanted:
        values |= function.traceable_gradient(_needs(leaves, wanted)).cut.saved
    sizes = {d: s for v, t in zip(function.function.leaves.values(), leaves, strict=True)
             for d, s in zip(v.shape or (), t.shape, strict=False) if isinstance(d, str)}
    return [_fake(v, sizes, leaves[0].device) for v in values.values()]


def _fake(value: Value, sizes: Mapping[str, object], device: torch.device) -> torch.Tensor:
    """An empty tensor of the shape that a value has for given sizes of the symbolic dimensions."""
    if value.shape is None:
        raise ModelError(f"The rank of {value!r} is not known, without which a layer cannot be compiled; declare the "
                         f"shape of the output in the graph.")
    shape = [d if isinstance(d, int) else sizes.get(d or "") for d in value.shape]
    shape = [torch.library.get_ctx().new_dynamic_size() if d is None else d for d in shape]
    return torch.empty(shape, dtype=getattr(torch, value.dtype.name), device=device)


@torch.library.custom_op("ortpartial::onnx_layer_gradient", mutates_args=())
def onnx_layer_gradient(kept: list[torch.Tensor], cotangents: list[torch.Tensor], layer: str, training: bool,
                        wanted: list[int], n_leaves: int) -> list[torch.Tensor]:
    """Compute the gradients of a layer by the wanted leaves, zeros where no output depends on them.

    Parameters
    ----------
    kept : list of torch.Tensor
        The leaves, outputs and saved tensors that the gradient reads.
    cotangents : list of torch.Tensor
        The cotangents of the outputs that can be differentiated.
    layer : str
        The key of the layer.
    training : bool
        The mode.
    wanted : list of int
        The leaves that need a gradient.
    n_leaves : int
        The number of leaves.

    Returns
    -------
    list of torch.Tensor
    """
    gradient = _compile(layer, training).function.traceable_gradient(_needs(range(n_leaves), wanted))
    dys: list[torch.Tensor | None] = [None] * gradient.count
    for (i, _), dy in zip(gradient.seeds, cotangents, strict=True):
        dys[i] = dy
    with torch.no_grad():
        gradients = gradient.backward(kept, dys, None)
    leaves = dict(zip(gradient.kept_sources, kept, strict=False))
    return [torch.zeros_like(leaves[i]) if (g := gradients[i]) is None else g for i in wanted]


@onnx_layer_gradient.register_fake
def _(kept: list[torch.Tensor], cotangents: list[torch.Tensor], layer: str, training: bool, wanted: list[int],
      n_leaves: int) -> list[torch.Tensor]:
    gradient = _compile(layer, training).function.traceable_gradient(_needs(range(n_leaves), wanted))
    leaves = dict(zip(gradient.kept_sources, kept, strict=False))
    return [torch.empty_like(leaves[i], memory_format=torch.contiguous_format) for i in wanted]


def _setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    leaves, *ctx.call = inputs
    key, training, wanted = ctx.call
    ctx.n_leaves = len(leaves)
    if not wanted:
        return
    gradient = _compile(key, training).function.traceable_gradient(_needs(leaves, wanted))
    ctx.shapes = [t.shape for t in output]
    ctx.save_for_backward(*[leaves[i] for i in gradient.kept_sources], *[output[i] for i in gradient.kept_outputs])


def _backward(ctx: FunctionCtx, dys: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    key, training, wanted = ctx.call
    if not wanted:
        raise ModelError("An OnnxLayer was traced for inference, and has no gradient in this program; train the module "
                         "that it was made of, or one that torch.compile has compiled.")
    function = _compile(key, training).function
    gradient, kept = function.traceable_gradient(_needs(range(ctx.n_leaves), wanted)), ctx.saved_tensors
    outputs = function.function.outputs
    cotangents = [kept[0].new_zeros(ctx.shapes[i], dtype=getattr(torch, outputs[o].dtype.name))
                  if (dy := dys[i]) is None else dy for i, o in gradient.seeds]
    results = onnx_layer_gradient(list(kept), cotangents, key, training, wanted, ctx.n_leaves)
    gradients: list[torch.Tensor | None] = [None] * ctx.n_leaves
    for i, g in zip(wanted, results, strict=True):
        gradients[i] = g
    return gradients, None, None, None


onnx_layer.register_autograd(_backward, setup_context=_setup_context)
