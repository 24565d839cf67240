"""The loss of causal language models: the cross-entropy of the next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ortpartial.annotations import DTypeLike
from ortpartial.exceptions import GraphError
from ortpartial.graph import Value, cast, op, replace_gradient, reshape_like

from .base_loss import BaseLearningLoss, RowCosts, Shape
from .piece import replace_settings
from .validation import check_integer

__all__ = ["NextTokenLearningLoss"]

#: The end of every axis.
_END = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class NextTokenLearningLoss(BaseLearningLoss):
    """-log softmax(yⱼ₋₁)ₜ for the label t of token j of a row; the first label of a row has no cost.

    The labels are the token ids themselves, as they are shifted inside: logits of shape (rows, tokens, vocabulary) have
    labels of shape (rows, tokens), and an array of ids is both input and target. The mean is over the labels that
    count, of all rows of a batch: all but `ignore_index` and the first of each row. A row, or a batch, without any has
    a loss and a gradient of 0. Weights of rows, or of labels, multiply costs and counts.

    Parameters
    ----------
    ignore_index : int or None
        The label of tokens that do not count, such as padding of a row; None for no such label. Others are 0 to the
        size of the vocabulary less 1: `fit` and `TrainingSession` refuse labels out of range, which a graph of your own
        takes for labels without a cost.

    Notes
    -----
    With ``accumulate=n``, an update takes the mean of the means of n batches: a token counts more in a batch of few.
    ``transformers.Trainer`` divides by the number of tokens of all n instead, which is the same where the batches have
    as many that count.

    Costs are computed in float32 at least. A step computes large logits, and their gradient, in chunks of tokens, so
    that they never exist as a whole: a chunk has 2²³ numbers, or 128 tokens where that is more. That takes a head that
    is not trained: a product with a matrix, packed or not, and perhaps a bias, a cap or a cast. Other logits, and those
    of mixed precision, are computed once, and their softmax replaces them.

    References
    ----------
    A. Radford et al., Improving Language Understanding by Generative Pre-Training, 2018, equation 1;
    ``transformers.loss.loss_utils.ForCausalLMLoss``; P.-L. Hsu et al., Liger Kernel: Efficient Triton Kernels for LLM
    Training, 2024, for the chunks.

    Examples
    --------
    >>> loss = NextTokenLearningLoss()
    >>> loss.target_shape(["N", "tokens", 50257])
    ('N', 'tokens')
    >>> loss.count_array(np.array([[11, 12, 13], [11, 12, -100]])).tolist()
    [[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]]
    """

    ignore_index: int | None = -100  # type: ignore[assignment]
    target_dtype: ClassVar[DTypeLike | None] = np.int64
    activations: ClassVar = ("Softmax",)

    def __post_init__(self) -> None:
        ignored: Any = self.ignore_index
        if ignored is not None:
            check_integer(self, "ignore_index")

    def without_ignored_labels(self) -> BaseLearningLoss:
        return replace_settings(self, ignore_index=None)

    def target_shape(self, output_shape: Shape) -> tuple[int | str | None, ...]:
        if len(output_shape) != 3:
            raise GraphError(f"{type(self).__name__}: the output has the shape {tuple(output_shape)}, logits of shape "
                             f"(rows, tokens, vocabulary) were expected.")
        return tuple(output_shape[:2])

    def count_classes(self, output_shape: Shape) -> int | None:
        return size if isinstance(size := output_shape[-1], int) else None

    def explain_shape(self, shape: Sequence[int], output_shape: Shape) -> str:
        return ", the ids of the tokens themselves: the loss shifts them by one"

    def __call__(self, y: Value, t: Value) -> Value:
        following = op.Unsqueeze(self._follow(t), [2])
        return _delay(op.Squeeze(token_costs(y, following, self.ignore_index), [2]))

    def by_row(self, t: Value) -> RowCosts:
        def cost(z: Value, labels: Value) -> Value:
            return token_costs(z, labels, self.ignore_index)

        return RowCosts(cost, op.Reshape(self._follow(t), [-1, 1]), lambda costs: _delay(reshape_like(costs, t)))

    def counts(self, y: Value, t: Value) -> Value:
        return _delay(cast(op.Not(op.Equal(self._follow(t), self._padding)), y))

    def count_array(self, t: np.ndarray) -> np.ndarray:
        return (~self.find_ignored(t)).astype(np.float64)

    def find_ignored(self, t: np.ndarray) -> np.ndarray:
        ignored = np.zeros(t.shape, bool) if self.ignore_index is None else t == self.ignore_index
        ignored[..., :1] = True
        return ignored

    @property
    def _padding(self) -> int:
        """A label that does not count."""
        return -1 if self.ignore_index is None else self.ignore_index

    def _follow(self, t: Value) -> Value:
        """At each token the label of the next, and at the last token the label that does not count."""
        # Not a Pad by -1 and 1, which reads foreign memory where a row has a single token, in onnxruntime 1.19.2.
        return op.Slice(op.Pad(t, [0, 0, 0, 1], self._padding), [1], [_END], [1]).stated(t.shape)

    def labels(self, y: np.ndarray) -> np.ndarray:
        labels = y.argmax(axis=-1)
        return np.concatenate([np.full_like(labels[..., :1], self._padding), labels[..., :-1]], axis=-1)

    def class_scores(self, y: np.ndarray) -> np.ndarray:
        return np.concatenate([np.zeros_like(y[:, :1]), y[:, :-1]], axis=1)


def _delay(costs: Value) -> Value:
    """Shift costs of the next token to the place of that token, with 0 at the first."""
    return op.Slice(op.Pad(costs, [0, 1, 0, 0], 0), [0], [-1], [1]).stated(costs.shape)


def token_costs(z: Value, labels: Value, ignore_index: int | None) -> Value:
    """-log softmax(z)ₜ along the last axis, and 0 where t is the label that does not count, or none of the classes.

    Parameters
    ----------
    z : Value of shape (..., classes)
        The logits.
    labels : Value of shape (..., 1)
        The labels t, of int64.
    ignore_index : int or None
        The label that does not count.

    Returns
    -------
    Value of shape (..., 1)
        Of the dtype of z.
    """
    logits = z.astype(np.float32) if z.dtype.itemsize == 2 else z
    n = z.shape[-1] if z.shape and isinstance(z.shape[-1], int) else op.Gather(op.Shape(z), -1)
    places = op.Clip(labels, 0, n - 1)
    counts = op.Equal(labels, places)
    if ignore_index is not None and (not isinstance(n, int) or 0 <= ignore_index < n):
        counts = op.And(counts, op.Not(op.Equal(labels, ignore_index)))
    score = op.GatherElements(logits, places, axis=-1)
    # log Σⱼexp(zⱼ) is max z - log max softmax(z). onnxruntime 1.19 to 1.32 computes Softmax in the place of z, in a
    # tenth of the time of ReduceLogSumExp; the gradient of the latter is this Softmax.
    cost = op.ReduceMax(logits, [-1]) - score - op.Log(op.ReduceMax(op.Softmax(logits, axis=-1), [-1]))
    cost = replace_gradient(cost, op.ReduceLogSumExp(logits, [-1]) - score)
    return cast(op.Where(counts, cost, 0), z)
