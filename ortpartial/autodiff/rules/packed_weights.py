"""Gradients of products with packed weights of com.microsoft: the weights stay packed, 2 to 8 bits each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from onnx import TensorProto, TypeProto, helper
from onnx.shape_inference import InferenceContext

from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Value, cast, constant, op, reshape_like
from ortpartial.limits import limits
from ortpartial.model import declare_schema

from ..grad import composed
from ..registry import vjp
from .linear import flatten_rows
from .microsoft import refuse
from .shape import sizes_of

DOMAIN = "com.microsoft"


def _infer_product(context: InferenceContext) -> None:
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
    d_scales, d_zero = weight.pull_back(flatten_rows(a), rows) if any(wanted[2:4]) else (None, None)
    return reshape_like(weight.multiply(rows), a), None, d_scales, d_zero, None, dy


def _infer_rows(context: InferenceContext) -> None:
    """Rows of the table, as many numbers as were packed, of the type of the scales."""
    data, indices, scales = (context.get_input_type(i).tensor_type for i in range(3))
    kind = TypeProto(tensor_type=TypeProto.Tensor(elem_type=scales.elem_type))
    sizes, picked = (Value(TypeProto(tensor_type=t)).shape for t in (data, indices))
    axis, bits = (context.get_attribute(name) for name in ("gather_axis", "bits"))
    if sizes is not None and picked is not None:
        each = 8 // (bits.i if bits else 4) if data.elem_type == TensorProto.UINT8 else 1
        sizes = (*sizes[:-1], sizes[-1] * each if isinstance(sizes[-1], int) else None)
        i = (axis.i if axis else 0) % len(sizes)
        kind = helper.make_tensor_type_proto(scales.elem_type, [*sizes[:i], *picked, *sizes[i + 1 :]])
    context.set_output_type(0, kind)


declare_schema("GatherBlockQuantized", "data indices scales zero_points?", "output", _infer_rows, bits=4,
               block_size=128, gather_axis=0, quantize_axis=1)


@composed("GatherBlockQuantized", DOMAIN)
def _(data, indices, scales, zero_points=None, *, bits, block_size, gather_axis, quantize_axis):
    is_packed = data.type.tensor_type.elem_type == TensorProto.UINT8
    gather, blocks = (axis % data.rank for axis in (gather_axis, quantize_axis))
    refuse("GatherBlockQuantized", {"numbers that are computed": data.array is None,
                                    "numbers of float8 or float4": data.is_float,
                                    "one axis of both rows and blocks": gather == blocks})

    def pick(v: Value) -> Value:
        """Rows of numbers or zero points, less the default zero point."""
        whole: Any = v.array
        if is_packed:
            whole = (unpack(whole, bits) - np.uint8(2 ** (bits - 1))).view(np.int8)  # It wraps around.
        return op.Cast(op.Gather(constant(whole.astype(np.int8)), indices, axis=gather), to=TensorProto.FLOAT)

    def spread(v: Value) -> Value:
        """A number of each block for each number of it."""
        return op.Gather(v, of_block, axis=along)

    numbers, rows = pick(data), op.Gather(scales, indices, axis=gather)
    along = blocks + (indices.rank - 1 if gather < blocks else 0)
    of_block = constant(np.arange(sizes_of(numbers)[along]) // block_size)
    if zero_points is not None:
        numbers = numbers - spread(pick(zero_points))
    return cast(numbers, rows) * spread(rows)


@dataclass(frozen=True)
class PackedWeight:
    """A matrix (N, K) of whole numbers in blocks along its rows, each block with a scale and perhaps a zero point.

    Nothing is stored but the bytes that the forward product reads. The step dequantizes them for the moment of the
    product that needs them, as a transposed matrix for each place in a byte: where a byte has two numbers, a matrix of
    the even columns and a matrix of the odd columns. onnxruntime 1.32.0 dequantizes neighbors that have a scale each
    with vector instructions, 10 times faster than neighbors that share a scale.
    """

    packed: Value
    scales: Value
    zero: Value | None
    groups: Value | None
    shape: tuple[int, int]
    bits: int
    block_size: int

    @cached_property
    def places(self) -> range:
        """The places in a byte, from the lowest bits on."""
        if self.bits not in (2, 4, 8):
            raise NoGradientError(f"com.microsoft.MatMulNBits of {self.bits} bits has no gradient; 2, 4 and 8 have.")
        return range(8 // self.bits)

    @property
    def blocks(self) -> int:
        """How many blocks a row has."""
        return -(-self.shape[1] // self.block_size)

    @property
    def columns(self) -> int:
        """The number of columns, with the padding of the last block."""
        return self.blocks * self.block_size

    @cached_property
    def block_of(self) -> np.ndarray:
        """The block of each column."""
        if self.groups is None:
            return np.arange(self.columns) // self.block_size
        return np.pad(_read(self.groups, "g_idx"), (0, self.columns - self.shape[1]))

    @cached_property
    def zeros(self) -> np.ndarray | None:
        """The whole zero points (blocks, N)."""
        if self.zero is None or self.zero.is_float:
            return None
        packed = _read(self.zero, "zero point").reshape(self.shape[0], -1, 1)
        numbers = (packed >> np.arange(0, 8, self.bits, dtype=np.uint8)) & np.uint8(2**self.bits - 1)
        return numbers.reshape(self.shape[0], -1)[:, : self.blocks].T

    def multiply(self, rows: Value) -> Value:
        """The product of rows of N numbers and the matrix, some rows of a big matrix at a time."""
        n, k = self.shape
        count = -(-n * k // limits().dequantized_elements)
        step = -(-n // count)
        if count == 1:
            return self._multiply(rows, slice(None))
        parts = [slice(i, min(i + step, n)) for i in range(0, n, step)]
        return op.Sum(*(self._multiply(rows[:, part], part) for part in parts))

    def _multiply(self, rows: Value, part: slice) -> Value:
        """The product with some of the rows of the matrix."""
        matrices = (self._dequantize(self.scales, i, part) for i in self.places)
        products = self._take_apart([op.Gemm(w, rows, transB=1) for w in matrices])
        columns = op.Reshape(op.Concat(*products, axis=1), [self.columns, -1])
        filled = self.columns > self.shape[1]
        return op.Transpose(columns[: self.shape[1]] if filled else columns, perm=[1, 0])

    def _dequantize(self, scales: Value, place: int, part: slice = slice(None)) -> Value:
        """The transposed matrix of a place: (bytes of a row, N). For the last, see `_take_apart`."""
        shift, highest = self.bits * place, 2**self.bits - 1
        numbers, one = self._transpose(part), 255 // highest
        if place == 0 < self.places[-1]:  # A shift that drops the higher places takes less time than a mask.
            shift = 8 - self.bits
            numbers, one = op.BitShift(numbers, np.uint8(shift), direction="LEFT"), 1 << shift
        elif self.groups is not None or place < self.places[-1]:
            numbers, one = op.BitwiseAnd(numbers, np.uint8(highest << shift)), 1 << shift
        # How many bytes in a row share a scale, and how often they do.
        size = self.block_size // len(self.places) if self.groups is None else 1
        n, count = len(range(*part.indices(self.shape[0]))), self.columns // len(self.places) // size
        s, middle = self._spread(scales, place, part) * 2.0**-shift, 2 ** (self.bits - 1)
        if self.zeros is None:
            zeros = op.Expand(constant(middle * one, "uint8"), [count, n])
        else:
            zeros = constant(self.zeros[:, part] * np.uint8(one))
        w = op.DequantizeLinear(numbers, s, zeros, axis=0, block_size=size)
        if self.zero is None or self.zeros is not None:
            return w
        # Real zero points count from the lowest number.
        offset = (self._spread(self.zero, place, part) - float(middle)) * s * float(one)
        return op.Reshape(op.Reshape(w, [count, size, n]) - op.Unsqueeze(offset, [1]), [count * size, n])

    def _transpose(self, part: slice) -> Value:
        """The transposed bytes of some rows: (bytes of a row, N)."""
        packed = self.packed if self.packed.rank == 3 else op.Reshape(self.packed, [self.shape[0], self.blocks, -1])
        columns = op.Transpose(self._take(packed, part), perm=[1, 2, 0])
        return op.Reshape(columns, [self.columns // len(self.places), -1])

    def _take(self, v: Value, part: slice) -> Value:
        return v if part == slice(None) else v[part]

    def _spread(self, v: Value, place: int, part: slice) -> Value:
        """Scales or zero points (blocks, N) or, where neighbors may have others, of all columns of a place."""
        every = v if v.rank == 2 else op.Reshape(v, [self.shape[0], -1])
        rows = op.Transpose(self._take(every, part), perm=[1, 0])
        return rows if self.groups is None else op.Gather(rows, self.block_of[place :: len(self.places)])

    def _take_apart(self, places: list[Value]) -> list[Value]:
        """The part linear in the matrices of `_dequantize`, without the lower places that the last matrix includes.

        The last matrix is of whole bytes, in the unit of the last place, since masks of their bits take time. Where
        columns of a byte have other scales, it includes nothing else.
        """
        if self.groups is not None:
            return places
        *lower, last = places
        for place, v in zip(self.places, lower, strict=False):
            last -= v * 2.0 ** (self.bits * (place - self.places[-1]))
        return [*lower, last]

    def pull_back(self, a: Value, dy: Value) -> tuple[Value, Value | None]:
        """The cotangents of the scales and of real zero points, from rows of factors and of cotangents."""
        each, ones = len(self.places), constant(np.ones((self.shape[0], self.blocks), self.scales.dtype))
        padded = op.Pad(a, [0, 0, 0, self.columns - self.shape[1]])
        d_scales, d_zero = [], []
        for i, w in enumerate(self._take_apart([self._dequantize(ones, i) for i in self.places])):
            dw = op.Gemm(padded[:, i::each], dy, transA=1)
            blocks = op.OneHot(self.block_of[i::each], self.blocks, constant([0, 1], a.dtype), axis=0)
            d_scales.append(op.Gemm(blocks, dw * w))
            d_zero.append(op.Gemm(blocks, dw))

        def total(parts: list[Value], like: Value) -> Value:
            return reshape_like(op.Transpose(op.Sum(*parts), perm=[1, 0]), like)

        if self.zero is None or not self.zero.is_float:
            return total(d_scales, self.scales), None
        return total(d_scales, self.scales), reshape_like(-total(d_zero, self.scales) * self.scales, self.zero)


def _read(v: Value, what: str) -> np.ndarray:
    if v.array is None:
        raise NoGradientError(f"com.microsoft.MatMulNBits with a {what} that is computed has no gradient; make it an "
                              f"initializer.")
    return v.array


def unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """The numbers of rows of bytes, the first in the lowest bits, each in a byte of its own."""
    parts = (packed[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8(2**bits - 1)
    return parts.reshape(*packed.shape[:-1], -1)
