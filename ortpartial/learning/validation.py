"""Validation of the settings of losses, penalties, optimizers and schedules, and look-up of these by name."""

from __future__ import annotations

import warnings
from abc import ABCMeta
from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from typing import Any

from ortpartial.checks import check_real, is_whole
from ortpartial.exceptions import SettingError

from .aliases import CHOICES, suggest

__all__ = ["PieceType", "check_integer", "check_number", "resolve_piece"]


class PieceType(ABCMeta):
    """The metaclass of losses, penalties, optimizers and schedules, which adds its methods to those of dataclasses.

    ``dataclass`` writes ``__eq__``, ``__hash__`` and ``__repr__`` into a class that does not have them, which know its
    fields alone: each class has the methods of its base. ``dataclass(frozen=True)`` writes a ``__setattr__``: in its
    place, assigning a setting says how it is changed.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Half(metaclass=PieceType):
    ...     setting = "learning_loss"
    ...     factor: float = 0.5
    >>> Half().factor = 1.0  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    dataclasses.FrozenInstanceError: Half is immutable, ... as set_params(learning_loss__factor=1.0) does.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, object], **settings: object) -> PieceType:
        cls = super().__new__(mcs, name, bases, namespace, **settings)
        for method in ("__eq__", "__hash__", "__repr__"):
            if method not in vars(cls):
                type.__setattr__(cls, method, getattr(cls, method))
        return cls

    def __setattr__(cls, name: str, value: object) -> None:
        super().__setattr__(name, _refuse_assignment if name == "__setattr__" else value)


def _refuse_assignment(piece: Any, name: str, value: object) -> None:
    """``__setattr__`` of a piece whose class is a frozen dataclass, or derived from such a class."""
    parameters = vars(type(piece)).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        object.__setattr__(piece, name, value)
        return
    path = {"schedule": "learning_rate__schedule"}.get(piece.setting, piece.setting)
    advice = (f"make another one, {type(piece).__name__}({name}={value!r})." if path == "initializer" else
              f"give the optimizer another one, as set_params({path}__{name}={value!r}) does.")
    raise FrozenInstanceError(f"{type(piece).__name__} is immutable, and {name} cannot be assigned; {advice}")


def check_number(
    piece: object, *names: str, above: float | None = None, low: float | None = None, below: float | None = None,
    high: float | None = None
) -> None:
    """Check that settings are finite numbers in a range, and convert them to Python floats.

    Parameters
    ----------
    piece : dataclass
        The object that holds the settings; its fields are replaced although it is frozen.
    *names : str
        The names of the settings.
    above, low, below, high : float, optional
        The range: more than `above`, at least `low`, less than `below`, at most `high`.

    Raises
    ------
    SettingError
        A setting is not a finite number or out of range.
    """
    for name in names:
        number = check_real(f"{type(piece).__name__}: {name}", getattr(piece, name), above=above, low=low, below=below,
                             high=high)
        object.__setattr__(piece, name, number)


def check_integer(piece: object, *names: str, low: int | None = None) -> None:
    """Check that settings are integers, of at least `low` if that is not None, and convert them to Python integers.

    Parameters
    ----------
    piece : dataclass
        The object that holds the settings; its fields are replaced although it is frozen.
    *names : str
        The names of the settings.
    low : int, optional
        The least allowed value.

    Raises
    ------
    SettingError
        A setting is not an integer or too small.
    """
    for name in names:
        value = getattr(piece, name)
        if not is_whole(value, low):
            raise SettingError(f"{type(piece).__name__}: {name} is {value!r}, a whole number"
                               f"{'' if low is None else f' at least {low}'} was expected.")
        if abs(int(value)) > 2**62:
            raise SettingError(f"{type(piece).__name__}: {name} is beyond 64 bits; a whole number of at most 2**62 in "
                               f"size was expected.")
        object.__setattr__(piece, name, int(value))


def _construct(setting: str, choice: type) -> Any:
    """An object of a class, with its defaults; a warning names the object that is to be written instead."""
    try:
        piece = choice()
    except TypeError:
        raise SettingError(f"{setting} is the class {choice.__name__}, which needs settings; give an object, as "
                           f"{choice.__name__}(...).") from None
    warnings.warn(f"{setting} is the class {choice.__name__}, taken with its defaults; write {choice.__name__}(): "
                  f"version 0.3 refuses classes.", FutureWarning, stacklevel=4)
    return piece


def resolve_piece(kind: type, choice: object, table: Mapping[str, type]) -> Any:
    """The loss, penalty, optimizer or schedule for an object, a class or a name.

    Parameters
    ----------
    kind : type
        The base class; its ``setting`` names the setting in errors.
    choice : kind, type or str
        An object is returned as it is, a class is constructed with its defaults and a `FutureWarning`, a name is a key
        of `table` or the name of a class in it.
    table : dict of str to type
        Classes by short name, of which case is ignored.

    Returns
    -------
    kind

    Raises
    ------
    SettingError
        The name is unknown, and the message lists all names, or the choice has another type.

    Examples
    --------
    >>> resolve_piece(Mapping, "nothing", {"nothing": dict})
    {}
    """
    if isinstance(choice, kind):
        return choice
    setting = getattr(kind, "setting", kind.__name__)
    if isinstance(choice, type) and issubclass(choice, kind):
        return _construct(setting, choice)
    # Two names of a class are known, of which the first is listed.
    names = [n for i, (n, cls) in enumerate(table.items()) if cls not in list(table.values())[:i]]
    if not isinstance(choice, str):
        # A class or an object of another library, torch.optim.Adam for example, has a name that tells the meaning.
        other = choice if isinstance(choice, type) else type(choice)
        meant = "" if other.__module__ == "builtins" else suggest(other.__name__, table, CHOICES.get(setting, {}))
        guess = f" Did you mean {meant}?" if meant else ""
        what = repr(choice) if other.__module__ == "builtins" else f"{other.__module__}.{other.__name__}"
        raise SettingError(f"{setting}: {what} is a {type(choice).__name__}; a name ({', '.join(names)}) or an object "
                           f"of a subclass of {kind.__name__} was expected.{guess}")
    classes = {**table, **{cls.__name__: cls for cls in table.values()}}
    for name, cls in classes.items():
        if name.lower() == choice.lower():
            return cls()
    meant = suggest(choice, classes, CHOICES.get(setting, {}))
    guess = f" Did you mean {meant}?" if meant else ""
    raise SettingError(f"{setting}: {choice!r} is not known.{guess} Known are {', '.join(names)}, or an object of a "
                       f"subclass of {kind.__name__}.")
