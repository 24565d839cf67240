"""Predictions beside their targets, as metrics compare them, and the metrics of many batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ortpartial.annotations import State
from ortpartial.exceptions import DataError, SettingError

from .base_loss import BaseLearningLoss
from .cross_entropy import NegLogLearningLoss, SoftmaxCrossEntropyLearningLoss
from .losses import SquareLearningLoss
from .metrics import Metric

__all__ = ["Meter", "Prediction", "guess_loss"]

#: Targets, predictions to compare, and weights.
Compared = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Prediction:
    """An output of a batch, beside its targets.

    Parameters
    ----------
    output, target : numpy.ndarray of shape (rows, ...)
        The output as the model computes it, and the target as the loss takes it.
    weight : numpy.ndarray or None
        Weights of the rows, of shape (rows,), or of the elements, of the shape of the target; None for 1.
    loss : BaseLearningLoss
        The loss, which turns scores into labels and probabilities.
    memory : dict
        What follows from target and weight alone, for the outputs of the same rows with other weights of the model.

    Examples
    --------
    >>> scores = np.array([[2.0, 0.5], [0.1, 0.3]])
    >>> prediction = Prediction(scores, np.array([0, 0]), None, SoftmaxCrossEntropyLearningLoss())
    >>> [a.tolist() for a in prediction.labels()]
    [[0, 0], [0, 1], [1.0, 1.0]]
    """

    output: np.ndarray
    target: np.ndarray
    weight: np.ndarray | None
    loss: BaseLearningLoss
    memory: State = field(default_factory=dict, repr=False, compare=False)

    def compare(self, of: str) -> Compared:
        """Targets, predictions to compare, and weights.

        Parameters
        ----------
        of : str
            As of `Metric`.

        Returns
        -------
        tuple of numpy.ndarray

        Raises
        ------
        SettingError
            The loss does not say it.
        """
        compared: dict[str, Callable[[], Compared]] = {
            "labels": self.labels, "quantities": self.quantities, "probabilities": self.probabilities,
            "costs": self.costs, "ranks": self.ranks, "output": self._read_output}
        if of == "prediction":
            of = "labels" if self._labels is not None else "quantities"
        return compared[of]()

    @property
    def _labels(self) -> np.ndarray | None:
        return self.loss.labels(self.output)

    @property
    def _scores(self) -> np.ndarray | None:
        """The scores of the classes, along the last axis behind the axes of the target; None for single scores."""
        return self.loss.class_scores(self.output)

    def labels(self) -> Compared:
        """The predicted labels."""
        if (labels := self._labels) is None:
            raise SettingError(f"{type(self.loss).__name__} learns quantities, and the metric compares labels; those "
                               f"of quantities are 'r2', 'mse', 'rmse' and 'mae'.")
        return self._align(labels.reshape(self.target.shape))

    def quantities(self) -> Compared:
        """The expected targets."""
        if self._labels is not None:
            raise SettingError(f"{type(self.loss).__name__} learns labels, and the metric compares quantities; those "
                               f"of labels are 'accuracy', 'f1_macro', 'log_loss' and others.")
        t, y, w = self.target, self.loss.mean(self.output), self._row_weights
        if prod(t.shape[1:]) == 1:
            return t.ravel(), y.ravel(), w.ravel()
        return t, y.reshape(t.shape), w

    def _read_output(self) -> Compared:
        """The output as it is."""
        return self.target, self.output, self._row_weights

    def probabilities(self) -> Compared:
        """The probabilities of classes, or of the label 1."""
        self._check_probabilities()
        if (scores := self._scores) is None:
            y = self.output.reshape(self.target.shape)
            return self._align(_sigmoid(y) if self.loss.from_logits else y)
        return self._align(np.exp(self._normalize(scores)))

    def costs(self) -> Compared:
        """-log p of each target."""
        self._check_probabilities()
        if (scores := self._scores) is None:
            t = self.target
            y = self.output.reshape(t.shape).astype(np.float64)
            if self.loss.from_logits:
                return self._align(np.logaddexp(0, y) - t * y)
            tiny = np.finfo(np.float64).tiny
            return self._align(-t * np.log(np.maximum(y, tiny)) - (1 - t) * np.log(np.maximum(1 - y, tiny)))
        return self._align(-self._take_target(self._normalize(scores)))

    def ranks(self) -> Compared:
        """The number of classes with a higher score than the target; of equal scores, the classes behind it."""
        if (scores := self._scores) is None:
            raise SettingError(f"{type(self.loss).__name__} has no scores of several classes that could be ranked.")
        own = self._take_target(scores)[..., None]
        behind = np.arange(scores.shape[-1]) > self.target[..., None]
        return self._align(((scores > own) | ((scores == own) & behind)).sum(axis=-1))

    def _check_probabilities(self) -> None:
        """Refuse a loss without probabilities."""
        if self._labels is None or not self.loss.activations:
            raise SettingError(f"{type(self.loss).__name__} has no probabilities, which the metric needs.")

    def _normalize(self, scores: np.ndarray) -> np.ndarray:
        """The logarithms of the probabilities of classes."""
        if not self.loss.from_logits:
            scores = np.log(np.maximum(scores, np.finfo(scores.dtype).tiny))
        scores = scores - scores.max(axis=-1, keepdims=True)
        return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))

    def _take_target(self, scores: np.ndarray) -> np.ndarray:
        """The score of the target class; any score where the label does not count."""
        index = np.clip(self.target, 0, scores.shape[-1] - 1)[..., None]
        return np.take_along_axis(scores, index, axis=-1)[..., 0]

    @property
    def _row_weights(self) -> np.ndarray:
        if "row_weights" not in self.memory:
            w = self.weight
            self.memory["row_weights"] = np.ones(len(self.target)) if w is None else w.astype(np.float64)
        weights: np.ndarray = self.memory["row_weights"]
        return weights

    def _align(self, y: np.ndarray) -> Compared:
        """Targets, predictions and weights, singly and without weights of 0; columns of labels by row."""
        if "target" not in self.memory:
            self.memory.update(self._align_target())
        t, w, counted, is_single = (self.memory[n] for n in ("target", "weight", "counted", "is_single"))
        y = y.reshape(t.size, *y.shape[self.target.ndim :]) if is_single else y
        return (t, y, w) if counted is None else (t[counted], y[counted], w[counted])

    def _align_target(self) -> State:
        """The targets and weights of `_align`, which rows count, where not all do, and whether they stand singly."""
        t, w = self.target, self._row_weights
        if t.dtype.kind == "f" and (np.rint(t) == t).all():
            t = t.astype(np.int64)
        is_single = w.ndim > 1 or t.ndim != 2 or t.shape[1] < 2 or self._scores is not None
        if is_single:
            w = np.broadcast_to(w.reshape(len(t), -1), (len(t), prod(t.shape[1:]))).ravel()
            t = t.ravel()
        counted = w > 0
        return {"target": t, "weight": w, "counted": None if counted.all() else counted, "is_single": is_single}


def _sigmoid(y: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -y))


def guess_loss(output: np.ndarray, target: np.ndarray, *, are_probabilities: bool = False,
               ignore_index: int | None = None) -> BaseLearningLoss | None:
    """The loss whose labels, or quantities, an output and its target are, by their shapes and dtypes.

    Parameters
    ----------
    output, target : numpy.ndarray
        An output and the target beside it.
    are_probabilities : bool
        Whether the output is probabilities.
    ignore_index : int or None
        The label that does not count.

    Returns
    -------
    BaseLearningLoss or None
        None where the shapes do not fit together.

    Examples
    --------
    >>> type(guess_loss(np.zeros((4, 3)), np.zeros(4, int))).__name__
    'SoftmaxCrossEntropyLearningLoss'
    """
    are_labels, from_logits = target.dtype.kind in "biu", not are_probabilities
    if are_labels and output.ndim == target.ndim + 1:
        axis = 1 if output.shape[2:] == target.shape[1:] else -1
        return SoftmaxCrossEntropyLearningLoss(axis, ignore_index, from_logits=from_logits)
    if output.size != target.size:
        return None
    return NegLogLearningLoss(ignore_index=ignore_index, from_logits=from_logits) if are_labels else (
        SquareLearningLoss())


class Meter:
    """The metrics of the predictions of many batches, of which it keeps the numbers that the metrics compare.

    Parameters
    ----------
    metrics : sequence of Metric
        The metrics.

    Examples
    --------
    >>> from ortpartial.learning import resolve_metric
    >>> meter = Meter([resolve_metric("mse")])
    >>> for _ in range(2):
    ...     meter.add("y", Prediction(np.ones((3, 1)), np.zeros((3, 1)), None, SquareLearningLoss()))
    >>> meter.read()
    {'mse': 1.0}
    """

    def __init__(self, metrics: Sequence[Metric]):
        self.metrics = list(metrics)
        self._kinds = dict.fromkeys(metric.of for metric in self.metrics)
        self._batches: defaultdict[str, dict[str, list[Compared]]] = defaultdict(lambda: {n: [] for n in self._kinds})

    def add(self, output: str, prediction: Prediction) -> None:
        """Add the predictions of a batch.

        Parameters
        ----------
        output : str
            The name of the output.
        prediction : Prediction
            The predictions.

        Raises
        ------
        SettingError
            They are not of the kind that a metric compares.
        """
        for of, batches in self._batches[output].items():
            try:
                batches.append(prediction.compare(of))
            except SettingError as e:
                name = next(metric.name for metric in self.metrics if metric.of == of)
                raise SettingError(f"metrics: {name!r} cannot be computed of the output {output!r}: {e}") from None

    def read(self) -> dict[str, float]:
        """Compute the metrics.

        Returns
        -------
        dict of str to float
            By name, with that of the output before it where there are several; NaN where nothing counts.
        """
        numbers = {}
        for output, by_kind in self._batches.items():
            joined = {of: _join(output, batches) for of, batches in by_kind.items()}
            for metric in self.metrics:
                name = metric.name if len(self._batches) == 1 else f"{output}_{metric.name}"
                t, y, w = joined[metric.of]
                numbers[name] = metric(t, y, w) if w.any() else float("nan")
        return numbers


def _join(output: str, batches: Sequence[Compared]) -> Compared:
    """The rows of all batches in an array."""
    try:
        t, y, w = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    except ValueError:
        shapes = sorted({y.shape[1:] for _, y, _ in batches})
        raise DataError(f"The rows of {output!r} have the shapes {' and '.join(map(str, shapes))} in different "
                        f"batches, and a metric takes them together; compute it from predict, batch by batch."
                        ) from None
    return t, y, w
