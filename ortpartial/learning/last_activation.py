"""The activation that probabilities end in, and the logits that it reads."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes

from ortpartial.graph import Node, Value, cast, make_node, op

__all__ = ["LastActivation", "find_last_activation", "is_normalization", "log_probabilities", "to_logits"]

#: Operators that may keep the elements of the last axis together, and their number.
_RESHAPES = frozenset({"Flatten", "Reshape"})


@dataclass(frozen=True)
class LastActivation:
    """A Softmax or Sigmoid that gives a value, but for its form.

    Parameters
    ----------
    node : Node
        The activation.
    logits : Value
        Its input, in the form of the value.
    axis : int or None
        The axis of the value along which a Softmax sums up to 1; None for Sigmoid.
    is_normalized : bool
        Whether each row is divided by its sum after it.
    """

    node: Node
    logits: Value
    axis: int | None
    is_normalized: bool

    @property
    def op_type(self) -> str:
        """The operator."""
        return self.node.op_type


def find_last_activation(y: Value) -> LastActivation | None:
    """Find the Softmax or Sigmoid that gives a value, through casts, reshapes and normalizations of its form.

    Parameters
    ----------
    y : Value
        Probabilities.

    Returns
    -------
    LastActivation or None
        None where the graph shows none, as for a variable, or a Softmax along an axis that is reshaped.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> z = variable("z", "float32", ["N", 3])
    >>> find_last_activation(op.Identity(op.Softmax(z, axis=1))).logits
    <Value z float32[Nx3]>
    """
    reshapes: list[Node] = []
    v, is_normalized = y, False
    while v.node is not None and v.node.op_type not in ("Sigmoid", "Softmax"):
        node, x = v.node, v.node.inputs[0] if v.node.inputs else None
        if x is None or not x.is_float or not _keeps_elements(node):
            return None
        if node.op_type in _RESHAPES:
            reshapes.append(node)
        is_normalized |= node.op_type == "Div"
        v = x
    if v.node is None or v.inner is not None:
        return None
    (z,), axis = v.node.reads, None
    if v.node.op_type == "Softmax":
        axis = v.node.attribute("axis") % v.rank
        if reshapes:
            size, is_last = (v.shape or ())[-1], axis == v.rank - 1
            if not is_last or not isinstance(size, int) or (y.shape or ())[-1:] != (size,):
                return None
            axis = y.rank - 1
    for node in reversed(reshapes):
        (z,) = make_node(node.schema, [z, *node.inputs[1:]], node.attributes).outputs
    return LastActivation(v.node, cast(z, y), axis, is_normalized)


def _keeps_elements(node: Node) -> bool:
    """Whether a node changes no more of its first input than its form, in a way that follows from the node alone."""
    if node.domain or any(x is not None and x.array is None for x in node.inputs[1:]):
        return not node.domain and is_normalization(node)
    return node.op_type in ("Cast", "Identity") or node.op_type in _RESHAPES


def is_normalization(node: Node) -> bool:
    """Whether a node divides rows of numbers by their sums, as Normalizer does that skl2onnx writes after classifiers.

    Parameters
    ----------
    node : Node
        The node.

    Returns
    -------
    bool
    """
    if node.op_type != "Div":
        return False
    x, divisor = node.reads
    if divisor.node is not None and divisor.node.op_type == "Where":  # 1 in place of 0
        divisor = divisor.node.reads[2]
    total = divisor.node
    if total is None or total.op_type not in ("ReduceL1", "ReduceSum") or total.inputs[0] != x or x.rank != 2:
        return False
    axes = total.inputs[1] if len(total.inputs) > 1 else None
    return axes is not None and axes.array is not None and axes.array.tolist() in ([1], [-1])


def to_logits(p: Value) -> Value:
    """log p - log(1 - p): the input of Sigmoid where p ends in it.

    Parameters
    ----------
    p : Value
        Probabilities.

    Returns
    -------
    Value
    """
    last = find_last_activation(p)
    if last is not None and last.op_type == "Sigmoid" and not last.is_normalized:
        return last.logits
    return _log(p) - _log(1 - p)


def log_probabilities(p: Value, axis: int) -> Value:
    """log(pₖ / Σⱼpⱼ); of a Sigmoid for each class, the mean log-likelihood of k against all others.

    Parameters
    ----------
    p : Value
        Probabilities.
    axis : int
        The axis of the classes, at least 0.

    Returns
    -------
    Value
    """
    last = find_last_activation(p)
    if last is not None and last.axis == axis:
        return op.LogSoftmax(last.logits, axis=axis)
    if last is None or last.op_type == "Softmax":
        return op.LogSoftmax(_log(p), axis=axis)
    z = last.logits
    if last.is_normalized:
        return op.LogSoftmax(-op.Softplus(-z), axis=axis)
    # zₖ = log pₖ - log(1 - pₖ), and log(1 - pⱼ) = -softplus(zⱼ).
    size = z.shape[axis] if z.shape else None
    n = size if isinstance(size, int) else cast(op.Gather(op.Shape(z), axis), z)
    return (z - op.ReduceSum(op.Softplus(z), [axis])) / n


def _log(p: Value) -> Value:
    """The logarithm of a number, or of the smallest normal number where it is less."""
    return op.Log(op.Max(p, float(ml_dtypes.finfo(p.dtype).tiny)))
