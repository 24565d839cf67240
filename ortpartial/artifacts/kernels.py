"""Kernels of onnxruntime's training in standard operators, for gradient graphs of `generate_artifacts`.

Most are the gradient of the operator that they are named after, which the rules of `ortpartial.autodiff` know. They are
expanded when a model is read, so that every function of this package reads such a graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from ortpartial.annotations import Function, Inputs
from ortpartial.autodiff import broadcast_channels, concat_sizes, grad, slice_shape
from ortpartial.exceptions import GraphError
from ortpartial.graph import Value, cast, constant, op
from ortpartial.model import register_expansion

__all__ = ["DOMAIN", "KERNELS"]

DOMAIN = "com.microsoft"

#: The kernels that are read in standard operators.
KERNELS: set[str] = set()


def kernel(*names: str) -> Callable[[Function], Function]:
    """Read a kernel as a formula: of its inputs, and of its attributes as keywords with their defaults."""

    def register(formula: Function) -> Function:
        parameters = inspect.signature(formula).parameters.values()
        known = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)

        def expand(inputs: Inputs, attributes: Any, wanted: Sequence[bool]) -> list[Value | None]:
            if unknown := sorted(set(attributes) - known) if not takes_all else ():
                raise GraphError(f"the kernel has the attribute {unknown[0]!r}, which is not known.")
            outputs = formula(*inputs, **attributes)
            return [outputs] if isinstance(outputs, Value) else list(outputs)

        for name in names:
            KERNELS.add(name)
            register_expansion(name, DOMAIN, expand)
        return formula

    return register


def vjp(function: Callable[..., Value], xs: Sequence[Value], dy: Value) -> list[Value]:
    """The cotangents of the inputs of a function from that of its output."""
    return grad(function(*xs), xs, [dy])


def of_shape(shape: Value, like: Value) -> Value:
    """Some value of a shape, of which nothing but the shape is used."""
    if shape.node is not None and shape.node.op_type == "Shape" and shape.node.inputs[0] is not None:
        return shape.node.inputs[0]
    zeros = op.Expand(constant(np.zeros((), like.dtype)), shape)
    return zeros if shape.array is None else zeros.stated(shape.array.tolist())


# Elements.


@kernel("ReluGrad")
def _(dy, y):
    return dy * cast(y > 0, dy)


@kernel("LeakyReluGrad")
def _(dy, y, *, alpha=0.01):
    positive = cast(y > 0, dy)
    return dy * (positive + alpha * (1 - positive))


@kernel("SigmoidGrad")
def _(dy, y):
    return dy * y * (1 - y)


@kernel("TanhGrad")
def _(dy, y):
    return dy * (1 - y * y)


@kernel("GeluGrad")
def _(dy, x):
    return vjp(op.Gelu, [x], dy)


@kernel("FastGeluGrad")
def _(dy, x):
    return vjp(lambda v: op.Gelu(v, approximate="tanh"), [x], dy)


@kernel("BiasGeluGrad_dX")
def _(dy, x, b):
    return vjp(op.Gelu, [x + b], dy)


@kernel("BiasFastGeluGrad_dX")
def _(dy, x, b):
    return vjp(lambda v: op.Gelu(v, approximate="tanh"), [x + b], dy)


@kernel("QuickGeluGrad")
def _(dy, x, *, alpha=1.702):
    return vjp(lambda v: v * op.Sigmoid(alpha * v), [x], dy)


@kernel("DivGrad")
def _(dy, a, b):
    return vjp(op.Div, [a, b], dy)


@kernel("Scale")
def _(x, scale, *, scale_down=0):
    scale = cast(op.Reshape(scale, constant(np.zeros(0, np.int64))), x)
    return x / scale if scale_down else x * scale


# Softmax and its loss.


@kernel("SoftmaxGrad_13")
def _(dy, y, *, axis=-1):
    return y * (dy - op.ReduceSum(y * dy, [axis]))


@kernel("LogSoftmaxGrad_13")
def _(dy, y, *, axis=-1):
    return dy - op.Exp(y) * op.ReduceSum(dy, [axis])


def axes_from(axis: int, x: Value) -> list[int]:
    """All axes from this axis on, which operators before opset 13 normalized over together."""
    return list(range(axis % x.rank, x.rank))


@kernel("SoftmaxGrad")
def _(dy, y, *, axis=1):
    return y * (dy - op.ReduceSum(y * dy, axes_from(axis, y)))


@kernel("LogSoftmaxGrad")
def _(dy, y, *, axis=1):
    return dy - op.Exp(y) * op.ReduceSum(dy, axes_from(axis, y))


@kernel("SoftmaxCrossEntropyLossGrad")
def _(dy, log_prob, labels, weights=None, *, reduction="mean", ignore_index=None):
    def loss(v):
        return op.NegativeLogLikelihoodLoss(v, labels, weights, reduction=reduction, ignore_index=ignore_index)

    (d,) = vjp(loss, [log_prob], dy)
    return d - op.Exp(log_prob) * op.ReduceSum(d, [1])


@kernel("SoftmaxCrossEntropyLossInternal")
def _(scores, labels, weights=None, ignored=None, *, reduction="mean", ignore_index=None, output_type=None):
    settings = {"reduction": reduction, "ignore_index": read_ignored(ignored, ignore_index)}
    outputs = op.SoftmaxCrossEntropyLoss(scores, labels, weights, **settings, n_outputs=2)
    return [v if output_type is None else op.Cast(v, to=output_type) for v in outputs]


@kernel("SoftmaxCrossEntropyLossInternalGrad")
def _(dy, log_prob, labels, weights=None, ignored=None, bias=None, *, reduction="mean", ignore_index=None,
      output_type=None):
    def loss(v):
        return op.NegativeLogLikelihoodLoss(v, labels, weights, reduction=reduction,
                                            ignore_index=read_ignored(ignored, ignore_index))

    (d,) = vjp(loss, [log_prob], dy)
    dx = d - op.Exp(log_prob) * op.ReduceSum(d, [1])
    dx = dx if output_type is None else op.Cast(dx, to=output_type)
    return dx if bias is None else dx + op.Reshape(bias, op.Shape(dx))


def read_ignored(ignored: Value | None, ignore_index: int | None) -> int | None:
    """The label that is ignored, which is an input or an attribute."""
    if ignored is None:
        return ignore_index
    if ignored.array is None:
        raise GraphError("the label that is ignored is computed; a constant was expected.")
    return int(ignored.array.item())


# Normalization.


@kernel("LayerNormalizationGrad")
def _(dy, x, scale, mean, r, *, axis=-1, epsilon=None, stash_type=None):
    xn = (x - cast(mean, x)) * cast(r, x)
    d = dy * scale
    along, before = axes_from(axis, x), list(range(axis % x.rank))
    dx = cast(r, x) * (d - op.ReduceMean(d, along) - xn * op.ReduceMean(d * xn, along))
    return dx, op.ReduceSum(dy * xn, before, keepdims=0), op.ReduceSum(dy, before, keepdims=0)


@kernel("SimplifiedLayerNormalizationGrad")
def _(dy, x, scale, r, *, axis=-1, epsilon=None, stash_type=None):
    xn, d = x * cast(r, x), dy * scale
    dx = cast(r, x) * (d - xn * op.ReduceMean(d * xn, axes_from(axis, x)))
    return dx, op.ReduceSum(dy * xn, list(range(axis % x.rank)), keepdims=0)


@kernel("BatchNormInternal")
def _(x, scale, b, mean, var, *, epsilon=1e-5, momentum=0.9, training_mode=1):
    if not training_mode:
        r = 1 / op.Sqrt(var + epsilon)
        return normalize_channels(x, scale, b, mean, r), mean, var, mean, r
    axes = [0, *range(2, x.rank)]
    seen = op.ReduceMean(x, axes, keepdims=0)
    xc = x - broadcast_channels(seen, x)
    spread = op.ReduceMean(xc * xc, axes, keepdims=0)
    r = 1 / op.Sqrt(spread + epsilon)
    y = xc * broadcast_channels(r * scale, x) + broadcast_channels(b, x)
    return y, momentum * mean + (1 - momentum) * seen, momentum * var + (1 - momentum) * spread, seen, r


def normalize_channels(x: Value, scale: Value, b: Value, mean: Value, r: Value) -> Value:
    """(x - mean) r · scale + b by channel."""
    return (x - broadcast_channels(mean, x)) * broadcast_channels(r * scale, x) + broadcast_channels(b, x)


@kernel("BatchNormalizationGrad")
def _(dy, x, scale, mean, r, *, epsilon=1e-5):
    axes = [0, *range(2, x.rank)]
    xn = (x - broadcast_channels(mean, x)) * broadcast_channels(r, x)
    dscale, db = op.ReduceSum(dy * xn, axes, keepdims=0), op.ReduceSum(dy, axes, keepdims=0)
    d = dy - op.ReduceMean(dy, axes) - xn * op.ReduceMean(dy * xn, axes)
    return d * broadcast_channels(scale * r, x), dscale, db


@kernel("DropoutGrad")
def _(dy, mask, ratio=None, training_mode=None, **attributes):
    dx = dy * cast(mask, dy) / (1 - (0.5 if ratio is None else cast(ratio, dy)))
    if training_mode is None or training_mode.array is not None:
        return dx if training_mode is not None and training_mode.array.item() else dy
    return op.Where(training_mode, dx, dy)


# Indexing and shapes.


@kernel("GatherGrad")
def _(shape, indices, dy, *, axis=0):
    return vjp(lambda x: op.Gather(x, indices, axis=axis), [of_shape(shape, dy)], dy)


@kernel("GatherElementsGrad")
def _(dy, shape, indices, *, axis=0):
    return vjp(lambda x: op.GatherElements(x, indices, axis=axis), [of_shape(shape, dy)], dy)


@kernel("GatherNDGrad")
def _(shape, indices, dy, *, batch_dims=0):
    return vjp(lambda x: op.GatherND(x, indices, batch_dims=batch_dims), [of_shape(shape, dy)], dy)


@kernel("SliceGrad")
def _(dy, shape, starts, ends, axes=None, steps=None):
    return vjp(lambda x: op.Slice(x, starts, ends, axes, steps), [of_shape(shape, dy)], dy)


@kernel("ConcatTraining")
def _(*xs, axis):
    return op.Concat(*xs, axis=axis), concat_sizes(*(slice_shape(x, axis % x.rank, axis % x.rank + 1) for x in xs))


@kernel("SplitTraining")
def _(x, sizes, *, axis=0):
    n = None if sizes.shape is None else sizes.shape[0]
    if not isinstance(n, int):
        raise GraphError("the number of parts is not known.")
    parts = op.Split(x, sizes, axis=axis, n_outputs=n)
    return parts if n > 1 else [parts]


@kernel("ReduceSumTraining")
def _(x, axes, *, keepdims=1, noop_with_empty_axes=0):
    return op.ReduceSum(x, axes, keepdims=keepdims, noop_with_empty_axes=noop_with_empty_axes)


@kernel("BroadcastGradientArgs")
def _(a, b):
    ranks = [n for v in (a, b) if v.shape is not None and isinstance(n := v.shape[0], int)]
    if len(ranks) < 2:
        raise GraphError("the ranks of what was broadcast are not known.")
    longest = max(ranks)
    a, b = (concat_sizes(constant(np.ones(longest - n, np.int64)), v) for n, v in zip(ranks, (a, b), strict=True))
    return [repeated_axes(v, w, longest, longest - n) for v, w, n in zip((a, b), (b, a), ranks, strict=True)]


def repeated_axes(a: Value, b: Value, rank: int, missing: int) -> Value:
    """The axes along which a shape was repeated to another, among them missing axes; the last first."""
    axes = np.arange(rank)[::-1].copy()
    if a.array is not None and b.array is not None:
        return constant(axes[(axes < missing) | ((a.array == 1) & (b.array != 1))[::-1]])
    repeated = op.And(op.Equal(a, 1), op.Not(op.Equal(b, 1)))
    return op.Compress(constant(axes), op.Or(constant(axes < missing), op.Gather(repeated, constant(axes))), axis=0)


# Windows.


@kernel("ConvGrad")
def _(dy, x, w, **attributes):
    dx, dw = vjp(lambda a, b: op.Conv(a, b, **attributes), [x, w], dy)
    return dx, dw, op.ReduceSum(dy, [0, *range(2, dy.rank)], keepdims=0)


@kernel("ConvTransposeGrad")
def _(dy, x, w, **attributes):
    dx, dw = vjp(lambda a, b: op.ConvTranspose(a, b, **attributes), [x, w], dy)
    return dx, dw, op.ReduceSum(dy, [0, *range(2, dy.rank)], keepdims=0)


@kernel("MaxPoolGrad")
def _(dy, places, **attributes):
    pool = places.node
    if pool is None or pool.op_type != "MaxPool":
        raise GraphError("its indices are not those of a MaxPool.")
    return grad([pool.outputs[0]], [pool.inputs[0]], [dy])


@kernel("AveragePoolGrad")
def _(dy, x=None, **attributes):
    if x is None:
        raise GraphError("the AveragePool that it belongs to is not in the graph.")
    return vjp(lambda v: op.AveragePool(v, **attributes), [x], dy)


@kernel("ResizeGrad")
def _(dy, x, roi=None, scales=None, **attributes):
    return vjp(lambda v: op.Resize(v, roi, scales, **attributes), [x], dy)


# Recurrence. Results of forward kernels that serve the gradient alone are computed from their first output again.


@kernel("LSTMTraining")
def _(*inputs, **attributes):
    y, h, c = op.LSTM(*inputs, **attributes)
    return y, h, c, y, y


@kernel("GRUTraining")
def _(*inputs, **attributes):
    y, h = op.GRU(*inputs, **attributes)
    return y, h, y


@kernel("LSTMGrad")
def _(x, w, r, lengths, h, c, y, cells, gates, *dys, **attributes):
    return recurrent_vjp(y, dys, skipped=4)


@kernel("GRUGrad")
def _(x, w, r, b, lengths, h, y, gates, *dys, **attributes):
    return recurrent_vjp(y, dys, skipped=4)


def recurrent_vjp(y: Value, dys: Sequence[Value | None], skipped: int) -> list[Value | None]:
    """The cotangents of all inputs of a recurrent node but the lengths of sequences."""
    node = y.node
    if node is None or node.op_type not in ("GRU", "LSTM"):
        raise GraphError("the node that it belongs to is not in the graph.")
    wrt = [x for i, x in enumerate(node.inputs) if x is not None and i != skipped]
    ys = [(y, dy) for y, dy in zip(node.outputs, dys, strict=False) if dy is not None]
    found = dict(zip(wrt, grad([y for y, _ in ys], wrt, [dy for _, dy in ys]), strict=True))
    return [None if x is None else found[x] for i, x in enumerate(node.inputs) if i != skipped]


@kernel("PassThrough")
def _(*xs, **attributes):
    return xs


@kernel("ZeroGradient")
def _(x, reset):
    return op.Cast(x * 0, to=x.type.tensor_type.elem_type or TensorProto.FLOAT)
