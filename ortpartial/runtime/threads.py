"""Number of threads: 1 or all, by the cost of the largest node of a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ortpartial.graph import Node, Value, topological, walk_nodes

__all__ = ["choose_threads", "largest_cost"]

#: The cost, in multiplications, from which several threads are faster; one thread takes about 60 us for it. A network
#: 64-256-256-10 on 32 rows, whose largest product costs half of that, takes 1.08 times as long on two cores as on one.
_PARALLEL_COST = 2**22

#: The cost of reading and writing one element, in multiplications of a matrix product.
_ELEMENT_COST = 16

#: The least size assumed for a dynamic dimension, which is a batch as a rule.
_MIN_ROWS = 32

#: The number of multiplications of a product, from the shapes of its first two inputs and of its output.
_PRODUCTS = {
    "Conv": lambda x, w, y: prod(y) * prod(w[1:]),
    "ConvTranspose": lambda x, w, y: prod(x) * prod(w[1:]),
    "Gemm": lambda a, b, y: prod(y) * prod(a) // (y[0] or 1),
    "MatMul": lambda a, b, y: prod(y) * a[-1],
}


def largest_cost(values: Sequence[Value], rows: int = _MIN_ROWS, sizes: Mapping[str, int] | None = None,
                 cut: Collection[Value] = ()) -> int:
    """The cost of the most expensive node that values depend on, in multiplications.

    Parameters
    ----------
    values : sequence of Value
        Expressions, and weights that a step updates.
    rows : int
        The size assumed for a dynamic dimension.
    sizes : dict of str to int, optional
        Sizes of dynamic dimensions by their names, where they are known better.
    cut : collection of Value
        Values that they are computed from, beyond which nothing is counted.

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
    assumed = _Sizes(rows, sizes or {})
    costs = (_cost(n, assumed) for n in walk_nodes(topological(values, cut)))
    return max([*(_ELEMENT_COST * prod(assumed.of(v)) for v in values), *costs])


def choose_threads(values: Sequence[Value], rows: int = _MIN_ROWS, sizes: Mapping[str, int] | None = None,
                   cut: Collection[Value] = ()) -> int | None:
    """One thread if no node is large enough to run in parallel, else None for all.

    The choice depends on the graph alone and not on measured time: the last bits of a product in onnxruntime 1.19 to
    1.31 depend on the number of threads, and training would not be reproducible.

    Parameters
    ----------
    values : sequence of Value
        As for `largest_cost`.
    rows : int
        The number of rows, assumed for each dynamic dimension; at least 32, as it may be another dimension than rows.
    sizes : dict of str to int, optional
        Sizes of dynamic dimensions by their names, where they are known better.
    cut : collection of Value
        Values that they are computed from, beyond which nothing is counted.

    Returns
    -------
    int or None
    """
    return 1 if largest_cost(values, max(rows, _MIN_ROWS), sizes, cut) < _PARALLEL_COST else None


@dataclass(frozen=True)
class _Sizes:
    """Sizes assumed for dynamic dimensions: by their names where known, else `rows`."""

    rows: int
    known: Mapping[str, int]

    def of(self, v: Value | None) -> tuple[int, ...]:
        """The sizes of a tensor."""
        shape = (None,) if v is None or v.shape is None else v.shape
        return tuple(d if isinstance(d, int) else self.known.get(d or "", self.rows) for d in shape)


def _cost(node: Node, assumed: _Sizes) -> int:
    """The cost of a node in multiplications."""
    if node.op_type in _PRODUCTS and not node.domain:
        return _PRODUCTS[node.op_type](*map(assumed.of, [*node.inputs[:2], node.outputs[0]]))
    return _ELEMENT_COST * max(prod(assumed.of(y)) for y in node.outputs)
