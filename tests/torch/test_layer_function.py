"""A model as the function that a layer computes."""

import numpy as np

from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, variable
from ortpartial.model.load import load
from ortpartial.torch.layer_function import make_layer_function


def test_mode():
    """The initializers that are read, and a graph of certain sizes."""
    x = variable("x", "float32", ["N", 2])
    w, v = constant(np.ones((2, 2), np.float32), hint="w"), constant(np.ones(2, np.float32), hint="v")
    proto = build([x, variable("unused", "float32", ["N"])], {"y": x @ w + v})
    layer = make_layer_function(load(proto), ["w"], dtype="float64", sizes={"x": (5, 2), "unused": (5,)})
    assert layer.initializers == ["w"]
    assert list(layer.function.leaves) == ["x", "unused", "w"]
    assert layer.function.outputs["y"].shape == (5, 2)
    assert layer.function.outputs["y"].dtype == np.float64
    assert [i.name for i in layer.function.graph().graph.input] == ["x", "w"]
