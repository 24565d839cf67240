"""Losses of rows, and their weighted means and sums."""

import numpy as np
import pytest

from ortpartial.autodiff.grad import grad
from ortpartial.exceptions import GraphError
from ortpartial.graph.build import build
from ortpartial.graph.ops import op, variable
from ortpartial.learning.base import mean_rows, weighted_mean, weighted_sums
from ortpartial.learning.losses import SoftmaxCrossEntropyLearningLoss
from ortpartial.testing import evaluate


def square(y, t):
    return (y - t) * (y - t)


def operators(*values):
    inputs = {"x": variable("x", "float64", ["N"])}
    return [n.op_type for n in build(inputs, {f"y{i}": f(*inputs.values()) for i, f in enumerate(values)}).graph.node]


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 1, 1), (4, 3), (4, 3, 2)], ids=str)
@pytest.mark.parametrize("symbolic", [False, True])
def test_mean_rows(rng, shape, symbolic):
    y, t = (variable(n, "float64", [f"d{i}" for i in range(len(shape))] if symbolic else shape) for n in "yt")
    a, b = rng.normal(size=(2, *shape))
    actual = evaluate(build([y, t], {"rows": mean_rows(square(y, t))}), {"y": a, "t": b})["rows"]
    np.testing.assert_allclose(actual, ((a - b) ** 2).reshape(4, -1).mean(axis=1), rtol=1e-13)


def test_mean_rows_of_labels(rng):
    y, t = variable("y", "float64", ["N", 3, 5]), variable("t", "int64", ["N", 5])
    rows = mean_rows(SoftmaxCrossEntropyLearningLoss()(y, t))
    assert rows.shape == ("N",)
    a, b = rng.normal(size=(4, 3, 5)), rng.integers(0, 3, (4, 5))
    log_p = a - np.log(np.exp(a).sum(axis=1, keepdims=True))
    expected = -np.take_along_axis(log_p, b[:, None], axis=1)[:, 0].mean(axis=1)
    np.testing.assert_allclose(evaluate(build([y, t], {"rows": rows}), {"y": a, "t": b})["rows"], expected, rtol=1e-13)


def test_one_column_is_a_view():
    y, t = (variable(n, "float32", ["N", 1]) for n in "yt")
    assert [n.op_type for n in build([y, t], [mean_rows(square(y, t))]).graph.node] == ["Sub", "Mul", "Squeeze"]


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 3), (4, 3, 2)], ids=str)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("weights", [None, [1, 1, 1, 1], [0.5, 0, 2, 1], [0, 0, 0, 0], [3, -3, 1, -1]], ids=str)
def test_weighted_mean(rng, shape, symbolic, weights):
    sizes = [f"d{i}" for i in range(len(shape))] if symbolic else shape
    rows, w = variable("rows", "float64", sizes), None if weights is None else variable("w", "float64", sizes[:1])
    mean = weighted_mean(rows, w)
    (d,) = grad(mean, [rows])
    assert mean.shape == ()
    a = rng.normal(size=shape)
    feeds = {"rows": a, **({"w": np.asarray(weights, float)} if weights else {})}
    actual = evaluate(build([rows] if w is None else [rows, w], {"mean": mean, "d": d}), feeds)
    total = sum(weights) if weights else 4
    share = np.asarray(weights or [1] * 4) / (total or np.inf)
    np.testing.assert_allclose(actual["mean"], share @ a.reshape(4, -1).mean(axis=1), rtol=1e-12, atol=1e-16)
    expected = np.broadcast_to(share.reshape(4, *[1] * (len(shape) - 1)), shape) / np.prod(shape[1:])
    np.testing.assert_allclose(actual["d"], expected, rtol=1e-13)


@pytest.mark.parametrize("weights", [None, [0.5, 0, 2, 1], [0, 0, 0, 0]], ids=str)
def test_mean_from_sums_of_parts(rng, weights):
    a, b = rng.normal(size=4), np.asarray([1, 1, 1, 1] if weights is None else weights, float)
    rows, w = variable("rows", "float64", ["N"]), None if weights is None else variable("w", "float64", ["N"])
    numerator, denominator = weighted_sums(rows, w)
    model = build([rows] if w is None else [rows, w], {"numerator": numerator, "denominator": denominator})

    def run(part):
        actual = evaluate(model, {"rows": a[part]} if w is None else {"rows": a[part], "w": b[part]})
        return np.array([actual["numerator"], actual["denominator"]])

    np.testing.assert_allclose(run(slice(1)) + run(slice(1, None)), run(slice(None)), rtol=1e-14)
    np.testing.assert_allclose(run(slice(None)), [a @ b, b.sum()], rtol=1e-14)


@pytest.mark.parametrize("shape", [["N"], ["N", 1]])
def test_half_precision_counts_far(shape):
    """The sum of 70000 weights is infinite in float16, which left a loss and gradients of 0."""
    rows, w = (variable(n, "float16", shape) for n in ("rows", "w"))
    mean = weighted_mean(rows, w)
    assert mean.dtype == np.float16
    ones = np.ones([70000, *shape[1:]], np.float16)
    assert evaluate(build([rows, w], [mean]), {"rows": 3 * ones, "w": ones})["output_0"] == 3


def test_mean_is_one_node():
    assert operators(weighted_mean) == ["ReduceMean"]
    assert operators(lambda x: weighted_mean(x, x)) == ["ReduceSum", "Equal", "Where", "Div", "Mul", "ReduceSum"]


@pytest.mark.parametrize("mean", [lambda y: mean_rows(op.ReduceSum(y, keepdims=0)),
                                  lambda y: weighted_mean(op.ReduceSum(y, keepdims=0)),
                                  lambda y: weighted_mean(op.ReduceSum(y, keepdims=0), y)])
def test_a_scalar_has_no_rows(mean):
    with pytest.raises(GraphError, match="is a scalar, one number an element or one a row was expected"):
        mean(variable("y", "float32", ["N"]))
