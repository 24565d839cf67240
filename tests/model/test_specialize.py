"""Specialization: a rewrite of values gives the graph that reading the file for these sizes gives."""

import numpy as np
import pytest
from models import linear, mlp, two_in_two_out, weights_of

from ortpartial import build, constant, op, variable
from ortpartial.model import load, offload_weights, specialize
from ortpartial.subgraph import cond


def moving_axes():
    """Sizes that are computed: attention-like shapes from Shape, Gather, Concat and Reshape."""
    x = variable("x", "float32", ["N", "T", 8])
    w = constant(np.ones((8, 8), np.float32), hint="w")
    shape = op.Shape(x)
    rows, steps = (op.Gather(shape, constant([i]), axis=0) for i in range(2))
    heads = op.Reshape(x @ w, op.Concat(rows, steps, constant([2, -1]), axis=0))
    return build([x], {"y": op.Transpose(heads, perm=[0, 2, 1, 3])})


def branches():
    x, w = variable("x", "float32", ["N", 3]), constant(np.ones(3, np.float32), hint="w")
    return build([x], {"y": cond(op.ReduceSum(x, keepdims=0) > 0, lambda: x * w, lambda: x - w)})


@pytest.mark.parametrize("model", [linear, mlp, two_in_two_out, moving_axes, branches])
@pytest.mark.parametrize("batch", [None, 4])
def test_as_read_for_the_sizes(model, batch):
    proto = model()
    weights = list(weights_of(proto))
    expected = load(proto, batch=batch, variables=weights)
    found = specialize(load(proto), batch=batch, variables=weights)
    given = {n: found.initializers[n] for n in weights}
    assert build({**found.inputs, **given}, found.outputs) == build(
        {**expected.inputs, **{n: expected.initializers[n] for n in weights}}, expected.outputs)
    assert [(n, v.shape) for n, v in found.values.items()] == [(n, v.shape) for n, v in expected.values.items()]


def test_sizes_by_names_of_inputs():
    model = specialize(load(moving_axes()), batch={"x": [2, 5, 8]})
    assert model.inputs["x"].shape == (2, 5, 8)
    assert model.outputs["y"].shape == (2, 2, 5, 4)


def test_a_variable_stays_one():
    model = specialize(specialize(load(linear()), variables=["coef"]), batch=3)
    assert model.initializers["coef"].array is None
    assert model.outputs[next(iter(model.outputs))].shape[0] == 3


def test_constants_follow_their_content_into_a_file():
    """Big initializers that are not trained are kept once, and not in the memory that they were read into."""
    x, w = variable("x", "float32", ["N", 1]), constant(np.ones((2, 1), np.float32), hint="w")
    big = constant(np.ones((1, 2**22), np.float32), hint="big")
    model = offload_weights(load(build([x], {"y": x @ big, "z": w})))
    light = specialize(model, variables=["w"])
    assert light.initializers["big"].array is light.arrays["big"] is not None
    assert light.initializers["w"].array is None
