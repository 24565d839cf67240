"""Containers: modules in sequence, in a list, or by name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ortpartial.checks import to_tuple
from ortpartial.exceptions import SettingError

from ..module import Module
from .layer import check_names

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["ModuleDict", "ModuleList", "Sequential"]


class _Container(Module):
    """Modules as attributes, so that the name of each is a part of its parameters' names."""

    def __new__(cls, *args: object, **settings: object) -> Self:
        if settings and cls.__init__.__module__ == __name__:
            check_names(cls.__name__, inspect.signature(cls.__init__), args, settings)
        return super().__new__(cls)

    def _items(self) -> dict[str, Module]:
        """The modules by name."""
        return {n: m for n, m in vars(self).items() if isinstance(m, Module)}

    def _replace(self, modules: Mapping[str, Any]) -> None:
        """Hold other modules."""
        if not isinstance(modules, Mapping):
            raise SettingError(f"{type(self).__name__}: modules is a dict of modules by name, not {modules!r}.")
        for name, module in modules.items():
            if not isinstance(module, Module):
                raise SettingError(f"{type(self).__name__}: {name!r} is {module!r}, a module was expected"
                                   f"{_hint(type(self).__name__, module)}.")
            if not isinstance(name, str) or not name or "." in name or hasattr(type(self), name):
                raise SettingError(f"{type(self).__name__}: {name!r} cannot be the name of a module, as it is empty, "
                                   f"contains a dot, or is that of something else.")
        for name in self._items():
            delattr(self, name)
        for name, module in modules.items():
            setattr(self, name, module)

    def __len__(self) -> int:
        return len(self._items())


def _hint(owner: str, module: object) -> str:
    """A hint in place of an argument that is no module; may be empty."""
    if isinstance(module, type):
        return f"; write {module.__name__}()"
    if isinstance(module, (list, tuple)):
        return f"; write {owner}(*modules)"
    if isinstance(module, str):
        return "; write a layer, such as nn.ReLU()"
    if type(module).__module__.startswith("torch"):
        return "; a module of torch is exported first, as by ortpartial.torch.export"
    return "; a function of values is a module with it as its forward" if callable(module) else ""


class _Sequence(_Container):
    """Modules in an order."""

    def __iter__(self) -> Iterator[Module]:
        return iter(self._items().values())

    def __getitem__(self, index: int | slice) -> Any:
        items = list(self._items().items())
        if isinstance(index, slice):
            part = type(self).__new__(type(self))
            part._replace(dict(items[index]) if isinstance(self, Sequential) else _number(m for _, m in items[index]))
            return part
        return items[index][1]

    def __setitem__(self, index: int, module: Module) -> None:
        items = self._items()
        self._replace({**items, list(items)[index]: module})

    def __delitem__(self, index: int | slice) -> None:
        modules = list(self)
        del modules[index]
        self._replace(_number(modules))

    def append(self, module: Module) -> Self:
        """Add a module at the end.

        Parameters
        ----------
        module : Module
            The module.

        Returns
        -------
        Module
            Itself.
        """
        return self.extend([module])

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end.

        Parameters
        ----------
        modules : iterable of Module
            The modules.

        Returns
        -------
        Module
            Itself.
        """
        items = self._items()
        self._replace({**items, **_number(modules, len(items))})
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Add a module before another.

        Parameters
        ----------
        index : int
            The place of the other.
        module : Module
            The module.

        Returns
        -------
        Module
            Itself.
        """
        modules = list(self)
        modules.insert(index, module)
        self._replace(_number(modules))
        return self


def _number(modules: Iterable[object], start: int = 0) -> dict[str, object]:
    """Modules by their places."""
    return {str(i): m for i, m in enumerate(modules, start)}


class Sequential(_Sequence):
    """Modules in sequence: each takes the output of the module before it.

    Parameters
    ----------
    *modules : Module
        The modules, or a dict of them by name.

    References
    ----------
    ``torch.nn.Sequential``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).compile(nn.placeholder(["N", 4]))
    >>> len(model), [name for name, _ in model.named_parameters()]
    (3, ['0.weight', '0.bias', '2.weight', '2.bias'])
    """

    def __init__(self, *modules: Any):
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            self._replace(modules[0])
        else:
            self._replace(_number(modules))

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x


class ModuleList(_Sequence):
    """A list of modules, as an attribute of a module that calls them.

    Parameters
    ----------
    modules : iterable of Module, optional
        The modules.

    References
    ----------
    ``torch.nn.ModuleList``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    >>> [name for name, _ in layers.append(nn.Identity()).named_modules()]
    ['', '0', '1', '2', '3']
    """

    def __init__(self, modules: Iterable[Module] | None = None):
        listed = () if modules is None else to_tuple(modules)
        if listed is None:
            raise SettingError(f"ModuleList: modules is a list of modules, not {modules!r}.")
        self._replace(_number(listed))


class ModuleDict(_Container):
    """A dict of modules, as an attribute of a module that calls them.

    Parameters
    ----------
    modules : dict of str to Module, optional
        The modules by name.

    References
    ----------
    ``torch.nn.ModuleDict``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> heads = nn.ModuleDict({"mean": nn.Linear(4, 1), "variance": nn.Linear(4, 1)})
    >>> [name for name, _ in heads.named_parameters()]
    ['mean.weight', 'mean.bias', 'variance.weight', 'variance.bias']
    """

    def __init__(self, modules: Mapping[str, Module] | None = None):
        self._replace({} if modules is None else modules)

    def __getitem__(self, name: str) -> Module:
        return self._items()[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.update({name: module})

    def __delitem__(self, name: str) -> None:
        self.pop(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._items())

    def __contains__(self, name: object) -> bool:
        return name in self._items()

    def keys(self) -> Iterable[str]:
        """The names.

        Returns
        -------
        iterable of str
        """
        return self._items().keys()

    def values(self) -> Iterable[Module]:
        """The modules.

        Returns
        -------
        iterable of Module
        """
        return self._items().values()

    def items(self) -> Iterable[tuple[str, Module]]:
        """Names and modules.

        Returns
        -------
        iterable of (str, Module)
        """
        return self._items().items()

    def update(self, modules: Mapping[str, Module]) -> None:
        """Add modules, or replace modules of the same names.

        Parameters
        ----------
        modules : dict of str to Module
            The modules by name.
        """
        self._replace({**self._items(), **modules})

    def pop(self, name: str) -> Module:
        """Take a module out.

        Parameters
        ----------
        name : str
            Its name.

        Returns
        -------
        Module
        """
        items = self._items()
        module = items.pop(name)
        self._replace(items)
        return module

    def clear(self) -> None:
        """Take all modules out."""
        self._replace({})
