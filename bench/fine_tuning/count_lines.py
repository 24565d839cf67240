"""How many lines the fine-tuning of an encoder takes in several libraries: validation, early stopping that restores the
best weights, a progress bar, checkpoints, resume, the trained model and a plot of the losses.

Each `with_<library>.py` is a script that runs, formatted by `ruff format --line-length 88`. Lines that are not empty
count after the model and the data are there, imports included:

    python bench/fine_tuning/count_lines.py
"""

import ast
from pathlib import Path

#: The comment after which lines count.
START = "# -- counted from here\n"


def count(path: Path) -> tuple[int, int]:
    """The lines and the statements of a script."""
    _, code = path.read_text().split(START)
    statements = sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(code)))
    return sum(bool(line.strip()) for line in code.splitlines()), statements


def main() -> dict[str, tuple[int, int]]:
    """Print a table, the shortest first, and return it."""
    scripts = Path(__file__).parent.glob("with_*.py")
    counts = {path.stem.removeprefix("with_"): count(path) for path in scripts}
    counts = dict(sorted(counts.items(), key=lambda item: item[1]))
    print("library      lines  statements")
    for library, (lines, statements) in counts.items():
        print(f"{library:<12} {lines:>5}  {statements:>10}")
    return counts


if __name__ == "__main__":
    main()
