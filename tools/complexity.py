"""The complexity of functions, by radon's own count; `make lint` fails where one is more complex than 20.

    python -m tools.complexity
"""

import sys
from pathlib import Path

from radon.complexity import cc_visit

PACKAGE = Path(__file__).parents[1] / "ortpartial"

#: The highest complexity: cyclomatic, with `and`, `or` and comprehensions.
HIGHEST = 20


def find_complex(package: Path = PACKAGE) -> dict[str, int]:
    """The functions, methods and classes above the highest complexity, by module and name."""
    blocks = {f"{path.relative_to(package).as_posix()}:{block.fullname}": block.complexity
              for path in sorted(package.rglob("*.py")) for block in cc_visit(path.read_text(encoding="utf-8"))}
    return {name: n for name, n in blocks.items() if n > HIGHEST}


def main() -> str | None:
    """Print what is too complex; an error where there is any."""
    excess = find_complex()
    for name, n in excess.items():
        print(f"{name} has a complexity of {n}; at most {HIGHEST} is allowed: split it.")
    return "Some functions are too complex." if excess else None


if __name__ == "__main__":
    sys.exit(main())
