"""Check of rewrites: loss and gradients as a step computes them, beside those of the model as it is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import ceil, inf, log2

import numpy as np

from ortpartial.exceptions import OrtPartialError, RewriteError
from ortpartial.learning import LearningRateSGD
from ortpartial.logs import logger
from ortpartial.rewrites import select_rewrites, to_dtype
from ortpartial.runtime import OPTIMIZERS, Session

from .counting import find_weighting
from .data_parallel_engine import DataParallelEngine
from .engine import Engine
from .step import gradient_graph
from .step_engine import StepEngine
from .text_codes import encode_text

__all__ = ["check_rewrites"]

Arrays = dict[str, np.ndarray]

#: Differences that rounding explains: relative to the largest element, by the bits of a number, and as a multiple of
#: those of the model as it is written from its numbers in float64.
_TOLERANCES, _MULTIPLE = {64: 1e-9, 32: 1e-4, 16: 5e-2}, 20.0
#: Rounding of sums that cancel out, relative to the largest gradient of all.
_CANCELLED = 1e-6
#: The powers of two that a step size may be.
_SMALLEST, _LARGEST = -20, 40


def check_rewrites(engine: Engine, data: Mapping[str, np.ndarray]) -> list[str]:
    """Compare a step of an engine with the model as it is written.

    A step of plain SGD is taken apart from the training, by an engine of the same kind on the same batch, and gives the
    gradients; the other side is the graph of the model and of the rules of its gradient, run without an optimization.

    Parameters
    ----------
    engine : Engine
        The engine of the training, with its weights of now; it is not changed.
    data : dict of str to numpy.ndarray
        The rows of one batch: inputs, targets and weights by their names in the graphs.

    Returns
    -------
    list of str
        The rewrites that have applied.

    Raises
    ------
    RewriteError
        They differ; the message names the tensor and the rewrite without which they do not.
    """
    check = _StepCheck.of(engine, data)
    with select_rewrites() as applied:
        difference = check.find_difference(check.run())
    if difference is None:
        logger.info("engine %r computes what the model says, with %s", engine.name, ", ".join(sorted(applied)) or
                    "no rewrites")
        return sorted(applied)
    raise RewriteError(f"A step by engine {engine.name!r} is not that of the model as it is written: {difference}. "
                       f"{check.explain(applied)} Report it with the model, please.")


@dataclass(frozen=True)
class _StepCheck:
    """A step of SGD, to be taken in several ways, and what it should compute.

    Parameters
    ----------
    engine : Engine
        The engine of the training.
    data : dict of str to numpy.ndarray
        The batch.
    kind : type of Engine
        The engine that takes the step.
    written : dict of str to numpy.ndarray
        The loss, and the gradient by each weight.
    tolerances : dict of str to float
        The largest difference of each.
    eta : float
        The step size, which makes steps as large as weights.
    """

    engine: Engine
    data: Arrays
    kind: type[Engine]
    written: Arrays
    tolerances: Mapping[str, float]
    eta: float

    @classmethod
    def of(cls, engine: Engine, data: Mapping[str, np.ndarray]) -> _StepCheck:
        """The check of an engine on a batch."""
        kind = StepEngine if isinstance(engine, DataParallelEngine) else type(engine)
        trial = _make_trial(engine, kind, 1.0)
        trial.start(data)
        written = _run_written(trial)
        steps = [(np.abs(engine.get(w)).max(initial=0), g) for w in engine.spec.weights
                 if (g := _largest(written[_gradient_of(w)])) > 0]
        ratio = max((float(size / g) for size, g in steps if size > 0), default=1.0)
        eta = 2.0 ** min(max(ceil(log2(ratio)), _SMALLEST), _LARGEST)
        return cls(engine, dict(data), kind, written, _find_tolerances(trial, written, eta), eta)

    def run(self, kind: type[Engine] | None = None) -> Arrays:
        """The loss and the gradients, of a step that is compiled anew."""
        trial = _make_trial(self.engine, kind or self.kind, self.eta)
        before = {w: trial.get(w) for w in trial.spec.weights}
        trial.start(self.data)
        rows = len(next(iter(trial.data.values())))
        loss = trial.epoch(np.arange(rows), rows)
        steps = {w: a.astype(np.float64) - trial.get(w) for w, a in before.items()}
        return {"the loss": np.asarray(loss), **{_gradient_of(w): step / self.eta for w, step in steps.items()}}

    def find_difference(self, arrays: Arrays) -> str | None:
        """What differs most, None where nothing differs by more than rounding."""
        excess = {n: _difference(a, self.written[n]) / self.tolerances[n] for n, a in arrays.items()}
        worst = max(excess, key=lambda n: excess[n])
        if excess[worst] <= 1:
            return None
        return (f"{worst} differs by {_difference(arrays[worst], self.written[worst]):.3g}, where rounding explains "
                f"{self.tolerances[worst]:.1g} and the largest element is {_largest(self.written[worst]):.3g}")

    def explain(self, applied: Collection[str]) -> str:
        """Which rewrite is the cause; several where one makes what another takes for its pattern."""
        if causes := [repr(name) for name in [*sorted(applied), OPTIMIZERS] if self._agrees([name])]:
            return f"Without {' or '.join(causes)} they agree."
        if self._agrees([*applied, OPTIMIZERS]):
            return "Without any rewrite they agree."
        if self.kind is not StepEngine and self._agrees([], StepEngine):
            return "By engine 'step' they agree."
        return "Without any rewrite they differ as well."

    def _agrees(self, left_out: Collection[str], kind: type[Engine] | None = None) -> bool:
        try:
            with select_rewrites(left_out):
                return self.find_difference(self.run(kind)) is None
        except OrtPartialError:  # It does not compile without the rewrite.
            return False


def _gradient_of(weight: str) -> str:
    return f"the gradient by {weight!r}"


def _make_trial(engine: Engine, kind: type[Engine], eta: float) -> Engine:
    """An engine that takes a step of plain SGD from the weights of another one, and shares nothing with it."""
    precision = engine.spec.precision
    # No factor of the loss, whose step would be skipped where it is too large.
    precision = None if precision is None else replace(precision, loss_scale=1.0)
    trial = kind(replace(engine.spec, rate=LearningRateSGD(eta), precision=precision, accumulate=1, averaging=None,
                         gradient_clipping=None, rate_factors={}, rate_starts={}, rescaled=False, batches=0))
    trial.restore(engine.snapshot())
    return trial


def _run_written(trial: Engine, dtype: type | None = None) -> Arrays:
    """The loss, and the gradient by each weight, of the model as it is written, perhaps in another dtype."""
    names = trial.spec.names
    with select_rewrites("*"):
        spec = trial.spec.for_batch({n: a.shape for n, a in trial.data.items() if n in trial.spec.model.inputs})
        spec = replace(spec, gradient=None, precision=None, branches=False, device="cpu")
        if dtype is not None:
            spec = replace(spec, model=to_dtype(spec.model, dtype))
        graph = gradient_graph(spec, weighted=find_weighting(spec, trial.data), is_rewritten=False)
        session = Session(graph)
        arrays = {**encode_text(trial.data, spec.vocabulary), **{w: trial.get(w) for w in spec.moving},
                  names.seed: trial.get(names.seed), names.iteration: np.asarray(trial.iteration + 1, np.int64)}
        feeds = {i.name: arrays[i.name] for i in graph.graph.input if i.name in session.inputs}
        if dtype is not None:
            feeds = {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in feeds.items()}
        outputs = session.run(feeds)
    gradients = {_gradient_of(w): outputs[names.grad(w)] for w in spec.weights}
    return {"the loss": outputs[names.loss], **gradients}


def _find_tolerances(trial: Engine, written: Arrays, eta: float) -> dict[str, float]:
    """The differences that rounding explains."""
    spec, exact = trial.spec, None
    low = spec.precision is not None or spec.dtype.itemsize == 2
    if not low and spec.dtype.itemsize == 4:
        try:
            exact = _run_written(trial, np.float64)
        except (OrtPartialError, TypeError, ValueError) as e:  # An operator has no kernel for float64.
            logger.debug("rounding of the step is not known: %s", e)
    relative = _TOLERANCES[16 if low else 8 * spec.dtype.itemsize]
    cancelled = _CANCELLED * max(map(_largest, [a for n, a in written.items() if n != "the loss"]), default=0)
    tolerances = {}
    for n, a in written.items():
        tolerances[n] = max(relative * _largest(a), cancelled, float(np.finfo(np.float64).tiny))
        if exact is not None:
            tolerances[n] = max(tolerances[n], _MULTIPLE * _difference(exact[n], a))
    for w in spec.weights:  # The subtraction of a step rounds to the bits of the weight.
        weight = trial.get(w)
        tolerances[_gradient_of(w)] += 2 * float(np.finfo(weight.dtype).eps) * _largest(weight) / eta
    return tolerances


def _largest(a: np.ndarray) -> float:
    """The largest finite element."""
    return float(np.abs(a[np.isfinite(a)]).max(initial=0)) if a.ndim else float(np.abs(np.nan_to_num(a)))


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference; infinite for other shapes, and where one of two numbers is not finite."""
    if a.shape != b.shape:
        return inf
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        differences = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b))
    return float(np.nan_to_num(differences, nan=inf, posinf=inf).max(initial=0))
