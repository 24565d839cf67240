"""Test files: every module has one of its name, and the README of `tests/support` names every module there."""

import ast
import re
from pathlib import Path

from once import ON_TRAINING
from paths import ROOT, SUPPORT, TESTS

PACKAGE = ROOT / "ortpartial"

#: Modules without a test file, by their rooms. It only gets shorter: whoever writes a file takes the name out.
WITHOUT: dict[str, tuple[str, ...]] = {
    "estimator/callbacks": ("base",),
    "estimator": ("context", "former_methods", "hooks", "loss_data", "parts", "pickling", "view"),
    "estimator/sklearn": ("compat",),
    "nn": ("losses", "optimizer", "placeholders", "structure", "trace", "training_model", "writing"),
    "training": ("agent_engine", "ahead", "counting", "engine_selection", "epoch_engine", "names", "spec",
                 "step_engine", "update"),
    "training_info": ("checker", "graph_call", "graphs", "steps"),
}


def is_public_path(path: Path) -> bool:
    """Whether a module only hands on the names of another one, which test_public_api.py holds."""
    source = path.read_text(encoding="utf-8")
    return "import *" in source and all(isinstance(n, (ast.Expr, ast.ImportFrom)) for n in ast.parse(source).body)


def list_modules() -> set[str]:
    """The modules of the package by their paths, but for the faces of rooms and public paths."""
    paths = [p for p in PACKAGE.rglob("*.py") if not p.stem.startswith("__") and not is_public_path(p)]
    return {p.relative_to(PACKAGE).as_posix() for p in paths}


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
def test_every_test_file_has_a_test():
    pattern = re.compile(r"^\s*(async )?def test_|^test_\w+ = ", re.MULTILINE)
    empty = [p.name for p in TESTS.rglob("test_*.py") if not pattern.search(p.read_text(encoding="utf-8"))]
    assert empty == []
