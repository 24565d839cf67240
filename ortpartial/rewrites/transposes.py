"""Transpose elimination: move axes later, or not at all where a second Transpose moves them back."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from operator import mul
from typing import Any

from ortpartial.annotations import Inputs
from ortpartial.graph import Node, Value, make_node, make_rewriter, op, topological

from .protocol import attempt, discard_cases, numbered

__all__ = ["cancel_transposes"]

Axes = tuple[int, ...]


@numbered("transpose", "reshape", "split", "unary", "binary", "rowwise")
def cancel_transposes(outputs: Mapping[str, Value]) -> Mapping[str, Value]:
    """The same values with fewer Transposes, or the same outputs where there are none to save.

    A Transpose is not computed but recorded as a view of its input, and operators that work for any order of the axes,
    such as a linear layer on its rows, are applied to the input instead. The view is computed where an operator needs
    it. Transposes that cancel vanish, and two in a row are merged; torch's MultiheadAttention has both.

    1. `transpose`: Transpose becomes a view.
    2. `reshape`: Flatten, Reshape, Squeeze or Unsqueeze of a view becomes a view in another shape.
    3. `split`: Split of a view becomes a Split of its base.
    4. `unary`: An operator on each element of a view is applied to its base.
    5. `binary`: An operator on two equal views, or on a view and a row, is applied to their bases.
    6. `rowwise`: An operator on each row of a view, such as a linear layer, is applied to the rows of its base.

    Parameters
    ----------
    outputs : dict of str to Value
        The expressions.

    Returns
    -------
    dict of str to Value

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x, w = variable("x", "float32", [2, 3, 4]), variable("w", "float32", [4, 5])
    >>> turned = op.Transpose(op.Transpose(x, perm=[1, 0, 2]) @ w, perm=[1, 0, 2])
    >>> [node.op_type for node in topological(list(cancel_transposes({"y": turned}).values()))]
    ['MatMul']
    """
    views: dict[Value, View] = {}

    def change(node: Node, inputs: Inputs) -> list[Value] | None:
        rule = None if node.domain else _RULES.get(node.op_type)
        if rule is None or not all(v.is_static and 0 not in (v.shape or ()) for v in [*node.reads, *node.outputs]):
            return None
        if node.op_type != "Transpose" and not any(v in views for v in inputs):
            return None
        results = attempt([rule], node, inputs, [None if v is None else views.get(v) or View.of(v) for v in inputs])
        if results is None:
            return None
        values = [view.value() for view in results]
        views.update((v, view) for v, view in zip(values, results, strict=True) if v is not view.base)
        return values

    new = make_rewriter(list(outputs.values()), {}, change)
    rewritten = {name: new(v) for name, v in outputs.items()}
    if _count_transposes(rewritten.values()) < _count_transposes(outputs.values()):
        return rewritten
    discard_cases()
    return outputs


def _count_transposes(outputs: Iterable[Value]) -> int:
    return sum(node.op_type == "Transpose" for node in topological(list(outputs)))


@dataclass(frozen=True, eq=False)
class View:
    """A value as the Transpose and Reshape of another value, its base.

    Parameters
    ----------
    base : Value
        The value whose elements are read.
    axes : tuple of tuple of int
        For each axis of the view the axes of the base that it merges; each axis of the base is in exactly one.
    """

    base: Value
    axes: tuple[Axes, ...]

    @classmethod
    def of(cls, v: Value) -> View:
        """The view of a value that is its own base."""
        return cls(v, tuple((a,) for a in range(v.rank)))

    @property
    def sizes(self) -> list[int]:
        """The sizes of the axes of the base."""
        return [int(n) for n in self.base.shape or ()]  # type: ignore[arg-type]

    @property
    def shape(self) -> list[int]:
        """The shape of the view."""
        return [prod(self.sizes[a] for a in merged) for merged in self.axes]

    def value(self) -> Value:
        """The value that the view stands for, transposed if it has to be."""
        order = [a for merged in self.axes for a in merged]
        if self._is_ordered(order):
            return _reshape_value(self.base, self.shape)
        if self._ends_swapped():  # A product takes the last two axes in any order, and runs of elements are moved fast.
            n = len(self.axes)
            swap = [*range(n - 2), n - 1, n - 2]
            return op.Transpose(self.permute(swap).value(), perm=swap)
        return _reshape_value(op.Transpose(self.base, perm=order), self.shape)

    def _is_ordered(self, axes: Sequence[int]) -> bool:
        """Whether axes of the base lie in memory in this order."""
        moved = [a for a in axes if self.sizes[a] > 1]
        return moved == sorted(moved)

    def _ends_swapped(self) -> bool:
        """Whether the last axis of the base is the last but one of the view."""
        last = max((a for a, n in enumerate(self.sizes) if n > 1), default=-1)
        return len(self.axes) > 1 and last in self.axes[-2] and self._is_ordered(self.axes[-2])

    def permute(self, perm: Sequence[int]) -> View:
        """The view with its axes in another order."""
        return View(self.base, tuple(self.axes[p] for p in perm))

    def of_base(self, base: Value) -> View:
        """The same view of another base of the same rank."""
        return View(base, self.axes)

    def order_last_axis(self) -> View:
        """The same view of a base whose last axes make the last axis of the view."""
        last = self.axes[-1] if self.axes else ()
        order = [*(a for a in range(len(self.sizes)) if a not in last), *last]
        sizes = [self.sizes[a] for a in order]
        base = _reshape_value(self.base, sizes) if self._is_ordered(order) else op.Transpose(self.base, perm=order)
        return View(base, tuple(tuple(order.index(a) for a in merged) for merged in self.axes))

    def reshape(self, shape: Sequence[int]) -> View | None:
        """The view in another shape; None where an axis of the base would be part of two axes of the view."""
        sizes = {a: self.sizes[a] for merged in self.axes for a in merged if self.sizes[a] > 1}
        # An axis ends where the product of all sizes up to it is reached, in both shapes.
        old, new = (list(accumulate(ns, mul, initial=1)) for ns in (sizes.values(), shape))
        ends = sorted({*old, *new})
        if old[-1] != new[-1] or any(b % a for a, b in pairwise(ends)):
            return None
        parts = [([*sizes][bisect_left(old, b) - 1], b // a) for a, b in pairwise(ends)]  # axis of the base, and size
        order = sorted(range(len(parts)), key=lambda i: parts[i][0])
        base = _reshape_value(self.base, [parts[i][1] for i in order])
        return View(base, tuple(tuple(order.index(i) for i, end in enumerate(ends[1:]) if first < end <= last)
                                for first, last in pairwise(new)))


def _reshape_value(v: Value, shape: Sequence[int]) -> Value:
    """A value in another shape, by a single Reshape."""
    while v.node is not None and v.node.op_type == "Reshape" and not v.node.domain and v.node.reads[0].is_static:
        v = v.node.reads[0]
    return v if list(v.shape or ()) == list(shape) else op.Reshape(v, list(shape))


Views = Sequence[Any]
#: From a node, its new inputs and the views they are to the views its outputs are, None where it needs the values.
Rule = Callable[[Node, Sequence[Any], Views], "list[View] | None"]


def _transpose(node: Node, inputs: Inputs, views: Views) -> list[View]:
    return [views[0].permute(node.attribute("perm") or range(inputs[0].rank)[::-1])]


def _reshape(node: Node, inputs: Inputs, views: Views) -> list[View] | None:
    view = views[0].reshape(node.outputs[0].shape)
    return None if view is None else [view]


def _split(node: Node, inputs: Inputs, views: Views) -> list[View] | None:
    view = views[0]
    axes = [a for a in view.axes[node.attribute("axis")] if view.sizes[a] > 1]
    if len(axes) != 1:
        return None
    return [view.of_base(y) for y in _apply(node, [view.base, *inputs[1:]], axis=axes[0])]


def _unary(node: Node, inputs: Inputs, views: Views) -> list[View]:
    return [views[0].of_base(y) for y in _apply(node, [views[0].base, *inputs[1:]])]


def _binary(node: Node, inputs: Inputs, views: Views) -> list[View] | None:
    """An operator on each element of two equal views, or of a view and a row along its last axis."""
    a, b = views
    if a.shape == b.shape:
        if a.sizes != b.sizes or a.axes != b.axes:
            return None
        return [a.of_base(_apply(node, [a.base, b.base])[0])]
    i = int(len(a.axes) < len(b.axes))
    row, (*leading, n) = inputs[1 - i], views[i].shape
    is_scalar, is_row = list(row.shape) == [1] * row.rank, list(row.shape) == [1] * (row.rank - 1) + [n]
    if is_scalar or not is_row or row.rank > len(leading) + 1:
        return None
    view = views[i].order_last_axis()
    bases = [view.base, _reshape_value(row, [view.sizes[a] for a in view.axes[-1]])]
    return [view.of_base(_apply(node, bases[::-1] if i else bases)[0])]


def _rowwise(node: Node, inputs: Inputs, views: Views) -> list[View] | None:
    """An operator on each row along the last axis, whatever the order of the rows."""
    is_gemm, last, settings = node.op_type == "Gemm", inputs[0].rank - 1, {}
    if node.op_type in ("Gemm", "MatMul"):
        if last < 1 or inputs[1].rank != 2 or (is_gemm and node.attribute("transA")):
            return None
    elif last >= 0 and node.attribute("axis") % (last + 1) == last:
        settings = {"axis": -1}
    else:
        return None
    # A bias, and the scale of a norm, have no rows of their own.
    if any(v is not None and prod(v.shape[:-1]) > 1 for v in inputs[2 if is_gemm else 1 :] if node.op_type != "MatMul"):
        return None
    view = views[0].order_last_axis()
    leading = view.sizes[: len(view.sizes) - len(view.axes[-1])]
    x = _reshape_value(view.base, [*([prod(leading)] if is_gemm else leading), inputs[0].shape[-1]])
    axes = (*view.axes[:-1], (len(leading),))
    outputs = _apply(node, [x, *inputs[1:]], **settings)
    return [View(_reshape_value(y, [*leading, y.shape[-1]]), axes) for y in outputs]


def _apply(node: Node, inputs: Inputs, **settings: object) -> Sequence[Any]:
    """The outputs of the node's operator for other inputs."""
    return make_node(node.schema, inputs, {**node.attributes, **settings}, n_outputs=len(node.outputs)).outputs


_RULES: dict[str, Rule] = {
    "Transpose": _transpose, "Split": _split,
    **dict.fromkeys(["Flatten", "Reshape", "Squeeze", "Unsqueeze"], _reshape),
    **dict.fromkeys(["Cast", "Elu", "Erf", "Gelu", "HardSwish", "LeakyRelu", "Neg", "Relu", "Selu", "Sigmoid",
                     "Softplus", "Tanh"], _unary),
    **dict.fromkeys(["Add", "Div", "Mul", "Sub"], _binary),
    **dict.fromkeys(["Gemm", "LayerNormalization", "LogSoftmax", "MatMul", "Softmax"], _rowwise)}
