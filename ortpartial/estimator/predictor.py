"""Prediction: outputs, losses and scores of rows of data, with the current weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortpartial.annotations import Data
from ortpartial.exceptions import DataError
from ortpartial.runtime import Session, choose_threads
from ortpartial.training import (
    Engine,
    TrainingSpec,
    count_elements,
    find_weighting,
    forward_graph,
    row_loss_graph,
    shared_sessions,
)

from .batches import BatchReader
from .loss_data import LossDataAdapter
from .metrics import accuracy, r2
from .validation import DataAdapter

__all__ = ["Predictor"]


class Predictor:
    """Predictions with the current weights of an engine.

    The weights are inputs of the graphs, so that sessions can be kept when they change.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    engine : Engine
        Holds the weights.
    data : DataAdapter
        Converts and checks the data.

    Attributes
    ----------
    reader : BatchReader
        Finds the parts of batches.
    sessions : dict
        The sessions in use by the name of the graph, the number of threads and the inputs that it computes.
    """

    def __init__(self, spec: TrainingSpec, engine: Engine, data: DataAdapter):
        self.spec, self.engine, self.data, self.reader = spec, engine, data, BatchReader(data)
        self.sessions: dict[tuple[str, int | None, tuple[str, ...]], Session] = {}
        self._threads: dict[int, int | None] = {}  # by the number of rows

    def predict(self, X: Data) -> Any:
        """The trained output, or a dict of outputs by name where there are several."""
        batches = self.reader.read(X, with_target=False)
        return _unwrap(_concatenate([self.forward(self.data.to_inputs(X)[0]) for X, _, _ in batches]))

    def losses(self, X: Data, y: Data = None, sample_weight: Data = None) -> np.ndarray:
        """The loss of every row: the sum over the trained outputs, or what the model computes for it alone."""
        batches = self.reader.read(X, y, sample_weight)
        if isinstance(self.data, LossDataAdapter):
            each = (self.data.check_rows(*self._to_arrays(X, y, None)) for X, y, _ in batches)
            return np.concatenate([self._run("losses", arrays, 1)[self.spec.names.loss] for arrays in each])
        return _concatenate([self._losses(*self._to_arrays(*batch)) for batch in batches])[self.spec.names.loss]

    def sum_losses(self, X: Data, y: Data, sample_weight: Data = None) -> np.ndarray:
        """Σwℓ and Σwc for each trained output, of shape (outputs, 2), which may be summed over several batches."""
        inputs, targets = self._to_arrays(X, y, sample_weight)
        if self.spec.own_loss is not None:
            return self._sum_loss_output({**inputs, **targets})
        losses, counts, names = self._losses(inputs, targets), count_elements(self.spec, targets), self.spec.names
        each = [losses[names.loss]] if len(counts) == 1 else [losses[names.loss_of(o)] for o in counts]
        return np.array([[(rows * c).sum(), c.sum()] for rows, c in zip(each, counts.values(), strict=True)])

    def _sum_loss_output(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """The sum over rows of a loss of the model's own, and by how much they count, (1, 2): of one batch."""
        (count,) = count_elements(self.spec, arrays).values()
        losses = self._run("losses", arrays)[self.spec.names.loss]
        counts = count.reshape(len(losses), -1).sum(axis=1)
        return np.array([[(losses * counts).sum(), counts.sum()]])

    def _losses(self, inputs: Mapping[str, np.ndarray], targets: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The loss of every row, for targets and weights."""
        weighted = find_weighting(self.spec, targets) == "elements"
        return self._run("weighted losses" if weighted else "losses", {**inputs, **targets})

    def _to_arrays(self, X: Data, y: Data, sample_weight: Data) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Arrays of the inputs, and of the targets and the weights."""
        inputs, rows = self.data.to_inputs(X)
        targets = self.data.to_targets(y, inputs, rows, self.forward)
        return inputs, {**targets, **self.data.to_weights(sample_weight, targets, rows)}

    def score(self, X: Data, y: Data = None, sample_weight: Data = None) -> Any:
        """Accuracy where the loss has labels, else R²; a dict by output where there are several."""
        batches = []
        for batch in self.reader.read(X, y, sample_weight):
            inputs, targets = self._to_arrays(*batch)
            batches.append(self._compare(self.forward(inputs), targets))
        if not any(both["weight"].any() for batch in batches for both in batch.values()):
            self.data.check_counts(targets)
        scores = {}
        for output in batches[0]:
            both = _concatenate([batch[output] for batch in batches])
            metric, prediction = (accuracy, both["labels"]) if "labels" in both else (r2, both["output"])
            scores[output] = metric(prediction, both["target"], both["weight"])
        return _unwrap(scores)

    def _compare(self, outputs: Mapping[str, np.ndarray], targets: Mapping[str, np.ndarray]
                 ) -> dict[str, dict[str, np.ndarray]]:
        """By output, what was predicted, the target and the weight: of rows or elements, or of each label."""
        if isinstance(self.data, LossDataAdapter):
            return self.data.compare(outputs, targets)
        compared, names = {}, self.spec.names
        for output, loss in self.spec.losses.items():
            t, y, weight = targets[names.target(output)], outputs[output], self.spec.weight_names[output]
            w = targets.get(weight, targets.get(names.sample_weight))
            w = np.ones(len(t)) if w is None else w.astype(np.float64)
            if (labels := loss.labels(y)) is None:
                compared[output] = {"output": loss.mean(y), "target": t, "weight": w}
            else:  # Rows of another batch may have another number of labels.
                each = np.broadcast_to(w.reshape(len(t), -1), t.reshape(len(t), -1).shape)
                compared[output] = {"labels": labels.ravel(), "target": t.ravel(), "weight": each.ravel()}
        return compared

    def forward(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs that are predicted by name, of arrays that have been checked."""
        if not self.spec.predictions:
            raise DataError(f"The model has no output but its loss, {next(iter(self.spec.losses))!r}, so that there is "
                            f"nothing to predict; export it with its predictions as further outputs.")
        return self._run("predict", inputs)

    def _run(self, graph: str, feeds: Mapping[str, np.ndarray], size: int | None = None) -> dict[str, np.ndarray]:
        """Run a graph on all rows; batch by batch where that is asked for, or the batch dimension is fixed."""
        rows = len(next(iter(feeds.values())))
        size = self.data.fixed_batch or size or rows
        with self.engine.turn.lock:
            session = self._open(graph, size, tuple([n for n in self.spec.computed.shapes if n not in feeds]))
            weights = {n: self.engine.get_used(n) for n in self.spec.moving if n in session.inputs}
        batches = []
        for start in range(0, rows, size):
            batch = {n: a[start : start + size] for n, a in feeds.items() if n in session.inputs}
            batches.append(session.run({**batch, **weights}, self.engine.local.options))
        return _concatenate(batches)

    def _open(self, graph: str, rows: int, absent: tuple[str, ...]) -> Session:
        """The session of a graph without some inputs, with the number of threads that suits so many rows."""
        spec = self.spec
        if rows not in self._threads:
            self._threads[rows] = choose_threads(list(spec.outputs.values()), rows)
        key = graph, self._threads[rows], absent
        if key not in self.sessions:
            self.sessions[key] = shared_sessions.get(self.engine.identity, key, lambda: self._compile(*key))
        return self.sessions[key]

    def _compile(self, graph: str, threads: int | None, absent: tuple[str, ...]) -> Session:
        """A session of a graph that computes the inputs that are absent."""
        spec = self.spec.for_inputs([n for n in self.spec.model.inputs if n not in absent])
        apart: dict[str, np.ndarray] = {}
        if graph == "predict":
            proto = forward_graph(spec.model, list(spec.moving), spec.predictions, used_only=True, apart=apart)
        else:
            proto = row_loss_graph(spec, weighted="elements" if graph == "weighted losses" else False, apart=apart)
        return Session(proto, device=spec.device, threads=threads, arrays=apart)


def _concatenate(batches: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays of several batches, row after row."""
    if len(batches) == 1:
        return batches[0]
    if scalars := [n for n, a in batches[0].items() if not a.ndim]:
        raise DataError(f"The output {scalars[0]!r} is a scalar for each batch, and the rows have none; pass the "
                        f"batches one by one.")
    shapes = {n: {b[n].shape[1:] for b in batches} for n in batches[0]}
    if differing := [n for n, each in shapes.items() if len(each) > 1]:
        listed = " and ".join(map(str, sorted(shapes[differing[0]])))
        raise DataError(f"The rows of {differing[0]!r} have the shapes {listed} in different batches, and do not make "
                        f"one array; pass the batches one by one.")
    return {n: np.concatenate([b[n] for b in batches]) for n in batches[0]}


def _unwrap(by_name: dict[str, Any]) -> Any:
    """The only value, or all of them by name."""
    return next(iter(by_name.values())) if len(by_name) == 1 else by_name
