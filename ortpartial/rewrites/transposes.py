"""Transpose elimination: compute on elements where they are instead of moving their axes and moving them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ortpartial.graph import Node, Value, make_node, make_rewriter, op, topological

__all__ = ["cancel_transposes"]

Axes = tuple[int, ...]


def cancel_transposes(outputs: Mapping[str, Value]) -> Mapping[str, Value]:
    """The same values with fewer moves of axes, where there are such.

    A Transpose is not computed, but remembered: a linear layer does not mind the order of its rows, nor a bias that of
    anything but its own axis, nor does a Split. What undoes it before something does mind needs no move at all, and of
    two that follow one another one is left. torch's MultiheadAttention puts the batch behind the tokens and back so.

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
    views: dict[Value, _View] = {}

    def change(node: Node, inputs: Sequence[Any]) -> list[Value] | None:
        rule = None if node.domain else _RULES.get(node.op_type)
        if rule is None or not all(v.is_static and 0 not in (v.shape or ()) for v in [*node.reads, *node.outputs]):
            return None
        if node.op_type != "Transpose" and not any(v in views for v in inputs):
            return None
        found = rule(node, inputs, [None if v is None else views.get(v) or _View.of(v) for v in inputs])
        if found is None:
            return None
        values = [view.value() for view in found]
        views.update((v, view) for v, view in zip(values, found, strict=True) if v is not view.base)
        return values

    new = make_rewriter(list(outputs.values()), {}, change)
    found = {name: new(v) for name, v in outputs.items()}
    return found if _moves(found.values()) < _moves(outputs.values()) else outputs


def _moves(outputs: Iterable[Value]) -> int:
    """How many Transposes there are."""
    return sum(node.op_type == "Transpose" for node in topological(list(outputs)))


@dataclass(frozen=True, eq=False)
class _View:
    """A value whose axes are made of those of another one, whose elements lie in another order.

    `axes` has a run of axes of `base` for each axis of the value; each axis of the base is in one of them.
    """

    base: Value
    axes: tuple[Axes, ...]

    @classmethod
    def of(cls, v: Value) -> _View:
        """The value itself."""
        return cls(v, tuple((a,) for a in range(v.rank)))

    @property
    def sizes(self) -> list[int]:
        """The sizes of the axes of the base."""
        return [int(n) for n in self.base.shape or ()]  # type: ignore[arg-type]

    @property
    def shape(self) -> list[int]:
        """The shape of the value."""
        return [prod(self.sizes[a] for a in run) for run in self.axes]

    def value(self) -> Value:
        """The value, its elements moved if they have to be."""
        order = [a for run in self.axes for a in run]
        if self._in_order(order):
            return _reshaped(self.base, self.shape)
        if self._turns():  # A product takes the last two axes in any order, and runs of elements are moved fast.
            n = len(self.axes)
            return op.Transpose(self.permuted(_swap(n)).value(), perm=_swap(n))
        return _reshaped(op.Transpose(self.base, perm=order), self.shape)

    def _in_order(self, axes: Sequence[int]) -> bool:
        seen = [a for a in axes if self.sizes[a] > 1]
        return seen == sorted(seen)

    def _turns(self) -> bool:
        """Whether the last axis of the base is the last but one here."""
        last = max((a for a, n in enumerate(self.sizes) if n > 1), default=-1)
        return len(self.axes) > 1 and last in self.axes[-2] and self._in_order(self.axes[-2])

    def permuted(self, perm: Sequence[int]) -> _View:
        """The axes of the value in another order."""
        return _View(self.base, tuple(self.axes[p] for p in perm))

    def on(self, base: Value) -> _View:
        """The same view of another value of as many axes."""
        return _View(base, self.axes)

    def settled(self) -> _View:
        """The same value, with the last axis last in memory."""
        last = self.axes[-1] if self.axes else ()
        rest = [a for a in range(len(self.sizes)) if a not in last]
        order = [*rest, *last]
        sizes = [self.sizes[a] for a in order]
        base = _reshaped(self.base, sizes) if self._in_order(order) else op.Transpose(self.base, perm=order)
        return _View(base, tuple(tuple(order.index(a) for a in run) for run in self.axes))

    def reshaped(self, shape: Sequence[int]) -> _View | None:
        """The value in another shape; None where its axes would be cut across."""
        rest = [(a, self.sizes[a]) for run in self.axes for a in run if self.sizes[a] > 1]
        pieces: dict[int, list[int]] = {a: [] for a, _ in rest}
        runs: list[list[tuple[int, int]]] = []
        for n in shape:
            run: list[tuple[int, int]] = []
            while n > 1:
                if not rest:
                    return None
                a, size = rest.pop(0)
                taken = min(n, size)
                if n % taken or size % taken:
                    return None
                if taken < size:
                    rest.insert(0, (a, size // taken))
                run.append((a, len(pieces[a])))
                pieces[a].append(taken)
                n //= taken
            runs.append(run)
        if rest:
            return None
        first, place = 0, {}
        for a in sorted(pieces):
            place.update({(a, i): first + i for i in range(len(pieces[a]))})
            first += len(pieces[a])
        base = _reshaped(self.base, [n for a in sorted(pieces) for n in pieces[a]])
        return _View(base, tuple(tuple(place[p] for p in run) for run in runs))


def _swap(n: int) -> list[int]:
    """The last two axes exchanged."""
    return [*range(n - 2), n - 1, n - 2]


def _reshaped(v: Value, shape: Sequence[int]) -> Value:
    """A value in another shape, by one Reshape."""
    while v.node is not None and v.node.op_type == "Reshape" and not v.node.domain and v.node.reads[0].is_static:
        v = v.node.reads[0]
    return v if list(v.shape or ()) == list(shape) else op.Reshape(v, list(shape))


Views = Sequence[Any]
Rule = Callable[[Node, Sequence[Any], Views], "list[_View] | None"]


def _transpose(node: Node, inputs: Sequence[Any], views: Views) -> list[_View]:
    return [views[0].permuted(node.attribute("perm") or range(inputs[0].rank)[::-1])]


def _reshape(node: Node, inputs: Sequence[Any], views: Views) -> list[_View] | None:
    found = views[0].reshaped(node.outputs[0].shape)
    return None if found is None else [found]


def _split(node: Node, inputs: Sequence[Any], views: Views) -> list[_View] | None:
    view = views[0]
    run = [a for a in view.axes[node.attribute("axis")] if view.sizes[a] > 1]
    if len(run) != 1:
        return None
    settings, n = {**node.attributes, "axis": run[0]}, len(node.outputs)
    parts = make_node(node.schema, [view.base, *inputs[1:]], settings, n_outputs=n).outputs
    return [view.on(part) for part in parts]


def _pointwise(node: Node, inputs: Sequence[Any], views: Views) -> list[_View]:
    return [views[0].on(y) for y in _again(node, [views[0].base, *inputs[1:]])]


def _pair(node: Node, inputs: Sequence[Any], views: Views) -> list[_View] | None:
    """Of two values that lie in the same order, or of one and a row along its last axis."""
    a, b = views
    if a.shape == b.shape:
        if a.sizes != b.sizes or a.axes != b.axes:
            return None
        return [a.on(_again(node, [a.base, b.base])[0])]
    i = int(len(a.axes) < len(b.axes))
    row, (*lead, n) = inputs[1 - i], views[i].shape
    if [1] * row.rank == list(row.shape) or [1] * (row.rank - 1) + [n] != list(row.shape) or row.rank > len(lead) + 1:
        return None
    view = views[i].settled()
    bases = [view.base, _reshaped(row, [view.sizes[a] for a in view.axes[-1]])]
    return [view.on(_again(node, bases[::-1] if i else bases)[0])]


def _rows(node: Node, inputs: Sequence[Any], views: Views) -> list[_View] | None:
    """Of every row along the last axis alone: their order does not matter."""
    gemm, last, settings = node.op_type == "Gemm", inputs[0].rank - 1, {}
    if node.op_type in ("Gemm", "MatMul"):
        bias = inputs[2] if len(inputs) > 2 else None
        if last < 1 or inputs[1].rank != 2 or (gemm and node.attribute("transA")):
            return None
        if bias is not None and prod(bias.shape) > bias.shape[-1]:
            return None
    elif node.attribute("axis") % (last + 1) == last:
        settings = {"axis": -1}
    else:
        return None
    view = views[0].settled()
    lead = view.sizes[: len(view.sizes) - len(view.axes[-1])]
    x = _reshaped(view.base, [*([prod(lead)] if gemm else lead), inputs[0].shape[-1]])
    axes = (*view.axes[:-1], (len(lead),))
    return [_View(_reshaped(y, [*lead, y.shape[-1]]), axes) for y in _again(node, [x, *inputs[1:]], **settings)]


def _again(node: Node, inputs: Sequence[Any], **settings: Any) -> Sequence[Any]:
    """The outputs of such a node of other inputs."""
    return make_node(node.schema, inputs, {**node.attributes, **settings}, n_outputs=len(node.outputs)).outputs


_RULES: dict[str, Rule] = {
    "Transpose": _transpose, "Split": _split,
    **dict.fromkeys(["Flatten", "Reshape", "Squeeze", "Unsqueeze"], _reshape),
    **dict.fromkeys(["Cast", "Elu", "Erf", "Gelu", "HardSwish", "LeakyRelu", "Neg", "Relu", "Selu", "Sigmoid",
                     "Softplus", "Tanh"], _pointwise),
    **dict.fromkeys(["Add", "Div", "Mul", "Sub"], _pair),
    **dict.fromkeys(["Gemm", "LayerNormalization", "LogSoftmax", "MatMul", "Softmax"], _rows)}
