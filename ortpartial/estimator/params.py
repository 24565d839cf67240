"""Which settings does an optimizer have? `Configurable` reads and changes them by name, as scikit-learn does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from ortpartial.exceptions import SettingError

__all__ = ["Configurable"]


class Configurable:
    """Settings of a constructor that can be read, changed and copied by their names.

    Attributes
    ----------
    _given : dict of str to object
        Settings as they were given, where the attribute of the same name, or a private one, holds what they mean.
    """

    _given: dict[str, Any]
    max_iter: int
    batch_size: int
    shuffle: bool
    init: str
    random_state: int | np.random.Generator | None
    warm_start: bool
    validation_every: float
    callbacks: tuple[Callable[[Any], Any], ...]
    timeout: float | None
    verbose: int
    exc: bool

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings by name.

        Parameters
        ----------
        deep : bool
            Whether those of loss, penalty and rate are among them, as ``learning_rate__eta0``.

        Returns
        -------
        dict of str to object
        """
        names = [n for n in inspect.signature(type(self).__init__).parameters if n != "self"]
        found = {n: self._given[n] if n in self._given else getattr(self, n) for n in names}
        if deep:
            for n in names:
                piece = getattr(self, n, None)
                if is_dataclass(piece):
                    found.update({f"{n}__{f.name}": getattr(piece, f.name) for f in fields(piece) if f.init})
        return found

    def set_params(self, **params: Any) -> Any:
        """Change settings by name; what has been trained stays.

        Parameters
        ----------
        **params : object
            Any that `get_params` knows. With another model, training starts anew. A weight that is no longer among
            `weights_to_train` goes back to what the model holds.

        Returns
        -------
        object
            The object itself.

        Raises
        ------
        SettingError
            A name is unknown, or a value is not allowed.
        """
        whole = {n: v for n, v in params.items() if "__" not in n}
        self._know(whole)
        if whole:
            self._change(whole)
        parts: dict[str, dict[str, Any]] = {}
        self._know(params)
        for n in params.keys() - whole.keys():
            piece, _, name = n.partition("__")
            parts.setdefault(piece, {})[name] = params[n]
        if parts:
            self._change({piece: replace(getattr(self, piece), **new) for piece, new in parts.items()})
        return self

    def _know(self, names: Iterable[str]) -> None:
        """Raise an error for a name that is no setting."""
        known = self.get_params()
        if unknown := [n for n in names if n not in known]:
            own = ", ".join(n for n in known if "__" not in n)
            raise SettingError(f"{unknown[0]!r} is no setting of {type(self).__name__}; its settings are {own}, and "
                               f"those of the pieces, such as learning_rate__eta0.")

    def _change(self, params: Mapping[str, Any]) -> None:
        """Take settings that are known by name."""
        raise NotImplementedError


def validate_settings(
    *,
    max_iter: int,
    batch_size: int,
    shuffle: bool,
    init: str,
    random_state: int | np.random.Generator | None,
    warm_start: bool,
    validation_every: float,
    callbacks: Sequence[Callable[[Any], Any]],
    timeout: float | None,
    verbose: int,
    exc: bool,
) -> dict[str, Any]:
    """Settings that neither the model nor a graph depends on, each in its range."""
    if init not in ("model", "random"):
        raise SettingError(f"init is 'model' or 'random', not {init!r}.")
    if not _is_positive(validation_every):
        raise SettingError(f"validation_every is a share of max_iter or a number of epochs, not {validation_every!r}.")
    if timeout is not None and not _is_positive(timeout):
        raise SettingError(f"timeout is None or a number of seconds above 0, not {timeout!r}.")
    if not isinstance(callbacks, Iterable):
        raise SettingError(f"callbacks is a sequence of functions of the optimizer, not {callbacks!r}.")
    if wrong := [c for c in callbacks if not callable(c)]:
        raise SettingError(f"callbacks are functions of the optimizer; {wrong[0]!r} cannot be called.")
    try:
        np.random.default_rng(random_state)
    except (TypeError, ValueError):
        raise SettingError(f"random_state is None, a seed from 0 on or a Generator, not {random_state!r}.") from None
    return {
        "max_iter": _whole("max_iter", max_iter), "batch_size": _whole("batch_size", batch_size), "shuffle": shuffle,
        "init": init, "random_state": random_state, "warm_start": warm_start, "validation_every": validation_every,
        "callbacks": tuple(callbacks), "timeout": timeout, "verbose": verbose, "exc": exc,
    }


def _whole(name: str, number: Any) -> int:
    """A setting that counts something."""
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 1:
        raise SettingError(f"{name} is a whole number of at least 1, not {number!r}.")
    return int(number)


def _is_positive(number: Any) -> bool:
    """Whether this is a finite number above 0."""
    real = isinstance(number, (int, float, np.number)) and not isinstance(number, bool)
    return bool(real and 0 < number < np.inf)
