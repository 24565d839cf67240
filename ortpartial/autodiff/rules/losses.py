"""Gradients of loss operators: NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""

import numpy as np

from ortpartial.graph import Value, cast, constant, op

from ..masks import scale
from ..registry import vjp
from .shape import slice_shape

# The outputs of the losses are not read: a label out of range kills onnxruntime 1.19.2 in SoftmaxCrossEntropyLoss; here
# it matches no class.


@vjp("NegativeLogLikelihoodLoss")
def _(x, target, weight=None, *, dy, ignore_index, reduction):
    dx, dweight = nll_vjp(x, target, weight, dy, ignore_index, reduction)
    return dx, None, dweight


@vjp("SoftmaxCrossEntropyLoss")
def _(scores, labels, weights=None, *, dys, ignore_index, reduction):
    x = op.LogSoftmax(scores, axis=1)
    dy, dx = (*dys, None)[:2]
    dweights = None
    if dy is not None:
        chosen, dweights = nll_vjp(x, labels, weights, dy, ignore_index, reduction)
        dx = chosen if dx is None else dx + chosen
    return dx - op.Exp(x) * op.ReduceSum(dx, [1]), None, dweights


def nll_vjp(
    x: Value, labels: Value, weights: Value | None, dy: Value, ignore_index: int | None, reduction: str
) -> tuple[Value, Value]:
    """Cotangents of x and of the weights in -Σ w · x[label], divided by n = Σ w where the reduction is a mean."""
    one = one_hot(x, labels, ignore_index)
    w = one if weights is None else one * broadcast_classes(weights, x)
    if reduction == "none":
        d, shift = -op.Unsqueeze(dy, [1]), x
    elif reduction == "sum":
        d, shift = -dy, x
    else:
        n = op.ReduceSum(w, keepdims=0)
        n = n + cast(op.Equal(n, 0), n)
        d, shift = -dy / n, x - op.ReduceSum(scale(x, w), keepdims=0) / n
    return scale(d, w), op.ReduceSum(scale(shift * d, one), [0, *range(2, x.rank)], keepdims=0)


def one_hot(x: Value, labels: Value, ignore_index: int | None) -> Value:
    """1 at the class of each label and 0 elsewhere; 0 everywhere for a label that is ignored or out of range."""
    classes = class_indices(x, labels)
    matches = op.Equal(op.Unsqueeze(labels, [1]), classes)
    if ignore_index is None or (classes.array is not None and ignore_index not in classes.array):
        return cast(matches, x)
    return cast(op.And(matches, op.Not(op.Equal(classes, ignore_index))), x)


def class_indices(x: Value, labels: Value) -> Value:
    """0, 1, 2 ... along the class axis."""
    n = slice_shape(x, 1, 2)
    if n.array is not None:
        return broadcast_classes(constant(np.arange(n.array[0]), labels.dtype), x)
    return broadcast_classes(cast(op.Range(0, op.Squeeze(n, [0]), 1), labels), x)


def broadcast_classes(v: Value, x: Value) -> Value:
    """A number per class, with the axes that make it broadcast against x."""
    shape = [-1] + [1] * (x.rank - 2)
    return constant(v.array.reshape(shape)) if v.array is not None else op.Reshape(v, shape)
