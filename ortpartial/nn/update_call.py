"""Update call: the call of an optimizer in a step, with the gradients of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ortpartial.graph import Value, op
from ortpartial.rewrites import all_finite
from ortpartial.training import Update

__all__ = ["UpdateCall"]


@dataclass(frozen=True)
class UpdateCall:
    """A call of an optimizer.

    Parameters
    ----------
    update : Update
        The update of its weights.
    gradients : dict of str to Value
        Their gradients.
    k : Value
        The number of the batch.
    is_guarded : bool
        Whether nothing changes where a gradient is not finite.
    """

    update: Update
    gradients: Mapping[str, Value]
    k: Value
    is_guarded: bool = False

    @property
    def finite(self) -> Value:
        """Whether all gradients are finite."""
        return all_finite(list(self.gradients.values()))

    def take(self) -> dict[str, Value]:
        """Weights and states after the update."""
        before, after = self.update.before, self.update(self.gradients, self.k)
        if not self.is_guarded:
            return after
        finite = self.finite
        return {n: op.Where(finite, v, before[n]) for n, v in after.items()}
