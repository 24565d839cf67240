"""Sequences of known tensors, which are read as these tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortpartial.graph import Value, constant, op

__all__ = ["read_element", "sequence_elements"]


def sequence_elements(op_type: str, inputs: Sequence[Value | None],
                      attributes: Mapping[str, Any]) -> list[Value] | None:
    """The tensors of the sequence that an operator gives, where their number is known.

    Parameters
    ----------
    op_type : str
        Name of the operator.
    inputs : sequence of Value or None
        Its inputs.
    attributes : mapping of str to object
        Its attributes.

    Returns
    -------
    list of Value, or None

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> sequence_elements("SplitToSequence", [variable("x", "float32", ["N", 3]), constant([2, 1])], {"axis": 1})
    [<Value Split float32[Nx2]>, <Value Split float32[Nx1]>]
    """
    if op_type == "SequenceConstruct":
        return [x for x in inputs if x is not None]
    if op_type != "SplitToSequence" or (x := inputs[0]) is None or x.shape is None:
        return None
    axis, split = attributes.get("axis", 0), inputs[1] if len(inputs) > 1 else None
    sizes = _sizes(x.shape[axis], split)
    if sizes is None:
        return None
    tensors = list(op.Split(x, constant(sizes, np.int64), axis=axis, n_outputs=len(sizes)))
    if split is None and not attributes.get("keepdims", 1):
        return [op.Squeeze(t, [axis]) for t in tensors]
    return tensors


def _sizes(n: int | str | None, split: Value | None) -> list[int] | None:
    """The sizes of the tensors along the axis that is split."""
    if split is not None and split.array is None:
        return None
    if split is not None and split.array is not None and split.array.ndim:
        return [int(k) for k in split.array] or None
    if not isinstance(n, int) or n == 0:
        return None
    k = 1 if split is None or split.array is None else int(split.array)
    return None if k < 1 else [min(k, n - start) for start in range(0, n, k)]


def read_element(op_type: str, tensors: Sequence[Value], inputs: Sequence[Value | None],
                 attributes: Mapping[str, Any]) -> Value | None:
    """The output of an operator that reads a sequence of known tensors; None where it cannot be told.

    Parameters
    ----------
    op_type : str
        Name of the operator.
    tensors : sequence of Value
        The tensors.
    inputs : sequence of Value or None
        The inputs of the operator, the sequence first.
    attributes : mapping of str to object
        Its attributes.

    Returns
    -------
    Value or None

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x, y = variable("x", "float32", [2]), variable("y", "float32", [3])
    >>> read_element("SequenceAt", [x, y], [None, constant(-1)], {})
    <Value y float32[3]>
    """
    if op_type == "SequenceLength":
        return constant(len(tensors), np.int64)
    if op_type == "SequenceAt" and (i := inputs[1]) is not None and i.array is not None:
        k = int(i.array)
        return tensors[k] if -len(tensors) <= k < len(tensors) else None
    if op_type == "ConcatFromSequence" and tensors:
        axis = attributes["axis"]
        if attributes.get("new_axis", 0):
            tensors = [op.Unsqueeze(t, [axis]) for t in tensors]
        return op.Concat(*tensors, axis=axis)
    return None
