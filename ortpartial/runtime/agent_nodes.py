"""The nodes of a graph as the TrainingAgent meets them: types, constants, and which tensors need a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ortpartial.exceptions import ModelError

__all__ = ["AgentGraph", "AgentNode", "dims"]

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)

#: Operators whose output depends on no value of their inputs.
_CONSTANT = frozenset({"ConstantOfShape", "EyeLike", "RandomNormalLike", "RandomUniformLike", "Shape", "Size"})


def dims(tensor: Any) -> tuple[int | str | None, ...] | None:
    """Sizes of a tensor type: an int, a name, or None where unknown."""
    if not tensor.HasField("shape"):
        return None
    return tuple(d.dim_value if d.HasField("dim_value") else (d.dim_param or None) for d in tensor.shape.dim)


class AgentGraph:
    """Which tensors of a graph need a gradient, and what is known about their types."""

    def __init__(self, model: ModelProto, wanted: Iterable[str]):
        try:
            graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
        except onnx.shape_inference.InferenceError as e:
            raise ModelError(f"The model is not valid: {str(e).splitlines()[0]}") from None
        self.opset = max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        self.types = {v.name: v.type.tensor_type for v in [*graph.value_info, *graph.input, *graph.output]}
        self.arrays = {t.name: t for t in graph.initializer}
        for t in graph.initializer:
            self.types[t.name] = helper.make_tensor_type_proto(t.data_type, t.dims).tensor_type
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
                self.arrays[node.output[0]] = node.attribute[0].t
        self.outputs = {o.name for o in graph.output}
        known = {*self.types, *(o for node in graph.node for o in node.output)}
        if unknown := [n for n in wanted if n not in known]:
            raise ModelError(f"The model has no initializer or input named {unknown[0]!r}.")
        if stiff := [n for n in wanted if not self.is_float(n)]:
            raise ModelError(f"{stiff[0]!r} is not of a floating-point type and has no gradient.")
        reached = set(wanted)
        for node in graph.node:
            if node.op_type not in _CONSTANT and not reached.isdisjoint(_read(node)):
                reached.update(o for o in node.output if self.is_float(o))
        live = {o for o in self.outputs if self.is_float(o)}
        for node in reversed(graph.node):
            if node.op_type not in _CONSTANT and not live.isdisjoint(node.output):
                live.update(i for i in _read(node) if self.is_float(i))
        self.needed = reached & live
        self.fixed = set(self.arrays) - set(wanted)
        self.readers = {i for node in graph.node for i in _read(node)} | self.outputs
        self.sites = [AgentNode(n, self) for n in graph.node if self.needed & {*_read(n)} and self.needed & {*n.output}]

    def is_float(self, name: str) -> bool:
        """Whether a tensor can have a gradient; one of unknown type is taken to."""
        known = self.types.get(name)
        return known is None or known.elem_type in FLOATS or known.elem_type == TensorProto.UNDEFINED


def _read(node: NodeProto) -> Iterator[str]:
    """What a node reads, in its subgraphs too."""
    yield from node.input
    for a in node.attribute:
        for graph in (a.g, *a.graphs):
            for inner in graph.node:
                yield from _read(inner)


class AgentNode:
    """A node where it stands."""

    def __init__(self, node: NodeProto, graph: AgentGraph):
        self.node, self.graph, self.op_type = node, graph, node.op_type

    def __str__(self) -> str:
        name = f"node {self.node.name!r}" if self.node.name else f"the node of {self.node.output[0]!r}"
        return f"{self.op_type} ({name})"

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute in Python's own type."""
        found = next((helper.get_attribute_value(a) for a in self.node.attribute if a.name == name), default)
        return found.decode() if isinstance(found, bytes) else found

    def given(self, i: int) -> bool:
        """Whether the node has such an input."""
        return i < len(self.node.input) and self.node.input[i] != ""

    def needed(self, i: int) -> bool:
        """Whether the gradient of an input is asked for."""
        return self.given(i) and self.node.input[i] in self.graph.needed

    def read(self, o: int) -> bool:
        """Whether an output is read by anybody."""
        return o < len(self.node.output) and self.node.output[o] in self.graph.readers

    def shape(self, i: int) -> tuple[int | str | None, ...] | None:
        """Sizes of an input, as far as they are known."""
        known = self.graph.types.get(self.node.input[i]) if self.given(i) else None
        return None if known is None else dims(known)

    def made(self) -> tuple[int | str | None, ...] | None:
        """Sizes of the first output, as far as they are known."""
        known = self.graph.types.get(self.node.output[0])
        return None if known is None else dims(known)

    def array(self, i: int) -> np.ndarray | None:
        """An input that is constant."""
        fixed = self.given(i) and self.node.input[i] in self.graph.fixed
        return numpy_helper.to_array(self.graph.arrays[self.node.input[i]]) if fixed else None

    @property
    def idle(self) -> bool:
        """Whether a Dropout lets everything through, or a Cast changes no type, which confuses the builder as well."""
        if self.op_type == "Cast":
            known = self.graph.types.get(self.node.input[0])
            return known is not None and known.elem_type == self.attribute("to")
        if self.op_type != "Dropout" or self.read(1):
            return False
        ratio, training = self.array(1), self.array(2)
        return not self.given(2) or (training is not None and not training) or (ratio is not None and not ratio)
