"""The place of a fit: its progress, and the state to go on from."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ortpartial.annotations import Entries, State
from ortpartial.exceptions import DataError

from .mean import WeightedMean

__all__ = ["FitPosition", "check_rows"]


@dataclass
class FitPosition:
    """Where a fit is, from which it can go on.

    Attributes
    ----------
    epoch : int
        Number of its epochs that are over.
    batches : int
        Number of batches of the epoch that runs which are over.
    start : int
        Number of batches seen before the fit.
    rows : int or None
        Number of rows that are trained, 0 where they come in batches; None before the first fit.
    is_stopped : bool
        Whether a callback has asked to stop.
    held_out, order : dict or None
        The random states from which the rows for validation, and the order of the others in the epoch that runs, were
        drawn, where that may be asked for.
    mean : WeightedMean or None
        The mean loss of that epoch until there.
    """

    epoch: int = 0
    batches: int = 0
    start: int = 0
    rows: int | None = None
    is_stopped: bool = False
    held_out: Entries | None = None
    order: Entries | None = None
    mean: WeightedMean | None = None

    @property
    def state(self) -> State:
        """The fields of the place, for `from_state`."""
        mean = self.mean.state if self.batches and self.mean else None
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"mean": mean}

    @classmethod
    def from_state(cls, state: Entries) -> FitPosition:
        """The place that `state` tells of."""
        mean = state["mean"]
        return cls(**{**state, "mean": mean and WeightedMean.from_state(mean)})


def check_rows(former: FitPosition, rows: int) -> None:
    """Check that a fit goes on with as many rows as before.

    Parameters
    ----------
    former : FitPosition
        The place from which it goes on.
    rows : int
        Number of rows that are trained, 0 where they come in batches.

    Raises
    ------
    DataError
        There were others.
    """
    if former.rows not in (None, rows):
        there, here = (f"{n} rows" if n else "batches" for n in (former.rows, rows))
        raise DataError(f"The checkpoint is of a training on {there}, and this one is on {here}; give the same data.")
