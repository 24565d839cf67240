"""The complexity of functions, by radon's own count; `make lint` fails where one is more complex than 20.

    python -m tools.complexity
"""

import sys
from pathlib import Path

from radon.complexity import cc_visit

PACKAGE = Path(__file__).parents[1] / "ortpartial"

#: The highest complexity: cyclomatic, with `and`, `or` and comprehensions.
HIGHEST = 20

#: Functions that are more complex still, by module and name; the numbers only fall.
REMAINING = {
    "nn/entries.py:_plan": 24,
    "nn/losses.py:Loss._match": 21,
    "nn/summary.py:summarize": 22,
    "training/state_choice.py:choose_state": 21,
}


def find_complex(package: Path = PACKAGE) -> dict[str, int]:
    """The functions, methods and classes above the highest complexity, by module and name."""
    blocks = {f"{path.relative_to(package).as_posix()}:{block.fullname}": block.complexity
              for path in sorted(package.rglob("*.py")) for block in cc_visit(path.read_text(encoding="utf-8"))}
    return {name: n for name, n in blocks.items() if n > HIGHEST}


def main() -> str | None:
    """Print what is too complex; an error where there is more of it than was left."""
    excess = {name: n for name, n in find_complex().items() if n > REMAINING.get(name, HIGHEST)}
    for name, n in excess.items():
        print(f"{name} has a complexity of {n}; at most {REMAINING.get(name, HIGHEST)} is allowed: split it.")
    return "Some functions are too complex." if excess else None


if __name__ == "__main__":
    sys.exit(main())
