"""Are the gradients of the losses of the ONNX specification right?"""

from itertools import product

import numpy as np
import pytest
import torch.nn.functional as F
from table import assert_as_torch, real, rows, within

from ortpartial.gradient import grad
from ortpartial.graph import build, op, variable
from ortpartial.testing import check_gradient, evaluate

LABELS = rows(
    ("rows", (4, 3), np.array([0, 2, 1, 2])),
    ("rows, int32", (4, 3), np.array([0, 2, 1, 2], np.int32)),
    ("lines", (2, 3, 4), np.array([[0, 2, 1, 1], [2, 2, 0, 1]])),
    ("images", (2, 3, 2, 2), np.array([[[0, 2], [1, 1]], [[2, 2], [0, 1]]])),
)

LOSSES = rows(
    ("SoftmaxCrossEntropyLoss", op.SoftmaxCrossEntropyLoss, F.cross_entropy),
    ("NegativeLogLikelihoodLoss", op.NegativeLogLikelihoodLoss, F.nll_loss),
)


@pytest.mark.parametrize(("ignore_index", "reduction"), product([None, 2, -1], ["none", "sum", "mean"]))
@pytest.mark.parametrize(("shape", "labels"), LABELS)
@pytest.mark.parametrize(("f", "torch_f"), LOSSES)
def test_losses(f, torch_f, shape, labels, ignore_index, reduction):
    if ignore_index == -1:
        labels = np.where(labels == 1, -1, labels).astype(labels.dtype)
    settings = {"reduction": reduction, "ignore_index": ignore_index}
    known = {k: -100 if v is None else v for k, v in settings.items()}
    weights = within(0.5, 2, 3).astype(np.float32)

    def weighted(w):
        return lambda x, t: f(x, t, w if w is None else op.CastLike(w, x), **settings)

    for w in (None, weights):
        torch_w = None if w is None else lambda: F.threshold
        del torch_w
        assert_as_torch(weighted(w), torch_loss(torch_f, w, known), [real(*shape), labels])
    order = 2 if len(shape) == 2 else 1
    check_gradient(lambda x, t, w: f(x, t, w, **settings), [real(*shape), labels, weights], directions=1, order=order)
    check_gradient(lambda x, t: f(x, t, **settings), [real(*shape), labels], directions=1, order=order)
