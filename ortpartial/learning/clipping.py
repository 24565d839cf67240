"""Gradient clipping: gradients limited in their values or in their norm, that of each or that of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ortpartial.checks import check_choice, to_number
from ortpartial.exceptions import SettingError
from ortpartial.graph import Value, cast, constant, op

from .piece import Piece
from .validation import check_number

__all__ = ["GradientClipping", "resolve_clipping"]


@dataclass(frozen=True)
class GradientClipping(Piece):
    """g ← min(max(g, -v), v), then g ← g · min(1, c / (‖g‖ + 10⁻⁶)), with ‖g‖ = √(Σg²) over all weights, or over each.

    It applies to the gradient of the objective, with its penalty; of the mean over several batches with ``accumulate``.
    The norm is computed in float32 at least, in which the norm of float16 gradients does not overflow. Gradients of
    zero remain zero.

    Parameters
    ----------
    norm : float, optional
        c, the largest norm, more than 0; None does not limit the norm.
    value : float, optional
        v, the largest absolute value, more than 0; None does not limit the values.
    per : str
        ``"global"``: ‖g‖ is that of the gradients of all weights together, whose direction stays the same.
        ``"weight"``: each gradient has a norm of its own.

    Raises
    ------
    SettingError
        Neither `norm` nor `value` is given, a number is out of range, or `per` is unknown.

    References
    ----------
    R. Pascanu, T. Mikolov and Y. Bengio, On the difficulty of training recurrent neural networks, 2013, algorithm 1, in
    the form of ``torch.nn.utils.clip_grad_norm_`` and ``clip_grad_value_``.

    Examples
    --------
    >>> from ortpartial.graph import build, variable
    >>> from ortpartial.testing import evaluate
    >>> gradients = [variable(name, "float32", [1]) for name in "ab"]
    >>> clipped = dict(zip(["a_clipped", "b_clipped"], GradientClipping(norm=1.0)(gradients)))
    >>> result = evaluate(build(gradients, clipped), {"a": np.float32([3]), "b": np.float32([4])})
    >>> [a.round(3).tolist() for a in result.values()]
    [[0.6], [0.8]]
    >>> GradientClipping(value=0.5)
    GradientClipping(norm=None, value=0.5, per='global')
    """

    norm: float | None = None
    value: float | None = None
    per: str = "global"
    setting: ClassVar[str] = "gradient_clipping"

    def __post_init__(self) -> None:
        limits = [n for n in ("norm", "value") if getattr(self, n) is not None]
        if not limits:
            raise SettingError("GradientClipping limits nothing; give it a norm or a value, as in "
                               "GradientClipping(norm=1.0).")
        check_number(self, *limits, above=0)
        check_choice("GradientClipping: per", self.per, ("global", "weight"))

    def __call__(self, gradients: Sequence[Value]) -> list[Value]:
        """The clipped gradients of all weights."""
        if self.value is not None:
            limits = [constant(np.asarray(self.value, g.dtype)) for g in gradients]
            gradients = [op.Clip(g, -limit, limit) for g, limit in zip(gradients, limits, strict=True)]
        if self.norm is None:
            return list(gradients)
        if self.per == "weight":
            return [scaled for g in gradients for scaled in _limit_norm([g], self.norm)]
        return _limit_norm(gradients, self.norm)


def _limit_norm(gradients: Sequence[Value], norm: float) -> list[Value]:
    """The gradients times a factor, so that their common norm is not greater."""
    wide = [g.astype(np.float32) if g.dtype.itemsize < 4 else g for g in gradients]
    widest = max(wide, key=lambda g: g.dtype.itemsize)
    squares = [cast(op.ReduceSumSquare(g, keepdims=0), widest) for g in wide]
    factor = op.Min(norm / (op.Sqrt(squares[0] if len(squares) == 1 else op.Sum(*squares)) + 1e-6), 1.0)
    # A scalar in front is multiplied by the step size once for all weights: see `apply_step`.
    return [cast(cast(factor, w) * w, g) for w, g in zip(wide, gradients, strict=True)]


def resolve_clipping(clipping: GradientClipping | float | None) -> GradientClipping | None:
    """The gradient clipping of a setting: a number is the largest norm of all gradients together.

    Parameters
    ----------
    clipping : GradientClipping, float or None
        The setting of the user.

    Returns
    -------
    GradientClipping or None

    Raises
    ------
    SettingError
        It is something else, or the number is not more than 0.

    Examples
    --------
    >>> resolve_clipping(1.0)
    GradientClipping(norm=1.0, value=None, per='global')
    """
    if clipping is None or isinstance(clipping, GradientClipping):
        return clipping
    if (norm := to_number(clipping, above=0)) is not None:
        return GradientClipping(norm=norm)
    raise SettingError(f"gradient_clipping is None, a norm above 0 or a GradientClipping, as in "
                       f"GradientClipping(value=0.5), not {_describe(clipping)}.")


def _describe(choice: object) -> str:
    """A setting as it is written; a class by its name."""
    return choice.__name__ if isinstance(choice, type) else repr(choice)
