"""Masks of gradients: shut elements pass nothing, whatever is behind them."""

import numpy as np
import pytest
import torch
from masked import BEHIND, MASKS

from ortpartial.autodiff.grad import grad
from ortpartial.graph import scan
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.testing import evaluate

#: Where torch multiplies by 0 itself and has NaN, of which 0 is what the others have.
NAN_IN_TORCH = frozenset({"Abs", "LeakyRelu of slope 0", "PRelu of slope 0", "ReduceL1", "ReduceL2",
                          "a product with a mask", "a product with 1 - mask"})
#: Reductions of which torch has NaN where several elements of a row are 0, or its cotangent is NaN itself.
SHARED = frozenset({"MaxPool", "ReduceMax", "ReduceMin"})


def sampled(names):
    """Masks as parameters, of which a few run always."""
    few = ("Relu", "Clip on both sides", "Max", "Where", "HardSwish")
    return [n if n in few else pytest.param(n, marks=pytest.mark.slow) for n in names]


def differentiate(mask, dtype, order):
    """The gradients of all that is behind a mask, of an order, in one graph."""
    f, _, a = MASKS[mask]
    x, outputs = variable("x", dtype, [3, 3]), {}
    for i, (g, _) in enumerate(BEHIND.values()):
        (dx,) = grad(g(f(x)), [x])
        outputs[f"dx{i}"] = dx if order == 1 else grad(dx, [x])[0]
    return dict(zip(BEHIND, evaluate(build([x], outputs), {"x": a.astype(dtype)}).values(), strict=True))


def differentiate_by_torch(mask, behind, dtype, order):
    _, f, a = MASKS[mask]
    x = torch.tensor(a.astype(dtype), requires_grad=True)
    (dx,) = torch.autograd.grad(BEHIND[behind][1](f(x)).sum(), [x], create_graph=order == 2)
    if order == 2:
        (dx,) = torch.autograd.grad(dx.sum(), [x], materialize_grads=True)
    return dx.numpy()


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_that_is_shut_passes_nothing(mask, dtype):
    for behind, dx in differentiate(mask, dtype, 1).items():
        expected = differentiate_by_torch(mask, behind, dtype, 1)
        if mask in NAN_IN_TORCH:
            expected = np.where(np.isnan(expected), 0, expected)
        if mask in SHARED:
            dx = np.where(np.isnan(expected), np.nan, dx)
        else:
            assert not np.isnan(dx).any(), (mask, behind, dx)
        rtol, atol = (1e-4, 1e-6) if dtype == "float32" else (1e-6, 1e-12)
        np.testing.assert_allclose(dx, expected, rtol=rtol, atol=atol, err_msg=behind)


@pytest.mark.parametrize("mask", sampled(m for m in MASKS if m not in SHARED and m != "HardSigmoid"))  # None in torch.
def test_second_order(mask):
    # Behind a pole of the second order, torch has NaN at masks that it multiplies in; what it has of others counts.
    for behind, ddx in differentiate(mask, "float32", 2).items():
        expected = differentiate_by_torch(mask, behind, "float32", 2)
        counts = np.isfinite(expected)
        np.testing.assert_allclose(ddx[counts], expected[counts], rtol=1e-3, atol=1e-5, err_msg=behind)


def test_the_number_of_a_pad():
    # Behind the elements that it surrounds, the cotangent is infinite.
    x, c = variable("x", "float32", [2]), variable("c", "float32", [])
    (dc,) = grad(op.Sqrt(op.Pad(x, [0, 2], c)), [c])
    (number,) = evaluate(build([x, c], {"dc": dc}), {"x": np.zeros(2, np.float32), "c": np.float32(4)}).values()
    assert number == 0.5


def test_a_dropout_passes_nothing_where_it_drops():
    x = variable("x", "float32", [64])
    root = op.Sqrt(op.Dropout(x, 0.5, True))
    model = build([x], {"root": root, "dx": grad(root, [x])[0]})
    root, dx = evaluate(model, {"x": np.ones(64, np.float32)}).values()
    assert (root == 0).any()
    assert (dx[root == 0] == 0).all()
    np.testing.assert_allclose(dx[root > 0], 2 / (2 * np.sqrt(2)), rtol=1e-6)


def test_labels_that_do_not_count():
    x = variable("x", "float32", [3, 2])
    cost = op.NegativeLogLikelihoodLoss(x, constant([0, 1, -1]), reduction="none", ignore_index=-1)
    (dx,) = evaluate(build([x], {"dx": grad(op.Sqrt(cost), [x])[0]}), {"x": np.full((3, 2), -4, np.float32)}).values()
    np.testing.assert_allclose(dx, [[-0.25, 0], [0, -0.25], [0, 0]])


def test_a_sequence_that_has_ended():
    x, w, r = (variable(n, "float32", s) for n, s in (("x", [3, 2, 1]), ("w", [1, 2, 1]), ("r", [1, 2, 2])))
    y, _ = op.RNN(x, w, r, None, constant(np.array([3, 1], np.int32)), hidden_size=2, activations=["Relu"])
    feeds = {"x": np.ones(x.shape, np.float32), "w": np.ones(w.shape, np.float32), "r": np.zeros(r.shape, np.float32)}
    gradients = grad(op.Sqrt(y), [x, w])
    dx, dw = evaluate(build([x, w, r], dict(zip(["dx", "dw"], gradients, strict=True))), feeds).values()
    assert dx.ravel().tolist() == [1, 1, 1, 0, 1, 0]
    assert dw.ravel().tolist() == [2, 2]


def test_a_loop_whose_body_has_a_pole():
    x = variable("x", "float32", [4, 2])
    s = constant(np.zeros(2, np.float32))
    _, y = scan(lambda s, x: (s + op.Sqrt(op.Relu(x)), s), [s], [x])
    (dx,) = evaluate(build([x], {"dx": grad(y, [x])[0]}), {"x": np.array([[-1, 4]] * 4, np.float32)}).values()
    np.testing.assert_allclose(dx, [[0, 0.75], [0, 0.5], [0, 0.25], [0, 0]])
