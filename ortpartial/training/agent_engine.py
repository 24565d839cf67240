"""The agent engine: forward and backward by onnxruntime-training's TrainingAgent, the rest in graphs of their own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.exceptions import DeviceError, ModelError
from ortpartial.execution import Program, ProgramKey, StepRunner, bind, directions
from ortpartial.runtime import Buffer, Device, Session, TrainingAgent

from .source import SpecSource, spec_of
from .spec import TrainingSpec
from .split_graphs import forward_graph, loss_graph, penalty_graph, update_graph

__all__ = ["AgentEngine"]


class AgentEngine(StepRunner):
    """Forward and backward by the TrainingAgent; loss, penalty and update in sessions of their own.

    Parameters
    ----------
    source : SpecSource
        The training.
    """

    name = "agent"
    runs = (("forward_backward", ("model",)), ("learning_loss", ("loss",)), ("forward_backward", ("gradient",)),
            ("learning_rate", ("update",)))

    source: SpecSource

    def __init__(self, source: SpecSource):
        spec = source.spec
        if not Device.parse(spec.device).is_cpu:
            raise DeviceError(f"engine='agent' trains on the CPU alone, not on {spec.device!r}; use engine='step'.")
        if spec.vocabulary is not None:
            raise ModelError("engine='agent' reads no inputs of strings; use engine='step'.")
        super().__init__(source)
        model = replace(spec.model, outputs={**spec.model.outputs, **spec.read})
        self.forward = forward_graph(model, spec.weights, list(spec.losses), used_only=True)
        self.penalty = penalty_graph(spec)
        self.update = update_graph(spec, penalized=spec.penalized)
        self.agent = TrainingAgent(self.forward, list(spec.weights), device=spec.device, threads=spec.threads())
        session = partial(Session, device=spec.device, threads=spec.threads())
        self.update_session = session(self.update)
        self.penalty_session = session(self.penalty) if self.penalty is not None else None

    def check(self) -> None:
        """Nothing is left to refuse: the agent has been made."""

    def graphs(self) -> dict[str, ModelProto]:
        """The graphs of forward, forward and backward, loss, penalty and update."""
        graphs = {"forward": self.forward, "forward_backward": ModelProto.FromString(self.agent.gradient_onnx),
                 "learning_loss": loss_graph(self.source.spec, weighted=self.weighting), "learning_rate": self.update}
        return {**graphs, "learning_penalty": self.penalty} if self.penalty is not None else graphs

    def _open(self, key: ProgramKey) -> Any:
        """A step for batches of these shapes, or of all."""
        return _AgentProgram(self, spec_of(self._source_for(key.shapes)))


class _AgentProgram(Program):
    """Forward, loss, penalty, backward, update, each with its lasting inputs and outputs bound once."""

    def __init__(self, engine: AgentEngine, spec: TrainingSpec):
        names = spec.names
        session = Session(loss_graph(spec, weighted=engine.weighting), device=spec.device, threads=spec.threads())
        self.agent, self.local = engine.agent, engine.local
        self.buffers = [{w: side[w] for w in spec.weights} for side in engine.buffers]
        self.inputs, self.outputs = spec.model.inputs, list(spec.losses)
        self.gradients = {w: names.grad(w) for w in spec.weights}
        self.loss = np.zeros((), spec.dtype)
        self.output_gradients = list(map(names.grad, self.outputs))
        self.loss_binding = bind(session, {}, {names.loss: Buffer(self.loss)})
        super().__init__([self.loss_binding], spec.device)
        penalties = {names.penalty_grad(w): Buffer(np.zeros_like(spec.model.arrays[w]), spec.device)
                     for w in spec.penalized}
        self.penalty_runs, self.update_bindings = [], []
        for read, new in directions(engine.buffers, names):
            if engine.penalty_session is not None:
                self.penalty_runs.append(bind(engine.penalty_session, read, penalties).run)
            binding = bind(engine.update_session, {**read, **engine.fixed_inputs, **penalties}, new)
            self.update_bindings.append((binding, binding.run))

    def __call__(self, side: int) -> float:
        assert self.batch is not None
        inputs = {n: b for n, b in self.batch.buffers.items() if n in self.inputs}
        outputs, state = self.agent.forward(inputs, self.buffers[side])
        assert state is not None
        loss = self.loss_binding
        for name, y in zip(self.outputs, outputs, strict=True):
            loss.bind_ortvalue_input(name, y)
        loss.run(self.local.options)
        output_gradients = loss.ortvalues()
        gradients = self.agent.backward([output_gradients[n] for n in self.output_gradients], state)
        if self.penalty_runs:
            self.penalty_runs[side](self.local.options)
        binding, run = self.update_bindings[side]
        for w, g in gradients.items():
            binding.bind_ortvalue_input(self.gradients[w], g)
        run(self.local.options)
        return float(self.loss)
