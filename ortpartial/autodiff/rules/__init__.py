"""Differentiation rules of the operators, a family per module; importing the package registers them."""

from importlib import import_module as _import_module
from pkgutil import iter_modules as _iter_modules

__all__ = [_module.name for _module in _iter_modules(__path__)]

for _name in __all__:
    _import_module(f"{__name__}.{_name}")
