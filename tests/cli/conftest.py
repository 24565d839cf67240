"""A folder of models and a training in a model."""

import numpy as np
import onnx
import pytest
from models import data, linear, mlp
from onnx import parser

from ortpartial import build, op, variable
from ortpartial.cli import main

BLOCKED = """
<ir_version: 9, opset_import: ["" : 21]>
agraph (float[N, 8] x) => (float[a] y)
<float[1] w = {2}, float[1] v = {3}, float e = {2}>
{ h = Mul (x, w)  [distinct] f = Unique (h)  m = Mish (f) g = Floor (m) s = Add (g, m) y = Mul (s, v) }
"""


@pytest.fixture
def at(tmp_path, monkeypatch, unruled):
    """A folder with several models."""
    monkeypatch.chdir(tmp_path)
    x = variable("x", "float32", ["N"])
    models = {"linear": linear(), "mlp": mlp(), "blocked": parser.parse_model(BLOCKED)}
    for name, model in {**models, "bare": build([x], {"y": op.Exp(x)})}.items():
        onnx.save(model, f"{name}.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x07broken")
    return tmp_path


@pytest.fixture
def training(at, capsys):
    """A training in a model, and data of 20 rows for it."""
    X, y, _ = data(20)
    np.savez("data.npz", x=X, y_target=y)
    assert main(["export", "mlp.onnx", "-o", "training.onnx", "--init", "random"]) == 0
    capsys.readouterr()
    return at
