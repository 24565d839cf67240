"""Penalties: formulas from a weight to a scalar that is added to the loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import ClassVar

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import DTypeLike
from ortpartial.autodiff import grad
from ortpartial.exceptions import SettingError
from ortpartial.graph import Value, build, constant, op, variable

from .base import BaseLearningOnnx, check_number, resolve_piece
from .base_rate import BaseLearningRate
from .proximal_rate import ProximalRate

__all__ = ["BaseLearningPenalty", "ElasticLearningPenalty", "NoLearningPenalty", "resolve_penalty"]

Shape = Sequence["int | str | None"]


class BaseLearningPenalty(BaseLearningOnnx):
    """p(w): the cost of a weight, a scalar.

    A subclass defines ``__call__(self, w)`` from a value to a scalar value; its settings are the fields of a dataclass,
    or attributes that its constructor assigns. Its gradient is derived by automatic differentiation.

    Examples
    --------
    >>> class Largest(BaseLearningPenalty):
    ...     def __call__(self, w):
    ...         return op.ReduceMax(op.Abs(w), keepdims=0)
    >>> [o.name for o in Largest().build_onnx_function(shape=[3, 2]).graph.output]
    ['penalty', 'w_grad']
    """

    setting: ClassVar[str] = "learning_penalty"

    @abstractmethod
    def __call__(self, w: Value) -> Value:
        """The cost of the weight."""

    def applies_to(self, shape: Shape) -> bool:
        """Whether a weight of this shape is penalized.

        Parameters
        ----------
        shape : sequence of int, str or None
            Shape of the weight.

        Returns
        -------
        bool
        """
        return True

    def join_rate(self, rate: BaseLearningRate, shape: Shape) -> BaseLearningRate:
        """The optimizer of a weight with the part of the penalty that follows each step: by default none.

        Parameters
        ----------
        rate : BaseLearningRate
            The optimizer of the weight.
        shape : sequence of int, str or None
            Shape of the weight.

        Returns
        -------
        BaseLearningRate
        """
        return rate

    def build_onnx_function(self, *, dtype: DTypeLike = "float32", shape: Shape) -> ModelProto:
        """Penalty and gradient as an ONNX model: w -> (penalty, w_grad), zeros if it does not apply to the shape.

        Parameters
        ----------
        dtype : numpy dtype or its name
            Element type of the weight.
        shape : sequence of int, str or None
            Shape of the weight.

        Returns
        -------
        onnx.ModelProto
            The penalty is a scalar, the gradient has the shape of the weight.
        """
        w = variable("w", dtype, shape)
        penalty = self(w) if self.applies_to(shape) else zero_cost(w)
        (dw,) = grad(penalty, [w])
        return build([w], {"penalty": penalty, "w_grad": dw}, name=type(self).__name__)


def zero_cost(w: Value) -> Value:
    """0 of the dtype of w."""
    return constant(np.zeros((), w.dtype))


@dataclass(frozen=True)
class NoLearningPenalty(BaseLearningPenalty):
    """0.

    Examples
    --------
    >>> NoLearningPenalty().applies_to((3, 2))
    False
    """

    def __call__(self, w: Value) -> Value:
        return zero_cost(w)

    def applies_to(self, shape: Shape) -> bool:
        return False


@dataclass(frozen=True)
class ElasticLearningPenalty(BaseLearningPenalty):
    """l₁ Σ|w| + ½ l₂ Σw²; its gradient is 0 where w = 0.

    A proximal penalty is no part of the loss. After each step y of the optimizer, with the step size η, the weight is
    w = sign(y) max(|y| - η l₁, 0) / (1 + η l₂), the minimum of ½ ‖w - y‖² + η (l₁ Σ|w| + ½ l₂ Σw²). Weights that l₁
    takes to 0 are exactly 0, and no l₂ is too strong for a step size.

    Parameters
    ----------
    l1 : float
        l₁, at least 0.
    l2 : float
        l₂, at least 0.
    penalize_biases : bool
        Whether weights of fewer than two axes, usually biases and scales, are penalized.
    proximal : bool
        Whether each step of the optimizer is followed by the proximal operator, with l₁ soft thresholding, instead of
        gradients of the penalty being added to those of the loss.

    References
    ----------
    H. Zou and T. Hastie, Regularization and variable selection via the elastic net, 2005; N. Parikh and S. Boyd,
    Proximal Algorithms, 2014, section 6.5.2.

    Examples
    --------
    >>> penalty = ElasticLearningPenalty(l1=0.1, l2=0.9)
    >>> penalty.applies_to((3, 2)), penalty.applies_to((3,))
    (True, False)
    """

    l1: float = 0.0
    l2: float = 0.0
    _: KW_ONLY
    penalize_biases: bool = False
    proximal: bool = False

    def __post_init__(self) -> None:
        check_number(self, "l1", "l2", low=0)

    def __call__(self, w: Value) -> Value:
        terms = []
        if self.l1:
            terms.append(self.l1 * op.ReduceL1(w, keepdims=0))
        if self.l2:
            terms.append(0.5 * self.l2 * op.ReduceSumSquare(w, keepdims=0))
        return sum(terms[1:], terms[0]) if terms else zero_cost(w)

    def applies_to(self, shape: Shape) -> bool:
        return not self.proximal and self._chooses(shape)

    def join_rate(self, rate: BaseLearningRate, shape: Shape) -> BaseLearningRate:
        return ProximalRate(rate, self.l1, self.l2) if self.proximal and self._chooses(shape) else rate

    def _chooses(self, shape: Shape) -> bool:
        """Whether a weight of this shape is penalized, in either way."""
        return (self.l1 > 0 or self.l2 > 0) and (self.penalize_biases or len(shape) > 1)


_NAMES = {"none": NoLearningPenalty, "elastic": ElasticLearningPenalty}
_ELASTIC = frozenset({"elastic", "elasticlearningpenalty"})


def resolve_penalty(penalty: BaseLearningPenalty | type[BaseLearningPenalty] | str | None) -> BaseLearningPenalty:
    """The penalty for a name, a class or an object; no penalty for None.

    Parameters
    ----------
    penalty : BaseLearningPenalty, type, str or None
        The setting of the user.

    Returns
    -------
    BaseLearningPenalty

    Raises
    ------
    SettingError
        The name is unknown, or "elastic", whose weights are to be given.

    Examples
    --------
    >>> resolve_penalty(None)
    NoLearningPenalty()
    """
    if isinstance(penalty, Real):
        raise SettingError(f"learning_penalty: {penalty!r} is a number, and it is not said of which penalty; did you "
                           f"mean ElasticLearningPenalty(l2={penalty!r})?")
    if penalty is ElasticLearningPenalty or (isinstance(penalty, str) and penalty.lower() in _ELASTIC):
        raise SettingError("learning_penalty: 'elastic' has the weights l1 and l2, and both are 0 unless they are "
                           "given; write ElasticLearningPenalty(l1=..., l2=...).")
    return resolve_piece(BaseLearningPenalty, "none" if penalty is None else penalty, _NAMES)
