"""The in-place engine: a single copy of the weights, which each step overwrites, for large weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.execution import Program, ProgramKey, StepRunner, bind
from ortpartial.model import bodies, walk_graphs
from ortpartial.rewrites import checkpoint_gradient, recompute_cheap
from ortpartial.runtime import Buffer, Session, session_options

from .source import SpecSource, spec_of
from .spec import TrainingSpec, forward_bytes
from .split_graphs import update_graph
from .step import gradient_graph

__all__ = ["InplaceEngine", "can_overwrite"]

#: Operators that write an element after they have read all that it depends on.
_ELEMENTWISE = frozenset({"Add", "Div", "Identity", "Max", "Min", "Mul", "Sub", "Sum"})


class InplaceEngine(StepRunner):
    """Gradient and update in two graphs, of which the second overwrites weights and states where they are.

    All gradients are there before the first weight changes. So a run that is interrupted has changed nothing, and a
    step whose loss or gradients are no finite numbers is not taken.

    Parameters
    ----------
    source : SpecSource
        The training.
    """

    name = "step"
    runs = (("gradient", ("model", "loss", "gradient")), ("update", ("update",)))
    copies = 1

    source: SpecSource

    def __init__(self, source: SpecSource):
        super().__init__(source)
        spec = source.spec
        self.saving: dict[str, Any] = {"low_memory": True, "arena": spec.gradient is None}
        self._update = _Update(self, update_graph(spec, due=True))
        # An If that decides would hold all weights and states a second time.
        self._sum = _Update(self, update_graph(spec, due=False)) if spec.accumulate > 1 else self._update

    @property
    def overwrites(self) -> bool:
        """Whether weights and states are overwritten where they are, and not by a copy."""
        return self._update.overwrites and self._sum.overwrites

    def graphs(self) -> dict[str, ModelProto]:
        """The graphs of the gradient and of the update, and of the sum of gradients that comes before it."""
        graphs = {"gradient": self.gradient(self.source.spec), "update": self._update.graph}
        return graphs if self._sum is self._update else {**graphs, "sum": self._sum.graph}

    def update(self, gradients: Mapping[str, Any]) -> None:
        """Update the weights by their gradients, or add these to the sums that a later batch updates them by."""
        is_due = (self.iteration + 1) % self.source.accumulate == 0
        (self._update if is_due else self._sum).run(gradients)
        if is_due and self._sum is not self._update:
            for name in self._sum.updated:
                self.set(name, np.zeros((), np.float32))

    def gradient(self, spec: TrainingSpec, apart: dict[str, np.ndarray] | None = None) -> ModelProto:
        """The graph of the gradient; see `build` for `apart`."""
        gradient = spec.gradient or checkpoint_gradient(recompute_cheap)
        return gradient_graph(spec.with_gradient(gradient), weighted=self.weighting, apart=apart)

    def _open(self, key: ProgramKey) -> Any:
        """A step for batches of these shapes, or of all."""
        return _InplaceProgram(self, spec_of(self._source_for(key.shapes)))


class _Update:
    """A graph that takes gradients, and overwrites weights and states."""

    def __init__(self, engine: InplaceEngine, graph: ModelProto):
        self.engine, self.graph, names = engine, graph, engine.source.names
        outputs = {o.name for o in graph.graph.output}
        self.updated = {n: names.new(n) for n in engine.buffers[0] if names.new(n) in outputs}
        self.overwrites = can_overwrite(graph, self.updated)

    @cached_property
    def session(self) -> Session:
        """Opened after the gradient, whose values decide how memory is shared."""
        return Session(self.graph, options=session_options(self.engine.source.threads(), **self.engine.saving))

    def run(self, gradients: Mapping[str, Any]) -> None:
        """Overwrite weights and states."""
        buffers = self.engine.buffers[0]
        new = {after: buffers[n] for n, after in self.updated.items()} if self.overwrites else {}
        binding = bind(self.session, {**buffers, **self.engine.fixed_inputs}, new)
        for name, g in gradients.items():
            binding.bind_ortvalue_input(name, g)
        binding.run()
        if not self.overwrites:
            values = binding.ortvalues()
            for name, after in self.updated.items():
                buffers[name].fill(np.from_dlpack(values[after]))


class _InplaceProgram(Program):
    """A step: the gradients, and then the update, where they are finite."""

    def __init__(self, engine: InplaceEngine, spec: TrainingSpec):
        self.engine, self.names = engine, spec.names
        apart: dict[str, np.ndarray] = {}
        graph = engine.gradient(spec, apart)
        reserve = forward_bytes(spec.rewritten) > sum(spec.model.arrays[w].nbytes for w in spec.weights)
        options = session_options(spec.threads(), graph.graph, reserve_arena=reserve, **engine.saving)
        session = Session(graph, options=options, arrays=apart)
        self.loss = np.zeros((), spec.dtype)
        self.binding = bind(session, {**engine.buffers[0], **engine.fixed_inputs}, {self.names.loss: Buffer(self.loss)})
        super().__init__([self.binding], spec.device)

    def __call__(self, side: int) -> float:
        engine, names = self.engine, self.names
        self.binding.run(engine.local.options)
        gradients = self.binding.ortvalues()
        del gradients[names.loss]
        if not (np.isfinite(self.loss) and all(_is_finite(np.from_dlpack(v)) for v in gradients.values())):
            return float("nan") if np.isfinite(self.loss) else float(self.loss)
        statistics = {n: gradients.pop(names.new(n)) for n in engine.source.spec.statistics}
        engine.update(gradients)
        for name, v in statistics.items():
            engine.buffers[side][name].fill(np.from_dlpack(v))
        return float(self.loss)


def _is_finite(array: np.ndarray) -> bool:
    """Whether all numbers are finite: so they are where their sum is, which is found faster."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum()) or np.isfinite(array).all())


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
    def reads(node: Any) -> list[str]:
        captured = (i for body in bodies(node) for g in walk_graphs(body) for inner in g.node for i in inner.input)
        return [*node.input, *captured]

    nodes: dict[str, Any] = {o: node for node in model.graph.node for o in node.output if o}
    readers: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for i in reads(node):
            readers.setdefault(i, []).append(node)
    for before, after in outputs.items():
        last = nodes[after]
        earlier, stack = {last.name} if last.op_type in _ELEMENTWISE else set(), reads(last)
        while stack:
            node = nodes.get(stack.pop())
            if node is not None and node.name not in earlier:
                earlier.add(node.name)
                stack.extend(reads(node))
        if any(node.name not in earlier for node in readers.get(before, ())):
            return False
    return True
