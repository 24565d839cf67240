"""Victims of the attacks: small models, and the files that a training writes."""

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ortpartial import OrtGradientForwardBackwardOptimizer

X = np.ones((8, 4), np.float32)


def node(op_type: str, inputs: list[str], outputs: list[str], **settings: object) -> NodeProto:
    return helper.make_node(op_type, inputs, outputs, **settings)


def model(nodes: list[NodeProto], tensors: list[TensorProto] = (), functions: list = (), name: str = "") -> ModelProto:
    """A model from x to y, of 4 columns each; `w` is a weight of ones."""
    names = {t.name for t in tensors}
    weights = [numpy_helper.from_array(np.ones(4, np.float32), "w")] if "w" not in names else []
    x, y = (helper.make_tensor_value_info(f"{n}{name}", TensorProto.FLOAT, ["N", 4]) for n in "xy")
    graph = helper.make_graph(nodes, f"g{name}", [x], [y], [*weights, *tensors])
    imports = [helper.make_opsetid("", 21), *([helper.make_opsetid("own", 1)] if functions else [])]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)


def sum_model(tensor: TensorProto) -> ModelProto:
    """y = x + w with this tensor as w."""
    tensor.name = "w"
    return model([node("Add", ["x", "w"], ["y"])], [tensor])


def optimizer(**settings: object) -> OrtGradientForwardBackwardOptimizer:
    """One that trains y = relu(x * w)."""
    proto = model([node("Mul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])])
    return OrtGradientForwardBackwardOptimizer(proto, **{"max_iter": 1, "batch_size": 4, **settings})
