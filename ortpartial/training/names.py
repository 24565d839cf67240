"""Names of the tensors that training adds to a model: targets, losses, gradients, states and new weights."""

from __future__ import annotations

from dataclasses import dataclass

from ortpartial.execution import StepNames
from ortpartial.model import Model

__all__ = ["Names"]


@dataclass(frozen=True)
class Names(StepNames):
    """The names of tensors that training adds to a model: the plain word, underscored until it is free.

    Parameters
    ----------
    taken : frozenset of str
        Names that the model uses itself.

    Examples
    --------
    >>> Names(frozenset({"y_target"})).target("y")
    'y_target_'
    """

    @classmethod
    def of(cls, model: Model) -> Names:
        """Names free of clashes with every tensor of a model."""
        return cls(frozenset(model.values))

    @property
    def rate_scale(self) -> str:
        """The name of the factor of all step sizes."""
        return self.free("rate_scale")

    @property
    def plateau(self) -> str:
        """The name of the memory of losses since they have last fallen."""
        return self.free("plateau")

    @property
    def sample_weight(self) -> str:
        """The weights of the rows."""
        return self.free("sample_weight")

    def target(self, output: str) -> str:
        """The target of an output."""
        return self.free(f"{output}_target")

    def weight(self, output: str) -> str:
        """The weights of the elements of the target of an output."""
        return self.free(f"{output}_weight")

    def loss_of(self, output: str) -> str:
        """The loss of an output among several."""
        return self.free(f"{output}_loss")

    def grad(self, name: str) -> str:
        """The gradient of the loss by a weight or an output."""
        return self.free(f"{name}_grad")

    def penalty_grad(self, weight: str) -> str:
        """The gradient of the penalty by a weight."""
        return self.free(f"{weight}_grad_penalty")

    def state(self, weight: str, state: str) -> str:
        """An optimizer state of a weight."""
        return self.free(f"{weight}_{state}")
