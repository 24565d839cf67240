"""Data of a fit: the rows or batches that train, and the rows that validate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpartial.annotations import Data
from ortpartial.checks import to_generator
from ortpartial.exceptions import DataError
from ortpartial.learning import Meter, Metric

from .batches import is_batches
from .fit_position import FitPosition
from .overrides import NO_OVERRIDES, Overrides
from .sparse_rows import SparseRows

if TYPE_CHECKING:
    from .door import Door
    from .fit_settings import FitSettings

__all__ = ["DataReader", "FitData", "check_measurable", "choose_part", "measure_rows", "select_rows"]

#: Numbers in a part of the rows whose predictions are measured at once.
_PART = 2**15


@dataclass(frozen=True)
class FitData:
    """Data of a fit.

    Attributes
    ----------
    arrays : dict of str to numpy.ndarray
        The rows as a step reads them; none where batches are given.
    rows : numpy.ndarray of int
        The numbers of the rows that are trained.
    batches : iterable or None
        The batches of an epoch, in place of rows.
    validation : iterable or None
        The batches that validate.
    held : dict of str to numpy.ndarray, or None
        The rows that validate as a step reads them, where they are given whole.
    """

    arrays: Mapping[str, np.ndarray]
    rows: np.ndarray
    batches: Iterable[Data] | None = None
    validation: Iterable[Data] | None = None
    held: Mapping[str, np.ndarray] | None = None

    def count_steps(self, batch_size: int) -> int | None:
        """The number of steps of an epoch, if it is known."""
        if self.batches is None:
            return -(-len(self.rows) // batch_size)
        return len(self.batches) if hasattr(self.batches, "__len__") else None  # type: ignore[arg-type]


@dataclass(frozen=True)
class DataReader:
    """Checks and converts the data of a fit.

    Attributes
    ----------
    door : Door
        Converts them.
    settings : FitSettings
        The settings of the fit.
    is_distributed : bool
        Whether several processes train, each of which is given all the rows.
    overrides : Overrides
        Steps of a user's class, for which batches may hold anything.
    """

    door: Door
    settings: FitSettings
    is_distributed: bool = False
    overrides: Overrides = NO_OVERRIDES

    def read(self, X: Data, y: Data, sample_weight: Data, X_val: Data, y_val: Data, place: FitPosition,
             rng: np.random.Generator) -> FitData:
        """Check and convert the data of a fit.

        Parameters
        ----------
        X, y, sample_weight : object
            Rows; without `y`, X gives batches.
        X_val, y_val : object
            The rows or batches that validate; a number as `X_val` is a share of the rows, which are not trained.
        place : FitPosition
            Where the fit is; it remembers the random state from which the share was drawn.
        rng : numpy.random.Generator
            The generator of the loop, from which a validation share is drawn, the same when a fit goes on.

        Returns
        -------
        FitData

        Raises
        ------
        DataError
            They do not fit the door or each other.
        """
        batches = self.check_batches(X) if y is None else None
        is_misplaced = sample_weight is not None and X_val is not None and y_val is None
        if is_misplaced and not isinstance(X_val, Real) and not is_batches(X_val):
            raise DataError("The third argument of fit is sample_weight; give validation data by name, as "
                            "fit(X, y, X_val=..., y_val=...).")
        arrays, count = ({}, 0) if batches is not None else self.to_arrays(X, y, sample_weight)
        self.door.check_counts(arrays)
        rows, validation, held = self._hold_out(arrays, count, X_val, y_val, place, rng)
        return FitData(arrays, rows, batches, validation, held)

    def to_arrays(self, X: Data, y: Data, sample_weight: Data) -> tuple[dict[str, np.ndarray], int]:
        """The arrays that steps read, and their number of rows."""
        return self.door.to_arrays(X, y, sample_weight, self.settings.batch_size)

    def check_batches(self, X: Data, epochs: int | None = None) -> Iterable[Data]:
        """Check that X can be iterated over in so many epochs, by default as the settings say.

        Raises
        ------
        DataError
            It cannot, or it is rows.
        """
        if isinstance(X, tuple) and len(X) in (2, 3) and all(hasattr(a, "__array__") for a in X):
            raise DataError(f"X is a tuple of {len(X)} arrays; give them as arguments of their own: fit(X, y).")
        if not is_batches(X) and not isinstance(X, (tuple, list)):
            raise DataError(f"{self.door.target} is missing; without it, X is to give batches (X, y), one after the "
                            f"other, as PaddedBatches does of rows of token ids.")
        if iter(X) is X and (epochs or self.settings.max_iter) > 1:
            raise DataError(f"X gives its batches once, and max_iter is {self.settings.max_iter}: give what can be "
                            f"iterated over again, such as a list or a DataLoader, or max_iter=1.")
        if self.is_distributed:
            raise DataError("distributed=True needs all rows as arrays, memory maps for example, not batches.")
        if self.overrides.train_step is None:
            self._check_each(X, 1 if epochs is None else 2)
        return X

    def _hold_out(self, arrays: Mapping[str, np.ndarray], count: int, X_val: Data, y_val: Data, place: FitPosition,
                  rng: np.random.Generator
                  ) -> tuple[np.ndarray, Iterable[Data] | None, Mapping[str, np.ndarray] | None]:
        """The rows to train on, and the batches to validate on, if any; a single batch as arrays of a step."""
        rows = np.arange(count)
        if X_val is None:
            if y_val is not None:
                raise DataError("X_val and y_val belong together; X_val is missing.")
            return rows, None, None
        if isinstance(X_val, Real):
            held_out = self._draw_rows(X_val, y_val, count, place, rng)
            held = select_rows(arrays, held_out)
            return np.setdiff1d(rows, held_out), [self.door.to_batch(held)], held
        X_val, y_val, _ = self.door.unpack(X_val, y_val, None)
        if y_val is not None:
            # An error is better now than after the first epochs.
            try:
                held = self.to_arrays(X_val, y_val, None)[0]
                self.door.check_counts(held)
            except DataError as e:
                raise DataError(f"The validation data do not fit: {e}") from None
            return rows, [(X_val, y_val, None)], held
        if not is_batches(X_val):
            raise DataError("X_val and y_val belong together; y_val is missing.")
        if iter(X_val) is X_val and self.settings.max_iter > 1:
            raise DataError("X_val gives its batches once; give what can be iterated over again.")
        if self.overrides.validation_step is not None:
            return rows, X_val, None
        if type(X_val) is list and len(X_val) == 1:  # rows with weights, as an estimator of scikit-learn has them
            (batch,) = self.door.read_batches(X_val)
            return rows, X_val, self.door.to_arrays(*batch, None)[0]
        self._check_each(X_val)
        return rows, X_val, None

    def _check_each(self, batches: Iterable[Data], least: int = 1) -> None:
        """Refuse a batch of a list of so many before weights move; what loads its batches is read once an epoch."""
        if type(batches) in (list, tuple) and len(batches) >= least:  # type: ignore[arg-type]
            for batch in self.door.read_batches(batches):
                self.door.check_batch(batch)

    def _draw_rows(self, share: Any, y_val: Data, count: int, place: FitPosition,
                   rng: np.random.Generator) -> np.ndarray:
        """The rows that a share holds out, which follow from a number as `random_state`, in their order."""
        seed = self.settings.random_state
        if not 0 < share < 1 or y_val is not None:
            raise DataError(f"X_val is {share!r}; give data and y_val, or alone a share of the rows between 0 and 1.")
        if not count:
            raise DataError("X gives batches; X_val cannot be a share of them, give other ones.")
        if self.is_distributed and seed is None:
            raise DataError("X_val is a share of the rows, the same ones in every process; set random_state.")
        size = max(1, round(share * count))
        if size >= count:
            raise DataError(f"X_val={share!r} of {count} rows leaves none to train on.")
        drawn = to_generator("random_state", seed)
        if place.held_out is not None:  # The fit goes on, whose generator is further by now.
            drawn = np.random.Generator(type(rng.bit_generator)())
            drawn.bit_generator.state = place.held_out
        place.held_out = drawn.bit_generator.state
        return np.sort(drawn.permutation(count)[:size])


def select_rows(arrays: Mapping[str, Data], rows: np.ndarray | slice) -> dict[str, np.ndarray]:
    """Some rows of arrays, of which sparse arrays stay sparse.

    Parameters
    ----------
    arrays : dict of str to numpy.ndarray
        The arrays.
    rows : numpy.ndarray of int, or slice
        Which rows.

    Returns
    -------
    dict of str to numpy.ndarray
    """
    selected: dict[str, Data] = {n: a.select(rows) if isinstance(a, SparseRows) else a[rows] for n, a in arrays.items()}
    return selected


def measure_rows(door: Door, settings: FitSettings, data: FitData) -> dict[str, float]:
    """Compute the metrics of the rows that are trained, with the weights of now.

    Parameters
    ----------
    door : Door
        Predicts.
    settings : FitSettings
        Has the metrics.
    data : FitData
        The data of the fit.

    Returns
    -------
    dict of str to float
        By name; the losses of validation data where there are no metrics.
    """
    if not (metrics := _list_metrics(settings, data)):
        return {}
    meter = Meter(metrics)
    if data.batches is not None:
        door.validate(data.batches, meter)
    else:  # In this thread: another that fetches them would have nothing to do.
        for part in _cut(door, settings, data):
            door.validate([part], meter)
    return meter.read()


def _list_metrics(settings: FitSettings, data: FitData) -> list[Metric]:
    """The metrics of the rows that are trained."""
    metrics = settings.list_metrics("training")
    if data.validation is not None:
        return metrics
    names = {metric.name for metric in metrics}
    return [*metrics, *(metric for metric in settings.list_metrics("validation") if metric.name not in names)]


def _cut(door: Door, settings: FitSettings, data: FitData) -> Iterator[Data]:
    """The rows that are trained, in parts of several batches."""
    size = choose_part(data.arrays, settings.batch_size)
    for start in range(0, len(data.rows), size):
        yield door.to_batch(select_rows(data.arrays, data.rows[start : start + size]))


def choose_part(arrays: Mapping[str, np.ndarray], batch_size: int) -> int:
    """Choose how many rows are computed at once where no step is taken.

    Parameters
    ----------
    arrays : dict of str to numpy.ndarray
        The rows.
    batch_size : int
        The rows of a batch.

    Returns
    -------
    int
        The rows of several batches, as far as they have few numbers.
    """
    numbers = sum(prod(a.shape[1:]) for a in arrays.values())
    return batch_size * max(1, _PART // (batch_size * max(1, numbers)))


def check_measurable(door: Door, settings: FitSettings, data: FitData) -> None:
    """Check that metrics can be computed of predictions, on some rows, before a fit.

    Parameters
    ----------
    door : Door
        Predicts.
    settings : FitSettings
        Has the metrics.
    data : FitData
        The data of the fit.

    Raises
    ------
    SettingError
        A metric does not compare predictions of this kind with targets.
    DataError
        The rows that are trained would have to be given a second time.
    """
    metrics = _list_metrics(settings, data)
    if data.batches is None:
        rows = data.rows[: settings.batch_size]
        meter = Meter([*metrics, *settings.list_metrics("validation")])
        door.validate([door.to_batch(select_rows(data.arrays, rows))], meter)
    elif metrics and iter(data.batches) is data.batches:
        raise DataError(f"The metric {metrics[0].name!r} is computed of the rows that are trained, and X gives its "
                        f"batches once; give X_val, or what can be iterated over again, such as a list.")
