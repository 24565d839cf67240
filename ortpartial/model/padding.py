"""Pads in mode wrap that repeat a tensor more than once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortpartial.annotations import Attributes
from ortpartial.graph import Value, constant, op

__all__ = ["read_padding"]


def read_padding(op_type: str, inputs: Sequence[Value | None], attributes: Attributes) -> Value | None:
    """A Pad in mode wrap that may repeat a tensor more than once, as a Gather: onnxruntime 1.19.2 reads foreign memory.

    Parameters
    ----------
    op_type : str
        Name of the operator.
    inputs : sequence of Value or None
        Its inputs; the pads leave an element of each axis.
    attributes : mapping of str to object
        Its attributes.

    Returns
    -------
    Value or None
        None for other operators and modes, for pads that are known to repeat a tensor once, and for unknown axes.

    Examples
    --------
    >>> x = constant(np.arange(2.0))
    >>> read_padding("Pad", [x, constant([1, 2])], {"mode": "wrap"}) is None
    True
    >>> read_padding("Pad", [x, constant([1, 3])], {"mode": "wrap"})
    <Value Gather float64[?]>
    """
    if op_type != "Pad" or attributes.get("mode") != "wrap":
        return None
    x, pads, _, axes = (*inputs, None, None)[:4]
    if x is None or pads is None or x.shape is None:
        return None
    numbers = np.arange(x.rank) if axes is None else axes.array
    if numbers is None:
        return None
    places = [int(k) % x.rank for k in numbers.flat]
    if pads.array is not None and all(map(_is_short, [x.shape[k] for k in places], *pads.array.reshape(2, -1))):
        return None
    for i, axis in enumerate(places):
        before, behind = (op.Gather(pads, constant(k)) for k in (i, i + len(places)))
        start = op.Max(-before, 0)
        left = op.Gather(op.Shape(x), constant(axis)) - start + op.Min(behind, 0)
        kept = op.Mod(op.Range(-op.Max(before, 0), left + op.Max(behind, 0), 1), left)
        x = op.Gather(x, start + kept, axis=axis)
    return x


def _is_short(size: object, before: int, behind: int) -> bool:
    """Whether pads of an axis repeat no element twice."""
    if not isinstance(size, int):
        return not before and not behind
    return max(before, behind) <= size + min(before, 0) + min(behind, 0)
