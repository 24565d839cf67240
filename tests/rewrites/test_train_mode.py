"""Training mode and inference mode of Dropout and BatchNormalization."""

import numpy as np

from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.model.load import load
from ortpartial.rewrites.train_mode import find_statistics, to_inference_mode, to_training_mode
from ortpartial.runtime.session import Session


def real(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def x_of(*shape):
    return variable("x", "float32", shape)


def types(model):
    """The operators of a model, in order."""
    return [n.op_type for n in build(model.inputs, model.outputs).graph.node]


def normalized():
    x = x_of("N", 2, 3)
    parameters = [constant(real(2, seed=i) ** 2, hint=n) for i, n in enumerate(["scale", "b", "mean", "var"])]
    (y,) = op.BatchNormalization(x, *parameters, n_outputs=1, momentum=0.8)
    return build([x], {"y": op.Dropout(y, constant(np.float32(0.25).reshape(())))})


def test_training_mode():
    model = load(normalized(), variables=["mean", "var"])
    rewritten = to_training_mode(model)
    (mask,) = rewritten.masks.values()
    assert mask.keep == 0.75
    assert [(s.name, s.momentum) for s in rewritten.statistics] == [("mean", 0.8), ("var", 0.8)]
    outputs = {**rewritten.model.outputs, **{f"new {s.name}": s.batch for s in rewritten.statistics}}
    x, m = real(4, 2, 3), real(4, 2, 3, seed=5)
    y = Session(build(rewritten.model.inputs, outputs)).run({"x": x, "mask_0": m})
    mean, var = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
    scale, b = (model.arrays[n][:, None] for n in ("scale", "b"))
    np.testing.assert_allclose(y["y"], ((x - mean) / np.sqrt(var + 1e-5) * scale + b) * m, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(y["new mean"], mean.ravel(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y["new var"], var.ravel(), rtol=1e-5)
    assert find_statistics(model) == ["mean", "var"]


def test_mask_names_are_unique():
    x = x_of("N")
    model = load(build([x], {"y": op.Dropout(x * constant(real(1), hint="mask_0"))}))
    assert list(to_training_mode(model).masks) == ["mask_0_"]


def test_inference_mode():
    x, ratio, on = x_of("N", 2, 3), constant(np.float32(0.5).reshape(())), constant(np.array(True))
    parameters = [constant(real(2, seed=i) ** 2, hint=n) for i, n in enumerate(["scale", "b", "mean", "var"])]
    y, *_ = op.BatchNormalization(x, *parameters, training_mode=1, n_outputs=3)
    model = build([x], {"y": op.Dropout(y, ratio, on)})
    rewritten = to_inference_mode(model)
    a = real(4, 2, 3)
    scale, b, mean, var = (v.array[:, None] for v in parameters)
    expected = (a - mean) / np.sqrt(var + 1e-5) * scale + b
    np.testing.assert_allclose(Session(rewritten).run({"x": a})["y"], expected, rtol=1e-4, atol=1e-5)
    assert [n.op_type for n in model.graph.node] == [n.op_type for n in rewritten.graph.node]
    assert len(model.graph.node[0].output) == 3
