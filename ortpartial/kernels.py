"""Which parts of a gradient are one operator of onnxruntime-training? `offered` has these instead of their formulas."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from .graph import Node, Value, make_node
from .rewrite import rewritten
from .rules.microsoft import DOMAIN
from .schemas import schema_of

__all__ = ["offered"]


def offered(outputs: Sequence[Value], cut: Sequence[Value] = ()) -> list[Value]:
    """The same values, with SoftmaxGrad and LayerNormalizationGrad where their formulas are found.

    onnxruntime 1.19.2 with training has them on the CPU in float32, and takes less than half of the time. Its ReluGrad
    and GeluGrad are slower than the formulas.

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
    >>> from ortpartial.graph import op, variable
    >>> y, dy = variable("y", "float32", [2, 3]), variable("dy", "float32", [2, 3])
    >>> offered([y * (dy - op.ReduceSum(y * dy, [-1]))])
    [<Value SoftmaxGrad float32[2x3]>]
    """
    formulas = _Formulas(set(cut))
    outputs = rewritten(outputs, {}, formulas.of_input, cut)
    return rewritten(outputs, {}, formulas.of_scale, cut) if formulas.norms else outputs


class _Formulas:
    """What is recognised in expressions that start at some values.

    `norms` has the outputs of every LayerNormalizationGrad by its dy and x̂.
    """

    def __init__(self, start: Container[Value]):
        self.start = start
        self.norms: dict[tuple[Value, Value], Sequence[Value]] = {}

    def of_input(self, node: Node, inputs: Sequence[Any]) -> list[Value] | None:
        """The gradient by the input of a Softmax or a LayerNormalization."""
        if node.op_type != "Mul" or node.domain or node.outputs[0].dtype != np.float32:
            return None
        found = [f(a, b) for f in (self._softmax, self._norm) for a, b in (inputs, inputs[::-1])]
        return next(([y.stated(node.outputs[0].shape)] for y in found if y is not None), None)

    def of_scale(self, node: Node, inputs: Sequence[Any]) -> list[Value] | None:
        """That by the scale of a LayerNormalization, Σ dy x̂, which the same operator has."""
        if node.op_type != "ReduceSum" or node.domain or node.attribute("keepdims"):
            return None
        kernel = next((self.norms[pair] for pair in self._factors(inputs[0]) if pair in self.norms), None)
        axes = inputs[1].array if len(inputs) > 1 else None
        rank = inputs[0].rank
        if kernel is None or axes is None or sorted(a % rank for a in axes.tolist()) != [*range(rank - 1)]:
            return None
        return [kernel[1].stated(node.outputs[0].shape)]

    def _softmax(self, y: Value, rest: Value) -> Value | None:
        """y (dy - Σ y dy)."""
        dy, total = self._terms(rest)
        if dy is None or (y, dy) not in self._factors(self._reduced(total, "ReduceSum")) or y.shape != dy.shape:
            return None
        return _kernel("SoftmaxGrad", [dy, y], 1)[0]

    def _norm(self, r: Value, rest: Value) -> Value | None:
        """r (g - mean(g) - x̂ mean(g x̂)), where g = dy s and x̂ = (x - m) r."""
        centred, back = self._terms(rest)
        g, mean = self._terms(centred)
        if g is None or self._reduced(mean, "ReduceMean") is not g:
            return None
        for xn, mean in self._factors(back):
            if (g, xn) not in self._factors(self._reduced(mean, "ReduceMean")):
                continue
            x, m = next((self._terms(a) for a, b in self._factors(xn) if b is r), self._terms(None))
            for dy, s in self._factors(g):
                if x is not None and s.rank == 1 and dy.shape == xn.shape and s.shape == (dy.shape or ())[-1:]:
                    self.norms[dy, xn] = _kernel("LayerNormalizationGrad", [dy, x, s, m, r], 3)
                    return self.norms[dy, xn][0]
        return None

    def _made(self, v: Value | None, op_type: str) -> Node | None:
        """The node of a value, if it is of this type."""
        node = None if v is None or v in self.start else v.node
        return node if node is not None and node.op_type == op_type and not node.domain else None

    def _terms(self, v: Value | None) -> Sequence[Any]:
        """The two terms of a difference, None where there is none."""
        node = self._made(v, "Sub")
        return (None, None) if node is None else node.reads

    def _factors(self, v: Value | None) -> Sequence[tuple[Value, Value]]:
        """The factors of a product, in both orders."""
        node = self._made(v, "Mul")
        if node is None:
            return []
        a, b = node.reads
        return [(a, b), (b, a)]

    def _reduced(self, v: Value | None, op_type: str) -> Value | None:
        """What is reduced along the last axis, which stays."""
        node = self._made(v, op_type)
        if node is None or not node.attribute("keepdims") or len(node.reads) < 2:
            return None
        x, axes = node.reads
        return x if axes.array is not None and [a % x.rank for a in axes.array.tolist()] == [x.rank - 1] else None


def _kernel(name: str, inputs: Sequence[Value], outputs: int) -> Sequence[Value]:
    """The outputs of such a node, along the last axis."""
    return make_node(schema_of(name, DOMAIN, 1), inputs, {"axis": -1}, n_outputs=outputs).outputs
