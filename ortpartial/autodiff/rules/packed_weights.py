"""Gradients of products with packed weights of com.microsoft: the weights stay packed, 2 to 8 bits each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TypeProto, helper

from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Value, constant, op, reshape_like
from ortpartial.model import declare_schema

from ..registry import vjp
from .linear import flatten_rows
from .microsoft import refuse

DOMAIN = "com.microsoft"


def _infer_product(context: Any) -> None:
    """Y is A with N numbers in place of its last axis."""
    a, n = context.get_input_type(0).tensor_type, context.get_attribute("N")
    kind = TypeProto(tensor_type=TypeProto.Tensor(elem_type=a.elem_type))
    if a.HasField("shape") and a.shape.dim and n is not None:
        sizes = Value(TypeProto(tensor_type=a)).shape or ()
        kind = helper.make_tensor_type_proto(a.elem_type, [*sizes[:-1], n.i])
    context.set_output_type(0, kind)


declare_schema("MatMulNBits", "A B scales zero_points? g_idx? bias?", "Y", _infer_product, K=int, N=int, bits=4,
               block_size=int, accuracy_level=0, weight_prepacked=0)


@vjp("MatMulNBits", DOMAIN)
def _(a, b, scales, zero_points=None, g_idx=None, bias=None, *, dy, wanted, K, N, bits, block_size,
      weight_prepacked):
    # Where accuracy_level has the activations rounded to 8 bits, the gradient passes straight through.
    # onnxruntime 1.19.2 and 1.32.0 ignore packed zero points beside g_idx, and 1.32.0 g_idx of 2 bits.
    has_whole_zeros = zero_points is not None and not zero_points.is_float
    refuse("MatMulNBits", {"weight_prepacked": weight_prepacked,
                           "g_idx and 2 or 8 bits": g_idx is not None and bits != 4,
                           "g_idx and packed zero points": g_idx is not None and has_whole_zeros})
    weight = PackedWeight(b, scales, zero_points, g_idx, (N, K), bits, block_size)
    rows = flatten_rows(dy)
    da = reshape_like(weight.unsort(op.Gemm(rows, weight.dequantize())), a)
    d_scales = d_zero = None
    if any(wanted[2:4]):
        dw = op.Gemm(rows, weight.sort(flatten_rows(a)), transA=1)
        d_scales, d_zero = weight.pull_back(dw)
    return da, None, d_scales, d_zero, None, dy


@dataclass(frozen=True)
class PackedWeight:
    """A matrix of whole numbers in blocks along its rows, each block with a scale and perhaps a zero point.

    What dequantizes it is DequantizeLinear, which onnxruntime does not compute in advance, of constants either: the
    numbers stay 4 or 8 bits wide but for the moment of the product that needs them.
    """

    packed: Value
    scales: Value
    zero: Value | None
    groups: Value | None
    shape: tuple[int, int]
    bits: int
    block_size: int

    @property
    def blocks(self) -> int:
        """How many blocks a row has."""
        return -(-self.shape[1] // self.block_size)

    @cached_property
    def order(self) -> np.ndarray | None:
        """The columns of the matrix in the order of their blocks, all of one size, with K where a block has no more.

        None where that is their own order.
        """
        _, k = self.shape
        if self.groups is None:
            columns = np.arange(self.blocks * self.block_size)
            return None if columns.size == k else np.minimum(columns, k)
        groups = self._read(self.groups, "g_idx")
        blocks = [np.flatnonzero(groups == i) for i in range(self.blocks)]
        size = max(map(len, blocks))
        return np.concatenate([np.pad(block, (0, size - len(block)), constant_values=k) for block in blocks])

    @cached_property
    def size(self) -> int:
        """How many columns a block has."""
        return self.block_size if self.order is None else len(self.order) // self.blocks

    @cached_property
    def numbers(self) -> Value:
        """The whole numbers less those of the zero point 0, with their columns sorted by blocks."""
        n, k = self.shape
        packed = self._read(self.packed, "weight").reshape(n, -1)
        numbers = self._unpack(packed, packed.shape[1] * 8 // self.bits)
        if self.order is not None:
            numbers = np.concatenate([numbers[:, :k], np.zeros((n, 1), numbers.dtype)], axis=1)[:, self.order]
        return constant(numbers)

    @cached_property
    def zeros(self) -> Value | None:
        """The zero points as whole numbers; None where they are 0 or real numbers."""
        if self.zero is None or self.zero.is_float:
            return None
        packed = self._read(self.zero, "zero point").reshape(self.shape[0], -1)
        return constant(self._unpack(packed, self.blocks))

    def _read(self, v: Value, what: str) -> np.ndarray:
        if v.array is None:
            raise NoGradientError(f"com.microsoft.MatMulNBits with a {what} that is computed has no gradient; make it "
                                  f"an initializer.")
        return v.array

    def _unpack(self, packed: np.ndarray, count: int) -> np.ndarray:
        """The numbers of rows of bytes, the first one in the lowest bits, from -2^(bits - 1) on."""
        if self.bits not in (2, 4, 8):
            raise NoGradientError(f"com.microsoft.MatMulNBits of {self.bits} bits has no gradient; 2, 4 and 8 have.")
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        parts = (packed[..., None] >> shifts) & np.uint8(2**self.bits - 1)
        lowest = np.uint8(2 ** (self.bits - 1))
        whole = (parts.reshape(len(packed), -1)[:, :count] - lowest).view(np.int8)  # It wraps around.
        return whole if self.bits == 8 else whole.astype(ml_dtypes.int4)

    def by_block(self, v: Value) -> Value:
        """Scales or zero points as (N, blocks): a file may have them in one row."""
        return v if v.rank == 2 else op.Reshape(v, [self.shape[0], -1])

    def dequantize(self) -> Value:
        """The matrix (N, K), with its columns sorted by blocks."""
        return self._times(self.by_block(self.scales))

    def _times(self, scales: Value) -> Value:
        w = op.DequantizeLinear(self.numbers, scales, self.zeros, axis=1, block_size=self.size)
        if self.zero is None or not self.zero.is_float:
            return w
        # Real zero points count from the lowest number.
        offset = (self.by_block(self.zero) - 2.0 ** (self.bits - 1)) * scales
        return reshape_like(self._in_blocks(w) - op.Unsqueeze(offset, [2]), w)

    def _in_blocks(self, w: Value) -> Value:
        """(N, K) as (N, blocks, columns of a block)."""
        return op.Reshape(w, [self.shape[0], -1, self.size])

    def sort(self, rows: Value) -> Value:
        """Rows of K numbers in the order of the columns, 0 where a block has no more."""
        return rows if self.order is None else op.Gather(op.Pad(rows, [0, 0, 0, 1]), constant(self.order), axis=1)

    def unsort(self, rows: Value) -> Value:
        """Rows in the order of the columns as rows of K numbers."""
        if self.order is None:
            return rows
        return op.Gather(rows, constant(np.argsort(self.order)[: self.shape[1]]), axis=1)

    def pull_back(self, dw: Value) -> tuple[Value, Value | None]:
        """The cotangents of the scales and of real zero points from that of the matrix."""
        ones = constant(np.ones((self.shape[0], self.blocks), self.scales.dtype))
        along = self._in_blocks(dw)
        d_scales = op.ReduceSum(along * self._in_blocks(self._times(ones)), [2], keepdims=0)
        if self.zero is None or not self.zero.is_float:
            return reshape_like(d_scales, self.scales), None
        d_zero = -(op.ReduceSum(along, [2], keepdims=0) * self.by_block(self.scales))
        return reshape_like(d_scales, self.scales), reshape_like(d_zero, self.zero)
