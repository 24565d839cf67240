"""Row chunks: logits and their gradient in chunks of rows, in turn, so that they never exist as a whole.

Logits are the largest values of a language model. They are computed row by row from narrow values, the hidden states,
and read by a loss of each row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from ortpartial.autodiff import grad
from ortpartial.graph import VIEWS, Node, Value, constant, make_node, op, reshape_like, scan, shape_of, walk_back
from ortpartial.limits import limits

from .peephole import apply_peepholes
from .protocol import count_case, is_selected, numbered

__all__ = ["RowHead", "find_row_head"]

#: How many rows are expected where a size is symbolic and nothing is known of it.
_USUAL_ROWS = 512

#: Operators whose elements depend on the elements of their inputs in the same place.
_ELEMENTWISE = frozenset({"Add", "Cast", "Clip", "Div", "Identity", "Mul", "Neg", "Sub", "Tanh"})


@dataclass(frozen=True)
class RowHead:
    """The last layers of a model, from narrow values to logits, which compute rows from rows.

    Parameters
    ----------
    logits : Value of shape (..., classes)
        The logits.
    sources : tuple of Value of shape (..., columns)
        The narrow values that they are computed from.
    with_rows : dict of Node to list of int
        The nodes between, and the inputs of each that have rows.
    chunk : int
        The number of rows of a chunk.
    """

    logits: Value
    sources: tuple[Value, ...]
    with_rows: Mapping[Node, Sequence[int]]
    chunk: int

    def run(self, cost: Callable[[Value, Value], Value], labels: Value, shares: Value) -> tuple[Value, list[Value]]:
        """A cost of each row, and the gradient of their weighted sum, in a loop over chunks.

        Parameters
        ----------
        cost : callable
            From rows of logits and of labels to a column of costs.
        labels, shares : Value of shape (rows, 1)
            The label of each row, which the cost reads, and the weights of the costs in the sum.

        Returns
        -------
        costs : Value of shape (rows, 1)
        gradients : list of Value
            By the sources.
        """
        def run_chunk(labels: Value, shares: Value, *rows: Value) -> list[Value]:
            costs = cost(self._compute(self.logits, dict(zip(self.sources, rows, strict=True))), labels)
            outputs = [costs, *grad([costs], rows, [shares])]
            return apply_peepholes(outputs, [labels, shares, *rows])

        matrices = [labels, shares, *(op.Flatten(v, axis=-1) for v in self.sources)]
        outputs = scan(run_chunk, (), [_to_chunks(m, self.chunk) for m in matrices])
        n = shape_of(labels)[:1]
        costs, *gradients = (op.Slice(op.Flatten(v, axis=-1), [0], n, [0]) for v in outputs)
        return costs.stated(labels.shape), [reshape_like(d, v) for d, v in zip(gradients, self.sources, strict=True)]

    def _compute(self, v: Value, rows: Mapping[Value, Value]) -> Value:
        """Some rows of a value from rows of the sources."""
        if v in rows:
            return rows[v]
        assert v.node is not None
        node, with_rows = v.node, self.with_rows[v.node]
        inputs = [x if x is None else self._compute(x, rows) if i in with_rows else _drop_axes(x, node)
                  for i, x in enumerate(node.inputs)]
        if node.op_type in VIEWS and not node.domain:
            assert inputs[0] is not None
            return inputs[0]
        return make_node(node.schema, inputs, node.attributes, n_outputs=1).outputs[0]


def _to_chunks(rows: Value, size: int) -> Value:
    """A matrix as chunks of its rows, the last filled up with rows of 0."""
    count, columns = rows.shape or (None, None)
    if isinstance(count, int):
        chunks = ceil(count / size)
        padded = op.Pad(rows, [0, 0, chunks * size - count, 0]) if count % size else rows
        return op.Reshape(padded, [chunks, size, columns])
    n = op.Shape(rows, end=1)
    least = op.Max(op.Min(n, size), 1)  # No rows are a chunk of zeros.
    several = op.Max(op.Div(n + least - 1, least), 1)
    padded = op.Pad(rows, op.Concat([0, 0], several * least - n, [0], axis=0))
    return op.Reshape(padded, op.Concat(several, least, [columns], axis=0)).stated(("chunks", "rows of chunk", columns))


@numbered("row_head")
def find_row_head(y: Value, weights: Collection[Value], sizes: Mapping[str, int]) -> RowHead | None:
    """The last layers of a model whose logits are large.

    1. `row_head`: The layers are computed in chunks of rows, together with their loss and gradient.

    Parameters
    ----------
    y : Value of shape (..., classes)
        The logits: a product of narrow values and a matrix, perhaps with a bias, a cap or in another dtype.
    weights : collection of Value
        The weights that are trained. Logits that depend on them directly stay whole: a loop would add up gradients of
        the size of the matrix.
    sizes : dict of str to int
        Typical sizes in place of symbolic sizes.

    Returns
    -------
    RowHead or None
        None where the logits are small, or not computed row by row.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> h, w = variable("h", "float32", ["N", 128, 64]), variable("w", "float32", [64, 50257])
    >>> find_row_head(h @ w, [], {"N": 4}).chunk
    166
    """
    *rows, width = y.shape or (None,)
    if not isinstance(width, int) or not rows or not is_selected("row_head"):
        return None
    chunk = max(limits().chunk_rows, limits().chunk_elements // width)
    known = [m for n in rows if (m := n if isinstance(n, int) else sizes.get(n or ""))]
    if (prod(known) if len(known) == len(rows) else _USUAL_ROWS) <= chunk:
        return None
    search = _Search(width)
    if not search.includes(y) or any(v in weights for v in walk_back(search.shared, lambda v: False)):
        return None
    if y.is_static:  # Chunks of nearly the same size.
        chunk = ceil(prod(known) / ceil(prod(known) / chunk))
    count_case("row_head")
    return RowHead(y, tuple(search.sources), search.with_rows, chunk)


class _Search:
    """The search for the nodes between narrow values and logits, each of which computes rows from rows.

    Parameters
    ----------
    width : int
        The number of columns of the logits.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        #: The narrow values.
        self.sources: dict[Value, None] = {}
        #: Values that all rows share, such as matrices.
        self.shared: list[Value] = []
        #: The inputs of each node that have rows.
        self.with_rows: dict[Node, list[int]] = {}

    def includes(self, v: Value) -> bool:
        """Whether a value is computed row by row from narrow values; all that leads to it is remembered."""
        node = v.node
        if node is None or not v.shape or v.shape[-1] != self.width:
            return False
        if node in self.with_rows:
            return True
        if (indices := _find_inputs_with_rows(node)) is None:
            return False
        self.with_rows[node] = indices
        self.shared.extend(x for i, x in enumerate(node.inputs) if x is not None and i not in indices)
        return all(self._is_narrow(x) or self.includes(x) for i in indices if (x := node.inputs[i]) is not None)

    def _is_narrow(self, v: Value) -> bool:
        """Whether a value has at most half the columns; it is remembered."""
        columns = v.shape[-1] if v.shape else None
        is_narrow = isinstance(columns, int) and 2 * columns <= self.width
        if is_narrow:
            self.sources[v] = None
        return is_narrow


def _find_inputs_with_rows(node: Node) -> list[int] | None:
    """The inputs of a node whose rows become the rows of its output; None where there are none such."""
    y, x = node.outputs[0], node.inputs[0]
    if not y.shape:
        return None
    if node.op_type in _ELEMENTWISE and not node.domain:
        with_rows = [i for i, v in enumerate(node.inputs) if v is not None and not _is_shared(v)]
        shapes = [v.shape for i in with_rows if (v := node.inputs[i]) is not None]
        return with_rows if shapes and all(s and s[:-1] == y.shape[:-1] for s in shapes) else None
    return [0] if x is not None and x.shape and _keeps_rows(node) else None


def _keeps_rows(node: Node) -> bool:
    """Whether a view or a product has the rows of its first input."""
    (x, *others), y = node.inputs, node.outputs[0]
    assert x is not None
    assert x.shape
    assert y.shape
    if node.op_type in VIEWS:
        return x.shape[-1] == y.shape[-1]
    if node.op_type == "MatMul":
        return x.rank > 1 and others[0] is not None and others[0].rank == 2
    if node.op_type == "Gemm":
        return not node.attribute("transA") and all(c is None or _is_shared(c) for c in others[1:])
    return node.key == ("com.microsoft", "MatMulNBits")


def _is_shared(v: Value) -> bool:
    """Whether a value is the same for all rows."""
    return v.shape is not None and all(n == 1 for n in v.shape[:-1])


def _drop_axes(v: Value, node: Node) -> Value:
    """Drop the axes of an operand that all rows share, so that it is a row of an elementwise operator."""
    if node.op_type not in _ELEMENTWISE or v.rank < 2:
        return v
    return op.Reshape(v, [-1]) if v.array is None else constant(v.array.reshape(-1), hint=v.hint)
