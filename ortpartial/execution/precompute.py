"""Numbers that follow from counts alone, as step sizes do, computed ahead for all steps of an epoch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ortpartial.graph import Node, Value, cast, constant, make_node, op, topological

from .step import Step

__all__ = ["compute_ahead", "find_ahead", "find_counts"]

#: Operators that give the same bits for a number by itself and in a vector. Cos, Exp and others do not.
_EXACT = frozenset({"Add", "And", "Cast", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max",
                    "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Sqrt", "Sub", "Where"})


def find_counts(step: Step) -> dict[str, Value]:
    """The state that counts: whole numbers to which each step adds a constant.

    Parameters
    ----------
    step : Step
        The step.

    Returns
    -------
    dict of str to Value
        By state, the constant.

    Examples
    --------
    >>> from ortpartial.execution.names import StepNames
    >>> from ortpartial.graph import variable
    >>> k, n = variable("k", "int64", []), variable("n", "int64", [])
    >>> find_counts(Step({"k": k, "n": n}, {"k_new": k + 1, "n_new": 2 * n}, StepNames(frozenset())))
    {'k': <Value constant int64[]>}
    """
    constants = {n: _find_addend(step.inputs[n], step.outputs[new]) for n, new in step.state.items()}
    return {n: by for n, by in constants.items() if by is not None}


def _find_addend(before: Value, after: Value) -> Value | None:
    """The constant whose sum with a whole number is another number."""
    node = after.node
    if node is None or node.op_type != "Add" or before.dtype != np.int64 or before.shape != ():
        return None
    others = [v for v in node.reads if v is not before]
    return others[0] if len(others) == 1 and others[0].array is not None and others[0].shape == () else None


def find_ahead(outputs: Sequence[Value], counts: Collection[Value], fixed: Collection[Value] = ()) -> list[Value]:
    """The numbers that follow from counts and that the rest of expressions reads; a count itself if it does.

    Parameters
    ----------
    outputs : sequence of Value
        The expressions.
    counts : collection of Value
        Scalars.
    fixed : collection of Value
        Scalars that may take part, as constants may.

    Returns
    -------
    list of Value
    """
    numbers, fixed, read = set(counts), set(fixed), dict.fromkeys(outputs)
    for node in topological(outputs):
        reads = {v for v in node.reads if v.array is None}
        is_exact = _is_exact(node) and all(v.shape == () for v in node.reads)
        if is_exact and reads and reads <= fixed:
            fixed.update(node.outputs)
        elif is_exact and reads & numbers and reads <= numbers | fixed:
            numbers.update(node.outputs)
        else:
            read |= dict.fromkeys(node.reads)
    return [v for v in read if v in numbers]


def _is_exact(node: Node) -> bool:
    """Whether a node gives the same bits for numbers and for vectors of them."""
    if node.domain or node.op_type not in _EXACT:
        return False
    # onnxruntime multiplies a vector by itself for the exponents 2 and 3, which a number takes by its logarithm.
    return node.op_type != "Pow" or (exponent := node.reads[1].array) is None or exponent not in (2, 3)


def compute_ahead(numbers: Sequence[Value], counts: Mapping[Value, Value]) -> list[Value]:
    """Numbers that follow from counts, for each element of vectors in their place.

    Parameters
    ----------
    numbers : sequence of Value
        The result of `find_ahead`.
    counts : dict of Value to Value
        By count, a vector.

    Returns
    -------
    list of Value
        A vector for each number.
    """
    vectors = dict(counts)
    for node in topological(numbers, list(counts)):
        inputs = [None if v is None else vectors.get(v, v) for v in node.inputs]
        if any(v in vectors for v in node.reads):
            vectors.update(zip(node.outputs, _make(node, inputs), strict=True))
    return [vectors[v] for v in numbers]


def _make(node: Node, inputs: Sequence[Value | None]) -> Sequence[Value]:
    """The outputs of a node for other inputs."""
    x = inputs[0]
    if node.op_type == "Sqrt" and x is not None and x.dtype == np.float32:
        # onnxruntime 1.19.2 is an ulp off where it takes several roots in float32 at once, and exact in float64.
        return [cast(op.Sqrt(cast(x, constant(0.0, np.float64))), x)]
    return make_node(node.schema, inputs, node.attributes).outputs
