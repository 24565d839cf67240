"""Sizes that layers read of their inputs, and those that they expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortpartial.exceptions import GraphError, SettingError
from ortpartial.graph import Arithmetic, Value

__all__ = ["check_axes", "check_size", "check_windows", "expand_sizes", "read_size"]


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
    size = (x.shape or ())[axis]
    if not isinstance(size, int):
        raise GraphError(f"the weights follow from axis {axis} of {x!r}, whose size is not known; give the layer the "
                         f"size.")
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
    if x.rank not in map(len, layouts):
        expected = " or ".join(f"({', '.join(layout)})" for layout in layouts)
        raise GraphError(f"x has {x.rank} axes, {x.type_name}, where {expected} was expected.")


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
        What it counts, such as ``"channels"``.
    name : str
        What the input is called.

    Raises
    ------
    GraphError
        The size is another one.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> check_size(variable("x", "float32", ["N", 3]), -1, 4, "features")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.GraphError: x has 3 features, float32[Nx3], where 4 were expected.
    """
    n = (x.shape or ())[axis]
    if isinstance(n, int) and n != size:
        kind = f"{x.dtype}[{'x'.join(map(str, x.shape or ()))}]"
        raise GraphError(f"{name} has {n} {what}, {kind}, where {size} were expected.")


def check_windows(x: Value, extents: Sequence[int], pads: Sequence[int]) -> None:
    """Check that a window fits into each spatial axis, as far as its size is known.

    Parameters
    ----------
    x : Value of shape (N, C, ...)
        The input of a layer.
    extents : sequence of int
        How many elements a window spans along each spatial axis.
    pads : sequence of int
        How many elements are added before each spatial axis, then after each.

    Raises
    ------
    GraphError
        A window is larger.
    """
    for n, extent, before, after in zip((x.shape or ())[2:], extents, pads, pads[len(extents):], strict=False):
        if isinstance(n, int) and n + before + after < extent:
            raise GraphError(f"x, {x.type_name}, is smaller than a window, which spans {' x '.join(map(str, extents))} "
                             f"elements.")


def expand_sizes(sizes: Any, n: int, what: str, low: int = 1) -> tuple[int, ...]:
    """A setting for each of n axes.

    Parameters
    ----------
    sizes : int or sequence of int
        One for all, or one for each.
    n : int
        The number of axes.
    what : str
        What the setting is called, such as ``"Conv2d: stride"``.
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
    if len(each) != n or not all(isinstance(s, (int, np.integer)) and s >= low for s in each):
        numbers = "a whole number" if n == 1 else f"a whole number or {n} of them"
        raise SettingError(f"{what} is {sizes!r}; {numbers}, at least {low}, was expected.")
    return tuple(map(int, each))
