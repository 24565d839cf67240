"""Learning rate finder: the losses of a short training whose step size grows, and the step size that they suggest."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpartial.annotations import Data, Estimator
from ortpartial.checks import check_count, check_flag, check_real, to_number
from ortpartial.exceptions import ConvergenceError, ConvergenceWarning, SettingError
from ortpartial.execution import TaskContext
from ortpartial.learning import replace_settings
from ortpartial.model import draw_card

from .base import EpochCallback, FitRun

if TYPE_CHECKING:
    from ..optimizer import OrtGradientForwardBackwardOptimizer

__all__ = ["LearningRateFinder", "LearningRateSweep", "find_learning_rate"]

#: The share of the first steps, and the number of the last ones, that suggestions do not look at.
_WARM_UP, _END = 0.1, 5


@dataclass(frozen=True, eq=False, repr=False)
class LearningRateSweep:
    """The losses of steps whose step size grows.

    `plots.plot_learning_rate_finder` draws them.

    Attributes
    ----------
    rates, losses : numpy.ndarray of shape (steps,)
        The step size of each step, and the smoothed loss before it.
    raw_losses : numpy.ndarray of shape (steps,)
        The loss of each batch.

    Examples
    --------
    >>> import numpy as np
    >>> losses = np.array([9.0, 9.0, 8.9, 8.0, 5.0, 1.9, 1.5, 3.0, 9.0, 30.0, 90.0, 300.0])
    >>> sweep = LearningRateSweep(10.0 ** np.arange(-9, 3), losses, losses)
    >>> sweep.valley, sweep.steepest
    (1e-06, 1e-05)
    >>> sweep.suggestion == sweep.valley
    True
    """

    rates: np.ndarray
    losses: np.ndarray
    raw_losses: np.ndarray

    def __repr__(self) -> str:
        ends = f" from {self.rates[0]:.2g} to {self.rates[-1]:.2g}" if len(self.rates) else ""
        found = "none" if self.suggestion is None else f"{self.suggestion:.3g}"
        return f"<LearningRateSweep of {len(self.rates)} steps{ends}, suggestion: {found}>"

    def _repr_html_(self) -> str:
        from ortpartial.plots import draw_curve  # late: few programs draw

        found = "none" if self.suggestion is None else f"{self.suggestion:.3g}"
        rows = {"steps": str(len(self.rates)), "suggestion": found}
        if len(self.rates):
            rows["rates"] = f"{self.rates[0]:.2g} to {self.rates[-1]:.2g}"
        # Losses that diverge would flatten all the others.
        shown = np.minimum(self.losses, 2 * self.losses[0]) if len(self.losses) else self.losses
        return draw_card("LearningRateSweep", rows, draw_curve(list(shown)))

    @property
    def suggestion(self) -> float | None:
        """The step size to train with: that of the `valley`."""
        return self.valley

    @property
    def valley(self) -> float | None:
        """The step size in the middle of the longest way down of the losses; None if there are too few."""
        rates, losses = self._look_at()
        if len(losses) < 2:
            return None
        lengths = np.ones(len(losses), int)  # of the longest falling subsequence that ends with each
        for i in range(1, len(losses)):
            lower = losses[:i] > losses[i]
            lengths[i] = 1 + max(lengths[:i][lower], default=0)
        end = int(lengths.argmax())
        start = end - int(lengths[end]) + 1
        return float(rates[start + (end - start) // 2])

    @property
    def steepest(self) -> float | None:
        """The step size at which the losses fall most, by its logarithm; None if there are too few losses."""
        rates, losses = self._look_at()
        if len(losses) < 2:
            return None
        return float(rates[np.argmin(np.diff(losses) / np.diff(np.log(rates)))])

    def _look_at(self) -> tuple[np.ndarray, np.ndarray]:
        """Rates and losses without the first steps, in which the mean is young, and the last, which diverge."""
        start = int(_WARM_UP * len(self.rates))
        return self.rates[start:-_END], self.losses[start:-_END]


def find_learning_rate(
    optimizer: OrtGradientForwardBackwardOptimizer, X: Data, y: Data = None, sample_weight: Data = None, *,
    min_rate: float = 1e-7, max_rate: float = 10.0, steps: int = 100, smoothing: float = 0.98, divergence: float = 4.0,
) -> LearningRateSweep:
    """Train a copy of an optimizer for some steps, with a step size that grows exponentially.

    The optimizer itself stays as it is, to the bit.

    Parameters
    ----------
    optimizer : OrtGradientForwardBackwardOptimizer
        The optimizer; its copy goes on from its weights and states, without its schedule.
    X, y, sample_weight : object
        The data, as for `fit`.
    min_rate, max_rate : float
        The step sizes of the first and of the last step.
    steps : int
        Number of steps; the data are read again where they have fewer batches.
    smoothing : float
        β, from 0 on and less than 1, of the mean of the losses mₖ = β mₖ₋₁ + (1 - β) ℓₖ, divided by 1 - βᵏ.
    divergence : float
        How many times the least loss ends the sweep.

    Returns
    -------
    LearningRateSweep

    Raises
    ------
    SettingError
        A setting is out of range.
    DataError
        The data do not fit the model.

    References
    ----------
    .. [1] L. N. Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017.
    .. [2] fastai, `Learner.lr_find`.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 4]), constant(np.zeros((4, 1), np.float32), hint="w")
    >>> X = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    >>> sweep = find_learning_rate(Optimizer(build([x], {"y": x @ w})), X, X.sum(1, keepdims=True))
    >>> 1e-3 < sweep.suggestion < 1
    True
    """
    return _sweep(optimizer, partial(_repeat_batches, X=X, y=y, sample_weight=sample_weight), min_rate, max_rate, steps,
                  smoothing, divergence)


def _sweep(optimizer: Estimator, repeat: Callable[[Any], Iterator[Data]], min_rate: float,
           max_rate: float, steps: int, smoothing: float = 0.98, divergence: float = 4.0) -> LearningRateSweep:
    """Take steps on the batches that a function of the copy of an optimizer repeats."""
    if isinstance(optimizer, type) or not hasattr(optimizer, "scale_learning_rate"):
        raise SettingError(f"optimizer is an OrtGradientForwardBackwardOptimizer, not {optimizer!r}.")
    _check_sweep(min_rate, max_rate, steps)
    if to_number(smoothing, low=0, below=1) is None:
        raise SettingError(f"smoothing is from 0 on and less than 1, not {smoothing!r}.")
    if not isinstance(divergence, float) or divergence != np.inf:
        check_real("divergence", divergence, above=0)
    trial: Estimator = copy.copy(optimizer)
    trial.set_params(callbacks=(), verbose=0, raise_on_divergence=True,
                     learning_rate=replace_settings(trial.learning_rate, eta0=min_rate, schedule="constant"))
    rates, losses, smoothed, mean = np.geomspace(min_rate, max_rate, steps), list[float](), list[float](), 0.0
    for rate, batch in zip(rates, islice(repeat(trial), steps), strict=False):
        trial.scale_learning_rate(rate / min_rate)
        try:
            losses.append(trial.partial_fit([batch]).train_losses_[-1])
        except ConvergenceError:
            break
        mean = smoothing * mean + (1 - smoothing) * losses[-1]
        smoothed.append(mean / (1 - smoothing ** len(losses)))
        if smoothed[-1] > divergence * min(smoothed) > 0:
            break
    return LearningRateSweep(rates[: len(losses)], np.array(smoothed), np.array(losses))


def _check_sweep(min_rate: float, max_rate: float, steps: int) -> None:
    """Refuse step sizes and a number of steps that make no sweep; a whole number was meant as that of the steps."""
    if isinstance(min_rate, int) and min_rate >= 1:
        raise SettingError(f"min_rate is the first step size, such as 1e-7, not {min_rate!r}; the number of steps is "
                           f"named, as in steps={max(min_rate, 10)}.")
    low, high = to_number(min_rate, above=0), to_number(max_rate, above=0)
    if low is None or high is None or low >= high:
        raise SettingError(f"min_rate and max_rate are numbers above 0, the first one less, not {min_rate!r} and "
                           f"{max_rate!r}.")
    check_count("steps", steps, 10, 10**6)


def _repeat_batches(optimizer: OrtGradientForwardBackwardOptimizer, X: Data, y: Data, sample_weight: Data
                    ) -> Iterator[Sequence[Data]]:
    """The batches of the data, again and again."""
    X, y, sample_weight = optimizer.training.predictor.reader.unpack(X, y, sample_weight)
    if y is not None:
        yield from _repeat_rows(optimizer, optimizer.training.loop.to_arrays(X, y, sample_weight)[0])
    while True:
        yield from X


def _repeat_rows(optimizer: OrtGradientForwardBackwardOptimizer, data: Mapping[str, np.ndarray]
                 ) -> Iterator[Sequence[Data]]:
    """The rows of arrays as a step reads them, batch by batch, again and again in another order."""
    rows, size, rng = len(next(iter(data.values()))), optimizer.batch_size, np.random.default_rng(0)
    while True:
        order = rng.permutation(rows)
        for start in range(0, max(rows - rows % size, 1), size):
            batch = {n: a[order[start : start + size]] for n, a in data.items()}
            yield [part for part in optimizer.training.data.to_batch(batch) if part is not None]


class LearningRateFinder(EpochCallback):
    """Find a step size before the first epoch, by a `find_learning_rate`, and train with it.

    The training itself begins as without it. A fit that goes on, as with `warm_start` or from a checkpoint, keeps its
    step size.

    Parameters
    ----------
    min_rate, max_rate, steps : float, float, int
        As for `find_learning_rate`.
    update : bool
        Whether to train with the step size that is suggested, as η₀ of the optimizer, whose schedule it keeps.

    Attributes
    ----------
    result_ : LearningRateSweep or None
        The last sweep.

    Warns
    -----
    ConvergenceWarning
        No step size is suggested, and the training keeps its own.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 4]), constant(np.zeros((4, 1), np.float32), hint="w")
    >>> X = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    >>> finder = LearningRateFinder()
    >>> optimizer = Optimizer(build([x], {"y": x @ w}), callbacks=[finder]).fit(X, X.sum(1, keepdims=True))
    >>> optimizer.learning_rate.eta0 == finder.result_.suggestion
    True
    """

    def __init__(self, min_rate: float = 1e-7, max_rate: float = 10.0, steps: int = 100, *, update: bool = True):
        _check_sweep(min_rate, max_rate, steps)
        self.min_rate, self.max_rate, self.steps = min_rate, max_rate, steps
        self.update = check_flag("update", update)
        self.result_: LearningRateSweep | None = None

    def _repr_html_(self) -> str:
        settings = {n: repr(getattr(self, n)) for n in ("min_rate", "max_rate", "steps", "update")}
        sweep = "" if self.result_ is None else self.result_._repr_html_()
        return draw_card("LearningRateFinder", settings) + sweep

    def _begin_fit(self, run: FitRun) -> None:
        if (view := run.view) is None or not view.trainer.can_sweep:
            raise SettingError(f"LearningRateFinder trains copies of an OrtGradientForwardBackwardOptimizer; "
                               f"{type(run.estimator).__name__} has none.")
        if view.optimizer.training.engine.is_distributed:
            raise SettingError("LearningRateFinder is called in the first process alone; with distributed=True, call "
                               "find_learning_rate in each process before fit.")

    def on_fit_task_begin(self, estimator: Estimator, context: TaskContext, *, X: Data = None, y: Data = None) -> None:
        """Find the step size, before the first epoch.

        Parameters
        ----------
        estimator, context : object
            The estimator, and the task.
        X, y : array_like
            The data of the training.
        """
        super().on_fit_task_begin(estimator, context)
        run = self._runs[id(estimator)]
        if context.parent is not run.context or (view := run.view) is None or view.iteration > 0:
            return
        optimizer = view.optimizer
        if y is None and iter(X) is X:
            raise SettingError("LearningRateFinder reads the batches before they are trained, and X gives them once.")
        repeat = partial(_repeat_batches, X=X, y=None, sample_weight=None) if y is None else partial(
            _repeat_rows, data=optimizer.training.engine.data)
        self.result_ = _sweep(optimizer, repeat, self.min_rate, self.max_rate, self.steps)
        if self.result_.suggestion is None:
            warnings.warn(f"LearningRateFinder suggests no step size, as the loss diverged after "
                          f"{len(self.result_.rates)} steps; lower min_rate.", ConvergenceWarning, stacklevel=2)
        elif self.update:
            optimizer.set_params(learning_rate__eta0=self.result_.suggestion)
