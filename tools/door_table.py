"""The table of doors and capabilities in docs/explanations/doors.md: `make tables` tries every cell and writes it."""

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from door_cells import CAPABILITIES, DOORS, NOT_YET, find_cell  # noqa: E402

PAGE = ROOT / "docs" / "explanations" / "doors.md"
START, END = "<!-- written by `make tables` -->\n", "<!-- until here -->\n"


def mark(door: type, capability: str, reasons: list[str]) -> str:
    """What a cell says: yes, not yet, or the number of a reason, which is added to the list where it is new."""
    cell = find_cell(door, capability)
    if not isinstance(cell, str):
        return "not yet" if capability in NOT_YET[door] else "yes"
    if cell not in reasons:
        reasons.append(cell)
    return f"– ({reasons.index(cell) + 1})"


def write_table(text: str) -> str:
    """The page with the table of today, and the reasons below it."""
    reasons: list[str] = []
    rows = [[name, *(mark(door, capability, reasons) for door in DOORS)] for capability, name in CAPABILITIES.items()]
    head = [["", *(door.title for door in DOORS)], ["---"] * (len(DOORS) + 1)]
    lines = [f"| {' | '.join(row)} |\n" for row in [*head, *rows]]
    counted = [cell for row in rows for cell in row[1:]]
    yes, later = counted.count("yes"), counted.count("not yet")
    summary = (f"Of {len(counted)} cells, {yes} work, {later} do not yet, and {len(counted) - yes - later} make no "
               f"sense:\n\n")
    notes = [f"{i}. {reason[0].upper()}{reason[1:]}.\n" for i, reason in enumerate(reasons, 1)]
    before, after = text.split(START)[0], text.split(END)[1]
    return "".join([before, START, *lines, "\n", summary, *notes, END, after])


def try_cells() -> list[str]:
    """The cells of which the list of those that are not there yet says something else than the code."""
    wrong = []
    for door in DOORS:
        for capability in CAPABILITIES:
            cell = find_cell(door, capability)
            if isinstance(cell, str):
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    cell(Path(folder))
                    works = True
                except Exception:
                    works = False
            if works == (capability in NOT_YET[door]):
                wrong.append(f"{door.__name__}.{capability} {'works' if works else 'fails'}")
    return wrong


if __name__ == "__main__":
    if wrong := try_cells():
        sys.exit("NOT_YET in tests/support/door_cells.py is wrong:\n" + "\n".join(wrong))
    PAGE.write_text(write_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
