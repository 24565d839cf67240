"""The door of steps that return several numbers: their means over the rows of an epoch, and of a validation."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import isfinite

import numpy as np

from ortpartial.annotations import Data
from ortpartial.exceptions import ConvergenceError
from ortpartial.learning import Meter

from .door import Door

__all__ = ["Means", "StepDoor", "describe_infinity", "read_numbers"]


class Means:
    """The means over rows of numbers by name."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._rows = 0.0

    def add(self, numbers: Mapping[str, float], rows: float) -> None:
        """Add the numbers of a batch."""
        for n, number in numbers.items():
            self._sums[n] += rows * number
        self._rows += rows

    def read(self) -> dict[str, float]:
        """The means so far."""
        return {n: total / self._rows for n, total in self._sums.items()}


def read_numbers(outputs: Mapping[str, np.ndarray], where: str) -> dict[str, float]:
    """The outputs of a batch that are single real numbers, such as a loss, by name.

    Parameters
    ----------
    outputs : dict of str to numpy.ndarray
        All outputs.
    where : str
        The batch, for an error.

    Returns
    -------
    dict of str to float

    Raises
    ------
    ConvergenceError
        One is not finite.
    """
    numbers = {n: v.item() for n, v in outputs.items() if v.size == 1 and v.dtype.kind == "f"}
    for n, number in numbers.items():
        if not isfinite(number):
            raise ConvergenceError(describe_infinity(n, number, where))
    return numbers


def describe_infinity(name: str, number: float, where: str) -> str:
    """The message about an output that is not finite."""
    return f"The output {name!r} is {number} in {where}; lower the learning rate, or scale the data."


class StepDoor(Door):
    """The door of steps that return numbers by name, which a validation computes, too.

    Parameters
    ----------
    batch_size : int
        The rows of a step.
    is_fixed : bool
        Whether no step has fewer: the last is filled up with the first rows.
    """

    target = "the data"

    def __init__(self, batch_size: int, is_fixed: bool):
        self.batch_size, self.is_fixed = batch_size, is_fixed
        #: The means of the last validation.
        self.validated: dict[str, float] = {}

    @abstractmethod
    def evaluate(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The outputs of a step that is not taken."""

    def validate(self, batches: Iterable[Data], meter: Meter | None = None) -> dict[str, float]:
        """The means over the rows without a step."""
        means = Means()
        for data, _, _ in batches:
            order = np.arange(next((len(a) for a in data.values() if a.ndim), 0))
            for start in range(0, len(order), self.batch_size):
                end = start + self.batch_size
                rows = order.take(range(start, end if self.is_fixed else min(end, len(order))), mode="wrap")
                outputs = self.evaluate({n: a[rows] if a.ndim else a for n, a in data.items()})
                means.add(read_numbers(outputs, "the validation"), len(rows))
        self.validated = means.read()
        return self.validated

    def validate_held(self, arrays: Mapping[str, np.ndarray], meter: Meter | None = None) -> dict[str, float]:
        """The same of rows as `to_arrays` gives them."""
        return self.validate([self.to_batch(arrays)], meter)
