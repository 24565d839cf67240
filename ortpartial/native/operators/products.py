"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ortpartial.graph import Node
from ortpartial.native.expressions import Affine, Expression, Literal, Load
from ortpartial.native.kernels import Product
from ortpartial.native.products import ProductShape, is_large, scratch_elements
from ortpartial.native.translation import Translator, is_rounding, sizes, translates
from ortpartial.native.types import C_TYPES

from .elementwise import apply, wrap
from .reductions import add_up
from .shapes import reshape, take_part

__all__ = ["multiply"]


def multiply(t: Translator, a: Expression, b: Expression, to: Load | None = None, alpha: float = 1.0,
             addend: Expression | None = None, beta: float = 1.0) -> Expression:
    """The product of matrices on the last two axes: α A B + β D."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (m, k), n = a.shape[-2:], b.shape[-1]
    is_small = k <= 1 or (m * n * k <= 4 and not batch)
    rounds = not is_small and a.dtype == np.float32 and t.is_rounded(a) and t.is_rounded(b)
    if rounds:  # A product rounds its operands while it packs them.
        a, b = (e.args[0] if is_rounding(e) else e for e in (a, b))  # type: ignore[attr-defined]
    a, b = t.broadcast(a, (*batch, m, k)), t.broadcast(b, (*batch, k, n))
    shape = (*batch, m, n)
    if is_small:
        return _scale_and_add(t, _multiply_elements(t, a, b, shape), alpha, addend, beta)
    if a.dtype.kind != "f":
        columns = t.view(b, lambda at: at.permuted([*range(len(batch)), -1, -2]))
        terms = apply(t, wrap("{0} * {1}", a.dtype), reshape(t, a, (*batch, m, 1, k)),
                      reshape(t, columns, (*batch, 1, n, k)))
        return _scale_and_add(t, add_up(t, terms, [-1]), alpha, addend, beta)
    a, b = t.load(a), t.load(b)
    to = to or t.allocate(a.dtype, shape)
    strides: tuple[int, int] | None = None
    if addend is not None:
        addend = t.load(t.broadcast(addend, shape))
        strides = addend.at.strides[-2:]  # type: ignore[assignment]
    product = ProductShape(m, n, k, a.at.strides[-2:], b.at.strides[-2:], to.at.strides[-2],  # type: ignore[arg-type]
                           "bfloat16" if rounds else C_TYPES[a.dtype], float(alpha), strides, float(beta))
    large = is_large(product, t.is_linked)
    n_packed = scratch_elements(product, large)
    packed = t.allocate(np.uint32 if rounds else a.dtype, (n_packed,)) if n_packed else None
    t.kernels.append(Product(tuple(batch), product, a, b, to, addend, packed, large))
    return to


def _multiply_elements(t: Translator, a: Expression, b: Expression, shape: Sequence[int]) -> Expression:
    """A product of few terms, as elements that are computed where they are read."""
    total: Expression | None = None
    for i in range(a.shape[-1]):
        column, row = take_part(t, a, -1, i, 1), take_part(t, b, -2, i, 1)
        column, row = (e if e.cost == 0 or e.shape == tuple(shape) else t.load(e) for e in (column, row))
        term = apply(t, wrap("{0} * {1}", a.dtype), column, row)
        total = term if total is None else apply(t, wrap("{0} + {1}", a.dtype), total, term)
    return Literal(a.dtype, tuple(shape), 0) if total is None else total


def _scale_and_add(t: Translator, total: Expression, alpha: float, addend: Expression | None, beta: float
                   ) -> Expression:
    """α C + β D."""
    if alpha != 1:
        total = apply(t, "{0} * {1}", total, Literal(total.dtype, (), alpha))
    if addend is None or beta == 0:
        return total
    if beta != 1:
        addend = apply(t, "{0} * {1}", addend, Literal(addend.dtype, (), beta))
    return apply(t, "{0} + {1}", total, addend)


@translates("MatMul")
def matmul(t: Translator, node: Node) -> Expression:
    a, b = (t.read(v) for v in node.inputs)
    y = node.outputs[0]
    rows = reshape(t, a, (1, *a.shape)) if len(a.shape) == 1 else a
    columns = reshape(t, b, (*b.shape, 1)) if len(b.shape) == 1 else b
    whole = (*np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2]), rows.shape[-2], columns.shape[-1])
    to = t.allocate(y.dtype, whole, y)
    if len(columns.shape) == 2 and len(rows.shape) > 2:  # one product, as the rows lie one behind the other
        folded = reshape(t, rows, (prod(rows.shape[:-1]), rows.shape[-1]))
        flat = Load(y.dtype, (folded.shape[0], whole[-1]), to.array, Affine.contiguous((folded.shape[0], whole[-1])))
        return reshape(t, multiply(t, folded, columns, flat), sizes(y))
    return reshape(t, multiply(t, rows, columns, to), sizes(y))


@translates("Gemm")
def gemm(t: Translator, node: Node) -> Expression:
    a, b, *c = (t.read(v) for v in node.inputs if v is not None)
    y = node.outputs[0]
    a, b = (t.view(e, lambda at: at.permuted([1, 0])) if node.attribute(name) else e
            for e, name in ((a, "transA"), (b, "transB")))
    return multiply(t, a, b, t.allocate(y.dtype, sizes(y), y), node.attribute("alpha"), c[0] if c else None,
                    node.attribute("beta"))
