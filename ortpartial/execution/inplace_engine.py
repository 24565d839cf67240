"""The in-place engine: a single copy of the weights, which each step overwrites, for large weights."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.exceptions import SettingError
from ortpartial.model import bodies, walk_graphs
from ortpartial.runtime import Buffer, Session, as_numpy, session_options

from .program import Program, bind
from .runner import ProgramKey, StepRunner
from .step import Arrays, Shapes, Step, StepSource

__all__ = ["InplaceEngine", "can_overwrite"]

#: Operators that write an element after they have read all that it depends on.
_ELEMENTWISE = frozenset({"Add", "Div", "Identity", "Max", "Min", "Mul", "Sub", "Sum"})


class InplaceEngine(StepRunner):
    """Gradient and update in two graphs, of which the second overwrites weights and states where they are.

    All gradients are there before the first weight changes. So a run that is interrupted has changed nothing, and a
    step whose loss or gradients are no finite numbers is not taken.

    Parameters
    ----------
    source : StepSource
        Composes the steps, which `StepSource.compose_halves` cuts in two.

    Raises
    ------
    SettingError
        Processes exchange numbers within a step.
    """

    name = "step"
    runs = (("gradient", ("model", "loss", "gradient")), ("update", ("update",)))
    copies = 1

    def __init__(self, source: StepSource):
        if source.exchanges:
            raise SettingError("A step that overwrites its state is taken as a whole, and exchanges come between its "
                               "parts; take another engine.")
        super().__init__(source)
        self._updates: dict[bytes, _Update] = {}
        #: Whether there is nothing to undo: a step whose results are not finite was not taken.
        self.can_undo = False

    @property
    def overwrites(self) -> bool:
        """Whether weights and states are overwritten where they are, and not by a copy."""
        _, updates = self.source.compose_halves(self.weighting)
        return all(update.overwrites for update in self.find_updates(updates).values())

    def graphs(self) -> dict[str, ModelProto]:
        """The graphs of the gradient and of the update, and of the sum of gradients that comes before it."""
        gradient, updates = self.source.compose_halves(self.weighting)
        names = {True: "update", False: "sum"}
        return {"gradient": gradient.build(), **{names[is_due]: step.build() for is_due, step in updates.items()}}

    def step(self, feeds: Arrays, kind: Hashable = None, check: Any = None, *, ahead: bool = False
             ) -> dict[str, np.ndarray]:
        """Take a step on a batch, as `StepRunner.step` does; a step with a number that is not finite is not taken."""
        program, outputs = self._call(feeds, kind)
        if check is not None:
            check(outputs)
        assert isinstance(program, _InplaceCall)
        self.can_undo = any(a.size == 1 and a.dtype.kind == "f" and not np.isfinite(a).all() for a in outputs.values())
        if not self.can_undo:
            program.update()
            self.iteration += 1
        return outputs

    def _open(self, key: ProgramKey) -> Any:
        """A step for batches of these shapes, or of all."""
        source = self._source_for(key.shapes)
        return _InplaceProgram(self, source, *source.compose_halves(self.weighting))

    def _open_call(self, source: StepSource, shapes: Shapes) -> _InplaceCall:
        """A new program for batches of these shapes, which returns all that a step does."""
        (part,) = source.compose_parts()
        gradient, update = part.cut()
        return _InplaceCall(self, source, gradient, {True: update})

    def open_gradient(self, source: StepSource, step: Step) -> Session:
        """The first half of a step, compiled for little memory."""
        apart: dict[str, np.ndarray] = {}
        graph = step.build(apart)
        options = session_options(source.threads(), graph.graph, low_memory=True, arena=self.source.shares_arena,
                                  reserve_arena=source.reserves_arena)
        return Session(graph, options=options, arrays=apart)

    def find_updates(self, steps: Mapping[bool, Step]) -> dict[bool, _Update]:
        """Second halves of steps, which batches of all shapes share where they are equal."""
        updates = {}
        for is_due, step in steps.items():
            if not step.outputs:
                continue
            graph = step.build()
            key = graph.SerializeToString(deterministic=True)
            updates[is_due] = self._updates.setdefault(key, _Update(self, graph, step.state))
        return updates

    def update(self, step: Step, updates: Mapping[bool, _Update], values: Mapping[str, Any]) -> None:
        """Overwrite the state by values of the first half, or add them to the sums that a later batch updates it by."""
        is_due = (self.iteration + 1) % self.source.accumulate == 0 or len(updates) < 2
        if updates:
            updates[is_due].run({n: v for n, v in values.items() if n not in step.state.values()})
        for name, new in step.state.items():  # Last, as the second half may read it.
            self.buffers[0][name].fill(np.from_dlpack(values[new]))
        if is_due and len(updates) > 1:
            for name in updates[False].state:
                self.set(name, np.zeros((), np.float32))


class _Update:
    """A graph that takes gradients, and overwrites weights and states."""

    def __init__(self, engine: InplaceEngine, graph: ModelProto, state: Mapping[str, str]):
        self.engine, self.graph, self.state = engine, graph, state
        self.overwrites = can_overwrite(graph, state)

    @cached_property
    def session(self) -> Session:
        """Opened after the gradient, whose values decide how memory is shared."""
        source = self.engine.source
        options = session_options(source.threads(), low_memory=True, arena=source.shares_arena)
        return Session(self.graph, options=options)

    def run(self, gradients: Mapping[str, Any]) -> None:
        """Overwrite weights and states."""
        buffers = self.engine.buffers[0]
        new = {after: buffers[n] for n, after in self.state.items()} if self.overwrites else {}
        binding = bind(self.session, {**buffers, **self.engine.fixed_inputs}, new)  # It holds gradients: not for long.
        for name, g in gradients.items():
            binding.bind_ortvalue_input(name, g)
        binding.run()
        if not self.overwrites:
            values = binding.ortvalues()
            for name, after in self.state.items():
                buffers[name].fill(np.from_dlpack(values[after]))


class _InplaceProgram(Program):
    """A step: the gradients, and then the update, where they are finite."""

    def __init__(self, engine: InplaceEngine, source: StepSource, gradient: Step, updates: Mapping[bool, Step]):
        self.engine, self.gradient, self.updates = engine, gradient, engine.find_updates(updates)
        self.loss = np.zeros((), source.dtype)
        session = engine.open_gradient(source, gradient)
        self.binding = bind(session, {**engine.buffers[0], **engine.fixed_inputs},
                            {source.names.loss: Buffer(self.loss)})
        super().__init__([self.binding], source.device)

    def __call__(self, side: int) -> float:
        self.binding.run(self.engine.local.options)
        values = self.binding.ortvalues()
        del values[self.engine.source.names.loss]
        if not (np.isfinite(self.loss) and all(_is_finite(np.from_dlpack(v)) for v in values.values())):
            return float("nan") if np.isfinite(self.loss) else float(self.loss)
        self.engine.update(self.gradient, self.updates, values)
        return float(self.loss)


class _InplaceCall:
    """A step on the arrays of a batch: its results, and then the update, where it is asked for."""

    turn = 0

    def __init__(self, engine: InplaceEngine, source: StepSource, gradient: Step, updates: Mapping[bool, Step]):
        self.engine, self.gradient, self.updates = engine, gradient, engine.find_updates(updates)
        self.binding = bind(engine.open_gradient(source, gradient), {**engine.buffers[0], **engine.fixed_inputs}, {})
        self.inner = {*gradient.state.values()}.union(*(step.inputs for step in updates.values()))
        self._values: dict[str, Any] = {}

    def __call__(self, side: int, arrays: Arrays) -> dict[str, np.ndarray]:
        """The results of the step."""
        for name in self.binding.session.inputs:
            if name in arrays:
                self.binding.bind_input(name, arrays[name])
        self.binding.run(self.engine.local.options)
        values = self.binding.ortvalues()
        self._values = {n: v for n, v in values.items() if n in self.inner}
        return {n: np.array(as_numpy(v)) for n, v in values.items() if n not in self.inner}

    def update(self) -> None:
        """Take the step whose results were returned last."""
        self.engine.update(self.gradient, self.updates, self._values)
        self._values = {}


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
