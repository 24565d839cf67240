"""Layer-wise decay of the rate: the further a layer is from the output, the smaller its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .piece import Piece
from .validation import check_number

__all__ = ["LayerwiseDecay"]


@dataclass(frozen=True)
class LayerwiseDecay(Piece):
    """η · decayᵈ for the weights of a layer that d layers follow.

    The factor of the head is 1, of the last layer `decay`, and of the embeddings the smallest.

    A layer is a numbered module: the path up to the first number in the name or alias of a weight, such as
    ``encoder.layer.5``; weights before the first layer are a further layer, and so are weights after the last. Where
    names have no numbers, d is the largest number of products with weights on a way to the output that follow. The
    weights that are not trained count, too.

    Parameters
    ----------
    decay : float
        The factor from a layer to the layer before it, more than 0 and at most 1.

    References
    ----------
    J. Howard and S. Ruder, Universal Language Model Fine-tuning for Text Classification, 2018; K. Clark et al.,
    ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators, 2020.

    Examples
    --------
    >>> decay = LayerwiseDecay(0.5)
    >>> [decay(depth) for depth in range(4)]
    [1.0, 0.5, 0.25, 0.125]
    """

    decay: float = 0.9
    setting: ClassVar[str] = "rate_factors"

    def __post_init__(self) -> None:
        check_number(self, "decay", above=0, high=1)

    def __call__(self, depth: int) -> float:
        """The factor of a layer that so many layers follow."""
        return self.decay**depth
