"""Figures of the code, room by room: lines, uses of `Any`, and modules that import each other in a circle.

    python -m tools.code_figures

Lines are those that hold code: no docstring, no comment, no blank line.
"""

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "ortpartial"

#: Tokens that are no code.
_BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@lru_cache(maxsize=1)  # Several figures of a module follow each other.
def _parse(source: str) -> ast.Module:
    return ast.parse(source)


def read_modules(package: Path = PACKAGE) -> dict[str, str]:
    """The sources of a package by dotted name; that of a face ends in `__init__`."""
    return {".".join(path.relative_to(package.parent).with_suffix("").parts): path.read_text(encoding="utf-8")
            for path in sorted(package.rglob("*.py"))}


def find_room(module: str) -> str:
    """The room of a module; those beside the rooms are of the room "ortpartial"."""
    top, *rest = module.split(".")
    return rest[0] if len(rest) > 1 else top


def count_lines(source: str) -> int:
    """The lines that hold code."""
    docstrings: set[int] = set()
    for node in ast.walk(_parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstrings |= _list_lines(node.body[0].lineno, node.body[0].end_lineno)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _BLANK:
            code |= _list_lines(token.start[0], token.end[0])
    return len(code - docstrings)


def _list_lines(first: int, last: int | None) -> set[int]:
    return set(range(first, (last or first) + 1))


def count_any(source: str) -> int:
    """How often `Any` is written, but where it is imported."""
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(_parse(source)))


def list_imports(module: str, source: str, modules: Iterable[str]) -> set[str]:
    """The modules among some that a module imports, wherever it does so: on top, in a function, for types alone."""
    every = frozenset(modules)
    *here, _ = module.split(".")
    targets: set[str] = set()
    for node in ast.walk(_parse(source)):
        match node:
            case ast.Import(names=names):
                targets |= {name.name for name in names}
            case ast.ImportFrom(module=origin, names=names, level=level):
                start = ".".join([*(here[: len(here) - level + 1] if level else []), *([origin] if origin else [])])
                # A name of a package is a module of it, or stands in its face.
                targets |= {inner if _find(inner := f"{start}.{name.name}", every) else start for name in names}
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                targets.add(".".join([*here, name.lstrip(".")]) if name.startswith(".") else name)
    return {other for t in targets if (other := _find(t, every)) is not None} - {module}


def _find(name: str, modules: frozenset[str]) -> str | None:
    """The module of a name, or the face of the package of a name."""
    return next((n for n in (name, f"{name}.__init__") if n in modules), None)


def find_cycles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The groups of modules of which each imports all others, directly or not: Tarjan's algorithm."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        stack.append(module)
        for other in sorted(imports.get(module, ())):
            if other not in numbers:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], numbers[other])
        if lowest[module] == numbers[module]:
            start = stack.index(module)
            cycle, stack[start:] = stack[start:], []
            if len(cycle) > 1:
                cycles.append(sorted(cycle))

    for module in imports:
        if module not in numbers:
            visit(module)
    return sorted(cycles)


def find_package_cycles(sources: Mapping[str, str]) -> list[list[str]]:
    """The circles among modules, whose sources are given by name."""
    return find_cycles({module: list_imports(module, source, sources) for module, source in sources.items()})


def count_by_room(sources: Mapping[str, str]) -> Iterator[tuple[str, int, int]]:
    """Of each room its name, its lines of code, and how often `Any` is written."""
    lines, uses = Counter[str](), Counter[str]()
    for module, source in sources.items():
        lines[find_room(module)] += count_lines(source)
        uses[find_room(module)] += count_any(source)
    yield from ((room, lines[room], uses[room]) for room in sorted(lines))


def main() -> None:
    """Print the figures."""
    sources = read_modules()
    rooms = list(count_by_room(sources))
    total = ("all", sum(lines for _, lines, _ in rooms), sum(uses for _, _, uses in rooms))
    print(f"{'room':14} {'lines':>6} {'Any':>5}  in 1,000 lines")
    for room, lines, uses in [*rooms, total]:
        print(f"{room:14} {lines:6} {uses:5} {1000 * uses / lines:7.1f}")
    for cycle in find_package_cycles(sources):
        print("cycle:", *cycle)


if __name__ == "__main__":
    main()
