"""Base class of losses, penalties, optimizers and schedules: compared, shown and replaced by their settings."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from reprlib import recursive_repr
from typing import Any, TypeVar

from ortpartial.annotations import Settings
from ortpartial.arguments import check_arguments
from ortpartial.checks import check_flag

from .aliases import NamedSettings
from .fingerprint import fingerprint, list_attributes
from .validation import PieceType

__all__ = ["Piece", "is_settled", "list_settings", "replace_settings"]

Instance = TypeVar("Instance")


class Piece(NamedSettings, metaclass=PieceType):
    """An object of settings with a formula: a dataclass, frozen or not, or a class with an ordinary constructor.

    Two pieces are equal if they have the same class and equal contents: see `fingerprint`.

    Examples
    --------
    >>> class Scaled(Piece):
    ...     def __init__(self, factors):
    ...         self.factors = factors
    >>> Scaled([1.0]), Scaled([1.0]) == Scaled([1.0]), Scaled([1.0]) == Scaled([2.0])
    (Scaled(factors=[1.0]), True, False)
    """

    @classmethod
    def _check_arguments(cls, args: Sequence[object], settings: Mapping[str, object]) -> None:
        super()._check_arguments(args, settings)
        if cls.__init__.__module__.startswith("ortpartial."):
            check_arguments(cls.__init__, [None, *args], settings, f"{cls.__name__}: ", [check_flag])

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return fingerprint(self) == fingerprint(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(fingerprint(self))

    @recursive_repr()
    def __repr__(self) -> str:
        hidden = [f.name for f in _list_fields(self) if not f.repr]
        shown = {**list_settings(self), **list_attributes(self)}
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in shown.items() if n not in hidden)})"


def is_settled(piece: object) -> bool:
    """Whether a piece never changes: a piece of the library, of numbers and strings.

    Parameters
    ----------
    piece : object
        A piece, or a setting of it.

    Returns
    -------
    bool

    Examples
    --------
    >>> from ortpartial.learning import FunctionLearningLoss, LearningRateSGD
    >>> is_settled(LearningRateSGD(0.1)), is_settled(FunctionLearningLoss(lambda y, t: abs(y - t)))
    (True, False)
    """
    if piece is None or isinstance(piece, (bool, int, float, str)):
        return True
    if isinstance(piece, tuple):
        return all(map(is_settled, piece))
    return type(piece).__module__.startswith("ortpartial.") and isinstance(piece, Piece) and all(
        map(is_settled, vars(piece).values()))


def list_settings(piece: object) -> Settings:
    """List the arguments of the constructor of a piece, or of a dataclass, as its attributes hold them.

    Parameters
    ----------
    piece : object
        A piece or a dataclass; other objects have no settings.

    Returns
    -------
    dict of str to object
        Empty where a piece does not keep each argument under its name.

    Examples
    --------
    >>> from ortpartial.learning import ElasticLearningPenalty
    >>> list_settings(ElasticLearningPenalty(l2=0.1))
    {'l1': 0.0, 'l2': 0.1, 'penalize_biases': False}
    """
    if isinstance(piece, type) or not (isinstance(piece, Piece) or dataclasses.is_dataclass(piece)):
        return {}
    if not isinstance(piece, Piece) or "__dataclass_params__" in vars(type(piece)):
        return {f.name: getattr(piece, f.name) for f in _list_fields(piece) if f.init}
    if type(piece).__init__ is object.__init__:
        return {}
    names = _list_arguments(piece)
    return {n: getattr(piece, n) for n in names} if all(hasattr(piece, n) for n in names) else {}


def _list_arguments(piece: Piece) -> list[str]:
    """The names of the arguments of an ordinary constructor; none where it takes any number of positional arguments."""
    parameters = list(inspect.signature(type(piece).__init__).parameters.values())[1:]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return []
    names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):  # They are for the base class, a dataclass.
        names += [f.name for f in _list_fields(piece) if f.init and f.name not in names]
    return names


def _list_fields(piece: object) -> Sequence[dataclasses.Field[Any]]:
    """The fields of an object whose class, or a base of it, is a dataclass."""
    return dataclasses.fields(piece) if dataclasses.is_dataclass(piece) else ()


def replace_settings(piece: Instance, **changes: object) -> Instance:
    """Copy a piece with other settings, as `dataclasses.replace` does.

    Parameters
    ----------
    piece : object
        A piece or a dataclass.
    **changes : object
        Settings, or other attributes that its formula reads.

    Returns
    -------
    object
        Made by its constructor; where that does not take the settings, a copy with other attributes.

    Examples
    --------
    >>> from ortpartial.learning import ElasticLearningPenalty
    >>> replace_settings(ElasticLearningPenalty(l2=0.1), l2=0.2)
    ElasticLearningPenalty(l1=0.0, l2=0.2, penalize_biases=False)
    """
    if not isinstance(piece, Piece) or "__dataclass_params__" in vars(type(piece)):
        new = dataclasses.replace(piece, **changes)  # type: ignore[type-var]
    elif changes.keys() <= (settings := list_settings(piece)).keys():
        new = type(piece)(**{**settings, **changes})
    else:
        new = copy.copy(piece)
        for name, value in changes.items():
            object.__setattr__(new, name, value)
    present = list_attributes(new)
    for name, value in list_attributes(piece).items():  # attributes assigned after the constructor
        if name not in present:
            object.__setattr__(new, name, value)
    return new
