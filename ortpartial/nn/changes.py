"""How often modules have changed in what is written into a graph, so that a step need not look at each part."""

from __future__ import annotations

__all__ = ["count_changes", "note_change"]

_count = 0


def note_change() -> None:
    """Note that a mode, a part, an optimizer or what is trained has changed, of any module."""
    global _count
    _count += 1


def count_changes() -> int:
    """The number of changes so far."""
    return _count
