"""StopGradient: the value passes, the gradient does not, in an expression and in a file; StraightThrough."""

import numpy as np
import onnx
import pytest

from ortpartial.autodiff.grad import grad
from ortpartial.autodiff.trainable import find_trainable, resolve_weights
from ortpartial.graph.build import build
from ortpartial.graph.control_flow import cond, loop, scan
from ortpartial.graph.gradient_stop import replace_gradient, stop_gradient
from ortpartial.graph.ops import constant, op, variable
from ortpartial.model.load import load
from ortpartial.rewrites.gradient_model import gradient_model
from ortpartial.rewrites.peephole import apply_peepholes
from ortpartial.rewrites.simplify import simplify
from ortpartial.rewrites.transposes import cancel_transposes
from ortpartial.runtime.session import Session

X = np.array([0, 1e-10, -0.5, 3.14159, 1e6, -127.49])


def types(model):
    return [node.op_type for node in model.graph.node]


def run(model, **feeds):
    return Session(model).run(feeds)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_value_passes_and_gradient_stops(dtype):
    x = variable("x", dtype, ["N"])
    model = build([x], {"y": stop_gradient(x)})
    onnx.checker.check_model(model, full_check=True)
    assert types(model) == ["Identity"]
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 21)]
    np.testing.assert_array_equal(run(model, x=X.astype(dtype))["y"], X.astype(dtype))
    assert not run(gradient_model(model, ["x"]), x=X.astype(dtype), y_grad=X.astype(dtype))["x_grad"].any()


def test_first_and_second_order():
    x = variable("x", "float64", ["N"])
    (first,) = grad(x * x * stop_gradient(x), [x])
    (second,) = grad(first, [x])
    found = run(build([x], {"first": first, "second": second}), x=X)
    np.testing.assert_allclose(found["first"], 2 * X * X)
    np.testing.assert_allclose(found["second"], 2 * X)


def test_a_loaded_model_stops_the_gradient():
    x = variable("x", "float64", ["N"])
    model = build([x], {"y": x * stop_gradient(x)})
    loaded = load(model.SerializeToString())
    for again in (loaded, build(loaded.inputs, loaded.outputs)):
        first = gradient_model(again, ["x"], cotangents="ones")
        np.testing.assert_array_equal(run(first, x=X)["x_grad"], X)
        # The gradient of a model is a model whose gradient stops at the same place.
        second = gradient_model(first, ["x"], cotangents="ones", suffix="_2")
        assert not run(second, x=X)["x_2"].any()


def test_inside_of_bodies():
    x = variable("x", "float64", [None])
    branch = cond(op.ReduceMax(x, keepdims=0) > 0, lambda: x * stop_gradient(x), lambda: x)
    _, steps = scan(lambda s, v: (s, v * stop_gradient(v + s)), [constant(np.zeros(()))], [x])
    model = gradient_model(build([x], {"y": branch, "z": steps}), ["x"], cotangents="ones")
    np.testing.assert_array_equal(run(model, x=X)["x_grad"], 2 * X)


def test_weights_behind_it_are_not_trainable():
    x, v = variable("x", "float32", ["N", 2]), constant(np.ones((2, 2), np.float32), hint="v")
    w = constant(np.ones((2, 2), np.float32), hint="w")
    y = stop_gradient(x @ v) @ w
    assert find_trainable([y]) == {w}
    assert resolve_weights(load(build([x], {"y": y})), None, ["y"]) == ["w"]


def test_it_is_no_identity():
    x = variable("x", "float64", ["N"])
    model = build([x], {"y": op.Identity(x) * stop_gradient(x) * stop_gradient(x)})
    assert sorted(types(model)) == ["Identity", "Identity", "Mul", "Mul"]
    np.testing.assert_array_equal(run(gradient_model(model, ["x"], cotangents="ones"), x=X)["x_grad"], X * X)


@pytest.mark.parametrize("change", [
    lambda m: simplify(m).outputs["y"],
    lambda m: cancel_transposes(m.outputs)["y"],
    lambda m: apply_peepholes([m.outputs["y"]])[0],
], ids=["simplify", "transposes", "peepholes"])
def test_rewrites_keep_it(change):
    x = variable("x", "float64", ["N", 2])
    twice = op.Transpose(stop_gradient(op.Transpose(x) + 0.0))
    model = load(build([x], {"y": stop_gradient(stop_gradient(twice)) * x}))
    y = change(model)
    (dx,) = grad(y, [model.inputs["x"]])
    A = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(run(build(model.inputs, {"dx": dx}), x=A)["dx"], A)


def test_a_replaced_gradient_is_computed_by_the_backward_half_alone():
    x = variable("x", "float32", [3])
    y = replace_gradient(op.Round(x), x * x) * 2
    assert types(build([x], {"y": y})) == ["Round", "Mul"]
    (dx,) = grad(op.ReduceSum(y, keepdims=0), [x])
    a = np.array([0.4, -1.7, 2.6], np.float32)
    results = run(build([x], {"y": y, "dx": dx}), x=a)
    np.testing.assert_allclose(results["y"], 2 * np.round(a))
    np.testing.assert_allclose(results["dx"], 4 * a, rtol=1e-6)


def test_a_gradient_that_is_replaced_in_a_loop_reads_what_leads_to_it():
    x = variable("x", "float32", [3])
    y = loop(lambda i, going, v: (None, replace_gradient(op.Round(v), op.Sin(v)) + 1), 3, x)
    (dx,) = grad(op.ReduceSum(y, keepdims=0), [x])
    a = np.array([0.4, -1.7, 2.6], np.float32)
    results = run(build([x], {"y": y, "dx": dx}), x=a)
    np.testing.assert_allclose(results["y"], np.round(a) + 3)
    np.testing.assert_allclose(results["dx"], np.cos(a) * np.cos(np.round(a) + 1) * np.cos(np.round(a) + 2), rtol=1e-5)
