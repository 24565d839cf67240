"""The table of doors and capabilities: every cell is tried, and the page of the documentation has the results."""

import signal
import subprocess
import sys

import pytest
from door_cells import CAPABILITIES, DOORS, NOT_YET, Fit, OwnLoss, find_cell
from paths import environment

from ortpartial.exceptions import DataError, SettingError
from tools.door_table import PAGE, write_table

CELLS = [(door, capability) for door in DOORS for capability in CAPABILITIES]


#: How what is not there fails; another error is one of the cell.
MISSING = (TypeError, AssertionError, DataError, SettingError)


@pytest.mark.parametrize(("door", "capability"), CELLS, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_cell(door, capability, tmp_path):
    cell = find_cell(door, capability)
    if isinstance(cell, str):
        assert capability not in NOT_YET[door], "a reason, and not yet"
        assert len(cell.split()) > 3, "a reason is a sentence"
        return
    try:
        cell(tmp_path)
    except MISSING:
        if capability not in NOT_YET[door]:
            raise
    else:
        assert capability not in NOT_YET[door], "it works: take it from NOT_YET in tests/support/door_cells.py"


KILLED = """
import os, signal, sys
from pathlib import Path

import door_cells

getattr(door_cells, sys.argv[1])().begin(Path(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.parametrize("door", [d if d is OwnLoss else pytest.param(d, marks=pytest.mark.slow)
                                  for d in DOORS if issubclass(d, Fit) and "resume" not in NOT_YET[d]])
def test_a_killed_process(door, tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, door.__name__, str(tmp_path / "run")], env=environment(),
                          check=False)
    assert done.returncode == -signal.SIGKILL
    door().go_on(tmp_path / "run")


def test_the_page_is_that_of_the_table():
    text = PAGE.read_text(encoding="utf-8")
    assert write_table(text) == text, "run make tables"


def test_every_door_answers():
    assert NOT_YET.keys() == {*DOORS}
    assert [c for names in NOT_YET.values() for c in names if c not in CAPABILITIES] == []
