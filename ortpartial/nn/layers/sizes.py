"""Sizes that layers read of their inputs, or expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ortpartial.annotations import DTypeLike
from ortpartial.checks import is_whole
from ortpartial.exceptions import GraphError, SettingError
from ortpartial.graph import Arithmetic, Value

__all__ = ["Sizes", "check_axes", "check_dtype", "check_sequence", "check_size", "check_windows", "expand_sizes",
           "get_size", "read_count", "read_size"]

#: A setting of windows: one for all axes, or one for each.
Sizes: TypeAlias = "int | tuple[int, ...] | list[int]"


def get_size(x: Arithmetic, axis: int) -> int | str | None:
    """The size of an axis, as far as it is known.

    Parameters
    ----------
    x : Value or Parameter
        The input of a layer.
    axis : int
        The axis; a negative number counts from the end.

    Returns
    -------
    int, str or None

    Raises
    ------
    GraphError
        There is no such axis, or x is not a single value.
    """
    if not isinstance(x, Arithmetic):
        raise GraphError(f"x is a {type(x).__name__}, where a single value was expected.")
    if not -x.rank <= axis < x.rank:
        raise GraphError(f"x is {_name_type(x)}, which has no axis {axis}.")
    return (x.shape or ())[axis]


def _name_type(x: Arithmetic) -> str:
    """Element type and shape in words."""
    return f"{x.dtype}[{'x'.join('?' if n is None else str(n) for n in x.shape or ())}]"


def read_size(x: Value, axis: int) -> int:
    """The size of an axis, from which weights are made.

    Parameters
    ----------
    x : Value
        The input of a layer.
    axis : int
        The axis.

    Returns
    -------
    int

    Raises
    ------
    GraphError
        The size is symbolic or not known.
    """
    size = get_size(x, axis)
    if not isinstance(size, int):
        raise GraphError(f"the weights follow from the size of axis {axis} of x, {_name_type(x)}, which is not known; "
                         f"give the layer the size.")
    return size


def check_axes(x: Value, *layouts: str) -> None:
    """Check the number of axes.

    Parameters
    ----------
    x : Value
        The input of a layer.
    *layouts : str
        The layouts that it may have, such as ``"NCHW"``.

    Raises
    ------
    GraphError
        It has another number of axes.
    """
    if not isinstance(x, Arithmetic):
        raise GraphError(f"x is a {type(x).__name__}, where a single value was expected.")
    if x.rank not in map(len, layouts):
        expected = " or ".join(f"({', '.join(layout)})" for layout in layouts)
        raise GraphError(f"x is {_name_type(x)}, where {expected} was expected.")


def check_sequence(x: Any, batch_first: bool, name: str = "x") -> None:
    """Check that an input is a batch of sequences, or a sequence.

    Parameters
    ----------
    x : Value
        The input of a layer.
    batch_first : bool
        Whether the batch is the first axis, and not the second.
    name : str
        The name of the input.

    Raises
    ------
    GraphError
        It is not a single value, or has another number of axes.
    """
    if not isinstance(x, Arithmetic) or x.rank not in (2, 3):
        kind = _name_type(x) if isinstance(x, Arithmetic) else f"a {type(x).__name__}"
        axes = "(N, T, features)" if batch_first else "(T, N, features)"
        raise GraphError(f"{name} is {kind}, where {axes} was expected, or (T, features) without a batch.")


def check_dtype(x: Value, dtype: DTypeLike) -> None:
    """Check that an input has the element type of the weights.

    Parameters
    ----------
    x : Value
        The input of a layer.
    dtype : numpy dtype or its name
        The element type of the weights.

    Raises
    ------
    GraphError
        The dtype is another.
    """
    if x.dtype != np.dtype(dtype):
        raise GraphError(f"x is {_name_type(x)}, and the weights are {np.dtype(dtype)}; cast x, such as by "
                         f"x.astype({str(np.dtype(dtype))!r}), or give the layer its dtype.")


def check_size(x: Arithmetic, axis: int, size: int | None, what: str, name: str = "x") -> None:
    """Check the size of an axis, as far as it is known.

    Parameters
    ----------
    x : Value or Parameter
        The input of a layer.
    axis : int
        The axis.
    size : int
        Its size.
    what : str
        The things that it counts, such as ``"channels"``.
    name : str
        The name of the input.

    Raises
    ------
    GraphError
        The size is another.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> check_size(variable("x", "float32", ["N", 3]), -1, 4, "features")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.GraphError: x has 3 features, float32[Nx3], where 4 were expected.
    """
    n = get_size(x, axis)
    if isinstance(n, int) and n != size:
        raise GraphError(f"{name} has {n} {what}, {_name_type(x)}, where {size} were expected.")


def check_windows(x: Value, extents: Sequence[int], pads: Sequence[int], what: str = "a window spans") -> None:
    """Check that a window fits into each spatial axis, as far as its size is known.

    Parameters
    ----------
    x : Value of shape (N, C, ...)
        The input of a layer.
    extents : sequence of int
        How many elements a window spans along each spatial axis.
    pads : sequence of int
        How many elements are added before each spatial axis, then after each.
    what : str
        The words before the extents.

    Raises
    ------
    GraphError
        A window is larger.
    """
    for n, extent, before, after in zip((x.shape or ())[2:], extents, pads, pads[len(extents):], strict=False):
        if isinstance(n, int) and n + before + after < extent:
            raise GraphError(f"x is {_name_type(x)}, and {what} {' x '.join(map(str, extents))} elements.")


def expand_sizes(sizes: Sizes | str, n: int, what: str, low: int = 1) -> tuple[int, ...]:
    """A setting for each of n axes.

    Parameters
    ----------
    sizes : int or sequence of int
        A size for all, or for each.
    n : int
        The number of axes.
    what : str
        The name of the setting, such as ``"Conv2d: stride"``.
    low : int
        The least that is allowed.

    Returns
    -------
    tuple of int

    Raises
    ------
    SettingError
        The numbers are no whole numbers of at least `low`, or not as many as there are axes.

    Examples
    --------
    >>> expand_sizes(3, 2, "Conv2d: stride")
    (3, 3)
    """
    each = list(sizes) if isinstance(sizes, (tuple, list)) else [sizes] * n
    if len(each) != n or not all(is_whole(s, low, 2**62) for s in each):
        numbers = "a whole number" if n == 1 else f"a whole number or {n} of them"
        raise SettingError(f"{what} is {sizes!r}; {numbers}, at least {low}, was expected.")
    return tuple(map(int, each))


def read_count(module: object, name: str, n: int) -> int:
    """A setting that counts something.

    Parameters
    ----------
    module : Module
        The layer.
    name : str
        The name of the setting.
    n : int
        Its value.

    Returns
    -------
    int

    Raises
    ------
    SettingError
        It is no whole number of at least 1.
    """
    return expand_sizes(n, 1, f"{type(module).__name__}: {name}")[0]
