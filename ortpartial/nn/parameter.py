"""Parameters and buffers: the weights and the running statistics of a module."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec, Protocol

import numpy as np

from ortpartial.annotations import ArrayLike, DTypeLike
from ortpartial.checks import check_element_type
from ortpartial.exceptions import ModelError, SettingError
from ortpartial.graph import Arithmetic, Value
from ortpartial.learning import PARAMETER_HABITS, AnsweredAttributes, NamedSettings

from . import initializers
from .changes import note_change
from .initializers import INITIALIZERS, Constant, Initializer, InitializerLike, check_sizes, resolve_initializer
from .trace import current_trace

__all__ = ["Buffer", "Holder", "Parameter", "find_holder", "hold"]

Settings = ParamSpec("Settings")


def _initialize_by(kind: Callable[Settings, Initializer]) -> Callable[Concatenate[Parameter, Settings], None]:
    """The method of a parameter that makes its numbers by an initializer of a kind."""

    def method(self: Parameter, *args: Settings.args, **settings: Settings.kwargs) -> None:
        self.initialize(kind(*args, **settings))

    name = next(n for n, cls in INITIALIZERS.items() if cls is kind)
    formula, _, further = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
    parameters = re.search(r"Parameters\n-+\n.*?(?=\n\n|$)", further, re.DOTALL)
    method.__name__, method.__qualname__ = name, f"Parameter.{name}"
    method.__doc__ = (f"Make the numbers by `{getattr(kind, '__name__')}`: {formula}\n\n"  # noqa: B009 - no name to mypy
                      f"{parameters[0] if parameters else ''}")
    own = list(inspect.signature(method).parameters.values())[:1]
    settings = list(inspect.signature(kind).parameters.values())
    method.__signature__ = inspect.Signature([*own, *settings])  # type: ignore[attr-defined]
    return method


class Holder(Protocol):
    """The program of a compiled module, which holds the numbers of its parameters by name."""

    @property
    def module(self) -> object:
        """The module."""

    def get(self, name: str) -> np.ndarray:
        """A copy of some numbers."""

    def set(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Overwrite some numbers."""

    def draw(self, parameters: Mapping[str, Parameter], random_state: int | None) -> None:
        """Draw the numbers of some parameters anew."""


class Parameter(AnsweredAttributes, NamedSettings, Arithmetic):
    """A weight of a module, which an optimizer trains: its shape, and how its first numbers are made.

    While a module writes a graph, a parameter is used like a value, with Python's operators and those of ``op``. It
    holds no numbers before the module is compiled. Each initializer is a method, such as ``parameter.uniform(-1, 1)``,
    that makes the numbers anew or, before the module is compiled, says how they will be made.

    Parameters
    ----------
    shape : sequence of int
        Its shape.
    initializer : Initializer, str, array_like or number, optional
        Its first numbers, by default zeros: an initializer that draws them, or the numbers themselves.
    dtype : numpy dtype or its name
        Its element type.

    Attributes
    ----------
    shape : tuple of int
        Its shape.
    dtype : numpy.dtype
        Its element type.
    initializer : Initializer
        How its first numbers are made.
    name : str
        Its name in the module that was compiled, such as ``"encoder.0.weight"``; empty before.
    seed : int or None
        The seed of its random numbers, once they are drawn; the graph that holds the training has it, too.
    is_trained : bool
        Whether optimizers change it; False freezes it. ``requires_grad``, torch's word, is the same.

    Raises
    ------
    SettingError
        A size is not a whole number of at least 0, or the initializer is not known.

    Examples
    --------
    >>> from ortpartial import nn
    >>> class Scale(nn.Module):
    ...     def __init__(self, size):
    ...         self.factor = nn.Parameter([size], 2.0)
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> model = Scale(3)
    >>> model.compile(nn.placeholder(["N", 3]))(np.ones((1, 3), np.float32)).tolist()
    [[2.0, 2.0, 2.0]]
    """

    _habits = PARAMETER_HABITS
    _is_trained = True

    def __init__(self, shape: Sequence[int], initializer: InitializerLike = 0.0, *, dtype: DTypeLike = "float32"):
        self.shape: tuple[int, ...] = check_sizes(shape)
        self.dtype = check_element_type("dtype", dtype)  # type: ignore[misc]
        self.name = ""
        self.seed: int | None = None
        self._program: Holder | None = None
        self.initialize(initializer)

    @property
    def is_trained(self) -> bool:
        """Whether optimizers change it."""
        return self._is_trained

    @is_trained.setter
    def is_trained(self, value: bool) -> None:
        self._is_trained = bool(value)
        note_change()

    requires_grad = is_trained

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return self.dtype.kind == "f" or self.dtype.name == "bfloat16"

    @property
    def value(self) -> Value:
        """The value that the parameter has in the graph that is written now.

        Raises
        ------
        ModelError
            No graph is written.
        """
        trace = current_trace()
        if trace is None:
            raise ModelError(f"{self!r} has a value while a module writes a graph, in forward or train_one_batch; "
                             f"numpy() gives its numbers.")
        return trace.read(self)

    def numpy(self) -> np.ndarray:
        """A copy of the numbers.

        Returns
        -------
        numpy.ndarray

        Raises
        ------
        ModelError
            The module is not compiled, and the parameter has no numbers yet.
        """
        if (trace := current_trace()) is not None and trace.find is not None:
            return trace.read(self).numpy()
        if self._program is not None:
            return self._program.get(self.name)
        if isinstance(self.initializer, Constant):
            return np.array(np.broadcast_to(np.asarray(self.initializer.value, self.dtype), self.shape))
        raise ModelError(f"{self!r} has no numbers before its module is compiled.")

    def set(self, numbers: ArrayLike) -> None:
        """Overwrite the numbers; before the module is compiled, they are its first.

        Parameters
        ----------
        numbers : array_like
            Of the shape of the parameter, or a number for all elements.

        Raises
        ------
        SettingError
            The shapes differ.
        """
        array = np.asarray(numbers, self.dtype)
        if array.ndim and array.shape != self.shape:
            raise SettingError(f"{self!r} takes numbers of the shape {self.shape}, not {array.shape}.")
        if self._program is None:
            self.initialize(Constant(array))
        else:
            self._program.set({self.name: np.broadcast_to(array, self.shape)})

    def initialize(self, initializer: InitializerLike, random_state: int | None = None) -> None:
        """Draw the numbers anew; before the module is compiled, when it is.

        Parameters
        ----------
        initializer : Initializer, str, array_like or number
            An initializer that draws them, or the numbers themselves.
        random_state : int, optional
            The seed of the random numbers, if the module is compiled; without a seed, they are the next that follow
            from the seed of the module.

        Raises
        ------
        SettingError
            The initializer is not known, or makes no numbers of this shape and element type.
        """
        initializer = resolve_initializer(initializer)
        try:
            initializer(self.shape, self.dtype)
        except SettingError as e:
            raise SettingError(f"{self!r}: {e}") from None
        self.initializer: Initializer = initializer
        if self._program is not None:
            self._program.draw({self.name: self}, random_state)

    uniform = _initialize_by(initializers.Uniform)
    normal = _initialize_by(initializers.Normal)
    truncated_normal = _initialize_by(initializers.TruncatedNormal)
    constant = _initialize_by(initializers.Constant)
    zeros = _initialize_by(initializers.Zeros)
    ones = _initialize_by(initializers.Ones)
    glorot_uniform = _initialize_by(initializers.GlorotUniform)
    glorot_normal = _initialize_by(initializers.GlorotNormal)
    he_uniform = _initialize_by(initializers.HeUniform)
    he_normal = _initialize_by(initializers.HeNormal)
    lecun_uniform = _initialize_by(initializers.LecunUniform)
    lecun_normal = _initialize_by(initializers.LecunNormal)
    orthogonal = _initialize_by(initializers.Orthogonal)

    def __repr__(self) -> str:
        kind = f"{self.dtype}[{'x'.join(map(str, self.shape))}]"
        return f"<{' '.join(filter(None, (type(self).__name__, self.name, kind)))}>"


class Buffer(Parameter):
    """A part of the state of a module that no optimizer changes, such as a running mean; otherwise a `Parameter`.

    Parameters
    ----------
    shape : sequence of int
        Its shape.
    initializer : Initializer, str, array_like or number, optional
        Its first numbers, by default zeros.
    dtype : numpy dtype or its name
        Its element type.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.Buffer([3], 1.0)
    <Buffer float32[3]>
    """

    _is_trained = False


def hold(parameter: Parameter, name: str, holder: Holder) -> None:
    """Let a program hold the numbers of a parameter from now on, under a name."""
    parameter.name, parameter._program = name, holder


def find_holder(parameter: Parameter) -> Holder | None:
    """The program that holds the numbers of a parameter; None before a module with it is compiled."""
    return parameter._program
