"""Which settings may a piece of training have, such as a loss or a schedule, and which piece does a name mean?"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from ortpartial.exceptions import SettingError

__all__ = ["check_integer", "check_number", "resolve_piece"]


def check_number(
    piece: Any, *names: str, above: float | None = None, low: float | None = None, below: float | None = None
) -> None:
    """Settings of a frozen piece as Python floats, once they are known to be finite and in their range.

    Parameters
    ----------
    piece : dataclass
        The object whose settings are looked at.
    *names : str
        The settings.
    above, low, below : float, optional
        The range: more than `above`, at least `low`, less than `below`.

    Raises
    ------
    SettingError
        A setting is no finite number or out of its range.
    """
    bounds = (("more than", above), ("at least", low), ("less than", below))
    expected = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
    for name in names:
        given = getattr(piece, name)
        # True is a number to Python, and never meant as one here.
        if not isinstance(given, bool) and isinstance(given, Real) and math.isfinite(given):
            value = float(given)
            above_all = (above is None or value > above) and (low is None or value >= low)
            if above_all and (below is None or value < below):
                object.__setattr__(piece, name, value)  # only its type changes, before anybody has seen it
                continue
        raise SettingError(f"{type(piece).__name__}: {name} is {given!r}, a finite number"
                           f"{' ' + expected if expected else ''} was expected.")


def check_integer(piece: Any, *names: str, low: int) -> None:
    """Settings of a frozen piece as Python integers, once they are known to be whole numbers in their range.

    Parameters
    ----------
    piece : dataclass
        The object whose settings are looked at.
    *names : str
        The settings.
    low : int
        The least that they may be.

    Raises
    ------
    SettingError
        A setting is no whole number or too small.
    """
    for name in names:
        given = getattr(piece, name)
        if isinstance(given, bool) or not isinstance(given, Integral) or given < low:
            raise SettingError(f"{type(piece).__name__}: {name} is {given!r}, a whole number at least {low} was "
                               f"expected.")
        object.__setattr__(piece, name, int(given))


def resolve_piece(kind: type, given: Any, table: Mapping[str, type]) -> Any:
    """The piece that a user means by an object, a class or a name.

    Parameters
    ----------
    kind : type
        Base class of what is wanted; its ``setting`` is how the user calls it.
    given : kind, type or str
        An object is itself, a class its object with default settings, a name one of `table` or of its classes.
    table : dict of str to type
        Classes by their short names; case does not matter.

    Returns
    -------
    kind

    Raises
    ------
    SettingError
        Nothing is called so; the message lists what is.

    Examples
    --------
    >>> resolve_piece(Mapping, "nothing", {"nothing": dict})
    {}
    """
    if isinstance(given, kind):
        return given
    if isinstance(given, type) and issubclass(given, kind):
        return given()
    known = {**table, **{cls.__name__: cls for cls in table.values()}}
    setting = getattr(kind, "setting", kind.__name__)
    if isinstance(given, str):
        lower = {name.lower(): cls for name, cls in known.items()}
        if given.lower() in lower:
            return lower[given.lower()]()
        close = difflib.get_close_matches(given.lower(), lower, n=1)
        guess = next((f" Did you mean {name!r}?" for name in known if close and name.lower() == close[0]), "")
        raise SettingError(f"{setting}: {given!r} is not known.{guess} Known are {', '.join(known)}; "
                           f"an object of a subclass of {kind.__name__} will do, too.")
    raise SettingError(f"{setting}: {given!r} is a {type(given).__name__}; a name ({', '.join(table)}) or an object of "
                       f"a subclass of {kind.__name__} was expected.")
