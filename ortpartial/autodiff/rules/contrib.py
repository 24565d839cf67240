"""Gradients of older operators of com.microsoft: missing in ONNX, or taken over by it since."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, TypeProto, helper
from onnx.shape_inference import InferenceContext

from ortpartial.graph import Value, cast, constant, op
from ortpartial.model import declare_schema

from ..grad import composed
from ..masks import gate
from ..registry import vjp
from .gpu_operators import reads_as
from .linear import swap_last_axes
from .microsoft import FusedMatMul, apply_activation, refuse
from .packed_weights import unpack

DOMAIN = "com.microsoft"


def _read_shapes(context: InferenceContext) -> list[Sequence[int | str | None]]:
    """The shapes of the first two inputs, of rank 0 where unknown."""
    return [Value(context.get_input_type(i)).shape or () for i in range(min(2, context.get_num_inputs()))]


def _set_shape(context: InferenceContext, shape: Sequence[int | str | None] | None) -> None:
    element = context.get_input_type(0).tensor_type.elem_type
    kind = TypeProto(tensor_type=TypeProto.Tensor(elem_type=element))
    context.set_output_type(0, kind if shape is None else helper.make_tensor_type_proto(element, shape))


def _infer_distances(context: InferenceContext) -> None:
    _set_shape(context, [s[0] if s else None for s in _read_shapes(context)])


def _infer_inverse(context: InferenceContext) -> None:
    context.set_output_type(0, context.get_input_type(0))


def _infer_product(context: InferenceContext) -> None:
    size, (a, *_) = context.get_attribute("N"), _read_shapes(context)
    _set_shape(context, [*a[:-1], size.i] if a and size is not None else None)


declare_schema("CDist", "A B", "C", _infer_distances, metric="sqeuclidean")
declare_schema("Inverse", "X", "Y", _infer_inverse)
declare_schema("MatMulBnb4", "A B absmax", "Y", _infer_product, K=int, N=int, block_size=int, quant_type=int,
               training_mode=0, transB=1)


@vjp("CDist", DOMAIN)
def _(a, b, *, y, dy, metric):
    # The distance of equal points has no gradient, and 0 is the convention.
    w = 2 * dy if metric == "sqeuclidean" else gate(dy / (y + cast(op.Equal(y, 0), y)), y > 0)
    da = a * op.ReduceSum(w, [1]) - w @ b
    db = b * op.Transpose(op.ReduceSum(w, [0]), perm=[1, 0]) - op.Gemm(w, a, transA=1)
    return da, db


@vjp("Inverse", DOMAIN)
def _(x, *, y, dy):
    t = swap_last_axes(y)
    return -(t @ dy @ t)


#: The numbers that 4 bits stand for, times the largest of a block, by the attribute quant_type: FP4 and NF4.
_NUMBERS = (
    [s * n for s in (1, -1) for n in (0, 5.208333333e-03, 0.66666667, 1, 0.33333333, 0.5, 0.16666667, 0.25)],
    [-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
     -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1],
)


@composed("MatMulBnb4", DOMAIN)
def _(a, b, absmax, *, K, N, block_size, quant_type, transB):
    refuse("MatMulBnb4", {"numbers that are computed": b.array is None, "transB=0": not transB,
                          f"quant_type {quant_type}": quant_type not in (0, 1)})
    n = -(-N * K // block_size) * block_size
    # The first of two numbers is in the upper bits of a byte.
    codes = unpack(b.array.reshape(-1), 4).reshape(-1, 2)[:, ::-1].reshape(-1)[: N * K]
    places = constant(np.pad(codes, (0, n - N * K)).reshape(-1, block_size))
    table = constant(np.array(_NUMBERS[quant_type], np.float32))
    numbers = cast(op.Gather(table, op.Cast(places, to=TensorProto.INT32)), absmax) * op.Unsqueeze(absmax, [1])
    weight = op.Slice(op.Reshape(numbers, [-1]), [0], [N * K], [0])
    return a @ swap_last_axes(op.Reshape(weight, [N, K]))


# Operators that ONNX has taken over.


@reads_as("TransposeMatMul")
def _(a, b, *, alpha=1.0, transA=0, transB=0):
    return FusedMatMul(a, b, alpha=alpha, transA=transA, transB=transB, transBatchA=0, transBatchB=0)


@reads_as("FusedMatMulActivation")
def _(a, b, *, activation, activation_alpha=None, activation_beta=None, alpha=1.0, transA=0, transB=0, transBatchA=0,
      transBatchB=0, **_):
    y = FusedMatMul(a, b, alpha=alpha, transA=transA, transB=transB, transBatchA=transBatchA, transBatchB=transBatchB)
    return apply_activation(y, activation, [p for p in (activation_alpha, activation_beta) if p is not None])


@reads_as("Pad")
def _(data, pads, value=None, *, mode="constant"):
    return op.Pad(data, op.Reshape(pads, [-1]), None if value is None else scalar(value), mode=mode)


@reads_as("GatherND")
def _(data, indices):
    return op.GatherND(data, op.Cast(indices, to=TensorProto.INT64))


@reads_as("GridSample")
def _(x, grid, *, align_corners=0, mode="bilinear", padding_mode="zeros"):
    names = {"bilinear": "linear", "bicubic": "cubic"}
    return op.GridSample(x, grid, align_corners=align_corners, mode=names.get(mode, mode), padding_mode=padding_mode)


@reads_as("Trilu")
def _(x, k=None, *, upper=1):
    return op.Trilu(x, k, upper=upper)


@reads_as("Range")
def _(start, limit, delta=None):
    return op.Range(scalar(start), scalar(limit), constant(1, start.dtype) if delta is None else scalar(delta))


@reads_as("Unique")
def _(x):
    y, _, inverse, counts = op.Unique(x, sorted=0, n_outputs=4)
    return y, inverse, counts


@reads_as("ScaledSiLU")
def _(x, scale=None, *, alpha=1.0):
    z = x * (alpha if scale is None else cast(scalar(scale), x))
    return z * op.Sigmoid(z)


def scalar(x: Value) -> Value:
    """A tensor of a single element with no axes."""
    return op.Reshape(x, constant([], np.int64))
