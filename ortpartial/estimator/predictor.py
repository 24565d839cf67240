"""What does a trained model say? `Predicting` checks rows of data, and computes outputs, losses and scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ortpartial.exceptions import DataError
from ortpartial.graph import Value
from ortpartial.model import check_indices, match_names
from ortpartial.runtime import Interrupt, Session, choose_threads
from ortpartial.training import Names, forward_graph, row_loss_graph

from .metrics import accuracy, r2
from .state import Trained
from .validation import check_inputs, check_sample_weight, check_target, columns

__all__ = ["Predicting"]


class Predicting(Trained):
    """A trained model that is asked about rows of data."""

    _read: dict[str, Value]
    _ranges: Any
    _sessions: dict[tuple[str, int | None], Session]
    _threads: dict[int, int | None]
    _options: Any
    device: str

    def _inputs(self, X: Any) -> tuple[dict[str, np.ndarray], int]:
        """Arrays for the inputs that are read, and how many rows they have."""
        if isinstance(X, Mapping):
            X = {n: a for n, a in X.items() if n in self._read or n not in self._model.inputs}
        inputs, rows = check_inputs(self._read, X)
        check_indices(self._ranges, inputs)
        for name, v in self._read.items():
            fixed = v.shape[0] if v.shape else None
            if isinstance(fixed, int) and rows % fixed:
                raise DataError(f"Input {name!r} has a fixed batch dimension of {fixed} and there are {rows} rows; "
                                f"export it with a dynamic one, or give a multiple of {fixed} rows.")
        return inputs, rows

    def _shape(self, output: str, inputs: Mapping[str, np.ndarray]) -> tuple[int | str | None, ...]:
        """The shape of an output, found by a run on the first rows where the model does not declare its sizes."""
        shape = self._model.outputs[output].shape
        if shape is not None and all(isinstance(d, int) for d in shape[1:]):
            return shape
        return self._run("predict", {n: a[: self._fixed or 1] for n, a in inputs.items()})[output].shape

    def _target(self, y: Any, inputs: Mapping[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
        """Targets by the names that the graphs give them."""
        if not isinstance(y, Mapping) and len(self._losses) == 1:
            y = {next(iter(self._losses)): y}
        elif not isinstance(y, Mapping):
            if (table := columns(y)) is None:
                names = ", ".join(map(repr, self._losses))
                raise DataError(f"The trained outputs are {names}; give y as a dict by name.")
            y = table
        match_names(self._losses, y, "target")
        found = {}
        for output, loss in self._losses.items():
            value, shape = self._model.outputs[output], self._shape(output, inputs)
            dtype = np.dtype(value.dtype if loss.target_dtype is None else loss.target_dtype)
            classes = shape[1] if dtype.kind in "iu" and len(shape) > 1 else None
            what = "y" if len(self._losses) == 1 else f"y[{output!r}]"
            t = check_target(y[output], dtype, loss.target_shape(shape), rows, what,
                             classes if isinstance(classes, int) else None)
            loss.check_target(t, what)
            found[Names.of(self._model).target(output)] = t
        return found

    def _data(self, X: Any, y: Any, sample_weight: Any) -> tuple[dict[str, np.ndarray], int]:
        """Everything that a step reads row by row."""
        inputs, rows = self._inputs(X)
        if self._fixed not in (None, self.batch_size):
            raise DataError(f"The model has a fixed batch dimension of {self._fixed} and batch_size is "
                            f"{self.batch_size}; export it with a dynamic one, or use batch_size={self._fixed}.")
        data = {**inputs, **self._target(y, inputs, rows)}
        if sample_weight is not None:
            w = check_sample_weight(sample_weight, self._engine.setup.dtype, rows)
            if not w.any():
                raise DataError("All sample weights are zero.")
            data[Names.of(self._model).sample_weight] = w
        return data, rows

    @property
    def _fixed(self) -> int | None:
        """The static first size that some input has, which is what every batch must have."""
        return next((v.shape[0] for v in self._read.values() if v.shape and isinstance(v.shape[0], int)), None)

    def _session(self, what: str, rows: int) -> Session:
        """A session that reads the weights as inputs, so that it need not be made anew when they change."""
        if rows not in self._threads:
            self._threads[rows] = choose_threads([self._model.outputs[o] for o in self._losses], rows)
        key = what, self._threads[rows]
        if key not in self._sessions:
            if what == "predict":
                graph = forward_graph(self._model, self._moving, list(self._losses), used_only=True)
            else:
                graph = row_loss_graph(self._model, self._moving, self._losses)
            self._sessions[key] = Session(graph, device=self.device, threads=self._threads[rows])
        return self._sessions[key]

    def _run(self, what: str, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run a graph with the trained weights; in pieces where its batch dimension is fixed."""
        rows = len(next(iter(feeds.values())))
        size = self._fixed or rows
        session, weights = self._session(what, size), self._arrays()
        parts = []
        for start in range(0, rows, size):
            piece = {n: a[start : start + size] for n, a in feeds.items()}
            with self._watched():
                given = {n: a for n, a in {**piece, **weights}.items() if n in session.inputs}
                parts.append(session.run(given, self._options))
        return parts[0] if len(parts) == 1 else {n: np.concatenate([p[n] for p in parts]) for n in parts[0]}

    def predict(self, X: Any) -> Any:
        """The raw outputs of the graph with the trained weights.

        Parameters
        ----------
        X : array_like of shape (rows, ...), or dict of str to array_like
            Inputs.

        Returns
        -------
        numpy.ndarray, or dict of str to numpy.ndarray
            The trained output, or outputs by name where there are several.

        Raises
        ------
        DataError
            X does not fit the model.
        """
        found = self._run("predict", self._inputs(X)[0])
        return next(iter(found.values())) if len(found) == 1 else found

    def losses(self, X: Any, y: Any) -> np.ndarray:
        """The loss of every row, in order, without the penalty.

        Parameters
        ----------
        X, y : array_like
            As in `fit`.

        Returns
        -------
        numpy.ndarray of shape (rows,)
            The sum over the trained outputs.

        Raises
        ------
        DataError
            X or y does not fit the model.
        """
        inputs, rows = self._inputs(X)
        return next(iter(self._run("losses", {**inputs, **self._target(y, inputs, rows)}).values()))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Accuracy where the loss has labels, else R².

        R² = 1 - Σw(t - y)² / Σw(t - t̄)², averaged over the columns of y; accuracy = Σw[label = t] / Σw.

        Parameters
        ----------
        X, y, sample_weight : array_like
            As in `fit`.

        Returns
        -------
        float, or dict of str to float
            By output where there are several.

        Raises
        ------
        DataError
            The data do not fit the model.

        References
        ----------
        .. [1] scikit-learn, `r2_score` and `accuracy_score`.
        """
        inputs, rows = self._inputs(X)
        targets = self._target(y, inputs, rows)
        w = np.ones(rows) if sample_weight is None else check_sample_weight(sample_weight, np.dtype(np.float64), rows)
        found = self._run("predict", inputs)
        triples = zip(self._losses.items(), targets.values(), strict=True)
        scores = {}
        for (o, loss), t in triples:
            labels = loss.labels(found[o])
            scores[o] = r2(loss.mean(found[o]), t, w) if labels is None else accuracy(labels, t, w)
        return next(iter(scores.values())) if len(scores) == 1 else scores

    @contextmanager
    def _watched(self, always: bool = False) -> Iterator[None]:
        """A time in which runs end at the timeout and at Ctrl-C; the watch costs some microseconds."""
        if self._options is not None or not (always or self.timeout):
            yield
            return
        with Interrupt(self.timeout) as watch:
            self._options = self._engine.options = watch.options
            try:
                yield
            finally:
                self._options = self._engine.options = None
