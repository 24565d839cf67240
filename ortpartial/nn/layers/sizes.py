"""Sizes that layers read of their inputs."""

from __future__ import annotations

from ortpartial.exceptions import GraphError
from ortpartial.graph import Value

__all__ = ["read_size"]


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
