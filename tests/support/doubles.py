"""Graphs of float32 computed in float64 by numpy, operator by operator: without the rounding of a runtime."""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

__all__ = ["evaluate_doubles", "to_doubles"]


class Conv(OpRun):
    """Conv by torch, whose speed is enough for a large chain."""

    def _run(self, x, w, b=None, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, pads=None,
             strides=None):
        r = x.ndim - 2
        pads, ones = pads or [0] * 2 * r, [1] * r
        f = (F.conv1d, F.conv2d, F.conv3d)[r - 1]
        x, w, b = (None if a is None else torch.from_numpy(a) for a in (x, w, b))
        padded = F.pad(x, [p for i in reversed(range(r)) for p in (pads[i], pads[r + i])])
        return (f(padded, w, b, strides or ones, 0, dilations or ones, group).numpy(),)


class ConvTranspose(OpRun):
    """ConvTranspose by torch: that of onnx 1.23.2 fails with groups."""

    def _run(self, x, w, b=None, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, output_padding=None,
             output_shape=None, pads=None, strides=None):
        r = x.ndim - 2
        pads, extra, ones = pads or [0] * 2 * r, output_padding or [0] * r, [1] * r
        f = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[r - 1]
        x, w, b = (None if a is None else torch.from_numpy(a) for a in (x, w, b))
        whole = f(x, w, None, strides or ones, 0, 0, group, dilations or ones)
        y = F.pad(whole, [p for i in reversed(range(r)) for p in (-pads[i], extra[i] - pads[r + i])])
        return ((y if b is None else y + b.reshape(-1, *[1] * r)).numpy(),)


def evaluate_doubles(model: ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a model of float32 by name, computed in float64."""
    names = [i.name for i in model.graph.input]
    doubles = {n: feeds[n].astype(np.float64) if feeds[n].dtype == np.float32 else feeds[n] for n in names}
    outputs = ReferenceEvaluator(to_doubles(model), new_ops=[Conv, ConvTranspose]).run(None, doubles)
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
