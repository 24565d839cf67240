"""Formulas of quantized operators, of ONNX and of com.microsoft, for straight-through gradients."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from onnx import TensorProto

from ortpartial.exceptions import GraphError
from ortpartial.graph import Value, cast, constant, op, stop_gradient

from .declaration import declare
from .straight_through import stands_for, to_real

__all__ = ["by_row", "dequantize"]

# Scales and zero points.


def spread(v: Value, x: Value, axis: int, block_size: int = 0) -> Value:
    """A scale or zero point of each slice of x along an axis, or of each block of slices, beside x."""
    if not v.rank or (v.shape == (1,) and x.rank):
        return v
    if not -x.rank <= axis < x.rank:
        raise GraphError(f"The axis {axis} of a quantization is none of {x!r}.")
    if not block_size:
        sizes = [1] * x.rank
        sizes[axis] = -1
        return op.Reshape(v, sizes)
    if x.shape is not None and isinstance(n := x.shape[axis], int):
        return op.Gather(v, constant(np.arange(n) // block_size), axis=axis)
    size = op.Squeeze(op.Shape(x, start=axis, end=axis + 1 or None), [0])
    return op.Gather(v, op.Div(op.Range(0, size, 1), block_size), axis=axis)


def shift(x: Value, zero: Value | None, axis: int = 0, block_size: int = 0) -> Value:
    """x minus its zero point."""
    if zero is None or _is_zero(zero):
        return x
    return x - spread(zero, x, axis, block_size)


def _is_zero(v: Value) -> bool:
    """Whether a zero point is 0, which it is read from by a Cast or a DequantizeLinear."""
    source = v.node.inputs[0] if v.node is not None and v.node.op_type in ("Cast", "DequantizeLinear") else v
    return source is not None and source.array is not None and not np.any(source.array.astype(np.float32))


def dequantize(q: Value, scale: Value, zero: Value | None = None, axis: int = 0, block_size: int = 0) -> Value:
    """(q - zero) scale."""
    return shift(q, zero, axis, block_size) * spread(scale, q, axis, block_size)


def quantize(x: Value, scale: Value, zero: Value | None, q: Value, axis: int = 0, block_size: int = 0) -> Value:
    """x / scale + zero, constant where it is rounded to a number beyond the range of the type of q.

    By the chain rule, dequantization then has the gradient of LSQ [1]_ by the scale.

    .. [1] S. K. Esser et al., "Learned Step Size Quantization", ICLR 2020.
    """
    info, margin = (ml_dtypes.iinfo(q.dtype), 0.5) if _is_whole(q) else (ml_dtypes.finfo(q.dtype), 0.0)
    ends: list[Value] = [constant(np.float32(end)) for end in (float(info.min) - margin, float(info.max) + margin)]
    scale = spread(scale, x, axis, block_size)
    if zero is None or _is_zero(zero):
        low, high = (end * scale for end in ends)
        return x * cast(op.And(x >= low, x <= high), x) / scale
    zero = spread(zero, x, axis, block_size)
    low, high = ((end - zero) * scale for end in ends)
    return x * cast(op.And(x >= low, x <= high), x) / scale + zero


def _is_whole(q: Value) -> bool:
    """Whether q holds integers, and not numbers of float8."""
    return "int" in q.dtype.name


# ONNX.


@stands_for("QuantizeLinear")
def _(x, scale, zero=None, *, y, axis, block_size):
    return quantize(x, scale, zero, y, axis, block_size)


@stands_for("DequantizeLinear")
def _(x, scale, zero=None, *, axis, block_size):
    return dequantize(x, scale, zero, axis, block_size)


@stands_for("DynamicQuantizeLinear")
def _(x, *, node):
    _, scale, zero = node.outputs
    scale, zero = stop_gradient(scale), stop_gradient(to_real(zero))
    return x / scale + zero, scale, zero


@stands_for("Cast")
def _(x, *, y):
    return x if y.is_float or y.type.tensor_type.elem_type not in (TensorProto.BOOL, TensorProto.INT64) else None


@stands_for("MatMulInteger")
def _(a, b, a_zero=None, b_zero=None):
    return (a if a_zero is None else a - by_row(a_zero)) @ (b if b_zero is None else b - b_zero)


def by_row(v: Value) -> Value:
    """A scale or zero point of each row of a matrix, or of all, beside the matrix."""
    return op.Unsqueeze(v, [1]) if v.rank == 1 and v.shape != (1,) else v


@stands_for("QLinearMatMul")
def _(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero, *, y):
    product = ((a - by_row(a_zero)) * by_row(a_scale)) @ ((b - b_zero) * b_scale)
    return quantize(product, by_row(y_scale), by_row(y_zero), y)


@stands_for("ConvInteger")
def _(x, w, x_zero=None, w_zero=None, *, node):
    return op.Conv(shift(x, x_zero), shift(w, w_zero), **node.attributes)


@stands_for("QLinearConv")
def _(x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b=None, *, node, y):
    bias = None if b is None else b * (x_scale * w_scale)
    product = op.Conv(dequantize(x, x_scale, x_zero), dequantize(w, w_scale, w_zero), bias, **node.attributes)
    return quantize(product, y_scale, y_zero, y)


# com.microsoft.


def refuse_channels_last(channels_last: int) -> None:
    """Raise for the layout of images in which the channels come last, which no operator of ONNX has."""
    if channels_last:
        raise GraphError("channels_last has no gradient.")


# Elements.


@declare("QuantizeLinear", "x y_scale y_zero_point?", "y", like="y_zero_point", axis=int)
def _(x, scale, zero=None, *, y, axis):
    return quantize(x, scale, zero, y, 1 if axis is None else axis)


@declare("DequantizeLinear", "x x_scale x_zero_point?", "y", axis=int)
def _(x, scale, zero=None, *, axis):
    return dequantize(x, scale, zero, 1 if axis is None else axis)


_BINARY = "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point?"
_UNARY = "X X_scale X_zero_point? Y_scale Y_zero_point?"


@declare("QLinearAdd", _BINARY, "C", like="A")
def _(a, a_scale, a_zero, b, b_scale, b_zero, c_scale, c_zero=None, *, y):
    return quantize(dequantize(a, a_scale, a_zero) + dequantize(b, b_scale, b_zero), c_scale, c_zero, y)


@declare("QLinearMul", _BINARY, "C", like="A")
def _(a, a_scale, a_zero, b, b_scale, b_zero, c_scale, c_zero=None, *, y):
    return quantize(dequantize(a, a_scale, a_zero) * dequantize(b, b_scale, b_zero), c_scale, c_zero, y)


@declare("QLinearSigmoid", _UNARY, like="X")
def _(x, x_scale, x_zero, y_scale, y_zero=None, *, y):
    return quantize(op.Sigmoid(dequantize(x, x_scale, x_zero)), y_scale, y_zero, y)


@declare("QLinearLeakyRelu", _UNARY, like="X", alpha=0.01)
def _(x, x_scale, x_zero, y_scale, y_zero=None, *, y, alpha):
    return quantize(op.LeakyRelu(dequantize(x, x_scale, x_zero), alpha=alpha), y_scale, y_zero, y)


@declare("QLinearSoftmax", _UNARY, like="X", axis=-1, opset=int)
def _(x, x_scale, x_zero, y_scale, y_zero=None, *, y, axis, opset):
    real = dequantize(x, x_scale, x_zero)
    if opset is not None and opset < 13 and axis % real.rank != real.rank - 1:
        raise GraphError("Softmax before opset 13, of several axes at once, has no gradient.")
    return quantize(op.Softmax(real, axis=axis), y_scale, y_zero, y)


@declare("QLinearWhere", "condition X x_scale x_zero_point Y y_scale y_zero_point z_scale z_zero_point", "Z", like="X")
def _(condition, a, a_scale, a_zero, b, b_scale, b_zero, z_scale, z_zero, *, y):
    real = op.Where(condition, dequantize(a, a_scale, a_zero), dequantize(b, b_scale, b_zero))
    return quantize(real, z_scale, z_zero, y)


@declare("QLinearConcat", "Y_scale Y_zero_point inputs*", like="Y_zero_point", axis=int)
def _(y_scale, y_zero, *inputs, y, axis):
    triples = zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    return quantize(op.Concat(*(dequantize(*triple) for triple in triples), axis=axis), y_scale, y_zero, y)


# Pools.


@declare("QLinearGlobalAveragePool", _UNARY, like="X", channels_last=0)
def _(x, x_scale, x_zero, y_scale, y_zero=None, *, y, channels_last):
    refuse_channels_last(channels_last)
    return quantize(op.GlobalAveragePool(dequantize(x, x_scale, x_zero)), y_scale, y_zero, y)


@declare("QLinearAveragePool", _UNARY, like="X", auto_pad="NOTSET", ceil_mode=0, count_include_pad=0,
         kernel_shape=list, pads=list, strides=list, channels_last=0)
def _(x, x_scale, x_zero, y_scale, y_zero=None, *, y, auto_pad, ceil_mode, count_include_pad, kernel_shape, pads,
      strides, channels_last):
    refuse_channels_last(channels_last)
    real = op.AveragePool(dequantize(x, x_scale, x_zero), auto_pad=auto_pad, ceil_mode=ceil_mode,
                          count_include_pad=count_include_pad, kernel_shape=kernel_shape, pads=pads, strides=strides)
    return quantize(real, y_scale, y_zero, y)


@declare("QLinearReduceMean", "data data_scale data_zero_point? reduced_scale reduced_zero_point?", "reduced",
         like="data", axes=list, keepdims=int)
def _(x, x_scale, x_zero, y_scale, y_zero=None, *, y, axes, keepdims):
    real = op.ReduceMean(dequantize(x, x_scale, x_zero), None if axes is None else list(axes), keepdims=keepdims)
    return quantize(real, y_scale, y_zero, y)


# Products.


@declare("QGemm", "A a_scale a_zero_point B b_scale b_zero_point C? y_scale? y_zero_point?", like="y_zero_point",
         alpha=1.0, transA=0, transB=0)
def _(a, a_scale, a_zero, b, b_scale, b_zero, c=None, y_scale=None, y_zero=None, *, y, alpha, transA, transB):
    # C holds integers in the unit of the product.
    bias = None if c is None else c * (alpha * (a_scale * b_scale))
    weight = dequantize(b, b_scale, b_zero, 0 if transB else 1)
    real = op.Gemm(dequantize(a, a_scale, a_zero), weight, bias, alpha=alpha, transA=transA, transB=transB)
    return real if y_scale is None else quantize(real, y_scale, y_zero, y)


@declare("MatMulIntegerToFloat", "A B a_scale b_scale a_zero_point? b_zero_point? bias?")
def _(a, b, a_scale, b_scale, a_zero=None, b_zero=None, bias=None):
    a = a if a_zero is None else a - by_row(a_zero)
    b = b if b_zero is None else b - b_zero
    y = (a * by_row(a_scale)) @ (b * b_scale)
    return y if bias is None else y + bias


@declare("DynamicQuantizeMatMul", "A B b_scale b_zero_point? bias?")
def _(a, b, b_scale, b_zero=None, bias=None):
    y = a @ ((b if b_zero is None else b - b_zero) * b_scale)
    return y if bias is None else y + bias


@declare("DynamicQuantizeLSTM", "X W R B? sequence_lens? initial_h? initial_c? P? W_scale W_zero_point R_scale "
         "R_zero_point", "Y? Y_h? Y_c?", activations=tuple, clip=float, direction="forward", hidden_size=int,
         input_forget=0)
def _(x, w, r, b, sequence_lens, h, c, p, w_scale, w_zero, r_scale, r_zero, *, activations, clip, direction,
      hidden_size, input_forget):
    weights = [op.Transpose(_dequantize_gates(*triple), perm=[0, 2, 1])
               for triple in ((w, w_scale, w_zero), (r, r_scale, r_zero))]
    return op.LSTM(x, *weights, b, sequence_lens, h, c, p, activations=activations, clip=clip, direction=direction,
                   hidden_size=hidden_size, input_forget=input_forget, n_outputs=3)


def _dequantize_gates(w: Value, scale: Value, zero: Value) -> Value:
    """The weights of gates, (directions, inputs, gates), by a scale for each direction, or for each gate of it."""
    around = [v if v.rank == 0 else op.Unsqueeze(v, [1, 2] if v.rank == 1 else [1]) for v in (scale, zero)]
    return (w - around[1]) * around[0]
