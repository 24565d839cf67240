"""Every loss, penalty, optimizer and schedule, and networks of many kinds, in machine code beside onnxruntime."""

from functools import partial

import numpy as np
import pytest
from models import data, mlp, normalization, parameter
from once import ON_NEWEST, ON_TRAINING

from ortpartial import (
    AbsoluteLearningLoss,
    ConstantSchedule,
    CosineRestartsSchedule,
    CosineSchedule,
    ElasticLearningLoss,
    ElasticLearningPenalty,
    ExponentialAverage,
    FocalLearningLoss,
    GradientClipping,
    HingeLearningLoss,
    HuberLearningLoss,
    InvScalingSchedule,
    LearningRateAdafactor,
    LearningRateAdagrad,
    LearningRateAdam,
    LearningRateAdamW,
    LearningRateLAMB,
    LearningRateLion,
    LearningRateNAdam,
    LearningRateRAdam,
    LearningRateRMSProp,
    LearningRateSGD,
    LearningRateSGDNesterov,
    NegLogLearningLoss,
    OneCycleSchedule,
    OptimalSchedule,
    PoissonLearningLoss,
    PolynomialSchedule,
    ReduceOnPlateauSchedule,
    SoftmaxCrossEntropyLearningLoss,
    SoftmaxFocalLearningLoss,
    SquareLearningLoss,
    StepSchedule,
    StochasticWeightAverage,
    WarmUpSchedule,
    build,
    op,
    variable,
)
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.native import compile_library, find_compiler
from ortpartial.native.compiler import FLAGS

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")

X, Y, W = data(40)
POSITIVE, LABELS = (Y > 0).astype(np.float32), np.random.default_rng(0).integers(0, 3, 40)
IMAGES = np.random.default_rng(1).normal(size=(40, 2, 7, 6)).astype(np.float32)


@pytest.fixture(autouse=True)
def _compile_fast(monkeypatch):
    flags = [flag if flag != "-O3" else "-Og" for flag in FLAGS] + ["-DOP_LANES=1"]
    monkeypatch.setattr("ortpartial.native.compile_library", partial(compile_library, flags=flags))


def images(first, width, **sizes):
    """A network whose first operators look at images."""
    x = variable("X", "float32", ["N", 2, 7, 6])
    features = op.Reshape(first(x), [0, -1])
    return build([x], {"y": features @ parameter("W", width, 3)})


def convolve(x, outputs=3, inputs=2, size=3, name="c", **attributes):
    return op.Conv(x, parameter(name, outputs, inputs, size, size), parameter(f"{name}b", outputs), **attributes)


def embed():
    x = variable("X", "int64", ["N", 3])
    return build([x], {"y": op.Flatten(op.Gather(parameter("E", 9, 4), x)) @ parameter("W", 12, 1)})


def recur(cell, gates):
    """A recurrent network over four steps."""
    x = variable("X", "float32", ["N", 4])
    h = op.Transpose(op.Reshape(x, [0, 4, 1]), perm=[1, 0, 2])
    weights = (parameter(n, 1, *shape) for n, shape in (
        ("Wr", (5 * gates, 1)), ("Rr", (5 * gates, 5)), ("Br", (10 * gates,))))
    _, h, *_ = cell(h, *weights, hidden_size=5, n_outputs=3 if gates == 4 else 2)
    return build([x], {"y": op.Squeeze(h, [0]) @ parameter("W", 5, 1)})


def normalize():
    x = variable("X", "float32", ["N", 4])
    return build([x], {"y": normalization(x @ parameter("W1", 4, 8), 8, 0) @ parameter("W2", 8, 1)})


def drop():
    x = variable("X", "float32", ["N", 4])
    h = op.Dropout(op.Relu(x @ parameter("W1", 4, 8)), 0.3, False)
    return build([x], {"y": h @ parameter("W2", 8, 1)})


def classify():
    return {"model": mlp(outputs=3), "y": LABELS}


SETTINGS = {
    **{type(rate).__name__: {"learning_rate": rate} for rate in (
        LearningRateSGD(0.01), LearningRateSGDNesterov(0.01, momentum=0.9), LearningRateAdam(), LearningRateAdamW(),
        LearningRateAdagrad(), LearningRateRMSProp(0.001, momentum=0.5, centered=True), LearningRateNAdam(),
        LearningRateRAdam(), LearningRateLion(1e-4), LearningRateLAMB(0.01), LearningRateAdafactor())},
    **{type(schedule).__name__: {"learning_rate": LearningRateSGD(0.02, schedule=schedule)} for schedule in (
        ConstantSchedule(), InvScalingSchedule(), OptimalSchedule(10.0), StepSchedule(2), CosineSchedule(9),
        CosineRestartsSchedule(3), PolynomialSchedule(9), OneCycleSchedule(9), WarmUpSchedule(n=3),
        ReduceOnPlateauSchedule())},
    **{type(loss).__name__: {"learning_loss": loss, "y": y} for loss, y in (
        (SquareLearningLoss(), Y), (AbsoluteLearningLoss(), Y), (ElasticLearningLoss(), Y), (HuberLearningLoss(0.3), Y),
        (PoissonLearningLoss(), np.abs(Y)), (NegLogLearningLoss(), POSITIVE), (HingeLearningLoss(), POSITIVE),
        (FocalLearningLoss(), POSITIVE))},
    **{type(loss).__name__: {**classify(), "learning_loss": loss} for loss in (
        SoftmaxCrossEntropyLearningLoss(), SoftmaxFocalLearningLoss())},
    "class weights": {**classify(), "learning_loss": SoftmaxCrossEntropyLearningLoss(class_weight=(1.0, 2.0, 0.5))},
    "penalty": {"learning_penalty": ElasticLearningPenalty(0.01, 0.1)},
    "weights of rows": {"weights": W},
    "clipping": {"gradient_clipping": GradientClipping(norm=0.1)},
    "accumulation": {"accumulate": 3, "learning_rate": "Adam"},
    "averaging": {"averaging": ExponentialAverage(0.9)},
    "stochastic averaging": {"averaging": StochasticWeightAverage()},
    "dilated convolution": {"X": IMAGES, "y": LABELS, "model": images(lambda x: op.Tanh(
        convolve(x, dilations=[2, 1], pads=[1, 0, 2, 1])), 90)},
    "a part": {"weights_to_train": ["W1"]},
    "factors": {"rate_factors": {"W1": 0.1}},
    "dropout": {"model": drop(), "train_mode": True},
    "normalization": {"model": normalize(), "train_mode": False},
    "embedding": {"model": embed(), "X": np.random.default_rng(2).integers(-9, 9, (40, 3))},
    **{name: {"model": recur(getattr(op, name), gates)} for name, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))},
    "convolution": {"X": IMAGES, "y": LABELS, "model": images(lambda x: op.MaxPool(op.Relu(
        convolve(x, pads=[1, 1, 1, 1])), kernel_shape=[2, 2], strides=[2, 2]), 27)},
    "strided convolution": {"X": IMAGES, "y": LABELS, "model": images(lambda x: op.Tanh(
        convolve(x, 4, 1, group=2, strides=[2, 1], auto_pad="SAME_UPPER")), 96)},
    "pools": {"X": IMAGES, "y": LABELS, "model": images(lambda x: op.GlobalMaxPool(op.AveragePool(
        convolve(x, size=2), kernel_shape=[2, 3], pads=[1, 0, 0, 1], strides=[2, 1])), 3)},
    "transposed convolution": {"X": IMAGES, "y": LABELS, "model": images(lambda x: op.GlobalAveragePool(
        op.ConvTranspose(x, parameter("c", 2, 3, 2, 2), parameter("cb", 3), strides=[2, 2])), 3)},
}
LABELED = {"convolution", "dilated convolution", "strided convolution", "pools", "transposed convolution"}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=ON_NEWEST if i % 2 else ON_TRAINING) for i, name in enumerate(SETTINGS)])
def test_a_training(name):
    settings = {"model": mlp(), "X": X, "y": Y, "weights": None, "max_iter": 1, "batch_size": 4, "random_state": 0,
                **SETTINGS[name]}
    if name in LABELED:
        settings["learning_loss"] = "softmax_cross_entropy"
    model, x, y, w = (settings.pop(n) for n in ("model", "X", "y", "weights"))
    native, step = (Optimizer(model, engine=engine, **settings).fit(x, y, w) for engine in ("native", "step"))
    assert native.engine_ == "native"
    for kind in ("weight", "optimizer"):
        for u, v in zip(native.get_state(kind), step.get_state(kind), strict=True):
            np.testing.assert_allclose(u, v, rtol=1e-5, atol=1e-5 * max(abs(v).max(), 1e-6))
    np.testing.assert_allclose(native.train_losses_, step.train_losses_, rtol=1e-5)
