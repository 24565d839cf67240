"""Settings: parameters by name as in scikit-learn, and attributes that hold them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass, replace
from types import MethodType
from typing import Any

from ortpartial.annotations import Entries, Estimator, Settings
from ortpartial.exceptions import SettingError
from ortpartial.execution import HISTORY
from ortpartial.learning import Piece, describe_unknown, list_settings, replace_settings

__all__ = ["PROGRESS", "FormerName", "ModelSetting", "Progress", "Setting", "SettingMethod", "check_names",
           "collect_params", "list_fields", "replace_nested"]

#: The progress of a training: attributes of the optimizer, and of the `Loop` that holds them.
PROGRESS = {**HISTORY, "_rng": "rng"}


class Setting:
    """An attribute of an optimizer that is a field of its `FitSettings`, validated on assignment."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Estimator, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance.training.loop.settings, self.name)

    def __set__(self, instance: Estimator, value: object) -> None:
        instance.training.loop.settings = replace(instance.training.loop.settings, **{self.name: value})


class FormerName:
    """A former name of an attribute, which warns until its removal.

    Parameters
    ----------
    today : str
        The name of today.
    removal : str
        The version that no longer has it.
    """

    def __init__(self, today: str, *, removal: str):
        self.today, self.removal = today, removal

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Estimator, owner: type | None = None) -> object:
        if instance is None:
            return self
        self._warn(instance)
        return getattr(instance, self.today)

    def __set__(self, instance: Estimator, value: object) -> None:
        self._warn(instance)
        setattr(instance, self.today, value)

    def _warn(self, instance: Estimator) -> None:
        warnings.warn(f"{type(instance).__name__}: {self.name!r} is a former name of an attribute, and goes in version "
                      f"{self.removal}; its name is {self.today}.", FutureWarning, stacklevel=3)


class SettingMethod:
    """A method with the name of a setting: calling it is the method, assigning to it is `set_params`.

    Parameters
    ----------
    function : callable
        The method.
    """

    def __init__(self, function: Callable[..., object]):
        self.function = function

    def __get__(self, instance: Estimator, owner: type | None = None) -> Any:
        return self.function if instance is None else MethodType(self.function, instance)

    def __set__(self, instance: Estimator, value: object) -> None:
        instance.set_params(**{self.function.__name__: value})


class ModelSetting:
    """An attribute of an optimizer that its graphs depend on: assigning it is `set_params`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Estimator, owner: type | None = None) -> Any:
        return self if instance is None else instance.training.settings[self.name]

    def __set__(self, instance: Estimator, value: object) -> None:
        instance.set_params(**{self.name: value})


class Progress:
    """An attribute of an optimizer that its `Loop` holds under another name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = PROGRESS[name]

    def __get__(self, instance: Estimator, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance.training.loop, self.name)

    def __set__(self, instance: Estimator, value: object) -> None:
        setattr(instance.training.loop, self.name, value)


def collect_params(instance: Estimator, arguments: Entries, deep: bool) -> Settings:
    """Collect the arguments of a constructor by name, as `get_params` of scikit-learn does.

    Parameters
    ----------
    instance : object
        The constructed object, with an attribute for every argument.
    arguments : dict of str to object
        Arguments as they were passed, where the attribute holds another form.
    deep : bool
        Whether to include the settings of pieces, as ``learning_rate__eta0``.

    Returns
    -------
    dict of str to object
    """
    names = [n for n in inspect.signature(type(instance).__init__).parameters if n != "self"]
    params = {n: arguments[n] if n in arguments else getattr(instance, n) for n in names}
    if deep:
        for n in names:
            params.update(list_fields(n, _get_piece(instance, n)))
    return params


def _get_piece(instance: Estimator, name: str) -> Any:
    """The value of a setting; None for a model, as the fields of a `Model` are no settings."""
    return None if name == "model" else getattr(instance, name, None)


def list_fields(path: str, value: object) -> Settings:
    """List the settings of a piece or a dataclass, and theirs, by name; nothing for other values.

    Parameters
    ----------
    path : str
        The name of the piece, the prefix of its settings.
    value : object
        A piece, a dataclass, or anything else.

    Returns
    -------
    dict of str to object
    """
    listed = {}
    for name, setting in list_settings(value).items():
        listed[f"{path}__{name}"] = setting
        listed.update(list_fields(f"{path}__{name}", setting))
    return listed


def check_names(instance: Estimator, names: Iterable[str]) -> None:
    """Check that names are names of settings.

    Parameters
    ----------
    instance : object
        An object with `get_params`.
    names : iterable of str
        Names of settings, of the form ``a``, ``a__b`` or ``a__b__c``.

    Raises
    ------
    SettingError
        A name is unknown.
    """
    settings = instance.get_params()
    for name in names:
        if name not in settings:
            raise SettingError(describe_unknown(name, type(instance).__name__, [n for n in settings if "__" not in n]))


def replace_nested(instance: Estimator, params: Entries) -> Settings:
    """Copy attributes that are pieces or dataclasses, with some of their settings replaced.

    Parameters
    ----------
    instance : object
        The object that has the attributes; it is not changed.
    params : dict of str to object
        New values of fields, by names of the form ``attribute__field`` or ``attribute__field__field``; a field is
        replaced before its own fields are.

    Returns
    -------
    dict of str to object
        The copies by the names of the attributes.

    Raises
    ------
    SettingError
        There is no such field.
    """
    new: Settings = {}
    for name in sorted(params, key=lambda n: n.count("__")):
        attribute, *path = name.split("__")
        piece = new.get(attribute, _get_piece(instance, attribute))
        if not isinstance(piece, Piece) and not is_dataclass(piece):
            raise SettingError(describe_unknown(name, type(instance).__name__, instance.get_params(deep=False)))
        new[attribute] = _replace_field(attribute, piece, path, params[name])
    return new


def _replace_field(owner: str, piece: Any, path: Sequence[str], value: Any) -> Any:
    """A copy of a dataclass with another value of a field, or of a field of a field."""
    name, *rest = path
    names = list_settings(piece)
    if name not in names:
        raise SettingError(describe_unknown(name, f"{owner}={type(piece).__name__}", names))
    if rest:
        value = _replace_field(f"{owner}__{name}", getattr(piece, name), rest, value)
    return replace_settings(piece, **{name: value})
