"""Peephole optimization: a whole training step, its gradient included, in operators that take less time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf, nan, prod
from typing import Any

import numpy as np

from ortpartial.annotations import Inputs
from ortpartial.autodiff import has_few_windows, im2col, normal_cdf, normal_cdf_tanh, pad_input, spatial_sizes
from ortpartial.graph import Node, Value, constant, drop_straight_through, make_node, op, rewrite, shape_of, topological
from ortpartial.limits import limits

from .protocol import attempt, numbered

__all__ = ["apply_peepholes"]

Shape = Sequence["int | str | None"]
#: From a node, its new inputs and the region around it to a faster value, None where the pattern does not match.
Pattern = Callable[[Node, Sequence[Any], "Region"], "Value | None"]

#: Dtypes in which large sums and products with a bias are exact enough, and have kernels.
_WIDE = (np.dtype(np.float32), np.dtype(np.float64))


@numbered("scatter_in_place", "factor_out", "fuse_bias", "broadcast", "mask_by_hard_sigmoid", "conv_to_gemm",
          "cancel_scale", "exp_to_softmax", "expand_gelu", "move_row_factor", "fold_factor", "gemm_by_column",
          "mean_of_squares", "mean_of_products", "negate_last", "move_right")
def apply_peepholes(outputs: Sequence[Value], cut: Sequence[Value] = ()) -> list[Value]:
    """The same values in operators that take less time.

    It follows differentiation: its results are run, and not differentiated. Of these cases, the first that matches a
    node applies:

    1. `scatter_in_place`: Add(x·v, ScatterElements(0, -x)) becomes ScatterElements(v, -1)·x.
    2. `factor_out`: s·a ± s·b becomes (a ± b)·s.
    3. `fuse_bias`: Add(MatMul(x, w), b) of an x of three axes or more becomes Gemm(x, w, b).
    4. `broadcast`: An operator on an expanded value broadcasts instead.
    5. `mask_by_hard_sigmoid`: Cast(x > 0) in the gradient of an activation becomes HardSigmoid(x).
    6. `conv_to_gemm`: Conv of several small images becomes a product (im2col).
    7. `cancel_scale`: (x s) / s becomes x.
    8. `exp_to_softmax`: exp(x - log Σexp(x)) becomes Softmax(x).
    9. `expand_gelu`: Gelu whose derivative needs Φ(x) as well becomes x Φ(x).
    10. `move_row_factor`: (v·x)w becomes (vw)·x, and aᵀ(v·x) becomes (a·x)ᵀv, where v is large and x a column.
    11. `fold_factor`: A product of (s·A)(t·B) becomes a product of A and B with the factor s·t.
    12. `gemm_by_column`: A product with a transposed row becomes a product with a column.
    13. `mean_of_squares`: ReduceMean(x²) becomes ReduceSumSquare(x) / n.
    14. `mean_of_products`: The mean of x·row along the last axis becomes a product with a column.
    15. `negate_last`: Σ -x becomes -Σ x.
    16. `move_right`: Transpose that swaps two blocks of axes becomes a move over two axes.

    Parameters
    ----------
    outputs : sequence of Value
        The expressions.
    cut : sequence of Value
        Where the expressions start, if not at variables.

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
    # Nodes are computed in the order in which they are made, which is kept.
    order = sorted(range(len(outputs)), key=lambda i: v.node.serial if (v := outputs[i]).node else -1)
    roots = drop_straight_through([outputs[i] for i in order], cut)
    region = Region(roots, cut)

    def change(node: Node, inputs: Inputs) -> list[Value] | None:
        y = None if node.domain else attempt(_PATTERNS.get(node.op_type, ()), node, inputs, region)
        return None if y is None else [y]

    rewritten = dict(zip(order, rewrite(roots, {}, change, cut), strict=True))
    return [rewritten[i] for i in range(len(outputs))]


class Region:
    """The nodes between the cut and the roots, which patterns may look at.

    Parameters
    ----------
    roots, cut : sequence of Value
        The expressions before they are rewritten, and where they start.
    """

    def __init__(self, roots: Sequence[Value], cut: Sequence[Value]):
        nodes = topological(roots, cut)
        self._cut = set(cut)
        self._reads = Counter([*roots, *(v for node in nodes for v in node.reads)])
        #: Every Gelu that is differentiated: its derivative holds the same Erf or Tanh.
        self.differentiated_gelus = _find_differentiated_gelus(nodes)
        #: The inputs of activations, whose gradients mask.
        self.activated = {node.reads[0] for node in nodes if node.op_type in _MASKED}
        #: The results of `_number`.
        self.numbers: dict[Value, float | None] = {}

    def node_of(self, v: Value) -> Node | None:
        """The node that computes a value, None for a value of the cut."""
        return None if v in self._cut else v.node

    def is_read_once(self, v: Value) -> bool:
        """Whether a single node reads a value."""
        return self._reads[v] == 1


def _find_differentiated_gelus(nodes: Sequence[Node]) -> set[Node]:
    def parents(node: Node) -> list[Node]:
        return [v.node for v in node.reads if v.node is not None]

    arguments = {(n.op_type, x) for n in nodes if n.op_type in ("Erf", "Tanh") for parent in parents(n)
                 for x in [*parent.reads, *(x for grandparent in parents(parent) for x in grandparent.reads)]}
    inner = {"none": "Erf", "tanh": "Tanh"}
    gelus = (n for n in nodes if n.op_type == "Gelu" and not n.domain)
    return {n for n in gelus if (inner[n.attribute("approximate")], n.inputs[0]) in arguments}


def _conv_to_gemm(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """A convolution of several small images as a product of the weights and the columns of all images (im2col).

    onnxruntime computes a product for each image, which is slow where an image has few output positions. A kernel as
    large as the images, in the gradient of a weight, would have more columns than they have elements.
    """
    x, w, *b = inputs
    y = node.outputs[0]
    if node.attribute("group") != 1 or not (x.is_static and w.is_static and x.shape[0] > 1):
        return None
    x, window = pad_input(x, node, w)
    if not has_few_windows(x, spatial_sizes(y) or (), window) or prod(window.kernel) > limits().kernel_places:
        return None
    product = op.Gemm(op.Flatten(w), im2col(x, spatial_sizes(y) or (), window), *(op.Unsqueeze(v, [1]) for v in b))
    batch, channels, *sizes = y.shape or ()
    return op.Transpose(op.Reshape(product, [channels, batch, *sizes]), perm=[1, 0, *window.axes])


def _gemm_by_column(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """The product of a tall matrix and a transposed row, which is fast as a product with a column."""
    if len(inputs) < 3:
        return None
    a, row, b = inputs
    is_plain = [node.attribute(k) for k in ("alpha", "beta", "transA", "transB")] == [1, 1, 0, 1]
    is_row = (row.shape or ())[:1] == (1,) and b is not None and b.shape == (1,)
    if not (is_plain and is_row and a.is_static) or a.shape[0] < limits().column_rows or not a.shape[1]:
        return None
    return op.MatMul(a, op.Reshape(row, [a.shape[1], 1])) + b


def _fuse_bias(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """Add(MatMul(x, w), b) of an x of three axes or more as Gemm(x, w, b) of its rows."""
    for (product, bias), old in zip((inputs, inputs[::-1]), node.inputs, strict=True):
        matmul = region.node_of(product)
        if matmul is None or matmul.op_type != "MatMul" or old is None or not region.is_read_once(old):
            continue
        x, w = matmul.reads
        shape = product.shape
        if bias.shape is None or shape is None or x.rank < 3 or w.rank != 2:
            continue
        if list(bias.shape) != [shape[-1]] or not w.is_static or x.dtype not in _WIDE:
            continue
        # In a Reshape, 0 is a size of its input.
        if sum(not isinstance(n, int) for n in shape) > 1 or 0 in (*shape, *(w.shape or ())):
            continue
        y = op.Gemm(op.Flatten(x, axis=-1), w, bias)
        return op.Reshape(y, [n if isinstance(n, int) else -1 for n in shape]).stated(shape)
    return None


def _fold_factor(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """A product of (s·A)(t·B) as a product of A and B with s·t in the alpha of Gemm, or in a constant A.

    It is finite where s·A or t·B alone overflows.
    """
    (a, s), (b, t) = (_split_factor(v, region) for v in inputs[:2])
    if s * t == 1 or not 1e-30 < abs(s * t) < 1e30:  # 0 times NaN is NaN, and not 0.
        return None
    if node.op_type == "Gemm":
        if a.dtype != np.float32:  # alpha is a float32 in the specification.
            return None
        settings = {name: node.attribute(name) for name in ("beta", "transA", "transB")}
        return op.Gemm(a, b, *inputs[2:], alpha=s * t * node.attribute("alpha"), **settings)
    if a.array is None:
        return None
    scaled = s * t * a.array.astype(np.float64)
    if abs(scaled[np.isfinite(scaled)]).max(initial=0) > np.finfo(a.dtype).max:
        return None
    return op.MatMul(constant(scaled.astype(a.dtype)), b)


def _factor_out(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """s·a ± s·b as (a ± b)·s, so that a product may fold the factor.

    Not so in float16, where gradients are scaled to just fit: a ± b may overflow.
    """
    (a, s), (b, t) = (_split_factor(v, region) for v in inputs)
    t = t if node.op_type == "Add" else -t
    if abs(s) != abs(t) or s == 1 or not 0 < abs(s) < inf or a.shape != b.shape or a.dtype not in _WIDE:
        return None
    return (a + b if s == t else a - b) * constant(np.asarray(s, a.dtype))


def _split_factor(v: Value, region: Region) -> tuple[Value, float]:
    """A value as another value of the same shape, and the number that it is multiplied by."""
    node = region.node_of(v)
    if node is not None and node.op_type == "Mul" and not node.domain and v.is_static:
        a, b = node.reads
        for factor, u in ((a, b), (b, a)):
            if u.shape == v.shape and (number := _number(factor, region)) is not None:
                return u, number
    return v, 1.0


def _number(v: Value, region: Region) -> float | None:
    """The number that all elements of a value are, where that is known."""
    if v not in region.numbers:
        region.numbers[v] = _find_number(v, region)
    return region.numbers[v]


def _find_number(v: Value, region: Region) -> float | None:
    """`_number` where it is asked for the first time: chains of products would be walked again at each of them."""
    if v.array is not None and v.is_float and v.array.size:
        first = v.array.flat[0]
        return float(first) if (v.array == first).all() else None
    node = region.node_of(v)
    if node is None or node.domain or not v.is_float or node.op_type not in _OF_NUMBERS:
        return None
    numbers = []
    for u in node.reads:
        if u.is_float:
            if (number := _number(u, region)) is None:
                return None
            numbers.append(number)
    with np.errstate(all="ignore"):
        return float(np.asarray(_OF_NUMBERS[node.op_type](*numbers), v.dtype))


def _mask_by_hard_sigmoid(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """Cast(x > 0) as a single operator: x multiplied by 2¹²⁷ and clipped to 0 and 1.

    Numbers between 0 and the smallest normal number, 1.2e-38, count in part, and NaN is NaN and not 0. So it is for
    masks of gradients alone, of an activation that is NaN, too, and not for the masks of a model, which may look for
    numbers.
    """
    greater = region.node_of(inputs[0])
    if greater is None or greater.op_type != "Greater" or node.outputs[0].dtype != np.float32:
        return None
    x, zero = greater.reads
    if x.dtype != np.float32 or zero.array is None or zero.array.any() or zero.rank:
        return None
    return op.HardSigmoid(x, alpha=2.0**127, beta=0.0) if _masks_activation(node, region) else None


def _masks_activation(node: Node, region: Region) -> bool:
    """Whether Cast(x > 0) is a mask of the gradient of an activation."""
    greater = node.reads[0].node
    x = greater.reads[0] if greater is not None else None
    return x in region.activated or (x is not None and x.node is not None and x.node.op_type == "Relu")


def _mean_of_squares(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """ReduceMean(x²) over all axes as ReduceSumSquare(x) / n."""
    square = region.node_of(inputs[0])
    if square is None or square.op_type != "Pow" or len([v for v in inputs if v is not None]) > 1:
        return None
    x, power = square.reads
    n = _count_elements(x.shape or ()) if x.is_static else 0
    if power.array is None or power.rank or power.array != 2 or n < 1 or node.attribute("keepdims"):
        return None
    if node.attribute("noop_with_empty_axes"):
        return None
    if x.dtype not in _WIDE:  # A sum of squares soon overflows float16.
        return None
    return op.ReduceSumSquare(x, keepdims=0) / constant(np.asarray(n, x.dtype))


def _mean_of_products(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """The mean of x·row over the last axis as a product with a column."""
    old, y = node.inputs[0], node.outputs[0]
    product = region.node_of(inputs[0])
    if product is None or product.op_type != "Mul" or old is None or not region.is_read_once(old):
        return None
    axes = inputs[1].array if len(inputs) > 1 else None
    if axes is None or axes.tolist() not in ([-1], [y.rank - 1]) or not node.attribute("keepdims"):
        return None
    for x, row in (product.reads, product.reads[::-1]):
        n, shape = row.shape or (), x.shape or ()
        if len(n) == 1 < len(shape) and shape[-1:] == n and _count_elements(n) > 0 and y.dtype in _WIDE:
            column = op.Unsqueeze(row / constant(np.asarray(_count_elements(n), y.dtype)), [1])
            return op.MatMul(x, column).stated(y.shape)
    return None


def _expand_gelu(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """Gelu as x Φ(x), where its derivative needs Φ(x) as well."""
    if node not in region.differentiated_gelus:
        return None
    x = inputs[0]
    return x * (normal_cdf_tanh(x) if node.attribute("approximate") == "tanh" else normal_cdf(x))


def _is_worth_moving(run: int, elements: int, is_open: bool) -> bool:
    """Whether moving runs of elements is faster than a Transpose: with an open size, an eighth of them is enough."""
    shortest, longest = limits().moved_run
    least = limits().moved_elements // 8 if is_open else limits().moved_elements
    return shortest <= run <= longest and elements >= least


def _move_right(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """A Transpose that swaps two blocks of axes as a move to the right over two axes, the first of size 1.

    It also keeps onnxruntime from fusing the Transpose into a product, whose rows would be far apart.
    """
    x, y = inputs[0], node.outputs[0]
    # In a Reshape, 0 is a size of its input, and a single size may be open, that of a batch.
    if x.shape is None or x.dtype != np.float32 or y.shape is None or 0 in x.shape:
        return None
    if sum(not isinstance(n, int) for n in x.shape) > 1:
        return None
    blocks = _group_axes(x.shape, node.attribute("perm") or range(x.rank)[::-1])
    leading = _count_elements(blocks.pop(0)[1]) if blocks and blocks[0][0] == 0 else 1
    if len(blocks) != 3 or not blocks[1][0] < blocks[0][0] < blocks[2][0]:
        return None
    over, moved, run = (_count_elements(sizes) for _, sizes in blocks)
    if len(blocks[2][1]) > 1:  # An image: onnxruntime moves such a Transpose on, to where another Transpose undoes it.
        return None
    apart = [*([leading] if leading != 1 else []), moved, 1, over, run]
    is_open = -1 in apart
    if not _is_worth_moving(run, abs(prod(apart)), is_open):
        return None
    first = len(apart) - 4
    turned = op.Transpose(op.Reshape(x, apart), perm=[*range(first), *(first + a for a in (1, 2, 0, 3))])
    return op.Reshape(turned, [d if isinstance(d, int) else -1 for d in y.shape]).stated(y.shape)


def _count_elements(sizes: Shape) -> int:
    """The product of sizes, -1 where a size is open."""
    return prod(sizes) if all(isinstance(n, int) for n in sizes) else -1  # type: ignore[arg-type]


def _group_axes(shape: Shape, perm: Sequence[int]) -> list[tuple[int, list[int | str | None]]]:
    """Blocks of axes that a permutation keeps together, in their new order: the old place of each, and its sizes.

    Axes of size 1 do not count.
    """
    blocks: list[tuple[int, list[int | str | None]]] = []
    places = {a: i for i, a in enumerate(a for a, n in enumerate(shape) if n != 1)}
    for a in perm:
        if a not in places:
            continue
        if blocks and blocks[-1][0] + len(blocks[-1][1]) == places[a]:
            blocks[-1][1].append(shape[a])
        else:
            blocks.append((places[a], [shape[a]]))
    return blocks


def _exp_to_softmax(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """exp(x - log Σexp(x)) along the last axis as Softmax(x)."""
    difference = region.node_of(inputs[0])
    if difference is None or difference.op_type != "Sub":
        return None
    x, total = difference.reads
    reduction = region.node_of(total)
    if reduction is None or reduction.op_type != "ReduceLogSumExp" or reduction.inputs[0] is not x:
        return None
    axes = reduction.inputs[1] if len(reduction.inputs) > 1 else None
    if axes is None or axes.array is None or axes.array.tolist() not in ([-1], [x.rank - 1]):
        return None
    return op.Softmax(x, axis=-1) if reduction.attribute("keepdims") else None


def _scatter_in_place(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """x·v and -x scattered over zeros, a number a row, as x times v with -1 scattered over it.

    It is the gradient of a cross-entropy by logits, with v their softmax: of the size of the logits, it has a single
    array, since onnxruntime scatters in place. An infinite x gives infinity, where the sum gave NaN.
    """
    for (scattered, product), old in zip((inputs, inputs[::-1]), node.inputs, strict=True):
        scatter, multiply = region.node_of(scattered), region.node_of(product)
        if scatter is None or scatter.op_type != "ScatterElements" or old is None or not region.is_read_once(old):
            continue
        zeros, places, negative = scatter.reads
        axis, negation = scatter.attribute("axis"), region.node_of(negative)
        if negation is None or negation.op_type != "Neg" or multiply is None or multiply.op_type != "Mul":
            continue
        v, x = multiply.reads
        is_sum = scatter.attribute("reduction") in ("none", "add")
        is_one = places.shape is not None and places.shape == x.shape and places.shape[axis] == 1
        is_alike = v.shape is not None and v.shape == zeros.shape and None not in v.shape
        if x is negation.inputs[0] and is_sum and is_one and is_alike and _number(zeros, region) == 0:
            minus = op.Expand(constant(np.asarray(-1, x.dtype)), shape_of(places)).stated(places.shape)
            return op.ScatterElements(v, places, minus, axis=axis, reduction="add") * x
    return None


def _move_row_factor(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """(v·x)w as (vw)·x, and aᵀ(v·x) as (a·x)ᵀv, where v is large and x a column: no v·x of its size is made.

    It is the gradient of a product by its operands, v the gradient by the logits, and x the weights of the rows.
    """
    a, b, *c = inputs
    settings = {name: node.attribute(name) for name in ("alpha", "beta", "transA", "transB")}
    if settings["transA"] and not settings["transB"] and (factors := _split_row_factor(b, region)):
        return op.Gemm(a * factors[1], factors[0], *c, **settings)
    if not settings["transA"] and not c and (factors := _split_row_factor(a, region)):
        return op.Gemm(factors[0], b, **settings) * factors[1]
    return None


def _broadcast(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """An operator on a value expanded to the shape of its other input, or before it is expanded, by a number."""
    y = node.outputs[0]
    for i, v in enumerate(inputs):
        expand, other = region.node_of(v), inputs[1 - i]
        if expand is None or expand.op_type != "Expand" or not y.is_static or v.shape != y.shape:
            continue
        is_number = other.array is not None and not other.rank
        if is_number or other.shape == y.shape:
            operands = (other, expand.reads[0]) if i else (expand.reads[0], other)
            z = make_node(node.schema, operands, node.attributes).outputs[0]
            return op.Expand(z, expand.reads[1]).stated(y.shape) if is_number else z
    return None


def _negate_last(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """Σ -x as -Σ x."""
    negation, old = region.node_of(inputs[0]), node.inputs[0]
    if negation is None or negation.op_type != "Neg" or old is None or not region.is_read_once(old):
        return None
    return -make_node(node.schema, [negation.reads[0], *inputs[1:]], node.attributes).outputs[0]


def _ends_in(node: Node, shape: Shape) -> bool:
    """Whether a node reads a value that has the last size of a shape."""
    return (node.reads[0].shape or (None,))[-1] == shape[-1]


def _split_row_factor(v: Value, region: Region) -> tuple[Value, Value] | None:
    """A large matrix as another matrix and the column by which its rows are multiplied."""
    size = _count_elements(v.shape or ())
    if not v.is_static or v.dtype not in _WIDE or size < max(1, limits().row_factor_elements):
        return None
    product = region.node_of(v)
    if product is not None and product.op_type == "Flatten" and _ends_in(product, v.shape or ()):
        product = region.node_of(product.reads[0])
    if product is None or product.op_type != "Mul" or product.domain:
        return None
    x, column = product.reads
    if x.shape != product.outputs[0].shape or column.shape != (*(x.shape or ())[:-1], 1):
        return None
    return (op.Flatten(x, axis=-1), op.Flatten(column, axis=-1)) if x.rank != 2 else (x, column)


def _cancel_scale(node: Node, inputs: Inputs, region: Region) -> Value | None:
    """(x s) / s as x: a gradient that passes through dequantization, then through quantization by the same scale.

    It is x where x s overflows or underflows, too.
    """
    product, divisor = region.node_of(inputs[0]), inputs[1]
    if product is None or product.op_type != "Mul" or divisor.array is None or not divisor.is_float:
        return None
    if not (divisor.array.all() and np.isfinite(divisor.array).all()):
        return None
    x, factor = product.inputs
    is_same = factor is not None and factor.array is not None and np.array_equal(factor.array, divisor.array)
    return x if is_same and x is not None and x.shape is not None and x.shape == node.outputs[0].shape else None


#: Activations whose gradients have a mask of their input; the gradient of Relu masks by its output.
_MASKED = frozenset({"Celu", "Elu", "LeakyRelu", "PRelu", "Relu", "Selu"})
_OF_NUMBERS: dict[str, Callable[..., float]] = {
    "Div": lambda a, b: a / b if b else nan, "Expand": float, "Mul": lambda a, b: a * b, "Neg": lambda a: -a,
    "Reshape": float, "Squeeze": float, "Unsqueeze": float}
#: The patterns of each operator; the first that matches is applied.
_PATTERNS: dict[str, list[Pattern]] = {
    "Add": [_scatter_in_place, _factor_out, _fuse_bias, _broadcast], "Cast": [_mask_by_hard_sigmoid],
    "Conv": [_conv_to_gemm], "Div": [_cancel_scale, _broadcast], "Exp": [_exp_to_softmax], "Gelu": [_expand_gelu],
    "Gemm": [_move_row_factor, _fold_factor, _gemm_by_column], "MatMul": [_fold_factor], "Mul": [_broadcast],
    "ReduceMean": [_mean_of_squares, _mean_of_products], "ReduceSum": [_negate_last],
    "Sub": [_factor_out, _broadcast], "Transpose": [_move_right]}
