"""Reductions over no axes, which only map the elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ortpartial.annotations import Attributes
from ortpartial.graph import Value, op

__all__ = ["read_reduction"]

_NOTHING: Callable[[Value], Value] = op.Identity

#: By reduction, its functions of the elements before and after it sums them or takes the largest.
_MAPS: dict[str, tuple[Callable[[Value], Value], Callable[[Value], Value]]] = {
    "ReduceL1": (op.Abs, _NOTHING), "ReduceL2": (lambda x: x * x, op.Sqrt), "ReduceLogSum": (_NOTHING, op.Log),
    "ReduceLogSumExp": (_NOTHING, _NOTHING), "ReduceMax": (_NOTHING, _NOTHING), "ReduceMean": (_NOTHING, _NOTHING),
    "ReduceMin": (_NOTHING, _NOTHING), "ReduceProd": (_NOTHING, _NOTHING), "ReduceSum": (_NOTHING, _NOTHING),
    "ReduceSumSquare": (lambda x: x * x, _NOTHING),
}


def read_reduction(op_type: str, inputs: Sequence[Value | None], attributes: Attributes) -> Value | None:
    """A reduction with `noop_with_empty_axes` in other operators: onnxruntime 1.19.2 leaves out the maps, or fails.

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
    Value or None
        None for other operators, and for reductions over axes that are known.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> read_reduction("ReduceL1", [variable("x", "float32", ["N"])], {"noop_with_empty_axes": 1})
    <Value Abs float32[N]>
    """
    if op_type not in _MAPS or not attributes.get("noop_with_empty_axes") or (x := inputs[0]) is None:
        return None
    axes = inputs[1] if len(inputs) > 1 else None
    before, after = _MAPS[op_type]
    if axes is None or axes.shape == (0,):
        return op.Abs(x) if op_type == "ReduceL2" else before(x) if after is _NOTHING else after(x)
    if axes.array is not None or before is after:
        return None
    return after(op.ReduceSum(before(x), axes, **attributes))
