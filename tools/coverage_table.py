"""The page of coverage, written by `make coverage` from the JSON of coverage.py, which must hold enough lines.

    python -m tools.coverage_table coverage.json docs/coverage.md
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

#: The share of the package's lines that tests must run.
LEAST = 0.97
PAGE = """# Coverage of the tests

The lines of the package that `make test` runs, on both runtimes together, in all processes that it starts. Lines that
cannot run on the machine of the tests, such as those for CUDA, are marked in the code with the reason and do not count.
`make coverage` measures, writes this page, and fails below {least:.0%}.

| room | lines | of them run | share |
|---|---:|---:|---:|
{rows}
"""


def count(files: dict[str, dict]) -> dict[str, tuple[int, int]]:
    """Of each room, and of all, how many lines there are and how many of them ran."""
    rooms: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for name, file in files.items():
        _, *folders, _ = Path(name).parts
        lines, run = file["summary"]["num_statements"], file["summary"]["covered_lines"]
        for room in (folders[0] if folders else "ortpartial", "all"):
            rooms[room] = (rooms[room][0] + lines, rooms[room][1] + run)
    total = rooms.pop("all")
    return {**dict(sorted(rooms.items())), "all": total}


def write_page(rooms: dict[str, tuple[int, int]]) -> str:
    """The page of these counts; shares are rounded down, so that none looks like enough that is not."""
    shares = {room: 1000 * run // max(lines, 1) / 10 for room, (lines, run) in rooms.items()}
    rows = [f"| {room} | {lines} | {run} | {shares[room]}% |" for room, (lines, run) in rooms.items()]
    return PAGE.format(least=LEAST, rows="\n".join(rows))


def main(measured: str, page: str) -> str | None:
    """Write the page; what is wrong, if something is."""
    rooms = count(json.loads(Path(measured).read_text(encoding="utf-8"))["files"])
    Path(page).write_text(write_page(rooms), encoding="utf-8")
    lines, run = rooms["all"]
    print(f"{run} of {lines} lines, {run / lines:.2%}: {page}")
    return None if run >= LEAST * lines else f"Tests must run {LEAST:.0%} of the lines."


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
