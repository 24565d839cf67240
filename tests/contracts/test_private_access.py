"""No class reaches into another's private attributes: attributes that a module uses of another have public names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ortpartial

ROOT = Path(ortpartial.__file__).parent

#: Names of other libraries that are used in this package, too: of named tuples, which are public, and of torch.
_FOREIGN = {"_C", "_buffers", "_modules", "_replace"}


def _list_definitions(tree: ast.Module) -> set[str]:
    """The private names that a module defines: functions, classes, variables and attributes."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # __slots__ and keys of `vars`
    return {n for n in names if n.startswith("_") and not n.startswith("__")}


def _is_own(node: ast.expr) -> bool:
    """Whether an object is that of the method, or its class or base."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def list_accesses(tree: ast.Module, elsewhere: set[str]) -> Iterator[tuple[int, str]]:
    """The lines and texts of accesses to private attributes that other modules define, and this one does not."""
    own = _list_definitions(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in elsewhere - own and not _is_own(node.value):
            yield node.lineno, ast.unparse(node)


@cache
def _read_trees() -> dict[str, ast.Module]:
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in ROOT.rglob("*.py")}


@cache
def _list_private() -> set[str]:
    """The private names of the whole package."""
    return set().union(*(_list_definitions(tree) for tree in _read_trees().values()))


def _find(module: str) -> list[str]:
    accesses = list_accesses(_read_trees()[module], _list_private() - _FOREIGN)
    return [f"{module}:{line}: {text}" for line, text in accesses]


@pytest.mark.parametrize("room", sorted({module.split("/")[0] for module in _read_trees()}))
def test_no_module_reads_private_attributes_of_another(room):
    assert [access for module in _read_trees() if module.split("/")[0] == room for access in _find(module)] == []


def test_an_access_is_found():
    tree = ast.parse("class A:\n    def f(self, other):\n        return self._x, other._x, other._y, super()._x\n")
    assert [text for _, text in list_accesses(tree, {"_x", "_y"})] == ["other._x", "other._y"]
    defined = ast.parse("class A:\n    def f(self, other):\n        self._x = 1\n        return other._x\n")
    assert list(list_accesses(defined, {"_x"})) == []
