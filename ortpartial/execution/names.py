"""Names of a step's inputs and outputs beside its data: the loss, the number of the batch, the seed, new states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ortpartial.texts import free_name

__all__ = ["StepNames"]


@dataclass(frozen=True)
class StepNames:
    """The names of a step's values: the plain word, underscored until it is free.

    Parameters
    ----------
    taken : frozenset of str
        Names that the step uses otherwise.

    Examples
    --------
    >>> StepNames(frozenset({"loss"})).loss
    'loss_'
    """

    taken: frozenset[str]

    @classmethod
    def beside(cls, names: Iterable[str]) -> StepNames:
        """Names that clash with none of others."""
        return cls(frozenset(names))

    def free(self, name: str) -> str:
        """The name itself, or with underscores behind it where it is taken."""
        return name if name not in self.taken else free_name(name, self.taken)

    @property
    def loss(self) -> str:
        """The loss of a batch."""
        return self.free("loss")

    @property
    def iteration(self) -> str:
        """The batch counter, from 1."""
        return self.free("iteration")

    @property
    def seed(self) -> str:
        """Where random numbers come from."""
        return self.free("seed")

    def new(self, state: str) -> str:
        """A weight or state after the step."""
        return self.free(f"{state}_new")
