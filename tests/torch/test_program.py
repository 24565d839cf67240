"""A model as the function that a layer computes."""

import numpy as np

from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, variable
from ortpartial.model import load
from ortpartial.torch.program import make_program


def test_mode():
    """The initializers that are read, and a graph of certain sizes."""
    x = variable("x", "float32", ["N", 2])
    w, v = constant(np.ones((2, 2), np.float32), hint="w"), constant(np.ones(2, np.float32), hint="v")
    proto = build([x, variable("unused", "float32", ["N"])], {"y": x @ w + v})
    found = make_program(load(proto), ["w"], dtype="float64", sizes={"x": (5, 2), "unused": (5,)})
    assert found.fed == ["w"]
    assert list(found.program.leaves) == ["x", "unused", "w"]
    assert found.program.outputs["y"].shape == (5, 2)
    assert found.program.outputs["y"].dtype == np.float64
    assert [i.name for i in found.program.graph().graph.input] == ["x", "w"]
