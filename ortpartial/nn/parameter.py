"""Parameters and buffers: the weights and the running statistics of a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpartial.exceptions import ModelError, SettingError
from ortpartial.graph import Arithmetic, Value

from .initializers import Constant, Initializer, resolve_initializer

if TYPE_CHECKING:
    from .compilation import Program

__all__ = ["Buffer", "Parameter"]


class Parameter(Arithmetic):
    """A weight of a module, which an optimizer trains: its shape, and how its first numbers are made.

    While a module writes a graph, a parameter is used as a value is, with Python's operators and those of ``op``. It
    holds no numbers before the module is compiled.

    Parameters
    ----------
    shape : sequence of int
        Its shape.
    initializer : Initializer, str, array_like or number, optional
        Its first numbers, by default zeros: how they are drawn, or what they are.
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
    is_trained : bool
        Whether optimizers change it unless they are given other parameters.

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

    is_trained = True

    def __init__(self, shape: Sequence[int], initializer: Any = 0.0, *, dtype: Any = "float32"):
        sizes = tuple(np.atleast_1d(shape).tolist()) if not isinstance(shape, (tuple, list)) else tuple(shape)
        if wrong := [n for n in sizes if not isinstance(n, (int, np.integer)) or n < 0]:
            raise SettingError(f"The shape of a parameter is made of whole numbers of at least 0, not {wrong[0]!r}.")
        self.shape: tuple[int, ...] = tuple(int(n) for n in sizes)
        self.dtype = np.dtype(dtype)  # type: ignore[misc]
        self.name = ""
        self.initializer: Initializer = resolve_initializer(initializer)
        self._program: Program | None = None

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
        from .trace import current_trace

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
        if self._program is not None:
            return self._program.get(self.name)
        if isinstance(self.initializer, Constant):
            return np.array(np.broadcast_to(np.asarray(self.initializer.value, self.dtype), self.shape))
        raise ModelError(f"{self!r} has no numbers before its module is compiled.")

    def set(self, numbers: Any) -> None:
        """Overwrite the numbers; before the module is compiled, they are its first ones.

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
        self.initialize(Constant(array))

    def initialize(self, initializer: Any, random_state: int | None = None) -> None:
        """Draw the numbers anew; before the module is compiled, when it is.

        Parameters
        ----------
        initializer : Initializer, str, array_like or number
            How they are drawn, or what they are.
        random_state : int, optional
            The seed of the random numbers, if the module is compiled; other numbers in every call without one.
        """
        self.initializer = resolve_initializer(initializer)
        if self._program is not None:
            self._program.draw({self.name: self}, random_state)

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

    is_trained = False
