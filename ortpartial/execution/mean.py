"""Weighted mean of the losses of an epoch, summed up batch by batch."""

from __future__ import annotations

import numpy as np

from ortpartial.annotations import Entries, State

__all__ = ["WeightedMean"]


class WeightedMean:
    """The weighted mean of the losses of an epoch, summed up batch by batch.

    Attributes
    ----------
    total, weight : float
        The weighted sum of losses, and the sum of their weights.
    waiting : int
        Number of losses that wait to be added together with later losses.
    """

    def __init__(self) -> None:
        self.total = self.weight = 0.0
        self.waiting = 0
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        self._expected = 0.0, 0.0  # of the waiting losses, up to the last bits

    def add(self, total: float, weight: float) -> None:
        """Add a weighted sum of losses, and the sum of their weights."""
        self.total += total
        self.weight += weight

    def collect(self, losses: np.ndarray, weights: np.ndarray, count: int) -> None:
        """Add losses as soon as there are `count` of them: in a sum whose last bits do not depend on the parts."""
        total, weight = self._expected
        self._parts.append((losses.copy(), weights))
        self._expected = total + float(losses @ weights), weight + float(weights.sum())
        self.waiting += len(losses)
        if self.waiting == count:
            self.settle()

    def settle(self) -> None:
        """Add the losses that wait."""
        losses, weights = map(np.concatenate, zip(*self._parts, strict=True))
        self.add(float(losses @ weights), float(weights.sum()))
        self._parts, self._expected, self.waiting = [], (0.0, 0.0), 0

    @property
    def value(self) -> float:
        """The mean; 0 without any weight."""
        total, weight = self._expected
        total, weight = self.total + total, self.weight + weight
        return total / weight if weight else 0.0

    @property
    def state(self) -> State:
        """The sums of a mean that continues this mean."""
        return {"total": self.total, "weight": self.weight, "parts": list(self._parts)}

    @classmethod
    def from_state(cls, state: Entries) -> WeightedMean:
        """The mean that continues another."""
        mean = cls()
        mean.add(state["total"], state["weight"])
        for losses, weights in state["parts"]:
            mean.collect(losses, weights, 0)
        return mean
