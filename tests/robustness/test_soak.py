"""Soak: memory stays flat over thousands of calls of a door, with batches of one shape and of many.

Records of epochs (`history_`, `train_losses_`) grow by design, 400 bytes for each; here they are emptied now and then.
"""

import ctypes
import gc
from pathlib import Path

import numpy as np
import pytest
from training_artifacts import STORED

from ortpartial import (
    OnnxRegressor,
    OrtGradientForwardBackward,
    OrtGradientForwardBackwardOptimizer,
    TrainingKit,
    TrainingSession,
    artifacts,
    build,
    callbacks,
    constant,
    gradient_model,
    nn,
    op,
    to_training_info,
    variable,
)
from ortpartial.runtime import Session

STATUS = Path("/proc/self/statm")
#: Shapes that come in turn: more than have programs of their own.
ROWS = 400
X = np.linspace(-1, 1, 4 * ROWS, dtype=np.float32).reshape(ROWS, 4)
Y = np.ascontiguousarray(X[:, :2])
LIMIT = 2.0
#: Calls of doors that take milliseconds each.
CALLS = {"call_eagerly": 2_000, "fit_with_callbacks": 5_000}

pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="the memory of a process is read as Linux tells it")


def resident():
    """Megabytes in memory, without what the allocator keeps for later."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(STATUS.read_text().split()[1]) * 4096 / 2**20


def model(layers=8):
    """A network whose nodes are many enough for a plan of their memory to be seen."""
    x = h = variable("x", "float32", ["N", 4])
    for i in range(layers):
        h = op.Tanh(h @ constant(np.eye(4, dtype=np.float32) / 2, hint=f"w{i}"))
    return build([x], {"y": h @ constant(np.ones((4, 2), np.float32), hint="v")})


def make(**settings):
    return OrtGradientForwardBackwardOptimizer(model(), learning_rate="adam", random_state=0, max_iter=1,
                                               **settings)


def train_part():
    optimizer = make(batch_size=ROWS)

    def call(n):
        optimizer.partial_fit(X[:n], Y[:n])
        if len(optimizer.train_losses_) > 100:
            optimizer.history_, optimizer.train_losses_ = [], []

    return call


def fit():
    optimizer = make(batch_size=8)
    return lambda n: optimizer.fit(X[: min(n, 16)], Y[: min(n, 16)])


def predict():
    optimizer = OrtGradientForwardBackwardOptimizer(model(40))
    return lambda n: optimizer.predict(X[:n])


def go_back():
    layer = OrtGradientForwardBackward(model(), engine="step")

    def call(n):
        ys, state = layer.forward({"x": X[:n]}, training=True)
        layer.backward([np.ones_like(y) for y in ys], state)

    return call


def estimate():
    regressor = OnnxRegressor(model(), learning_rate="adam", random_state=0, batch_size=ROWS)

    def call(n):
        regressor.partial_fit(X[:n], Y[:n])
        regressor.predict(X[:n])
        if len(regressor.optimizer_.train_losses_) > 100:
            regressor.optimizer_.history_, regressor.optimizer_.train_losses_ = [], []

    return call


def take_steps():
    session = TrainingSession(to_training_info(make()))
    return lambda n: session.step({"x": X[:n], "y_target": Y[:n]})


def evaluate():
    session = TrainingSession(to_training_info(make()))
    return lambda n: session.evaluate({"x": X[:n], "y_target": Y[:n]})


def run_kit():
    make().export_step("kit", batch_size=8)
    kit = TrainingKit("kit")
    return lambda n: kit.step({"x": X[:8], "y_target": Y[:8]})


def train_natively():
    optimizer = make(engine="native", batch_size=8)
    return lambda n: optimizer.fit(X[:8], Y[:8])


def differentiate():
    session = Session(gradient_model(model(40), ["w0"], cotangents="ones"))
    feeds = [n for n in session.inputs if n != "x"]
    weights = {n: np.eye(4, dtype=np.float32) for n in feeds}
    return lambda n: session.run({"x": X[:n], **weights})


def make_module():
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 2))
    return module.compile(nn.placeholder(["N", 4]), random_state=0).set_optimizer("adam")


def fit_module():
    module = make_module()

    def call(n):
        module.fit(X[: min(n, 16)], Y[: min(n, 16)], epochs=1, batch_size=8)
        if len(module.history_) > 100:
            module.history_.clear()

    return call


def train_module():
    module = make_module()
    return lambda n: module.train_one_batch(X[:n], Y[:n])


def call_module():
    module = make_module().eval()
    return lambda n: module(X[:n])


def call_eagerly():
    layer = nn.Linear(4, 2).compile(nn.placeholder(["N", 4]), use_graph=False, random_state=0).set_optimizer("adam")
    return lambda n: layer.train_one_batch(X[:n], Y[:n])


def call_layer():
    torch = pytest.importorskip("torch")
    from ortpartial.torch import OnnxLayer

    layer = OnnxLayer(model())

    def call(n):
        layer.zero_grad()
        layer(torch.from_numpy(X[:n])).sum().backward()

    return call


def train_artifacts():
    module = artifacts.load(STORED / "mlp")
    x, labels = np.zeros((ROWS, 64), np.float32), np.zeros(ROWS, np.int64)
    return lambda n: module.step(x[:n], labels[:n])


def evaluate_artifacts():
    module = artifacts.load(STORED / "mlp").eval()
    x, labels = np.zeros((ROWS, 64), np.float32), np.zeros(ROWS, np.int64)
    return lambda n: module(x[:n], labels[:n])


def fit_with_callbacks():
    """A fit of two epochs with all callbacks that need no other package, in a folder whose files are replaced."""
    optimizer = make(batch_size=8, callbacks=[
        callbacks.EarlyStopping("loss"), callbacks.ReduceOnPlateau("loss"), callbacks.Timer(3600.0),
        callbacks.Checkpoint("run", keep=1), callbacks.CSVLogger("log.csv", append=False),
        callbacks.GradientMonitor()])
    return lambda n: optimizer.fit(X[: min(n, 16)], Y[: min(n, 16)])


DOORS = {f.__name__: f for f in (fit_module, train_module, call_module, call_eagerly, call_layer, train_artifacts,
                                 evaluate_artifacts, fit_with_callbacks,
                                 train_part, fit, predict, go_back, estimate, take_steps, evaluate, run_kit,
                                 train_natively, differentiate)}


def soak(door, calls):
    """Megabytes by which a process grows in so many calls, after a quarter as many that fill caches."""
    call = DOORS[door]()
    call(ROWS)  # the largest batch, which sets how much memory a run takes
    for i in range(max(ROWS + 100, calls // 4)):
        call(i % ROWS + 1)
    first = resident()
    for i in range(calls):
        call(i % ROWS + 1)
    return resident() - first


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_memory_is_flat(door, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert soak(door, CALLS.get(door, 20_000)) < LIMIT


@pytest.mark.parametrize("door", ["take_steps", "train_part", "train_module"])
def test_memory_is_flat_in_a_sample(door, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROWS", 40)
    assert soak(door, 1_500) < LIMIT


def test_no_plan_of_memory_is_kept_for_each_shape():
    """onnxruntime 1.19.2 keeps one of 5 kB for every shape that this graph has seen, 2 MB in all."""
    call = predict()
    call(ROWS)
    first = resident()
    for n in range(1, ROWS):
        call(n)
    assert resident() - first < 0.7
