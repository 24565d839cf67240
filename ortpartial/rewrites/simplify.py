"""Graph simplification: fold constants, remove idle nodes and reorder others before a model is differentiated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from ortpartial.annotations import Inputs
from ortpartial.autodiff import find_single_slice
from ortpartial.graph import Node, Value, build, constant, make_node, make_rewriter, op, topological
from ortpartial.limits import limits
from ortpartial.model import Model, evaluate

from .protocol import attempt, numbered
from .transposes import cancel_transposes

__all__ = ["simplify"]

#: From a node and its new inputs to values in place of its outputs, None where the pattern does not match.
Rewrite = Callable[[Node, Sequence[Any]], "list[Value] | None"]

#: Operators whose constants are folded.
_FOLDABLE = frozenset({"Abs", "Add", "And", "Cast", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Floor",
                       "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mul",
                       "Neg", "NonZero", "Not", "Or", "Pow", "Range", "Reciprocal", "ReduceProd", "Reshape", "Slice",
                       "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze", "Where"})


#: Arithmetic that numpy and onnx's evaluator have in common.
_ARITHMETIC: Mapping[str, Callable[..., np.ndarray]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}


@numbered("fold_shape", "skip_slice_of_nothing", "reshape_before_transpose", "gathers_to_split", "relu_after_pool",
          "remove_idle_dropout", "fold_sizes", "fold_constants")
def simplify(model: Model, *, dropout: bool = False, inputs: Mapping[str, Value] = MappingProxyType({})) -> Model:
    """The same function in fewer nodes.

    onnxruntime folds constants, too, but for each graph apart, and the backward graph would repeat the work. Of these
    cases, the first that matches a node applies; `cancel_transposes` follows.

    1. `fold_shape`: Shape, some sizes of it, or Size of a value of static shape becomes a constant.
    2. `skip_slice_of_nothing`: Slice along axes without elements becomes its input.
    3. `reshape_before_transpose`: Reshape(Transpose(Reshape(x))) becomes Transpose(Reshape(x)).
    4. `gathers_to_split`: Gathers that together pick every slice of a tensor become a Split.
    5. `relu_after_pool`: MaxPool(Relu(x)) becomes Relu(MaxPool(x)).
    6. `remove_idle_dropout`: Dropout in inference mode becomes its input.
    7. `fold_sizes`: Concat or Slice of constant sizes becomes a constant.
    8. `fold_constants`: Any other node of small constants becomes a constant.

    Parameters
    ----------
    model : Model
        The model.
    dropout : bool
        Whether an idle Dropout is kept, because it is to be turned on.
    inputs : dict of str to Value
        Variables in place of inputs, by name, such as variables of static shape.

    Returns
    -------
    Model
    """
    rewrites = [
        _fold_shape,
        _skip_slice_of_nothing,
        _reshape_before_transpose,
        _gathers_to_split(model),
        _relu_after_pool(model),
        *([] if dropout else [_remove_idle_dropout]),
        _fold_sizes,
        _fold_constants,
    ]

    def change(node: Node, inputs: Inputs) -> list[Value] | None:
        return attempt(rewrites, node, inputs)

    new = make_rewriter(list(model.outputs.values()), {model.inputs[n]: v for n, v in inputs.items()}, change)
    outputs = {n: new(v) for n, v in model.outputs.items()}
    return replace(model, inputs={**model.inputs, **inputs}, outputs=cancel_transposes(outputs))


def _fold_shape(node: Node, inputs: Inputs) -> list[Value] | None:
    """The Shape, or some sizes of it, or the Size of a value of static shape as a constant."""
    if node.op_type not in ("Shape", "Size") or not inputs[0].is_static:
        return None
    sizes = np.asarray(inputs[0].shape, np.int64)
    if node.op_type == "Size":
        return [constant(sizes.prod())]
    return [constant(sizes[node.attribute("start") : node.attribute("end")])]


def _skip_slice_of_nothing(node: Node, inputs: Inputs) -> list[Value] | None:
    """The input of a Slice along axes that have no elements, such as the axes of an empty cache."""
    if node.op_type != "Slice" or len(inputs) < 4 or inputs[3] is None or inputs[3].array is None:
        return None
    x, axes = inputs[0], inputs[3].array
    is_empty = x.shape is not None and all(x.shape[axis] == 0 for axis in axes)
    return [x] if is_empty else None


def _fold_sizes(node: Node, inputs: Inputs) -> list[Value] | None:
    """A Concat or a Slice of constant sizes; most folded nodes are so, and need no import of onnx's evaluator."""
    arrays = [x.array for x in inputs if x is not None]
    if node.op_type not in ("Concat", "Slice") or node.domain or not all(map(_holds_sizes, arrays)):
        return None
    if node.op_type == "Concat":
        sizes = np.concatenate(arrays)
    else:
        step = inputs[4].array if len(inputs) > 4 and inputs[4] is not None else np.ones(1, np.int64)
        if any(a.size != 1 for a in arrays[1:]) or not step[0]:
            return None
        # Before the first element is the first again, to go back from, too; for numpy there is nothing.
        sizes = arrays[0][max(arrays[1][0], -arrays[0].size) : arrays[2][0] : step[0]]
    return [constant(sizes)] if sizes.size <= limits().folded_elements else None


def _holds_sizes(a: np.ndarray | None) -> bool:
    """Whether this is a short vector of whole numbers."""
    return a is not None and a.ndim == 1 and a.dtype == np.int64 and a.size <= limits().folded_elements


def _fold_constants(node: Node, inputs: Inputs) -> list[Value] | None:
    """A node of small constants, computed now."""
    is_constant = all(x is None or (x.array is not None and x.array.size <= limits().folded_elements) for x in inputs)
    if not is_constant or node.op_type not in _FOLDABLE or node.domain:
        return None
    y = make_node(node.schema, inputs, node.attributes).outputs[0]
    array = _compute(node.op_type, [x.array for x in inputs if x is not None], y)
    if array is None:
        array = evaluate(build([], {"y": y}), {})
    is_folded = array is not None and array.size <= limits().folded_elements and array.dtype == y.dtype
    return [constant(array)] if is_folded and array is not None else None


def _compute(op_type: str, arrays: Sequence[np.ndarray], y: Value) -> np.ndarray | None:
    """A node of constants by numpy, as onnx's evaluator computes it, where a model would take longer; else None.

    The mean of a loss and its gradient have these, in each step of a module.
    """
    if y.dtype not in (np.float32, np.float64):
        return None
    if op_type in _ARITHMETIC and all(a.dtype == y.dtype for a in arrays):
        with np.errstate(all="ignore"):
            return np.asarray(_ARITHMETIC[op_type](*arrays))
    if op_type == "Cast" and arrays[0].dtype == np.int64:
        return arrays[0].astype(y.dtype)
    shape = [n for n in y.shape or () if isinstance(n, int)]
    if op_type == "Expand" and y.is_static and prod(shape) <= limits().folded_elements:
        return np.broadcast_to(arrays[0], shape).copy()
    return None


def _remove_idle_dropout(node: Node, inputs: Inputs) -> list[Value] | None:
    """The input of a Dropout in inference mode."""
    if node.op_type != "Dropout":
        return None
    training = inputs[2] if len(inputs) > 2 else None
    is_idle = training is None or (training.array is not None and not training.array)
    return [inputs[0], *node.outputs[1:]] if is_idle else None


def _relu_after_pool(model: Model) -> Rewrite:
    """MaxPool(Relu(x)) as Relu(MaxPool(x)), which has fewer elements, where nothing else reads the Relu.

    Not so with ceil_mode: onnxruntime 1.19.2 keeps windows behind the image, and gives the lowest number for them.
    """
    roots = list(model.outputs.values())
    nodes = topological(roots)
    readers = Counter([*roots, *(v for node in nodes for v in node.reads)])
    pools = {node for node in nodes if node.op_type == "MaxPool" and not node.domain
             and (x := node.reads[0]).node and x.node.op_type == "Relu" and readers[x] == 1
             and not readers[node.outputs[1]] and not node.attribute("ceil_mode")}

    def relu_after_pool(node: Node, inputs: Inputs) -> list[Value] | None:
        if node not in pools:
            return None
        return [op.Relu(make_node(node.schema, inputs[0].node.inputs, node.attributes).outputs[0])]

    return relu_after_pool


def _gathers_to_split(model: Model) -> Rewrite:
    """Gathers that together pick every slice of a tensor as a Split; attention picks queries, keys and values so.

    The gradient of a Split is a Concat, the gradient of n Gathers is n tensors of the whole size and their sum.
    """
    picks = _find_picks(model)
    splits: dict[tuple[Value, int], tuple[Sequence[Value], list[int]]] = {}

    def gathers_to_split(node: Node, inputs: Inputs) -> list[Value] | None:
        if node not in picks:
            return None
        tensor, axis, i, n = picks[node]
        if (tensor, axis) not in splits:
            splits[tensor, axis] = _split(inputs[0], axis, n)
        slices, ones = splits[tensor, axis]
        if inputs[1].rank and ones == [axis]:
            return [slices[i]]
        y = op.Squeeze(slices[i], ones)
        return [op.Unsqueeze(y, [axis]) if inputs[1].rank else y]

    return gathers_to_split


def _find_picks(model: Model) -> dict[Node, tuple[Value, int, int, int]]:
    """By each Gather of a complete set: the tensor, the axis, which slice it picks, of how many."""
    gathers: dict[tuple[Value, int], dict[int, list[Node]]] = {}
    for node in topological(list(model.outputs.values())):
        if node.op_type == "Gather" and not node.domain and (x := node.inputs[0]) is not None and x.shape:
            axis, indices = node.attribute("axis") % len(x.shape), node.inputs[1]
            if indices is not None and (pick := find_single_slice(x, indices, axis)) is not None:
                gathers.setdefault((x, axis), {}).setdefault(pick[0], []).append(node)
    return {node: (x, axis, i, len(slices)) for (x, axis), slices in gathers.items()
            if 1 < len(slices) == (x.shape or ())[axis] for i, nodes in slices.items() for node in nodes}


def _split(x: Value, axis: int, n: int) -> tuple[list[Value], list[int]]:
    """The n slices of x along an axis, and which of their axes of size 1 are not among the other axes of x.

    Where x only moves axes of another value, that value is split, so that the moves may be eliminated.
    """
    source, axes = x, list(range(x.rank))
    while (moved := _trace_axes(source)) is not None:
        origins = [a for i in axes if (a := moved[1][i]) is not None]
        if len(origins) < len(axes):
            break
        source, axes = moved[0], origins
    rest = axes[:axis] + axes[axis + 1 :]
    if rest != sorted(rest):
        source, axes, rest = x, list(range(x.rank)), [a for a in range(x.rank) if a != axis]
    return list(op.Split(source, axis=axes[axis], num_outputs=n)), [a for a in range(source.rank) if a not in rest]


def _trace_axes(v: Value) -> tuple[Value, list[int | None]] | None:
    """The input of a Squeeze, Transpose or Unsqueeze v, and for each axis of v that of the input; None for others."""
    node, x = _match(v, "Squeeze", "Transpose", "Unsqueeze")
    if node is None or x is None:
        return None
    if node.op_type == "Transpose":
        return x, [*_permutation(node, x)]
    listed = node.inputs[1].array if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if listed is None:
        return None
    ones = {int(a) % max(x.rank, v.rank) for a in listed}
    if node.op_type == "Squeeze":
        return x, [a for a in range(x.rank) if a not in ones]
    rest = iter(range(x.rank))
    return x, [None if a in ones else next(rest) for a in range(v.rank)]


def _reshape_before_transpose(node: Node, inputs: Inputs) -> list[Value] | None:
    """Reshape(Transpose(Reshape(x))) as Transpose(Reshape(x)), where the last Reshape only takes axes apart.

    torch moves the heads of attention as an axis with the batch and takes them apart later. A runtime fuses a product
    with a Transpose next to it, but not behind a Reshape.
    """
    if node.op_type != "Reshape":
        return None
    shape = _static_shape(make_node(node.schema, inputs, node.attributes).outputs[0])
    transpose, turned = _match(inputs[0], "Transpose")
    reshape, x = _match(turned, "Reshape")
    sizes = _static_shape(turned)
    if transpose is None or turned is None or reshape is None or sizes is None or shape is None:
        return None
    perm = _permutation(transpose, turned)
    groups = _group_sizes(shape, [sizes[a] for a in perm])
    if groups is None:
        return None
    parts = dict(zip(perm, groups, strict=True))
    starts = list(accumulate((len(parts[a]) for a in range(len(perm))), initial=0))
    apart = op.Reshape(x, [n for a in range(len(perm)) for n in parts[a]])
    return [op.Transpose(apart, perm=[starts[a] + i for a, sizes in parts.items() for i in range(len(sizes))])]


def _static_shape(v: Value | None) -> list[int] | None:
    """The shape of a value, None where a size is not known."""
    return list(v.shape or ()) if v is not None and v.is_static else None  # type: ignore[arg-type]


def _group_sizes(fine: Sequence[int], coarse: Sequence[int]) -> list[list[int]] | None:
    """Consecutive fine sizes in groups whose products are the coarse sizes; None where there are no such groups."""
    rest, groups = list(fine), []
    for n in coarse:
        group = [rest.pop(0)] if rest else []
        while rest and 0 < np.prod(group) < n:
            group.append(rest.pop(0))
        groups.append(group)
    return groups if not rest and [np.prod(group) for group in groups] == list(coarse) else None


def _match(v: Value | None, *op_types: str) -> tuple[Node, Value] | tuple[None, None]:
    """The node of v and its first input, where the node is of these types and the rank of the input is known."""
    node = v.node if v is not None else None
    if node is None or node.op_type not in op_types or (x := node.inputs[0]) is None or x.shape is None:
        return None, None
    return node, x


def _permutation(transpose: Node, x: Value) -> list[int]:
    """The axis of x that each axis of its Transpose is."""
    return list(transpose.attribute("perm") or reversed(range(x.rank)))
