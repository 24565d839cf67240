"""The step engine: one run of one graph for every step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.runtime import Buffer, Session

from .engine import Engine, Program, ProgramKey, bind, directions
from .flat_weights import find_flat_groups
from .shared_sessions import shared_sessions
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

    def _join_buffers(self) -> None:
        """Lay the weights of a group side by side, and their states; `tensors` are the buffers that a step takes."""
        spec, self.groups = self.spec, find_flat_groups(self.spec)
        self.tensors = dict(self.sides[0]), dict(self.sides[1])
        for side, tensors in zip(self.sides, self.tensors, strict=True):
            for group in self.groups:
                for vector, names in group.names(spec.names, spec.shapes_of_states(group.first)).items():
                    flat = np.concatenate([side[n].numpy().ravel() for n in names])
                    for n, part in zip(names, group.split_array(flat), strict=True):
                        side[n] = Buffer(part, spec.device)
                        del tensors[n]
                    tensors[vector] = Buffer(flat, spec.device)

    def graphs(self) -> dict[str, ModelProto]:
        """The step, with symbolic sizes where the model has them."""
        return {"step": step_graph(self.spec, weighted=self._weighted)}

    def _open(self, key: ProgramKey) -> Any:
        """The step for batches of these shapes, or of all."""
        return _StepProgram(self, self._compile(key, partial(step_graph, groups=self.groups)))

    def _compile(self, key: ProgramKey, compose: Callable[..., ModelProto]) -> Session:
        """A session of a graph for these shapes, which trainings of equal graphs share."""

        def compile_session() -> Session:
            spec = self._spec_for(key.shapes)
            apart: dict[str, np.ndarray] = {}
            graph = compose(spec, weighted=self._weighted, apart=apart)
            return Session(graph, device=spec.device, threads=spec.threads(), arrays=apart)

        return shared_sessions.get(self.identity, (key, self._weighted), compile_session)


class _StepProgram(Program):
    """A step, bound twice: from the first set of buffers into the second, and back."""

    def __init__(self, engine: StepEngine, session: Session):
        names, self.loss = engine.spec.names, np.zeros((), engine.spec.dtype)
        loss = Buffer(self.loss)
        super().__init__(engine, [bind(session, {**read, **engine.given}, {names.loss: loss, **new})
                                  for read, new in directions(engine.tensors, names)])
        self.runs = [binding.run for binding in self.bindings]

    def __call__(self, side: int) -> float:
        self.runs[side](self.engine.local.options)
        return float(self.loss)
