"""Test files: every module has one of its name, and the README of `tests/support` names every module there."""

import re
from pathlib import Path

import pytest
from once import ON_TRAINING
from paths import ROOT, SUPPORT, TESTS

PACKAGE = ROOT / "ortpartial"

#: Modules without a test file, by their rooms. It only gets shorter: whoever writes the file takes the name out.
WITHOUT: dict[str, tuple[str, ...]] = {
}


def list_modules() -> set[str]:
    """The modules of the package by their paths, but for the faces of rooms."""
    return {str(p.relative_to(PACKAGE)) for p in PACKAGE.rglob("*.py") if not p.stem.startswith("__")}


def expected_file(module: str) -> Path:
    """`graph/ops.py` is tested by `tests/graph/test_ops.py`."""
    return TESTS / Path(module).parent / f"test_{Path(module).name}"


@ON_TRAINING
def test_every_module_has_its_test_file():
    exceptions = {f"{room}/{name}.py" for room, names in WITHOUT.items() for name in names}
    without = {m for m in list_modules() if not expected_file(m).exists()}
    assert sorted(without - exceptions) == [], "write tests/<room>/test_<module>.py"
    assert sorted(exceptions - without) == [], "take them out of WITHOUT: they have a test file, or are gone"


@ON_TRAINING
def test_every_support_module_is_in_the_readme():
    """In one row of its tables, and nothing else is."""
    rows = re.findall(r"^\| `(\w+)` \|", (SUPPORT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(p.stem for p in SUPPORT.glob("*.py"))


@ON_TRAINING
@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda p: p.stem)
def test_files_that_test(path):
    """A test file has a test, and its docstring says of what."""
    source = path.read_text(encoding="utf-8")
    assert re.search(r"^\s*(async )?def test_|^test_\w+ = ", source, re.MULTILINE)
