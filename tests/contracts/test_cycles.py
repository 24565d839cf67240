"""No modules import each other in a circle, not even for types or inside of functions."""

import sys

import pytest
from once import ON_TRAINING
from paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import code_figures


@ON_TRAINING
def test_no_cycles():
    assert code_figures.find_package_cycles(code_figures.read_modules()) == []


@pytest.mark.parametrize(
    "source",
    [
        "from .b import x",
        "from . import b",
        "from ortpartial.graph.b import x",
        "import ortpartial.graph.b",
        "from ..graph import b",
        "def f():\n    from .b import x",
        "if TYPE_CHECKING:\n    from .b import x",
        "importlib.import_module('.b', __package__)",
        "import_module('ortpartial.graph.b')",
    ],
)
def test_every_kind_of_import_counts(source):
    sources = {"ortpartial.graph.a": source, "ortpartial.graph.b": "from .a import y"}
    assert code_figures.find_package_cycles(sources) == [["ortpartial.graph.a", "ortpartial.graph.b"]]


def test_faces_are_modules():
    sources = {"ortpartial.graph.__init__": "from .a import x", "ortpartial.graph.a": "from . import y",
               "ortpartial.model.__init__": "from .b import z", "ortpartial.model.b": "from ortpartial.graph import x"}
    assert code_figures.find_package_cycles(sources) == [["ortpartial.graph.__init__", "ortpartial.graph.a"]]


def test_long_and_separate_cycles():
    imports = {"a": "b", "b": "c", "c": "a", "d": "ae", "e": "d", "f": "a"}
    assert code_figures.find_cycles(imports) == [["a", "b", "c"], ["d", "e"]]


def test_chains_are_no_cycles():
    assert code_figures.find_cycles({"a": "bc", "b": "c", "c": ""}) == []
