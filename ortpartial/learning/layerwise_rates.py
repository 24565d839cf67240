"""Optimizers whose step is in proportion to the size of the weight: LAMB and Adafactor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from ortpartial.docstrings import document
from ortpartial.graph import Value, cast, op

from .adaptive_rates import LearningRateAdam
from .base import check_number
from .base_rate import WeightDecay
from .update import apply_step, count_from

__all__ = ["LearningRateAdafactor", "LearningRateLAMB"]


@document(LearningRateAdam, WeightDecay)
@dataclass(frozen=True)
class LearningRateLAMB(WeightDecay, LearningRateAdam):
    """step = ‖w‖/‖u‖ u with u = m̂ / (√v̂ + ε) + λw, or u where a norm is 0; m̂ and v̂ are as in Adam.

    The norms are taken over a whole weight. A weight that does not decay, where λ is 0 or by `no_decay`, takes the step
    u of Adam, unless `always_adapt`. The paper also clips the gradient, which is a setting of its own. Denormal numbers
    of m and v become 0: see `BaseLearningRate`.

    Parameters
    ----------
    weight_decay : float
        λ, at least 0: decoupled weight decay, which is part of u.
    always_adapt : bool
        Whether weights that do not decay are adapted as well.

    References
    ----------
    Y. You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, 2020, algorithm 2, in the
    form of ``apex.optimizers.FusedLAMB`` and of timm's ``Lamb``.

    Examples
    --------
    >>> LearningRateLAMB(weight_decay=0.1, no_decay=["vectors"]).state
    ('m', 'v')
    """

    eta0: float = 1e-3
    _: KW_ONLY
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    always_adapt: bool = False

    def _add_decay(self, step: Value, w: Value) -> Value:
        u = super()._add_decay(step, w)
        if not (self.weight_decay or self.always_adapt):
            return u
        a, b = (op.Sqrt(op.ReduceSum(x * x, keepdims=0)) for x in (w, u))
        return op.Where(op.Min(a, b) > 0, a / b, 1.0) * u


@document(WeightDecay)
@dataclass(frozen=True)
class LearningRateAdafactor(WeightDecay):
    """w ← w - min(η, 1/√k) max(ε₂, rms w) u / max(1, rms(u)/d) - ηλw with u = g / √max(v, ε₁²).

    Of a matrix, v = r c / mean(r) with r the moving average of the mean of g² over each row, and c over each column;
    kernels are factored along their last two axes. Of a vector, v is the moving average of g². The last gradient has a
    share of k⁻ᵖ in an average. So the state of a matrix of shape (m, n) takes m + n numbers, and that of Adam 2mn.

    Parameters
    ----------
    decay_power : float
        p, at least 0.
    epsilon : float, optional
        ε₁, more than 0; by default the distance from 1 to the next number of the dtype.
    least_scale : float
        ε₂, the least size of a weight, more than 0.
    threshold : float
        d, the root mean square of u from which on it is clipped, more than 0.

    References
    ----------
    N. Shazeer and M. Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, 2018, in the form of
    ``torch.optim.Adafactor``, where `decay_power` is `-beta2_decay`.

    Examples
    --------
    >>> rate = LearningRateAdafactor()
    >>> rate.state_shapes([512, 256]), rate.state_shapes([256])
    ({'r': (512, 1), 'c': (1, 256)}, {'v': (256,)})
    """

    _: KW_ONLY
    decay_power: float = 0.8
    epsilon: float | None = None
    least_scale: float = 1e-3
    threshold: float = 1.0
    state: ClassVar[tuple[str, ...]] = ("r", "c")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "decay_power", low=0)
        check_number(self, "least_scale", "threshold", *(["epsilon"] if self.epsilon is not None else []), above=0)

    def state_shapes(self, shape: Sequence[int | str | None]) -> dict[str, tuple[int | str | None, ...]]:
        if len(shape) < 2:
            return {"v": tuple(shape)}
        *outer, rows, columns = shape
        return {"r": (*outer, rows, 1), "c": (*outer, 1, columns)}

    def update(self, w: Value, g: Value, *state: Value, k: Value) -> tuple[Value, tuple[Value, ...]]:
        epsilon = float(ml_dtypes.finfo(w.dtype).eps) if self.epsilon is None else self.epsilon
        share = cast(k.astype(np.float64) ** -self.decay_power, g)
        squares = [g * g] if len(state) == 1 else [op.ReduceMean(g * g, [axis]) for axis in (-1, -2)]
        state = tuple(s + share * (square - s) for s, square in zip(state, squares, strict=True))
        v = state[0]
        if len(state) > 1:
            v = state[0] / op.Max(op.ReduceMean(state[0], [-2]), epsilon) * state[1]
        u = g / op.Sqrt(op.Max(v, epsilon**2))
        scale = op.Max(_root_mean_square(w), self.least_scale)
        return scale / op.Max(_root_mean_square(u) / self.threshold, 1.0) * u, state

    def apply(
        self, w: Value, g: Value, k: Value, *state: Value, start: int = 0, factor: Value | float = 1.0
    ) -> tuple[Value, ...]:
        count = count_from(start, k)
        step, new_state = self.update(w, g, *state, k=count)
        eta = self.step_size(k, w.dtype, factor)
        new = apply_step(w, op.Min(eta, cast(count.astype(np.float64) ** -0.5, eta)), step)
        return (new - eta * self.weight_decay * w if self.weight_decay else new), *new_state


def _root_mean_square(x: Value) -> Any:
    """rms x, a scalar."""
    return op.Sqrt(op.ReduceMean(x * x, keepdims=0))
