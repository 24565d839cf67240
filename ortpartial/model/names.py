"""Names of inputs, outputs and targets: a check and its error, wherever a user gives arrays by name."""

from __future__ import annotations

from collections.abc import Collection

from ortpartial.exceptions import DataError

__all__ = ["match_names"]


def match_names(expected: Collection[str], given: Collection[str], kind: str = "input") -> None:
    """Check that the given names are the expected names, in any order.

    Parameters
    ----------
    expected : collection of str
        The names that a graph has.
    given : collection of str
        The names that a user gives.
    kind : str
        The word for the named things in the error.

    Raises
    ------
    DataError
        A name is missing or unknown.

    Examples
    --------
    >>> match_names(["x", "t"], ["t", "x"])
    >>> match_names(["x", "t"], ["x", "y"])
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.DataError: Missing input: 't'. Unknown input: 'y'. Expected 'x', 't'; got 'x', 'y'.
    """
    missing = [n for n in expected if n not in given]
    unknown = [n for n in given if n not in expected]
    if not missing and not unknown:
        return
    problems = [f"{problem} {kind}{'s' if len(names) > 1 else ''}: {_quote(names)}."
                for problem, names in (("Missing", missing), ("Unknown", unknown)) if names]
    raise DataError(f"{' '.join(problems)} Expected {_quote(expected)}; got {_quote(given)}.")


def _quote(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
