"""A count of changes of modules that concern their graphs, so that a step need not look at each part."""

from __future__ import annotations

__all__ = ["count_changes", "note_change"]

_count = 0


def note_change() -> None:
    """Note a change of a mode, a part, an optimizer or the trained weights, of any module."""
    global _count
    _count += 1


def count_changes() -> int:
    """The number of changes so far."""
    return _count
