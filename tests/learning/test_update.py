"""The weight update w - η · step: its values and its number of operators."""

import numpy as np
import pytest
import torch

from ortpartial.autodiff.grad import grad
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.learning.optimizers import LearningRateSGD
from ortpartial.learning.update import apply_step, decay, drop_flushes, share_flushes
from ortpartial.runtime.session import Session
from ortpartial.testing import evaluate


@pytest.mark.parametrize(("rows", "expected"), [(5, ["MatMul", "Sub"]), ("N", ["ReduceSum", "Mul", "Sub"])])
def test_sum_of_rows(rows, expected):
    """Two nodes instead of three where the number of rows is known; the values are equal up to rounding."""
    w, x = variable("w", "float32", [3]), variable("x", "float32", [rows, 3])
    model = build([w, x], {"new": apply_step(w, constant(0.1), op.ReduceSum(x, [0], keepdims=0))})
    assert [node.op_type for node in model.graph.node] == expected
    feeds = {"w": np.ones(3, np.float32), "x": np.arange(15, dtype=np.float32).reshape(5, 3)}
    np.testing.assert_allclose(Session(model).run(feeds)["new"], 1 - 0.1 * feeds["x"].sum(0), rtol=1e-6)


#: The product of one row by columns, and products by the number of terms of an element, which an addend may swallow.
STEPS = {
    "sum of rows": (lambda a, b: op.ReduceSum(b, [0], keepdims=0), [14]),
    "one row": (lambda a, b: op.Gemm(op.Slice(a, [0], [1], [1]), b, transA=1), [1, 14]),
    "rows": (lambda a, b: op.Gemm(a, b, transA=1), [14, 14]),
    "reshaped": (lambda a, b: op.Reshape(op.Gemm(a, b, transA=1), [2, 7, 14]), [2, 7, 14]),
}


@pytest.mark.parametrize("ulps", [2, 20, 1000])
@pytest.mark.parametrize("count", [16, 512, 4096, "N"])
@pytest.mark.parametrize("step", STEPS)
def test_small_updates_are_not_lost(step, count, ulps):
    """A weight is rounded once, and not at each of the terms of an update, of which it would swallow all."""
    formula, shape = STEPS[step]
    unit = np.spacing(np.float32(3))
    w, a, b = (variable(n, "float32", s) for n, s in (("w", shape), ("a", [count, 14]), ("b", [count, 14])))
    model = build([w, a, b], {"new": apply_step(w, constant(np.float32(0.25)), formula(a, b))})
    rows = 512 if count == "N" else count
    feeds = {"w": np.full(shape, 3, np.float32), "a": np.ones((rows, 14), np.float32),
             "b": np.full((rows, 14), 4 * ulps * unit / rows, np.float32)}
    new = Session(model).run({n: feeds[n] for n in Session(model).inputs})["new"]
    np.testing.assert_allclose((3 - new.astype(np.float64)) / unit, ulps, rtol=2e-4, atol=0.51)


def test_reshaped_product():
    w, a, b = variable("w", "float32", [2, 3, 2]), variable("a", "float32", [2, 4]), variable("b", "float32", [4, 6])
    step = op.Reshape(op.Gemm(a, b, alpha=2.0), [2, 3, 2])
    model = build([w, a, b], {"new": apply_step(w, constant(0.1), step)})
    assert [node.op_type for node in model.graph.node] == ["Gemm", "Reshape", "Add"]
    feeds = {n: np.random.default_rng(i).normal(size=v.shape).astype(np.float32) for i, (n, v) in
             enumerate({"w": w, "a": a, "b": b}.items())}
    expected = feeds["w"] - 0.2 * (feeds["a"] @ feeds["b"]).reshape(2, 3, 2)
    np.testing.assert_allclose(Session(model).run(feeds)["new"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "invscaling"])
def test_gathered_rows_are_scattered_into_the_table(schedule):
    """Not into zeros of its size, which are then scaled and subtracted."""
    w, i, t = variable("w", "float32", [50, 3]), variable("i", "int64", [2, 4]), variable("t", "float32", [2, 4, 3])
    (g,) = grad(op.ReduceSum(op.Gather(w, i) * t, keepdims=0), [w])
    k = variable("k", np.int64, [])
    (new,) = LearningRateSGD(0.1, schedule=schedule).apply(w, g, k)
    assert new.node.op_type == "ScatterElements"
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=v.shape).astype(np.float32) for n, v in {"w": w, "t": t}.items()}
    feeds["i"] = np.array([[3, 0, 3, 49], [7, 3, 0, 1]])
    expected = torch.tensor(feeds["w"], requires_grad=True)
    (expected[feeds["i"]] * torch.tensor(feeds["t"])).sum().backward()
    eta = 0.1 / (4**0.5 if schedule == "invscaling" else 1)
    actual = evaluate(build([w, i, t, k], {"new": new}), {**feeds, "k": np.array(4)})["new"]
    np.testing.assert_allclose(actual, feeds["w"] - eta * expected.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("step", [
    lambda w, i, u: op.ScatterElements(w, i, u, reduction="add"),
    lambda w, i, u: op.ScatterElements(np.zeros((4, 2), np.float32), i, u, reduction="max"),
    lambda w, i, u: op.ScatterElements(np.zeros((4, 2), np.float32), i, u),
])
def test_other_scattered_steps_are_subtracted(step):
    w, i, u = variable("w", "float32", [4, 2]), variable("i", "int64", [1, 2]), variable("u", "float32", [1, 2])
    assert apply_step(w, constant(0.1), step(w, i, u)).node.op_type == "Sub"


def decayed(shapes):
    """States of some shapes, and a model of what remains of them, by a function of these values."""
    k = variable("k", "int64", [])
    states = [variable(f"s{i}", "float32", shape) for i, shape in enumerate(shapes)]
    values = [decay(0.9, s, k) + 1.0 for s in states]
    names = [f"y{i}" for i in range(len(states))]
    return states, lambda change: build([k, *states], dict(zip(names, change(values), strict=True)))


@pytest.mark.parametrize(("shapes", "count"), [
    ([[3], [4, 5], []], 1), ([[3]], 1), ([[3], [64, 64], [5], [64, 64]], 3), ([["N", 3], [2], [2]], 2)], ids=str)
def test_small_states_are_flushed_in_one_branch(shapes, count):
    states, model = decayed(shapes)
    shared, plain = Session(model(share_flushes)), Session(model(list))
    assert [node.op_type for node in model(share_flushes).graph.node].count("If") == count
    feeds = {v.hint: np.resize(np.float32([1e-40, 1, 2]), [n if isinstance(n, int) else 2 for n in v.shape])
             for v in states}
    for k in (31, 32):
        expected = plain.run({"k": np.array(k), **feeds})
        for name, actual in shared.run({"k": np.array(k), **feeds}).items():
            np.testing.assert_array_equal(actual, expected[name])


def test_devices_do_not_flush():
    _, model = decayed([[3], [64, 64]])
    assert {node.op_type for node in model(drop_flushes).graph.node} == {"Mul", "Add"}
