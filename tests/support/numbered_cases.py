"""A numbered case of a rewrite, which has to be in the report of the changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ortpartial.rewrites import REWRITES, select_rewrites

Result = TypeVar("Result")


def check_case(case: str, run: Callable[[], Result]) -> Result:
    """What `run` returns, in which a rewrite applies a case, such as "simplify 2", and reports it."""
    name, number = case.split()
    assert name in REWRITES
    with select_rewrites() as reports:
        result = run()
    counts = [list(report.counts.values()) for report in reports if report.rewrite == name]
    assert any(c[int(number) - 1] for c in counts), [str(report) for report in reports]
    return result
