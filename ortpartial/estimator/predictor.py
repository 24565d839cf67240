"""Prediction: outputs, losses and scores of rows of data, with the current weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ortpartial.annotations import Data, State
from ortpartial.exceptions import DataError
from ortpartial.execution import HeldRows, SparseRows
from ortpartial.learning import Meter, Prediction, resolve_metric
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
from .validation import DataAdapter

__all__ = ["Predictor"]


class _Held:
    """The rows of a validation, and all that follows from them and not from the weights."""

    def __init__(self, spec: TrainingSpec, arrays: Mapping[str, np.ndarray]):
        self.spec, self.rows = spec, HeldRows(arrays)
        self.size = len(next(iter(arrays.values())))
        self.counts = count_elements(spec, arrays)
        self.totals = [c.sum().item() for c in self.counts.values()]
        self.sessions: dict[bool, Session] = {}  # without and with predictions
        self.aligned: State = {}


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
        self._held: _Held | None = None  # the rows of a validation

    def predict(self, X: Data) -> Any:
        """The trained output, or a dict of outputs by name where there are several."""
        batches = self.reader.read(X, with_target=False)
        return _unwrap(_concatenate([self.forward(self.data.to_inputs(X)[0]) for X, _, _ in batches]))

    def losses(self, X: Data, y: Data = None, sample_weight: Data = None) -> np.ndarray:
        """The loss of every row: the sum over the trained outputs, or the model's own loss of it alone."""
        batches = self.reader.read(X, y, sample_weight)
        if isinstance(self.data, LossDataAdapter):
            each = (self.data.check_rows(*self._to_arrays(X, y, None)) for X, y, _ in batches)
            return np.concatenate([self._run("losses", arrays, 1)[self.spec.names.loss] for arrays in each])
        arrays = ({**inputs, **targets} for inputs, targets in (self._to_arrays(*batch) for batch in batches))
        return _concatenate([self._losses(each) for each in arrays])[self.spec.names.loss]

    def sum_losses(self, X: Data, y: Data, sample_weight: Data = None, meter: Meter | None = None) -> np.ndarray:
        """Σwℓ and Σwc for each trained output, of shape (outputs, 2), which may be summed over several batches.

        A meter is given the predictions, which the same run computes.
        """
        inputs, targets = self._to_arrays(X, y, sample_weight)
        return self._sum_parts({**inputs, **targets}, meter)

    def sum_held(self, arrays: Mapping[str, np.ndarray], meter: Meter | None = None) -> Sequence[tuple[float, float]]:
        """The sums of `sum_losses` for rows as a step reads them, which are asked for again and again."""
        held = self._held
        if held is None or held.rows.rows is not arrays or held.spec is not self.spec:
            held = self._held = _Held(self.spec, arrays)
        if not held.rows.is_bindable or self.data.fixed_batch is not None:
            return self._sum_parts(arrays, meter).tolist()
        losses = self._run_held(held, is_measured=meter is not None)
        if meter is not None:
            self._measure(losses, arrays, meter, held.aligned)
        return self._sum_up(losses, held.counts, held.totals)

    def _run_held(self, held: _Held, is_measured: bool) -> Mapping[str, np.ndarray]:
        """The loss of every row, and the predictions where they are measured."""
        if is_measured:
            self._check_measurable()
        with self.engine.turn.lock:
            if (session := held.sessions.get(is_measured)) is None:
                session = held.sessions[is_measured] = self._open(
                    self._name_losses(held.rows.rows, is_measured), held.size, self._list_absent(held.rows.rows))
            # Weights stay where they are until the session has read them.
            return held.rows.run(
                session, lambda: {n: self.engine.find_used(n) for n in self.spec.moving if n in session.inputs},
                self.engine.local, self.engine.place, are_sized=not is_measured)

    def _sum_parts(self, arrays: Mapping[str, np.ndarray], meter: Meter | None) -> np.ndarray:
        """The sums of `sum_losses` for arrays, of which sparse arrays become dense in parts."""
        return sum(self._sum_part(part, meter) for part in self._cut(arrays))  # type: ignore[return-value]

    def _cut(self, arrays: Mapping[str, np.ndarray]) -> Iterator[Mapping[str, np.ndarray]]:
        """The arrays as they are, or, where some are sparse, dense parts of them."""
        if (size := self._find_part(arrays)) is None:
            yield arrays
            return
        for start in range(0, len(next(iter(arrays.values()))), size):
            yield {n: a[start : start + size] for n, a in arrays.items()}

    def _find_part(self, arrays: Mapping[str, Data]) -> int | None:
        """The number of rows that are dense at a time, a multiple of a fixed batch; None where none are sparse."""
        sizes = [a.part for a in arrays.values() if isinstance(a, SparseRows)]
        fixed = self.data.fixed_batch or 1
        return max(fixed, min(sizes) // fixed * fixed) if sizes else None

    def _sum_part(self, arrays: Mapping[str, np.ndarray], meter: Meter | None) -> np.ndarray:
        """The sums of `sum_losses` for arrays."""
        if meter is not None:
            self._check_measurable()
        losses = self._losses(arrays, is_measured=meter is not None)
        if meter is not None:
            self._measure(losses, arrays, meter)
        counts = count_elements(self.spec, arrays)
        return np.array(self._sum_up(losses, counts, [c.sum().item() for c in counts.values()]))

    def _measure(self, losses: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray], meter: Meter,
                 aligned: State | None = None) -> None:
        """Give a meter the predictions that a run has computed beside the losses."""
        for output, prediction in self._compare(losses, arrays, aligned).items():
            meter.add(output, prediction)

    def _sum_up(self, losses: Mapping[str, np.ndarray], counts: Mapping[str, np.ndarray], totals: Sequence[float]
                ) -> list[tuple[float, float]]:
        """Σwℓ and Σwc for each trained output, of the loss of every row and by how much it counts."""
        names = self.spec.names
        if self.spec.own_loss is not None:  # The loss of the batch, or of each part of a fixed size.
            (count,) = counts.values()
            each = losses[names.loss]
            counted = count.reshape(len(each), -1).sum(axis=1)
            return [((each * counted).sum().item(), counted.sum().item())]
        rows = [losses[names.loss]] if len(counts) == 1 else [losses[names.loss_of(o)] for o in counts]
        return [(np.add.reduce(row * c, axis=None).item(), total)
                for row, c, total in zip(rows, counts.values(), totals, strict=True)]

    def _losses(self, arrays: Mapping[str, np.ndarray], is_measured: bool = False) -> dict[str, np.ndarray]:
        """The loss of every row, and the predictions where they are measured."""
        return self._run(self._name_losses(arrays, is_measured), arrays)

    def _name_losses(self, arrays: Mapping[str, np.ndarray], is_measured: bool) -> str:
        """The graph of the losses of arrays, with the predictions where they are measured."""
        weighted = self.spec.own_loss is None and find_weighting(self.spec, arrays) == "elements"
        return f"{'measured ' if is_measured else ''}{'weighted ' if weighted else ''}losses"

    def _to_arrays(self, X: Data, y: Data, sample_weight: Data) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Arrays of the inputs, and of the targets and the weights."""
        inputs, rows = self.data.to_inputs(X)
        targets = self.data.to_targets(y, inputs, rows, self.forward)
        return inputs, {**targets, **self.data.to_weights(sample_weight, targets, rows)}

    def score(self, X: Data, y: Data = None, sample_weight: Data = None) -> Any:
        """Accuracy where the loss has labels, else R²; a dict by output where there are several."""
        meters: dict[str, Meter] = {}
        for batch in self.reader.read(X, y, sample_weight):
            inputs, targets = self._to_arrays(*batch)
            for output, prediction in self._compare(self.forward(inputs), targets).items():
                metric = "r2" if prediction.loss.labels(prediction.output) is None else "accuracy"
                meters.setdefault(output, Meter([resolve_metric(metric)])).add(output, prediction)
        scores = {output: next(iter(meter.read().values())) for output, meter in meters.items()}
        if np.isnan([*scores.values()]).any():
            self.data.check_counts(targets)
        return _unwrap(scores)

    def _compare(self, outputs: Mapping[str, np.ndarray], targets: Mapping[str, np.ndarray],
                 aligned: State | None = None) -> dict[str, Prediction]:
        """The predictions of the trained outputs, beside their targets and weights."""
        if isinstance(self.data, LossDataAdapter):
            return self.data.compare({n: outputs[n] for n in self.spec.predictions}, targets)
        names, predictions = self.spec.names, {}
        for output, loss in self.spec.losses.items():
            w = targets.get(self.spec.weight_names[output], targets.get(names.sample_weight))
            memory = {} if aligned is None else aligned.setdefault(output, {})
            predictions[output] = Prediction(outputs[output], targets[names.target(output)], w, loss, memory)
        return predictions

    def forward(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs that are predicted by name, of arrays that have been checked."""
        self._check_predictions()
        return self._run("predict", inputs)

    def _check_measurable(self) -> None:
        """Refuse metrics of a model whose only output is its loss."""
        if self.spec.own_loss is not None:
            self._check_predictions()

    def _check_predictions(self) -> None:
        """Refuse a model without anything to predict."""
        if not self.spec.predictions:
            raise DataError(f"The model has no output but its loss, {next(iter(self.spec.losses))!r}, so that there is "
                            f"nothing to predict; export it with its predictions as further outputs.")

    def _list_absent(self, feeds: Mapping[str, np.ndarray]) -> tuple[str, ...]:
        """The inputs that the graph computes, as the data leave them out."""
        return tuple([n for n in self.spec.computed.shapes if n not in feeds])

    def _run(self, graph: str, feeds: Mapping[str, np.ndarray], size: int | None = None) -> dict[str, np.ndarray]:
        """Run a graph on all rows; batch by batch where that is asked for, or the batch dimension is fixed."""
        rows = len(next(iter(feeds.values())))
        size = self.data.fixed_batch or size or self._find_part(feeds) or rows
        with self.engine.turn.lock:
            session = self._open(graph, size, self._list_absent(feeds))
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
            proto = row_loss_graph(spec, weighted="elements" if "weighted" in graph else False, apart=apart,
                                   predictions=spec.predictions if graph.startswith("measured") else ())
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
