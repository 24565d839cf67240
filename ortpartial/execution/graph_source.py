"""Graph source: the steps of a training whose graphs exist, as a file or the code of a module has written them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import Inputs
from ortpartial.exceptions import DataError, GraphError, ModelError
from ortpartial.graph import Node, Value, build, find_inputs, rewrite, topological, variable
from ortpartial.learning import apply_step
from ortpartial.model import Model, load, specialize
from ortpartial.rewrites import Precision, rewrite_model, rewrite_step
from ortpartial.runtime import Device, choose_threads

from .names import StepNames
from .step import Arrays, Exchanging, Step, StepSource
from .vectors import Vector

__all__ = ["GraphPart", "GraphSource"]


@dataclass(frozen=True)
class GraphPart:
    """A graph of a step; several parts run in turn, each on the state that the part before has left.

    Parameters
    ----------
    model : Model
        Its inputs are data and state, its outputs results and the state after it.
    updates : dict of str to str
        By state, the output that is its next value.
    sizes : dict of str to sequence of int
        The shapes of data, where the values of the model have others.
    """

    model: Model
    updates: Mapping[str, str]
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def results(self) -> dict[str, Value]:
        """The outputs that are no state."""
        bound = set(self.updates.values())
        return {n: v for n, v in self.model.outputs.items() if n not in bound}

    @classmethod
    def from_values(cls, inputs: Mapping[str, Value], outputs: Mapping[str, Value], updates: Mapping[str, str]
                    ) -> GraphPart:
        """A part whose values exist, without a model around them."""
        if any(node.bodies for node in topological(list(outputs.values()))):
            # Sizes decide which branches are taken and which values loops carry.
            return cls(load(build(inputs, outputs, name="step"), ties="file"), updates)
        values = {v.hint: v for v in inputs.values()} | dict(outputs)
        return cls(Model(ModelProto(), inputs, outputs, {}, {}, values), updates)

    def for_shapes(self, shapes: Mapping[str, Sequence[int]]) -> GraphPart:
        """The same part for data of these shapes alone."""
        batch = {n: s for n, s in shapes.items() if n in self.model.inputs}
        if self.model.graph is not None:
            return replace(self, model=specialize(self.model, batch=batch))
        return replace(self, sizes=batch)

    def compose(self, names: StepNames, results: Collection[str] | None = None) -> Step:
        """The part as it is run, with some of its results, or all."""
        outputs = {n: v for n, v in self.results.items() if results is None or n in results}
        outputs |= {names.new(key): self.model.outputs[value] for key, value in self.updates.items()}
        new = {n: variable(n, self.model.inputs[n].dtype, shape) for n, shape in self.sizes.items()}
        model = rewrite_model(replace(self.model, outputs=outputs), inputs=new)
        outputs = rewrite_step(_write_descent(model.outputs))
        inputs = find_inputs(list(outputs.values()), model.inputs)
        unread = {n: self.model.outputs[value] for n, value in self.updates.items() if n not in inputs}
        return Step(inputs | {n: variable(n, v.dtype, v.shape) for n, v in unread.items()}, outputs, names)


@dataclass(frozen=True)
class GraphSource(StepSource):
    """The steps of graphs that exist.

    Parameters
    ----------
    parts : tuple of GraphPart
        The graphs, which run in turn.
    state : dict of str to numpy.ndarray
        The first numbers of all that parts read as state.
    names : StepNames
        The names of loss, iteration and seed, and of new states.
    device : str or Device
        Where steps run.
    loss : str, optional
        The result whose mean is that of an epoch.
    counter : str, optional
        The state that counts the batches before this batch: the runner counts in its place.
    thread_count : int, optional
        Number of threads; by default as the sizes of a step suggest.
    exchanges : collection of str
        State whose new value is exchanged before the next part reads it: processes that train together add theirs up.
    exchange : callable, optional
        Takes the new values of a part that are exchanged, each in its `Buffer`, by state.
    weights : tuple of str
        The state that has to stay finite.
    row_weights : str, optional
        The data by which rows count in the mean of an epoch.
    flat : GraphPart, optional
        The only part, where it has vectors in place of some of the state.
    vectors : dict of str to Vector
        These vectors by name.
    precision : Precision, optional
        The mixed precision of the steps; machine code has bfloat16 alone.
    """

    parts: tuple[GraphPart, ...]
    state: Arrays
    names: StepNames
    device: str | Device = "cpu"
    loss: str | None = None
    counter: str | None = None
    thread_count: int | None = None
    exchanges: Collection[str] = ()
    exchange: Exchanging | None = None
    weights: tuple[str, ...] = ()
    row_weights: str | None = None
    flat: GraphPart | None = None
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    precision: Precision | None = None

    @property
    def is_cut(self) -> bool:  # type: ignore[override]
        """Whether a step is a single part, in the dtype of the model."""
        return len(self.parts) == 1 and self.precision is None

    @property
    def is_translatable(self) -> bool:
        """Whether its steps may be machine code."""
        return (self.precision is None or self.rounds) and super().is_translatable

    @property
    def rounds(self) -> bool:  # type: ignore[override]
        """Whether the operands of products are rounded to bfloat16."""
        return self.precision is not None and self.precision.rounds

    @property
    def _held(self) -> Arrays:
        """The state, without the parts that the runner holds by itself."""
        return {n: a for n, a in self.state.items() if n not in (self.counter, self.names.seed)}

    @property
    def _changed(self) -> set[str]:
        """The state that a step gives anew."""
        return {n for part in self.parts for n in part.updates}

    @property
    def inputs(self) -> Mapping[str, Value]:
        """The data that parts read."""
        return {n: v for part in self.parts for n, v in part.model.inputs.items() if n not in self.state}

    @property
    def dtype(self) -> np.dtype:
        """Element type of the loss."""
        assert self.loss is not None
        return next(part.results[self.loss].dtype for part in self.parts if self.loss in part.results)

    @property
    def first(self) -> Arrays:
        """The state that steps change."""
        return {n: a for n, a in self._held.items() if n in self._changed}

    @property
    def checked(self) -> Sequence[str]:
        """The state that has to stay finite."""
        return [n for n in self.weights if n in self._changed]

    @property
    def kept(self) -> Arrays:
        """The state that steps leave as it is."""
        return {n: a for n, a in self._held.items() if n not in self._changed}

    def for_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> GraphSource:
        """The same training for batches of these shapes."""
        try:
            return replace(self, parts=tuple([part.for_shapes(shapes) for part in self.parts]),
                           flat=self.flat and self.flat.for_shapes(shapes))
        except (GraphError, ModelError) as e:
            listed = ", ".join(f"{n} {shape}" for n, shape in shapes.items())
            raise DataError(f"The shapes of the inputs do not fit together: {listed}. {e}") from None

    def compose(self, weighting: bool | str = False, *, flat: bool = False, branches: bool = True) -> Step:
        """The step of an epoch, which returns the loss alone."""
        assert self.loss is not None
        (part,) = self.parts if self.flat is None or not flat else (self.flat,)
        step = self._count(part.compose(self.names, [self.loss]))
        outputs = {self.names.loss: step.outputs[self.loss], **{n: step.outputs[n] for n in step.state.values()}}
        return replace(step, outputs=outputs, kept=frozenset(self.kept))

    def compose_parts(self) -> list[Step]:
        """The steps of all parts, with all that they return."""
        return [self._count(part.compose(self.names)) for part in self.parts]

    def _count(self, step: Step) -> Step:
        """The step that reads the number of the batch from the runner."""
        if self.counter is None or self.counter not in step.inputs:
            return step
        kept = {n: v for n, v in step.outputs.items() if n != self.names.new(self.counter)}
        inputs = {n: v for n, v in step.inputs.items() if n != self.counter}
        if not find_inputs(list(kept.values()), {self.counter: step.inputs[self.counter]}):
            return replace(step, inputs=inputs, outputs=kept)
        k = variable(self.names.iteration, np.int64, [])
        counted = rewrite(list(kept.values()), {step.inputs[self.counter]: k - 1})
        outputs = dict(zip(kept, counted, strict=True))
        return replace(step, inputs={**inputs, **find_inputs(list(outputs.values()), {self.names.iteration: k})},
                       outputs=outputs)

    def threads(self) -> int | None:
        """Number of threads of a step."""
        return self.thread_count or choose_threads([v for part in self.parts for v in part.model.outputs.values()])

    def count_rows(self, data: Arrays) -> np.ndarray | None:
        """By how much each row counts."""
        return data.get(self.row_weights or "")

    def count_trained(self) -> int:
        """The number of elements of real numbers that steps change."""
        return sum(a.size for a in self.first.values() if a.dtype.kind == "f")


def _write_descent(outputs: Mapping[str, Value]) -> dict[str, Value]:
    """Outputs with w - η · step written as `apply_step` writes it, as in `fit`."""

    def change(node: Node, inputs: Inputs) -> list[Value] | None:
        if node.op_type != "Sub" or (scaled := inputs[1].node) is None or scaled.op_type != "Mul":
            return None
        eta, step = scaled.inputs
        like = inputs[0].shape is not None and inputs[0].shape == step.shape and inputs[0].is_static
        return [apply_step(inputs[0], eta, step)] if like and eta.array is not None and not eta.rank else None

    return dict(zip(outputs, rewrite(list(outputs.values()), {}, change), strict=True))
