"""Small graphs with branches and loops, and the structure of graphs built from them."""

import numpy as np
import onnx

from ortpartial.graph.build import build
from ortpartial.graph.ops import op, variable


def x_(shape=(3,), name="x", dtype="float32"):
    return variable(name, dtype, shape)


def positive(x):
    return op.ReduceSum(x, keepdims=0) > 0


def checked(*args):
    """The model that is built, which onnx finds right and in which no name is given twice."""
    model = build(*args)
    onnx.checker.check_model(model, full_check=True)
    names = [*names_of(model.graph)]
    assert len(set(names)) == len(names)
    return model


def names_of(graph):
    yield from (v.name for v in [*graph.input, *graph.initializer])
    for node in graph.node:
        yield from (n for n in node.output if n)
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                yield from names_of(a.g)


def tree(graph):
    """The operators of a graph, those with bodies with the operators inside."""
    return [
        (node.op_type, *(tree(a.g) for a in node.attribute if a.type == onnx.AttributeProto.GRAPH))
        if any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute)
        else node.op_type
        for node in graph.node
    ]


ONE = np.ones(3, np.float32)
