"""The steps of a module and its optimizer as expressions: gradients, an update, both together, and an evaluation."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import Inputs
from ortpartial.exceptions import DataError, GraphError, ModelError
from ortpartial.execution import Arrays, Shapes, Step, StepNames, StepSource
from ortpartial.graph import Node, Value, cast, find_inputs, rewrite, variable
from ortpartial.model import Model, load
from ortpartial.rewrites import rewrite_model, rewrite_step
from ortpartial.runtime import Device, choose_threads
from ortpartial.training import draw_mask

from .graphs import TrainingGraph, load_lowered
from .optimizers import OptimizerModel
from .state import CheckpointState, state_name

__all__ = ["CALLS", "EVALUATION", "RATE", "SEED", "STEP", "UPDATE", "ArtifactSource", "Sizes", "Training"]

#: The shapes of inputs by name.
Sizes: TypeAlias = Mapping[str, Sequence[int]]

#: Names that no tensor of a file has.
RATE, STEP, SEED, CALLS = "learning_rate//", "step//", "seed//", "calls//"

#: The kinds of steps without gradients: the outputs of the evaluation model, and an update by gradients that are there.
EVALUATION, UPDATE = "evaluation", "update"


class Training(NamedTuple):
    """A kind of step: outputs and gradients.

    Parameters
    ----------
    updates : bool
        Whether the optimizer changes the parameters in the same graph.
    accumulates : bool
        Whether earlier gradients are added.
    """

    updates: bool
    accumulates: bool


@dataclass(frozen=True)
class ArtifactSource(StepSource):
    """The steps of a module and its optimizer.

    Parameters
    ----------
    graph : TrainingGraph
        The graph of outputs, gradients and statistics.
    evaluation : onnx.ModelProto or None
        The graph of an evaluation.
    optimizer : OptimizerModel or None
        The update of the parameters.
    state : CheckpointState
        Has the first numbers.
    device : Device
        Where steps run.
    sizes : dict of str to tuple of int, or None
        The shapes of the inputs of the user; None for any.
    kind : hashable
        `EVALUATION`, `UPDATE` or a `Training`.
    """

    graph: TrainingGraph
    evaluation: ModelProto | None
    optimizer: OptimizerModel | None
    state: CheckpointState
    device: Device
    sizes: Sizes | None = None
    kind: Hashable = field(default_factory=lambda: Training(updates=False, accumulates=False))

    @cached_property
    def names(self) -> StepNames:  # type: ignore[override]  # computed once
        """The names of new states, beside the names of the files and of the state."""
        outputs = [o.name for o in self.evaluation.graph.output] if self.evaluation is not None else []
        return StepNames.beside([*self.graph.inputs, *self.graph.outputs, *outputs, *self._changed, *self._frozen])

    @cached_property
    def _changed(self) -> list[str]:
        """The names of the tensors that steps change."""
        kinds = ("", "grad", *(self.optimizer.momentums if self.optimizer else ()))
        return [*(state_name(n, kind) for n in self.graph.gradients for kind in kinds), *self.graph.statistics]

    @cached_property
    def _frozen(self) -> list[str]:
        """The names of parameters that no step changes."""
        return [n for n, _ in self.state.parameters if n not in self._changed]

    @property
    def dtype(self) -> np.dtype:
        """Element type of the loss."""
        return self._training.outputs[self.graph.outputs[0]].dtype

    @property
    def inputs(self) -> Mapping[str, Value]:
        """The inputs of the user."""
        return {n: self._training.inputs[n] for n in self.graph.inputs}

    @property
    def first(self) -> Arrays:
        """The current state, which steps change."""
        return {n: self.state.read(n) for n in self._changed}

    @property
    def kept(self) -> Arrays:
        """Frozen parameters."""
        return {n: self.state.read(n) for n in self._frozen}

    @property
    def controls(self) -> Arrays:
        """Numbers that the module and its optimizer write before a step."""
        return {RATE: np.zeros((), np.float32), STEP: np.zeros((), np.int64), SEED: np.zeros(2, np.int32),
                CALLS: np.zeros((), np.int64)}

    @property
    def state_groups(self) -> Sequence[Collection[str]]:
        """Gradients and statistics, which an update leaves, and other steps may change alone."""
        return [{*(state_name(n, "grad") for n in self.graph.gradients), *self.graph.statistics}]

    def for_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> ArtifactSource:
        """The same steps for inputs of these shapes."""
        return replace(self, sizes=shapes)

    def for_any_shape(self, names: Collection[str], shapes: Shapes) -> ArtifactSource:
        """The same steps for inputs of any shapes."""
        return replace(self, sizes=None)

    def for_kind(self, kind: Hashable) -> ArtifactSource:
        """Another kind of step."""
        return replace(self, kind=kind)

    def threads(self) -> int | None:
        """Number of threads of a step."""
        return choose_threads(list(self._step.outputs.values()))

    def compose(self, weighting: bool | str = False, *, flat: bool = False, branches: bool = True) -> Step:
        """The step of the kind."""
        return self._step

    @cached_property
    def _training(self) -> Model:
        """The gradient graph."""
        return load_lowered(self.graph, self.sizes)

    @cached_property
    def _step(self) -> Step:
        """The step, with an error that lists the shapes where they do not fit together."""
        try:
            if isinstance(self.kind, Training):
                return self._compose_training(self.kind)
            return self._compose_update() if self.kind == UPDATE else self._compose_evaluation()
        except (GraphError, ModelError) as e:
            if not self.sizes:
                raise
            listed = ", ".join(f"{n} {shape}" for n, shape in self.sizes.items())
            raise DataError(f"The shapes of the inputs do not fit together: {listed}. {e}") from None

    def _compose_training(self, kind: Training) -> Step:
        """Forward and backward, and where it is asked for the step of the optimizer."""
        graph, (model, inputs) = self.graph, read_values(self._training)
        gradients = {n: model.outputs[name].stated(inputs[n].shape) for n, name in graph.gradients.items()}
        earlier = {n: variable(state_name(n, "grad"), g.dtype, g.shape) for n, g in gradients.items()}
        inputs |= {state_name(n, "grad"): v for n, v in earlier.items()}
        if kind.accumulates:
            gradients = {n: earlier[n] + g for n, g in gradients.items()}
        written = {n: model.outputs[name].stated(inputs[n].shape) for n, name in graph.statistics.items()}
        written |= {state_name(n, "grad"): g for n, g in gradients.items()}
        if kind.updates:
            assert self.optimizer is not None
            more, updates = compose_update(self.optimizer, {n: inputs[n] for n in gradients}, gradients)
            inputs |= more
            written |= updates
        return self._finish(inputs, {n: model.outputs[n] for n in graph.outputs}, written)

    def _compose_update(self) -> Step:
        """A step of the optimizer alone, which reads the gradients that a module has computed."""
        assert self.optimizer is not None
        arrays = {n: self.state.read(n) for n in self.graph.gradients}
        parameters = {n: variable(n, a.dtype, a.shape) for n, a in arrays.items()}
        gradients = {n: variable(state_name(n, "grad"), a.dtype, a.shape) for n, a in arrays.items()}
        inputs, written = compose_update(self.optimizer, parameters, gradients)
        return self._finish({**parameters, **{state_name(n, "grad"): g for n, g in gradients.items()}, **inputs}, {},
                            written)

    def _compose_evaluation(self) -> Step:
        """The outputs of the evaluation model."""
        assert self.evaluation is not None
        model = load(self.evaluation, batch=self.sizes)
        return self._finish(model.inputs, rewrite_model(model).outputs, {})

    def _finish(self, inputs: Mapping[str, Value], outputs: Mapping[str, Value], written: Mapping[str, Value]) -> Step:
        """A step with all outputs in faster operators."""
        names = self.names
        fast = rewrite_step({**outputs, **{names.new(n): v for n, v in written.items()}})
        read = find_inputs(list(fast.values()), inputs)
        unread = {n: inputs[n] for n in written if n not in read}
        return Step({**read, **unread}, fast, names, frozenset({*self._frozen, *self.controls}))


def read_values(model: Model) -> tuple[Model, dict[str, Value]]:
    """The values of a gradient graph with Dropout drawn by counters, and the inputs of that."""
    counters = {SEED: variable(SEED, np.int32, [2]), CALLS: variable(CALLS, np.int64, [])}
    count = 0

    def change(node: Node, inputs: Inputs) -> list[Value] | None:
        nonlocal count
        mode = node.inputs[2] if node.op_type == "Dropout" and len(node.inputs) > 2 else None
        if node.domain or mode is None or mode.array is None or not mode.array.item():
            return None
        ratio = node.inputs[1]
        if ratio is not None and ratio.array is None:
            raise ModelError(f"{node!r} computes its ratio; a constant was expected.")
        rate = 0.5 if ratio is None or ratio.array is None else float(ratio.array.item())
        mask = draw_mask(inputs[0], 1 - rate, counters[SEED], counters[CALLS], count)
        count += 1
        return [inputs[0] * mask, cast(mask, variable("bool", np.bool_, []))]

    outputs = dict(zip(model.outputs, rewrite(list(model.outputs.values()), {}, change), strict=True))
    simplified = rewrite_model(replace(model, outputs=outputs))
    return simplified, {**simplified.inputs, **(counters if count else {})}


def compose_update(
    optimizer: OptimizerModel, parameters: Mapping[str, Value], gradients: Mapping[str, Value]
) -> tuple[dict[str, Value], dict[str, Value]]:
    """A step of an optimizer as values.

    Parameters
    ----------
    optimizer : OptimizerModel
        The update.
    parameters, gradients : dict of str to Value
        By parameter, its content and its gradient.

    Returns
    -------
    inputs : dict of str to Value
        The further inputs of the update.
    written : dict of str to Value
        The new parameters and momentums, by their names in the state.
    """
    inputs = {RATE: variable(RATE, np.float32, []), STEP: variable(STEP, np.int64, [])}
    written: dict[str, Value] = {}
    for (n, w), g in zip(parameters.items(), optimizer.clip(list(gradients.values())), strict=True):
        momentums = {state_name(n, m): variable(state_name(n, m), w.dtype, w.shape) for m in optimizer.momentums}
        inputs |= momentums
        new = optimizer.update(w, g, list(momentums.values()), inputs[RATE], inputs[STEP])
        written |= {state_name(n, m): v.stated(w.shape) for m, v in zip(["", *optimizer.momentums], new, strict=True)}
    return inputs, written
