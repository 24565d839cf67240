"""Gradients of loss operators."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from table import assert_as_torch, real, rows, within

from ortpartial.autodiff.grad import grad
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.testing import check_gradient, evaluate

LABELS = rows(
    ("rows", (4, 3), np.array([0, 2, 1, 2])),
    ("int32", (4, 3), np.array([0, 2, 1, 2], np.int32)),
    ("one row", (1, 3), np.array([1])),
    ("lines", (2, 3, 4), np.array([[0, 2, 1, 1], [2, 2, 0, 1]])),
    ("images", (2, 3, 2, 2), np.array([[[0, 2], [1, 1]], [[2, 2], [0, 1]]])),
)
LOSSES = rows(
    ("SoftmaxCrossEntropyLoss", op.SoftmaxCrossEntropyLoss, F.cross_entropy),
    ("NegativeLogLikelihoodLoss", op.NegativeLogLikelihoodLoss, F.nll_loss),
)
WEIGHTS = within(0.5, 2, 3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignore", [None, 2, -1, -100])
@pytest.mark.parametrize(("shape", "labels"), LABELS)
@pytest.mark.parametrize(("f", "torch_f"), LOSSES)
def test_losses(f, torch_f, shape, labels, ignore, reduction, weighted):
    if ignore is not None and ignore < 0:
        labels = np.where(labels == 0, ignore, labels).astype(labels.dtype)
    args = [real(*shape), labels, *([WEIGHTS] if weighted else [])]

    def g(x, t, w=None):
        # torch has no gradient by the weights, so that this one is left to differences.
        return f(x, t, w, reduction=reduction, ignore_index=ignore)

    def torch_g(x, t, w=None):
        ignored = -100 if ignore is None else ignore
        return torch_f(x, t.long(), None if w is None else w.detach(), reduction=reduction, ignore_index=ignored)

    x, *rest = args
    assert_as_torch(lambda x: g(x, *map(constant, rest)), lambda x: torch_g(x, *map(torch.tensor, rest)), [x])
    if len(shape) == 2 and ignore != -100:
        check_gradient(g, args, directions=1, order=2 if labels.dtype == np.int64 else 1)


def test_the_second_output_is_a_log_softmax():
    labels = np.array([0, 2, 1, 2])

    def f(x, t):
        return op.SoftmaxCrossEntropyLoss(x, t).node.outputs

    def torch_f(x, t):
        return [F.cross_entropy(x, t), F.log_softmax(x, 1)]

    check_gradient(f, [real(4, 3), labels])
    check_gradient(lambda *a: f(*a)[1], [real(4, 3), labels], order=1)
    assert_as_torch(f, torch_f, [real(4, 3), labels])


def gradient_of(f, dtype=np.float32, shape=("N", 3), **settings):
    """The gradient of a loss by its scores, as a function of scores and labels."""
    x, t = variable("x", dtype, shape), variable("t", np.int64, ["N"])
    model = build([x, t], grad(f(x, t, **settings), [x]))
    return lambda x, t: next(iter(evaluate(model, {"x": x.astype(dtype), "t": np.array(t)}).values()))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("label", [3, 100, -1, -(2**40)])
@pytest.mark.parametrize(("f", "torch_f"), LOSSES)
def test_a_label_out_of_range_counts_for_nothing(f, torch_f, label, reduction):
    found = gradient_of(f, reduction=reduction)(real(3, 3), [0, label, 2])
    expected = gradient_of(f, reduction=reduction)(real(3, 3)[[0, 2]], [0, 2])
    np.testing.assert_allclose(found, np.insert(expected, 1, 0, axis=0), atol=1e-6)


@pytest.mark.parametrize(("f", "torch_f"), LOSSES)
def test_nothing_but_ignored_labels(f, torch_f):
    assert gradient_of(f, ignore_index=1)(real(2, 3), [1, 1]).tolist() == [[0] * 3] * 2


def test_the_gradient_needs_few_nodes_and_not_the_loss():
    x, t = variable("x", "float32", ["N", 3]), variable("t", "int64", ["N"])
    y = op.SoftmaxCrossEntropyLoss(x, t, reduction="sum")
    model = build([x, t], grad(y, [x]))
    assert sorted(node.op_type for node in model.graph.node) == [
        "Cast", "Equal", "Exp", "LogSoftmax", "Mul", "Mul", "Neg", "ReduceSum", "Sub", "Unsqueeze"]


def test_large_scores():
    x, t = np.array([[1e4, -1e4, 0.0], [-1e4, -1e4, 1e4]]), np.array([1, 2])
    assert_as_torch(op.SoftmaxCrossEntropyLoss, F.cross_entropy, [x, t])
