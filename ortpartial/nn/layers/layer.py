"""Base of layers: settings are checked by their annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortpartial.arguments import check_arguments

from ..module import Module

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Layer"]


class Layer(Module):
    """A module of this library, which refuses flags, numbers and dtypes of another type before its constructor runs.

    A setting of ``int`` is whole, of ``float`` finite, and a setting of ``int | None`` may be None. The constructor of
    a class that is derived elsewhere checks its own arguments.

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
            check_arguments(cls.__init__, [None, *args], settings, f"{cls.__name__}: ")
        return super().__new__(cls)
