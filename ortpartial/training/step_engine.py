"""Who trains by one graph? `EpochEngine`, for many steps at a time; `StepEngine`, for one."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.runtime import Buffer, Session

from .engine import Batch, DeviceRows, Engine
from .epoch import epoch_graph
from .spec import TrainingSpec
from .step import step_graph

__all__ = ["EpochEngine", "StepEngine"]

#: With more rows times trained numbers than this, a step is long: about 0.1 ms.
_LONG_STEP = 10**6

#: Steps of one run of an epoch at most: with short steps some tenths of a second, which is all that Ctrl-C can take
#: away; and how many bytes of rows a run may gather, so that they are still near when they are read.
_CHUNK, _NEAR = 2000, 2**20


class StepEngine(Engine):
    """One graph a step, from our own gradient, on any onnxruntime.

    Parameters
    ----------
    spec : TrainingSpec
        What is trained.
    """

    name = "step"

    def graphs(self) -> dict[str, ModelProto]:
        """The step, with symbolic sizes where the model has them."""
        return {"step": step_graph(self.spec, weighted=self._weighted)}


    def program(self, rows: int) -> _StepProgram:
        """The step for batches of so many rows."""
        return _StepProgram(self, rows)


class _StepProgram:
    """A step, bound twice: from the first set of buffers into the second, and back."""

    def __init__(self, engine: StepEngine, rows: int):
        spec = engine.spec.for_batch(rows)
        graph = step_graph(spec, weighted=engine._weighted)
        session = Session(graph, device=spec.device, threads=spec.threads())
        names = spec.names
        self.engine, self.batch = engine, Batch(engine._data, rows, spec.device)
        self.loss = np.zeros((), spec.dtype)
        loss = Buffer(self.loss)
        self.runs = []
        for read, write in (engine.sides, engine.sides[::-1]):
            binding = session.binding()
            for name, buffer in {**self.batch.buffers, **read, **engine.given}.items():
                if name in session.inputs:
                    binding.bind_input(name, buffer)
            binding.bind_output(names.loss, loss)
            for name, buffer in write.items():
                binding.bind_output(names.new(name), buffer)
            self.runs.append(binding.run)

    def __call__(self, side: int) -> float:
        self.runs[side](self.engine.options)
        return float(self.loss)


class EpochEngine(StepEngine):
    """Many steps in one run: a Scan over the batches of an epoch, with the data where they are.

    The last batch of an epoch, where it is smaller, is a step of its own. So are all where a step is long: then calling
    onnxruntime for each costs nothing beside it, and it reuses memory better outside of a Scan. The numbers are the
    same to the last bit.

    Parameters
    ----------
    spec : TrainingSpec
        What is trained.
    """

    name = "epoch"

    def __init__(self, spec: TrainingSpec):
        super().__init__(spec)
        self._trained = sum(spec.model.arrays[w].size for w in spec.weights)

    def graphs(self) -> dict[str, ModelProto]:
        """The steps of an epoch, with symbolic sizes where the model has them, and the step."""
        return {"epoch": epoch_graph(self.spec, weighted=self._weighted), **super().graphs()}

    def epoch(self, order: np.ndarray, batch_size: int) -> float:
        """Train once on the rows in this order; returns their weighted mean loss, each batch's before its step."""
        if batch_size * self._trained > _LONG_STEP:
            return super().epoch(order, batch_size)
        steps = len(order) // batch_size
        last = order[steps * batch_size :]
        weighted = self._data.get(self.spec.names.sample_weight)
        total = weight = 0.0
        every = np.ascontiguousarray(order[: steps * batch_size], np.int64).reshape(steps, batch_size)
        row = sum(a[:1].nbytes for a in self._data.values())
        chunk = max(1, min(_CHUNK, _NEAR // (batch_size * row)))
        for batches in (every[i : i + chunk] for i in range(0, steps, chunk)):
            key = "epoch", batch_size
            program = self._programs.get(key) or self._new(key)
            self.k.numpy()[...] = self.iteration
            losses = program(self.side, batches)
            self.side ^= 1
            self.iteration += len(batches)
            shares = np.full(len(batches), float(batch_size)) if weighted is None else (
                weighted[batches].sum(1, np.float64))
            total, weight = total + float(losses @ shares), weight + float(shares.sum())
        if len(last):
            share = float(len(last) if weighted is None else weighted[last].sum(dtype=np.float64))
            total += share * super().epoch(last, len(last))
            weight += share
        return total / weight if weight else 0.0

    def program(self, rows: Any) -> Any:
        """The steps of an epoch, asked for by ("epoch", rows), or a single step."""
        return _EpochProgram(self, rows[1]) if isinstance(rows, tuple) else super().program(rows)


class _EpochProgram:
    """The steps of an epoch, bound twice: from the first set of buffers into the second, and back."""

    def __init__(self, engine: EpochEngine, rows: int):
        spec = engine.spec.for_batch(rows)
        graph = epoch_graph(spec, weighted=engine._weighted)
        session = Session(graph, device=spec.device, threads=spec.threads())
        self.names, self.engine, self.batch = spec.names, engine, DeviceRows(engine._data, spec.device)
        self.bindings = []
        for read, write in (engine.sides, engine.sides[::-1]):
            binding = session.binding()
            for name, buffer in {**read, **engine.given}.items():
                if name in session.inputs:
                    binding.bind_input(name, buffer)
            for name, buffer in write.items():
                binding.bind_output(self.names.new(name), buffer)
            self.bindings.append(binding)
        self.data = [n for n in session.inputs if n in engine._data]
        self.order = next(n for n in session.inputs if n not in {*self.data, *engine.sides[0], *engine.given})

    def __call__(self, side: int, batches: np.ndarray) -> np.ndarray:
        binding = self.bindings[side]
        for name in self.data:
            binding.bind_input(name, self.batch.arrays[name])
        binding.bind_input(self.order, batches)
        binding.run(self.engine.options)
        return binding.ortvalues()[self.names.loss].numpy()
