"""The tree of initializers: where they are in it, and how it fits the lines and columns there are."""

import pytest

from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.model.load import load
from ortpartial.model.tree import Leaf, count_modules, draw_tree, place_initializers


def leaf(name, size=6, is_trained=True, note=""):
    *modules, last = name.split(".")
    return Leaf((*(f"{m}." for m in modules), last), "float32[2x3]", size, is_trained, note)


LAYERS = [leaf("net.embedding.weight"), *(leaf(f"net.layers.{i - 1}.{part}.{kind}", 1000 * i, i > 1) for i in (1, 2)
                                          for part in ("query", "value") for kind in ("weight", "bias")),
          leaf("head", 1, False, "a number that Mul reads")]


def test_modules_are_indented():
    assert draw_tree(LAYERS) == [
        "initializer         type            numbers",
        "net                 9 initializers   12,006  trained: 8,006",
        "  embedding.weight  float32[2x3]          6  trained",
        "  layers            8 initializers   12,000  trained: 8,000",
        "    0               4 initializers    4,000  not trained",
        "      query         2 initializers    2,000  not trained",
        "        weight      float32[2x3]      1,000",
        "        bias        float32[2x3]      1,000",
        "      value         2 initializers    2,000  not trained",
        "        weight      float32[2x3]      1,000",
        "        bias        float32[2x3]      1,000",
        "    1               4 initializers    8,000  trained",
        "      query         2 initializers    4,000  trained",
        "        weight      float32[2x3]      2,000  trained",
        "        bias        float32[2x3]      2,000  trained",
        "      value         2 initializers    4,000  trained",
        "        weight      float32[2x3]      2,000  trained",
        "        bias        float32[2x3]      2,000  trained",
        "head                float32[2x3]          1  a number that Mul reads"]


@pytest.mark.parametrize(("depth", "lines"), [(1, 3), (2, 5), (3, 7), (4, 11), (5, 19), (9, 19)])
def test_depth(depth, lines):
    drawn = draw_tree(LAYERS, depth=depth)
    is_folded = drawn[-1] == f"(modules of {depth} out of 5 levels)"
    assert (is_folded, len(drawn) - is_folded) == (depth < 5, lines)


def test_long_models_are_folded():
    leaves = [leaf(f"net.layers.{i}.{part}.{kind}") for i in range(12) for part in ("query", "key", "value")
              for kind in ("weight", "bias")]
    assert len(draw_tree(leaves)) == 1 + 1 + 12 * 4 + 1
    assert len(draw_tree([leaf(f"a{i}.weight") for i in range(99)])) == 100
    assert len(draw_tree([leaf(f"a{i}.{kind}") for i in range(99) for kind in "wb"])) == 101


@pytest.mark.parametrize("width", [80, 100, 120])
def test_lines_fit(width):
    name = ".".join(["a_module_of_a_long_name"] * 6)
    leaves = [leaf(f"{name}.{n}", 10**9, False, "a note that is longer than what is left of the line " * 2)
              for n in ("weight", "bias")]
    lines = draw_tree(leaves, width=width)
    assert all(len(line) <= width for line in lines)
    assert lines[1].startswith("a_module_of_a_l")
    assert "..." in lines[1]
    assert lines[2].startswith("  weight  ")


def test_places():
    x = variable("x", "float32", ["N", 2])
    w, v, u = (constant([[1.0, i], [2.0, 3.0]], hint=n) for i, n in enumerate(["a.fc.weight", "model/dense/W", "u"]))
    model = build([x], {"y": op.Tanh(x @ w) @ v @ u @ u})
    nodes = [n for n in model.graph.node if "u" in n.input]
    nodes[0].name, nodes[1].name = "/b/inner/MatMul", "/c/MatMul"
    loaded = load(model)
    assert place_initializers(model.graph, loaded.main_names) == {
        "a.fc.weight": ("a.", "fc.", "weight"), "model/dense/W": ("model/", "dense/", "W"), "u": ("b.", "inner.", "u")}
    assert count_modules(model.graph, loaded.initializers) == {"a.fc.weight": 1, "model/dense/W": 1, "u": 2}


def test_two_initializers_at_one_place():
    lines = draw_tree([leaf("a.w"), leaf("a.w"), leaf("a.b")])
    assert [line.split()[0] for line in lines[1:]] == ["a", "w", "w'", "b"]
