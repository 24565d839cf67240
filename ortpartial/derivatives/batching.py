"""Batching: the same expression for many values of some inputs at once, by a rule for each family of operators.

A batched value has a new first axis. Where an operator has no rule, its body in the specification is batched in its
place, and where it has none either, a Scan or a Loop takes one element of the batch after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any

import numpy as np

from ortpartial.annotations import Attributes, Inputs
from ortpartial.autodiff import expand_composition, has_rule, parse_equation
from ortpartial.exceptions import GraphError
from ortpartial.graph import Node, Value, constant, loop, make_node, op, rewrite, scan, shape_of, topological
from ortpartial.model import expand_body

__all__ = ["list_loops", "vmap"]

#: Operators that treat each element for itself, inputs being repeated to one shape.
ELEMENTWISE = frozenset({
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitwiseAnd", "BitwiseNot", "BitwiseOr",
    "BitwiseXor", "Cast", "Ceil", "Celu", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp", "Floor",
    "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu",
    "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "StopGradient",
    "StraightThrough", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor"})

#: Operators along an axis of their first input, by the attribute ``axis``.
ALONG_AXIS = frozenset({"ArgMax", "ArgMin", "Hardmax", "LogSoftmax", "LpNormalization", "Softmax", "Split", "TopK"})

#: Operators that combine the elements along some axes.
REDUCTIONS = frozenset({"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
                        "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"})

#: Operators that normalize the last axes.
NORMALIZATIONS = frozenset({"LayerNormalization", "RMSNormalization"})

#: Operators that combine or select along an axis, of inputs that all have it.
_JOINED = frozenset({"Concat", "GatherElements", "ScatterElements"})

#: Operators on images (N, C, ...), each row of which is computed for itself, whatever the other inputs are.
BY_ROW = frozenset({"AveragePool", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalMaxPool",
                     "GroupNormalization", "InstanceNormalization", "LRN", "LpPool", "MaxPool", "SpaceToDepth"})

Rule = Callable[["_Batch", Node, Inputs], "Sequence[Value] | None"]
RULES: dict[str, Rule] = {}


def _rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of operators; it returns None for a node that it does not batch."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_types, rule))
        return rule

    return register


def vmap(outputs: Sequence[Value], batched: Mapping[Value, Value]) -> list[Value]:
    """Expressions for a batch of values, each of which has a new first axis.

    Parameters
    ----------
    outputs : sequence of Value
        The expressions.
    batched : dict of Value to Value
        By value that an output depends on, the batch in its place: of its shape, after a first axis that is the same
        for all.

    Returns
    -------
    list of Value
        A batch per output.

    Raises
    ------
    GraphError
        A size depends on the elements of a batch, so that the rows of a result have different sizes.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x, xs = variable("x", "float32", [3]), variable("xs", "float32", ["B", 3])
    >>> vmap([op.Softmax(x)], {x: xs})
    [<Value Softmax float32[Bx3]>]
    """
    batch = _Batch(dict(batched), next(iter(batched.values())), [], {})
    batch.run(outputs)
    return [batch.whole(y) for y in outputs]


def list_loops(outputs: Sequence[Value], batched: Mapping[Value, Value]) -> list[Node]:
    """The nodes that `vmap` repeats by a Scan or a Loop, as they have no rule.

    Parameters
    ----------
    outputs, batched : object
        As for `vmap`.

    Returns
    -------
    list of Node

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x, xs = variable("x", "float32", [3]), variable("xs", "float32", ["B", 3])
    >>> list_loops([op.Softmax(x)], {x: xs})
    []
    """
    batch = _Batch(dict(batched), next(iter(batched.values())), [], {})
    batch.run(outputs)
    return batch.loops


@dataclass
class _Batch:
    """A walk over expressions.

    It has the batches of values so far, a batch that tells the size, the nodes without a rule, and replacements of
    values that all elements have in common, such as sizes.
    """

    values: dict[Value, Value]
    first: Value
    loops: list[Node]
    common: dict[Value, Value]

    @property
    def size(self) -> Value:
        """The size of the batch, of shape (1,)."""
        n = self.first.shape[0] if self.first.shape else None
        return constant([n]) if isinstance(n, int) else op.Shape(self.first, end=1)

    def run(self, outputs: Sequence[Value], cut: Sequence[Value] = ()) -> None:
        """Batch all nodes that depend on a batch."""
        for node in topological(outputs, {*self.values, *cut}):
            if any(x in self.values for x in node.reads):
                self._visit(node)
            elif any(x in self.common for x in node.reads):
                changed = rewrite(node.outputs, self.common, cut=node.reads)
                self.common.update(zip(node.outputs, changed, strict=True))

    def _visit(self, node: Node) -> None:
        if node.op_type == "Shape" and not node.domain:
            self.common[node.outputs[0]] = self._read_sizes(node)
            return
        rule = None if node.domain else RULES.get(node.op_type)
        outputs = rule(self, node, node.inputs) if rule else None
        if outputs is None and not node.bodies:
            outputs = self._through_body(node)
        if outputs is None:
            outputs = self._repeat(node)
        for y, new in zip(node.outputs, outputs, strict=False):
            shape = None if y.shape is None else (self.first.shape[0] if self.first.shape else None, *y.shape)
            self.values[y] = new.stated(shape)

    def _read_sizes(self, node: Node) -> Value:
        """The sizes of a value, or some of them, from its batch."""
        start, end = node.attribute("start"), node.attribute("end")
        (x,) = node.reads
        return op.Shape(self.get(x), start=start + (start >= 0), end=end and end + (end > 0))

    def is_batched(self, x: Value | None) -> bool:
        """Whether a value has a batch."""
        return x is not None and x in self.values

    def lift(self, x: Value, rank: int) -> Value:
        """The batch of a value, with axes of size 1 before its own so that it has a rank; an unbatched value itself."""
        if x not in self.values:
            return self.common.get(x, x)
        missing = rank - x.rank
        return op.Unsqueeze(self.values[x], list(range(1, 1 + missing))) if missing > 0 else self.values[x]

    def whole(self, x: Value) -> Value:
        """The batch of a value; an unbatched value is repeated."""
        if x in self.values:
            return self.values[x]
        x = self.common.get(x, x)
        return op.Expand(op.Unsqueeze(x, [0]), op.Concat(self.size, shape_of(x), axis=0))

    def get(self, x: Value) -> Value:
        """The batch of a value, or the value; None for an input that is left out."""
        return self.values.get(x, self.common.get(x, x))

    def apply(self, node: Node, inputs: Sequence[Value | None], **changed: Any) -> Sequence[Value]:
        """The operator of a node on other inputs, with some attributes changed."""
        attributes: Attributes = {**node.attributes, **changed}
        inputs = [x if x is None else self.common.get(x, x) for x in inputs]
        return make_node(node.schema, inputs, attributes, n_outputs=len(node.outputs)).outputs

    def others_are_shared(self, node: Node, first: int = 1) -> bool:
        """Whether all inputs but the first are the same for all elements of the batch."""
        return not any(self.is_batched(x) for x in node.inputs[first:])

    def _through_body(self, node: Node) -> Sequence[Value] | None:
        """The outputs by the other operators that a node stands for."""
        inside = expand_composition(node, node.inputs)
        if inside is None and not has_rule(node.op_type, node.domain):
            inside = expand_body(node)
        if inside is None or any(v.node is node for v in inside):
            return None
        self.run(inside, [x for x in node.reads if x not in self.values])
        return [self.whole(v) for v in inside]

    def _repeat(self, node: Node) -> Sequence[Value]:
        """The outputs by a Scan or a Loop over the batch."""
        if node.op_type in ("Compress", "NonZero", "Unique", "NonMaxSuppression") and not node.domain:
            raise GraphError(f"{node!r} has as many elements as its input decides, and the rows of a batch would have "
                             f"different sizes.")
        self.loops.append(node)
        read = [x for x in node.reads if x in self.values]
        results = [y for y in node.outputs if y.type.tensor_type.elem_type]

        def body(*slices: Value) -> list[Value]:
            return rewrite(results, {**self.common, **dict(zip(read, slices, strict=True))}, cut=node.reads)

        def step(i: Value, going: Value) -> tuple[Value | None, ...]:
            return None, *body(*(op.Gather(self.values[x], i) for x in read))

        if any(y.shape is None for y in results):  # a Scan of onnxruntime has to know the rank
            stacked = loop(step, op.Squeeze(self.size))
        else:
            stacked = scan(body, (), [self.values[x] for x in read])
        return list(stacked) if isinstance(stacked, tuple) else [stacked]


@_rule(*ELEMENTWISE)
def _elementwise(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    rank = node.outputs[0].rank
    return b.apply(node, [None if x is None else b.lift(x, rank) for x in inputs])


@_rule("CastLike")
def _cast(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    return b.apply(node, [b.whole(inputs[0]), b.get(inputs[1])])


@_rule(*ALONG_AXIS)
def _along_axis(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    x = inputs[0]
    if x is None or x.rank == 0 or not b.others_are_shared(node):
        return None
    return b.apply(node, [b.get(v) for v in inputs], axis=node.attribute("axis") % x.rank + 1)


@_rule(*_JOINED)
def _joined(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    return b.apply(node, [b.whole(x) for x in inputs], axis=node.attribute("axis") % inputs[0].rank + 1)


@_rule(*REDUCTIONS)
def _reduce(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    x, axes = inputs[0], inputs[1] if len(inputs) > 1 else None
    if x is None or x.rank == 0 or (axes is not None and axes.array is None):
        return None
    chosen = [] if axes is None or axes.array is None else [int(a) % x.rank for a in axes.array]
    if not chosen:
        if node.attribute("noop_with_empty_axes"):
            return None
        chosen = list(range(x.rank))
    return b.apply(node, [b.get(x), constant([a + 1 for a in chosen])])


@_rule("Squeeze", "Unsqueeze")
def _squeeze(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    x, axes = inputs[0], inputs[1] if len(inputs) > 1 else None
    if axes is None or axes.array is None:
        return None
    rank = (x if node.op_type == "Squeeze" else node.outputs[0]).rank
    return b.apply(node, [b.get(x), constant([int(a) % rank + 1 for a in axes.array])])


@_rule("Slice")
def _slice(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    x, start, end, axes, steps = (*inputs, None, None)[:5]
    if not b.others_are_shared(node) or (axes is not None and axes.array is None):
        return None
    if axes is None and (start.shape is None or not isinstance(start.shape[0], int)):
        return None
    chosen = range(start.shape[0]) if axes is None else [int(a) % x.rank for a in axes.array]
    return b.apply(node, [b.get(x), start, end, constant([a + 1 for a in chosen]), steps])


@_rule("Pad")
def _pad(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    x, pads, filling, axes = (*inputs, None, None)[:4]
    if not b.others_are_shared(node) or (axes is not None and axes.array is None):
        return None
    chosen = range(x.rank) if axes is None else [int(a) % x.rank for a in axes.array]
    return b.apply(node, [b.get(x), pads, filling, constant([a + 1 for a in chosen])])


@_rule("Transpose")
def _transpose(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    x = inputs[0]
    perm = node.attribute("perm") or list(range(x.rank))[::-1]
    return b.apply(node, [b.get(x)], perm=[0, *(p + 1 for p in perm)])


@_rule("Reshape")
def _reshape(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    x, shape = inputs
    if not b.is_batched(x) or b.is_batched(shape):
        return None
    first, shape = b.size if node.attribute("allowzero") else constant([0]), b.get(shape)
    sizes = [v.array for v in (first, shape) if v.array is not None]
    whole = constant(np.concatenate(sizes)) if len(sizes) == 2 else op.Concat(first, shape, axis=0)
    return b.apply(node, [b.get(x), whole])


@_rule("Flatten")
def _flatten(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    x, y = inputs[0], node.outputs[0]
    if y.is_static:
        return [op.Reshape(b.get(x), op.Concat(b.size, shape_of(y), axis=0), allowzero=1)]
    axis = 1 + node.attribute("axis") % (x.rank + 1)
    sizes = [op.ReduceProd(op.Shape(b.get(x), start=i, end=j), keepdims=1) for i, j in ((1, axis), (axis, None))]
    return [op.Reshape(b.get(x), op.Concat(b.size, *sizes, axis=0), allowzero=1)]


@_rule("Expand")
def _expand(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    x, shape = inputs
    if b.is_batched(shape) or shape.shape is None or not isinstance(shape.shape[0], int):
        return None
    rank = node.outputs[0].rank
    ones, shape = constant([1] * (rank + 1 - shape.shape[0])), b.common.get(shape, shape)
    return [op.Expand(b.lift(x, rank), op.Concat(ones, shape, axis=0))]


@_rule("Tile")
def _tile(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    x, repeats = inputs
    return None if b.is_batched(repeats) else [op.Tile(b.get(x), op.Concat(constant([1]), b.get(repeats), axis=0))]


@_rule("Trilu")
def _keep(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    return b.apply(node, [b.get(x) for x in inputs]) if b.others_are_shared(node) else None


@_rule("CumSum", "CumProd")
def _accumulate(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    x, axis = inputs
    if axis.array is None:
        return None
    return b.apply(node, [b.get(x), constant(np.asarray(int(axis.array.item()) % x.rank + 1, axis.dtype))])


@_rule("Gather")
def _gather(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    x, at = inputs
    axis = node.attribute("axis") % x.rank
    if not b.is_batched(at):
        return b.apply(node, [b.get(x), at], axis=axis + 1)
    if not b.is_batched(x):
        (y,) = b.apply(node, [x, b.get(at)])
        return [op.Transpose(y, perm=[axis, *(i for i in range(y.rank) if i != axis)])]
    return [op.GatherND(b.get(x), op.Unsqueeze(b.get(at), [-1]), batch_dims=1)] if axis == 0 else None


@_rule("GatherND")
def _gather_nd(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    return b.apply(node, [b.whole(x) for x in inputs], batch_dims=node.attribute("batch_dims") + 1)


@_rule("MatMul")
def _multiply(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    x, y = inputs
    ranks = x.rank, y.rank
    rank = max(*ranks, 2)
    left, right = b.get(x), b.get(y)
    left = op.Unsqueeze(left, [-2]) if ranks[0] == 1 else left
    right = op.Unsqueeze(right, [-1]) if ranks[1] == 1 else right
    for_rank = [(v, r) for v, r in ((left, max(ranks[0], 2)), (right, max(ranks[1], 2)))]
    left, right = (op.Unsqueeze(v, list(range(1, 1 + rank - r))) if rank > r and b.is_batched(source) else v
                   for (v, r), source in zip(for_rank, (x, y), strict=True))
    z = op.MatMul(left, right)
    dropped = [axis for axis, r in ((-2, ranks[0]), (-1, ranks[1])) if r == 1]
    return [op.Squeeze(z, dropped) if dropped else z]


@_rule("Gemm")
def _multiply_and_add(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    x, y, c = (*inputs, None)[:3]
    turned = [_swap_last(b.get(v)) if node.attribute(name) else b.get(v) for v, name in ((x, "transA"), (y, "transB"))]
    z, (alpha, beta) = op.MatMul(*turned), (node.attribute("alpha"), node.attribute("beta"))
    z = z if alpha == 1 else alpha * z
    if c is None or beta == 0:
        return [z]
    addend = b.lift(c, 2)
    return [z + (addend if beta == 1 else beta * addend)]


def _swap_last(x: Value) -> Value:
    return op.Transpose(x, perm=[*range(x.rank - 2), x.rank - 1, x.rank - 2])


@_rule(*BY_ROW)
def _by_row(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    """Rows of all elements of the batch one behind the other."""
    x = inputs[0]
    if not b.others_are_shared(node):
        return None
    whole, sizes = b.get(x), x.shape[1:]
    rest = constant(list(sizes)) if all(isinstance(n, int) for n in sizes) else op.Shape(whole, start=2)
    flat = op.Reshape(whole, op.Concat(constant([-1]), rest, axis=0)).stated([None, *sizes])
    outputs = b.apply(node, [flat, *inputs[1:]])
    rows = op.Shape(whole, end=2)
    return [op.Reshape(y, op.Concat(rows, op.Shape(y, start=1), axis=0), allowzero=1) for y in outputs]


@_rule(*NORMALIZATIONS)
def _normalize(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    """A scale that is batched is multiplied in afterwards."""
    x, scale, bias = (*inputs, None)[:3]
    axis = node.attribute("axis") % x.rank - x.rank
    if b.others_are_shared(node):
        return b.apply(node, [b.get(v) for v in inputs], axis=axis)
    ones = op.Expand(constant(np.ones((), scale.dtype)), op.Shape(b.whole(x), start=axis))
    y, *rest = b.apply(node, [b.whole(x), ones], axis=axis)
    y = y * b.lift(scale, x.rank)
    return [y if bias is None else y + b.lift(bias, x.rank), *rest]


@_rule("Einsum")
def _einsum(b: _Batch, node: Node, inputs: Inputs) -> Sequence[Value] | None:
    terms, result = parse_equation(node.attribute("equation"), [x.rank for x in inputs])
    letter = next(a for a in ascii_letters if a not in "".join((*terms, result)))
    named = [letter * b.is_batched(x) + t for x, t in zip(inputs, terms, strict=True)]
    return [op.Einsum(*(b.get(x) for x in inputs), equation=f"{','.join(named)}->{letter}{result}")]
