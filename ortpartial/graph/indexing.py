"""Indexing of values as numpy does it: whole numbers, slices, None, Ellipsis, arrays of indices and masks."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from .arithmetic import complete_arithmetic, join_sizes
from .casting import to_dtype
from .ops import constant, op
from .values import Value

__all__ = ["index"]

#: The ends of a slice that are left out.
_FIRST, _LAST = -(2**63), 2**63 - 1


def index(x: Value, key: object) -> Value:
    """x[key], as numpy defines it.

    Parameters
    ----------
    x : Value
        Of known rank.
    key : int, slice, None, Ellipsis, array_like or Value of whole numbers or truth values, or a tuple of them
        Truth values of a `Value`, whose number is not known before the graph is run, stand alone.

    Returns
    -------
    Value

    Raises
    ------
    IndexError
        There are more indices than axes, an index is out of range, or no index at all.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float32", ["N", 4, 5])
    >>> x[0].shape, x[..., ::2].shape, x[:, None, -1].shape, x[:, [0, 2], 1:].shape
    ((4, 5), ('N', 4, 3), ('N', 1, 5), ('N', 2, 4))
    """
    keys = [_convert(x, k) for k in (key if isinstance(key, tuple) else (key,))]
    if len(keys) == 1 and isinstance(keys[0], Value) and _is_mask(keys[0]):
        _check_mask(x, 0, keys[0])
        return op.GatherND(x, op.Transpose(op.NonZero(keys[0])))
    keys = _expand(x, keys)
    if new := [i for i, k in enumerate(keys) if k is None]:
        x, keys = op.Unsqueeze(x, new), [slice(None) if k is None else k for k in keys]
    slices = {i: k for i, k in enumerate(keys) if isinstance(k, slice) and k != slice(None)}
    if slices:
        x = _slice(x, slices)
    return _take(x, {i: _check(x, i, k) for i, k in enumerate(keys) if not isinstance(k, slice)})


def _take(x: Value, indices: Mapping[int, Any]) -> Value:
    """Elements at indices of some axes."""
    arrays = [i for i, k in indices.items() if np.ndim(k)]
    if len(arrays) > 1 or (arrays and len(indices) > 1):
        return _gather_together(x, indices)
    for axis in reversed(indices):
        x = op.Gather(x, indices[axis], axis=axis)
    return x


def _convert(x: Value, key: object) -> Any:
    """An index as an int, a slice of whole numbers, None, Ellipsis, an array or a Value."""
    if key is None or key is Ellipsis:
        return key
    if isinstance(key, slice):
        return slice(*(_convert_end(x, end) for end in (key.start, key.stop, key.step)))
    array = key if isinstance(key, Value) else np.asarray(key)
    if array.dtype == object and isinstance(key, int):
        raise IndexError(f"The index {key} is out of range for {x!r}.")
    if not isinstance(array, Value) and array.size == 0 and not isinstance(key, np.ndarray):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iub" or (not isinstance(array, Value) and array.dtype == bool and not array.ndim):
        raise IndexError(f"{x!r} cannot be indexed by {key!r}; whole numbers, slices, None, ..., and arrays of whole "
                         f"numbers or truth values can be used.")
    if isinstance(array, Value) or array.dtype == bool:
        return array
    array = to_dtype(array, np.int64, f"An index of {x!r}", IndexError)
    return array if array.ndim else int(array)


def _convert_end(x: Value, end: Any) -> Any:
    """The start, end or step of a slice as None, a Value or a whole number that int64 holds, which is far enough."""
    if end is None or isinstance(end, Value):
        return end
    try:
        return min(max(operator.index(end), _FIRST), _LAST)
    except TypeError:
        raise IndexError(f"{x!r} cannot be sliced with {end!r}; a slice has whole numbers, values or None.") from None


def _expand(x: Value, keys: Sequence[Any]) -> list[Any]:
    """An index for each axis, and None for each new axis; masks as the positions of True."""
    widths = [k.ndim if _is_mask(k) else int(k is not None and k is not Ellipsis) for k in keys]
    missing, dots = x.rank - sum(widths), [i for i, k in enumerate(keys) if k is Ellipsis]
    if missing < 0 or len(dots) > 1:
        raise IndexError(f"{x!r} has {x.rank} axes, and there are more indices, or two of `...`.")
    at = dots[0] if dots else len(keys)
    full = [*keys[:at], *[slice(None)] * missing, *keys[at + 1 :]]
    expanded: list[Any] = []
    for k in full:
        if isinstance(k, Value) and _is_mask(k):
            raise IndexError(f"{x!r} is indexed by the truth values {k!r} beside others; index by them alone.")
        if _is_mask(k):
            _check_mask(x, sum(1 for other in expanded if other is not None), k)
            expanded += np.nonzero(k)
        else:
            expanded.append(k)
    return expanded


def _is_mask(key: object) -> bool:
    return isinstance(key, (np.ndarray, Value)) and key.dtype == bool


def _check_mask(x: Value, axis: int, mask: Any) -> None:
    """Whether a mask may select along the axes from this axis on."""
    sizes = zip((x.shape or ())[axis:], mask.shape or (), strict=False)
    if mask.ndim > x.rank or any(isinstance(n, int) and isinstance(m, int) and n != m for n, m in sizes):
        raise IndexError(f"A mask of shape {tuple(mask.shape)} does not fit the axes of {x!r} from {axis} on.")


def _slice(x: Value, slices: dict[int, slice]) -> Value:
    """Slices of several axes, whose ends may be values."""
    starts, ends, steps = [], [], []
    for axis, k in slices.items():
        step, size = 1 if k.step is None else int(k.step), x.shape[axis] if x.shape else None
        if not step:
            raise ValueError("The step of a slice is not 0.")
        start = (0 if step > 0 else _LAST) if k.start is None else k.start
        end = (_LAST if step > 0 else _FIRST) if k.stop is None else k.stop
        if step < 0 and not isinstance(start, Value) and start < -1:
            # Nothing is left of the first element, where ONNX begins with it.
            if not isinstance(size, int):
                first = start + op.Shape(x, start=axis, end=axis + 1)
                start, end = op.Max(first, 0), op.Where(first < 0, 0, end)
            elif start < -size:
                start = end = 0
        steps.append(step)
        starts.append(start)
        ends.append(end)
    axes = np.asarray(list(slices), np.int64)
    return op.Slice(x, join_sizes(x, starts), join_sizes(x, ends), axes, np.asarray(steps, np.int64))


def _check(x: Value, axis: int, k: Any) -> Any:
    """Whole numbers within the size of an axis, from 0 on where it is known."""
    size = x.shape[axis] if x.shape else None
    if isinstance(k, Value) or not isinstance(size, int) or np.size(k) == 0:
        return k
    if not -size <= np.min(k) <= np.max(k) < size:
        raise IndexError(f"The index {np.min(k) if np.min(k) < -size else np.max(k)} is out of range for axis {axis} "
                         f"of {x!r}.")
    return np.where(np.asarray(k) < 0, np.asarray(k) + size, k).astype(np.int64)


def _gather_together(x: Value, indices: Mapping[int, Any]) -> Value:
    """Elements at indices of several axes, which are broadcast against each other."""
    axes = list(indices)
    if any(isinstance(k, Value) for k in indices.values()):
        numbers = [op.Cast(k, to=TensorProto.INT64) if isinstance(k, Value) else k for k in indices.values()]
        zeros = 0 * sum(numbers)  # Adding them broadcasts.
        places = op.Concat(*(op.Unsqueeze(zeros + k, [-1]) for k in numbers), axis=-1)
    else:
        places = constant(np.stack(np.broadcast_arrays(*indices.values()), axis=-1))
    y = op.GatherND(op.Transpose(x, perm=[*axes, *(a for a in range(x.rank) if a not in indices)]), places)
    # The new axes stay where the indices are, if these are side by side; else they come first.
    first, n = axes[0], places.rank - 1
    if first == 0 or axes != list(range(first, first + len(axes))):
        return y
    return op.Transpose(y, perm=[*range(n, n + first), *range(n), *range(n + first, y.rank)])


complete_arithmetic(index=index)
