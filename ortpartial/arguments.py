"""Arguments of public calls: checked by the annotations of their parameters."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar, cast

from ortpartial.checks import check_element_type, check_flag, check_names, check_path, check_real, check_whole, to_tuple
from ortpartial.exceptions import SettingError

__all__ = ["check_arguments", "checked"]

Function = TypeVar("Function", bound="Callable[..., Any]")
Check = Callable[[str, object], object]


def _check_string(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise SettingError(f"{name} is a string, not {value!r}.")


def _check_mapping(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise SettingError(f"{name} is a dict by name, not {value!r}.")


def _check_bytes(name: str, value: object) -> None:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise SettingError(f"{name} is bytes, not {value!r}.")


def _check_list(name: str, value: object) -> None:
    if to_tuple(value) is None:
        raise SettingError(f"{name} is a list, not {value!r}.")


def _check_axes(name: str, value: object) -> None:
    if not hasattr(value, "get_xaxis"):
        raise SettingError(f"{name} is None or axes of matplotlib, not {value!r}.")


_CHECKS: Mapping[str, Check] = {
    "bool": check_flag, "int": check_whole, "float": check_real, "DTypeLike": check_element_type,
    "str": _check_string, "str | os.PathLike[str]": check_path, "bytes": _check_bytes, "Axes": _check_axes,
    "str | Sequence[str]": check_names, "str | Collection[str]": check_names, "Collection[str]": check_names,
    "str | Iterable[str]": check_names, "Sequence": _check_list, "Collection": _check_list, "Iterable": _check_list,
    "Mapping": _check_mapping, "dict": _check_mapping}


def _remove_brackets(kind: str) -> str:
    """A type without its parameters."""
    while (shorter := re.sub(r"\[[^][]*\]", "", kind)) != kind:
        kind = shorter
    return kind


@functools.cache
def _list_checks(call: Callable[..., object]) -> Mapping[str, tuple[Check, bool]]:
    """The checks of parameters by name, and whether None is allowed."""
    checks = {}
    for p in inspect.signature(call).parameters.values():
        kind = re.sub(r" \| None$", "", str(p.annotation))
        plain = _remove_brackets(kind)
        # Seeds may be generators, which to_generator takes.
        if p.name != "random_state" and (check := _CHECKS.get(kind, _CHECKS.get(plain))) is not None:
            checks[p.name] = check, kind != p.annotation
    return checks


def check_arguments(call: Callable[..., object], args: Sequence[object], settings: Mapping[str, object],
                    owner: str = "", kinds: Collection[Check] = ()) -> None:
    """Check arguments by the annotations of a function or a constructor; arguments without such types are let through.

    Parameters
    ----------
    call : callable
        The function.
    args, settings : sequence and mapping
        Arguments without a name and with one; unknown arguments are left to Python.
    owner : str
        The text before the name of an argument in a message.
    kinds : collection of callable, optional
        The checks that are made, by default all.

    Raises
    ------
    SettingError
        An argument is of another type: a flag, a number, a dtype, a path, a string, names, a list, or a dict.

    Examples
    --------
    >>> def plot(bins: int = 50, log: bool = False): ...
    >>> check_arguments(plot, [50], {"log": "no"})
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.SettingError: log is True or False, not 'no'.
    """
    checks = _list_checks(call)
    for name, value in (*zip(inspect.signature(call).parameters, args, strict=False), *settings.items()):
        if name in checks:
            check, is_optional = checks[name]
            if not (is_optional and value is None) and (not kinds or check in kinds):
                check(f"{owner}{name}", value)


def checked(function: Function) -> Function:
    """Decorate a function, so that its arguments are checked by their annotations: see `check_arguments`.

    Parameters
    ----------
    function : callable
        The function, or the constructor of a class.

    Returns
    -------
    callable
    """

    @functools.wraps(function)
    def call(*args: object, **settings: object) -> object:
        check_arguments(function, args, settings)
        return function(*args, **settings)

    return cast(Function, call)
