"""Losses of labels with weights, smoothing, focus and an ignored label: fifty steps of torch in every engine."""

import functools

import label_losses
import numpy as np
import pytest
import torch
from models import assert_close
from torch_steps import IN_EVERY_ENGINE, ROWS, images, train, train_torch

from ortpartial.learning import (
    FocalLearningLoss,
    LearningRateSGD,
    NegLogLearningLoss,
    SoftmaxCrossEntropyLearningLoss,
    SoftmaxFocalLearningLoss,
)

WEIGHTS = [0.5, 2.0, 1.0, 3.0]
LOSSES = [
    NegLogLearningLoss(label_smoothing=0.1, pos_weight=WEIGHTS),
    NegLogLearningLoss(class_weight={1: 3.0}, ignore_index=-1),
    FocalLearningLoss(),
    FocalLearningLoss(1.5, None, class_weight=[1, 4], label_smoothing=0.1, ignore_index=-1),
    SoftmaxCrossEntropyLearningLoss(label_smoothing=0.1, class_weight=WEIGHTS, ignore_index=-1),
    SoftmaxFocalLearningLoss(),
    SoftmaxFocalLearningLoss(gamma=1, alpha=WEIGHTS, class_weight=WEIGHTS, label_smoothing=0.1, ignore_index=-1),
]


def labels(loss):
    """X and labels of the loss, some of which do not count."""
    rng, X = np.random.default_rng(5), images("float32")[0]
    shape = ROWS if loss.target_dtype else (ROWS, 4)
    t = rng.integers(0, 4 if loss.target_dtype else 2, shape)
    if loss.ignore_index is not None:
        t[rng.uniform(size=shape) < 0.3] = loss.ignore_index
    return X, (t if loss.target_dtype else t.astype(np.float32))


@functools.cache
def in_torch(loss):
    X, t = labels(loss)
    return train_torch(lambda w: torch.optim.SGD(w.values(), lr=0.05), loss=functools.partial(label_losses.mean, loss),
                       X=X, y=t)


@IN_EVERY_ENGINE
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_fifty_steps(loss, engine):
    X, t = labels(loss)
    o = train(engine, X=X, y=t, learning_loss=loss, learning_rate=LearningRateSGD(0.05))
    assert_close(o.trained_coef_, in_torch(loss), 2e-5)
    assert o.train_losses_[-1] < o.train_losses_[0]


def test_balanced_weights_of_binary_labels():
    X, t = labels(NegLogLearningLoss())
    o = train("step", X=X, y=t, learning_loss=NegLogLearningLoss(class_weight="balanced"), max_iter=1)
    n = t.size
    given = NegLogLearningLoss(class_weight=[n / (2 * (t == 0).sum()), n / (2 * (t == 1).sum())])
    assert_close(o.trained_coef_, train("step", X=X, y=t, learning_loss=given, max_iter=1).trained_coef_, 1e-6)


def test_score_leaves_out_what_does_not_count():
    loss = NegLogLearningLoss(ignore_index=-1)
    X, t = labels(loss)
    o = train("epoch", X=X, y=t, learning_loss=loss)
    right = (o.predict(X) > 0) == (t == 1)
    np.testing.assert_allclose(o.score(X, t), right[t >= 0].mean())
