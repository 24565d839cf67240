"""The step engine: one run of one graph for every step."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.runtime import Buffer, Session

from .engine import Batch, Engine, ProgramKey, bind, directions
from .step import step_graph

__all__ = ["StepEngine"]


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


    def _open(self, key: ProgramKey) -> Any:
        """The step for batches of so many rows."""
        return _StepProgram(self, key.rows)


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
        self.runs = [bind(session, {**self.batch.buffers, **read, **engine.given}, {names.loss: loss, **new}).run
                     for read, new in directions(engine.sides, names)]

    def __call__(self, side: int) -> float:
        self.runs[side](self.engine.options)
        return float(self.loss)
