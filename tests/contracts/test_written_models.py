"""Models that are written load and run in onnxruntime without a warning."""

import os
import tempfile

import numpy as np
import onnx
import onnxruntime
import pytest
from models import images, mlp
from once import ON_BOTH

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.graph import build, constant, op, variable
from ortpartial.runtime import has_training

torch = pytest.importorskip("torch")


def read_log(model: onnx.ModelProto, x: np.ndarray) -> str:
    """What onnxruntime writes to the standard error by default while it loads and runs a model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 2
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                                   providers=["CPUExecutionProvider"])
            session.run(None, {session.get_inputs()[0].name: x})
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        file.seek(0)
        return file.read().decode()


def export_in_training_mode():
    """As torch writes it, with the modes of Dropout in constants."""
    from ortpartial.torch import OnnxLayer

    net = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.ReLU(), torch.nn.Flatten(),
                              torch.nn.Dropout(), torch.nn.Linear(27, 2))
    return OnnxLayer.from_torch(net, torch.ones(3, 2, 5, 5))


def test_a_layer():
    layer = export_in_training_mode()
    X, _ = images(6)
    for training in (True, False):
        layer.train(training)(torch.from_numpy(X)).sum().backward()
        assert read_log(layer.to_onnx(), X) == ""


def write_dropout():
    """An export in training mode, which predictions and the trained model are not in."""
    x, on = variable("x", "float32", ["N", 4]), constant(np.array(True), hint="mode")
    h = op.Dropout(x, constant(np.float32(0.5).reshape(()), hint="ratio"), on)
    return build([x], {"y": h @ constant(np.ones((4, 1), np.float32), hint="w")})


@ON_BOTH
@pytest.mark.parametrize("settings", [
    {}, {"engine": "epoch"}, {"engine": "agent"}, {"train_mode": True}, {"precision": "float16"},
    {"checkpointing": "auto"}, {"init": "random"}], ids=str)
@pytest.mark.parametrize("source", [mlp, write_dropout], ids=["mlp", "dropout"])
def test_a_trained_model(source, settings):
    if settings.get("engine") == "agent" and not has_training():
        pytest.skip("needs onnxruntime-training")
    if source is mlp and settings.get("train_mode"):
        pytest.skip("has no mode")
    X = np.ones((8, 4), np.float32)
    o = Optimizer(source(), max_iter=2, random_state=0, **settings).fit(X, X[:, :1])
    assert read_log(o.get_trained_onnx(), X) == ""
    if "precision" not in settings:
        style = "lowered" if "checkpointing" in settings else "standard"
        assert read_log(o.get_training_onnx(style), X) == ""


def test_a_training_of_an_older_opset():
    """Its upgrade folds constants, and leaves those that they were computed from."""
    X = np.ones((8, 4), np.float32)
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        agraph (float[N, 4] x) => (float[N, 1] y) <float[4, 1] w = {1, 2, 3, 4}, int64 minus = {-1}, int64 one = {1}>
        { axes = Constant <value_ints = [0]> () first = Unsqueeze (minus, axes) second = Unsqueeze (one, axes)
          shape = Concat <axis = 0> (first, second) h = MatMul (x, w) y = Reshape (h, shape) }
        """)
    assert read_log(Optimizer(proto, max_iter=1, learning_rate=1e-3).fit(X, X[:, :1]).get_training_onnx(), X) == ""
