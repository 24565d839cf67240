"""Nodes that an adapter inserts into a graph: their names, and operators as the opset of the model has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from ortpartial.graph import mark_gradient_stop

__all__ = ["MARK", "Nodes"]

#: The suffix of a module in the names of inserted nodes and tensors.
MARK = "/adapter/"


@dataclass
class Nodes:
    """Nodes that are inserted for a module.

    Parameters
    ----------
    module : str
        The module.
    dtype : int
        The type of its output.
    opset : int
        The opset of the model.
    nodes : list of onnx.NodeProto
        The nodes.
    """

    module: str
    dtype: int
    opset: int
    nodes: list[NodeProto] = field(default_factory=list)

    def add(self, op_type: str, inputs: Sequence[str], outputs: int = 1, domain: str = "",
            **attributes: Any) -> list[str]:
        """Append a node; returns its outputs."""
        first = f"{self.module}{MARK}{op_type}"
        count = sum(node.op_type == op_type and node.name.startswith(first) for node in self.nodes)
        name = f"{first}_{count}" if count else first
        names = [name] if outputs == 1 else [f"{name}:{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name, domain=domain, **attributes))
        return names

    def compute(self, op_type: str, *inputs: str, domain: str = "", **attributes: object) -> str:
        """Append a node of a single output, and return it."""
        return self.add(op_type, inputs, 1, domain, **attributes)[0]

    def constant(self, value: np.ndarray | Sequence[float] | float, dtype: int | None = None) -> str:
        """A constant: of the type of the module, where no other is given."""
        array = np.asarray(value).astype(helper.tensor_dtype_to_np_dtype(self.dtype if dtype is None else dtype))
        return self.compute("Constant", value=numpy_helper.from_array(array))

    def stop_gradient(self, x: str) -> str:
        """The same, of which no gradient goes on."""
        stopped = self.compute("Identity", x)
        mark_gradient_stop(self.nodes[-1])
        return stopped

    def sum_rows(self, x: str) -> str:
        """The sum over the first axis, which is dropped."""
        if self.opset < 13:
            return self.compute("ReduceSum", x, axes=[0], keepdims=0)
        return self.compute("ReduceSum", x, self.constant([0], TensorProto.INT64), keepdims=0)

    def cast(self, x: str, dtype: int) -> str:
        """The value, cast to the type of the module where it has another."""
        return x if dtype == self.dtype else self.compute("Cast", x, to=self.dtype)

    def scale(self, x: str, factor: float) -> str:
        """A product with a number, where it changes anything."""
        return x if factor == 1 else self.compute("Mul", x, self.constant(factor))

    def drop(self, x: str, ratio: float) -> str:
        """Dropout, where it changes anything."""
        if not ratio:
            return x
        if self.opset < 12:
            return self.compute("Dropout", x, ratio=ratio)
        return self.compute("Dropout", x, self.constant(ratio, TensorProto.FLOAT))

    def split(self, x: str, sizes: Sequence[int]) -> list[str]:
        """Parts of the last axis."""
        if self.opset < 13:
            return self.add("Split", [x], len(sizes), axis=-1, split=list(sizes))
        return self.add("Split", [x, self.constant(sizes, TensorProto.INT64)], len(sizes), axis=-1)
