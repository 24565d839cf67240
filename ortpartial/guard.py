"""Which models must not reach onnxruntime? Those that end or hang its process, although they pass onnx's checker."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from .exceptions import ModelError
from .graph import OPSET, Value, constant, make_node, op
from .schemas import schema_of

__all__ = ["check_node", "check_proto", "check_size", "guarded"]

#: Whole numbers in attributes that are data, or "to the end"; any other beyond 32 bits overflows inside of onnx 1.23.2.
_ANY_NUMBER = frozenset({"ends", "ignore_index", "starts", "value_int", "value_ints"})

#: Attributes that are sizes, steps or numbers of groups, which onnx and onnxruntime divide by or count with.
_POSITIVE = frozenset({"blocksize", "dilations", "group", "hidden_size", "kernel_shape", "num_groups", "num_outputs",
                       "offset_group", "output_height", "output_width", "pooled_shape", "sample_size",
                       "strides"})  # fmt: skip

#: No window is larger than this along an axis, nor is its padding; larger ones overflow, or take hours.
_WINDOW = frozenset({"dilations", "kernel_shape", "output_padding", "pads", "sampling_ratio", "strides"})
_LARGEST_WINDOW = 2**20

_LARGEST = 2**31 - 1
_FUNCTION_DEPTH, _FUNCTION_NODES = 100, 1_000_000

#: Operators that end or hang the process where a tensor has no elements (onnxruntime 1.19.2; Conv and LSTM in 1.31.1).
NEVER_EMPTY = frozenset({"Conv", "ConvTranspose", "DynamicQuantizeLinear", "GRU", "LSTM", "RNN", "ReduceL1", "ReduceL2",
                          "ReduceSumSquare"})  # fmt: skip

#: Through these, the numbers of an input stay what they are.
_UNCHANGED = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})

LOSSES = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")


# -- before onnx itself reads the model


def check_proto(model: ModelProto) -> None:
    """Refuse what ends onnx's own inference and inlining, or makes them endless.

    Parameters
    ----------
    model : onnx.ModelProto
        The model as it was given.

    Raises
    ------
    ModelError
        Functions that call themselves or grow without measure, attributes out of range, a Loop without end.
    """
    functions = {(f.domain, f.name): f for f in model.functions}
    _Expansion(functions).count(model.graph.node, ())
    for container in (model.graph, *model.functions):
        for node in _nodes(container):
            for a in node.attribute:
                _check_attribute(node, a)
            if node.op_type == "Einsum":
                _check_equation(node)
            if node.op_type == "Loop":
                _check_loop(node, container)


def _nodes(container: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """Nodes, and those of the graphs inside of them."""
    for node in container.node:
        yield node
        for a in node.attribute:
            for graph in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs):
                yield from _nodes(graph)


@dataclass(frozen=True)
class _Expansion:
    """Counts the nodes that inlining gives, without inlining."""

    functions: Mapping[tuple[str, str], FunctionProto]
    known: dict[tuple[str, str], int] = field(default_factory=dict)

    def count(self, nodes: Sequence[NodeProto], calls: tuple[tuple[str, str], ...]) -> int:
        """How many nodes these become; an error for a function that calls itself."""
        total = 0
        for node in nodes:
            total += 1
            key = node.domain, node.op_type
            if key in self.functions:
                total += self._function(key, calls)
            for a in node.attribute:
                for graph in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs):
                    total += self.count(graph.node, calls)
        if total > _FUNCTION_NODES:
            raise ModelError(f"The functions of the model would be inlined into {total} nodes; {_FUNCTION_NODES} are "
                             f"the most that is taken.")  # fmt: skip
        return total

    def _function(self, key: tuple[str, str], calls: tuple[tuple[str, str], ...]) -> int:
        name = ".".join(key)
        if key in calls:
            raise ModelError(f"The function {name!r} calls itself, which ONNX does not allow; write it as a Loop.")
        if len(calls) >= _FUNCTION_DEPTH:
            raise ModelError(f"The function {name!r} is called at a depth of more than {_FUNCTION_DEPTH} functions; "
                             f"inline some of them.")  # fmt: skip
        if key not in self.known:
            self.known[key] = self.count(self.functions[key].node, (*calls, key))
        return self.known[key]


def _named(node: NodeProto) -> str:
    """A node as errors call it."""
    return f"Node {node.name or '(unnamed)'} ({node.op_type}, output {node.output[0] if node.output else ''!r})"


def _check_attribute(node: NodeProto, a: AttributeProto) -> None:
    """Sizes and steps are positive, and nothing is beyond 32 bits."""
    numbers = [a.i] if a.type == AttributeProto.INT else list(a.ints)
    if node.domain not in ("", "ai.onnx") or not numbers or a.name in _ANY_NUMBER:
        return
    largest = _LARGEST_WINDOW if a.name in _WINDOW else _LARGEST
    least = 1 if a.name in _POSITIVE or (node.op_type, a.name) in {("LRN", "size"), ("LpPool", "p")} else -largest
    if wrong := [n for n in numbers if not least <= n <= largest]:
        raise ModelError(f"{_named(node)} has {a.name} of {wrong[0]}, where {least} to {largest} were expected.")
    if a.name == "kernel_shape" and (size := math.prod(numbers)) > 64 * _LARGEST_WINDOW:
        raise ModelError(f"{_named(node)} has a kernel of {size} elements, where {64 * _LARGEST_WINDOW} are the most.")


def _check_equation(node: NodeProto) -> None:
    """A term of Einsum has one ellipsis at most: with several, inference takes time without end."""
    for a in node.attribute:
        for term in a.s.decode("utf-8", "replace").replace("->", ",").split(","):
            if term.count(".") not in (0, 3) or (term.count(".") and "..." not in term.replace(" ", "")):
                raise ModelError(f"{_named(node)} has the equation {a.s.decode('utf-8', 'replace')!r}, a term of which "
                                 f"has {term.count('.')} dots, where one ellipsis of three was expected.")  # fmt: skip


def _check_loop(node: NodeProto, container: GraphProto | FunctionProto) -> None:
    """A Loop must be able to end: with a count, or with a condition that its body computes."""
    stored = {t.name: numpy_helper.to_array(t) for t in getattr(container, "initializer", ()) if not any(
        d > 1 for d in t.dims)}  # fmt: skip
    for other in container.node:
        if other.op_type == "Constant" and other.attribute and other.attribute[0].name == "value":
            stored[other.output[0]] = numpy_helper.to_array(other.attribute[0].t)
    most, first = (*node.input, "", "")[:2]
    if most and not (most in stored and stored[most].size and stored[most].flat[0] > 2**40):
        return
    if first and not (first in stored and stored[first].all()):
        return
    body = next(a.g for a in node.attribute if a.name == "body")
    makers = {o: n for n in body.node for o in n.output}
    stored_inside = {t.name: numpy_helper.to_array(t) for t in body.initializer}
    name = body.output[0].name
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    inside = makers.get(name)
    if inside is not None and inside.op_type == "Constant" and inside.attribute[0].name == "value":
        stored_inside[name] = numpy_helper.to_array(inside.attribute[0].t)
    handed_on = len(body.input) > 1 and name == body.input[1].name
    if handed_on or name in stored or (name in stored_inside and stored_inside[name].all()):
        raise ModelError(f"{_named(node)} can never end: it has no trip count, and its condition is always true. Give "
                         f"it a trip count.")  # fmt: skip


# -- before a node becomes part of a graph


def check_size(value: Value, what: str) -> None:
    """Refuse a tensor that has negative sizes or is larger than the memory of the machine.

    Parameters
    ----------
    value : Value
        The tensor; sizes that are not known count as 1.
    what : str
        What to call it.

    Raises
    ------
    ModelError
    """
    sizes = [d for d in value.shape or () if isinstance(d, int)]
    if any(d < 0 for d in sizes):
        raise ModelError(f"{what} has the shape {value.shape}, a size of which is negative.")
    if math.prod(sizes) < 2**20 or not value.type.tensor_type.elem_type:
        return
    if (needed := math.prod(sizes) * value.dtype.itemsize) > (memory := _memory()):
        raise ModelError(f"{what} has the shape {value.shape} and needs {needed / 2**30:.1f} GiB, where "
                         f"{memory / 2**30:.1f} GiB are all that there is.")  # fmt: skip


def _memory() -> int:
    """Memory of the machine, or what a limit leaves this process of it, in bytes."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        import resource  # not on Windows

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        return found if limit == resource.RLIM_INFINITY else min(found, limit)
    except (ImportError, AttributeError, ValueError):
        return 2**40


def check_node(op_type: str, inputs: Sequence[Value | None], attributes: Mapping[str, Any], where: str) -> None:
    """Refuse a node that is known to end the process, or never to return.

    Parameters
    ----------
    op_type : str
        Its operator, of the default domain.
    inputs : sequence of Value or None
        What it reads.
    attributes : dict of str to object
        Its attributes.
    where : str
        What to call it.

    Raises
    ------
    ModelError
    """
    if op_type in NEVER_EMPTY and (empty := [x for x in inputs if x is not None and 0 in (x.shape or ())]):
        raise ModelError(f"{where} reads {empty[0]!r}, a tensor without elements, which ends or hangs some versions of "
                         f"onnxruntime; leave the node out.")  # fmt: skip
    killer = KILLERS.get(op_type)
    if killer is not None and (reason := killer(*inputs, **_known(killer, attributes))):
        raise ModelError(f"{where} {reason}")


def _known(killer: Callable[..., Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Those attributes that a predicate asks for."""
    names = killer.__kwdefaults__ or {}
    return {n: attributes[n] for n in names if n in attributes}


def _division(a: Value, b: Value) -> str | None:
    if b.array is None or b.is_float:
        return None
    if not b.array.all():
        return "divides whole numbers by 0, which ends the process; divide by something else."
    if a.array is not None and b.array.dtype.kind == "i":
        least = np.iinfo(b.array.dtype).min
        if (a.array == least).any() and (b.array == -1).any():
            return f"may divide {least}, the least number of its type, by -1, which ends the process; use a wider type."
    return None


def _groups(x: Value, *_: Value, num_groups: int = 1) -> str | None:
    channels = x.shape[1] if x.shape is not None and len(x.shape) > 1 else None
    if isinstance(channels, int) and channels % num_groups:
        return f"has num_groups of {num_groups}, which does not divide the {channels} channels."
    return None


def _labels(x: Value, t: Value, *_: Value | None, ignore_index: int | None = None) -> str | None:
    classes = classes_of(x)
    if t.array is None or classes is None or not t.array.size:
        return None
    kept = t.array[t.array != ignore_index] if ignore_index is not None else t.array
    if kept.size and not 0 <= kept.min() <= kept.max() < classes:
        return f"has labels from {kept.min()} to {kept.max()}, where 0 to {classes - 1} were expected."
    return None


def _indices(data: Value, i: Value, *_: Value, axis: int = 0) -> str | None:
    if i.array is None or not i.array.size or data.shape is None or not -len(data.shape) <= axis < len(data.shape):
        return None
    size = data.shape[axis]
    if isinstance(size, int) and not -size <= i.array.min() <= i.array.max() < size:
        return f"has indices from {i.array.min()} to {i.array.max()}, where {-size} to {size - 1} were expected."
    return None


def _rois(x: Value, rois: Value, batch: Value | None = None, *_: Value) -> str | None:
    if rois.array is not None and not (np.abs(rois.array) < _LARGEST_WINDOW).all():
        return f"has regions that are no numbers below {_LARGEST_WINDOW}."
    rows = (x.shape or (None,))[0]
    if batch is not None and batch.array is not None and batch.array.size and (
            batch.array.min() < 0 or (isinstance(rows, int) and batch.array.max() >= rows)):
        return f"has batch_indices from {batch.array.min()} to {batch.array.max()}, which are no rows of its input."
    return None


def _unpooled(x: Value, i: Value, shape: Value | None = None, *, kernel_shape: Sequence[int] = (),
              strides: Sequence[int] = (), pads: Sequence[int] = ()) -> str | None:  # fmt: skip
    if i.array is None:
        return "has indices that are computed, and any that is out of range ends the process; store them in the model."
    if x.shape is not None and x.is_static and i.array.shape != x.shape:
        return f"has indices of the shape {i.array.shape}, where {x.shape} was expected."
    if not i.array.size:
        return None
    if i.array.min() < 0:
        return "has negative indices."
    n = len(kernel_shape)
    if shape is not None and shape.array is not None:
        size = math.prod(map(int, shape.array))
    else:
        window = zip(i.array.shape[2:], strides or [1] * n, kernel_shape, pads[:n] or [0] * n, pads[n:] or [0] * n,
                     strict=False)  # fmt: skip
        size = math.prod(i.array.shape[:2]) * math.prod((m - 1) * s + k - p - q for m, s, k, p, q in window)
    return None if i.array.max() < size else f"has indices up to {i.array.max()}, and its output has {size} elements."


def _uniform(*_: Value, low: float = 0.0, high: float = 1.0) -> str | None:
    return None if -math.inf < low <= high < math.inf else f"draws numbers from {low} to {high}, which is no interval."


def _normal(*_: Value, mean: float = 0.0, scale: float = 1.0) -> str | None:
    return None if math.isfinite(mean) and 0 < scale < math.inf else f"draws numbers with a scale of {scale}."


#: Operators of the default domain that end the process for some inputs: predicates that say why, or None.
KILLERS: dict[str, Callable[..., str | None]] = {
    "Div": _division, "Mod": _division,
    "Gather": _indices, "GatherElements": _indices,
    "GroupNormalization": _groups,
    "MaxUnpool": _unpooled,
    "NegativeLogLikelihoodLoss": _labels, "SoftmaxCrossEntropyLoss": _labels,
    "RandomNormal": _normal, "RandomNormalLike": _normal, "RandomUniform": _uniform, "RandomUniformLike": _uniform,
    "RoiAlign": _rois,
}  # fmt: skip


# -- what is only known when the graph runs


def guarded(op_type: str, inputs: Sequence[Value | None], attributes: Mapping[str, Any], name: str) -> list[Any]:
    """The inputs of a node, such that what would end the process ends the run with an error instead.

    A table of one element is read with the index 0, or with 1 where the numbers are those that kill: onnxruntime checks
    the indices of a Gather, and its error names the node, hence the name says what is wrong.

    Parameters
    ----------
    op_type : str
        Its operator, of the default domain.
    inputs : sequence of Value or None
        What it reads.
    attributes : dict of str to object
        Its attributes.
    name : str
        What the error will call it.

    Returns
    -------
    list of Value or None
    """
    found = list(inputs)
    if op_type in ("Div", "Mod"):
        a, b = inputs
        if a is not None and b is not None and _is_whole(b) and (bad := _bad_division(a, b)) is not None:
            found[1] = b + _raised(bad, b, f"{name} divides whole numbers by zero, or the least one by -1")
    if op_type in LOSSES:
        x, t = inputs[:2]
        # What comes straight from the user is checked on the host, and costs nothing here.
        computed = t is not None and t.array is None and (leaf(t).node is not None or x is None or not classes_of(x))
        if x is not None and t is not None and computed and _is_whole(t):
            classes = op.Cast(op.Gather(op.Shape(x), constant(1)), to=t.type.tensor_type.elem_type)
            bad = op.Or(t < constant(0, t.dtype), t >= classes)
            if (ignored := attributes.get("ignore_index")) is not None:
                bad = op.And(bad, op.Not(op.Equal(t, constant(ignored, t.dtype))))
            found[1] = t + _raised(bad, t, f"{name} has a label out of range")
    if op_type == "Bernoulli" and (x := inputs[0]) is not None and x.is_float:
        found[0] = x + _raised(op.Not(op.And(x >= 0, x <= 1)), x, f"{name} has probabilities that are not in 0 to 1")
    if op_type == "Trilu" and len(inputs) == 2 and inputs[1] is not None:
        found[1] = op.Min(op.Max(inputs[1], constant(-_LARGEST, np.int64)), constant(_LARGEST, np.int64))
    return found


def _bad_division(a: Value, b: Value) -> Value | None:
    """Where a division kills; None where the constants show that it cannot."""
    signed = b.dtype.kind == "i"
    least = constant(np.array(np.iinfo(b.dtype).min, b.dtype))
    minus = signed and (b.array is None or bool((b.array == -1).any()))
    if minus and a.array is not None and not (a.array == least.array).any():
        minus = False
    parts = [op.Equal(b, constant(0, b.dtype))] if b.array is None else []
    if minus:
        parts.append(op.And(op.Equal(a, least), op.Equal(b, constant(-1, b.dtype))))
    return None if not parts else parts[0] if len(parts) == 1 else op.Or(*parts)


def _is_whole(v: Value) -> bool:
    """Whether a value is a tensor of whole numbers."""
    return bool(v.type.tensor_type.elem_type) and v.dtype.kind in "iu"


def _raised(bad: Value, like: Value, name: str) -> Value:
    """Zeros of the dtype of `like`, or an error of onnxruntime where something is bad."""
    gather = schema_of("Gather", "", OPSET)
    zeros = constant(np.zeros(1, like.dtype))
    return make_node(gather, [zeros, op.Cast(bad, to=TensorProto.INT64)], {}, name=name).outputs[0]


def classes_of(x: Value) -> int | None:
    """How many labels the scores of a loss are for."""
    size = x.shape[1] if x.shape is not None and len(x.shape) > 1 else None
    return size if isinstance(size, int) else None


def leaf(v: Value) -> Value:
    """Where the numbers of a value come from."""
    while v.node is not None and v.node.op_type in _UNCHANGED and v.node.inputs[0] is not None:
        v = v.node.inputs[0]
    return v
