"""A monitor of gradients: their norms while a training runs, and warnings where they vanish or explode."""

from __future__ import annotations

import warnings

import numpy as np

from ortpartial.annotations import Estimator
from ortpartial.checks import check_count
from ortpartial.exceptions import ConvergenceWarning, SettingError
from ortpartial.execution import TaskContext
from ortpartial.learning import check_number

from .base import EpochCallback, FitRun

__all__ = ["GradientMonitor"]


class GradientMonitor(EpochCallback):
    """Compute the norm of the gradient of each weight, and of all together, on a batch of the training every so often.

    The gradient is that of the objective, with the penalty and before any clipping, on rows that are drawn from the
    data, or on the batch of an iterable that was trained last. It takes a forward and a backward pass. `history_` gets
    a column "gradient_norm", the mean over an epoch.

    Parameters
    ----------
    batches_between_calls : int, optional
        After how many batches of an epoch to compute it; by default after each epoch.
    vanishing, exploding : float
        Norms of all gradients together below and above which a warning is given, once in a fit.

    Attributes
    ----------
    norms_ : list of dict
        Of the last fit: "epoch", "iteration", "global" and the norm by the name of each weight.

    Raises
    ------
    SettingError
        A setting is out of range; or in a fit of an estimator that has no gradients of ours.

    Warns
    -----
    ConvergenceWarning
        The gradient vanishes or explodes.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> monitor, X = GradientMonitor(), np.ones((20, 1), np.float32)
    >>> optimizer = Optimizer(build([x], {"y": x @ w}), max_iter=2, callbacks=[monitor]).fit(X, 3 * X)
    >>> [sorted(norms) for norms in monitor.norms_]
    [['epoch', 'global', 'iteration', 'w'], ['epoch', 'global', 'iteration', 'w']]
    """

    def __init__(self, batches_between_calls: int | None = None, *, vanishing: float = 1e-7, exploding: float = 1e3):
        if batches_between_calls is not None:
            check_count("batches_between_calls", batches_between_calls)
        self.batches_between_calls, self.vanishing, self.exploding = batches_between_calls, vanishing, exploding
        check_number(self, "vanishing", "exploding", low=0)
        self.norms_: list[dict[str, float]] = []

    def _begin_fit(self, run: FitRun) -> None:
        if run.view is None:
            raise SettingError(f"GradientMonitor reads the gradients of an optimizer of ortpartial; "
                               f"{type(run.estimator).__name__} has none.")
        self.norms_ = []
        run.values.update(rng=np.random.default_rng(0), warned=False)

    def on_fit_task_end(self, estimator: Estimator, context: TaskContext) -> bool:  # type: ignore[override]
        """Compute the norms.

        Parameters
        ----------
        estimator, context : object
            The estimator, and the task.

        Returns
        -------
        bool
            False.
        """
        run = self._runs[id(estimator)]
        if context is run.context:
            return False
        is_epoch = context.parent is run.context
        if not is_epoch or self.batches_between_calls is None:
            self._measure(run, is_epoch)
        if is_epoch and (norms := run.values.pop("norms", None)) and (view := run.view) is not None:
            view.record(gradient_norm=float(np.mean(norms)))
        return False

    def _measure(self, run: FitRun, is_epoch: bool) -> None:
        """Compute the norms now, and warn."""
        assert run.view is not None
        view = run.view
        gradients = view.gradients(rng=run.values["rng"])
        norms = {n: float(np.linalg.norm(g.astype(np.float64))) for n, g in gradients.items()}
        total = float(np.linalg.norm(list(norms.values())))
        run.values.setdefault("norms", []).append(total)
        epoch = view.epoch + (not is_epoch)
        self.norms_.append({"epoch": epoch, "iteration": view.iteration, "global": total, **norms})
        if run.values["warned"] or self.vanishing <= total <= self.exploding:
            return
        run.values["warned"] = True
        what, hint = "explodes", "lower the rate, clip gradients, or scale X and y"
        if total < self.vanishing:
            what, hint = "vanishes", "look at the activations and the scale of the weights"
        largest = max(norms, key=norms.__getitem__)
        warnings.warn(f"The gradient {what} at iteration {view.iteration}: its norm is {total:.3g}, that of "
                      f"{largest!r} is {norms[largest]:.3g}; {hint}.", ConvergenceWarning, stacklevel=2)
