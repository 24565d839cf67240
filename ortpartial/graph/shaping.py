"""Shaping: cast, reshape, fill or sum a value to fit another."""

from __future__ import annotations

import itertools

import numpy as np

from .ops import constant, op
from .values import Value

__all__ = ["cast", "ones_like", "reshape_like", "shape_of", "unbroadcast", "zeros_like"]


def ones_like(x: Value) -> Value:
    """Ones of the shape and dtype of x."""
    return _full_like(x, 1)


def zeros_like(x: Value) -> Value:
    """Zeros of the shape and dtype of x."""
    return _full_like(x, 0)


def _full_like(x: Value, number: float) -> Value:
    if x.is_static and len(x.shape or ()) == 0:
        return constant(np.asarray(number, x.dtype))
    return op.Expand(constant(np.asarray(number, x.dtype)), shape_of(x)).stated(x.shape)


def cast(v: Value, like: Value) -> Value:
    """v in the dtype of `like`, which the graph does not keep alive for it, as CastLike would."""
    return v if v.dtype == like.dtype else op.Cast(v, to=like.type.tensor_type.elem_type)


def shape_of(x: Value) -> Value:
    """The shape of x: a constant where it is static, else computed."""
    return constant(np.asarray(x.shape, np.int64)) if x.is_static else op.Shape(x)


def reshape_like(d: Value, x: Value) -> Value:
    """The elements of d in the shape of x."""
    if d.shape is not None and d.shape == x.shape and None not in d.shape:
        return d
    # An unknown size, beside known sizes that are not 0, follows from the number of elements.
    sizes = [n if isinstance(n, int) else -1 for n in x.shape or (0, -1)]
    if 0 not in sizes and sizes.count(-1) <= 1:
        return op.Reshape(d, constant(np.asarray(sizes, np.int64))).stated(x.shape)
    if d.shape is not None and 0 not in sizes:
        # A size of the same name at the same axis is copied from d, which 0 stands for.
        pairs = itertools.zip_longest(x.shape or (), d.shape[: len(sizes)])
        copied = [0 if isinstance(n, str) and n == m else n for n, m in pairs]
        if all(isinstance(n, int) for n in copied):
            return op.Reshape(d, constant(np.asarray(copied, np.int64))).stated(x.shape)
    return op.Reshape(d, shape_of(x), allowzero=1).stated(x.shape)


def unbroadcast(d: Value, x: Value) -> Value:
    """Sum d over the axes along which x was repeated, so that the result has the shape of x.

    The axes are static where the shapes tell, else computed at run time: a symbolic size may turn out to be 1.
    """
    if d.shape is None or x.shape is None:
        return _unbroadcast_dynamic(d, x)
    if d.shape == x.shape and None not in x.shape:
        return d
    lead = len(d.shape) - len(x.shape)
    if lead < 0:
        return reshape_like(d, x)
    pairs = list(zip(d.shape[lead:], x.shape, strict=True))
    # Two sizes of the same name are equal; two unknown sizes need not be.
    if any(n is None or (m != n and not isinstance(n, int)) for m, n in pairs):
        return _unbroadcast_dynamic(d, x)
    repeated = [i + lead for i, (m, n) in enumerate(pairs) if n == 1 and m != 1]
    if axes := list(range(lead)) + repeated:
        d = op.ReduceSum(d, axes, keepdims=0)
    return reshape_like(d, x) if repeated else d.stated(x.shape)


def _unbroadcast_dynamic(d: Value, x: Value) -> Value:
    """`unbroadcast` with axes that are computed at run time, where the sizes differ."""
    d_shape, x_shape = op.Shape(d), op.Shape(x)
    lead = op.Sub(op.Shape(d_shape), op.Shape(x_shape))
    padded = op.Concat(op.Expand(1, lead), x_shape, axis=0)
    axes = op.Squeeze(op.NonZero(op.Not(op.Equal(d_shape, padded))), [0])
    total = op.ReduceSum(d, axes, keepdims=1, noop_with_empty_axes=1)
    # Without axes, onnxruntime 1.19.2 reduces no elements to one, which Expand takes back.
    return op.Reshape(op.Expand(total, x_shape), x_shape, allowzero=1).stated(x.shape)
