"""`Any` is for objects that may truly be anything: at most 15 in 1,000 lines of code."""

import sys

import pytest
from once import ON_TRAINING
from paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import code_figures

#: How often it may be written in 1,000 lines of the rooms that are not below.
SHARE = 15

#: How often it is written in rooms that have more; the numbers only fall.
REMAINING = {"training_info": 45}

#: And in the whole package.
TOTAL = 520


@ON_TRAINING
def test_share_of_any():
    rooms = {room: (lines, uses) for room, lines, uses in code_figures.count_by_room(code_figures.read_modules())}
    assert {room: rooms[room][1] for room, most in REMAINING.items() if room in rooms and rooms[room][1] > most} == {}
    lines, uses = (sum(counts) for counts in zip(*(n for room, n in rooms.items() if room not in REMAINING),
                                                 strict=True))
    assert 1000 * uses <= SHARE * lines
    assert sum(uses for _, uses in rooms.values()) <= TOTAL


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        ("from typing import Any", 0),
        ("x: Any = 1", 1),
        ("def f(x: Any, *y: list[Any]) -> Any: ...", 3),
        ("# Any\n'''Any'''\nAnything = any", 0),
    ],
)
def test_uses_are_counted(source, uses):
    assert code_figures.count_any(source) == uses


def test_lines_are_counted():
    source = '"""Doc\n\nstring."""\n\n# Comment.\nx = """\ntext\n"""\n\n\ndef f():\n    """Doc."""\n    return (1,\n' \
             "            2)  # two\n"
    assert code_figures.count_lines(source) == 6
