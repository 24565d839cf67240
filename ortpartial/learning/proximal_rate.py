"""Proximal steps: the update of a weight by its optimizer, then the proximal operator of the elastic net."""

from __future__ import annotations

from collections.abc import Sequence

from ortpartial.annotations import DTypeLike
from ortpartial.graph import Value, op

from .base_rate import BaseLearningRate

__all__ = ["ProximalRate"]


class ProximalRate(BaseLearningRate):
    """w = sign(y) max(|y| - η l₁, 0) / (1 + η l₂), where y is the weight after a step of an optimizer.

    Parameters
    ----------
    rate : BaseLearningRate
        The optimizer of one weight, which has the states and the step size η.
    l1, l2 : float
        l₁ and l₂, at least 0.

    References
    ----------
    N. Parikh and S. Boyd, Proximal Algorithms, 2014, section 6.5.2.

    Examples
    --------
    >>> from ortpartial.learning import LearningRateSGD
    >>> [node.op_type for node in ProximalRate(LearningRateSGD(), 0.1, 0.0).build_onnx_function(shape=[3]).graph.node]
    ['Mul', 'Sub', 'Mul', 'Min', 'Neg', 'Max', 'Sub']
    """

    def __init__(self, rate: BaseLearningRate, l1: float, l2: float):
        settings = {"rate": rate, "l1": l1, "l2": l2, "elementwise": getattr(rate, "elementwise", False),
                    "state": getattr(rate, "state", ())}
        for name, value in settings.items():
            object.__setattr__(self, name, value)

    rate: BaseLearningRate
    l1: float
    l2: float

    def update(self, w: Value, g: Value, *state: Value, k: Value) -> tuple[Value, tuple[Value, ...]]:
        return self.rate.update(w, g, *state, k=k)

    def apply(
        self, w: Value, g: Value, k: Value, *state: Value, start: int = 0, factor: Value | float = 1.0
    ) -> tuple[Value, ...]:
        y, *state_after = self.rate.apply(w, g, k, *state, start=start, factor=factor)
        eta = self.step_size(k, w.dtype, factor)
        if self.l1:  # y minus its part within the threshold, so that NaN and infinity stay what they are.
            threshold = eta * self.l1
            y = y - op.Max(op.Min(y, threshold), -threshold)
        return (y / (1 + eta * self.l2) if self.l2 else y), *state_after

    def step_size(self, k: Value, dtype: DTypeLike, factor: Value | float = 1.0) -> Value:
        return self.rate.step_size(k, dtype, factor)

    def state_shapes(self, shape: Sequence[int | str | None]) -> dict[str, tuple[int | str | None, ...]]:
        return self.rate.state_shapes(shape)
