"""Graphs of float32 computed in float64 by numpy, operator by operator: without the rounding of a runtime."""

from collections.abc import Mapping

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

__all__ = ["evaluate_doubles", "to_doubles"]


def evaluate_doubles(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a model of float32 by name, computed in float64."""
    names = [i.name for i in model.graph.input]
    doubles = {n: feeds[n].astype(np.float64) if feeds[n].dtype == np.float32 else feeds[n] for n in names}
    outputs = ReferenceEvaluator(to_doubles(model)).run(None, doubles)
    return dict(zip([o.name for o in model.graph.output], outputs, strict=True))


def to_doubles(model: ModelProto) -> ModelProto:
    """The model with float64 in place of float32."""
    copy = ModelProto()
    copy.CopyFrom(model)
    _widen_graph(copy.graph)
    return copy


def _widen_graph(graph: GraphProto) -> None:
    for t in graph.initializer:
        _widen(t)
    for v in [*graph.input, *graph.output, *graph.value_info]:
        if v.type.tensor_type.elem_type == TensorProto.FLOAT:
            v.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        _widen_node(node)


def _widen_node(node: NodeProto) -> None:
    for a in node.attribute:
        if a.type == a.TENSOR:
            _widen(a.t)
        elif a.type == a.GRAPH:
            _widen_graph(a.g)
        elif a.name in ("to", "dtype") and a.i == TensorProto.FLOAT:
            a.i = TensorProto.DOUBLE
    if node.op_type == "GroupNormalization":  # Its mean is in float32 by default.
        rest = [a for a in node.attribute if a.name != "stash_type"]
        del node.attribute[:]
        node.attribute.extend([*rest, helper.make_attribute("stash_type", TensorProto.DOUBLE)])


def _widen(t: TensorProto) -> None:
    if t.data_type == TensorProto.FLOAT:
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float64), t.name))
