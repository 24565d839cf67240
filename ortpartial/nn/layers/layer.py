"""Base of layers: settings are checked by their annotations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ortpartial.checks import check_element_type, check_flag, check_real, check_whole

from ..module import Module

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Layer"]

_CHECKS: Mapping[str, Callable[[str, object], object]] = {
    "bool": check_flag, "int": check_whole, "float": check_real, "DTypeLike": check_element_type}


class Layer(Module):
    """A module of this library, which refuses flags, numbers and dtypes of another type before its constructor runs.

    A setting of ``int`` is whole, of ``float`` finite, and one of ``int | None`` may be None. The constructor of a
    class that is derived elsewhere checks its own arguments.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.Linear(3, 2, bias="no")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.SettingError: Linear: bias is True or False, not 'no'.
    """

    def __new__(cls, *args: object, **settings: object) -> Self:
        if (args or settings) and cls.__init__.__module__.startswith(f"{__package__}."):
            signature = inspect.signature(cls.__init__)
            try:
                arguments = signature.bind_partial(None, *args, **settings).arguments
            except TypeError:  # raised by the constructor
                arguments = {}
            for name, value in arguments.items():
                kind, _, other = str(signature.parameters[name].annotation).partition(" | ")
                if kind in _CHECKS and (not other or (other == "None" and value is not None)):
                    _CHECKS[kind](f"{cls.__name__}: {name}", value)
        return super().__new__(cls)
