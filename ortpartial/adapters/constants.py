"""Constants of a graph: read as nodes read them, and changed for a single reader."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from ortpartial.exceptions import ModelError
from ortpartial.model import walk_graphs

from .products import read_attributes

__all__ = ["Constants"]


class Constants:
    """The constants of a graph, as nodes read them.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph, whose initializers `write` changes.
    """

    def __init__(self, graph: GraphProto):
        self.graph = graph
        self.makers = {o: node for node in graph.node for o in node.output}
        self.tensors = {t.name: t for t in graph.initializer} | {
            node.output[0]: a.t for node in graph.node if node.op_type == "Constant" for a in node.attribute
            if a.name == "value"}

    @cached_property
    def readers(self) -> Counter[str]:
        """How often a tensor is read, in bodies as well."""
        return Counter([n for g in walk_graphs(self.graph) for node in g.node for n in node.input]
                       + [o.name for o in self.graph.output])

    def find(self, node: NodeProto, index: int) -> np.ndarray | None:
        """The content of an input of a node; None where it has none."""
        if len(node.input) <= index or not node.input[index]:
            return None
        return self.read(node.input[index])

    def read(self, name: str) -> np.ndarray:
        """The content of a tensor: a constant as it is, transposed or cast."""
        if name in self.tensors:
            return numpy_helper.to_array(self.tensors[name])
        node = self.makers.get(name)
        if node is None or node.op_type not in ("Cast", "Identity", "Transpose"):
            kind = "an input" if node is None else f"computed by {node.op_type}"
            raise ModelError(f"The weight {name!r} is {kind}, and merge writes constants; deploy the adapter beside "
                             f"the base instead, by save_adapter.")
        a = self.read(node.input[0])
        if node.op_type == "Transpose":
            return a.transpose(read_attributes(node).get("perm"))
        if node.op_type == "Cast":
            return a.astype(helper.tensor_dtype_to_np_dtype(read_attributes(node)["to"]))
        return a

    def write(self, node: NodeProto, index: int, a: np.ndarray) -> None:
        """Change an input of a node: in the constant if nothing else reads it, else in a new initializer."""
        while self.readers[node.input[index]] == 1 and node.input[index] not in self.tensors:
            node, index = self.makers[node.input[index]], 0
            if node.op_type == "Transpose":
                a = a.transpose(np.argsort(read_attributes(node).get("perm", range(a.ndim)[::-1])))
            a = a.astype(self.read(node.input[0]).dtype)
        name = node.input[index]
        if self.readers[name] == 1:
            self.tensors[name].CopyFrom(numpy_helper.from_array(np.asarray(a, order="C"), self.tensors[name].name))
            return
        self.readers[name] -= 1
        copied = next(n for i in range(len(self.tensors)) if (n := f"{name}.merged{i or ''}") not in self.tensors)
        self.tensors[copied] = self.graph.initializer.add()
        self.tensors[copied].CopyFrom(numpy_helper.from_array(np.asarray(a, order="C"), copied))
        node.input[index] = copied
