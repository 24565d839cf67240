"""Hooks of callbacks, by the protocol of scikit-learn: which objects have them, and the arguments of a hook."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import FunctionType

from ortpartial.annotations import CallbackLike
from ortpartial.exceptions import SettingError

from .task_context import TaskContext

__all__ = ["HOOKS", "call_hook", "check_callbacks", "has_hooks"]

#: The methods of a callback.
HOOKS = ("setup", "on_fit_task_begin", "on_fit_task_end", "teardown")

#: Arguments that the hooks of a task may ask for, by keyword-only parameters.
_PARAMETERS = ("X", "y", "metadata", "fitted_estimator")


def has_hooks(callback: CallbackLike) -> bool:
    """Whether a callback is an object with hooks, and not a function of the optimizer.

    Parameters
    ----------
    callback : object
        An element of the setting `callbacks`.

    Returns
    -------
    bool
    """
    return hasattr(callback, "on_fit_task_end") and hasattr(callback, "setup")


def check_callbacks(callbacks: Sequence[CallbackLike]) -> None:
    """Check that objects are callbacks: objects with hooks, each once, or functions of the optimizer.

    Parameters
    ----------
    callbacks : sequence of object
        The setting `callbacks`.

    Raises
    ------
    SettingError
        A callback is a class, lacks a hook or stands there twice, or a hook asks for an unknown argument.
    """
    for i, callback in enumerate(callbacks):
        _check_callback(callback)
        if has_hooks(callback) and any(c is callback for c in callbacks[:i]):
            raise SettingError(f"callbacks has the same {type(callback).__name__} twice; give it once.")


def _check_callback(callback: CallbackLike) -> None:
    """Check that an object is a callback."""
    hooks = [h for h in HOOKS if hasattr(callback, h)]
    if not hooks:
        _check_function(callback)
        return
    name = callback.__name__ if isinstance(callback, type) else type(callback).__name__
    if isinstance(callback, type):
        raise SettingError(f"callbacks are objects, and {name} is a class; give {name}().")
    if missing := [h for h in HOOKS if h not in hooks]:
        raise SettingError(f"The callback {name} has {_join(hooks)} and lacks {_join(missing)}; a callback has the "
                           f"hooks {_join(HOOKS)}.")
    period = getattr(callback, "batches_between_calls", None)
    if period is not None and (isinstance(period, bool) or not isinstance(period, int) or period < 1):
        raise SettingError(f"batches_between_calls of the callback {name} is None or a whole number of at least 1, not "
                           f"{period!r}.")
    for hook in HOOKS[1:3]:
        if unknown := [p for p in list_parameters(getattr(callback, hook)) if p not in _PARAMETERS]:
            raise SettingError(f"{hook} of the callback {name} asks for {unknown[0]!r}; its keyword-only parameters "
                               f"are some of {_join(_PARAMETERS)}.")


def _check_function(callback: CallbackLike) -> None:
    """Check that a callback is a function of a single argument."""
    if not callable(callback):
        raise SettingError(f"callbacks are functions of the optimizer, or objects with the hooks {_join(HOOKS)}; "
                           f"{callback!r} is neither.")
    try:
        inspect.signature(callback).bind(None)
    except TypeError:
        raise SettingError(f"callbacks are functions of the optimizer; {callback!r} does not take one argument."
                           ) from None
    except ValueError:  # A function in C may have no signature.
        return


def list_parameters(hook: Callable[..., object]) -> list[str]:
    """The keyword-only parameters of a hook: the arguments it asks for.

    Parameters
    ----------
    hook : callable
        A method of a callback.

    Returns
    -------
    list of str
    """
    function = getattr(hook, "__func__", hook)
    # Other objects may be equal without being the same, or have no hash.
    read = _list_keywords if isinstance(function, FunctionType) else _list_keywords.__wrapped__
    return list(read(function))


@lru_cache
def _list_keywords(function: Callable[..., object]) -> tuple[str, ...]:
    return tuple(p.name for p in inspect.signature(function).parameters.values() if p.kind == p.KEYWORD_ONLY)


def call_hook(hook: Callable[..., object], estimator: object, context: TaskContext,
              arguments: Mapping[str, Callable[[], object]]) -> bool:
    """Call a hook of a task with the arguments it asks for.

    Parameters
    ----------
    hook : callable
        A method of a callback.
    estimator, context : object
        The arguments it always gets.
    arguments : dict of str to callable
        From the name of a parameter to the function that computes it.

    Returns
    -------
    bool
        Whether it asks to stop.
    """
    return bool(hook(estimator, context, **{p: arguments[p]() for p in list_parameters(hook)}))


def _join(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
