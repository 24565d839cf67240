"""The trace: the graph that the Python code of a module has written so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import numpy as np

from ortpartial.annotations import DTypeLike
from ortpartial.autodiff import Gradient, grad
from ortpartial.exceptions import GraphError, OrtPartialError, SettingError
from ortpartial.graph import Value, cast, constant, counter, op, variable, with_numbers
from ortpartial.learning import BaseLearningLoss
from ortpartial.model import Range, check_indices
from ortpartial.rewrites import Precision, lower_products, round_products
from ortpartial.training import Update, draw_mask, scale_gradient

from .nested import Nested
from .update_call import UpdateCall

__all__ = ["Call", "Compared", "Passing", "Trace", "TracedModule", "TracedOptimizer", "Weight", "current_trace",
           "to_range"]

_CURRENT: ContextVar[Trace | None] = ContextVar("trace", default=None)

#: What a step reads and writes beside the parameters: where random numbers come from, and the batches seen.
SEED, ITERATION = "seed", "iteration"

#: How the state of the loss scale begins, in mixed precision.
SCALING = "precision."

#: How the state begins that passes numbers between processes within a step, and that none goes on from.
PASSING = "data_parallel."

#: What a step of several processes reads: which of them this is, and the share of the rows that it has.
RANK, SHARE = f"{PASSING}rank", f"{PASSING}share"

#: What weights of rows are called.
WEIGHTS = "sample_weight"


def current_trace() -> Trace | None:
    """The graph that is written now.

    Returns
    -------
    Trace or None
        None outside of `Module.compile`, a first batch, and their like.

    Examples
    --------
    >>> from ortpartial import nn
    >>> class Shrunk(nn.Module):
    ...     def forward(self, x):
    ...         return 0.5 * x if nn.current_trace().training else x
    >>> model = Shrunk().compile(nn.placeholder(["N", 2]))
    >>> model.train()([[2.0, 4.0]]), model.eval()([[2.0, 4.0]])
    (array([[1., 2.]], dtype=float32), array([[2., 4.]], dtype=float32))
    >>> nn.current_trace() is None
    True
    """
    return _CURRENT.get()


class Weight(Protocol):
    """A parameter, as a trace sees it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""

    @property
    def dtype(self) -> np.dtype:
        """Its element type."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""

    @property
    def is_trained(self) -> bool:
        """Whether optimizers change it."""


class TracedOptimizer(Protocol):
    """An optimizer, as a trace sees it."""

    @property
    def distributed(self) -> bool:
        """Whether several processes take the steps together."""


class TracedModule(Protocol):
    """A module, as a trace sees it."""

    def forward(self, *inputs: Nested, **settings: Nested) -> Nested:
        """Compute values from values."""

    def named_modules(self) -> Iterator[tuple[str, TracedModule]]:
        """Iterate over the module itself and all modules in it."""

    def named_parameters(self, *, buffers: bool = False) -> Iterator[tuple[str, Weight]]:
        """Iterate over the parameters."""

    def named_optimizers(self) -> Iterator[tuple[str, TracedOptimizer]]:
        """Iterate over the optimizers."""

    def parameters(self) -> Iterator[Weight]:
        """Iterate over the parameters without their names."""


@dataclass(frozen=True)
class Passing:
    """Numbers that the processes add up in the middle of a step.

    Parameters
    ----------
    sent : Value of shape (size,)
        The numbers of this process.
    received : Value of shape (size,)
        Their sum over the processes, a variable of the part after it.
    kept : int, optional
        How many of the numbers are not 0 and are sent, with their places; without, all are sent.
    """

    sent: Value
    received: Value
    kept: int | None = None


@dataclass(frozen=True)
class Compared:
    """A prediction that a loss compares with a target.

    Parameters
    ----------
    loss : BaseLearningLoss or None
        The loss of an element.
    output, target : Value
        The values that it compares, in its forms.
    weights : Value or None
        Weights of the rows, or of the elements.
    """

    loss: BaseLearningLoss | None
    output: Value
    target: Value
    weights: Value | None


@dataclass(frozen=True)
class Call:
    """A call of a module, as the trace has recorded it.

    Parameters
    ----------
    path : str
        The name of the module, such as ``"encoder.0.linear1"``; empty for the outermost module.
    module : Module
        The module.
    outputs : object
        The result of its `forward`.
    start, stop : int
        The nodes that it wrote have numbers from `start` and before `stop`.
    """

    path: str
    module: TracedModule
    outputs: Nested
    start: int
    stop: int


class Trace:
    """The graph that the Python code of a module has written so far: its inputs, and the state that it leaves.

    The state is known by name: parameters and buffers by theirs, the states of an optimizer by that of the weight.

    Parameters
    ----------
    module : Module
        The outermost module, from which names are counted.
    training : bool
        Whether its layers are in training mode.
    updates : bool
        Whether optimizers update weights; without, a step only computes its losses.
    gradient : callable
        From a loss and values to the gradients, such as that of `resolve_checkpointing`.
    precision : Precision, optional
        The mixed precision of a step.
    find : callable, optional
        In an eager run, from the name of a part of the state to its numbers, None before the first batch; without, a
        graph is written.
    add_up : callable, optional
        In an eager run of several processes, from a name, `Passing.kept` and numbers to their sum over the processes.
    """

    def __init__(self, module: TracedModule, *, training: bool, updates: bool = True, gradient: Gradient = grad,
                 precision: Precision | None = None,
                 find: Callable[[str], np.ndarray | None] | None = None,
                 add_up: Callable[[str, int | None, np.ndarray], np.ndarray] | None = None):
        self.module, self.training, self.updates, self.gradient = module, training, updates, gradient
        self.precision, self.find, self.add_up = precision, find, add_up
        #: The values that keep their dtype in mixed precision, as losses read them, and those that are rewritten.
        self.wide: set[Value] = set()
        self._lowered: dict[Value, Value] = {}
        #: The state before, as variables of the graph, and the state now.
        self.before: dict[str, Value] = {}
        self.after: dict[str, Value] = {}
        #: All values that the state is given by the code, in turn.
        self.versions: dict[str, list[Value]] = {}
        #: What the processes add up, by the name of the state that holds it.
        self.exchanges: dict[str, Passing] = {}
        #: First numbers of the state that is no parameter's.
        self.first: dict[str, np.ndarray] = {}
        self.parameters: dict[str, Weight] = {}
        #: By value that a loss takes for labels, the number of classes, and the label that does not count.
        self.labels: dict[Value, tuple[int, int | None]] = {}
        #: What losses of the library compare, in their order.
        self.compared: list[Compared] = []
        self.calls: list[Call] = []
        self.update_calls: list[UpdateCall] = []
        self._names: dict[int, str] = {}
        self._paths: dict[int, str] = {}
        self._open: list[str] = []
        self._masks = 0

    @contextmanager
    def writing(self) -> Iterator[Trace]:
        """Let modules write to this trace."""
        token = _CURRENT.set(self)
        try:
            yield self
        finally:
            _CURRENT.reset(token)

    # -- state

    def read(self, parameter: Weight) -> Value:
        """The value of a parameter now."""
        name = self.name_of(parameter)
        self.parameters[name] = parameter
        return self.read_state(name, parameter.dtype, parameter.shape)

    def write(self, parameter: Weight, value: Value) -> None:
        """Give a parameter another value, which it has from now on and after the batch."""
        self.read(parameter)
        self.write_state(self.name_of(parameter), value)

    def read_state(self, name: str, dtype: DTypeLike, shape: tuple[int, ...], first: np.ndarray | None = None) -> Value:
        """The value of a state now: `first`, if any, is its value before the first batch."""
        if name not in self.after:
            if first is not None:
                self.first[name] = first
            self.before[name] = self.after[name] = self._variable(name, dtype, shape, first)
        return self.after[name]

    def write_state(self, name: str, value: Value) -> None:
        """Give a state another value."""
        old = self.after[name]
        if value.dtype != old.dtype or (value.is_static and value.shape != old.shape):
            raise GraphError(f"{name!r} is {old.type_name} and cannot become {value.type_name}.")
        self.after[name] = value
        self.versions.setdefault(name, []).append(value)

    def differentiate(self, objective: Value, weights: Sequence[Value]) -> list[Value]:
        """The gradients of an objective by weights."""
        if self.precision is None:
            return list(self.gradient(objective, weights))
        scale = self._scaling[0] if self._scaling else constant(self.precision.loss_scale, np.float32)
        return self.precision.finish(scale_gradient(self.gradient, scale)(self.lower([objective])[0], weights))

    def lower(self, values: Sequence[Value]) -> list[Value]:
        """Expressions with the products of a mixed precision, if any."""
        if self.precision is None:
            return list(values)
        if self.precision.rounds:
            self._lowered = round_products(values, self.precision.dtype, rounded=self._lowered)
            return [self._lowered.get(v, v) for v in values]
        # What is written of new weights reads them as it reads weights.
        trained = [n for call in self.update_calls for n in call.update.before]
        weights = {v for n in trained for v in self.versions.get(n, ())}
        self._lowered |= {v: v for v in weights}
        self._lowered = lower_products(values, self.precision.dtype, weights | set(self.before.values()),
                                       lowered=self._lowered, wide=self.wide)
        return [cast(self._lowered.get(v, v), v) for v in values]

    def lower_buffers(self) -> None:
        """Let buffers have the values that mixed precision computes."""
        trained = {n for call in self.update_calls for n in call.update.before}
        for n in self.changed.keys() & self.parameters.keys() - trained if self.precision is not None else ():
            self.versions[n] = self.lower([self.after[n]])
            self.after[n] = self.versions[n][0]

    @property
    def _scaling(self) -> list[Value]:
        """The state of the loss scale before the step."""
        first = {} if self.precision is None else self.precision.initial_state
        return [self.read_state(SCALING + n, a.dtype, (), a) for n, a in first.items()]

    def update(self, update: Update, gradients: Mapping[str, Value], k: Value) -> UpdateCall:
        """Note an update of an optimizer."""
        self.update_calls.append(UpdateCall(update, gradients, k, bool(self._scaling)))
        return self.update_calls[-1]

    def adapt_scale(self) -> None:
        """Let the loss scale follow from whether the gradients of the step are finite."""
        if self.precision is not None and self.update_calls and (scaling := self._scaling):
            finite = reduce(op.And, [call.finite for call in self.update_calls])
            for n, v in zip(self.precision.initial_state, self.precision.update(finite, *scaling), strict=True):
                self.write_state(SCALING + n, v)

    @property
    def is_distributed(self) -> bool:
        """Whether several processes take the steps."""
        return self.training and any(optimizer.distributed for _, optimizer in self.module.named_optimizers())

    @property
    def changed(self) -> dict[str, Value]:
        """The state that the graph leaves, as far as it changes it."""
        return {n: v for n, v in self.after.items() if v is not self.before[n]}

    def _variable(self, name: str, dtype: DTypeLike, shape: tuple[int, ...], first: np.ndarray | None) -> Value:
        v = variable(name, dtype, shape)
        if self.find is None:
            return v
        numbers = self.find(name)
        return with_numbers(v, first if numbers is None else numbers)

    def name_of(self, parameter: Weight) -> str:
        """The name of a parameter, by the attributes that lead to it from the outermost module."""
        if id(parameter) not in self._names:  # Some are made by the first call of a layer.
            self._names = {id(p): n for n, p in self.module.named_parameters(buffers=True)}
        if id(parameter) not in self._names:
            raise SettingError(f"{parameter!r} is no attribute of {type(self.module).__name__} or of a module in it; "
                               f"assign it in __init__.")
        return self._names[id(parameter)]

    def draw_mask(self, x: Value, keep: float) -> Value:
        """The mask of a Dropout of x: 1 / keep with the probability keep, else 0; every batch has another."""
        seed = self.read_state(SEED, np.int32, (2,), np.zeros(2, np.int32))
        if self.is_distributed:
            seed = seed + self.read_state(RANK, np.int32, (), np.zeros((), np.int32))
        self._masks += 1
        return draw_mask(x, keep, seed, self.read_iteration(), self._masks - 1)

    def count_batch(self) -> None:
        """Let the state count a batch more, as a step does, and hold the seed."""
        self.read_state(SEED, np.int32, (2,), np.zeros(2, np.int32))
        self.write_state(ITERATION, self.read_iteration() + 1)

    def read_iteration(self) -> Value:
        """The number of batches before this."""
        return self.read_state(ITERATION, np.int64, (), np.zeros((), np.int64))

    def declare_labels(self, target: Value, classes: int, ignored: int | None) -> None:
        """Note that a loss takes a value for labels; where it has numbers, they are to be of these classes."""
        self.labels[target] = classes, ignored
        if self.find is not None:
            name = target.hint or "target"
            check_indices({name: to_range(classes, ignored)}, {name: target.numpy()})

    # -- modules

    def call(self, module: TracedModule, inputs: tuple[Nested, ...], settings: Mapping[str, Nested]) -> Nested:
        """Call the `forward` of a module; errors name it."""
        path, start = self.path_of(module), next(counter)
        self._open.append(path)
        try:
            outputs = module.forward(*inputs, **settings)
        except OrtPartialError as e:
            if not hasattr(e, "layer"):
                e.layer = path  # type: ignore[attr-defined]
                e.args = (f"{path or 'The module'} ({type(module).__name__}): {e}",)
            raise
        except Exception as e:
            if hasattr(e, "add_note") and not hasattr(e, "__notes__"):  # From Python 3.11 on.
                e.add_note(f"in {path or 'the module'} ({type(module).__name__})")
            raise
        finally:
            self._open.pop()
        self.calls.append(Call(path, module, outputs, start, next(counter)))
        return outputs

    def path_of(self, module: TracedModule) -> str:
        """The name of a module, by the attributes that lead to it from the outermost module."""
        if id(module) not in self._paths:
            self._paths = {id(m): n for n, m in self.module.named_modules()}
        return self._paths.get(id(module), type(module).__name__)

    def optimizer_name(self, optimizer: TracedOptimizer) -> str:
        """The attribute that an optimizer is."""
        names = [n for n, o in self.module.named_optimizers() if o is optimizer]
        if not names:
            raise SettingError(f"{optimizer!r} is no attribute of {type(self.module).__name__}, so that its state "
                               f"would be lost after the batch; assign it in __init__ or before compile.")
        return names[0]


def to_range(classes: int, ignored: int | None) -> Range:
    """The range of labels."""
    return Range("labels", 0, classes - 1, ignored, "the loss")
