"""What if the weights take most of the memory? `InplaceEngine` keeps one copy of them, and overwrites it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.graph import topological
from ortpartial.model import Model
from ortpartial.rewrites import checkpoint_gradient, recompute_cheap
from ortpartial.runtime import Buffer, Device, Session, session_options

from .engine import Batch, Engine, TrainingSpec
from .split_graphs import update_graph
from .step import Names, gradient_graph
from .step_engine import EpochEngine, StepEngine

__all__ = ["InplaceEngine", "can_overwrite", "prefers_inplace"]

#: Bytes of trained weights from which on two copies of them are one too many.
_BIG = 2**24

#: Operators that write an element after they have read all that it depends on.
_ELEMENTWISE = frozenset({"Add", "Div", "Identity", "Max", "Min", "Mul", "Sub", "Sum"})


class InplaceEngine(Engine):
    """Gradient and update in two graphs, of which the second overwrites weights and states where they are.

    All gradients are there before the first weight changes. So a run that is interrupted has changed nothing, and a
    step whose loss or gradients are no finite numbers is not taken.

    Parameters
    ----------
    setup : Setup
        What is trained.
    """

    name = "step"
    copies = 1

    def __init__(self, setup: TrainingSpec):
        super().__init__(setup)
        self.saving: dict[str, Any] = {"low_memory": True, "arena": setup.gradient is None}
        names = Names.of(setup.model)
        self._update = update_graph({w: setup.model.initializers[w] for w in setup.weights}, setup.rate, names)
        self.updated = [n for n in self.sides[0] if n not in setup.statistics]
        self.overwrites = can_overwrite(self._update, {n: names.new(n) for n in self.updated})

    @cached_property
    def update(self) -> Session:
        """The second graph, opened after the first, whose values decide how memory is shared."""
        return Session(self._update, options=session_options(self.setup.threads(), **self.saving))

    def graphs(self) -> dict[str, ModelProto]:
        """The graphs of the gradient and of the update."""
        return {"gradient": self.gradient(self.setup.model), "update": self._update}

    def gradient(self, model: Model) -> ModelProto:
        """The graph of the gradient."""
        s = self.setup
        gradient = s.gradient or checkpoint_gradient(recompute_cheap)
        return gradient_graph(model, s.weights, s.losses, s.penalty, weighted=self._weighted, train_mode=s.train_mode,
                              gradient=gradient)

    def program(self, rows: int) -> _LeanProgram:
        """A step for batches of so many rows."""
        return _LeanProgram(self, rows)


class _LeanProgram:
    """A step: the gradients, and then the update, where they are finite."""

    def __init__(self, engine: InplaceEngine, rows: int):
        setup, self.names = engine.setup, Names.of(engine.setup.model)
        graph = engine.gradient(model := setup.sized(rows))
        reserve = forward_bytes(model) > sum(setup.model.arrays[w].nbytes for w in setup.weights)
        options = session_options(setup.threads(model), graph.graph, reserve_arena=reserve, **engine.saving)
        session = Session(graph, options=options)
        self.engine, self.batch = engine, Batch(engine._data, rows)
        self.loss = np.zeros((), setup.dtype)
        self.binding = session.binding()
        for name, buffer in {**self.batch.buffers, **engine.sides[0], **engine.given}.items():
            if name in session.inputs:
                self.binding.bind_input(name, buffer)
        self.binding.bind_output(self.names.loss, Buffer(self.loss))

    def __call__(self, side: int) -> float:
        engine, names = self.engine, self.names
        self.binding.run(engine.options)
        found = self.binding.ortvalues()
        del found[names.loss]
        if not (np.isfinite(self.loss) and all(_is_finite(np.from_dlpack(v)) for v in found.values())):
            return float("nan") if np.isfinite(self.loss) else float(self.loss)
        buffers = engine.sides[side]
        statistics = {n: found.pop(names.new(n)) for n in engine.setup.statistics}
        state = {n: buffers[n] for n in engine.updated}
        binding = engine.update.binding()
        for name, buffer in {**state, names.iteration: engine.k}.items():
            if name in engine.update.inputs:
                binding.bind_input(name, buffer)
            if name in state and engine.overwrites:
                binding.bind_output(names.new(name), buffer)
        for name, g in found.items():
            binding.bind_ortvalue_input(name, g)
        binding.run()
        if not engine.overwrites:
            new = binding.ortvalues()
            for name, buffer in state.items():
                buffer.fill(np.from_dlpack(new[names.new(name)]))
        for name, v in statistics.items():
            buffers[name].fill(np.from_dlpack(v))
        return float(self.loss)


def forward_bytes(model: Model) -> int:
    """How much all values on the way to the outputs of a model take, as far as their sizes are known.

    Parameters
    ----------
    model : Model
        The model.

    Returns
    -------
    int
    """
    values = [node.outputs[0] for node in topological(list(model.outputs.values()))]
    return sum(prod(known) * v.dtype.itemsize for v in values
               if len(known := [n for n in v.shape or () if isinstance(n, int)]) == len(v.shape or (None,)))


def _is_finite(array: np.ndarray) -> bool:
    """Whether all numbers are finite: so they are where their sum is, which is found faster."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum()) or np.isfinite(array).all())


def prefers_inplace(kind: type[Engine], setup: TrainingSpec) -> bool:
    """Whether a `InplaceEngine` is to take the place of another engine: weights are big, or values are not to be kept.

    Parameters
    ----------
    kind : type
        The other engine.
    setup : Setup
        What is trained.

    Returns
    -------
    bool
    """
    big = sum(setup.model.arrays[w].nbytes for w in setup.weights) >= _BIG or setup.gradient is not None
    suits = kind in (EpochEngine, StepEngine) and setup.precision is None
    return big and suits and Device.parse(setup.device).shares_memory


def can_overwrite(model: ModelProto, outputs: Mapping[str, str]) -> bool:
    """Whether outputs may be written where inputs are read: nothing reads an input later than that.

    Parameters
    ----------
    model : onnx.ModelProto
        The graph.
    outputs : dict of str to str
        For every input that is overwritten the output that takes its place.

    Returns
    -------
    bool

    Examples
    --------
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import op, variable
    >>> w, g = variable("w", "float32", [2]), variable("g", "float32", [2])
    >>> can_overwrite(build([w, g], {"w_new": w - 0.1 * g}), {"w": "w_new"})
    True
    >>> can_overwrite(build([w, g], {"w_new": w - g, "step": op.Abs(w)}), {"w": "w_new"})
    False
    """
    nodes: dict[str, Any] = {o: node for node in model.graph.node for o in node.output if o}
    readers: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for i in node.input:
            readers.setdefault(i, []).append(node)
    for before, after in outputs.items():
        last = nodes[after]
        earlier, stack = {last.name} if last.op_type in _ELEMENTWISE else set(), list(last.input)
        while stack:
            node = nodes.get(stack.pop())
            if node is not None and node.name not in earlier:
                earlier.add(node.name)
                stack.extend(node.input)
        if any(node.name not in earlier for node in readers.get(before, ())):
            return False
    return True
