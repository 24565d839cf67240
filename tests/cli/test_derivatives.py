"""Derivatives that are written as models."""

import json

import onnx
import pytest

from ortpartial import hessian_model, hvp_model, jacobian_model, jvp_model
from ortpartial.cli import main


@pytest.mark.parametrize(("command", "words", "settings", "function"), [
    ("jvp", "--wrt x W1", {"wrt": ["x", "W1"]}, jvp_model),
    ("jvp", "--wrt x --directions 3", {"wrt": ["x"], "directions": 3}, jvp_model),
    ("jacobian", "--wrt x --per-row --mode forward", {"wrt": ["x"], "per_row": True, "mode": "forward"},
     jacobian_model),
    ("hessian", "--wrt W2 --outputs y", {"wrt": ["W2"], "outputs": ["y"]}, hessian_model),
    ("hvp", "", {}, hvp_model),
], ids=["jvp", "directions", "jacobian", "hessian", "hvp"])
@pytest.mark.filterwarnings("ignore:The Hessian is zero")
def test_derivatives(at, capsys, command, words, settings, function):
    assert main([command, "mlp.onnx", "-o", "derivative.onnx", "--json", *words.split()]) == 0
    expected = function("mlp.onnx", **settings)
    assert onnx.load("derivative.onnx") == expected
    printed = json.loads(capsys.readouterr().out)
    assert printed["outputs"] == [v.name for v in expected.graph.output]
    assert printed["inputs"] == [v.name for v in expected.graph.input]


def test_rows_that_mix(at, capsys):
    assert main(["jacobian", "mlp.onnx", "-o", "j.onnx", "--wrt", "W1", "--per-row"]) == 2
    assert "'W1' is no input, so that it has no rows" in capsys.readouterr().err
