"""Training kits that every runner is tested with: four models by three optimizers, and the digits that they learn."""

import io
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from models import linear, mlp
from sklearn.datasets import load_digits
from torch import nn
from torch.onnx import TrainingMode

from ortpartial import (
    OrtGradientForwardBackwardOptimizer,
    TrainingKit,
    build,
    constant,
    op,
    run_kit,
    variable,
)
from ortpartial.learning import CosineSchedule, LearningRateAdam, LearningRateSGD, LearningRateSGDNesterov
from ortpartial.model import read_tensors, write_tensors

RATES = {
    "sgd": LearningRateSGD(0.05),
    "momentum": LearningRateSGDNesterov(0.02),
    "adam": LearningRateAdam(2e-3, schedule=CosineSchedule(n=200)),
}
MODELS = ("linear", "mlp", "cnn", "transformer")
#: What `make test` runs; the other pairs are slow.
SAMPLED = [("linear", "sgd"), ("mlp", "momentum"), ("cnn", "adam"), ("transformer", "adam")]
PAIRS = [pytest.param(model, rate, marks=() if (model, rate) in SAMPLED else pytest.mark.slow)
         for model in MODELS for rate in RATES]


class Transformer(nn.Module):
    """An encoder layer, which reads the rows of an image as its tokens."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, bias=False)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.layer(x).mean(1))


@cache
def make_model(name: str) -> onnx.ModelProto:
    """A classifier of digits; those of torch are exported in training mode, for batches of any size."""
    if name in ("linear", "mlp"):
        return linear(64, 10) if name == "linear" else mlp(64, 10, hidden=16)
    torch.manual_seed(0)
    # The biases of keys, and those before a normalization, have no gradient but rounding, which Adam scales up.
    net = Transformer() if name == "transformer" else nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(36, 10))
    file = io.BytesIO()
    shape = (2, 8, 8) if name == "transformer" else (2, 1, 8, 8)
    with warnings.catch_warnings():  # torch 2.13.0 deprecates the only exporter that leaves a Dropout in a graph.
        warnings.simplefilter("ignore")
        torch.onnx.export(net, torch.zeros(shape), file, dynamo=False, training=TrainingMode.TRAINING,
                          do_constant_folding=False, input_names=["x"], output_names=["y"],
                          dynamic_axes={"x": {0: "N"}, "y": {0: "N"}})
    return onnx.load_from_string(file.getvalue())


def make_optimizer(model: str, rate: str, batch_size: int = 32) -> OrtGradientForwardBackwardOptimizer:
    """What trains a model, in the order of its rows: in training mode where it has a Dropout."""
    return OrtGradientForwardBackwardOptimizer(
        make_model(model), learning_loss="softmax_cross_entropy", learning_rate=RATES[rate], batch_size=batch_size,
        shuffle=False, random_state=0, train_mode=model in ("cnn", "transformer"))


def make_data(model: str, rows: int = 300) -> dict[str, np.ndarray]:
    """Digits, in the shape that a model reads."""
    X, y = load_digits(return_X_y=True)
    shape = {"cnn": (1, 8, 8), "transformer": (8, 8)}.get(model, (64,))
    return {"x": (X[:rows] / 16).astype(np.float32).reshape(-1, *shape), "y_target": y[:rows].astype(np.int64)}


def write_kit_and_data(folder, model: str, rate: str, **settings) -> TrainingKit:
    """A kit, with its data in ``data.safetensors`` of the same folder."""
    make_optimizer(model, rate).export_step(folder, **{"targets": (), **settings})
    write_tensors(make_data(model), folder / "data.safetensors")
    return TrainingKit(folder)


def write_kit_of_two_inputs(folder, rng) -> Path:
    """A kit with its data, whose model reads an input that its step does not, and has an output that is not trained."""
    x, z = variable("x", "float32", ["N", 3]), variable("z", "float64", ["N", 2])
    w = constant(rng.normal(size=(3, 2)).astype(np.float32), hint="w")
    proto = build({"x": x, "z": z}, {"y": x @ w, "both": op.Concat(op.CastLike(x @ w, z), z, axis=1)})
    OrtGradientForwardBackwardOptimizer(proto, learning_loss={"y": "square_error"}).export_step(folder, targets=())
    data = {"x": rng.normal(size=(7, 3)).astype(np.float32), "z": rng.normal(size=(7, 2))}
    write_tensors({**data, "y_target": data["x"][:, :2]}, folder / "data.safetensors")
    return folder


def assert_state_close(kit: TrainingKit, expected, tolerance: float) -> None:
    """Compare each tensor with max|w - w'| <= tolerance * max|w'|."""
    for name, a in expected.items():
        error = abs(kit.state[name].astype(np.float64) - a).max() if a.size else 0
        assert error <= tolerance * max(abs(a.astype(np.float64)).max(initial=0), 1e-30), (name, error)


def assert_trained_as_in_python(kit: TrainingKit, folder, printed: str, rtol: float = 1e-4) -> None:
    """Compare a copy of a kit that a program has trained, and the losses that it printed, with those of `run_kit`."""
    losses = run_kit(kit.folder, kit.folder / "data.safetensors", 100)
    assert_state_close(TrainingKit(folder), TrainingKit(kit.folder).state, 1e-5)
    lines = [line.split(": loss ") for line in printed.splitlines()]
    assert [step for step, _ in lines] == [f"step {k}" for k in range(10, 101, 10)]
    np.testing.assert_allclose([float(loss) for _, loss in lines], losses[9::10], rtol=rtol)


def assert_predicts_as_in_python(folder, predictions, model, rtol: float = 1e-5) -> None:
    """Compare the outputs that a program wrote for the data of a kit, and the model that it saved, with Python's."""
    kit, data = TrainingKit(folder), read_tensors(folder / "data.safetensors")[0]
    expected, (found, _) = kit.predict(data), read_tensors(predictions)
    assert found.keys() == expected.keys()
    saved = onnxruntime.InferenceSession(model)
    alone = saved.run(list(expected), {i.name: data[i.name] for i in saved.get_inputs()})
    for (name, a), other in zip(expected.items(), alone, strict=True):
        assert (found[name].dtype, found[name].shape) == (a.dtype, a.shape)
        for b in (found[name], other):
            np.testing.assert_allclose(b, a, rtol=rtol, atol=rtol * np.abs(a).max())
    assert onnx.load(model) == kit.model()
