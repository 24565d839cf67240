"""How does a training go on? `Fitting` goes through the rows, epoch by epoch, until it is to end or diverges."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from contextlib import closing, nullcontext
from typing import Any

import numpy as np
from tqdm import tqdm

from ortpartial.exceptions import ConvergenceError, ConvergenceWarning, DataError
from ortpartial.learning import draw_weights

from .predictor import Predicting
from .prefetch import prefetch, split_batch

__all__ = ["Fitting"]


class Fitting(Predicting):
    """A model that learns from rows of data."""

    _rng: np.random.Generator
    distributed: bool
    train_losses_: list[float]
    validation_losses_: list[float]
    n_iter_: int

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, X_val: Any = None, y_val: Any = None) -> Any:
        """Train for `max_iter` epochs, from the first weights unless `warm_start`.

        Parameters
        ----------
        X : array_like of shape (rows, ...), table, dict of str to array_like, or iterable of batches
            Inputs; where the model has several, a dict or a table with a column for each. Arrays of numpy, memory maps
            and tensors are read where they are if they have the dtype of the input; tables of pandas, polars or pyarrow
            are copied, column by column. Without `y`, what gives batches (X, y) or (X, y,
            sample_weight) every time it is iterated over, such as a DataLoader: they are fetched by a thread while the
            step before runs, and `batch_size` and `shuffle` are left to them.
        y : array_like of shape (rows, ...), table, or dict of str to array_like
            Targets, of the shape of the output; integer labels where the loss takes them.
        sample_weight : array_like of shape (rows,), optional
            Weights of the rows, not negative.
        X_val, y_val : like X and y, optional
            Data on which the loss is computed now and then, without a change of the training.

        Returns
        -------
        OrtGradientForwardBackwardOptimizer
            The optimizer itself.

        Raises
        ------
        DataError
            The data do not fit the model.
        ConvergenceError
            The loss or a weight is no finite number any more; the weights are those of the last finite step.
        DeadlineError
            The `timeout` is over.
        """
        batches = self._batches(X) if y is None else None
        data, rows = self._data(X, y, sample_weight) if batches is None else ({}, 0)
        if (X_val is None) != (y_val is None):
            raise DataError("X_val and y_val belong together; one of them is missing.")
        if X_val is not None:
            self._data(X_val, y_val, None)  # An error is better now than after the first epochs.
        if not self.warm_start:
            self._reset()
        every = self.validation_every if self.validation_every >= 1 else self.validation_every * self.max_iter
        every = max(1, round(every))
        first = batches is not None or self._begin(data, rows)
        hidden = not (self.verbose and first)
        shown = nullcontext() if hidden else tqdm(total=self.max_iter, unit="epoch")
        with self._watched(always=True), shown as bar:
            for epoch in range(1, self.max_iter + 1):
                if not (self._epoch(rows) if batches is None else self._epoch_of(batches)):
                    break
                if X_val is not None and (epoch % every == 0 or epoch == self.max_iter):
                    self.validation_losses_.append(float(self.losses(X_val, y_val).mean()))
                if bar is not None:
                    bar.set_postfix(self._progress(), refresh=False)
                    bar.update()
                if self.callbacks and self._told(first and self._called()):
                    break
        return self

    def _begin(self, data: Mapping[str, np.ndarray], rows: int) -> bool:
        """Tell the engine where the rows are; of several processes, all go on from the first, whether it is this."""
        self._engine.start(data)
        group = getattr(self._engine, "group", None)
        if group is None:
            return True
        told, self._rng, snapshot = group.told((rows, self._rng, self._engine.snapshot()))
        if told != rows:
            raise DataError(f"This process has {rows} rows, the first one {told}; every process is given all rows.")
        self._engine.restore(snapshot)
        return bool(group.rank == 0)

    def _told(self, what: Any) -> Any:
        """What the first process says, which may be the only one."""
        group = getattr(self._engine, "group", None)
        return what if group is None else group.told(what)

    def _called(self) -> bool:
        """Call every callback; whether one wants the training to end."""
        answers = [callback(self) for callback in self.callbacks]  # none is left out
        return any(answer is True for answer in answers)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train for one epoch on these rows, going on from where the training is.

        Parameters
        ----------
        X, y, sample_weight : array_like
            As in `fit`.

        Returns
        -------
        OrtGradientForwardBackwardOptimizer
            The optimizer itself.

        Raises
        ------
        DataError, ConvergenceError, DeadlineError
            As in `fit`.
        """
        data, rows = self._data(X, y, sample_weight)
        self._begin(data, rows)
        with self._watched():
            self._epoch(rows)
        return self

    def _reset(self) -> None:
        """Back to the first weights, with what is compiled kept."""
        self._rng = np.random.default_rng(self.random_state)
        self._restart()
        self.train_losses_, self.validation_losses_, self.n_iter_ = [], [], 0

    def _epoch(self, rows: int) -> bool:
        """Train on every row once; whether all stayed finite."""
        order = self._rng.permutation(rows) if self.shuffle else np.arange(rows)
        before = self._engine.snapshot() if self._engine.copies > 1 else None
        loss = self._engine.epoch(order, self.batch_size)
        if not (np.isfinite(loss) and self._engine.is_finite()):
            self._diverged(before, order, loss)
            return False
        self.train_losses_.append(loss)
        self.n_iter_ += 1
        return True

    def _diverged(self, before: Any, order: np.ndarray, loss: float) -> None:
        """Replay the epoch up to its last finite step, then say what happened."""
        engine = self._engine
        if before is None:  # The step was not taken.
            self._say_diverged(loss, engine.iteration + 1)
            return
        engine.restore(before)
        for start in range(0, len(order), self.batch_size):
            last = engine.snapshot()
            loss = engine.epoch(order[start : start + self.batch_size], self.batch_size)
            if not (np.isfinite(loss) and engine.is_finite()):
                break
        at = engine.iteration
        engine.restore(last)
        self._say_diverged(loss, at)

    def _say_diverged(self, loss: float, at: int) -> None:
        """The error or the warning."""
        message = (f"The loss is {loss} at iteration {at} (epoch {self.n_iter_ + 1}) with {self.learning_rate!r}; the "
                   f"weights are those of iteration {at - 1}. Lower the rate, or scale X and y.")
        if self.exc:
            raise ConvergenceError(message)
        warnings.warn(message, ConvergenceWarning, stacklevel=5)

    def _batches(self, X: Any) -> Iterable[Any]:
        """What gives batches, for as many epochs as there are to be."""
        if isinstance(X, Mapping) or hasattr(X, "__array__") or not isinstance(X, Iterable):
            raise DataError("y is missing; without it, X is to give batches (X, y), one after the other.")
        if iter(X) is X and self.max_iter > 1:
            raise DataError(f"X gives its batches once, and max_iter is {self.max_iter}: give what can be iterated "
                            f"over again, such as a list or a DataLoader, or max_iter=1.")
        if self.distributed:
            raise DataError("distributed=True needs all rows as arrays, memory maps for example, not batches.")
        return X

    def _epoch_of(self, batches: Iterable[Any]) -> bool:
        """Train on every batch once; whether all stayed finite."""
        total = weight = 0.0
        engine = self._engine
        with closing(prefetch(batches)) as fetched:
            for batch in fetched:
                X, y, w = split_batch(batch)
                data, rows = self._data(X, y, w)
                engine.start(data)
                loss = engine.epoch(np.arange(rows), rows)
                if not (np.isfinite(loss) and engine.is_finite()):
                    engine.undo()
                    self._say_diverged(loss, engine.iteration + 1)
                    return False
                share = float(rows if w is None else np.sum(w))
                total, weight = total + share * loss, weight + share
        if not weight:
            raise DataError("There are no batches in X.")
        self.train_losses_.append(total / weight)
        self.n_iter_ += 1
        return True

    def _progress(self) -> dict[str, str]:
        last = {"loss": self.train_losses_[-1:], "validation": self.validation_losses_[-1:]}
        return {n: f"{v[0]:.4g}" for n, v in last.items() if v}

    def _restart(self) -> None:
        """Bring the engine to where a training starts."""
        first = dict(self._model.arrays)
        if self.init == "random":
            first |= draw_weights(self._model, self.weights_to_train, self._rng)
        seed = self._rng.integers(-(2**31), 2**31, 2).tolist() if self.train_mode else (0, 0)
        self._engine.reset(first, seed)
