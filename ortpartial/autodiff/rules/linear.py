"""Gradients of matrix products and determinants."""

import numpy as np

from ortpartial.graph import Value, constant, op, reshape_like

from ..registry import vjp
from .shape import slice_shape


@vjp("MatMul")
def _(a, b, *, dy):
    if a.rank == 1:
        a, dy = op.Unsqueeze(a, [0]), op.Unsqueeze(dy, [-1 if b.rank == 1 else -2])
    if b.rank == 1:
        b, dy = op.Unsqueeze(b, [1]), op.Unsqueeze(dy, [-1])
        da, db = matmul_vjp(a, b, dy)
        return da, op.Squeeze(db, [-1])
    return matmul_vjp(a, b, dy)


def matmul_vjp(a: Value, b: Value, dy: Value) -> tuple[Value, Value]:
    """da = dy bᵀ and db = aᵀ dy, not yet summed over broadcast batch axes."""
    if b.rank > 2:
        return dy @ swap_last_axes(b), swap_last_axes(a) @ dy
    # A matrix under many rows is a flat product: much faster than many small products summed afterwards.
    rows, drows = flatten_rows(a), flatten_rows(dy)
    return reshape_like(op.Gemm(drows, b, transB=1), a), op.Gemm(rows, drows, transA=1)


def swap_last_axes(x: Value) -> Value:
    """x with its last two axes swapped."""
    r = x.rank
    return op.Transpose(x, perm=[*range(r - 2), r - 1, r - 2])


def flatten_rows(x: Value) -> Value:
    """The rows of x as a matrix."""
    return x if x.rank == 2 else op.Flatten(x, axis=x.rank - 1)


@vjp("Gemm")
def _(a, b, c=None, *, dy, alpha, beta, transA, transB):
    def product(u, v, trans_u, trans_v):
        return op.Gemm(u, v, alpha=alpha, transA=trans_u, transB=trans_v)

    da = product(b, dy, transB, 1) if transA else product(dy, b, 0, 1 - transB)
    db = product(dy, a, 1, transA) if transB else product(a, dy, 1 - transA, 0)
    return da, db, dy if beta == 1 else beta * dy


@vjp("Det")
def _(x, *, dy):
    # Not y x⁻ᵀ: the cofactors are right where x has no inverse, and ONNX has none of x. They cost n² determinants.
    n = identity_matrix(x, -1)
    row, column = op.Unsqueeze(n, [1, 3]), op.Unsqueeze(n, [0, 2])
    cofactors = op.Det(op.Unsqueeze(x, [-4, -3]) * (1 - row) + row * column)
    return op.Unsqueeze(dy, [-2, -1]) * cofactors


def identity_matrix(x: Value, axis: int) -> Value:
    """The identity matrix of the size of an axis of x."""
    n = slice_shape(x, axis, axis + 1 or None)
    if n.array is not None:
        return constant(np.eye(int(n.array[0]), dtype=x.dtype))
    square = op.Expand(constant(np.zeros((1, 1), x.dtype)), op.Concat(n, n, axis=0))
    return op.EyeLike(square).stated([None, None])


def multiply_along(a: Value, v: Value, axis: int, rank: int) -> Value:
    """The product of the matrix a and each vector of v along an axis."""
    if axis == rank - 2:
        return a @ v
    swap = list(range(rank))
    swap[axis], swap[-1] = swap[-1], swap[axis]
    if axis == rank - 1:
        return v @ swap_last_axes(a)
    return op.Transpose(op.Transpose(v, perm=swap) @ swap_last_axes(a), perm=swap)
