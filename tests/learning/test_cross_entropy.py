"""Losses of labels beside formulas in torch: weights, smoothing, labels that do not count, and focus."""

import label_losses
import numpy as np
import pytest
import torch
from torch.nn import functional

from ortpartial.exceptions import DataError, SettingError
from ortpartial.graph.build import build
from ortpartial.graph.ops import variable
from ortpartial.learning.losses import (
    FocalLearningLoss,
    NegLogLearningLoss,
    SoftmaxCrossEntropyLearningLoss,
    SoftmaxFocalLearningLoss,
    resolve_loss,
)
from ortpartial.testing import evaluate

SETTINGS = [{}, {"label_smoothing": 0.2}, {"class_weight": {1: 3.0}}, {"class_weight": [0.5, 2]},
            {"ignore_index": -1}, {"ignore_index": 1}, {"pos_weight": 2.5}, {"pos_weight": [0.5, 2, 3]},
            {"pos_weight": 2.5, "class_weight": [0.5, 2], "label_smoothing": 0.1, "ignore_index": -1}]
BINARY = [*(NegLogLearningLoss(**s) for s in SETTINGS), *(FocalLearningLoss(**s) for s in SETTINGS),
          FocalLearningLoss(0.5, None), FocalLearningLoss(0, None), FocalLearningLoss(1, 1), FocalLearningLoss(3, 0.9)]
CLASSES = [{}, {"gamma": 0.5}, {"gamma": 0}, {"alpha": 0.25}, {"alpha": [0.1, 0.7, 0.2]}, {"label_smoothing": 0.2},
           {"class_weight": [0.5, 2, 1]}, {"ignore_index": 1}, {"gamma": 1, "alpha": [0.1, 0.7, 0.2],
                                                               "class_weight": [0.5, 2, 1], "label_smoothing": 0.1}]


def run(loss, y, t, weighted=False):
    model = loss.build_onnx_function(dtype=y.dtype, shape=["N", *y.shape[1:]], weighted=weighted)
    return evaluate(model, {"y": y, "t": t})


def check(loss, y, t):
    """Value and gradient are those of torch, in both dtypes; what counts is the same in graphs and for arrays."""
    v = torch.tensor(y, requires_grad=True)
    mean = label_losses.mean(loss, v, torch.tensor(t))
    mean.backward()
    gradient = v.grad.numpy()
    for dtype, tol in (("float64", 1e-12), ("float32", 2e-6)):
        actual = run(loss, y.astype(dtype), t if loss.target_dtype else t.astype(dtype))
        np.testing.assert_allclose(actual["loss"], mean.item(), rtol=tol)
        np.testing.assert_allclose(actual["y_grad"], gradient, atol=tol * abs(gradient).max())
    counts, vs = loss.count_array(t), (variable("y", "float64", y.shape), variable("t", t.dtype, t.shape))
    graph = loss.counts(*vs)
    assert (counts is None) == (graph is None)
    if counts is not None:
        np.testing.assert_array_equal(evaluate(build(vs, {"c": graph}), {"y": y, "t": t})["c"], counts)


@pytest.mark.parametrize("loss", BINARY, ids=repr)
def test_binary(rng, loss):
    y, t = 2 * rng.normal(size=(6, 3)), rng.integers(0, 2, (6, 3)).astype(np.float64)
    if loss.ignore_index == -1:
        t[rng.uniform(size=t.shape) < 0.4] = -1
    check(loss, y, t)


@pytest.mark.parametrize("loss", [NegLogLearningLoss(class_weight=[0.5, 2], label_smoothing=0.1),
                                  FocalLearningLoss()], ids=repr)
def test_labels_that_are_probabilities(rng, loss):
    check(loss, rng.normal(size=(6, 3)), rng.uniform(size=(6, 3)))


def test_the_weight_of_positive_labels_is_that_of_torch(rng):
    y, t = rng.normal(size=(6, 3)), rng.integers(0, 2, (6, 3)).astype(np.float64)
    p = torch.tensor([0.5, 2, 3], dtype=torch.float64)
    expected = functional.binary_cross_entropy_with_logits(*map(torch.tensor, (y, t)), pos_weight=p)
    np.testing.assert_allclose(run(NegLogLearningLoss(pos_weight=[0.5, 2, 3]), y, t)["loss"], expected, rtol=1e-12)


def test_focal_loss_of_the_paper(rng):
    """-α_t (1 - p_t)^γ log p_t, equation 5, with the numbers of torchvision.ops.sigmoid_focal_loss."""
    y, t = rng.normal(size=(6, 1)), rng.integers(0, 2, (6, 1)).astype(np.float64)
    p = 1 / (1 + np.exp(-y))
    p_t, alpha_t = np.where(t == 1, p, 1 - p), np.where(t == 1, 0.25, 0.75)
    expected = (-alpha_t * (1 - p_t) ** 2 * np.log(p_t)).mean()
    np.testing.assert_allclose(run(FocalLearningLoss(), y, t)["loss"], expected, rtol=1e-12)


@pytest.mark.parametrize("settings", CLASSES, ids=repr)
@pytest.mark.parametrize(("shape", "axis"), [((6, 3), 1), ((4, 2, 3), -1), ((2, 3, 2, 2), 1)], ids=str)
def test_classes(rng, settings, shape, axis):
    loss = SoftmaxFocalLearningLoss(axis, **settings)
    check(loss, 2 * rng.normal(size=shape), rng.integers(0, 3, loss.target_shape(shape)))


def test_without_focus_it_is_the_cross_entropy(rng):
    y, t = rng.normal(size=(6, 3)), rng.integers(0, 3, 6)
    for a, b in ((SoftmaxFocalLearningLoss(gamma=0), SoftmaxCrossEntropyLearningLoss()),
                 (SoftmaxFocalLearningLoss(gamma=0, alpha=2.0), SoftmaxCrossEntropyLearningLoss())):
        scale = 1 if a.alpha is None else a.alpha
        np.testing.assert_allclose(run(a, y, t)["loss"], scale * run(b, y, t)["loss"], rtol=1e-13)


@pytest.mark.parametrize("gamma", [0.5, 1, 2])
def test_far_from_the_label_and_at_it(gamma):
    for dtype in ("float32", "float64"):
        y = np.array([[1e4, -1e4], [-1e4, 1e4], [0, 0]], dtype)
        for loss, t in ((FocalLearningLoss(gamma), np.array([[1, 0], [1, 0], [1, 1]], dtype)),
                        (SoftmaxFocalLearningLoss(gamma=gamma), np.array([0, 0, 1]))):
            actual = run(loss, y, t)
            assert np.isfinite(actual["loss"])
            assert np.isfinite(actual["y_grad"]).all()
            np.testing.assert_array_equal(actual["y_grad"][0], 0)


def test_an_excluded_class_has_a_score_of_minus_infinity():
    actual = run(SoftmaxFocalLearningLoss(), np.array([[0, 1, -np.inf]]), np.array([0]))
    assert np.isfinite(actual["loss"])
    assert np.isfinite(actual["y_grad"]).all()


def test_balanced_weights_of_two_labels():
    t = np.array([[0], [1], [0], [0], [-1.0]])
    loss = NegLogLearningLoss(class_weight="balanced", ignore_index=-1)
    assert loss.is_unbalanced
    np.testing.assert_allclose([loss.balanced(t).class_weight[k] for k in (0, 1)], [4 / 6, 2])


@pytest.mark.parametrize("name", ["focal", "Focal", "FocalLearningLoss"])
def test_names(name):
    assert resolve_loss(name) == FocalLearningLoss(2.0, 0.25)


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda: NegLogLearningLoss(pos_weight=-1), SettingError,
     "NegLogLearningLoss: pos_weight is -1, a finite number at least 0, or an array of them, was expected."),
    (lambda: NegLogLearningLoss(pos_weight=["a"]), SettingError, "NegLogLearningLoss: pos_weight is ['a'], a finite "),
    (lambda: NegLogLearningLoss(class_weight=[1, 2, 3]), SettingError,
     "NegLogLearningLoss: class_weight is for 3 classes, and the labels are 0 and 1."),
    (lambda: NegLogLearningLoss(label_smoothing=2), SettingError, "NegLogLearningLoss: label_smoothing is 2, a "),
    (lambda: NegLogLearningLoss(ignore_index="pad"), SettingError, "NegLogLearningLoss: ignore_index is 'pad', a "),
    (lambda: FocalLearningLoss(-1), SettingError, "FocalLearningLoss: gamma is -1, a finite number at least 0 was"),
    (lambda: FocalLearningLoss(alpha=2), SettingError, "FocalLearningLoss: alpha is 2, a finite number "),
    (lambda: SoftmaxFocalLearningLoss(alpha=np.inf), SettingError, "SoftmaxFocalLearningLoss: alpha is inf, a finite "),
    (lambda: NegLogLearningLoss(ignore_index=-2).check_target(np.array([-1.0, -2.0])), DataError,
     "y has numbers from -1.0 to -1.0, where labels of 0 and 1 were expected."),
    (lambda: resolve_loss("focal_loss"), SettingError,
     "learning_loss: 'focal_loss' is not known. Did you mean 'focal'? Known are "),
    (lambda: resolve_loss("binary_focal_crossentropy"), SettingError,
     "learning_loss: 'binary_focal_crossentropy' is not known. Did you mean 'focal'? Known are "),
    (lambda: resolve_loss("CategoricalFocalCrossentropy"), SettingError,
     "learning_loss: 'CategoricalFocalCrossentropy' is not known. Did you mean 'softmax_focal'? Known are "),
])
def test_errors(make, error, message):
    with pytest.raises(error) as e:
        make()
    assert str(e.value).startswith(message)


def test_the_focal_loss_in_bfloat16_is_written():
    """numpy's finfo does not know bfloat16; few of its kernels exist, so that the graph is not run."""
    y, t = variable("y", "bfloat16", ["N", 3]), variable("t", "int64", ["N"])
    model = build([y, t], {"loss": SoftmaxFocalLearningLoss()(y, t)})
    assert model.graph.output[0].type.tensor_type.elem_type == model.graph.input[0].type.tensor_type.elem_type
