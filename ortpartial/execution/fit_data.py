"""Data of a fit: the rows that are trained, or the batches, and those that validate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ortpartial.exceptions import DataError

from .batches import is_batches
from .place import Place

if TYPE_CHECKING:
    from .loop import Loop

__all__ = ["FitData", "check_batches", "read_data"]


@dataclass(frozen=True)
class FitData:
    """What a fit reads.

    Attributes
    ----------
    arrays : dict of str to numpy.ndarray
        The rows as a step reads them; none where batches are given.
    rows : numpy.ndarray of int
        The numbers of those that are trained.
    batches : iterable or None
        The batches of an epoch, in place of rows.
    validation : iterable or None
        The batches that validate.
    """

    arrays: Mapping[str, np.ndarray]
    rows: np.ndarray
    batches: Iterable[Any] | None = None
    validation: Iterable[Any] | None = None

    def count_steps(self, batch_size: int) -> int | None:
        """The number of steps of an epoch, if it is known."""
        if self.batches is None:
            return -(-len(self.rows) // batch_size)
        return len(self.batches) if hasattr(self.batches, "__len__") else None


def read_data(loop: Loop, X: Any, y: Any, sample_weight: Any, X_val: Any, y_val: Any, place: Place) -> FitData:
    """Check and convert the data of a fit.

    Parameters
    ----------
    loop : Loop
        The loop, whose door converts them.
    X, y, sample_weight : object
        Rows; without `y`, X gives batches.
    X_val, y_val : object
        The rows or batches that validate; a number as `X_val` is a share of the rows, which are not trained.
    place : Place
        Where the fit is; it remembers the random state from which the share was drawn.

    Returns
    -------
    FitData

    Raises
    ------
    DataError
        They do not fit the door or each other.
    """
    batches = check_batches(loop, X) if y is None else None
    if sample_weight is not None and X_val is not None and y_val is None and not isinstance(X_val, Real):
        raise DataError("The third argument of fit is sample_weight; give validation data by name, as "
                        "fit(X, y, X_val=..., y_val=...).")
    arrays, count = ({}, 0) if batches is not None else loop.to_arrays(X, y, sample_weight)
    loop.door.check_counts(arrays)
    rows, validation = _hold_out(loop, arrays, count, X_val, y_val, place)
    return FitData(arrays, rows, batches, validation)


def check_batches(loop: Loop, X: Any, epochs: int | None = None) -> Iterable[Any]:
    """Check that X can be iterated over in every epoch.

    Parameters
    ----------
    loop : Loop
        The loop.
    X : object
        What gives the batches.
    epochs : int, optional
        How often; by default as the settings say.

    Returns
    -------
    iterable

    Raises
    ------
    DataError
        It cannot, or it is rows.
    """
    if isinstance(X, tuple) and len(X) in (2, 3) and all(hasattr(a, "__array__") for a in X):
        raise DataError(f"X is a tuple of {len(X)} arrays; give them as arguments of their own: fit(X, y).")
    if not is_batches(X) and not isinstance(X, (tuple, list)):
        raise DataError(f"{loop.door.target} is missing; without it, X is to give batches (X, y), one after the "
                        f"other, as PaddedBatches does of rows of token ids.")
    if iter(X) is X and (epochs or loop.settings.max_iter) > 1:
        raise DataError(f"X gives its batches once, and max_iter is {loop.settings.max_iter}: give what can be "
                        f"iterated over again, such as a list or a DataLoader, or max_iter=1.")
    if loop.engine.is_distributed:
        raise DataError("distributed=True needs all rows as arrays, memory maps for example, not batches.")
    return X  # type: ignore[no-any-return]


def _hold_out(loop: Loop, arrays: Mapping[str, np.ndarray], count: int, X_val: Any, y_val: Any, place: Place
              ) -> tuple[np.ndarray, Iterable[Any] | None]:
    """The rows to train on, and the batches to validate on, if any."""
    rows = np.arange(count)
    if X_val is None:
        if y_val is not None:
            raise DataError("X_val and y_val belong together; X_val is missing.")
        return rows, None
    if isinstance(X_val, Real):
        held_out = _draw_rows(loop, X_val, y_val, count, place)
        return np.setdiff1d(rows, held_out), [loop.door.to_batch({n: a[held_out] for n, a in arrays.items()})]
    X_val, y_val, _ = loop.door.unpack(X_val, y_val, None)
    if y_val is not None:
        # An error is better now than after the first epochs.
        try:
            loop.door.check_counts(loop.to_arrays(X_val, y_val, None)[0])
        except DataError as e:
            raise DataError(f"The validation data do not fit: {e}") from None
        return rows, [(X_val, y_val, None)]
    if not is_batches(X_val):
        raise DataError("X_val and y_val belong together; y_val is missing.")
    if iter(X_val) is X_val and loop.settings.max_iter > 1:
        raise DataError("X_val gives its batches once; give what can be iterated over again.")
    return rows, X_val


def _draw_rows(loop: Loop, share: Any, y_val: Any, count: int, place: Place) -> np.ndarray:
    """The rows that a share holds out, which follow from a number as `random_state`, in their order."""
    seed = loop.settings.random_state
    if not 0 < share < 1 or y_val is not None:
        raise DataError(f"X_val is {share!r}; give data and y_val, or alone a share of the rows between 0 and 1.")
    if not count:
        raise DataError("X gives batches; X_val cannot be a share of them, give other ones.")
    if loop.engine.is_distributed and seed is None:
        raise DataError("X_val is a share of the rows, the same ones in every process; set random_state.")
    size = max(1, round(share * count))
    if size >= count:
        raise DataError(f"X_val={share!r} of {count} rows leaves none to train on.")
    rng = np.random.default_rng(seed)
    if place.held_out is not None:  # The fit goes on, whose generator is further by now.
        rng = np.random.Generator(type(loop.rng.bit_generator)())
        rng.bit_generator.state = place.held_out
    place.held_out = rng.bit_generator.state
    return np.sort(rng.permutation(count)[:size])
