"""Training mode and inference mode of Dropout and BatchNormalization."""

import numpy as np
import pytest
from numbered_cases import check_case
from onnx import parser

from ortpartial.graph.build import build
from ortpartial.graph.control_flow import cond
from ortpartial.graph.ops import constant, op, variable
from ortpartial.model.load import load
from ortpartial.rewrites.train_mode import find_mode_problems, find_statistics, to_inference_mode, to_training_mode
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


def in_training_mode():
    """A model that was exported in training mode."""
    x, ratio, on = x_of("N", 2, 3), constant(np.float32(0.5).reshape(())), constant(np.array(True))
    parameters = [constant(real(2, seed=i) ** 2, hint=n) for i, n in enumerate(["scale", "b", "mean", "var"])]
    y, *_ = op.BatchNormalization(x, *parameters, training_mode=1, n_outputs=3)
    return build([x], {"y": op.Dropout(y, ratio, on)}), parameters


NUMBERED = {
    "to_training_mode 1": lambda: to_training_mode(load(normalized())),
    "to_training_mode 2": lambda: to_training_mode(load(normalized())),
    "to_inference_mode 1": lambda: to_inference_mode(in_training_mode()[0]),
    "to_inference_mode 2": lambda: to_inference_mode(in_training_mode()[0]),
}


@pytest.mark.parametrize("case", NUMBERED)
def test_numbered_case(case):
    check_case(case, NUMBERED[case])


def test_mask_names_are_unique():
    x = x_of("N")
    model = load(build([x], {"y": op.Dropout(x * constant(real(1), hint="mask_0"))}))
    assert list(to_training_mode(model).masks) == ["mask_0_"]


def test_inference_mode():
    model, parameters = in_training_mode()
    rewritten = to_inference_mode(model)
    a = real(4, 2, 3)
    scale, b, mean, var = (v.array[:, None] for v in parameters)
    expected = (a - mean) / np.sqrt(var + 1e-5) * scale + b
    np.testing.assert_allclose(Session(rewritten).run({"x": a})["y"], expected, rtol=1e-4, atol=1e-5)
    assert [n.op_type for n in model.graph.node] == [n.op_type for n in rewritten.graph.node]
    assert len(model.graph.node[0].output) == 3
    assert to_inference_mode(rewritten) is rewritten
    assert find_mode_problems(load(rewritten), ["y"], False) == []


def test_inference_mode_of_nodes_in_bodies_and_functions():
    x, ratio, on = x_of("N", 2), constant(np.float32(0.5).reshape(())), constant(np.array(True))
    y = cond(op.ReduceSum(x, keepdims=0) > 0, lambda: op.Dropout(x, ratio, on), lambda: x)
    model = to_inference_mode(build([x], {"y": y}))
    a = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(Session(model).run({"x": a})["y"], a)
    model = parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 21, "own" : 1]>
        agraph (float[N, 2] x) => (float[N, 2] y) { y = own.f (x) }
        <opset_import: ["" : 21], domain: "own">
        f (a) => (b) { r = Constant <value = float {0.5}> () t = Constant <value = bool {1}> () b = Dropout (a, r, t) }
        """)
    np.testing.assert_array_equal(Session(to_inference_mode(model)).run({"x": a})["y"], a)


def test_what_has_no_inference_mode():
    """A mode that is an input, statistics that are computed, new statistics that are read."""
    x, on, s = x_of("N", 2), variable("on", "bool", []), constant(real(2) ** 2, hint="s")
    mean = op.ReduceMean(x, [0], keepdims=0)
    y, *_ = op.BatchNormalization(x, s, s, mean, s, training_mode=1, n_outputs=3)
    z, new, _ = op.BatchNormalization(x, s, s, s, s, training_mode=1, n_outputs=3)
    model = build([x, on], {"y": op.Dropout(y, constant(np.float32(0.5).reshape(())), on), "z": z, "new": new})
    assert to_inference_mode(model) is model
    assert len(find_mode_problems(load(model), ["y", "z"], True)) == 1
    assert find_mode_problems(load(model), ["new"], True)[0].startswith("<Node BatchNormalization_node_")
