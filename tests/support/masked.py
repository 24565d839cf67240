"""Masks, and functions that have a pole behind them: in our notation and in torch's."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import where

from ortpartial.graph import constant, op

#: Rows that a mask shuts as a whole, in part and not at all; each mask makes 0 of what is negative.
SIGNED = np.array([[-0.5, -0.3, -0.2], [0.4, -0.6, 0.7], [0.3, 0.5, 0.8]])
#: The same rows with 0 where they are negative, for masks that are shut there.
ZEROS = SIGNED.clip(0)
#: The same rows, scaled to where HardSwish is 0 and 0.2 to 0.9.
WIDE = np.where(SIGNED < 0, SIGNED - 3, SIGNED * 1.5)

_KEEP = np.array(SIGNED > 0)


def _scatter(x):
    rows, columns = np.nonzero(SIGNED < 0)
    return op.ScatterND(x, constant(np.stack([rows, columns], 1)), constant(np.zeros(len(rows), x.dtype)))


def _scatter_elements(x):
    places = np.array([[0, 1, 2], [1, 1, 1], [0, 0, 0]])
    zeros = constant(np.array([[0, 0, 0], [0, 0, 0], [0.3, 0.3, 0.3]], x.dtype))
    return op.ScatterElements(x, constant(places), zeros, axis=1)


def _torch_scatter_elements(x):
    zeros = torch.tensor([[0, 0, 0], [0, 0, 0], [0.3, 0.3, 0.3]], dtype=x.dtype)
    return x.scatter(1, torch.tensor([[0, 1, 2], [1, 1, 1], [0, 0, 0]]), zeros)


def _pool(x):
    return op.Reshape(op.MaxPool(op.Reshape(x, [1, 1, 3, 3]), kernel_shape=[1, 3]), [3, 1])


def _torch_pool(x):
    return F.max_pool2d(x[None, None], (1, 3)).reshape(3, 1)


def _pool_by_masks(x):
    padded = op.Pad(x, [0, 0, 1, 1])
    return op.Reshape(op.MaxPool(op.Reshape(padded, [1, 1, 4, 4]), kernel_shape=[2, 2], strides=[2, 2]), [2, 2])


def _torch_pool_by_masks(x):
    return F.max_pool2d(F.pad(x, (0, 1, 0, 1))[None, None], 2).reshape(2, 2)


#: Masks by name: ours, torch's, and their argument.
MASKS = {
    "Relu": (op.Relu, torch.relu, SIGNED),
    "Clip from below": (lambda x: op.Clip(x, 0.0), lambda x: x.clamp(min=0), SIGNED),
    "Clip from above": (lambda x: -op.Clip(-x, None, 0.0), lambda x: -(-x).clamp(max=0), SIGNED),
    "Clip on both sides": (lambda x: op.Clip(x, 0.0, 9.0), lambda x: x.clamp(0, 9), SIGNED),
    "Max": (lambda x: op.Max(x, 0.0), lambda x: torch.maximum(x, torch.zeros_like(x)), SIGNED),
    "Max of three": (lambda x: op.Max(x, 0.0, -x - 9), lambda x: torch.maximum(x, torch.zeros_like(x)), SIGNED),
    "Min": (lambda x: -op.Min(-x, 0.0), lambda x: -torch.minimum(-x, torch.zeros_like(x)), SIGNED),
    "Where": (lambda x: op.Where(x > 0, x, 0.0), lambda x: where(x > 0, x, 0), SIGNED),
    "Where, the other way": (lambda x: op.Where(x < 0, 0.0, x), lambda x: where(x < 0, 0, x), SIGNED),
    "Abs": (op.Abs, torch.abs, ZEROS),
    "LeakyRelu of slope 0": (lambda x: op.LeakyRelu(x, alpha=0.0), lambda x: F.leaky_relu(x, 0.0), SIGNED),
    "PRelu of slope 0": (lambda x: op.PRelu(x, constant(np.zeros(1, x.dtype))),
                         lambda x: F.prelu(x, torch.zeros(1, dtype=x.dtype)), SIGNED),
    "ThresholdedRelu": (lambda x: op.ThresholdedRelu(x, alpha=0.1), lambda x: F.threshold(x, 0.1, 0.0), SIGNED),
    "HardSigmoid": (lambda x: op.HardSigmoid(x, alpha=1 / 6, beta=0.5), F.hardsigmoid, WIDE),
    "HardSwish": (op.HardSwish, F.hardswish, WIDE),
    "Shrink": (lambda x: op.Shrink(x, lambd=0.25), lambda x: F.hardshrink(x, 0.25), ZEROS + 0.1 * (ZEROS == 0)),
    "a product with a mask": (lambda x: x * (x > 0).astype(x.dtype), lambda x: x * (x > 0), SIGNED),
    "a product with 1 - mask": (lambda x: x * (1 - (x < 0).astype(x.dtype)), lambda x: x * (x > 0), SIGNED),
    "MaxPool": (_pool, _torch_pool, ZEROS),
    "MaxPool by masks": (_pool_by_masks, _torch_pool_by_masks, SIGNED.clip(0)),
    "ReduceMax": (lambda x: op.ReduceMax(x, [1]), lambda x: x.amax(1, keepdim=True), ZEROS),
    "ReduceMin": (lambda x: op.ReduceMin(x, [1]), lambda x: x.amin(1, keepdim=True), ZEROS),
    "ReduceL1": (lambda x: op.ReduceL1(x, [1]), lambda x: x.abs().sum(1, keepdim=True), ZEROS),
    "ReduceL2": (lambda x: op.ReduceL2(x, [1]), lambda x: x.norm(dim=1, keepdim=True), ZEROS),
    "Pad": (lambda x: op.Pad(op.Relu(x), [0, 1, 0, 1]), lambda x: F.pad(x.relu(), (1, 1)), SIGNED),
    "ScatterND": (_scatter, lambda x: where(torch.tensor(_KEEP), x, 0), SIGNED),
    "ScatterElements": (_scatter_elements, _torch_scatter_elements, SIGNED.clip(-9) * [[1], [np.sign(1)], [1]]),
    "Trilu": (lambda x: op.Trilu(op.Relu(x), upper=0), lambda x: torch.tril(x.relu()), SIGNED),
    "Gather": (lambda x: op.Gather(op.Relu(x), [2, 0], axis=0), lambda x: x.relu()[[2, 0]], SIGNED),
    "TopK": (lambda x: op.TopK(op.Relu(x), [2])[0], lambda x: x.relu().topk(2).values, SIGNED),
}


def _norm(v):
    return op.Sqrt(op.ReduceSum(v * v, [1]))


#: Functions by name with a pole at 0: ours and torch's.
BEHIND = {
    "sqrt": (op.Sqrt, torch.sqrt),
    "log": (op.Log, torch.log),
    "reciprocal": (op.Reciprocal, torch.reciprocal),
    "div": (lambda v: 2 / v, lambda v: 2 / v),
    "pow 0.5": (lambda v: v**0.5, lambda v: v**0.5),
    "pow -1": (lambda v: v**-1.0, lambda v: v**-1.0),
    "asin": (lambda v: op.Asin(1 - v), lambda v: torch.asin(1 - v)),
    "acos": (lambda v: op.Acos(1 - v), lambda v: torch.acos(1 - v)),
    "acosh": (lambda v: op.Acosh(1 + v), lambda v: torch.acosh(1 + v)),
    "atanh": (lambda v: op.Atanh(1 - v), lambda v: torch.atanh(1 - v)),
    "norm": (_norm, lambda v: (v * v).sum(1, keepdim=True).sqrt()),
    "logsumexp of log": (lambda v: op.ReduceLogSumExp(op.Log(v), [1]),
                         lambda v: torch.logsumexp(torch.log(v), 1, keepdim=True)),
    "softmax of log": (lambda v: op.Softmax(op.Log(v)), lambda v: torch.softmax(torch.log(v), -1)),
    "exp overflow": (lambda v: op.Exp(1 / (v + 1e-3)), lambda v: torch.exp(1 / (v + 1e-3))),
}
