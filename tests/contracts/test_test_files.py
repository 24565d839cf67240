"""Test files: every module has one of its name, each is in a group, and the README of `tests/support` is complete."""

import ast
import re
from pathlib import Path

import pytest
from groups import GROUPS, find_group
from once import ON_TRAINING
from paths import ROOT, SUPPORT, TESTS

PACKAGE = ROOT / "ortpartial"


def is_bare(path: Path) -> bool:
    """Whether a module only hands on the names of another one, which test_public_api.py holds, or names types."""
    imports = (ast.Expr, ast.Import, ast.ImportFrom)
    code = [ast.unparse(n) for n in ast.parse(path.read_text(encoding="utf-8")).body if not isinstance(n, imports)]
    return all(re.match(r"__all__ = |\w+: TypeAlias = |\w+ = TypeVar\(", line) for line in code)


def list_modules() -> set[str]:
    """The modules of the package by their paths, but for the faces of rooms, public paths and names of types."""
    paths = [p for p in PACKAGE.rglob("*.py") if not p.stem.startswith("__") and not is_bare(p)]
    return {p.relative_to(PACKAGE).as_posix() for p in paths}


def expected_file(module: str) -> Path:
    """`graph/ops.py` is tested by `tests/graph/test_ops.py`."""
    return TESTS / Path(module).parent / f"test_{Path(module).name}"


@ON_TRAINING
def test_every_module_has_its_test_file():
    assert [m for m in sorted(list_modules()) if not expected_file(m).exists()] == []


@ON_TRAINING
def test_every_support_module_is_in_the_readme():
    """In one row of its tables, and nothing else is."""
    rows = re.findall(r"^\| `(\w+)` \|", (SUPPORT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(p.stem for p in SUPPORT.glob("*.py"))


@ON_TRAINING
def test_every_test_file_has_a_test():
    pattern = re.compile(r"^\s*(async )?def test_|^test_\w+ = ", re.MULTILINE)
    empty = [p.name for p in TESTS.rglob("test_*.py") if not pattern.search(p.read_text(encoding="utf-8"))]
    assert empty == []


@ON_TRAINING
def test_every_group_is_of_folders_that_are_there():
    """Each room of tests is in one group, or runs on both runtimes."""
    listed = [path for paths in GROUPS.values() for path in paths]
    assert len(listed) == len(set(listed))
    assert [path for path in listed if not (ROOT / path).exists()] == []
    rooms = {p.parent.relative_to(ROOT).parts[1] for p in TESTS.glob("*/**/test_*.py")}
    on_both = {"execution", "recorded", "robustness", "runtime", "training"}
    assert rooms == on_both | {path.split("/")[1] for path in listed if "/" in path}


@ON_TRAINING
@pytest.mark.parametrize(("nodeid", "group"), [
    ("tests/graph/test_ops.py::test_x", "training"), ("tests/nn/layers/test_linear.py::test_x[1]", "newest"),
    ("tests/test_logs.py::test_x", "newest"), ("tests/autodiff/test_grad.py::test_x[Relu]", "newest"),
    ("tests/autodiff/rules/test_linear.py::test_x[float32-Gemm]", "training"),
    ("tests/autodiff/rules/test_linear.py::test_x[float32-MatMul]", "newest"),
    ("tests/contracts/test_rooms.py::test_imports_point_down[3]", "training")])
def test_the_group_of_a_test(nodeid, group):
    assert find_group(nodeid) == group
