"""Every rewrite lists its cases by number in its docstring, and each number has a test."""

import ast
import importlib
import pkgutil
import re

import pytest
from paths import ROOT

from ortpartial import rewrites
from ortpartial.rewrites import REWRITES

MODULES = [importlib.import_module(f"ortpartial.rewrites.{m.name}") for m in pkgutil.iter_modules(rewrites.__path__)]
#: Lines such as "3. `fold_sizes`: Concat ...".
CASE = re.compile(r"^ *(\d+)\. `(\w+)`: .+", re.MULTILINE)


def list_cases(name):
    """The numbers and names of cases in a docstring."""
    return [(int(number), case) for number, case in CASE.findall(REWRITES[name].apply.__doc__)]


def list_tests(name):
    """The keys of the table NUMBERED in the test file of a rewrite."""
    module = REWRITES[name].apply.__module__.rpartition(".")[2]
    tree = ast.parse((ROOT / "tests" / "rewrites" / f"test_{module}.py").read_text(encoding="utf-8"))
    (table,) = (node.value for node in tree.body if isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == "NUMBERED")
    texts = [node.value for node in ast.walk(table) if isinstance(node, ast.Constant)]
    return [text for text in texts if str(text).startswith(f"{name} ")]


@pytest.mark.parametrize("name", REWRITES)
def test_cases_are_numbered_in_the_docstring(name):
    cases = list_cases(name)
    assert cases == list(enumerate(REWRITES[name].cases, 1))


@pytest.mark.parametrize("name", REWRITES)
def test_every_number_has_a_test(name):
    assert list_tests(name) == [f"{name} {number}" for number, _ in list_cases(name)]


def test_every_module_with_a_row_in_the_readme_has_a_rewrite():
    readme = (ROOT / "ortpartial" / "rewrites" / "README.md").read_text(encoding="utf-8")
    modules = re.findall(r"^\| `(\w+)`", readme, re.MULTILINE)
    assert {*modules} == {r.apply.__module__.rpartition(".")[2] for r in REWRITES.values()}
