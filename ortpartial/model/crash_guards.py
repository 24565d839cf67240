"""Crash guards: nodes that crash or hang onnxruntime, although they pass onnx's checker, are refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ortpartial.annotations import Attributes, Formula
from ortpartial.exceptions import ModelError
from ortpartial.graph import VIEWS, Node, Value

from .validation import LARGEST_WINDOW

__all__ = ["check_node", "check_operator"]

#: Operators that crash or hang on a tensor without elements (onnxruntime 1.19.2; Conv and LSTM in 1.31.1).
NEVER_EMPTY = frozenset({"Conv", "ConvTranspose", "DynamicQuantizeLinear", "Einsum", "GRU", "LSTM", "RNN", "ReduceL1",
                          "ReduceL2", "ReduceSumSquare", "TopK"})

#: Operators of them whose second input names axes, all of them where it is empty.
_REDUCTIONS = frozenset({"ReduceL1", "ReduceL2", "ReduceSumSquare"})

#: Operators that give the numbers of their first input unchanged.
_UNCHANGED = VIEWS | {"Cast"}


def check_node(op_type: str, inputs: Sequence[Value | None], attributes: Attributes, where: str) -> None:
    """Refuse a node that is known to crash or hang the process.

    Parameters
    ----------
    op_type : str
        Its operator, of the default domain.
    inputs : sequence of Value or None
        Its inputs.
    attributes : dict of str to object
        Its attributes.
    where : str
        The node as the error names it.

    Raises
    ------
    ModelError
    """
    # The axes of a reduction may be empty, which is all of them, unless it is then to reduce none: onnxruntime 1.19.2
    # gives x in place of |x|.
    data = inputs[:1] if op_type in _REDUCTIONS and not attributes.get("noop_with_empty_axes") else inputs
    if op_type in NEVER_EMPTY and (empty := [x for x in data if x is not None and 0 in (x.shape or ())]):
        raise ModelError(f"{where} reads {empty[0]!r}, a tensor without elements, which crashes or hangs some "
                         f"versions of onnxruntime; leave the node out.")
    check_operator(op_type, inputs, attributes, where)


def check_operator(op_type: str, inputs: Sequence[Value | None], attributes: Attributes, where: str) -> None:
    """Refuse a node that is known to crash or hang the process, unless it is for want of elements.

    Parameters
    ----------
    op_type, inputs, attributes, where
        As for `check_node`.

    Raises
    ------
    ModelError
    """
    check = _CHECKS.get(op_type)
    if check is not None and (reason := check(*inputs, **_select(attributes, check))):
        raise ModelError(f"{where} {reason}")


def _select(attributes: Attributes, check: Formula) -> Attributes:
    """The attributes that a check has parameters for."""
    names = check.__kwdefaults__ or {}
    return {n: attributes[n] for n in names if n in attributes}


def _division(a: Value, b: Value) -> str | None:
    if b.array is None or b.is_float:
        return None
    if not b.array.all():
        return "divides whole numbers by 0, which crashes the process; divide by something else."
    if a.array is not None and b.array.dtype.kind == "i":
        least = np.iinfo(b.array.dtype).min
        if (a.array == least).any() and (b.array == -1).any():
            return f"may divide {least}, the least of its type, by -1, which crashes the process; use a wider type."
    return None


def _groups(x: Value, *_: Value, num_groups: int = 1) -> str | None:
    channels = x.shape[1] if x.shape is not None and len(x.shape) > 1 else None
    if isinstance(channels, int) and channels % num_groups:
        return f"has num_groups of {num_groups}, which does not divide the {channels} channels."
    return None


def _labels(x: Value, t: Value, *_: Value | None, ignore_index: int | None = None) -> str | None:
    classes = count_classes(x)
    if t.array is None or classes is None or not t.array.size:
        return None
    kept = t.array[t.array != ignore_index] if ignore_index is not None else t.array
    if kept.size and not 0 <= kept.min() <= kept.max() < classes:
        return f"has labels from {kept.min()} to {kept.max()}, where 0 to {classes - 1} were expected."
    return None


def _indices(data: Value, i: Value, *_: Value, axis: int = 0) -> str | None:
    if i.array is None or not i.array.size or data.shape is None or not -len(data.shape) <= axis < len(data.shape):
        return None
    size = data.shape[axis]
    if isinstance(size, int) and not -size <= i.array.min() <= i.array.max() < size:
        return f"has indices from {i.array.min()} to {i.array.max()}, where {-size} to {size - 1} were expected."
    return None


def _rois(x: Value, rois: Value, batch: Value | None = None, *_: Value) -> str | None:
    if rois.array is not None and not (np.abs(rois.array) < LARGEST_WINDOW).all():
        return f"has regions with coordinates that are not below {LARGEST_WINDOW}."
    rows = (x.shape or (None,))[0]
    if batch is not None and batch.array is not None and batch.array.size and (
            batch.array.min() < 0 or (isinstance(rows, int) and batch.array.max() >= rows)):
        return f"has batch_indices from {batch.array.min()} to {batch.array.max()}, which are no rows of its input."
    return None


def _unpooled(x: Value, i: Value, shape: Value | None = None, *, kernel_shape: Sequence[int] = (),
              strides: Sequence[int] = (), pads: Sequence[int] = ()) -> str | None:
    if i.array is None:
        return "has indices of unknown rank, which crashes the process; declare it." if i.shape is None else None
    if x.shape is not None and x.is_static and i.array.shape != x.shape:
        return f"has indices of the shape {i.array.shape}, where {x.shape} was expected."
    if not i.array.size:
        return None
    if i.array.min() < 0:
        return "has negative indices."
    n = len(kernel_shape)
    if shape is not None and shape.array is not None:
        size = math.prod(map(int, shape.array))
    else:
        window = zip(i.array.shape[2:], strides or [1] * n, kernel_shape, pads[:n] or [0] * n, pads[n:] or [0] * n,
                     strict=False)
        size = math.prod(i.array.shape[:2]) * math.prod((m - 1) * s + k - p - q for m, s, k, p, q in window)
    return None if i.array.max() < size else f"has indices up to {i.array.max()}, and its output has {size} elements."


def _uniform(*_: Value, low: float = 0.0, high: float = 1.0) -> str | None:
    return None if -math.inf < low <= high < math.inf else f"draws numbers from {low} to {high}, which is no interval."


def _normal(*_: Value, mean: float = 0.0, scale: float = 1.0) -> str | None:
    return None if math.isfinite(mean) and 0 < scale < math.inf else f"draws numbers with a scale of {scale}."


#: Checks of operators of the default domain, which return the reason to refuse a node, or None.
_CHECKS: dict[str, Callable[..., str | None]] = {
    "Div": _division, "Mod": _division,
    "Gather": _indices, "GatherElements": _indices,
    "GroupNormalization": _groups,
    "MaxUnpool": _unpooled,
    "NegativeLogLikelihoodLoss": _labels, "SoftmaxCrossEntropyLoss": _labels,
    "RandomNormal": _normal, "RandomNormalLike": _normal, "RandomUniform": _uniform, "RandomUniformLike": _uniform,
    "RoiAlign": _rois,
}


def count_classes(x: Value) -> int | None:
    """The number of classes that the scores of a loss are for, where it is known."""
    size = x.shape[1] if x.shape is not None and len(x.shape) > 1 else None
    return size if isinstance(size, int) else None


def find_source(v: Value) -> Value:
    """The value that a value is a view or a cast of, without guards."""
    while v.node is not None and (v.node.op_type in _UNCHANGED or _is_guard(v.node)) and v.node.inputs[0] is not None:
        v = v.node.inputs[0]
    return v


def _is_guard(node: Node) -> bool:
    """Whether a node adds the zero of a guard, an element of a table of length 1 (run_time_guards.py)."""
    zero = node.inputs[1].node if node.op_type == "Add" and node.inputs[1] is not None else None
    table = zero.inputs[0] if zero is not None and zero.op_type == "Gather" else None
    return table is not None and table.array is not None and table.array.shape == (1,) and not table.array.any()
