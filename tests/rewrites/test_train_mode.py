"""Does a rewritten graph compute what it is to compute, in training and in another dtype?"""

import numpy as np
import onnx

from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.model.load import load
from ortpartial.rewrites.train_mode import find_statistics, to_dtype, to_inference_mode, to_training_mode
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
    own = [constant(real(2, seed=i) ** 2, hint=n) for i, n in enumerate(["scale", "b", "mean", "var"])]
    (y,) = op.BatchNormalization(x, *own, n_outputs=1, momentum=0.8)
    return build([x], {"y": op.Dropout(y, constant(np.float32(0.25).reshape(())))})


def test_in_training():
    model = load(normalized(), variables=["mean", "var"])
    found = to_training_mode(model)
    (mask,) = found.masks.values()
    assert mask.keep == 0.75
    assert [(s.name, s.momentum) for s in found.statistics] == [("mean", 0.8), ("var", 0.8)]
    outputs = {**found.model.outputs, **{f"new {s.name}": s.batch for s in found.statistics}}
    x, m = real(4, 2, 3), real(4, 2, 3, seed=5)
    y = Session(build(found.model.inputs, outputs)).run({"x": x, "mask_0": m})
    mean, var = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
    scale, b = (model.arrays[n][:, None] for n in ("scale", "b"))
    np.testing.assert_allclose(y["y"], ((x - mean) / np.sqrt(var + 1e-5) * scale + b) * m, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(y["new mean"], mean.ravel(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y["new var"], var.ravel(), rtol=1e-5)
    assert find_statistics(model) == ["mean", "var"]


def test_a_name_that_a_mask_would_take():
    x = x_of("N")
    model = load(build([x], {"y": op.Dropout(x * constant(real(1), hint="mask_0"))}))
    assert list(to_training_mode(model).masks) == ["mask_0_"]


def test_in_dtype():
    """Every real number is another one, but for what an operator takes in one dtype alone."""
    x = x_of("N", 1, 3)
    y = op.Resize(x * 0.5, None, np.float32([1, 1, 2]), mode="nearest")
    y = op.Cast(op.Cast(y, to=onnx.TensorProto.FLOAT16), to=onnx.TensorProto.FLOAT) + constant(real(1), hint="w")
    y = y + op.ConstantOfShape(op.Shape(y), value=np.float32([2]))
    found = to_dtype(load(build([x], {"y": y, "i": op.ArgMax(y)})), np.float64)
    graph = build(found.inputs, found.outputs).graph
    kinds = {n.op_type: [a for a in n.attribute if a.name == "to"] for n in graph.node}
    assert [a.i for a in kinds["Cast"]] == [onnx.TensorProto.DOUBLE]
    resize = next(n for n in graph.node if n.op_type == "Resize")
    stored = {t.name: t.data_type for t in graph.initializer}
    assert stored[resize.input[2]] == onnx.TensorProto.FLOAT
    assert stored["w"] == onnx.TensorProto.DOUBLE
    assert [v.dtype.name for v in found.outputs.values()] == ["float64", "int64"]
    onnx.checker.check_model(build(found.inputs, found.outputs), full_check=True)


def test_in_inference():
    x, ratio, on = x_of("N", 2, 3), constant(np.float32(0.5).reshape(())), constant(np.array(True))
    own = [constant(real(2, seed=i) ** 2, hint=n) for i, n in enumerate(["scale", "b", "mean", "var"])]
    y, *_ = op.BatchNormalization(x, *own, training_mode=1, n_outputs=3)
    model = build([x], {"y": op.Dropout(y, ratio, on)})
    found = to_inference_mode(model)
    a = real(4, 2, 3)
    scale, b, mean, var = (v.array[:, None] for v in own)
    expected = (a - mean) / np.sqrt(var + 1e-5) * scale + b
    np.testing.assert_allclose(Session(found).run({"x": a})["y"], expected, rtol=1e-4, atol=1e-5)
    assert [n.op_type for n in model.graph.node] == [n.op_type for n in found.graph.node]
    assert len(model.graph.node[0].output) == 3
