"""Run-time guards: numbers that are only known when a graph runs, and would crash or hang onnxruntime, end in an error.

A guard is a Gather from a table of a single element, by the index 0, or by another where a number would crash. Every
engine checks the index, and its error has the name of the Gather, which hence states the problem; where the name ends
with a colon, the index is the number itself, shifted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, defs

from ortpartial.annotations import Attributes, Inputs
from ortpartial.exceptions import ModelError
from ortpartial.graph import (
    GUARD,
    LEAST_GUARDED,
    OPSET,
    SHIFT,
    Bound,
    Node,
    OpaqueSchema,
    Subgraph,
    Value,
    build,
    constant,
    describe_bound,
    find_bound,
    make_node,
    name_node,
    op,
    register_guard,
    schema_of,
    state_refusal,
    walk_back,
)

from .crash_guards import check_operator, count_classes, find_source
from .folding import evaluate
from .sizes import find_size_source
from .validation import LARGEST_INT32, LARGEST_WINDOW, check_equation, check_numbers

__all__ = ["BOUNDED", "guard_bound", "guard_inputs", "guard_written"]

#: An input, where its numbers would crash, and the problem with them then.
Guard = tuple[int, Value, str]

#: From inputs and attributes to guards.
Find = Callable[[Inputs, Attributes], Iterator[Guard]]

#: Inputs that hold indices, lengths or sizes, and in which numbers beyond 32 bits overflow (onnxruntime 1.19.2): Tile
#: writes to foreign memory, Trilu reads it, and TopK gives other elements. Bounded by 32 bits they mean the same.
BOUNDED = {"Pad": 1, "Tile": 1, "TopK": 1, "Trilu": 1, "com.microsoft.Pad": 1, "com.microsoft.Trilu": 1}


def guard_inputs(op_type: str, inputs: Sequence[Value | None], attributes: Attributes, name: str) -> list[Value | None]:
    """The inputs of a node with guards: numbers that would crash the process raise an error of onnxruntime instead.

    Parameters
    ----------
    op_type : str
        Its operator, behind its domain and a dot where that is not ONNX's own.
    inputs : sequence of Value or None
        Its inputs.
    attributes : dict of str to object
        Its attributes, with the graphs among them.
    name : str
        The node as the error names it.

    Returns
    -------
    list of Value or None

    Raises
    ------
    ModelError
        The numbers are known already, and would crash the process.
    """
    guarded: list[Any] = list(inputs)
    if op_type not in _GUARDS and op_type not in BOUNDED:
        return guarded
    if any(v is not None and not v.type.tensor_type.elem_type for v in inputs) and "." in op_type:
        return guarded  # Its type may be a sequence, or not known.
    i = BOUNDED.get(op_type, 0)
    if i and i < len(inputs) and (v := inputs[i]) is not None:
        guarded[i] = _bound(v)
    find = _GUARDS.get(op_type)
    for i, bad, problem in () if find is None else find(guarded, attributes):
        if (known := _evaluate(bad)) is None:
            guarded[i] = guarded[i] + _fail_where(bad, guarded[i], f"{name} {problem}")
        elif known.any():
            raise ModelError(state_refusal(f"{name} {problem}"))
    if op_type == "MaxUnpool":
        # onnxruntime 1.19.2 dies of indices whose rank it does not infer, as behind an operator that is a function.
        places = guarded[1]
        guarded[1] = op.Reshape(places, [0] * places.rank).stated(places.shape)
    return guarded


def guard_written(schema: defs.OpSchema | OpaqueSchema, inputs: Inputs, attributes: Attributes) -> Inputs:
    """The inputs of an operator that is written in Python, with the checks and guards of an operator in a file.

    Parameters
    ----------
    schema : onnx.defs.OpSchema
        The operator.
    inputs : sequence of Value or None
        Its inputs.
    attributes : dict of str to object
        Its attributes, with the graphs among them.

    Returns
    -------
    sequence of Value or None

    Raises
    ------
    ModelError
        The operator would crash or hang the process.
    """
    op_type, where = schema.name, name_node("", schema.name, "")
    if schema.domain:
        return guard_inputs(f"{schema.domain}.{op_type}", inputs, attributes, where)
    check_numbers(op_type, _list_numbers(attributes), where)
    if op_type == "Einsum":
        check_equation(str(attributes.get("equation")), where)
    check_operator(op_type, inputs, attributes, where)
    return guard_inputs(op_type, inputs, attributes, where)


def _list_numbers(attributes: Attributes) -> dict[str, Sequence[int]]:
    """The attributes that are whole numbers."""
    each = {n: a if isinstance(a, (list, tuple)) else (a,) for n, a in attributes.items()}
    return {n: a for n, a in each.items() if all(isinstance(i, (int, np.integer)) for i in a)}


def guard_bound(node: Node, inputs: Sequence[Value | None]) -> list[Value | None]:
    """The inputs of a node with a guard for the checks of onnxruntime's kernel, for engines without its kernels.

    Parameters
    ----------
    node : Node
        A node.
    inputs : sequence of Value or None
        Its inputs.

    Returns
    -------
    list of Value or None
    """
    guarded, bound = list(inputs), find_bound(node)
    v = None if bound is None else guarded[bound.position]
    if bound is None or v is None or bound.ranges is None or len(bound.ranges) != 1 or v.array is not None:
        return guarded
    (low, high), = bound.ranges
    bad = op.Or(v < constant(low, v.dtype), constant(high, v.dtype) < v)
    if bound.ignored is not None:
        bad = op.And(bad, op.Not(op.Equal(v, constant(bound.ignored, v.dtype))))
    where = name_node(node.name, node.op_type, node.outputs[0].hint)
    guarded[bound.position] = v + _fail_where(bad, v, describe_bound(where, bound))
    return guarded


def _bound(v: Value) -> Value:
    """Whole numbers bounded to 32 bits."""
    if v.array is None:
        return op.Min(op.Max(v, constant(-LARGEST_INT32, v.dtype)), constant(LARGEST_INT32, v.dtype))
    bounded = np.clip(v.array, -LARGEST_INT32, LARGEST_INT32)
    return v if (bounded == v.array).all() else constant(bounded)


def _evaluate(bad: Value) -> np.ndarray | None:
    """The array of a condition that depends on constants alone, else None."""
    if any(v.node is None and v.array is None for v in walk_back([bad], lambda v: False)):
        return None
    return evaluate(build([], {"bad": bad}), {})


def _fail_where(bad: Value, like: Value, name: str) -> Value:
    """Zeros of the dtype of `like`; an error of the engine that has this name where a condition holds."""
    gather = schema_of("Gather", "", OPSET)
    zeros = constant(np.zeros(1, like.dtype))
    index = op.Cast(bad, to=TensorProto.INT64)
    if name.endswith(":"):
        number = like if like.dtype == np.int64 else op.Cast(like, to=TensorProto.INT64)
        index = op.Where(bad, op.Max(number, constant(LEAST_GUARDED)) + constant(SHIFT), constant(0))
    return make_node(gather, [zeros, index], {}, name=f"{GUARD}{name}").outputs[0]


# -- guards by operator


def _guard_division(inputs: Inputs, attributes: Attributes) -> Iterator[Guard]:
    a, b = inputs
    if a is not None and b is not None and _is_whole(b) and (bad := _find_bad_division(a, b)) is not None:
        yield 1, bad, "divides whole numbers by zero, or the least one by -1:"


def _find_bad_division(a: Value, b: Value) -> Value | None:
    """Where a division of whole numbers would crash; None where constants show that it cannot."""
    least = constant(np.array(np.iinfo(b.dtype).min, b.dtype))
    may_overflow = b.dtype.kind == "i" and (b.array is None or bool((b.array == -1).any()))
    if may_overflow and a.array is not None and not (a.array == least.array).any():
        may_overflow = False
    conditions = [op.Equal(b, constant(0, b.dtype))] if b.array is None else []
    if may_overflow:
        conditions.append(op.And(op.Equal(a, least), op.Equal(b, constant(-1, b.dtype))))
    return None if not conditions else conditions[0] if len(conditions) == 1 else op.Or(*conditions)


def _guard_labels(inputs: Inputs, attributes: Attributes) -> Iterator[Guard]:
    x, t, *_ = inputs
    if x is None or t is None or t.array is not None or not _is_whole(t):
        return
    if count_classes(x) and find_source(t).node is None:
        return  # Labels straight from the user are checked on the host, which costs nothing here.
    bad, size = _is_outside(t, op.Gather(op.Shape(x), constant(1))), count_classes(x)
    if (ignored := attributes.get("ignore_index")) is not None:
        bad = op.And(bad, op.Not(op.Equal(t, constant(ignored, t.dtype))))
    yield 1, bad, describe_bound("", Bound(1, "a label", None if size is None else ((0, size - 1),), ignored)).strip()


def _guard_probabilities(inputs: Inputs, attributes: Attributes) -> Iterator[Guard]:
    (x,) = inputs
    if x is None or not x.is_float:
        return
    yield 0, op.Not(op.And(x >= 0, x <= 1)), "has probabilities that are not in 0 to 1"


def _guard_range(inputs: Inputs, attributes: Attributes) -> Iterator[Guard]:
    """onnxruntime 1.19.2 gives nothing for NaN, and where the number of elements overflows."""
    start, _, delta = inputs
    if start is None or delta is None or (start.array is not None and delta.array is not None and _is_whole(start)):
        return  # As counted from 0 by 1: nothing overflows, unless the runtime refuses the size.
    first, limit, step = (op.Cast(v, to=TensorProto.DOUBLE) for v in inputs)
    yield 0, op.Not((limit - first) / step < LARGEST_INT32), "has too many elements, or an end that is not a number"


def _guard_regions(inputs: Inputs, attributes: Attributes) -> Iterator[Guard]:
    """onnxruntime 1.19.2 reads foreign memory for a region of an image that is not there."""
    x, _, images = inputs
    yield 2, _is_outside(images, _size(x, 0)), "has batch_indices that are no rows of its input:"


def _guard_unpooled(inputs: Inputs, attributes: Attributes) -> Iterator[Guard]:
    """onnxruntime 1.19.2 writes to foreign memory."""
    x, places, *shape = inputs
    if places.array is not None:
        return  # It was checked when the node was read.
    if shape and shape[0] is not None:
        sizes = shape[0]
    else:
        kernel = attributes.get("kernel_shape", ())
        n = len(kernel)
        steps, pads = attributes.get("strides") or [1] * n, attributes.get("pads") or [0] * 2 * n
        more = [k - s - p - q for k, s, p, q in zip(kernel, steps, pads[:n], pads[n:], strict=False)]
        sizes = _shape(x) * constant([1, 1, *steps]) + constant([0, 0, *more])
    yield 1, _is_outside(places, op.ReduceProd(sizes, [0])), "has indices of elements that its output lacks:"


def _guard_padding(inputs: Inputs, attributes: Attributes) -> Iterator[Guard]:
    """onnxruntime 1.19.2 reads foreign memory where more is mirrored than there is, or nothing is left to repeat."""
    x, pads, *_, axes = (*inputs, None, None)[:4]
    mode = attributes.get("mode", "constant")
    if mode == "constant" or x.shape is None:
        return
    sizes = _padded_sizes(x, pads, axes)
    both = op.Reshape(pads, [2, -1])
    left = sizes + op.Min(op.Gather(both, 0), 0) + op.Min(op.Gather(both, 1), 0)
    most = op.Max(left - 1, 0) if mode == "reflect" else op.Where(left < 1, 0, LARGEST_INT32)
    yield 1, op.Reshape(both > most, [-1]), f"has pads that its input is too small for in mode {mode!r}"


def _padded_sizes(x: Value, pads: Value, axes: Value | None) -> Value:
    """The sizes of the padded axes, a constant where the sizes that count are known."""
    sizes = _shape(x) if axes is None else op.Gather(_shape(x), axes)
    places = np.arange(x.rank) if axes is None else axes.array
    if pads.array is None or places is None or pads.array.size != 2 * places.size or (abs(places) > x.rank - 1).any():
        return sizes
    shape = [(x.shape or ())[k] for k in places]
    is_padded = [bool(before or behind) for before, behind in pads.array.reshape(2, -1).T]
    if all(isinstance(n, int) for n, padded in zip(shape, is_padded, strict=True) if padded):
        return constant([n if isinstance(n, int) else 1 for n in shape])
    return sizes


def _guard_columns(inputs: Inputs, attributes: Attributes) -> Iterator[Guard]:
    """onnxruntime 1.19.2 divides by the size of a block, and writes to foreign memory where an image is too small."""
    x, image, block = inputs
    r = next((n for v in (image, block) if v.shape and isinstance(n := v.shape[0], int)), 2)
    steps, dilations = (constant(attributes.get(n) or [1] * r) for n in ("strides", "dilations"))
    pads = attributes.get("pads") or [0] * 2 * r
    around = constant([p + q - 1 for p, q in zip(pads[:r], pads[r:], strict=False)])
    m, b = (op.Min(op.Max(v, 1), LARGEST_WINDOW) for v in (image, block))
    room = m + around - (b - 1) * dilations
    wrong = [op.Not(op.Equal(m, image)), op.Not(op.Equal(b, block)), room < 0,
             op.Not(op.Equal(op.ReduceProd(op.Div(room, steps) + 1), _size(x, 2))),
             op.Not(op.Equal(op.Mod(_size(x, 1), op.ReduceProd(b)), 0))]
    bad = op.ReduceMax(op.Concat(*(op.Reshape(op.Cast(v, to=TensorProto.INT64), [-1]) for v in wrong), axis=0)) > 0
    computed = [k for k in (2, 1) if inputs[k].array is None]
    yield (computed or [0])[0], bad, "has blocks and an image_shape that its input does not fit"


def _guard_frames(inputs: Inputs, attributes: Attributes) -> Iterator[Guard]:
    """onnxruntime 1.19.2 and 1.31.1 divide by the length of a frame."""
    _, _, window, length = (*inputs, None, None)[:4]
    if length is not None:
        yield 3, length < constant(1, length.dtype), "has a frame_length that is not positive:"
    elif window is not None:
        yield 1, op.Equal(_size(window, 0), 0), "has a window without elements"


def _guard_spectrum(inputs: Inputs, attributes: Attributes) -> Iterator[Guard]:
    """onnxruntime 1.19.2 divides by the number of samples."""
    if len(inputs) > 1 and (length := inputs[1]) is not None:
        yield 1, length < constant(1, length.dtype), "has a dft_length that is not positive:"


def _guard_count(inputs: Inputs, attributes: Attributes) -> Iterator[Guard]:
    """A Loop whose condition never changes ends by its count alone, which may take years."""
    count, going = (*inputs, None, None)[:2]
    body: Subgraph = attributes["body"]
    following = body.outputs[0]
    while following.node is not None and following.node.op_type == "Identity":
        following = following.node.reads[0]
    is_constant = following is body.inputs[1] or (following.array is not None and following.array.all())
    if not is_constant:
        return
    if count is None:
        if going is None or going.array is not None:
            yield 1, constant(True) if going is None else going, "can never end: it has no trip count"
        return
    bad = count > constant(LARGEST_INT32, count.dtype)
    yield 0, bad if going is None else op.And(bad, going), "has a trip count that takes hours, and no other end:"


# -- guards of operators of other domains, all of which onnxruntime 1.31.1 checks itself


def _guard_below(position: int, find_size: Callable[..., Value | None]) -> Find:
    """A guard of indices below a size, which a function of inputs and attributes finds."""

    def find(inputs: Inputs, attributes: Attributes) -> Iterator[Guard]:
        indices = inputs[position] if position < len(inputs) else None
        if indices is not None and (size := find_size(*inputs, **attributes)) is not None:
            yield position, _is_outside(indices, size), f"has indices that are out of range as input {position}:"

    return find


def _guard_crops(inputs: Inputs, attributes: Attributes) -> Iterator[Guard]:
    x, regions, images, *_ = inputs
    yield 1, op.IsNaN(regions), "has regions that are not numbers"
    yield 2, _is_outside(images, _size(x, 0)), "has batch_indices that are no rows of its input:"


def _guard_lengths(position: int) -> Find:
    def find(inputs: Inputs, attributes: Attributes) -> Iterator[Guard]:
        mask = inputs[position] if position < len(inputs) else None
        if mask is not None and mask.shape is not None and len(mask.shape) == 1:
            yield position, mask < constant(0, mask.dtype), "has lengths of sequences that are negative:"

    return find


def _guard_cache(inputs: Inputs, attributes: Attributes) -> Iterator[Guard]:
    query, _, _, _, _, lengths, total, *_ = inputs
    yield 6, op.Cast(total, to=TensorProto.INT64) < _size(query, 1), "has a total_sequence_length below that of query:"
    yield 5, _is_outside(lengths, op.Cast(total, to=TensorProto.INT64)), "has seqlens_k that are out of range:"


def _count_positions(x: Value, positions: Value, table: Value, *_: object, **__: object) -> Value | None:
    """The positions of a table of angles that the first of some tokens may have, or each of them."""
    if positions.shape is None or x.shape is None:
        return None
    rows = _size(table, 0)
    return rows if len(positions.shape) == 2 else rows - _size(x, len(x.shape) - 2) + 1


def _count_blocks(*_: object, K: int = 0, block_size: int = 1, **__: object) -> Value:
    return constant(-(-K // block_size))


def _is_outside(i: Value, size: Value) -> Value:
    """Where indices are negative, or not below a size."""
    i = i if i.dtype == np.int64 else op.Cast(i, to=TensorProto.INT64)
    # GreaterOrEqual is a function, behind which onnxruntime 1.19.2 infers no ranks, and dies of some operators then.
    return op.Or(i < constant(0), op.Not(i < size))


def _shape(x: Value) -> Value:
    """The shape of a tensor, a constant where it is known."""
    return constant(np.array(x.shape, np.int64)) if x.is_static else op.Shape(x)


def _size(x: Value, axis: int) -> Value:
    """The size of an axis, a constant where it is known."""
    if x.shape is not None and axis < len(x.shape):
        x, axis = find_size_source(x, axis)
    n = x.shape[axis] if x.shape and axis < len(x.shape) else None
    return constant(n, np.int64) if isinstance(n, int) else op.Gather(op.Shape(x), constant(axis))


def _is_whole(v: Value) -> bool:
    """Whether a value is a tensor of whole numbers."""
    return bool(v.type.tensor_type.elem_type) and v.dtype.kind in "iu"


_GUARDS: dict[str, Find] = {
    "Bernoulli": _guard_probabilities,
    "Col2Im": _guard_columns,
    "DFT": _guard_spectrum,
    "Div": _guard_division, "Mod": _guard_division,
    "Loop": _guard_count,
    "MaxUnpool": _guard_unpooled,
    "NegativeLogLikelihoodLoss": _guard_labels, "SoftmaxCrossEntropyLoss": _guard_labels,
    "Pad": _guard_padding, "com.microsoft.Pad": _guard_padding,
    "Range": _guard_range,
    "RoiAlign": _guard_regions,
    "STFT": _guard_frames,
    "ai.onnx.ml.ArrayFeatureExtractor": _guard_below(1, lambda x, *_, **__: _size(x, x.rank - 1)),
    "com.microsoft.Attention": _guard_lengths(3), "com.microsoft.QAttention": _guard_lengths(5),
    "com.microsoft.MultiHeadAttention": _guard_lengths(4),
    "com.microsoft.CropAndResize": _guard_crops,
    "com.microsoft.EmbedLayerNormalization": _guard_below(8, lambda *x, **_: _size(x[3], 0)),
    "com.microsoft.GroupQueryAttention": _guard_cache,
    "com.microsoft.MatMulNBits": _guard_below(4, _count_blocks),
    "com.microsoft.NGramRepeatBlock": _guard_below(0, lambda _, scores, **__: _size(scores, 1)),
    "com.microsoft.RotaryEmbedding": _guard_below(1, _count_positions),
    "com.microsoft.WordConvEmbedding": _guard_below(0, lambda *x, **_: _size(x[3], 0)),
}

register_guard(guard_written)
