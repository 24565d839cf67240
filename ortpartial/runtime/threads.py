"""How many threads does a graph take? One, or all, by the largest of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ortpartial.graph import Node, Value, topological, walk_nodes

__all__ = ["choose_threads", "largest_cost"]

#: A node of so many multiplications is worth dividing: one thread takes about 15 us for it.
_WORTH = 2**20

#: An element that is read and written takes as long as so many multiplications in a product.
_ELEMENT = 16

#: A size that is not known is that of a batch as a rule, and these are taken to have so many rows at least.
_UNKNOWN = 32

#: Multiplications of a product by the shapes of its first two inputs and of its output.
_PRODUCTS = {
    "Conv": lambda x, w, y: prod(y) * prod(w[1:]),
    "ConvTranspose": lambda x, w, y: prod(x) * prod(w[1:]),
    "Gemm": lambda a, b, y: prod(y) * prod(a) // (y[0] or 1),
    "MatMul": lambda a, b, y: prod(y) * a[-1],
}


def largest_cost(values: Sequence[Value], rows: int = _UNKNOWN) -> int:
    """Multiplications of the largest node that values depend on; all else is counted as what takes as long.

    Parameters
    ----------
    values : sequence of Value
        Expressions, and weights that a step updates.
    rows : int
        What a size is taken for that is not known.

    Returns
    -------
    int

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x, w = variable("x", "float32", [10, 100]), variable("w", "float32", [100, 200])
    >>> largest_cost([op.Relu(x @ w)])
    200000
    """
    costs = (_cost(n, rows) for n in walk_nodes(topological(values)))
    return max([*(_ELEMENT * prod(_shape(v, rows)) for v in values), *costs])


def choose_threads(values: Sequence[Value], rows: int = _UNKNOWN) -> int | None:
    """One thread where no node is worth dividing, else None, all of them.

    It follows from the graph and is not measured: with another number of threads, products of onnxruntime 1.19 to 1.31
    differ in their last bits, and a training would not come to the same weights each time.

    Parameters
    ----------
    values : sequence of Value
        As for `largest_cost`.
    rows : int
        How many rows there are; a size that is not known may be another than theirs, and counts as 32 at least.

    Returns
    -------
    int or None
    """
    return 1 if largest_cost(values, max(rows, _UNKNOWN)) < _WORTH else None


def _shape(v: Value | None, rows: int) -> tuple[int, ...]:
    """The sizes of a tensor, those that are not known being `rows`."""
    known = (None,) if v is None or v.shape is None else v.shape
    return tuple(d if isinstance(d, int) else rows for d in known)


def _cost(node: Node, rows: int) -> int:
    """Multiplications of a node."""
    if node.op_type in _PRODUCTS and not node.domain:
        return _PRODUCTS[node.op_type](*(_shape(v, rows) for v in [*node.inputs[:2], node.outputs[0]]))
    return _ELEMENT * max(prod(_shape(y, rows)) for y in node.outputs)
