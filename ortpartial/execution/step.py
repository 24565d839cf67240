"""Step: a training step as an expression, and the source that composes it for the shapes of batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import Settings
from ortpartial.graph import Value, build, find_inputs, rewrite, topological, variable
from ortpartial.runtime import Buffer, Device, Session
from ortpartial.texts import free_name

from .names import StepNames
from .vectors import Vector

#: A function of new state, by name, that it may change.
Exchanging: TypeAlias = Callable[[Mapping[str, Buffer]], object]

__all__ = ["Arrays", "Exchanging", "Shapes", "Step", "StepSource", "fits"]

#: Operators that compute an element of the first shape among their inputs from the elements at the same place.
_BY_ELEMENT = frozenset({"Abs", "Add", "Cast", "Clip", "Div", "Exp", "If", "Log", "Max", "Min", "Mul", "Neg", "Pow",
                         "Reciprocal", "Sign", "Sqrt", "Sub", "Sum", "Where"})

#: Arrays by name.
Arrays = Mapping[str, np.ndarray]

#: The names and shapes of the arrays of a batch, with -1 for symbolic sizes.
Shapes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Step:
    """A training step as an expression, whose values have names.

    Parameters
    ----------
    inputs : dict of str to Value
        All that is read: the rows of a batch, the state, and constant inputs.
    outputs : dict of str to Value
        The results, and the state after the step, by `StepNames.new`. If there is a loss, it comes first.
    names : StepNames
        The names of loss, iteration and seed, and of new states.
    kept : frozenset of str
        Inputs that are neither rows nor changed by the step: frozen weights, settings, the seed.

    Examples
    --------
    >>> from ortpartial.graph import op
    >>> x, w = variable("x", "float32", ["N"]), variable("w", "float32", [])
    >>> step = Step({"x": x, "w": w}, {"loss": op.ReduceSum(x * w), "w_new": w - 0.5}, StepNames(frozenset()))
    >>> step.state, list(step.rows)
    ({'w': 'w_new'}, ['x'])
    """

    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    names: StepNames
    kept: frozenset[str] = frozenset()

    @cached_property
    def state(self) -> dict[str, str]:
        """By input that the step gives anew, the output that is its next value."""
        return {n: new for n in self.inputs if (new := self.names.new(n)) in self.outputs}

    @cached_property
    def fixed(self) -> dict[str, Value]:
        """Inputs that stay as they are from step to step, without the iteration."""
        stays = {*self.kept, self.names.seed}
        return {n: v for n, v in self.inputs.items() if n in stays}

    @cached_property
    def rows(self) -> dict[str, Value]:
        """The inputs that are a batch."""
        others = {*self.state, *self.fixed, self.names.iteration}
        return {n: v for n, v in self.inputs.items() if n not in others}

    @property
    def all_rows(self) -> dict[str, Value]:
        """For each input that is a batch, a variable for all the rows of a training."""
        return {n: variable(n, v.dtype, ["rows", *(v.shape or ())[1:]]) for n, v in self.rows.items()}

    @property
    def batch_size(self) -> int | str | None:
        """The number of rows of a batch."""
        return (next(iter(self.rows.values())).shape or (None,))[0]

    def build(self, apart: dict[str, np.ndarray] | None = None) -> ModelProto:
        """The step as a model; see `build` for `apart`."""
        return build(self.inputs, self.outputs, name="step", apart=apart)

    def cut(self) -> tuple[Step, Step]:
        """The step in two: all that a batch is read for, and the rest of the update, which takes state by element.

        The second half reads results of the first, mostly gradients, as inputs. State whose next value is such a result
        is state of the first half.
        """
        late, taken = self._find_late(), {*self.inputs, *self.outputs}
        new = {n: v for n in self.state.values() if (v := self.outputs[n]) in late}
        ends = {free_name(f"part_{i}", taken): v for i, v in enumerate(_list_ends(list(new.values()), late))}
        read = {v: variable(n, v.dtype, v.shape) for n, v in ends.items()}
        rest = {**{n: v for n, v in self.outputs.items() if n not in new}, **ends}
        new = dict(zip(new, rewrite(list(new.values()), read), strict=True))
        kept = {n: self.inputs[n] for n, after in self.state.items() if after in new}
        inputs = {**kept, **find_inputs(list(new.values()), self.inputs), **dict(zip(ends, read.values(), strict=True))}
        first = {n: v for n, v in self.inputs.items() if self.state.get(n) in rest}
        return (replace(self, inputs=first | find_inputs(list(rest.values()), self.inputs), outputs=rest),
                replace(self, inputs=inputs, outputs=new))

    def _find_late(self) -> set[Value]:
        """The values that are computed element by element of state."""
        state = {self.inputs[n] for n in self.state}
        late: set[Value] = set()
        for node in topological([self.outputs[new] for new in self.state.values()]):
            sizes = {x.shape for x in node.reads if x in state or x in late}
            if node.op_type in _BY_ELEMENT and not node.domain and any(y.shape in sizes for y in node.outputs):
                late.update(node.outputs)
        # The first half is a graph, which has an output.
        return set() if late.issuperset(self.outputs.values()) else late

    def open(self, device: str | Device, threads: int | None) -> Session:
        """The step, compiled."""
        apart: dict[str, np.ndarray] = {}
        return Session(self.build(apart), device=device, threads=threads, arrays=apart)


def _list_ends(roots: list[Value], late: Collection[Value]) -> list[Value]:
    """The computed values that late values read, and that are not late."""
    inner, ends = dict.fromkeys(roots), []
    while roots:
        v = roots.pop()
        if v.node is None or v not in late:
            ends.append(v)
            continue
        reads = [x for x in v.node.reads if x.node is not None and x.array is None and x not in inner]
        inner.update(dict.fromkeys(reads))
        roots += reads
    return ends


class StepSource(ABC):
    """Source of a runner's steps: composes the step of a training for batches of any or of given shapes.

    It holds no state of the training but its first numbers. All arrays are by their names in the graphs.
    """

    #: Where steps run.
    device: str | Device
    #: The names of loss, iteration and seed, and of new states.
    names: StepNames
    #: The result whose mean is reported for an epoch; None where a step returns several.
    loss: str | None = None
    #: State whose new value `exchange` may change before the next part of a step reads it.
    exchanges: Collection[str] = ()
    #: Called with the new values that a part has left, by state.
    exchange: Exchanging | None = None
    #: Vectors of state that `compose` reads and writes as wholes where it is asked to, by name.
    vectors: Mapping[str, Vector] = MappingProxyType({})
    #: Number of batches of an update of the weights.
    accumulate: int = 1
    #: Number of the update after which averages began.
    average_start: int = 0
    #: The name of the state that counts steps which left the weights as they were.
    skipped: str | None = None

    @property
    @abstractmethod
    def dtype(self) -> np.dtype:
        """Element type of the loss."""

    @property
    @abstractmethod
    def inputs(self) -> Mapping[str, Value]:
        """Placeholders of the data."""

    @property
    @abstractmethod
    def first(self) -> Arrays:
        """The state before the first step, without zeros."""

    @property
    def zeros(self) -> Mapping[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of the state that is zero before the first step."""
        return {}

    @property
    def kept(self) -> Arrays:
        """State that steps read and leave as it is, such as frozen weights."""
        return {}

    @property
    def controls(self) -> Arrays:
        """Settings that a loop changes between two batches, before the first."""
        return {}

    @cached_property
    def names_of_state(self) -> frozenset[str]:
        """The names of all state that a runner holds."""
        return frozenset({*self.first, *self.zeros, *self.kept})

    @property
    def checked(self) -> Sequence[str]:
        """The state that has to be finite."""
        return [*self.first, *self.zeros]

    @property
    def averages(self) -> Mapping[str, str]:
        """By weight, the state that is its average."""
        return {}

    @abstractmethod
    def for_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> StepSource:
        """The same training for batches of these shapes."""

    def for_rows(self, rows: int) -> StepSource:
        """The same training for batches of so many rows."""
        sizes: Settings = {n: (rows, *v.shape[1:]) for n, v in self.inputs.items() if v.shape}
        return self.for_shapes(sizes)

    def for_any_shape(self, names: Collection[str], shapes: Shapes) -> StepSource:
        """The same training for data of these names, of shapes like a first batch's."""
        return self

    @abstractmethod
    def compose(self, weighting: bool | str = False, *, flat: bool = False, branches: bool = True) -> Step:
        """The step.

        Parameters
        ----------
        weighting : bool or "elements"
            The result of `find_weighting` for the data.
        flat : bool
            Whether `vectors` are read and written as wholes.
        branches : bool
            Whether the step may branch to flush small numbers.

        Returns
        -------
        Step
        """

    def compose_halves(self, weighting: bool | str = False) -> tuple[Step, Mapping[bool, Step]]:
        """The step in two, as `Step.cut` cuts it.

        The second half is given for a batch that updates the weights and, where others add to sums of gradients alone
        that the engine sets to zero after an update, for these: by whether the update is due.
        """
        gradient, update = self.compose(weighting).cut()
        return gradient, {True: update}

    #: Whether a step can be cut in two: not where it is a file that is run as it is.
    is_cut = True
    #: Whether steps of little memory share an arena, and whether that is one range: see `session_options`.
    shares_arena, reserves_arena = True, False
    #: Whether the operands of products are rounded to bfloat16.
    rounds = False

    @property
    def state_groups(self) -> Sequence[Collection[str]]:
        """Groups of state that some kinds of steps leave as they are; all other state is a group by itself."""
        return ()

    def for_kind(self, kind: Hashable) -> StepSource:
        """The same training with another kind of step, where there are several."""
        return self

    def compose_parts(self) -> Sequence[Step]:
        """The step with all that it returns, in parts that run in turn."""
        return [self.compose()]

    @abstractmethod
    def threads(self) -> int | None:
        """Number of threads of a step; None for all."""

    @property
    def is_translatable(self) -> bool:
        """Whether its steps may be machine code."""
        return Device.parse(self.device).is_cpu

    def count_trained(self) -> int:
        """The number of elements that are trained."""
        return sum(a.size for a in self.first.values())

    def count_bytes(self) -> int:
        """How much a program takes."""
        return 0

    def encode(self, data: Arrays) -> Arrays:
        """The data as steps read them."""
        return data

    def find_weighting(self, data: Arrays) -> bool | str:
        """Whether rows have weights, or elements of targets ("elements")."""
        return False

    def count_rows(self, data: Arrays) -> np.ndarray | None:
        """By how much each row counts in a mean; None where all count the same."""
        return None

    def find_stale(self, former: StepSource) -> Collection[str]:
        """The state that does not go on from a former training but begins with zeros."""
        return ()

    def check(self) -> None:  # noqa: B027 - nothing to refuse
        """Raise now, and not in the first step, if the step cannot be composed."""

    def release(self) -> None:  # noqa: B027 - nothing is held
        """Give back memory of first numbers that can be read again."""


def fits(shape: Sequence[int], declared: Sequence[int | str | None]) -> bool:
    """Whether a shape agrees with a declared shape.

    Parameters
    ----------
    shape : sequence of int
        The shape of an array.
    declared : sequence of int, str or None
        Sizes; names and None stand for any.

    Returns
    -------
    bool

    Examples
    --------
    >>> fits((3, 4), ("N", 4)), fits((3, 4), ("N", 5)), fits((3,), ("N", 4))
    (True, False, False)
    """
    pairs = zip(shape, declared, strict=False)
    return len(shape) == len(declared) and all(m == n or not isinstance(n, int) for m, n in pairs)
