"""Door: a loop's view of the owner of the data, the losses and the weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ortpartial.annotations import Data, Record
from ortpartial.learning import Meter

if TYPE_CHECKING:
    from .fit_settings import FitSettings

__all__ = ["Batch", "Door"]

#: X, y and the weights of the rows, of which the last two may be None.
Batch: TypeAlias = tuple[Data, Data, Data]


class Door(ABC):
    """Gives a `Loop` data, losses and first weights; where a method is not abstract, most doors need no other.

    A batch is a tuple (X, y, sample_weight), whatever a door takes as each of them; y and sample_weight may be None.
    """

    #: The name of y in errors.
    target = "y"

    def unpack(self, X: Data, y: Data, sample_weight: Data) -> Batch:
        """X, y and sample_weight, where X may hold all of them."""
        return X, y, sample_weight

    @abstractmethod
    def to_arrays(self, X: Data, y: Data, sample_weight: Data, batch_size: int | None
                  ) -> tuple[dict[str, np.ndarray], int]:
        """The arrays that steps of so many rows read, or a single step on all rows, by name; and the number of rows."""

    def to_batch(self, arrays: Mapping[str, np.ndarray]) -> Batch:
        """The batch that some rows of such arrays are."""
        return arrays, None, None

    def choose_size(self, rows: int) -> int:
        """The number of rows of a step, where a batch has so many."""
        return rows

    def read_batches(self, batches: Iterable[Data], *, with_target: bool = True) -> Iterator[Batch]:
        """The batches that an iterable gives, fetched in advance; y may be missing without `with_target`."""
        return iter(batches)

    def check_batch(self, batch: Batch) -> None:  # noqa: B027 - steps may check by themselves
        """Refuse a batch, as `read_batches` gives it, that no step reads."""

    def check_counts(self, arrays: Mapping[str, np.ndarray]) -> None:  # noqa: B027 - rows may all count
        """Refuse arrays of which nothing counts in the loss."""

    def weigh(self, arrays: Mapping[str, np.ndarray]) -> float:
        """By how much a batch counts in the mean of an epoch."""
        return float(len(next(iter(arrays.values()))))

    def reset(self, rng: np.random.Generator, settings: FitSettings) -> None:  # noqa: B027 - it may go on
        """Return to the first weights."""

    def draw_from(self, rng: np.random.Generator, iteration: int) -> np.random.Generator:
        """The generator of an epoch's order, after so many batches: the loop's own, or another."""
        return rng

    @abstractmethod
    def validate(self, batches: Iterable[Data], meter: Meter | None = None) -> float | Mapping[str, float]:
        """The mean loss of validation data, or several numbers with "loss" by name; a meter takes the predictions."""

    @abstractmethod
    def validate_held(self, arrays: Mapping[str, np.ndarray], meter: Meter | None = None
                      ) -> float | Mapping[str, float]:
        """The same of rows as `to_arrays` gives them, which a fit asks for again and again."""

    def check_step(self, arrays: Mapping[str, np.ndarray]) -> None:  # noqa: B027 - it may be written as it is run
        """Compare a step on these arrays with the model as it is written."""

    def watch(self, loss: float, *, is_last: bool = False) -> None:  # noqa: B027 - no schedule may follow a loss
        """Let a schedule see the loss of an epoch, of validation data if there are any; or that patience has ended."""

    def complete(self, records: Sequence[Record]) -> None:  # noqa: B027 - they may be complete
        """Compute step sizes in records of which `describe_rate` has given the numbers alone."""

    def describe_rate(self) -> object:
        """The step size of the last batch, for the record of an epoch; or the numbers that it follows from."""
        return None

    @abstractmethod
    def describe_divergence(self, loss: float, iteration: int, epoch: int) -> str:
        """The message about a loss, or weights where it is finite, that this iteration has made infinite."""
