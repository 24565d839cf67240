"""What if several processes train one model? Each takes its rows of a batch; their sums make one step for all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
from onnx import ModelProto

from ortpartial.autodiff import grad
from ortpartial.graph import Value, build, cast, find_inputs, op, variable
from ortpartial.learning import BaseLearningLoss, weighted_sums
from ortpartial.model import Model, load
from ortpartial.runtime import Buffer, ProcessGroup, Session, cores

from .engine import Batch, Engine, TrainingSpec
from .step import Names, append_update, make_targets, row_losses_of, sum_values

__all__ = ["DataParallelEngine", "sums_graph", "sums_update_graph"]

def sums_graph(
    model: Model, weights: Sequence[str], losses: Mapping[str, BaseLearningLoss], *, weighted: bool = False
) -> ModelProto:
    """What a process adds to a step: ∇Σwᵢℓᵢ by every weight, Σwᵢℓᵢ and Σwᵢ, one after the other in one tensor.

    Parameters
    ----------
    model : Model
        The model that is trained.
    weights : sequence of str
        The initializers that change.
    losses : dict of str to BaseLearningLoss
        The loss of every trained output.
    weighted : bool
        Whether the rows have weights.

    Returns
    -------
    onnx.ModelProto
        Inputs: the model's, the targets, the row weights where there are any, then every weight. Output: ``sums``.
    """
    names = Names.of(model)
    targets = make_targets(model, losses, names)
    rows = row_losses_of(model, losses, targets)
    w = variable(names.sample_weight, rows.dtype, (rows.shape or [None])[:1]) if weighted else None
    loss, weight = weighted_sums(rows, w)
    trained = {name: model.initializers[name] for name in weights}
    parts = [*grad(loss, list(trained.values())), loss, weight]
    sums = op.Concat(*(op.Reshape(cast(v, rows), [-1]) for v in parts), axis=0)
    inputs = {**find_inputs([loss], model.inputs), **targets, **({names.sample_weight: w} if w is not None else {})}
    return build({**inputs, **trained}, {names.free("sums"): sums}, name="sums")


def sums_update_graph(model: Model, weights: Sequence[str], setup: TrainingSpec) -> ModelProto:
    """The step that follows from the sums of all processes: (sums, iteration, weights, states) -> the new ones.

    Parameters
    ----------
    model : Model
        The model that is trained.
    weights : sequence of str
        The initializers that change.
    setup : Setup
        Penalty and rate.

    Returns
    -------
    onnx.ModelProto
    """
    names = Names.of(model)
    trained = {w: model.initializers[w] for w in weights}
    sizes = [int(np.prod(model.arrays[w].shape)) for w in weights]
    sums = variable(names.free("sums"), setup.dtype, [sum(sizes) + 2])
    *parts, _, weight = op.Split(sums, [*sizes, 1, 1], axis=0, n_outputs=len(sizes) + 2)
    weight = op.Where(op.Equal(weight, 0), np.inf, weight)  # Without any weight there is no gradient.
    gradients: list[Value] = []
    for (name, v), part in zip(trained.items(), parts, strict=True):
        gradients.append(cast(op.Reshape(part / weight, list(model.arrays[name].shape)), v))
    costs = [setup.penalty(v) for v in trained.values() if setup.penalty.applies_to(v.shape or ())]
    if costs:
        penalties = grad(sum_values(costs), list(trained.values()))
        gradients = [g + p for g, p in zip(gradients, penalties, strict=True)]
    k = variable(names.iteration, np.int64, [])
    inputs: dict[str, Value] = {names.free("sums"): sums, names.iteration: k}
    outputs: dict[str, Value] = {}
    append_update(setup.rate, trained, gradients, k, names, inputs, outputs)
    return build(inputs, outputs, name="update")


class DataParallelEngine(Engine):
    """Gradient and update in two graphs; between them the processes add their gradients.

    Every process is given all the rows and reads its own, every ``size``-th of a batch, so that the batch, the step and
    the weights are those of one process alone. A process that gets no row of a small last batch adds zeros.

    Parameters
    ----------
    setup : Setup
        What is trained.
    """

    name = "step"

    def __init__(self, setup: TrainingSpec):
        super().__init__(setup)
        self.group: ProcessGroup | None = None
        self._update = sums_update_graph(setup.model, setup.weights, setup)
        count = sum(setup.model.arrays[w].size for w in setup.weights)
        self.sums = Buffer(np.zeros(count + 2, setup.dtype), setup.device)
        session = Session(self._update, device=setup.device, threads=setup.threads())
        names = Names.of(setup.model)
        self._updates = []
        for read, write in (self.sides, self.sides[::-1]):
            binding = session.binding()
            for name, buffer in {**read, names.free("sums"): self.sums, names.iteration: self.k}.items():
                if name in session.inputs:
                    binding.bind_input(name, buffer)
            for name, buffer in write.items():
                binding.bind_output(names.new(name), buffer)
            self._updates.append(binding.run)

    def threads(self, model: Model) -> int | None:
        """Threads of the gradient: the processes of this machine share its cores."""
        found = self.setup.threads(model)
        if found is not None or self.group is None:
            return found
        return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", self.group.size)))

    def graphs(self) -> dict[str, ModelProto]:
        """The graphs of the gradient and of the update."""
        return {"gradient": self._graph(self.setup.model), "update": self._update}

    def _graph(self, model: Model) -> ModelProto:
        return sums_graph(model, self.setup.weights, self.setup.losses, weighted=self._weighted)

    def start(self, data: Mapping[str, np.ndarray]) -> None:
        """Say where the rows come from; the first call connects the processes, and all go on from the first one."""
        super().start(data)
        if self.group is None:
            self.group = ProcessGroup()

    def epoch(self, order: np.ndarray, batch_size: int) -> float:
        """Train once on the rows in this order; returns the weighted mean loss over all processes."""
        assert self.group is not None
        loss = weight = 0.0
        k = self.k.numpy()
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size][self.group.rank :: self.group.size]
            if len(rows):
                program = self._programs.get(len(rows)) or self._new(len(rows))
                program.batch.gather(rows)
                program(self.side)
            else:
                self.sums.fill(np.zeros(self.sums.shape, self.sums.dtype))
            self.group.add(self.sums)
            k[...] = self.iteration + 1
            self._updates[self.side](self.options)
            numerator, denominator = self.sums.numpy()[-2:].tolist()
            loss, weight = loss + numerator, weight + denominator
            self.side ^= 1
            self.iteration += 1
        return loss / weight if weight else 0.0

    def program(self, rows: int) -> _SumsProgram:
        """The sums of so many rows."""
        return _SumsProgram(self, rows)


class _SumsProgram:
    """The gradient, bound twice: from either set of weights into the one buffer of sums."""

    def __init__(self, engine: DataParallelEngine, rows: int):
        setup = engine.setup
        model = load(setup.model, batch=rows, variables=setup.weights)
        session = Session(engine._graph(model), device=setup.device, threads=engine.threads(model))
        self.engine, self.batch = engine, Batch(engine._data, rows, setup.device)
        self.runs = []
        for side in engine.sides:
            binding = session.binding()
            for name, buffer in {**self.batch.buffers, **side}.items():
                if name in session.inputs:
                    binding.bind_input(name, buffer)
            binding.bind_output(session.outputs[0], engine.sums)
            self.runs.append(binding.run)

    def __call__(self, side: int) -> None:
        self.runs[side](self.engine.options)
