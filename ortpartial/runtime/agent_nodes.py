"""Activity analysis for the TrainingAgent: the tensors of a graph that need a gradient, and facts about each node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ortpartial.exceptions import ModelError
from ortpartial.model import QUANTIZERS

__all__ = ["AgentGraph", "AgentNode", "Shape", "read_shape"]

#: Sizes of a tensor: an int, a name, or None where unknown.
Shape = tuple[int | str | None, ...]

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)

#: Operators whose derivative is infinite somewhere or overflows.
_POLES = frozenset({"Div", "Exp", "Log", "Pow", "Reciprocal", "Sqrt"})

#: Operators whose output does not depend on the values of their inputs.
_CONSTANT = frozenset({"ConstantOfShape", "EyeLike", "RandomNormalLike", "RandomUniformLike", "Shape", "Size"})


def read_shape(tensor: Any) -> Shape | None:
    """The sizes that a tensor type declares; None where its rank is unknown."""
    if not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim)


class AgentGraph:
    """The types and constants of a graph, and its active tensors, which need a gradient.

    A tensor is active if it depends on a tensor of `wrt` and an output depends on it.
    """

    def __init__(self, model: ModelProto, wrt: Iterable[str]):
        graph = _infer_shapes(model)
        self.types = {v.name: v.type.tensor_type for v in [*graph.value_info, *graph.input, *graph.output]}
        for t in graph.initializer:
            self.types[t.name] = helper.make_tensor_type_proto(t.data_type, t.dims).tensor_type
        wrt = list(dict.fromkeys(wrt))
        self._check_wrt(graph, wrt)
        outputs = {o.name for o in graph.output}
        varied = self._find_varied(graph, wrt)
        self.active = varied & self._find_useful(graph, outputs)
        #: Nodes of quantizations that round tensors that need a gradient.
        self.roundings = [AgentNode(node, self) for node in graph.node
                          if node.op_type in QUANTIZERS and node.input[0] in varied]
        self.active_nodes = [AgentNode(node, self) for node in graph.node
                             if self.active & {*_list_inputs(node)} and self.active & {*node.output}]
        self.constants = dict(_list_constants(graph))
        for name in wrt:
            self.constants.pop(name, None)
        self.poles = self._find_poles()
        self.used = {i for node in graph.node for i in _list_inputs(node)} | outputs

    def is_float(self, name: str) -> bool:
        """Whether a tensor can have a gradient; an unknown type is assumed to."""
        tensor = self.types.get(name)
        return tensor is None or tensor.elem_type in FLOATS or tensor.elem_type == TensorProto.UNDEFINED

    def _check_wrt(self, graph: GraphProto, wrt: Sequence[str]) -> None:
        names = {*self.types, *(o for node in graph.node for o in node.output)}
        if unknown := [n for n in wrt if n not in names]:
            raise ModelError(f"The model has no initializer or input named {unknown[0]!r}.")
        if others := [n for n in wrt if not self.is_float(n)]:
            raise ModelError(f"{others[0]!r} is not of a floating-point type and has no gradient.")

    def _find_varied(self, graph: GraphProto, wrt: Sequence[str]) -> set[str]:
        """The floating-point tensors that depend on `wrt`."""
        varied = set(wrt)
        for node in graph.node:
            if node.op_type not in _CONSTANT and not varied.isdisjoint(_list_inputs(node)):
                varied.update(filter(self.is_float, node.output))
        return varied

    def _find_poles(self) -> dict[str, str]:
        """The active tensors behind which an operator has an infinite derivative somewhere, and the operator."""
        poles: dict[str, str] = {}
        for node in reversed(self.active_nodes):
            behind = next((poles[o] for o in node.node.output if o in poles), "")
            reads = [i for i in node.node.input if i in self.active]
            if node.op_type == "Div":  # By a constant divisor, it only scales.
                reads = [i for i in reads if behind or i == node.node.input[1]]
            exponent = node.constant(1) if node.op_type == "Pow" else None
            if behind or (node.op_type in _POLES and (exponent is None or (exponent < 1).any())):
                poles.update(dict.fromkeys(reads, behind or node.op_type))
        return poles

    def _find_useful(self, graph: GraphProto, outputs: set[str]) -> set[str]:
        """The floating-point tensors on which an output depends."""
        useful = set(filter(self.is_float, outputs))
        for node in reversed(graph.node):
            if node.op_type not in _CONSTANT and not useful.isdisjoint(node.output):
                useful.update(filter(self.is_float, _list_inputs(node)))
        return useful


def _infer_shapes(model: ModelProto) -> GraphProto:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except onnx.shape_inference.InferenceError as e:
        raise ModelError(f"The model is not valid: {str(e).splitlines()[0]}") from None


def _list_constants(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """The initializers and the outputs of Constant nodes, by name."""
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            yield node.output[0], node.attribute[0].t


def _list_inputs(node: NodeProto) -> Iterator[str]:
    """The inputs of a node and of the nodes in its subgraphs."""
    yield from node.input
    for a in node.attribute:
        for graph in (a.g, *a.graphs):
            for inner in graph.node:
                yield from _list_inputs(inner)


class AgentNode:
    """A node together with its graph, which knows the types and the activity of its tensors."""

    def __init__(self, node: NodeProto, graph: AgentGraph):
        self.node, self.graph, self.op_type = node, graph, node.op_type

    def __str__(self) -> str:
        name = f"node {self.node.name!r}" if self.node.name else f"the node of {self.node.output[0]!r}"
        return f"{self.op_type} ({name})"

    def attribute(self, name: str, default: object = None) -> Any:
        """The value of an attribute as a Python object."""
        value = next((helper.get_attribute_value(a) for a in self.node.attribute if a.name == name), default)
        return value.decode() if isinstance(value, bytes) else value

    def has_input(self, i: int) -> bool:
        """Whether the node has an i-th input."""
        return i < len(self.node.input) and self.node.input[i] != ""

    def is_active(self, i: int) -> bool:
        """Whether the i-th input needs a gradient."""
        return self.has_input(i) and self.node.input[i] in self.graph.active

    def is_used(self, o: int) -> bool:
        """Whether the o-th output is read by a node or is an output of the graph."""
        return o < len(self.node.output) and self.node.output[o] in self.graph.used

    def shape(self, i: int) -> Shape | None:
        """The declared or inferred sizes of the i-th input."""
        return self._shape_of(self.node.input[i]) if self.has_input(i) else None

    def output_shape(self) -> Shape | None:
        """The declared or inferred sizes of the first output."""
        return self._shape_of(self.node.output[0])

    def _shape_of(self, name: str) -> Shape | None:
        tensor = self.graph.types.get(name)
        return None if tensor is None else read_shape(tensor)

    def constant(self, i: int) -> np.ndarray | None:
        """The i-th input if its value is fixed, else None."""
        tensor = self.graph.constants.get(self.node.input[i]) if self.has_input(i) else None
        return None if tensor is None else numpy_helper.to_array(tensor)

    @property
    def is_identity(self) -> bool:
        """Whether the node is a Dropout that drops nothing or a Cast to the type that its input has."""
        if self.op_type == "Cast":
            tensor = self.graph.types.get(self.node.input[0])
            return tensor is not None and tensor.elem_type == self.attribute("to")
        if self.op_type != "Dropout" or self.is_used(1):
            return False
        ratio, training = self.constant(1), self.constant(2)
        return not self.has_input(2) or (training is not None and not training) or (ratio is not None and not ratio)
