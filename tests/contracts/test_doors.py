"""The table of doors and capabilities: every cell is tried, and the page of the documentation says what came out."""

import pytest
from door_cells import CAPABILITIES, DOORS, NOT_YET, find_cell

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


def test_the_page_is_that_of_the_table():
    text = PAGE.read_text(encoding="utf-8")
    assert write_table(text) == text, "run make tables"


def test_every_door_answers():
    assert NOT_YET.keys() == {*DOORS}
    assert [c for names in NOT_YET.values() for c in names if c not in CAPABILITIES] == []
