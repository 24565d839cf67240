"""Display of a model: a line of text, and a table."""

from models import mlp

from ortpartial.graph import build, constant, op, variable
from ortpartial.model import load


def test_one_line():
    assert repr(load(mlp(4, 1, hidden=8))) == (
        "<Model x float32[Nx4] -> y float32[Nx1]; nodes: 5, initializers: 4 (49 numbers)>")


def test_a_card():
    x = variable("a<b", "float32", ["N", 2])
    y = x
    for name in ("Exp", "Sin", "Cos", "Tan", "Abs", "Neg", "Sinh", "Cosh", "Tanh", "Tanh"):
        y = getattr(op, name)(y)
    html = load(build([x], {"y": y @ constant([[1.0], [2.0]], hint="w")}))._repr_html_()
    assert html.startswith("<details open><summary><b>Model</b></summary><table")
    assert "<details><summary>initializers</summary><pre" in html
    assert "w            float32[2x1]        2</pre>" in html
    assert "<th>inputs</th><td>a&lt;b float32[Nx2]</td>" in html
    assert "<th>nodes</th><td>11 (2 Tanh, Exp, Sin, Cos, Tan, Abs, Neg, Sinh, ...)</td>" in html
    assert "<th>initializers</th><td>1 (2 numbers)</td>" in html
