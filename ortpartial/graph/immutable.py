"""Immutable objects: a copy is the object itself, and a property is computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["Immutable", "cached_property"]


if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:
        """functools.cached_property without the lock that it takes before Python 3.12: values are made by thousands."""

        def __init__(self, function: Callable[[object], object]):
            self.function, self.__doc__ = function, function.__doc__

        def __get__(self, instance: object, owner: object = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.function.__name__] = self.function(instance)
            return value


class Immutable:
    """Base of immutable objects, whose copy is the object itself."""

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return self
