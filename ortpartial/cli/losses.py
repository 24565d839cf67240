"""The losses of `train` and `evaluate`: as labels and probabilities call for."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from ortpartial.estimator import ends_in_probabilities, resolve_losses
from ortpartial.graph import Value
from ortpartial.learning import BaseLearningLoss, NegLogLearningLoss, are_classes, guess_loss
from ortpartial.model import Model

from .component_specs import is_for_all, parse_losses
from .console import print_line
from .roles import Columns, Roles

__all__ = ["choose_losses"]


def choose_losses(words: Sequence[str], roles: Roles, model: Model, columns: Columns, quiet: bool = False) -> list[str]:
    """The words of the losses, with settings that follow from the outputs and the targets.

    Labels, texts or whole numbers, have a loss of classes where no word says another, and an output that ends in
    Softmax or Sigmoid has a loss of probabilities.

    Parameters
    ----------
    words : sequence of str
        The words that were given or are stored; none for the default.
    roles : Roles
        The roles of the columns.
    model : Model
        The model.
    columns : dict of str to numpy.ndarray
        The rows.
    quiet : bool
        Whether nothing is printed.

    Returns
    -------
    list of str
    """
    words = list(words) or [_choose_default(roles, model, columns, quiet)]
    losses = resolve_losses(model, parse_losses(words, roles.target))
    targets = dict(zip(roles.outputs, roles.target, strict=True)) if len(roles.outputs) > 1 else {}
    of_outputs = dict.fromkeys(losses, words[0]) if is_for_all(words) else dict(w.split("=", 1) for w in words)
    chosen = {}
    for output, loss in losses.items():
        target = [targets.get(output, output)] if targets else roles.target
        has_labels = len(target) == 1 and columns[target[0]].ndim == 1
        chosen[output] = _of_probabilities(of_outputs[output], loss, model.outputs[output], has_labels)
        if chosen[output] != of_outputs[output] and not quiet:
            print_line(f"{output} is of probabilities, so that the loss is {chosen[output]}", sys.stderr)
    if chosen == of_outputs:
        return words
    return list(chosen.values()) if is_for_all(words) and len(chosen) == 1 else [f"{o}={w}" for o, w in chosen.items()]


def _choose_default(roles: Roles, model: Model, columns: Columns, quiet: bool) -> str:
    """A loss of classes for labels, texts or whole numbers that the scores can tell apart, else the square error."""
    (output, *others), (target, *further) = roles.outputs, roles.target
    labels, scores = columns[target], _count_scores(model.outputs[output])
    if others or further or labels.dtype.kind in "US":
        return "square" if others or further or scores == 1 else "cross_entropy"
    if len(model.outputs[output].shape or ()) > 2 or not are_classes(labels, scores):
        return "square"
    shape = (len(labels), scores if isinstance(scores, int) else 2)
    loss = guess_loss(np.zeros(shape[: 1 if scores == 1 else 2]), labels.astype(np.int64))
    word = "log_loss" if type(loss) is NegLogLearningLoss else "cross_entropy"
    if not quiet:
        print_line(f"{target} holds whole numbers from {labels.min():g} to {labels.max():g}, taken for classes, so "
                   f"that the loss is {word}; --loss square takes them for quantities", sys.stderr)
    return word


def _of_probabilities(word: str, loss: BaseLearningLoss, y: Value, has_labels: bool) -> str:
    """The loss of an output that ends in Softmax or Sigmoid; labels of several classes have no loss for one score."""
    if "from_logits" in word or not ends_in_probabilities(y, loss):
        return word
    name, *settings = word.split(":")
    if type(loss) is NegLogLearningLoss and has_labels and _count_scores(y) != 1:
        name = "cross_entropy"
    return ":".join([name, *settings, "from_logits=false"])


def _count_scores(y: Value) -> int | str | None:
    """The size of the last axis of an output of rows of scores, else 1."""
    return y.shape[-1] if y.shape is not None and len(y.shape) > 1 else 1
