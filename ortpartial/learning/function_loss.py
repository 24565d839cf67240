"""A loss given as a Python function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ortpartial.exceptions import SettingError
from ortpartial.graph import Value

from .base_loss import BaseLearningLoss

__all__ = ["FunctionLearningLoss"]


@dataclass(frozen=True)
class FunctionLearningLoss(BaseLearningLoss):
    """ℓ(y, t) = f(y, t), with a Python function f of the prediction and the target, two values.

    ``learning_loss=f`` is short for it. Two function losses are equal if their functions are the same, or have the same
    code and read the same from closures, defaults and globals. They can be pickled where their functions can: pickle
    finds a function by its name in a module, cloudpickle writes any.

    Parameters
    ----------
    function : callable
        From prediction and target to the cost of each element, or of each row. It may use Python's operators, the
        functions of numpy and `op`.

    Raises
    ------
    SettingError
        The function does not take two arguments, or does not return a value.

    Examples
    --------
    >>> import numpy as np
    >>> loss = FunctionLearningLoss(lambda y, t: np.log(np.cosh(y - t)))
    >>> [o.name for o in loss.build_onnx_function(shape=["N", 1]).graph.output]
    ['loss', 'y_grad']
    """

    function: Callable[[Value, Value], Value]

    def __post_init__(self) -> None:
        try:
            inspect.signature(self.function).bind(None, None)
        except ValueError:
            pass  # Functions written in C need not tell their signature.
        except TypeError:
            raise SettingError(f"learning_loss: {self.name} does not take two arguments, the prediction and the "
                               f"target.") from None

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self.function, "__name__", repr(self.function))

    def __call__(self, y: Value, t: Value) -> Value:
        cost: Any = self.function(y, t)
        if not isinstance(cost, Value):
            raise SettingError(f"learning_loss: {self.name} returned {cost!r}, and not an expression of the prediction "
                               f"and the target, two values.")
        return cost

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"
