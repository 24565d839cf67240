"""Peephole optimization: a whole step, its gradient included, in operators that take less time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import nan, prod
from typing import Any

import numpy as np

from ortpartial.autodiff import columns, few, known, normal_by_erf, normal_by_tanh, padded
from ortpartial.graph import Node, Value, constant, op, rewrite, topological

__all__ = ["apply_peepholes"]

Shape = Sequence["int | str | None"]
#: From a node, its new inputs, and what is known of all nodes.
Form = Callable[[Node, Sequence[Any], "Maker"], "Value | None"]

#: Runs of so many elements are moved by onnxruntime 1.19 to 1.31 in a third of the time where an axis moves over two
#: others to the right, and not another to the left (64 x 64 runs of 4: 6 and 31 us, of 16: 8 and 31).
_RUN, _MANY = range(4, 32), 2**13

#: From so many rows on, onnxruntime 1.19 to 1.31 saves more with one column than two further nodes take.
_TALL = 128

#: Dtypes in which large sums and products with a bias are exact enough, and have kernels.
_SUMMED = (np.dtype(np.float32), np.dtype(np.float64))


def apply_peepholes(outputs: Sequence[Value], cut: Sequence[Value] = ()) -> list[Value]:
    """The same values, in operators that take less time.

    It comes after the gradient: what it writes is run, and not differentiated.

    Parameters
    ----------
    outputs : sequence of Value
        The expressions.
    cut : sequence of Value
        Where they start, if not at variables.

    Returns
    -------
    list of Value

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x, w = variable("x", "float32", [8, 4, 3, 3]), variable("w", "float32", [5, 4, 3, 3])
    >>> (y,) = apply_peepholes([op.Conv(x, w)])
    >>> y.node.inputs[0].node.op_type
    'Reshape'
    """
    # What was written first is computed first, as before.
    ranked = sorted(range(len(outputs)), key=lambda i: v.node.serial if (v := outputs[i]).node else -1)
    roots = [outputs[i] for i in ranked]
    sloped, maker = _sloped(roots, cut), Maker(roots, cut)

    def change(node: Node, inputs: Sequence[Any]) -> list[Value] | None:
        if node.domain or node.op_type not in _FORMS:
            return None
        if node.op_type == "Gelu" and node not in sloped:
            return None
        y = _FORMS[node.op_type](node, inputs, maker)
        return None if y is None else [y]

    found = dict(zip(ranked, rewrite(roots, {}, change, cut), strict=True))
    return [found[i] for i in range(len(outputs))]


class Maker:
    """What makes a value, where it is computed from those at which expressions start.

    Parameters
    ----------
    roots, cut : sequence of Value
        The expressions as they were, and where they start.
    """

    def __init__(self, roots: Sequence[Value], cut: Sequence[Value]):
        self._start = set(cut)
        #: What `_number` has found, by value.
        self.numbers: dict[Value, float | None] = {}
        self._times = Counter([*roots, *(v for node in topological(roots, cut) for v in node.reads)])

    def __call__(self, v: Value) -> Node | None:
        """The node of a value, None where the expressions start."""
        return None if v in self._start else v.node

    def once(self, v: Value) -> bool:
        """Whether a value of the expressions is read by one node alone."""
        return self._times[v] == 1


def _product(node: Node, inputs: Sequence[Any], maker: Maker) -> Value | None:
    """A convolution of several images, each to so few places that a product for each is slow, as one product.

    It is that of the weights and of what the window sees in all images.
    """
    x, w, *b = inputs
    y = node.outputs[0]
    if node.attribute("group") != 1 or not (x.is_static and w.is_static and x.shape[0] > 1):
        return None
    x, window = padded(x, node, w)
    if not few(x, known(y) or (), window):
        return None
    seen = op.Gemm(op.Flatten(w), columns(x, known(y) or (), window), *(op.Unsqueeze(v, [1]) for v in b))
    batch, channels, *m = y.shape or ()
    return op.Transpose(op.Reshape(seen, [channels, batch, *m]), perm=[1, 0, *window.axes])


def _gemm(node: Node, inputs: Sequence[Any], maker: Maker) -> Value | None:
    """A product that has a factor in itself; or that of a tall matrix and a row, which is fast as one with a column."""
    if (y := _scaled(node, inputs, maker)) is not None or len(inputs) < 3:
        return y
    a, row, b = inputs
    plain = [node.attribute(k) for k in ("alpha", "beta", "transA", "transB")] == [1, 1, 0, 1]
    alone = (row.shape or ())[:1] == (1,) and b is not None and b.shape == (1,)
    if not (plain and alone and a.is_static) or a.shape[0] < _TALL:
        return None
    return op.MatMul(a, op.Reshape(row, [a.shape[1], 1])) + b


def _affine(node: Node, inputs: Sequence[Any], maker: Maker) -> Value | None:
    """A linear layer of rows in several axes, as one product with a bias: what is not added is not moved once more."""
    for (product, row), before in zip((inputs, inputs[::-1]), node.inputs, strict=True):
        layer = maker(product)
        if layer is None or layer.op_type != "MatMul" or before is None or not maker.once(before) or row.shape is None:
            continue
        x, w = layer.reads
        shape = product.shape
        if shape is None or x.rank < 3 or w.rank != 2 or list(row.shape) != [shape[-1]] or not w.is_static:
            continue
        if x.dtype not in _SUMMED or sum(not isinstance(n, int) for n in shape) > 1:
            continue
        y = op.Gemm(op.Flatten(x, axis=-1), w, row)
        return op.Reshape(y, [n if isinstance(n, int) else -1 for n in shape]).stated(shape)
    return None


def _scaled(node: Node, inputs: Sequence[Any], maker: Maker) -> Value | None:
    """A product of matrices that has a factor in itself, instead of one of them being multiplied first."""
    (a, s), (b, t) = (_multiple(v, maker) for v in inputs[:2])
    if s * t == 1 or not 1e-30 < abs(s * t) < 1e30:  # 0 times NaN is NaN, and not 0.
        return None
    if node.op_type == "Gemm":
        if a.dtype != np.float32:  # The factor is a float32 in the specification.
            return None
        settings = {name: node.attribute(name) for name in ("beta", "transA", "transB")}
        return op.Gemm(a, b, *inputs[2:], alpha=s * t * node.attribute("alpha"), **settings)
    if a.array is None:
        return None
    return op.MatMul(constant((s * t * a.array.astype(np.float64)).astype(a.dtype)), b)


def _multiple(v: Value, maker: Maker) -> tuple[Value, float]:
    """A value as a multiple of another of the same shape."""
    node = maker(v)
    if node is not None and node.op_type == "Mul" and not node.domain and v.is_static:
        a, b = node.reads
        for c, u in ((a, b), (b, a)):
            if u.shape == v.shape and (number := _number(c, maker)) is not None:
                return u, number
    return v, 1.0


def _number(v: Value, maker: Maker) -> float | None:
    """The number that all elements of a value are, where that is known."""
    if v not in maker.numbers:
        maker.numbers[v] = _find_number(v, maker)
    return maker.numbers[v]


def _find_number(v: Value, maker: Maker) -> float | None:
    """`_number` where it is asked for the first time: chains of products would be walked again at each of them."""
    if v.array is not None and v.is_float and v.array.size:
        first = v.array.flat[0]
        return float(first) if (v.array == first).all() else None
    node = maker(v)
    if node is None or node.domain or not v.is_float or node.op_type not in _OF_NUMBERS:
        return None
    numbers = []
    for u in node.reads:
        if u.is_float:
            if (number := _number(u, maker)) is None:
                return None
            numbers.append(number)
    return _OF_NUMBERS[node.op_type](*numbers)


def _difference(node: Node, inputs: Sequence[Any], maker: Maker) -> Value | None:
    """A sum or difference of two values times a number, with the number behind it, where a product may take it in."""
    (a, s), (b, t) = (_multiple(v, maker) for v in inputs)
    t = t if node.op_type == "Add" else -t
    if abs(s) != abs(t) or s == 1 or a.shape != b.shape:
        return None
    return (a + b if s == t else a - b) * constant(np.asarray(s, a.dtype))


def _sum(node: Node, inputs: Sequence[Any], maker: Maker) -> Value | None:
    """A sum with a factor behind it, or as part of a product."""
    return y if (y := _difference(node, inputs, maker)) is not None else _affine(node, inputs, maker)


def _mask(node: Node, inputs: Sequence[Any], maker: Maker) -> Value | None:
    """Whether elements are above 0, as one operator: x times so much that it is cut off at 1.

    Numbers below the smallest normal one, 1.2e-38, count in part.
    """
    above = maker(inputs[0])
    if above is None or above.op_type != "Greater" or node.outputs[0].dtype != np.float32:
        return None
    x, zero = above.reads
    if x.dtype != np.float32 or zero.array is None or zero.array.any() or zero.rank:
        return None
    return op.HardSigmoid(x, alpha=2.0**127, beta=0.0)


def _mean_of_squares(node: Node, inputs: Sequence[Any], maker: Maker) -> Value | None:
    """The mean of all squares as a sum of squares, which is one operator."""
    square = maker(inputs[0])
    if square is None or square.op_type != "Pow" or len([v for v in inputs if v is not None]) > 1:
        return None
    x, power = square.reads
    n = _size(x.shape or ()) if x.is_static else 0
    if power.array is None or power.rank or power.array != 2 or n < 1 or node.attribute("keepdims"):
        return None
    if x.dtype not in _SUMMED:  # A sum of squares is soon too large for less.
        return None
    return op.ReduceSumSquare(x, keepdims=0) / constant(np.asarray(n, x.dtype))


def _weighted_mean(node: Node, inputs: Sequence[Any], maker: Maker) -> Value | None:
    """The mean of a row of products, of which one factor is the same in all rows, as a product with a column."""
    before, y = node.inputs[0], node.outputs[0]
    product = maker(inputs[0])
    if product is None or product.op_type != "Mul" or before is None or not maker.once(before):
        return None
    axes = inputs[1].array if len(inputs) > 1 else None
    if axes is None or axes.tolist() not in ([-1], [y.rank - 1]) or not node.attribute("keepdims"):
        return None
    for x, row in (product.reads, product.reads[::-1]):
        of_row, of_rows = row.shape or (), x.shape or ()
        if len(of_row) == 1 < len(of_rows) and of_rows[-1:] == of_row and _size(of_row) > 0 and y.dtype in _SUMMED:
            return op.MatMul(x, op.Unsqueeze(row / constant(np.asarray(_size(of_row), y.dtype)), [1])).stated(y.shape)
    return None


def _mean(node: Node, inputs: Sequence[Any], maker: Maker) -> Value | None:
    """A mean of squares, or of weighted elements."""
    return y if (y := _mean_of_squares(node, inputs, maker)) is not None else _weighted_mean(node, inputs, maker)


def _from_normal(node: Node, inputs: Sequence[Any], maker: Maker) -> Value:
    """x Φ(x), where Φ(x) is there as part of its derivative."""
    x = inputs[0]
    return x * (normal_by_tanh(x) if node.attribute("approximate") == "tanh" else normal_by_erf(x))


def _to_the_right(node: Node, inputs: Sequence[Any], maker: Maker) -> Value | None:
    """A swap of two blocks of axes, written as a move to the right over two axes, of which one has one element.

    Nor does onnxruntime then put it into a product, whose rows would be far apart.
    """
    x, y = inputs[0], node.outputs[0]
    if x.shape is None or x.dtype != np.float32 or y.shape is None:
        return None
    blocks = _blocks(x.shape, node.attribute("perm") or range(x.rank)[::-1])
    before = _size(blocks.pop(0)[1]) if blocks[0][0] == 0 else 1
    if len(blocks) != 3 or blocks[0][0] < blocks[1][0]:
        return None
    over, moved, run = (_size(sizes) for _, sizes in blocks)
    if len(blocks[2][1]) > 1:  # An image: onnxruntime moves such a Transpose on, to where another one undoes it.
        return None
    apart = [*([before] if before != 1 else []), moved, 1, over, run]
    # The size of a batch may be open.
    if run not in _RUN or apart.count(-1) > 1 or abs(prod(apart)) < (_MANY if -1 not in apart else _MANY // 8):
        return None
    first = len(apart) - 4
    moving = op.Transpose(op.Reshape(x, apart), perm=[*range(first), *(first + a for a in (1, 2, 0, 3))])
    return op.Reshape(moving, [d if isinstance(d, int) else -1 for d in y.shape]).stated(y.shape)


def _size(sizes: Shape) -> int:
    """How many elements, or -1 where a size is open."""
    return prod(sizes) if all(isinstance(n, int) for n in sizes) else -1  # type: ignore[arg-type]


def _blocks(shape: Shape, perm: Sequence[int]) -> list[tuple[int, list[int | str | None]]]:
    """Axes that stay together, in their new order: where each block came from, and its sizes."""
    found: list[tuple[int, list[int | str | None]]] = []
    rank = {a: i for i, a in enumerate(a for a, n in enumerate(shape) if n != 1)}
    for a in perm:
        if a not in rank:
            continue
        if found and found[-1][0] + len(found[-1][1]) == rank[a]:
            found[-1][1].append(shape[a])
        else:
            found.append((rank[a], [shape[a]]))
    return found


def _sloped(outputs: Sequence[Value], cut: Sequence[Value]) -> set[Node]:
    """Every Gelu whose derivative is among the values: the same Erf or Tanh is to be found there."""
    nodes = topological(outputs, cut)
    inside = {(n.op_type, x) for n in nodes if n.op_type in ("Erf", "Tanh") for m in _makers(n)
              for x in [*m.reads, *(x for n in _makers(m) for x in n.reads)]}
    kind = {"none": "Erf", "tanh": "Tanh"}
    return {n for n in nodes if n.op_type == "Gelu" and (kind[n.attribute("approximate")], n.inputs[0]) in inside}


def _makers(node: Node) -> list[Node]:
    """The nodes whose outputs a node reads."""
    return [v.node for v in node.reads if v.node is not None]


_OF_NUMBERS: dict[str, Callable[..., float]] = {
    "Div": lambda a, b: a / b if b else nan, "Expand": float, "Mul": lambda a, b: a * b, "Neg": lambda a: -a,
    "Reshape": float, "Squeeze": float, "Unsqueeze": float}
_FORMS: dict[str, Form] = {"Add": _sum, "Cast": _mask, "Conv": _product, "Gelu": _from_normal, "Gemm": _gemm,
                           "MatMul": _scaled, "ReduceMean": _mean, "Sub": _difference,
                           "Transpose": _to_the_right}
