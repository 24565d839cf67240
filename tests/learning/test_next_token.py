"""The loss of causal language models beside torch's cross-entropy of shifted logits."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from ortpartial.autodiff.grad import grad
from ortpartial.exceptions import GraphError, SettingError
from ortpartial.graph.build import build
from ortpartial.graph.ops import variable
from ortpartial.learning.base import weighted_mean
from ortpartial.learning.losses import NextTokenLearningLoss, resolve_loss
from ortpartial.rewrites.peephole import apply_peepholes
from ortpartial.runtime.session import Session

TOLERANCES = {"float64": 1e-13, "float32": 1e-6, "float16": 2e-3}


def make(shape, rng, ignored=0.3):
    *rows, classes = shape
    labels = rng.integers(0, classes, rows)
    return 3 * rng.normal(size=shape), np.where(rng.uniform(size=rows) < ignored, -100, labels)


def compute_in_torch(y, t, w=None, ignore_index=-100):
    """The mean over what counts, and its gradient by y; 0 where nothing counts."""
    v, labels = torch.tensor(y, dtype=torch.float64, requires_grad=True), torch.tensor(t)[:, 1:]
    costs = functional.cross_entropy(v[:, :-1].movedim(-1, 1), labels, reduction="none", ignore_index=ignore_index)
    w = torch.ones(len(t), dtype=torch.float64) if w is None else torch.tensor(w)
    counted = (w if w.ndim == 2 else w[:, None].expand(t.shape))[:, 1:] * (labels != ignore_index)
    mean = (costs * counted).sum() / max(counted.sum(), 1e-300)
    mean.backward()
    return mean.item(), v.grad.numpy()


def compute(loss, y, t, w=None, optimized=False, sizes=("N", "T")):
    """The same by the formula, as it is or with the operators of a training step."""
    v, labels = variable("y", y.dtype, [*sizes, y.shape[-1]]), variable("t", "int64", sizes)
    weights = None if w is None else variable("w", y.dtype, sizes[: w.ndim])
    mean = weighted_mean(loss(v, labels), weights, loss.counts(v, labels))
    outputs = [mean, *grad(mean, [v])]
    inputs = [v, labels] if weights is None else [v, labels, weights]
    model = build(inputs, dict(zip(("loss", "dy"), apply_peepholes(outputs) if optimized else outputs, strict=True)))
    feeds = {"y": y, "t": t} if w is None else {"y": y, "t": t, "w": w.astype(y.dtype)}
    return model, *Session(model).run(feeds).values()


@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 6, 4), (1, 2, 3), (4, 1, 3), (1, 1, 3)], ids=str)
def test_value_and_gradient_are_those_of_torch(rng, shape, dtype, optimized):
    y, t = make(shape, rng)
    t[0, -1] = 1
    mean, dy = compute_in_torch(y.astype(dtype), t)
    _, actual, actual_dy = compute(NextTokenLearningLoss(), y.astype(dtype), t, optimized=optimized)
    tol = TOLERANCES[dtype]
    np.testing.assert_allclose(actual, mean, rtol=tol, atol=tol)
    np.testing.assert_allclose(actual_dy, dy, atol=tol * max(abs(dy).max(), 1e-3))
    assert actual_dy.dtype == dtype


@pytest.mark.parametrize("of", ["rows", "labels"])
def test_weights_multiply_costs_and_counts(rng, of):
    y, t = make((3, 5, 7), rng)
    w = rng.uniform(size=t.shape if of == "labels" else 3)
    mean, dy = compute_in_torch(y, t, w)
    _, actual, actual_dy = compute(NextTokenLearningLoss(), y, t, w)
    np.testing.assert_allclose(actual, mean, rtol=1e-13)
    np.testing.assert_allclose(actual_dy, dy, atol=1e-14)


@pytest.mark.parametrize("ignore_index", [-100, 2, None])
def test_what_counts(rng, ignore_index):
    y, t = make((3, 5, 7), rng, ignored=0)
    t[0, 2:], loss = 2 if ignore_index is None else ignore_index, NextTokenLearningLoss(ignore_index)
    mean, dy = compute_in_torch(y, t, ignore_index=-100 if ignore_index is None else ignore_index)
    _, actual, actual_dy = compute(loss, y, t)
    np.testing.assert_allclose(actual, mean, rtol=1e-13)
    np.testing.assert_allclose(actual_dy, dy, atol=1e-14)
    values = variable("y", "float64", y.shape), variable("t", "int64", t.shape)
    counts = Session(build(values, {"c": loss.counts(*values)})).run({"y": y, "t": t})["c"]
    np.testing.assert_array_equal(counts, loss.count_array(t))
    np.testing.assert_array_equal(loss.find_ignored(t), counts == 0)
    assert not counts[:, 0].any()


def test_labels_that_are_all_ignored_cost_nothing(rng):
    y, t = make((2, 3, 5), rng, ignored=1)
    _, actual, dy = compute(NextTokenLearningLoss(), y, t)
    assert actual == 0
    assert not dy.any()


def test_labels_of_no_class_cost_nothing_in_a_graph(rng):
    y, t = make((1, 4, 5), rng, ignored=0)
    t[0, 1], t[0, 3] = 5, -1
    _, _, dy = compute(NextTokenLearningLoss(), y, t)
    assert dy[0, 1].any()
    assert not dy[0, [0, 2, 3]].any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_and_excluded_logits(dtype):
    y = np.array([[[1e4, -1e4, 0], [-1e4, 1e4, 0], [0, -np.inf, 1], [0, 0, 0]]], dtype)
    t = np.array([[0, 1, 0, 2]])
    mean, dy = compute_in_torch(y, t)
    for optimized in (False, True):
        _, actual, actual_dy = compute(NextTokenLearningLoss(), y, t, optimized=optimized)
        np.testing.assert_allclose(actual, mean, rtol=1e-6)
        np.testing.assert_allclose(actual_dy, dy, atol=1e-6)


def test_a_step_has_one_softmax_and_no_dense_one_hot(rng):
    model, *_ = compute(NextTokenLearningLoss(), *make((3, 5, 7), rng), optimized=True, sizes=(3, 5))
    large = [n.op_type for n in model.graph.node if n.op_type in (
        "Add", "Equal", "Exp", "Expand", "LogSoftmax", "ReduceLogSumExp", "ScatterElements", "Softmax", "Sub")]
    shapes = {i.name: i.dims[:] for i in model.graph.initializer}
    assert all(np.prod(dims) < 105 for dims in shapes.values())
    assert large.count("Softmax") == large.count("ScatterElements") == 1
    assert not {"Exp", "LogSoftmax", "ReduceLogSumExp"} & set(large)


def test_predicted_tokens_stand_where_their_labels_do():
    y = np.eye(4)[[[2, 1, 3], [0, 0, 1]]]
    assert NextTokenLearningLoss().labels(y).tolist() == [[-100, 2, 1], [-100, 0, 0]]
    assert NextTokenLearningLoss(None).labels(y)[:, 0].tolist() == [-1, -1]


def test_settings_and_shapes():
    assert resolve_loss("next_token") == NextTokenLearningLoss(-100)
    assert NextTokenLearningLoss(np.int32(-1)) == NextTokenLearningLoss(-1)
    for wrong in (1.5, "pad", True):
        with pytest.raises(SettingError, match=r"^NextTokenLearningLoss: ignore_index is .*, a whole number was"):
            NextTokenLearningLoss(wrong)
    for name in ("causal_lm", "ForCausalLMLoss", "CLM"):
        with pytest.raises(SettingError, match="Did you mean 'next_token'"):
            resolve_loss(name)
    with pytest.raises(GraphError, match=r"the output has the shape \('N', 7\), logits of shape \(rows, tokens, "
                                         r"vocabulary\) were expected\.$"):
        NextTokenLearningLoss().target_shape(["N", 7])
