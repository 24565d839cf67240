"""The CUDA graph engine, which is experimental: a device records a step once and replays it without the host."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from onnx import ModelProto

from ortpartial.exceptions import ModelError, OrtPartialError
from ortpartial.graph import RANDOM, build, op, rewrite, variable
from ortpartial.logs import logger
from ortpartial.runtime import Buffer, Device, Session, session_options

from .epoch_engine import EpochEngine
from .mean import WeightedMean
from .program import bind, directions
from .runner import ProgramKey, is_symbolic
from .step import Shapes, StepSource

__all__ = ["CudaGraphEngine", "cuda_graph_step"]

#: Steps between two reads of the losses.
_LOOK = 100

#: Operators that a replay would repeat unchanged: sizes that the host has read, and random numbers.
_UNFIT = RANDOM | {"Compress", "NonMaxSuppression", "NonZero", "Unique"}


def cuda_graph_step(source: StepSource, weighting: bool | str = False) -> ModelProto:
    """A step that finds its rows and its number itself, so that all its inputs stay where they are.

    Parameters
    ----------
    source : StepSource
        Composes the step, with the sizes of a batch.
    weighting : bool or "elements"
        Whether the rows have weights, or the elements of the targets.

    Returns
    -------
    onnx.ModelProto
        Inputs: as of the step, the model's, the targets and the weights with all the rows, the iteration as the number
        of batches seen before the first of some steps; ``order``, (steps, rows of a batch), the rows of each batch;
        ``position``, the number of this step; ``losses``, (steps,). Outputs: as of the step, the next position, and the
        losses with the loss of this step in its place.
    """
    step = source.compose(weighting)
    inputs, outputs, names, rows = step.inputs, step.outputs, step.names, step.all_rows
    seen, i = (variable(n, np.int64, []) for n in (names.iteration, names.free("position")))
    order = variable(names.free("order"), np.int64, [_LOOK, step.batch_size])
    losses = variable(names.free("losses"), outputs[names.loss].dtype, [_LOOK])
    taken = op.Gather(order, i, axis=0)
    batch_rows = {inputs[n]: op.Gather(v, taken, axis=0) for n, v in rows.items()}
    new = dict(zip(outputs, rewrite(list(outputs.values()), {**batch_rows, inputs[names.iteration]: seen + i + 1}),
                   strict=True))
    loss = new.pop(names.loss)
    new[names.new(names.free("position"))] = i + 1
    new[names.new(names.free("losses"))] = op.Where(op.Equal(np.arange(_LOOK), i), loss, losses)
    kept = {n: v for n, v in inputs.items() if n in {*step.state, *step.fixed}}
    run = {names.free("order"): order, names.iteration: seen, names.free("position"): i, names.free("losses"): losses}
    return build({**rows, **run, **kept}, new, name="captured")


class CudaGraphEngine(EpochEngine):
    """A graph a step, whose inputs and outputs have their places on the device: recorded once, and replayed.

    A recording leads from a set of buffers to the other, and a second back; onnxruntime runs a step several times
    before it records it, which changes nothing, as no step writes its inputs. Where a step cannot be recorded, the
    epochs are those of `EpochEngine`, and `reason` says why.

    Experimental: the tests run it on a stand-in for a GPU, and it has not run on a GPU yet.

    Parameters
    ----------
    source : StepSource
        Composes the steps.
    """

    name = "step"

    def __init__(self, source: StepSource):
        super().__init__(source)
        logger.warning("the CUDA graph engine is experimental: no GPU has run it yet; engine='epoch' does without it")
        self._resident: _Resident | None = None
        self._refused = False

    def graphs(self) -> dict[str, ModelProto]:
        """The step, with symbolic sizes where the model has them."""
        if self._refused:
            return super().graphs()
        return {"step": cuda_graph_step(self.source, self.weighting)}

    def start(self, data: Mapping[str, np.ndarray]) -> None:
        """Say where the rows come from; where there is room for them on the device, recordings stay."""
        super().start(data)
        data = self._data  # with numbers for strings
        if self._resident is not None and self._resident.takes(data):
            self._resident.fill(data)
        elif self._resident is not None and (self.iteration == 0 or self._resident.is_like(data)):
            self._drop_recordings()

    def _drop_recordings(self) -> None:
        """Forget the recordings, and the rows that they read."""
        self._resident = None
        for key in [key for key in self._programs if key.kind == "captured"]:
            del self._programs[key]

    def _train(self, batches: np.ndarray, shapes: Shapes, mean: WeightedMean, steps: int) -> None:
        """Take a step for each row of `batches`, by replaying a recording for these shapes."""
        if (program := self._captured(shapes, batches.shape[1])) is None:
            super()._train(batches, shapes, mean, steps)
            return
        for part in (batches[start : start + _LOOK] for start in range(0, len(batches), _LOOK)):
            for weight, loss in zip(self._weights_of(part).tolist(), program(part).tolist(), strict=True):
                mean.add(weight * loss, weight)

    def _captured(self, shapes: Shapes, rows: int) -> _CapturedProgram | None:
        """The step of batches of these shapes, or None where it cannot be recorded, or reads rows of other shapes."""
        is_resident = self._resident is None or self._resident.takes(self._data)
        if self._refused or not self._is_whole or is_symbolic(shapes) or not is_resident:
            return None
        try:  # Another thread would record once more: see below.
            return self._program("captured", shapes, rows, threading.get_ident())
        except OrtPartialError as e:
            self._refused = True
            self._drop_recordings()
            self.name, self.reason = "epoch", f"the device does not record a step: {e}"
            return None

    def _open(self, key: ProgramKey) -> object:
        """A step to be replayed, or a program of an `EpochEngine`."""
        if key.kind != "captured":
            return super()._open(key)
        if self._resident is None:
            self._resident = _Resident(self._data, self.source.device)
        return _CapturedProgram(self, self._source_for(key.shapes), key.shapes[0][1][0], self._resident)


class _Resident:
    """All the rows of several arrays, copied to a place on a device where others may follow."""

    def __init__(self, data: Mapping[str, np.ndarray], device: str | Device):
        self.buffers = {n: Buffer(a, device) for n, a in data.items()}

    def is_like(self, data: Mapping[str, np.ndarray]) -> bool:
        """Whether these rows are of the same kind."""
        return data.keys() == self.buffers.keys() and all(
            (a.dtype, a.shape[1:]) == (b.dtype, b.shape[1:])
            for a, b in zip(data.values(), map(self.buffers.__getitem__, data), strict=True))

    def takes(self, data: Mapping[str, np.ndarray]) -> bool:
        """Whether these rows may follow: of the same kind, and no more of them."""
        return self.is_like(data) and all(len(a) <= self.buffers[n].shape[0] for n, a in data.items())

    def fill(self, data: Mapping[str, np.ndarray]) -> None:
        """Let these rows follow; the places after the last are read by nobody."""
        for n, b in self.buffers.items():
            b.fill(data[n] if data[n].shape == b.shape else np.resize(data[n], b.shape))


class _CapturedProgram:
    """A step twice: from the first set of buffers into the second, and back.

    Each has a session of its own, which runs nothing else. A recording goes on reading the host memory that told
    kernels such as Concat where their inputs are, and onnxruntime from 1.19 on gives this memory to the next run of the
    session that is no replay.
    """

    source: tuple[int, int] | None = None

    def __init__(self, engine: CudaGraphEngine, source: StepSource, rows: int, resident: _Resident):
        names, device = source.names, Device.parse(source.device)
        graph = cuda_graph_step(source, engine.weighting)
        if unfit := next((n for n in graph.graph.node if n.op_type in _UNFIT), None):
            raise ModelError(f"{unfit.op_type} (node {unfit.name!r}) is another one in each step.")
        self.engine = engine
        self.order = Buffer.empty((_LOOK, rows), np.int64, device)
        self.seen, self.seed = Buffer.empty((), np.int64, device), Buffer.empty(engine.seed.shape, np.int32, device)
        self.controls = {n: Buffer.empty(b.shape, b.dtype, device) for n, b in engine.controls.items()}
        self.positions = [Buffer.empty((), np.int64, device) for _ in range(2)]
        self.losses = [Buffer(np.zeros(_LOOK, source.dtype), device) for _ in range(2)]
        shared = {**resident.buffers, names.free("order"): self.order, names.iteration: self.seen,
                  names.seed: self.seed, **self.controls, **engine.kept}
        private = names.free("position"), names.free("losses")
        sides = [{**side, **dict(zip(private, pair, strict=True))}
                 for side, *pair in zip(engine.buffers, self.positions, self.losses, strict=True)]
        self.runs = []
        for read, new in directions(sides, names):
            options = session_options(source.threads(), graph.graph)
            session = Session(graph, device=replace(device, capture=True), options=options)
            self.runs.append(bind(session, {**shared, **read}, new).run)

    def read_from(self, data: Mapping[str, np.ndarray], rows: int) -> None:
        """Nothing to do: the rows are read where the device keeps them."""

    def __call__(self, batches: np.ndarray) -> np.ndarray:
        """Take some steps; returns their losses."""
        engine, n = self.engine, len(batches)
        self.order.fill(np.resize(batches, self.order.shape))
        self.seen.fill(np.array(engine.iteration))
        self.seed.fill(engine.seed.numpy())
        for name, buffer in self.controls.items():
            buffer.fill(engine.controls[name].numpy())
        self.positions[engine.side].fill(np.zeros((), np.int64))
        for _ in range(n):
            if engine.local.options is not None and engine.local.options.terminate:  # A replay does not look at it.
                raise ModelError("The training was told to end.")
            self.runs[engine.side](engine.local.options)
            engine.side ^= 1
            engine.iteration += 1
        return self.losses[engine.side].numpy()[:n]
