"""Data of a graph that holds its own loss, whose labels and row weights are inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from ortpartial.annotations import Data
from ortpartial.exceptions import DataError
from ortpartial.execution import Batch, is_batches
from ortpartial.learning import Prediction, find_last_activation, guess_loss
from ortpartial.model import check_indices, match_names
from ortpartial.training import LossOutput, TrainingSpec

from .batches import BatchReader
from .validation import DataAdapter, Forward, check_sample_weight, check_target

__all__ = ["LossBatchReader", "LossDataAdapter", "Roles"]


@dataclass(frozen=True)
class Roles:
    """The inputs of a model that are read by its loss alone.

    Attributes
    ----------
    labels : dict of str to str
        The inputs that are labels, by their names in the data adapter.
    row_weights : str or None
        The input that is the weights of the rows.
    """

    labels: Mapping[str, str]
    row_weights: str | None = None

    @property
    def names(self) -> list[str]:
        """All of them."""
        return [*self.labels, *([self.row_weights] if self.row_weights else [])]


class LossDataAdapter(DataAdapter):
    """Conversion of X, y and sample_weight to the inputs of a graph that holds its own loss.

    Parameters
    ----------
    spec : TrainingSpec
        The training, whose loss is a `LossOutput`.

    Attributes
    ----------
    inputs, labels : dict of str to Value
        The inputs of the loss that are features, and the inputs that are labels.
    """

    def __init__(self, spec: TrainingSpec):
        from ortpartial.training_info import read_labels  # late: few models compute their loss themselves

        super().__init__(spec)
        self.labels = {n: spec.model.inputs[n] for n in self.loss.label_names}
        self.inputs = {n: v for n, v in self.inputs.items() if n not in self.labels and n != self.loss.row_weights}
        declared = read_labels(spec.model.proto.graph, f"the loss {self._outputs}")
        self._label_ranges = {n: r for n, r in {**self._ranges, **declared}.items() if n in self.labels}
        self._ranges = {n: r for n, r in self._ranges.items() if n in self.inputs}

    @property
    def loss(self) -> LossOutput:
        """The loss that the model computes itself."""
        loss = self.spec.own_loss
        assert loss is not None
        return loss

    def to_targets(self, y: Data, inputs: Mapping[str, np.ndarray], rows: int, forward: Forward
                   ) -> dict[str, np.ndarray]:
        """Arrays of the labels."""
        if not isinstance(y, Mapping) and len(self.labels) == 1:
            y = {next(iter(self.labels)): y}
        if not isinstance(y, Mapping):
            raise DataError(f"The loss {self._outputs} has the labels {_quote(self.labels)}; give y as a dict by name.")
        arrays = {}
        for n, v in self.labels.items():
            what = f"The label {n!r}"
            if v.shape == ():
                raise DataError(f"{what} is a scalar in the model; rows need an axis of their own.")
            if v.shape and isinstance(v.shape[0], int) and rows % v.shape[0]:
                raise DataError(f"{what} has a fixed batch dimension of {v.shape[0]} and there are {rows} rows; export "
                                f"it with a dynamic one, or give a multiple of {v.shape[0]} rows.")
            arrays[n] = check_target(y[n], v.dtype, v.shape, rows, what, explain=lambda _: ", as in the model")
        check_indices(self._label_ranges, arrays)
        return arrays

    def to_weights(self, sample_weight: Data, targets: Mapping[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
        """Array of the weights of the rows, 1 by default, where the model reads them."""
        name = self.loss.row_weights
        if name is None:
            if sample_weight is not None:
                raise DataError(f"The loss {self._outputs} reads no weights of rows, and there is a sample_weight; "
                                f"write them into the graph, or name their input by sample_weight_name.")
            return {}
        v = self.spec.model.inputs[name]
        sizes = (v.shape or ())[1:]
        shape = (rows, *(d for d in sizes if isinstance(d, int)))
        if len(shape) <= len(sizes):
            if sample_weight is None:
                raise DataError(f"The sizes of the weights {name!r} are not known; give sample_weight.")
            shape = np.shape(sample_weight)
        if sample_weight is None:
            return {name: np.ones(shape, v.dtype)}
        w = check_sample_weight(sample_weight, v.dtype, rows, shape)
        if w.size != prod(shape):
            raise DataError(f"sample_weight has shape {w.shape}, where {shape} was expected by the input {name!r}.")
        return {name: w.reshape(shape)}

    def to_batch(self, arrays: Mapping[str, np.ndarray]) -> Batch:
        """The arrays of a step as X, y and sample_weight."""
        return ({n: arrays[n] for n in self.inputs if n in arrays}, {n: arrays[n] for n in self.labels},
                arrays.get(self.loss.row_weights or ""))

    def check_counts(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Refuse data of which nothing counts."""
        weights = arrays.get(self.loss.row_weights or "")
        if weights is not None and not weights.any():
            raise DataError("All sample weights are zero.")

    def check_rows(self, inputs: Mapping[str, np.ndarray], targets: Mapping[str, np.ndarray]
                   ) -> dict[str, np.ndarray]:
        """The arrays of a step, if the model takes them row by row."""
        if self.fixed_batch not in (None, 1):
            raise DataError(f"The loss of a row is that of a batch of one, and the model has a fixed batch dimension "
                            f"of {self.fixed_batch}; export it with a dynamic one.")
        return {**inputs, **targets}

    def compare(self, outputs: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> dict[str, Prediction]:
        """The prediction with the labels and the weight, as far as their shapes allow a comparison."""
        if len(outputs) != 1 or len(self.labels) != 1:
            listed = f"the labels {_quote(self.labels)}" if self.labels else "no labels"
            raise DataError(f"A score compares one prediction with one label, and the model has the predictions "
                            f"{_quote(outputs)} and {listed}; compute it from predict(X).")
        (output, y), (name, t) = next(iter(outputs.items())), next((n, arrays[n]) for n in self.labels)
        ignored = self._label_ranges[name].ignored if name in self._label_ranges else None
        are_probabilities = find_last_activation(self.spec.model.outputs[output]) is not None
        loss = guess_loss(y, t, are_probabilities=are_probabilities, ignore_index=ignored)
        if loss is None:
            raise DataError(f"The prediction {output!r} of shape {y.shape} and the label of shape {t.shape} make no "
                            f"score; compute it from predict(X).")
        w = arrays.get(self.loss.row_weights or "")
        if ignored is not None:
            rows = np.ones(len(t)) if w is None else w
            w = (t != ignored) * rows.reshape(len(t), *[1] * (t.ndim - 1))
        return {output: Prediction(y, t, w, loss)}


class LossBatchReader(BatchReader):
    """The features, labels and weights in a batch, or in data that are given whole, for a graph that holds its loss.

    Parameters
    ----------
    data : DataAdapter
        Has the inputs that are features.
    labels : dict of str to str
        The inputs that are labels, by their names in the adapter.
    row_weights : str or None
        The input that is the weights of the rows.
    """

    def __init__(self, data: DataAdapter, labels: Mapping[str, str], row_weights: str | None):
        super().__init__(data)
        self.outputs, self.declared = list(labels.values()), self.inputs
        self.labels = labels
        self._names: dict[str, str] = {**labels, row_weights or "sample_weight": "sample_weight"}
        self.target = f"The label {_quote(labels)} of the loss, y," if labels else "X"

    def unpack(self, X: Data, y: Data, sample_weight: Data) -> Batch:
        """X, y and sample_weight, where X may be a dict that holds all of them, or several inputs in their order."""
        is_whole = not self.outputs and not is_batches(X)  # Then no y is to be given.
        y = {} if y is None and is_whole and not isinstance(X, Mapping) else self._rename(y)
        X, y, sample_weight = super().unpack(X, y, sample_weight)
        if isinstance(y, Mapping):
            labels = {called: n for n, called in self.labels.items()}
            match_names(self.labels, [str(labels.get(n, n)) for n in y], "label")
        elif y is not None and not self.labels:
            raise DataError("Nothing tells which inputs of the model are labels: name them by label_names, or give all "
                            "inputs as a dict X.")
        return X, {} if y is None and is_whole else y, sample_weight

    def split(self, batch: Data, *, with_target: bool = True) -> Batch:
        """X, y and sample_weight of a batch."""
        X, y, w = super().split(batch, with_target=with_target and bool(self.outputs))
        return X, y if self.outputs else {}, w

    def _split_dict(self, batch: Mapping[str, Data]) -> Batch:
        """The parts of a dict."""
        return super()._split_dict(self._rename(batch))

    def _rename(self, arrays: Data) -> Data:
        """A dict with the names of the adapter in place of names of inputs; anything else as it is."""
        return {self._names.get(n, n): a for n, a in arrays.items()} if isinstance(arrays, Mapping) else arrays


def _quote(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
