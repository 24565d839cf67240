"""The pipeline: the three stages of a training, and the changes of each."""

import numpy as np
from models import mlp, net

from ortpartial.graph import build, constant, op, topological, variable
from ortpartial.model import load
from ortpartial.rewrites import Precision
from ortpartial.rewrites.pipeline import prepare_training, rewrite_model, rewrite_step
from ortpartial.runtime import Session

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


def kinds(values):
    return [n.op_type for n in topological(list(values))]


def test_a_model_has_fewer_nodes_and_the_same_outputs():
    x = variable("x", "float32", ["N", 4])
    negative = op.Neg(constant(np.float32([1, 2, 3, 4])))
    model = load(build([x], {"y": op.Relu(x + negative)}))
    simple = rewrite_model(model)
    assert len(kinds(simple.outputs.values())) < len(kinds(model.outputs.values()))
    outputs = [Session(build(m.inputs, m.outputs)).run({"x": X})["y"] for m in (model, simple)]
    np.testing.assert_array_equal(*outputs)


def test_a_model_in_another_dtype():
    model = rewrite_model(load(mlp()), dtype="float64")
    assert {v.dtype.name for v in model.outputs.values()} == {"float64"}


def test_training_mode_comes_before_precision():
    model = load(net(0.5))
    plain = prepare_training(model)
    assert list(plain.model.outputs) == ["y"]
    assert "Cast" not in kinds(plain.model.outputs.values())
    mixed = prepare_training(model, precision=Precision(np.dtype(np.float16)))
    assert kinds(mixed.model.outputs.values()).count("Cast") > 2
    trained = prepare_training(model, train_mode=True, mask=lambda x, keep, i: op.CastLike(0.5, x))
    assert kinds(trained.model.outputs.values()).count("Dropout") == 0


def test_a_step_in_faster_operators():
    a, b, c = (variable(n, "float32", [4, 4]) for n in "abc")
    outputs = {"y": a @ b + c, "z": op.Relu(a)}
    fast = rewrite_step(outputs)
    assert list(fast) == ["y", "z"]
    arrays = {n: np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32) for n in "abc"}
    found, expected = (Session(build([a, b, c], o)).run(arrays) for o in (fast, outputs))
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5, atol=1e-6)
