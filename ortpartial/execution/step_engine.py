"""The step engine: a run of a graph for every step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import ModelProto

from ortpartial.runtime import Buffer, Session

from .program import Program, RunLocal, bind, directions
from .runner import ProgramKey, StepRunner
from .shared_sessions import shared_sessions
from .step import StepSource

__all__ = ["StepEngine"]


class StepEngine(StepRunner):
    """A graph for each step, from our own gradient, on any onnxruntime.

    Parameters
    ----------
    source : StepSource
        Composes the steps.
    """

    name = "step"

    def _join_buffers(self) -> None:
        """Lay small tensors side by side; `tensors` are the buffers that a step takes."""
        source = self.source
        self.tensors = dict(self.buffers[0]), dict(self.buffers[1])
        for side, tensors in zip(self.buffers, self.tensors, strict=True):
            for name, vector in source.vectors.items():
                flat = np.concatenate([side[n].numpy().ravel() for n in vector.shapes])
                for n, part in vector.split_array(flat).items():
                    side[n] = Buffer(part, source.device)
                    del tensors[n]
                tensors[name] = Buffer(flat, source.device)

    def graphs(self) -> dict[str, ModelProto]:
        """The step, with symbolic sizes where the model has them."""
        return {"step": self.source.compose(self.weighting).build()}

    def _open(self, key: ProgramKey) -> object:
        """The step for batches of these shapes, or of all."""
        return _StepProgram(self, self._compile(key, _build_flat))

    def _compile(self, key: ProgramKey, build: Callable[..., ModelProto]) -> Session:
        """A session of a graph for these shapes, which trainings of equal graphs share."""

        def compile_session() -> Session:
            source = self._source_for(key.shapes)
            apart: dict[str, np.ndarray] = {}
            graph = build(source, self.weighting, apart)
            return Session(graph, device=source.device, threads=source.threads(), arrays=apart)

        return shared_sessions.get(self.identity, (key, self.weighting), compile_session)


def _build_flat(source: StepSource, weighting: bool | str, apart: dict[str, np.ndarray]) -> ModelProto:
    """The step, which takes vectors for small tensors."""
    return source.compose(weighting, flat=True).build(apart)


class _StepProgram(Program):
    """A step, bound twice: from the first set of buffers into the second, and back."""

    def __init__(self, engine: StepEngine, session: Session):
        names, self.loss = engine.source.names, np.zeros((), engine.source.dtype)
        self.local: RunLocal = engine.local
        loss = Buffer(self.loss)
        super().__init__([bind(session, {**read, **engine.fixed_inputs}, {names.loss: loss, **new})
                          for read, new in directions(engine.tensors, names)], engine.source.device)
        self.runs = [binding.run for binding in self.bindings]

    def __call__(self, side: int) -> float:
        self.runs[side](self.local.options)
        return float(self.loss)
