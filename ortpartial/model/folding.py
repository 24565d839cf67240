"""Constant folding: compute nodes of constants in advance, above all the arithmetic of shapes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ortpartial.annotations import Attributes
from ortpartial.exceptions import GraphError, ModelError
from ortpartial.graph import SMALL, Value, attribute_value, constant

from .walk import bodies

__all__ = ["evaluate", "fold_constants", "fold_node", "read_constant"]

#: Operators that take no time where their inputs are small.
_FAST = frozenset({"Abs", "Add", "And", "Cast", "Ceil", "Clip", "Concat", "CumSum", "Equal", "Flatten", "Floor",
                   "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity", "Less",
                   "LessOrEqual", "Max", "Min", "Mul", "Neg", "NonZero", "Not", "Or", "Pow", "ReduceMax",
                   "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "ScatterElements", "ScatterND", "Shape",
                   "Sign", "Size", "Slice", "Squeeze", "Sub", "Sum", "Transpose", "Trilu", "Unsqueeze", "Where",
                   "Xor"})


def fold_constants(graph: onnx.GraphProto, opsets: Mapping[str, int],
                   outer: Mapping[str, np.ndarray] | None = None) -> None:
    """Replace nodes that compute whole numbers from whole numbers by constants, which alone inference reads.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph; it is written to, and so are the graphs inside it.
    opsets : dict of str to int
        Its opsets.
    outer : dict of str to numpy.ndarray, optional
        Constants of the graph around it.

    Raises
    ------
    ModelError
        A Range of constants has too many elements.
    """
    arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    integers = dict(outer or {})
    integers |= {n: a for n, a in arrays.items() if _is_small_whole(a)}
    for node in graph.node:
        for body in bodies(node):
            fold_constants(body, opsets, integers)
        if node.op_type == "Range" and node.input and all(i in arrays for i in node.input):
            _check_range(node, [arrays[i] for i in node.input])
        array = _evaluate_fast(node, integers, opsets)
        if array is not None and array.size <= 1:
            arrays[node.output[0]] = array
        if array is not None and _is_small_whole(array):
            integers[node.output[0]] = array
            if node.op_type != "Constant":
                value = numpy_helper.from_array(array)
                node.CopyFrom(helper.make_node("Constant", [], list(node.output), name=node.name, value=value))


def fold_node(node: NodeProto, arrays: Mapping[str, np.ndarray], opsets: Mapping[str, int]) -> np.ndarray | None:
    """The whole numbers that a node computes from whole numbers.

    Parameters
    ----------
    node : onnx.NodeProto
        The node.
    arrays : dict of str to numpy.ndarray
        Constants by name.
    opsets : dict of str to int
        The opsets of the graph.

    Returns
    -------
    numpy.ndarray or None
        None where an input is not constant or the result is large or not whole.
    """
    array = _evaluate_fast(node, {n: a for n, a in arrays.items() if _is_small_whole(a)}, opsets)
    return array if array is not None and _is_small_whole(array) else None


def evaluate(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The output of a small model, computed by onnx's reference evaluator.

    Parameters
    ----------
    model : onnx.ModelProto
        A model of a single output.
    feeds : dict of str to numpy.ndarray
        Its inputs.

    Returns
    -------
    numpy.ndarray or None
        None where the evaluator fails: the runtime's own error names the cause.
    """
    try:
        with np.errstate(all="ignore"):
            (array,) = ReferenceEvaluator(model).run(None, dict(feeds))
    except Exception:
        return None
    return np.asarray(array)


def _evaluate_fast(node: NodeProto, arrays: Mapping[str, np.ndarray], opsets: Mapping[str, int]) -> np.ndarray | None:
    """The output of a node of constants, where it takes no time."""
    if node.domain not in ("", "ai.onnx") or len(node.output) != 1 or not all(i in arrays for i in node.input if i):
        return None
    if node.op_type == "Constant":
        try:
            return read_constant({a.name: attribute_value(a) for a in node.attribute}).array
        except GraphError:
            return None
    if not _is_fast(node, arrays):
        return None
    inputs = [i for i in dict.fromkeys(node.input) if i]
    graph = helper.make_graph([node], "fold", [onnx.ValueInfoProto(name=i) for i in inputs],
                              [onnx.ValueInfoProto(name=node.output[0])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()])
    return evaluate(model, {i: arrays[i] for i in inputs})


def _is_fast(node: NodeProto, arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether a node takes no time and gives few elements."""
    inputs = [arrays[i] for i in node.input if i]
    if node.op_type in ("Div", "Mod"):  # A fatal division is refused later on, and not hidden by some number.
        return len(inputs) == 2 and not _divides_fatally(*inputs)
    if node.op_type in ("ConstantOfShape", "Expand", "Tile"):
        return bool(inputs) and float(np.prod(inputs[-1].astype(float))) * inputs[0].size <= SMALL**2
    if node.op_type == "Range":
        return len(inputs) == 3 and bool(inputs[2].all()) and (
            abs((float(inputs[1].min()) - float(inputs[0].min())) / float(inputs[2].min())) <= SMALL)
    return bool(inputs) and node.op_type in _FAST


def _divides_fatally(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether a division of whole numbers by these may be by 0, or of the least number by -1."""
    least = np.iinfo(a.dtype).min if a.dtype.kind == "i" else 1
    return not b.all() or bool((a == least).any() and (b == -1).any())


def _is_small_whole(a: np.ndarray) -> bool:
    """Whether these are whole numbers, and few."""
    return a.dtype.kind in "biu" and a.size <= SMALL


def _check_range(node: NodeProto, limits: list[np.ndarray]) -> None:
    """Refuse a long Range: the inference of onnx 1.23.2 writes a Range of constants out, number by number."""
    with np.errstate(all="ignore"):
        # The Range of com.microsoft may leave the step out, which is 1 then.
        first, last, step = (*(float(a.min()) if a.size else 1.0 for a in limits), 1.0)[:3]
        count = (last - first) / step if step else 0.0
    if not count <= SMALL**2 * 16:
        raise ModelError(f"Node {node.name or '(unnamed)'} (Range, output {node.output[0]!r}) counts from {first} to "
                         f"{last}, {count:.0f} numbers, where {SMALL**2 * 16} are the most.")


def read_constant(attributes: Attributes) -> Value:
    """The value of a Constant node, whichever of its attributes holds it.

    Parameters
    ----------
    attributes : dict of str to object
        The attributes of the node.

    Returns
    -------
    Value

    Raises
    ------
    GraphError
        It is no tensor of numbers.
    """
    for key, dtype in (("value", None), ("value_float", np.float32), ("value_floats", np.float32),
                       ("value_int", np.int64), ("value_ints", np.int64)):
        if key in attributes:
            value = attributes[key]
            return constant(value if isinstance(value, np.ndarray) else np.asarray(value, dtype))
    raise GraphError(f"A Constant of {sorted(attributes)} is no tensor of numbers.")
