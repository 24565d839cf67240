"""Overrides: a user's methods in place of the steps of a loop, and at the beginning and the end of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from ortpartial.annotations import Data

__all__ = ["NO_OVERRIDES", "Overrides", "find_overrides"]


@dataclass(frozen=True)
class Overrides:
    """Methods that replace methods of a loop; None for its own, which are faster.

    Attributes
    ----------
    train_step : callable or None
        From a batch to its loss.
    validation_step : callable or None
        From a batch to its mean loss, or to several numbers by name, "loss" among them.
    on_epoch_begin : callable or None
        Is called before the callbacks.
    on_epoch_end : callable or None
        Is called before the callbacks; True ends the fit.
    """

    train_step: Callable[[Data], float] | None = None
    validation_step: Callable[[Data], float | Mapping[str, float]] | None = None
    on_epoch_begin: Callable[[], object] | None = None
    on_epoch_end: Callable[[], object] | None = None


def find_overrides(instance: object, base: type) -> Overrides:
    """Find the methods that an object overrides.

    Parameters
    ----------
    instance : object
        The object.
    base : type
        The class whose methods call the loop's own.

    Returns
    -------
    Overrides

    Examples
    --------
    >>> class Base:
    ...     def train_step(self, batch): ...
    >>> class Mine(Base):
    ...     def train_step(self, batch): ...
    >>> find_overrides(Mine(), Base).train_step is None, find_overrides(Base(), Base).train_step is None
    (False, True)
    """
    if type(instance) is base and _NAMES.isdisjoint(vars(instance)):
        return NO_OVERRIDES
    found = {n: getattr(instance, n) for n in _NAMES if hasattr(instance, n)}
    return Overrides(**{n: f for n, f in found.items() if getattr(f, "__func__", f) is not vars(base).get(n)})


#: The methods that can be overridden.
_NAMES = frozenset(f.name for f in fields(Overrides))

#: None of them is: one object for all fits, as a short one takes microseconds.
NO_OVERRIDES = Overrides()
