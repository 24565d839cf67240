"""Selection of rewrites: which may apply, and which have applied, by name, for a check that looks for a faulty one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

__all__ = ["attempt", "is_selected", "select_rewrites"]


@dataclass(frozen=True)
class _Selection:
    """The rewrites that are left out, and the names of those that have applied."""

    left_out: frozenset[str] = frozenset()
    applied: set[str] = field(default_factory=set)

    def leaves_out(self, name: str) -> bool:
        """Whether a rewrite is left out."""
        return name in self.left_out or "*" in self.left_out


_SELECTION: ContextVar[_Selection | None] = ContextVar("selection", default=None)


@contextmanager
def select_rewrites(left_out: Collection[str] = ()) -> Iterator[set[str]]:
    """A context in which this thread leaves some rewrites out, and notes which of the others apply.

    Parameters
    ----------
    left_out : collection of str
        Their names; ``"*"`` stands for all.

    Yields
    ------
    set of str
        The names of rewrites that have applied so far.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> from ortpartial.rewrites import rewrite_step
    >>> x = variable("x", "float32", [8, 4])
    >>> with select_rewrites() as applied:
    ...     outputs = rewrite_step({"y": op.ReduceMean(x**2, keepdims=0)})
    >>> applied
    {'mean_of_squares'}
    """
    selection = _Selection(frozenset(left_out))
    token = _SELECTION.set(selection)
    try:
        yield selection.applied
    finally:
        _SELECTION.reset(token)


def is_selected(name: str) -> bool:
    """Whether a rewrite may apply.

    Parameters
    ----------
    name : str
        Its name.

    Returns
    -------
    bool
    """
    selection = _SELECTION.get()
    return selection is None or not selection.leaves_out(name)


def attempt(rewrite: Callable[..., object], *args: object) -> Any:
    """Call a rewrite, named by its function.

    Parameters
    ----------
    rewrite : callable
        It returns None where it does not apply.
    *args : object
        Its arguments.

    Returns
    -------
    object
        Its result; None where it is left out.
    """
    if (selection := _SELECTION.get()) is None:
        return rewrite(*args)
    name = rewrite.__name__.lstrip("_")
    if selection.leaves_out(name):
        return None
    result = rewrite(*args)
    if result is not None:
        selection.applied.add(name)
    return result
