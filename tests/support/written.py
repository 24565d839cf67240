"""Models written as code: the nodes of a graph as calls of operators, and the doors by which such code comes in."""

import tempfile
from dataclasses import dataclass

import numpy as np
from models import data, linear
from onnx import AttributeProto, numpy_helper

from ortpartial import OrtGradientForwardBackward, OrtGradientForwardBackwardOptimizer, build, nn, op, variable
from ortpartial.graph import Subgraph, Value, attribute_value, constant
from ortpartial.learning_loss import BaseLearningLoss
from ortpartial.testing import check_gradient

__all__ = ["WRITTEN", "is_writable"]

#: The weight of a model.
W = np.ones(1, np.float32)


def is_writable(model):
    """Whether a model is one of operators of the present opset alone, which the notation has."""
    return not model.functions and model.opset_import[0].version >= 21


def write(graph, values):
    """The outputs of a graph, of which `values` holds inputs and weights by name."""
    values = {**{t.name: constant(numpy_helper.to_array(t)) for t in graph.initializer}, **values}
    for node in graph.node:
        attributes = {a.name: write_body(a.g, values) if a.type == AttributeProto.GRAPH else attribute_value(a)
                      for a in node.attribute}
        outputs = getattr(op, node.op_type)(*[values[i] if i else None for i in node.input], **attributes)
        values |= zip(node.output, outputs if isinstance(outputs, (list, tuple)) else [outputs], strict=False)
    return [values[o.name] for o in graph.output]


def write_body(graph, around):
    names = [i.name for i in graph.input]
    return Subgraph.of(lambda *inner: write(graph, {**around, **dict(zip(names, inner, strict=True))}),
                       *(Value(i.type, hint=i.name) for i in graph.input))


class Written(nn.Module):
    """A model as a module, whose loss is the mean of its output."""

    def __init__(self, graph):
        self.proto = graph
        self.w = nn.Parameter([1], 1.0)

    def forward(self, *inputs):
        named = {i.name: v for i, v in zip(self.proto.input, inputs, strict=True)}
        return write(self.proto, {**named, "w": self.w.value})[0]

    def train_one_batch(self, *inputs):
        loss = op.ReduceMean(op.Cast(self.forward(*inputs), to=1), keepdims=0)
        self.optimizer(loss)
        return loss


def compiled(model, feeds, **settings):
    module = Written(model.graph).set_optimizer("sgd")
    return module.compile([nn.placeholder(a.shape, a.dtype) for a in feeds.values()], **settings)


def save(model, feeds):
    with tempfile.TemporaryDirectory() as folder:
        module = compiled(model, feeds)
        module.to_onnx()
        module.save(f"{folder}/module.onnx")


def train_built(model, feeds):
    """What `build` returns, in the trainer of models."""
    inputs = {n: variable(n, a.dtype, a.shape) for n, a in feeds.items()}
    y = write(model.graph, {**inputs, "w": constant(W, hint="w")})[0]
    layer = OrtGradientForwardBackward(build(inputs, {"y": y}), ["w"], engine="step")
    ys, state = layer.forward(feeds)
    layer.backward([np.ones_like(y) for y in ys], state)


def differentiate(model, feeds):
    """Values and their gradient, checked."""
    # In float32, the dtype of the other weights.
    check_gradient(lambda w: write(model.graph, {**{n: constant(a) for n, a in feeds.items()}, "w": w})[0],
                   [np.ones(1)], dtype=np.float32, order=1, step=0.01, rtol=0.1)


@dataclass(frozen=True)
class WrittenLoss(BaseLearningLoss):
    """A loss that has a model in it."""

    graph: object
    feeds: object

    def __call__(self, y, t):
        inputs = {n: constant(a) for n, a in self.feeds.items()}
        inner = write(self.graph, {**inputs, "w": op.ReduceMean(y, keepdims=0)})
        return (y - t) * op.ReduceMean(op.Cast(inner[0], to=1), keepdims=0)


def train_loss(model, feeds):
    x, y, _ = data(4)
    OrtGradientForwardBackwardOptimizer(linear(), learning_loss=WrittenLoss(model.graph, feeds), engine="step",
                                        max_iter=1).fit(x, y)


WRITTEN = {
    "nn, forward": lambda model, feeds: compiled(model, feeds, is_train=False)(*feeds.values()),
    "nn, step": lambda model, feeds: compiled(model, feeds, engine="step").train_one_batch(*feeds.values()),
    "nn, epoch": lambda model, feeds: compiled(model, feeds, engine="epoch").fit([tuple(feeds.values())], epochs=1),
    "nn, native": lambda model, feeds: compiled(model, feeds, engine="native").fit([tuple(feeds.values())], epochs=1),
    "nn, eager": lambda model, feeds: compiled(model, feeds, use_graph=False).train_one_batch(*feeds.values()),
    "nn, save": save,
    "build": train_built,
    "check_gradient": differentiate,
    "learning_loss": train_loss,
}
