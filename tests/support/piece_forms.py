"""Pieces in every form in which users write one: formulas with one setting, their construction, and their change."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ortpartial import op
from ortpartial.learning import BaseLearningLoss, BaseLearningPenalty, BaseLearningRate, Schedule, WeightAverage

__all__ = ["FORMS", "FUNCTIONS", "KINDS", "LOSS_FORMS", "A", "B", "Form", "change", "make"]

#: Two settings.
A, B = 0.125, 0.875


def pinball(s, y, t):
    e = t - y
    return op.Max(s * e, (s - 1) * e)


#: By kind: the base, the method that is the formula, and the formula of one setting.
KINDS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "loss": (BaseLearningLoss, "__call__", pinball),
    "penalty": (BaseLearningPenalty, "__call__", lambda s, w: s * op.ReduceSumSquare(w, keepdims=0)),
    "rate": (BaseLearningRate, "update", lambda s, w, g, *, k: (s * g, ())),
    "schedule": (Schedule, "__call__", lambda s, eta0, k: eta0 * s),
    "averaging": (WeightAverage, "share", lambda s, k, start: op.Where(op.Equal(k, start + 1), np.float64(1), s)),
}


class Opaque:
    """A number that compares as tensors do: elementwise, and without a truth value."""

    __hash__ = None

    def __init__(self, s):
        self.s = np.array([s])

    def __eq__(self, other):
        return self.s == other

    def __float__(self):
        return float(self.s[0])


class TensorLike:
    """Numbers in memory of another library, which numpy reads."""

    def __init__(self, s):
        self._read = lambda: np.array([s])

    def __array__(self, dtype=None, copy=None):
        return self._read()

    def __eq__(self, other):
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")

    __hash__ = None


class Inner(BaseLearningPenalty):
    def __init__(self, s):
        self.s = s

    def __call__(self, w):
        return self.s * w


@dataclasses.dataclass(frozen=True)
class Form:
    """A form of pieces.

    Parameters
    ----------
    make : callable
        From a kind to a function of the setting, which makes a piece.
    change : callable, optional
        Changes a piece to another setting, in place.
    """

    make: Callable[[str], Callable[[float], Any]]
    change: Callable[[Any, float], None] | None = None


def _write(name: str, read: Callable[[Any], Any] = lambda piece: piece.s, **body: Any) -> Callable[..., Any]:
    """A class of any kind, whose formula reads the setting from the piece."""

    @functools.cache
    def write(kind: str) -> type:
        base, method, formula = KINDS[kind]

        def compute(self, *args, **keywords):
            return formula(read(self), *args, **keywords)

        return type(name, (base,), {method: compute, "__module__": __name__, **body})

    return write


def _decorated(name: str, frozen: bool, **options: Any) -> Callable[..., Any]:
    write = _write(name, __annotations__={"s": float}, s=0.5)
    return functools.cache(lambda kind: dataclasses.dataclass(frozen=frozen, **options)(write(kind)))


def _stored(name: str, store: Callable[[float], Any], read: Callable[[Any], Any], attribute: str = "content"
            ) -> Callable[..., Any]:
    """A class with an ordinary constructor, which stores the setting in a form of its own."""

    def __init__(self, s):
        setattr(self, attribute, store(s))

    return _write(name, lambda piece: read(getattr(piece, attribute)), __init__=__init__)


def _constructor(self, s=0.5):
    self.s = s


def _assign(piece, s):
    piece.s = s


def _store(key: Any, attribute: str = "content") -> Callable[[Any, float], None]:
    def change(piece, s):
        getattr(piece, attribute)[key] = s

    return change


def _replace(store: Callable[[float], Any]) -> Callable[[Any, float], None]:
    def change(piece, s):
        piece.content = store(s)

    return change


def _returns(s: float) -> Callable[[], float]:
    return lambda: s


def _change_cell(piece, s):
    piece.content.__closure__[0].cell_contents = s


class _Settings:
    def __init__(self, s):
        self.s = s

    def cost(self, y, t):
        return pinball(self.s, y, t)

    __call__ = cost


@dataclasses.dataclass
class _UnhashableSettings:
    s: float

    def __call__(self, y, t):
        return pinball(self.s, y, t)


class _SlottedSettings:
    __slots__ = ("s",)

    def __init__(self, s):
        self.s = s

    def __call__(self, y, t):
        return pinball(self.s, y, t)


def _closure(s):
    def cost(y, t):
        return pinball(s, y, t)

    return cost


def _set_cell(cost, s):
    cells = dict(zip(cost.__code__.co_freevars, cost.__closure__, strict=True))
    cells["s"].cell_contents = s


def _set_default(cost, s):
    cost.__defaults__ = (s,)


def _set_keyword(cost, s):
    cost.__setstate__((cost.func, cost.args, {"s": s}, cost.__dict__))


def _set_self(cost, s):
    cost.__self__.s = s


SHARED = {"s": A}


def _of_global(s):
    SHARED["s"] = s
    return _global_cost


def _global_cost(y, t):
    return pinball(SHARED["s"], y, t)


def _set_global(cost, s):
    SHARED["s"] = s


#: Classes, which every kind takes.
FORMS: dict[str, Form] = {
    "frozen dataclass": Form(_decorated("Frozen", True)),
    "frozen dataclass, eq=False": Form(_decorated("FrozenIdentity", True, eq=False)),
    "plain dataclass": Form(_decorated("Plain", False), _assign),
    "plain dataclass, eq=False": Form(_decorated("PlainIdentity", False, eq=False), _assign),
    "ordinary": Form(_write("Ordinary", __init__=_constructor), _assign),
    "private attribute": Form(_stored("Private", float, float, "_s"), lambda piece, s: setattr(piece, "_s", s)),
    "slots": Form(_write("Slots", __init__=_constructor, __slots__=("s",)), _assign),
    "array": Form(_stored("Array", lambda s: np.array([s]), lambda c: float(c[0])), _store(0)),
    "list": Form(_stored("List", lambda s: [s], lambda c: c[0]), _store(0)),
    "dict": Form(_stored("Dict", lambda s: {"s": [s]}, lambda c: c["s"][0]), lambda piece, s: _store(0)(
        type("C", (), {"content": piece.content["s"]}), s)),
    "function": Form(_stored("Function", _returns, lambda c: c()), _change_cell),
    "another piece": Form(_stored("Outer", Inner, lambda c: c.s), lambda piece, s: setattr(piece.content, "s", s)),
    "object": Form(_stored("Holder", Opaque, float), lambda piece, s: setattr(piece.content, "s", np.array([s]))),
    "tensor": Form(_stored("Tensor", TensorLike, lambda c: float(np.asarray(c)[0])), _replace(TensorLike)),
}

#: Functions, which are losses.
FUNCTIONS: dict[str, Form] = {
    "closure": Form(lambda kind: _closure, _set_cell),
    "lambda": Form(lambda kind: lambda s: lambda y, t, s=s: pinball(s, y, t), _set_default),
    "partial": Form(lambda kind: lambda s: functools.partial(pinball_last, s=s), _set_keyword),
    "callable object": Form(lambda kind: _Settings, _assign),
    "unhashable callable": Form(lambda kind: _UnhashableSettings, _assign),
    "slotted callable": Form(lambda kind: _SlottedSettings, _assign),
    "bound method": Form(lambda kind: lambda s: _Settings(s).cost, _set_self),
    "global": Form(lambda kind: _of_global, _set_global),
}


def pinball_last(y, t, s):
    return pinball(s, y, t)


LOSS_FORMS = {**FORMS, **FUNCTIONS}


def make(form: str, kind: str, s: float) -> Any:
    """A piece of a form and a kind with a setting."""
    return LOSS_FORMS[form].make(kind)(s=s)


def change(form: str, piece: Any, s: float) -> None:
    """Give a piece another setting, in place."""
    changing = LOSS_FORMS[form].change
    assert changing is not None
    changing(piece, s)
