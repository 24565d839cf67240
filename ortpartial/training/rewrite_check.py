"""Check of rewrites: loss and gradients as they are run, beside the numbers of the model as it is written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import ceil, log2

import numpy as np

from ortpartial.autodiff import grad
from ortpartial.exceptions import OrtPartialError, RewriteError
from ortpartial.execution import StepEngine, StepRunner
from ortpartial.graph import build, find_inputs, variable
from ortpartial.learning import LearningRateSGD
from ortpartial.logs import logger
from ortpartial.rewrites import select_rewrites, to_dtype
from ortpartial.runtime import OPTIMIZERS, Session, largest_difference

from .data_parallel_engine import DataParallelEngine
from .gradient_cut import GraphFunction
from .row_weights import find_weighting
from .source import SpecSource, spec_of
from .step import gradient_graph
from .text_codes import encode_text

__all__ = ["RewriteCheck", "check_rewrites", "differentiate_written"]

Arrays = dict[str, np.ndarray]

#: Differences that rounding explains: relative to the largest element, by the bits of a number, and as a multiple of
#: the differences of the model as it is written from its numbers in float64.
_TOLERANCES, _MULTIPLE = {64: 1e-9, 32: 1e-4, 16: 5e-2}, 20.0
#: Rounding of sums that cancel out, relative to the largest gradient of all, by the bits of a number.
_CANCELLED = {64: 1e-12, 32: 1e-6, 16: 1e-2}
#: The powers of two that a step size may be.
_SMALLEST, _LARGEST = -20, 40


@dataclass(frozen=True)
class RewriteCheck:
    """Numbers as they are run, beside the numbers of the model as it is written.

    Parameters
    ----------
    what : str
        Whose numbers they are: the beginning of a sentence.
    run : callable
        Compiles anew, and returns the numbers by their names in errors.
    written : dict of str to numpy.ndarray
        The numbers of the model as it is written.
    tolerances : dict of str to float
        The largest difference of each.
    plain : callable, optional
        Runs by engine ``"step"``, where `run` does not.
    """

    what: str
    run: Callable[[], Arrays]
    written: Arrays
    tolerances: Mapping[str, float]
    plain: Callable[[], Arrays] | None = None

    def __call__(self) -> list[str]:
        """Compare them.

        Returns
        -------
        list of str
            The rewrites that have applied.

        Raises
        ------
        RewriteError
            They differ; the message names the tensor and the rewrite without which they do not.
        """
        with select_rewrites() as reports:
            difference = self._find_difference(self.run())
        applied = sorted({case for report in reports for case in report.applied})
        if difference is not None:
            raise RewriteError(f"{self.what} is not that of the model as it is written: {difference}. "
                               f"{self._explain(applied)} Report it with the model, please.")
        logger.info("%s is that of the model as it is written; rewrites: %s", self.what,
                    ", ".join(applied) or "none")
        return applied

    def _find_difference(self, arrays: Arrays) -> str | None:
        """The largest difference, None where nothing differs by more than rounding."""
        excess = {n: largest_difference(a, self.written[n]) / self.tolerances[n] for n, a in arrays.items()}
        worst = max(excess, key=lambda n: excess[n])
        if excess[worst] <= 1:
            return None
        difference = largest_difference(arrays[worst], self.written[worst])
        return (f"{worst} differs by {difference:.3g}, where rounding explains {self.tolerances[worst]:.1g} and the "
                f"largest element is {_largest(self.written[worst]):.3g}")

    def _explain(self, applied: Collection[str]) -> str:
        """Which rewrite is the cause; several where the result of one is the pattern of another."""
        if causes := [repr(name) for name in [*applied, OPTIMIZERS] if self._agrees(self.run, [name])]:
            return f"Without {' or '.join(causes)} they agree."
        if self._agrees(self.run, [*applied, OPTIMIZERS]):
            return "Without any rewrite they agree."
        if self.plain is not None and self._agrees(self.plain, []):
            return "By engine 'step' they agree."
        return "Without any rewrite they differ as well."

    def _agrees(self, run: Callable[[], Arrays], left_out: Collection[str]) -> bool:
        try:
            with select_rewrites(left_out):
                return self._find_difference(run()) is None
        except OrtPartialError:  # It does not compile without the rewrite.
            return False


def check_rewrites(engine: StepRunner, data: Mapping[str, np.ndarray]) -> list[str]:
    """Compare a step of an engine with the model as it is written.

    A step of plain SGD is taken apart from the training, by an engine of the same kind on the same batch, and gives the
    gradients; the other side is the graph of the model and of the rules of its gradient, run without optimization.

    Parameters
    ----------
    engine : StepRunner
        The engine of the training, with its weights of now; it is not changed.
    data : dict of str to numpy.ndarray
        The rows of a batch: inputs, targets and weights by their names in the graphs.

    Returns
    -------
    list of str
        The rewrites that have applied.

    Raises
    ------
    RewriteError
        They differ; the message names the tensor and the rewrite without which they do not.
    """
    trial = _make_trial(engine, StepEngine, 1.0)
    trial.start(data)
    written = _run_written(trial)
    eta, weights = _choose_step_size(trial, written), {w: trial.get(w) for w in spec_of(trial.source).weights}
    is_low = spec_of(engine.source).precision is not None
    tolerances = _find_tolerances(written, None if is_low else _try(lambda: _run_written(trial, np.float64)),
                                  16 if is_low else 8 * engine.source.dtype.itemsize)
    for w, a in weights.items():  # The subtraction of a step rounds to the bits of the weight.
        tolerances[_gradient_of(w)] += 2 * float(np.finfo(a.dtype).eps) * _largest(a) / eta

    def run(kind: type[StepRunner]) -> Arrays:
        step = _make_trial(engine, kind, eta)
        step.start(data)
        rows = len(next(iter(step.data.values())))
        loss = np.asarray(step.epoch(np.arange(rows), rows))
        return {"the loss": loss, **{_gradient_of(w): (a.astype(np.float64) - step.get(w)) / eta
                                     for w, a in weights.items()}}

    kind = StepEngine if isinstance(engine, DataParallelEngine) else type(engine)
    return RewriteCheck(f"A step by engine {engine.name!r}", lambda: run(kind), written, tolerances,
                        None if kind is StepEngine else lambda: run(StepEngine))()


def _gradient_of(name: str) -> str:
    return f"the gradient by {name!r}"


def _make_trial(engine: StepRunner, kind: type[StepRunner], eta: float) -> StepRunner:
    """An engine that takes a step of plain SGD from the weights of another engine, and shares nothing with it."""
    precision = spec_of(engine.source).precision
    # No factor of the loss, whose step would be skipped where it is too large.
    precision = None if precision is None else replace(precision, loss_scale=1.0)
    spec = replace(spec_of(engine.source), rate=LearningRateSGD(eta), precision=precision, accumulate=1, averaging=None,
                   gradient_clipping=None, rate_factors={}, rate_starts={}, rescaled=False, batches=0)
    trial = kind(SpecSource(spec))
    trial.restore(engine.snapshot())
    return trial


def _choose_step_size(trial: StepRunner, written: Arrays) -> float:
    """A step size that makes steps as large as weights."""
    weights = spec_of(trial.source).weights
    ratios = [_largest(trial.get(w)) / g for w in weights if (g := _largest(written[_gradient_of(w)])) > 0]
    ratio = max([r for r in ratios if r > 0], default=1.0)
    return float(2.0 ** min(max(ceil(log2(ratio)), _SMALLEST), _LARGEST))


def _run_written(trial: StepRunner, dtype: type | None = None) -> Arrays:
    """The loss, and the gradient by each weight, of the model as it is written, perhaps in another dtype."""
    spec = spec_of(trial.source)
    names = spec.names
    with select_rewrites("*"):
        spec = spec.for_batch({n: a.shape for n, a in trial.data.items() if n in spec.model.inputs})
        spec = replace(spec, gradient=None, precision=None, branches=False, device="cpu")
        if dtype is not None:
            spec = replace(spec, model=to_dtype(spec.model, dtype))
        graph = gradient_graph(spec, weighted=find_weighting(spec, trial.data), is_rewritten=False)
        outputs = Session(graph).run(_select(graph, dtype, {
            **encode_text(trial.data, spec.vocabulary), **{w: trial.get(w) for w in spec.moving},
            names.seed: trial.get(names.seed), names.iteration: np.asarray(trial.iteration + 1, np.int64)}))
    gradients = {_gradient_of(w): outputs[names.grad(w)] for w in spec.weights}
    return {"the loss": outputs[names.loss], **gradients}


def differentiate_written(function: GraphFunction, make_exact: Callable[[], GraphFunction], wanted: Collection[str],
                          feeds: Mapping[str, np.ndarray], cotangents: Mapping[str, np.ndarray]
                          ) -> tuple[Arrays, dict[str, float]]:
    """The outputs and gradients of a function as it is written, and the differences from them that rounding explains.

    Parameters
    ----------
    function : GraphFunction
        The function.
    make_exact : callable
        Makes the same in float64.
    wanted : collection of str
        The leaves to differentiate by.
    feeds : dict of str to numpy.ndarray
        The content of the leaves.
    cotangents : dict of str to numpy.ndarray
        By output, the cotangent.

    Returns
    -------
    written : dict of str to numpy.ndarray
    tolerances : dict of str to float
    """
    written = _differentiate(function, wanted, feeds, cotangents)
    bits = min((8 * y.dtype.itemsize for n, y in function.outputs.items() if n in cotangents), default=32)
    exact = _try(lambda: _differentiate(make_exact(), wanted, feeds, cotangents, np.float64))
    return written, _find_tolerances(written, exact, bits)


def _differentiate(function: GraphFunction, wanted: Collection[str], feeds: Mapping[str, np.ndarray],
                   cotangents: Mapping[str, np.ndarray], dtype: type | None = None) -> Arrays:
    with select_rewrites("*"):
        dys = {n: variable("", function.outputs[n].dtype, a.shape) for n, a in cotangents.items()}
        gradients = grad([function.outputs[n] for n in dys], [function.leaves[n] for n in wanted], list(dys.values()))
        # Names of the same kind, which no tensor of the model has.
        values = {**{f"y{i}": y for i, y in enumerate(function.outputs.values())},
                  **{f"d{i}": g for i, g in enumerate(gradients)}}
        inputs = {f"x{i}": x for i, x in enumerate(function.leaves.values())} | {
            f"c{i}": d for i, d in enumerate(dys.values())}
        inputs = find_inputs(values.values(), inputs)
        graph = build(inputs, values, name="written")
        arrays = {f"x{i}": feeds[n] for i, n in enumerate(function.leaves) if n in feeds} | {
            f"c{i}": cotangents[n] for i, n in enumerate(dys)}
        results = list(Session(graph).run(_select(graph, dtype, arrays)).values())
    names = [*(f"the output {n!r}" for n in function.outputs), *map(_gradient_of, wanted)]
    return dict(zip(names, results, strict=True))


def _select(graph: object, dtype: type | None, arrays: Mapping[str, np.ndarray]) -> Arrays:
    """The inputs of a graph, real numbers in a dtype."""
    feeds = {i.name: arrays[i.name] for i in graph.graph.input}  # type: ignore[attr-defined]
    return feeds if dtype is None else {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in feeds.items()}


def _try(run: Callable[[], Arrays]) -> Arrays | None:
    """Numbers in float64, None where an operator has no kernel for it."""
    try:
        return run()
    except (OrtPartialError, TypeError, ValueError) as e:
        logger.debug("rounding is not known: %s", e)
        return None


def _find_tolerances(written: Arrays, exact: Arrays | None, bits: int) -> dict[str, float]:
    """The differences that rounding explains."""
    gradients = [a for n, a in written.items() if n.startswith("the gradient")]
    least = max(_CANCELLED[bits] * max(map(_largest, gradients), default=0), float(np.finfo(np.float64).tiny))
    tolerances = {n: max(_TOLERANCES[bits] * _largest(a), least) for n, a in written.items()}
    if exact is None:
        return tolerances
    return {n: max(t, _MULTIPLE * largest_difference(exact[n], written[n])) for n, t in tolerances.items()}


def _largest(a: np.ndarray) -> float:
    """The largest finite element."""
    a = np.atleast_1d(a)
    return float(np.abs(a[np.isfinite(a)]).max(initial=0)) if a.dtype.kind in "fiu" else float(a.size > 0)
