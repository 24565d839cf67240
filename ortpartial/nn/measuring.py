"""Predictions of a module's step: the outputs that its losses compare, as metrics read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ortpartial.exceptions import DataError
from ortpartial.graph import Value, find_inputs
from ortpartial.learning import Prediction, find_last_activation, guess_loss

from .trace import WEIGHTS, Compared
from .tracing import Writing

__all__ = ["list_measured", "read_predictions"]

#: How the names of measured values begin.
_PREFIX = "measured."


def list_measured(writing: Writing, inputs: Sequence[str]) -> dict[str, Value]:
    """List the values of a step that metrics compare.

    Parameters
    ----------
    writing : Writing
        The step.
    inputs : sequence of str
        The inputs of `forward`; the others are targets, and weights of rows.

    Returns
    -------
    dict of str to Value
        By name: the output, the target and the weights of each loss of the library that the step computes, or else
        the only output beside the only target.

    Raises
    ------
    DataError
        The outputs to compare are open.
    """
    measured = {}
    for name, compared in _find_compared(writing, inputs).items():
        values = {"output": compared.output, "target": compared.target, "weights": compared.weights}
        measured.update({f"{_PREFIX}{name}.{n}": v for n, v in values.items() if v is not None})
    return measured


def read_predictions(writing: Writing, inputs: Sequence[str], arrays: Mapping[str, np.ndarray]
                     ) -> dict[str, Prediction]:
    """Read the predictions of a batch.

    Parameters
    ----------
    writing, inputs : object
        As for `list_measured`.
    arrays : dict of str to numpy.ndarray
        The numbers of the values, by the names that it gave them.

    Returns
    -------
    dict of str to Prediction
        By the name of the target where there are several.

    Raises
    ------
    DataError
        The shapes of output and target say no kind of prediction.
    """
    predictions = {}
    for name, compared in _find_compared(writing, inputs).items():
        y, t = (arrays[f"{_PREFIX}{name}.{n}"] for n in ("output", "target"))
        w, loss = arrays.get(f"{_PREFIX}{name}.weights"), compared.loss
        if loss is None:
            are_probabilities = find_last_activation(compared.output) is not None
            loss = guess_loss(y, t, are_probabilities=are_probabilities)
        if loss is None:
            raise DataError(f"The output of shape {y.shape} and the target of shape {t.shape} are not compared by "
                            f"metrics; compute the loss by nn.Loss, which tells them how.")
        if (ignored := loss.find_ignored(t)) is not None and ignored.any():
            rows = np.ones(len(t)) if w is None else w
            w = ~ignored * rows.reshape(rows.shape + (1,) * (t.ndim - rows.ndim))
        predictions[name] = Prediction(y, t, w, loss)
    return predictions


def _find_compared(writing: Writing, inputs: Sequence[str]) -> dict[str, Compared]:
    """The predictions that are compared, by the name of the target."""
    targets = {n: v for n, v in writing.inputs.items() if n not in inputs}
    by_pair: dict[tuple[int, str], Compared] = {}  # Several losses may compare the same.
    for compared in writing.trace.compared:
        for name in list(find_inputs([compared.target], targets))[:1]:
            by_pair.setdefault((id(compared.output), name), compared)
    if by_pair:
        names = [name for _, name in by_pair]
        return {n if names.count(n) == 1 else f"{n}_{i}": c
                for i, (n, c) in enumerate(zip(names, by_pair.values(), strict=True))}
    result = writing.result[0] if isinstance(writing.result, tuple) and len(writing.result) == 2 else None
    named = [n for n in targets if n != WEIGHTS]
    if not isinstance(result, Value) or len(named) != 1:
        raise DataError("Metrics compare outputs with targets, and train_one_batch computes no loss by nn.Loss, nor "
                        "returns one output and the loss of one target; compute the metrics from predict.")
    return {named[0]: Compared(None, result, targets[named[0]], targets.get(WEIGHTS))}
