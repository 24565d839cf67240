"""Losses of labels as torch computes them: the mean of counted labels, for tensors of scores and labels."""

import torch
from torch.nn import functional


def binary(loss, y, t):
    """The mean of a `NegLogLearningLoss` or a `FocalLearningLoss`."""
    counted = torch.ones_like(y) if loss.ignore_index is None else (t != loss.ignore_index).to(y.dtype)
    labels = t.clamp(0, 1)
    c = torch.tensor([1.0, 1.0] if loss.class_weight is None else [loss.class_weight.get(k, 1.0) for k in (0, 1)]
                     if isinstance(loss.class_weight, dict) else loss.class_weight, dtype=y.dtype)
    weight = counted * (labels * c[1] + (1 - labels) * c[0])
    q = labels * (1 - loss.label_smoothing) + 0.5 * loss.label_smoothing
    pos_weight = None if loss.pos_weight is None else torch.tensor(loss.pos_weight, dtype=y.dtype)
    one = functional.binary_cross_entropy_with_logits(y, torch.ones_like(y), reduction="none", pos_weight=pos_weight)
    zero = functional.binary_cross_entropy_with_logits(y, torch.zeros_like(y), reduction="none")
    if hasattr(loss, "gamma"):
        alpha = (0.5, 0.5) if loss.alpha is None else (loss.alpha, 1 - loss.alpha)
        scale = 2 if loss.alpha is None else 1
        one = one * scale * alpha[0] * (1 - y.sigmoid()) ** loss.gamma
        zero = zero * scale * alpha[1] * y.sigmoid() ** loss.gamma
    return ((c[1] * q * one + c[0] * (1 - q) * zero) * counted).sum() / weight.sum()


def softmax(loss, y, t):
    """The mean of a `SoftmaxCrossEntropyLearningLoss` or a `SoftmaxFocalLearningLoss`."""
    n = y.shape[loss.axis]
    log_p = y.movedim(loss.axis, -1).log_softmax(-1)
    c = torch.ones(n, dtype=y.dtype) if loss.class_weight is None else torch.tensor(loss.class_weight, dtype=y.dtype)
    counted = torch.ones_like(t, dtype=y.dtype) if loss.ignore_index is None else (t != loss.ignore_index).to(y.dtype)
    q = functional.one_hot(t.clamp(0, n - 1), n).to(y.dtype) * (1 - loss.label_smoothing) + loss.label_smoothing / n
    if getattr(loss, "gamma", 0):
        alpha = torch.tensor(1.0 if loss.alpha is None else loss.alpha, dtype=y.dtype)
        log_p = alpha * (1 - log_p.exp()) ** loss.gamma * log_p
    return -((c * q * log_p).sum(-1) * counted).sum() / (counted * c[t.clamp(0, n - 1)]).sum()


def mean(loss, y, t):
    """The mean of a loss of labels."""
    return (softmax if loss.target_dtype else binary)(loss, y, t)
