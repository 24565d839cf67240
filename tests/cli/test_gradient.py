"""Gradients that are written as models."""

import numpy as np
import onnx
import pytest

from ortpartial import build, constant, gradient_model, op, variable
from ortpartial.cli import main


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("", {}),
        ("--wrt x W1 --outputs y --suffix _bar", {"wrt": ["x", "W1"], "outputs": ["y"], "suffix": "_bar"}),
        ("--cotangents ones --wrt x", {"cotangents": "ones", "wrt": ["x"]}),
    ],
    ids=["default", "names", "ones"],
)
def test_gradient(at, capsys, words, settings):
    assert main(["gradient", "mlp.onnx", "-o", "grad.onnx", *words.split()]) == 0
    expected = gradient_model("mlp.onnx", **settings)
    assert onnx.load("grad.onnx") == expected
    names = [", ".join(v.name for v in vs) for vs in (expected.graph.input, expected.graph.output)]
    assert capsys.readouterr().out == f"grad.onnx: {names[0]} -> {names[1]}\n"


def test_quantized_models(at, capsys):
    """What rounding would lose is named, and passes through it where asked to."""
    x, w = variable("x", "float32", ["N", 2]), constant(np.eye(2, dtype=np.float32), hint="w")
    zero = np.array(0, np.int8)
    rounded = [op.DequantizeLinear(op.QuantizeLinear(v, 0.1, zero), 0.1, zero) for v in (x, w)]
    onnx.save(build([x], {"y": rounded[0] @ rounded[1]}), "quantized.onnx")
    assert main(["gradient", "quantized.onnx", "-o", "grad.onnx", "--wrt", "x"]) == 2
    assert "QuantizeLinear> (output 'QuantizeLinear_0') rounds" in capsys.readouterr().err
    assert main(["gradient", "quantized.onnx", "-o", "grad.onnx", "--wrt", "x", "--straight-through"]) == 0
    assert main(["info", "quantized.onnx"]) == 1
    assert "rounds, and no gradient passes through it" in capsys.readouterr().out
    assert main(["info", "quantized.onnx", "--straight-through"]) == 0
    assert "trained: 1 of 2 float initializers" in capsys.readouterr().out
    words = "export quantized.onnx -o training.onnx --init model --straight-through"
    assert main(words.split()) == 0
    np.savez("data.npz", x=np.eye(2, dtype=np.float32), y_target=np.ones((2, 2), np.float32))
    assert main(["run", "training.onnx", "data.npz", "-o", "trained.onnx", "--epochs", "3"]) == 0
