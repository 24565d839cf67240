"""Former methods: names of onnxcustom, the library before this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from ortpartial.learning import OPTIMIZER_HABITS, FormerAttributes

__all__ = ["FormerMethods"]


class _HasState(Protocol):
    def get_state(self, kind: str = "weight") -> list[Any]: ...


class FormerMethods(FormerAttributes):
    """Methods of an optimizer under former names, as a base class."""

    _habits: ClassVar = {**OPTIMIZER_HABITS, **FormerAttributes._habits}

    def get_full_state(self: _HasState, kind: str | Sequence[str] = "weight") -> list[Any]:
        """`get_state` under a former name, of a kind or of several.

        Parameters
        ----------
        kind : str or sequence of str
            ``"weight"``, ``"optimizer"``, whose former name is ``"grad"``, or ``"buffer"``.

        Returns
        -------
        list of numpy.ndarray, or list of them
            The result of `get_state`, for each kind where several are given; `set_state` takes it. There are no empty
            places for the inputs of the model in it.

        Raises
        ------
        SettingError
            The kind is unknown.
        """
        if isinstance(kind, str):
            return self.get_state(kind)
        return [self.get_state(k) for k in kind]
