"""The data-parallel engine: each process takes its rows of a batch, and their gradients are summed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.autodiff import grad
from ortpartial.execution import (
    Arrays,
    Exchange,
    Program,
    ProgramKey,
    StepNames,
    StepRunner,
    StepSource,
    WeightedMean,
    bind,
    describe_graphs,
    describe_settings,
    describe_versions,
    directions,
    share_cores,
)
from ortpartial.graph import Value, build, cast, find_inputs, op, variable
from ortpartial.learning import mean_rows, weighted_sums
from ortpartial.rewrites import rewrite_step
from ortpartial.runtime import Buffer, Session

from .row_weights import make_weights, weigh_elements
from .source import SpecSource, spec_of
from .spec import TrainingSpec
from .step import make_targets, mean_loss, sum_values
from .update import append_update

__all__ = ["DataParallelEngine", "sums_graph", "sums_update_graph"]


def sums_graph(spec: TrainingSpec, *, weighted: bool | str = False) -> ModelProto:
    """The share of a process in a step: ∇Σwᵢℓᵢ by every weight, Σwᵢℓᵢ and Σwᵢcᵢ, concatenated.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    weighted : bool or "elements"
        Whether the rows have weights, or the elements of the targets.

    Returns
    -------
    onnx.ModelProto
        Inputs: the model's, the targets, the weights if any, then every weight. Output: ``sums``; where the outputs
        count differently, the sums of the outputs follow one another. Where gradients are compressed, ``sums`` are
        without them, and the output ``sent`` has them, divided by the input ``rows``; with `top_k`, ``residual`` is the
        gradients not sent before, and ``residual_new`` the gradients not sent now.
    """
    names, spec = _PassedNames(spec.names.taken), replace(spec, model=spec.rewritten)
    targets, trained = make_targets(spec), spec.trained
    first = next(iter(targets.values()), None)
    weights = make_weights(spec, targets, weighted, None if first is None else (first.shape or (None,))[0])
    pairs = [_sum_own_loss(spec)] if spec.own_loss else _sum_losses(spec, targets, weights, weighted)
    like = pairs[0][0]
    gradients = [grad(loss, list(trained.values())) for loss, _ in pairs]
    inputs = {**find_inputs([loss for loss, _ in pairs], spec.model.inputs), **targets, **weights}
    if spec.parallel.is_whole:
        outputs = {names.sums: _join([v for g, pair in zip(gradients, pairs, strict=True) for v in (*g, *pair)], like)}
    else:
        rows = inputs[names.rows] = variable(names.rows, spec.dtype, [])
        flat = _join([v for g in gradients for v in g], rows).stated([len(pairs) * _count(spec)]) / rows
        residual = None if spec.parallel.top_k is None else variable(names.residual, spec.dtype, flat.shape)
        sent, rest = spec.parallel.compress(flat, residual)
        outputs = {names.sums: _join([v for pair in pairs for v in pair], like), names.sent: sent}
        if residual is not None and rest is not None:
            inputs[names.residual], outputs[names.new(names.residual)] = residual, rest
    return build({**inputs, **trained}, rewrite_step(outputs), name="sums")


@dataclass(frozen=True)
class _PassedNames(StepNames):
    """The names of the tensors that pass between the graphs and the processes."""

    @property
    def sums(self) -> str:
        """Gradients, unless they are compressed, losses, and counts."""
        return self.free("sums")

    @property
    def sent(self) -> str:
        """Compressed gradients."""
        return self.free("sent")

    @property
    def rows(self) -> str:
        """The number of rows of the batch, of all processes."""
        return self.free("rows")

    @property
    def residual(self) -> str:
        """The state of gradients that a process has not sent yet."""
        return self.free("data_parallel.residual")


def _join(values: Iterable[Value], like: Value) -> Value:
    """Values as a vector, in the dtype of another value."""
    joined: Value = op.Concat(*(op.Reshape(cast(v, like), [-1]) for v in values), axis=0)
    return joined


def _count(spec: TrainingSpec) -> int:
    """The number of elements of the weights."""
    return sum(spec.model.arrays[w].size for w in spec.weights)


def _sum_losses(spec: TrainingSpec, targets: Mapping[str, Value], weights: Mapping[str, Value], weighted: bool | str
                ) -> list[tuple[Value, Value]]:
    """Σwᵢℓᵢ and Σwᵢcᵢ of all outputs together, or of each where they count differently."""
    weighed = weigh_elements(spec, targets, weights)
    if spec.counts_alike and weighted != "elements":
        rows = sum_values([mean_rows(elements) for elements, _, _ in weighed])
        return [weighted_sums(rows, weighed[0][1])]
    return [weighted_sums(*each) for each in weighed]


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
    """The step that follows from the sums of all processes: (sums, iteration, weights, states) -> the new states.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    parts : int
        How many outputs have sums of their own.

    Returns
    -------
    onnx.ModelProto
    """
    names, trained, is_whole = _PassedNames(spec.names.taken), spec.trained, spec.parallel.is_whole
    shapes = {w: spec.model.arrays[w].shape for w in spec.weights}
    sizes = [int(np.prod(s)) for s in shapes.values()]
    sums = variable(names.sums, spec.dtype, [parts * (is_whole * sum(sizes) + 2)])
    inputs: dict[str, Value] = {names.sums: sums}
    if is_whole:
        slices = list(op.Split(sums, [*sizes, 1, 1] * parts, axis=0, n_outputs=parts * (len(sizes) + 2)))
    else:
        sent = inputs[names.sent] = variable(names.sent, spec.parallel.gradient_dtype or spec.dtype,
                                             [parts * sum(sizes)])
        rows = inputs[names.rows] = variable(names.rows, spec.dtype, [])
        apart = op.Split(sent.astype(spec.dtype) * rows, sizes * parts, axis=0, n_outputs=parts * len(sizes))
        counts = op.Split(sums, [1] * parts * 2, axis=0, n_outputs=parts * 2)
        slices = [v for i in range(parts)
                  for v in (*apart[i * len(sizes) : (i + 1) * len(sizes)], *counts[2 * i : 2 * i + 2])]
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
    k = inputs[names.iteration] = variable(names.iteration, np.int64, [])
    outputs: dict[str, Value] = {}
    append_update(spec, trained, gradients, k, inputs, outputs)
    return build(inputs, outputs, name="update")


class DataParallelEngine(StepRunner):
    """Gradient and update in two graphs; between them the processes add their gradients.

    Every process is given all the rows and reads its own, every ``size``-th of a batch, so that the batch, the step and
    the weights are as in a single process. A process that gets no row of a small last batch adds zeros.

    Parameters
    ----------
    source : SpecSource
        The training.
    """

    source: SpecSource
    name = "step"
    runs = (("gradient", ("model", "loss", "gradient")), ("update", ("update",)))
    is_distributed = True

    def __init__(self, source: SpecSource):
        super().__init__(source)
        self.exchange: Exchange | None = None
        self.names = _PassedNames(source.names.taken)
        self.rows = Buffer(np.zeros((), source.dtype))
        self._bind_update(parts=1)

    def _bind_update(self, parts: int) -> None:
        """Bind the update to sums that so many outputs have of their own."""
        spec, names = self.source.spec, self.names
        self._update, size = sums_update_graph(spec, parts=parts), parts * _count(spec)
        length = 2 * parts + (size if spec.parallel.is_whole else 0)
        self.sums = Buffer(np.zeros(length, spec.dtype), spec.device)
        #: By name, all that processes add up, and how many of the numbers they send.
        self.passed: dict[str, tuple[Buffer, int | None]] = {names.sums: (self.sums, None)}
        if not spec.parallel.is_whole:
            sent = Buffer(np.zeros(size, spec.parallel.gradient_dtype or spec.dtype), spec.device)
            self.passed[names.sent] = sent, spec.parallel.count_sent(size)
        self._parts = parts
        session = Session(self._update, device=spec.device, threads=spec.threads())
        inputs = {**{n: buffer for n, (buffer, _) in self.passed.items()}, names.rows: self.rows, **self.fixed_inputs}
        self._updates = [bind(session, {**read, **inputs}, {n: b for n, b in new.items() if n in session.outputs}).run
                         for read, new in directions(self.buffers, spec.names)]
        if spec.parallel.top_k is not None:
            for side, buffers in zip(self.buffers, self._bound, strict=True):
                side[names.residual] = buffers[names.residual] = Buffer(np.zeros(size, spec.dtype), spec.device)

    @property
    def residuals(self) -> list[str]:
        """The names of numbers that this process has not sent yet."""
        return [self.names.residual] if self.names.residual in self.buffers[0] else []

    @property
    def is_first(self) -> bool:
        """Whether this is the first process."""
        return self.exchange is None or self.exchange.is_first

    def connect(self) -> None:
        """Connect the processes, once."""
        if self.exchange is None:
            self.exchange = Exchange()

    def broadcast(self, value: Any) -> Any:
        """The value that the first process has."""
        return value if self.exchange is None else self.exchange.broadcast(value)

    def check_same(self, facts: Mapping[str, str]) -> None:
        """Check that all processes train the same model with the same loss and update, and have the same facts."""
        assert self.exchange is not None
        spec = self.source.spec
        model = build({**spec.model.inputs, **spec.trained}, spec.outputs)
        pieces = {"learning_loss": dict(spec.losses), "learning_rate": spec.rate, "learning_penalty": spec.penalty,
                  "gradient_clipping": spec.gradient_clipping, "accumulate": spec.accumulate,
                  "averaging": spec.averaging, "distributed": spec.parallel}
        loss = mean_loss(spec, targets := make_targets(spec), {})
        # As they are written: rewrites of them may depend on the machine.
        inputs = {**spec.model.inputs, **targets, **spec.trained}
        graphs = {"the model": model, "the loss": build(inputs, {"loss": loss}), "the update": self._update}
        self.exchange.check_same(
            {**describe_versions(), **describe_settings(**pieces), **describe_graphs(graphs), **facts})

    def reset(self, first: Arrays, seed: Sequence[int] = (0, 0)) -> None:
        """Back to the first iteration: everything has been sent."""
        super().reset(first, seed)
        for n in self.residuals:
            self.set(n, np.zeros((), np.float32))

    def synchronize(self) -> None:
        """Take over weights, states and iteration of the first process, but keep gradients that are not sent yet."""
        with self.turn.lock:
            own = self.snapshot()
            first = self.broadcast(own)
            if self.exchange is not None and self.residuals:
                first["arrays"] = self.exchange.take_first(own["arrays"], self.residuals.__contains__)
            self.restore(first)

    def continue_with(self, source: StepSource, kind: type[StepRunner] | None = None,
                      learned: Mapping[str, np.ndarray] | None = None) -> StepRunner:
        """A runner that goes on from here in the same processes, with another source of the same states."""
        engine = super().continue_with(source, kind, learned)
        engine.exchange = self.exchange  # type: ignore[attr-defined]
        engine._match_parts()  # type: ignore[attr-defined]
        return engine

    def threads(self, spec: TrainingSpec) -> int | None:
        """Number of threads of the gradient: the processes of this machine share its cores."""
        return spec.threads() if self.exchange is None else share_cores(spec.threads(), self.exchange.group.size)

    def graphs(self) -> dict[str, ModelProto]:
        """The graphs of the gradient and of the update."""
        return {"gradient": sums_graph(self.source.spec, weighted=self.weighting), "update": self._update}

    def start(self, data: Mapping[str, np.ndarray]) -> None:
        """Say where the rows come from; the first call connects the processes, and all go on from the first."""
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
        assert self.exchange is not None
        mean = self.mean = self.mean if start else WeightedMean()
        k = self.k.numpy()
        for first in range(0, len(order), batch_size)[start:stop]:
            batch = order[first : first + batch_size]
            rows = self.exchange.take(batch)
            self.rows.numpy()[...] = len(batch)
            if len(rows):
                program = self._program("sums", self._choose_shapes(1, len(rows)), len(rows))
                program.batch.gather(rows)
                program(self.side)
            else:
                self._send_nothing()
            self.exchange.add_up(self.passed)
            k[...] = self.iteration + 1
            self._updates[self.side](self.local.options)
            self._add_loss(mean)
            self.side ^= 1
            self.iteration += 1
        return mean.value

    def _send_nothing(self) -> None:
        """Send zeros, and keep the gradients not sent before."""
        for buffer, _ in self.passed.values():
            buffer.fill(np.zeros(buffer.shape, buffer.dtype))
        for n in self.residuals:
            self.buffers[self.side ^ 1][n].fill(self.buffers[self.side][n].numpy())

    def _add_loss(self, mean: WeightedMean) -> None:
        """Add the loss of a batch, the sum of its parts, by the mean of their counts."""
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
    """The gradient, bound twice: from either set of weights into the buffer of sums."""

    def __init__(self, engine: DataParallelEngine, spec: TrainingSpec):
        graph = sums_graph(spec, weighted=engine.weighting)
        session = Session(graph, device=spec.device, threads=engine.threads(spec))
        passed = {n: buffer for n, (buffer, _) in engine.passed.items()}
        super().__init__(
            [bind(session, {**read, engine.names.rows: engine.rows},
                  {**passed, **{n: b for n, b in new.items() if n in session.outputs}})
             for read, new in directions(engine.buffers, spec.names)], spec.device)
        self.sums, self.local = engine.sums, engine.local

    def __call__(self, side: int) -> float:
        self.bindings[side].run(self.local.options)
        return float(self.sums.numpy()[-2])
