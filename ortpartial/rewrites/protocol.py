"""Protocol of rewrites: numbered cases, reports of which have applied and how often, and a selection by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import ParamSpec, TypeVar

from ortpartial.logs import logger

__all__ = ["REWRITES", "Rewrite", "RewriteReport", "attempt", "count_case", "discard_cases", "is_selected", "numbered",
           "select_rewrites"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Rewrite:
    """A function from a graph to an equal graph, and the cases that its docstring lists by number.

    Parameters
    ----------
    apply : callable
        The function.
    cases : tuple of str
        Their names, in the order of their numbers.
    """

    apply: Callable[..., object]
    cases: tuple[str, ...]


#: All rewrites by name, filled by `numbered`.
REWRITES: dict[str, Rewrite] = {}


@dataclass(frozen=True)
class RewriteReport:
    """Cases of a rewrite that have applied to a graph, and in how many places.

    Parameters
    ----------
    rewrite : str
        The name of the rewrite.
    counts : dict of str to int
        The number of places of each of its cases, in the order of their numbers.

    Examples
    --------
    >>> print(RewriteReport("simplify", {"fold_shape": 2, "fold_sizes": 0, "fold_constants": 1}))
    simplify: 2 x fold_shape (case 1), 1 x fold_constants (case 3)
    """

    rewrite: str
    counts: Mapping[str, int]

    @property
    def applied(self) -> list[str]:
        """The cases that have applied at least once."""
        return [case for case, n in self.counts.items() if n]

    def __str__(self) -> str:
        cases = (f"{n} x {case} (case {i})" for i, (case, n) in enumerate(self.counts.items(), 1) if n)
        return f"{self.rewrite}: {', '.join(cases)}"


@dataclass(frozen=True)
class _Selection:
    """The cases that are left out, and the reports of rewrites that have changed something."""

    left_out: frozenset[str] = frozenset()
    reports: list[RewriteReport] = field(default_factory=list)

    def leaves_out(self, name: str) -> bool:
        """Whether a case is left out."""
        return name in self.left_out or "*" in self.left_out


_SELECTION: ContextVar[_Selection | None] = ContextVar("selection", default=None)
#: How often each case of the rewrite that is running has applied.
_COUNTS: ContextVar[dict[str, int] | None] = ContextVar("counts", default=None)


def numbered(*cases: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """A decorator for a rewrite whose docstring lists its cases by number.

    Its changes are logged at level DEBUG, in a line a call, and noted in the context of `select_rewrites`.

    Parameters
    ----------
    *cases : str
        The names of the cases, in the order of their numbers.

    Returns
    -------
    callable

    Examples
    --------
    >>> @numbered("zero", "one")
    ... def spell(digits):
    ...     for digit in digits:
    ...         count_case("one" if digit else "zero")
    ...     return ["one" if digit else "zero" for digit in digits]
    >>> with select_rewrites() as reports:
    ...     spell([1, 0, 1])
    ['one', 'zero', 'one']
    >>> print(*reports)
    spell: 1 x zero (case 1), 2 x one (case 2)
    >>> del REWRITES["spell"]
    """
    def register(rewrite: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @wraps(rewrite)
        def apply(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            counts = dict.fromkeys(cases, 0)
            token = _COUNTS.set(counts)
            try:
                result = rewrite(*args, **kwargs)
            finally:
                _COUNTS.reset(token)
            if any(counts.values()):
                report = RewriteReport(rewrite.__name__, counts)
                logger.debug("rewrite %s", report)
                if (selection := _SELECTION.get()) is not None:
                    selection.reports.append(report)
            return result

        REWRITES[rewrite.__name__] = Rewrite(apply, cases)
        return apply

    return register


def count_case(case: str, places: int = 1) -> None:
    """Report that a case of the rewrite that is running has applied.

    Parameters
    ----------
    case : str
        Its name.
    places : int
        In how many places.

    Raises
    ------
    KeyError
        The rewrite has no such case.
    """
    if (counts := _COUNTS.get()) is not None:
        counts[case] += places


def discard_cases() -> None:
    """Report nothing of the rewrite that is running, as its result is not used."""
    for case in (counts := _COUNTS.get() or {}):
        counts[case] = 0


@contextmanager
def select_rewrites(left_out: Collection[str] = ()) -> Iterator[list[RewriteReport]]:
    """A context in which this thread leaves some cases of rewrites out, and collects reports of the others.

    Parameters
    ----------
    left_out : collection of str
        The names of cases; ``"*"`` stands for all. Cases without which a model would compute something else, such as
        the cases of training mode, are not left out.

    Yields
    ------
    list of RewriteReport
        A report for each rewrite that has changed something so far, in their order.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> from ortpartial.rewrites import rewrite_step
    >>> x = variable("x", "float32", [8, 4])
    >>> with select_rewrites() as reports:
    ...     outputs = rewrite_step({"y": op.ReduceMean(x**2, keepdims=0)})
    >>> [report.applied for report in reports]
    [['mean_of_squares']]
    """
    selection = _Selection(frozenset(left_out))
    token = _SELECTION.set(selection)
    try:
        yield selection.reports
    finally:
        _SELECTION.reset(token)


def is_selected(name: str) -> bool:
    """Whether a case may apply.

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


def attempt(cases: Iterable[Callable[..., Result | None]], *args: object) -> Result | None:
    """Call cases of a rewrite in turn, until one applies, and count it.

    Parameters
    ----------
    cases : iterable of callable
        Functions that return None where they do not apply; without its first underscore, the name of a function is the
        name of the case.
    *args : object
        Their arguments.

    Returns
    -------
    object
        The result of the first that applies and is not left out; None if there is none.
    """
    for case in cases:
        name = case.__name__.lstrip("_")
        if is_selected(name) and (result := case(*args)) is not None:
            count_case(name)
            return result
    return None
