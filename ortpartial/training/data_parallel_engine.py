"""The data-parallel engine: each process takes its rows of a batch, and their gradients are summed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.autodiff import grad
from ortpartial.execution import Program, ProgramKey, StepRunner, StepSource, WeightedMean, bind, directions
from ortpartial.graph import Value, build, cast, find_inputs, op, variable
from ortpartial.learning import mean_rows, weighted_sums
from ortpartial.rewrites import rewrite_step
from ortpartial.runtime import Buffer, ProcessGroup, Session, cores

from .counting import make_weights, weigh_elements
from .source import SpecSource, spec_of
from .spec import TrainingSpec
from .step import make_targets, mean_loss, sum_values
from .update import append_update

__all__ = ["DataParallelEngine", "sums_graph", "sums_update_graph"]


def sums_graph(spec: TrainingSpec, *, weighted: bool | str = False) -> ModelProto:
    """The share of one process in a step: ∇Σwᵢℓᵢ by every weight, Σwᵢℓᵢ and Σwᵢcᵢ, concatenated.

    Parameters
    ----------
    spec : TrainingSpec
        What is trained.
    weighted : bool or "elements"
        Whether the rows have weights, or the elements of the targets.

    Returns
    -------
    onnx.ModelProto
        Inputs: the model's, the targets, the weights if any, then every weight. Output: ``sums``; where the outputs
        count differently, those of one output after those of another.
    """
    names, spec = spec.names, replace(spec, model=spec.rewritten)
    targets, trained = make_targets(spec), spec.trained
    first = next(iter(targets.values()), None)
    weights = make_weights(spec, targets, weighted, None if first is None else (first.shape or (None,))[0])
    weighed = [] if spec.own_loss else weigh_elements(spec, targets, weights)
    if spec.own_loss:
        pairs = [_sum_own_loss(spec)]
    elif spec.counts_alike and weighted != "elements":
        rows = sum_values([mean_rows(elements) for elements, _, _ in weighed])
        pairs = [weighted_sums(rows, weighed[0][1])]
    else:
        pairs = [weighted_sums(*each) for each in weighed]
    like = pairs[0][0]
    terms = [v for loss, count in pairs for v in (*grad(loss, list(trained.values())), loss, count)]
    sums = op.Concat(*(op.Reshape(cast(v, like), [-1]) for v in terms), axis=0)
    inputs = {**find_inputs([loss for loss, _ in pairs], spec.model.inputs), **targets, **weights}
    return build({**inputs, **trained}, rewrite_step({names.free("sums"): sums}), name="sums")


def _sum_own_loss(spec: TrainingSpec) -> tuple[Value, Value]:
    """The loss that the model computes, times the number of its rows or the sum of their weights; and this number.

    Over several processes that is the loss of all rows where it is a mean over the rows.
    """
    loss, inputs = mean_loss(spec, {}, {}), find_inputs(spec.outputs.values(), spec.model.inputs)
    w = inputs.get(spec.own_loss.row_weights or "") if spec.own_loss else None
    rows = next(v for v in inputs.values() if v.rank)
    count = op.Gather(op.Shape(rows), 0) if w is None else op.ReduceSum(w, keepdims=0)
    count = cast(count, loss)
    return loss * count, count


def sums_update_graph(spec: TrainingSpec, *, parts: int = 1) -> ModelProto:
    """The step that follows from the sums of all processes: (sums, iteration, weights, states) -> the new ones.

    Parameters
    ----------
    spec : TrainingSpec
        What is trained.
    parts : int
        How many outputs have sums of their own.

    Returns
    -------
    onnx.ModelProto
    """
    names, trained = spec.names, spec.trained
    shapes = {w: spec.model.arrays[w].shape for w in spec.weights}
    sizes = [int(np.prod(s)) for s in shapes.values()]
    sums = variable(names.free("sums"), spec.dtype, [parts * (sum(sizes) + 2)])
    slices = op.Split(sums, [*sizes, 1, 1] * parts, axis=0, n_outputs=parts * (len(sizes) + 2))
    means: list[list[Value]] = [[] for _ in sizes]
    for start in range(0, len(slices), len(sizes) + 2):
        *summed, _, count = slices[start : start + len(sizes) + 2]
        count = op.Where(op.Equal(count, 0), np.inf, count)  # Where nothing counts there is no gradient.
        for mean, each in zip(means, summed, strict=True):
            mean.append(each / count)
    gradients: list[Value] = [cast(op.Reshape(sum_values(mean), list(shapes[w])), v)
                              for (w, v), mean in zip(trained.items(), means, strict=True)]
    if spec.penalized:
        cost = sum_values([spec.penalty(trained[w]) for w in spec.penalized])
        penalties = grad(cost, list(trained.values()))
        gradients = [g + p for g, p in zip(gradients, penalties, strict=True)]
    k = variable(names.iteration, np.int64, [])
    inputs: dict[str, Value] = {names.free("sums"): sums, names.iteration: k}
    outputs: dict[str, Value] = {}
    append_update(spec, trained, gradients, k, inputs, outputs)
    return build(inputs, outputs, name="update")


class DataParallelEngine(StepRunner):
    """Gradient and update in two graphs; between them the processes add their gradients.

    Every process is given all the rows and reads its own, every ``size``-th of a batch, so that the batch, the step and
    the weights are those of one process alone. A process that gets no row of a small last batch adds zeros.

    Parameters
    ----------
    source : SpecSource
        What is trained.
    """

    source: SpecSource
    name = "step"
    runs = (("gradient", ("model", "loss", "gradient")), ("update", ("update",)))
    is_distributed = True

    def __init__(self, source: SpecSource):
        super().__init__(source)
        self.group: ProcessGroup | None = None
        self._bind_update(parts=1)

    def _bind_update(self, parts: int) -> None:
        """Bind the update to sums that so many outputs have of their own."""
        spec = self.source.spec
        self._update = sums_update_graph(spec, parts=parts)
        count = sum(spec.model.arrays[w].size for w in spec.weights)
        self.sums = Buffer(np.zeros(parts * (count + 2), spec.dtype), spec.device)
        self._parts = parts
        session = Session(self._update, device=spec.device, threads=spec.threads())
        inputs = {spec.names.free("sums"): self.sums, **self.given}
        self._updates = [bind(session, {**read, **inputs}, new).run for read, new in directions(self.sides, spec.names)]

    @property
    def is_first(self) -> bool:
        """Whether this is the first process."""
        return self.group is None or self.group.rank == 0

    def connect(self) -> None:
        """Connect the processes, once."""
        if self.group is None:
            self.group = ProcessGroup()

    def broadcast(self, value: Any) -> Any:
        """The value that the first process has."""
        return value if self.group is None else self.group.broadcast(value)

    def synchronize(self) -> None:
        """Take over weights, states and iteration of the first process."""
        with self.turn.lock:
            self.restore(self.broadcast(self.snapshot()))

    def continue_with(self, source: StepSource, kind: type[StepRunner] | None = None,
                      learned: Mapping[str, np.ndarray] | None = None) -> StepRunner:
        """A runner that goes on from here in the same processes, with another source of the same states."""
        engine = super().continue_with(source, kind, learned)
        engine.group = self.group  # type: ignore[attr-defined]
        engine._match_parts()  # type: ignore[attr-defined]
        return engine

    def threads(self, spec: TrainingSpec) -> int | None:
        """Number of threads of the gradient: the processes of this machine share its cores."""
        threads = spec.threads()
        if threads is not None or self.group is None:
            return threads
        return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", self.group.size)))

    def graphs(self) -> dict[str, ModelProto]:
        """The graphs of the gradient and of the update."""
        return {"gradient": sums_graph(self.source.spec, weighted=self.weighting), "update": self._update}

    def start(self, data: Mapping[str, np.ndarray]) -> None:
        """Say where the rows come from; the first call connects the processes, and all go on from the first one."""
        super().start(data)
        self._match_parts()
        self.connect()

    def _match_parts(self) -> None:
        """Let outputs that count differently have sums of their own."""
        is_one = self.source.spec.counts_alike and self.weighting != "elements"
        parts = 1 if is_one else len(self.source.spec.losses)
        if parts != self._parts:
            self._programs.clear()
            self._bind_update(parts)

    def epoch(self, order: np.ndarray, batch_size: int, start: int = 0, stop: int | None = None) -> float:
        """Train once on the rows in this order, or on a piece; returns the weighted mean loss over all processes."""
        assert self.group is not None
        mean = self.mean = self.mean if start else WeightedMean()
        k = self.k.numpy()
        for first in range(0, len(order), batch_size)[start:stop]:
            rows = order[first : first + batch_size][self.group.rank :: self.group.size]
            if len(rows):
                program = self._program("sums", self._choose_shapes(1, len(rows)), len(rows))
                program.batch.gather(rows)
                program(self.side)
            else:
                self.sums.fill(np.zeros(self.sums.shape, self.sums.dtype))
            self.group.all_reduce(self.sums)
            k[...] = self.iteration + 1
            self._updates[self.side](self.local.options)
            self._add_loss(mean)
            self.side ^= 1
            self.iteration += 1
        return mean.value

    def _add_loss(self, mean: WeightedMean) -> None:
        """Add the loss of a batch, the sum of its parts, by the mean of what counts in each."""
        sums = self.sums.numpy().reshape(self._parts, -1)[:, -2:].tolist()
        if len(sums) == 1:
            total, count = sums[0]
            mean.add(total if count else 0, count)
            return
        count = sum(count for _, count in sums) / len(sums)
        mean.add(count * sum(total / count for total, count in sums if count), count)

    def _open(self, key: ProgramKey) -> Any:
        """The sums of batches of these shapes, or of all."""
        return _SumsProgram(self, spec_of(self._source_for(key.shapes)))


class _SumsProgram(Program):
    """The gradient, bound twice: from either set of weights into the one buffer of sums."""

    def __init__(self, engine: DataParallelEngine, spec: TrainingSpec):
        graph = sums_graph(spec, weighted=engine.weighting)
        session = Session(graph, device=spec.device, threads=engine.threads(spec))
        super().__init__([bind(session, side, {session.outputs[0]: engine.sums}) for side in engine.sides], spec.device)
        self.sums, self.local = engine.sums, engine.local

    def __call__(self, side: int) -> float:
        self.bindings[side].run(self.local.options)
        return float(self.sums.numpy()[-2])
