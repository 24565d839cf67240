"""Every door whose loss is the square loss unless it is given another tells of targets that look like classes, once."""

import numpy as np
import pytest
from onnx.parser import parse_model
from sklearn.datasets import load_diabetes

from ortpartial import (
    OnnxRegressor,
    OrtGradientForwardBackwardOptimizer,
    TrainingKit,
    TrainingSession,
    artifacts,
    build,
    constant,
    nn,
    variable,
)
from ortpartial.exceptions import ModelWarning

N = 40


def make_optimizer(columns):
    x = variable("x", "float32", ["N", 3])
    model = build([x], {"y": x @ constant(np.full((3, columns), 0.1, np.float32), hint="w")})
    return OrtGradientForwardBackwardOptimizer(model, learning_rate=1e-9, max_iter=1, batch_size=N, random_state=0)


def by_optimizer(y, columns, folder):
    optimizer = make_optimizer(columns)
    return lambda X: optimizer.fit(X, y)


def by_regressor(y, columns, folder):
    regressor = OnnxRegressor(learning_rate="SGD", learning_rate_init=1e-9, warm_start=True, tol=1, n_iter_no_change=1,
                              random_state=0)
    return lambda X: regressor.fit(X, y)


def by_partial_fits(y, columns, folder):
    regressor = OnnxRegressor(learning_rate="SGD", learning_rate_init=1e-9, random_state=0)
    return lambda X: regressor.partial_fit(X, y)


def by_module(y, columns, folder):
    model = nn.Linear(3, columns).set_optimizer("sgd").compile(nn.placeholder(["N", 3]), random_state=0)
    return lambda X: model.fit(X, y.reshape(N, -1), epochs=1)


def by_session(y, columns, folder):
    session = TrainingSession(make_optimizer(columns).get_training_onnx())
    return lambda X: session.step({"x": X, "y_target": y.reshape(N, -1)})


def by_kit(y, columns, folder):
    make_optimizer(columns).export_step(folder, targets=(), batch_size=N)
    kit = TrainingKit(folder)
    return lambda X: kit.train({"x": X, "y_target": y.reshape(N, -1)}, 1)


def by_artifacts(y, columns, folder):
    training = parse_model(f'''<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        training (float[N, 3] x, float[N, {columns}] t, float[3, {columns}] w, float[3, {columns}] buffer,
                  bool[1] reset) => (float loss, bool[1] done)
        <float two = {{2}}>
        {{
            y = MatMul (x, w)
            e = Sub (y, t)
            square = Pow (e, two)
            loss = ReduceMean <keepdims = 0> (square)
            e2 = Mul (e, two)
            n = Size (e)
            e_grad = com.microsoft.Scale <scale_down = 1> (e2, n)
            w_grad = com.microsoft.FusedMatMul <transA = 1> (x, e_grad)
            done = com.microsoft.InPlaceAccumulatorV2 (buffer, w_grad, reset)
        }}''')
    state = artifacts.CheckpointState(artifacts.Checkpoint({"w": np.zeros((3, columns), np.float32)}))
    module = artifacts.Module(training, state)
    return lambda X: module(X, y.reshape(N, -1))


DOORS = [by_optimizer, by_regressor, by_partial_fits, by_module, by_session, by_kit, by_artifacts]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("y", [np.arange(N) % 2.0, np.eye(3)[np.arange(N) % 3]], ids=["labels", "one-hot"])
def test_classes_are_told_once(door, y, rng, tmp_path):
    fit, X = door(y, y.shape[1] if y.ndim == 2 else 1, tmp_path / "kit"), rng.normal(size=(N, 3)).astype(np.float32)
    with pytest.warns(ModelWarning, match="labels.* takes? the square loss, as of all quantities; for classes") as told:
        fit(X)
    assert len(told) == 1
    fit(X)  # Warnings are errors.


@pytest.mark.parametrize("door", DOORS)
def test_quantities_are_not(door, rng, tmp_path):
    door(load_diabetes().target[:N], 1, tmp_path / "kit")(rng.normal(size=(N, 3)).astype(np.float32) * 1e-3)
