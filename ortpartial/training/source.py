"""Source of a training's steps: composes them from the spec, for the engines of `execution`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ortpartial.execution import Arrays, Shapes, Step, StepSource, Vector
from ortpartial.graph import Value

from .flat_weights import FlatGroup, find_flat_groups
from .names import Names
from .row_weights import count_rows, find_weighting
from .spec import ACCUMULATED, AVERAGE, TrainingSpec, forward_bytes, program_bytes
from .split_graphs import update_values
from .step import check_gradient, gradient_values, step_values
from .text_codes import encode_text

__all__ = ["SpecSource", "spec_of"]


@dataclass(frozen=True)
class SpecSource(StepSource):
    """The steps of a training that a spec describes.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    """

    spec: TrainingSpec

    @property
    def device(self) -> str:  # type: ignore[override]
        """Where it runs."""
        return self.spec.device

    @property
    def names(self) -> Names:  # type: ignore[override]
        """Names of the inputs and outputs of a training step."""
        return self.spec.names

    @property
    def dtype(self) -> np.dtype:
        """Element type of the loss."""
        return self.spec.dtype

    @property
    def inputs(self) -> Mapping[str, Value]:
        """The inputs of the model."""
        return self.spec.model.inputs

    @property
    def first(self) -> Arrays:
        """The weights and statistics of the model, and the loss scale."""
        return {**{w: self.spec.model.arrays[w] for w in self.spec.moving}, **self.spec.scaling}

    @cached_property
    def zeros(self) -> Mapping[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of the states of the weights."""
        spec = self.spec
        return {name: (spec.shapes_of_states(w)[s], spec.model.arrays[w].dtype) for name, (w, s) in spec.states.items()}

    @property
    def controls(self) -> Arrays:
        """Settings that the loop changes between two batches."""
        return self.spec.controls

    @property
    def checked(self) -> Sequence[str]:
        """Weights, statistics and sums of gradients."""
        return [*self.spec.moving, *(n for n, (_, s) in self.spec.states.items() if s == ACCUMULATED)]

    @cached_property
    def groups(self) -> list[FlatGroup]:
        """The weights that are updated as a vector."""
        return find_flat_groups(self.spec)

    @property
    def vectors(self) -> Mapping[str, Vector]:  # type: ignore[override]
        """The vectors of these weights and of their states."""
        spec = self.spec
        return {n: vector for group in self.groups
                for n, vector in group.vectors(spec.names.state, spec.shapes_of_states(group.first)).items()}

    @property
    def averages(self) -> Mapping[str, str]:
        """By weight, the state that is its average."""
        return {w: name for name, (w, s) in self.spec.states.items() if s == AVERAGE}

    @property
    def accumulate(self) -> int:  # type: ignore[override]
        """Number of batches of an update."""
        return self.spec.accumulate

    @property
    def average_start(self) -> int:  # type: ignore[override]
        """Number of the update after which averaging began."""
        return self.spec.average_start

    @property
    def skipped(self) -> str | None:  # type: ignore[override]
        """The number of steps that a loss scale has skipped."""
        return next(reversed(self.spec.scaling), None)

    def for_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> SpecSource:
        """The same training with the sizes of a batch."""
        return SpecSource(self.spec.for_batch({n: s for n, s in shapes.items() if n in self.spec.model.inputs}))

    def for_rows(self, rows: int) -> SpecSource:
        """The same training for batches of so many rows."""
        return SpecSource(self.spec.for_batch(rows))

    def for_any_shape(self, names: Collection[str], shapes: Shapes) -> SpecSource:
        """The same training with symbolic sizes, whose typical numbers come from a first batch."""
        pairs = [(v.shape or (), shape) for n, shape in shapes if (v := self.spec.model.inputs.get(n)) is not None]
        axes = [axis for pair in pairs for axis in zip(*pair, strict=False)]
        sizes = {d: n for d, n in axes if isinstance(d, str)}
        return SpecSource(replace(self.spec.for_inputs(names), sizes=sizes))

    def compose(self, weighting: bool | str = False, *, flat: bool = False, branches: bool = True) -> Step:
        """The step: see `StepSource.compose`."""
        spec = self.spec if branches else replace(self.spec, branches=False)
        inputs, outputs = step_values(spec, weighted=weighting, groups=self.groups if flat else ())
        return Step(inputs, outputs, spec.names, frozenset(spec.controls))

    def compose_halves(self, weighting: bool | str = False) -> tuple[Step, Mapping[bool, Step]]:
        """The gradients, and the updates by them, without an If that would hold all state a second time."""
        spec, kept = self.spec, frozenset(self.spec.controls)
        updates = {due: Step(*update_values(spec, due=due), spec.names, kept)
                   for due in ((True, False) if spec.accumulate > 1 else (True,))}
        return Step(*gradient_values(spec, weighted=weighting), spec.names, kept), updates

    @property
    def shares_arena(self) -> bool:  # type: ignore[override]
        """Whether memory stays with the process, where no checkpointing asks to give it back."""
        return self.spec.gradient is None

    @property
    def reserves_arena(self) -> bool:  # type: ignore[override]
        """Whether activations take more memory than weights."""
        return forward_bytes(self.spec.rewritten) > sum(self.spec.model.arrays[w].nbytes for w in self.spec.weights)

    def threads(self) -> int | None:
        """Number of threads of a step."""
        return self.spec.threads()

    @property
    def rounds(self) -> bool:  # type: ignore[override]
        """Whether the operands of products are rounded to bfloat16."""
        return self.spec.precision is not None and self.spec.precision.rounds

    @property
    def is_translatable(self) -> bool:
        """Whether its steps may be machine code, whose only mixed precision rounds operands."""
        return (self.spec.precision is None or self.rounds) and super().is_translatable

    def count_trained(self) -> int:
        """The number of elements of the weights."""
        return sum(self.spec.model.arrays[w].size for w in self.spec.weights)

    def count_bytes(self) -> int:
        """How much a program takes."""
        return program_bytes(self.spec.rewritten)

    def encode(self, data: Arrays) -> Arrays:
        """The data with strings replaced by their places in the vocabulary."""
        return encode_text(data, self.spec.vocabulary)

    def find_weighting(self, data: Arrays) -> bool | str:
        """Whether rows have weights, or elements of targets."""
        return find_weighting(self.spec, data)

    def count_rows(self, data: Arrays) -> np.ndarray | None:
        """By how much each row counts."""
        return count_rows(self.spec, data)

    def find_stale(self, former: StepSource) -> Collection[str]:
        """The states of weights for which an optimizer starts with this training."""
        before = spec_of(former)
        return [name for name, (w, s) in before.states.items() if s not in (ACCUMULATED, AVERAGE)
                and self.spec.rate_starts.get(w, 0) != before.rate_starts.get(w, 0)]

    def check(self) -> None:
        """Raise NoGradientError now if an operator has no gradient."""
        check_gradient(self.spec)

    def release(self) -> None:
        """Give back the weights that can be read again from a file."""
        self.spec.model.release()


def spec_of(source: StepSource) -> TrainingSpec:
    """The spec of a training, of a source that composes its steps from a spec.

    Parameters
    ----------
    source : StepSource
        A `SpecSource`.

    Returns
    -------
    TrainingSpec
    """
    assert isinstance(source, SpecSource)
    return source.spec
