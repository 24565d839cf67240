"""Gradients of reductions."""

import numpy as np
import pytest
from once import ON_BOTH
from table import NOTHING, OLD, apart, assert_as_torch, real, rows, within

from ortpartial.autodiff.grad import grad
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.rewrites import gradient_model
from ortpartial.testing import check_gradient, evaluate

CUMULATIVE = pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 has no CumProd, which is of opset 26")

OPERATORS = rows(
    ("ReduceSum", op.ReduceSum, real),
    ("ReduceMean", op.ReduceMean, real),
    ("ReduceMax", op.ReduceMax, apart),
    ("ReduceMin", op.ReduceMin, apart),
    ("ReduceLogSumExp", op.ReduceLogSumExp, real),
    ("ReduceL1", op.ReduceL1, real),
    ("ReduceL2", op.ReduceL2, real),
    ("ReduceSumSquare", op.ReduceSumSquare, real),
    ("ReduceLogSum", op.ReduceLogSum, lambda *shape: within(0.3, 2, *shape)),
    ("ReduceProd", op.ReduceProd, real),
)

AXES = rows(
    ("all", (2, 3), None),
    ("first", (2, 3), [0]),
    ("last", (2, 3), [-1]),
    ("two of three", (2, 3, 4), [0, 2]),
    ("in any order", (2, 3, 4), [-1, 0]),
    ("every one", (2, 3), [0, 1]),
    ("one element", (3, 1), [1]),
    ("scalar", (), None),
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(("shape", "axes"), AXES)
@pytest.mark.parametrize(("f", "draw"), OPERATORS)
def test_over_axes(f, draw, shape, axes, keepdims):
    check_gradient(lambda x: f(x, axes, keepdims=keepdims), [draw(*shape)], directions=1, order=2 if keepdims else 1)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(("f", "draw"), OPERATORS)
def test_over_axes_known_at_run_time(f, draw, keepdims):
    check_gradient(lambda x, axes: f(x, axes, keepdims=keepdims), [draw(2, 3, 4), np.array([1, -1])], order=1)


@ON_BOTH
@pytest.mark.parametrize("f", [op.ReduceSum, op.ReduceMean, op.ReduceMax, op.ReduceMin])
def test_over_no_axes(f):
    check_gradient(lambda x: f(x, [], noop_with_empty_axes=1), [apart(2, 3)], order=1)
    check_gradient(lambda x: f(x, [], noop_with_empty_axes=0), [apart(2, 3)], order=1)
    if not OLD:  # which reduces over all axes where none are given
        check_gradient(lambda x: f(x, noop_with_empty_axes=1), [apart(2, 3)], order=1)


@pytest.mark.parametrize("f", [op.ReduceL1, op.ReduceL2, op.ReduceSumSquare])
def test_empty_axes_are_all_axes(f):
    x = variable("x", "float32", ["N", 3])
    for keepdims in (0, 1):
        model = build([x], {"y": f(x, constant(np.zeros(0, np.int64)), keepdims=keepdims)})
        assert list(evaluate(gradient_model(model, ["x"], cotangents="ones"), {"x": real(2, 3).astype(np.float32)}))
    check_gradient(lambda x: f(x, []), [real(2, 3)], order=1)


TORCH = rows(
    ("ReduceSum", op.ReduceSum, lambda x: x.sum(1, keepdim=True), real(2, 3)),
    ("ReduceMean", op.ReduceMean, lambda x: x.mean(1, keepdim=True), real(2, 3)),
    ("ReduceLogSumExp", op.ReduceLogSumExp, lambda x: x.logsumexp(1, keepdim=True), real(2, 3)),
    ("ReduceLogSumExp of large numbers", op.ReduceLogSumExp, lambda x: x.logsumexp(1, keepdim=True), 900 * real(2, 3)),
    ("ReduceL1", op.ReduceL1, lambda x: x.abs().sum(1, keepdim=True), np.array([[0.0, -1.0, 2.0]])),
    ("ReduceL2", op.ReduceL2, lambda x: x.norm(dim=1, keepdim=True), real(2, 3)),
    ("ReduceL2 of zero", op.ReduceL2, lambda x: x.norm(dim=1, keepdim=True), np.array([[0.0, 0.0], [3.0, 4.0]])),
    ("ReduceMax ties", op.ReduceMax, lambda x: x.amax(1, keepdim=True), np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])),
    ("ReduceMin ties", op.ReduceMin, lambda x: x.amin(1, keepdim=True), np.array([[1.0, 1.0, 3.0], [2.0, 2.0, 2.0]])),
)


@pytest.mark.parametrize(("f", "torch_f", "x"), TORCH)
def test_as_torch(f, torch_f, x):
    assert_as_torch(lambda x: f(x, [1]), torch_f, [x])


@NOTHING
@pytest.mark.parametrize(
    ("f", "axes"), [(op.ReduceSum, None), (op.ReduceSum, [0]), (op.ReduceSum, [1]), (op.ReduceMean, [1])]
)
def test_of_no_elements(f, axes):
    check_gradient(lambda x: f(x, axes), [np.zeros((0, 3))], order=1)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_cumsum(axis, exclusive, reverse):
    check_gradient(lambda x: op.CumSum(x, axis, exclusive=exclusive, reverse=reverse), [real(2, 3)])


# Products: zeros one by one, as the product of the others is not the product divided by them.
FACTORS = rows(
    ("no zero", real(2, 3)),
    ("a zero", np.array([[1.5, 0.0, -2.0], [2.0, 3.0, 0.5]])),
    ("two zeros", np.array([[0.0, 0.0, -2.0], [2.0, 3.0, 0.0]])),
    ("three zeros", np.array([[0.0, 3.0, 0.0, -2.0, 0.0], [2.0, 0.0, 3.0, 0.0, 0.5]])),
    ("nothing but zeros", np.zeros((2, 3))),
    ("three axes", real(2, 3, 2)),
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("axes", [None, [1], [0, -1]], ids=str)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("x", FACTORS)
def test_product(x, axes, keepdims):
    check_gradient(lambda x: op.ReduceProd(x, axes, keepdims=keepdims), [x], directions=1)


@pytest.mark.parametrize("x", FACTORS)
def test_product_as_torch(x):
    assert_as_torch(lambda x: op.ReduceProd(x, [1]), lambda x: x.prod(1, keepdim=True), [x])


@pytest.mark.parametrize(
    ("f", "x"),
    rows(
        ("scalar", op.ReduceProd, real()),
        ("of no elements", lambda x: op.ReduceProd(x, [0]), np.zeros((0, 3)), NOTHING),
    ),
)
def test_other_products(f, x):
    check_gradient(f, [x], order=1)


@pytest.mark.sampled(2)
@CUMULATIVE
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("x", FACTORS)
def test_cumprod(x, exclusive, reverse):
    check_gradient(lambda x: op.CumProd(x, -1, exclusive=exclusive, reverse=reverse), [x], directions=1)
    check_gradient(lambda x: op.CumProd(x, 0, exclusive=exclusive, reverse=reverse), [x], directions=1, order=1)


@CUMULATIVE
@pytest.mark.parametrize("x", FACTORS)
def test_cumprod_as_torch(x):
    assert_as_torch(lambda x: op.CumProd(x, 1), lambda x: x.cumprod(1), [x])


def test_a_mean_over_an_argument_of_which_nothing_is_known():
    x = variable("x", "float32", None)
    (dx,) = grad(op.ReduceMean(x, [1]), [x])
    (found,) = evaluate(build([x], [dx]), {"x": np.ones((2, 4), np.float32)}).values()
    assert found.tolist() == [[0.25] * 4] * 2


def test_an_axis_of_one_needs_not_be_repeated():
    x, dy = variable("x", "float32", [3, 1]), variable("dy", "float32", [3, 1])
    model = build([dy], grad(op.ReduceSum(x, [1]), [x], [2 * dy]))
    assert [node.op_type for node in model.graph.node] == ["Mul"]
