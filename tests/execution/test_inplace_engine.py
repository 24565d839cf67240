"""A training that overwrites its weights comes to the same weights, and leaves none half changed."""

import gc
import pickle
import sys
import weakref

import numpy as np
import onnx
import pytest
from models import data, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import TrainingKit, TrainingSession, build, constant, load, nn, op, variable
from ortpartial.estimator import training as optimizer_module
from ortpartial.exceptions import ConvergenceError, ModelError, SettingError
from ortpartial.execution import StepEngine, selection
from ortpartial.execution.inplace_engine import InplaceEngine, _is_finite, can_overwrite
from ortpartial.graph.control_flow import cond
from ortpartial.learning.optimizers import BaseLearningRate, LearningRateAdamW, LearningRateSGDNesterov
from ortpartial.model import external_data as weights
from ortpartial.runtime.session_options import session_options
from ortpartial.training import forward_bytes, spec

SETTINGS = {"max_iter": 4, "random_state": 0, "batch_size": 16}


class Late(BaseLearningRate):
    """A step that reads the state from before the step."""

    state = ("v",)

    def update(self, w, g, v, *, k):
        return g + v, (0.5 * v + g,)


@pytest.mark.parametrize("rate", [0.01, LearningRateSGDNesterov(0.01), LearningRateAdamW(), Late(0.01)])
def test_as_with_two_copies(rate):
    X, y, w = data(40)
    plain = Optimizer(mlp(), engine="step", learning_rate=rate, **SETTINGS).fit(X, y, w)
    lean = Optimizer(mlp(), checkpointing="auto", learning_rate=rate, **SETTINGS).fit(X, y, w)
    assert lean._engine.overwrites != isinstance(rate, Late)
    assert lean._engine.buffers[0] is lean._engine.buffers[1]
    for kind in ("weight", "optimizer"):
        for a, b in zip(lean.get_state(kind), plain.get_state(kind), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    again = pickle.loads(pickle.dumps(lean))
    for a, b in zip(again.partial_fit(X, y).get_state(), lean.partial_fit(X, y).get_state(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_a_branch_reads_is_not_overwritten_before():
    w, g, c = variable("w", "float32", [2]), variable("g", "float32", [2]), variable("c", "bool", [])
    new = w - g
    late = cond(c, lambda: op.Abs(w), lambda: op.Neg(w))
    assert not can_overwrite(build([w, g, c], {"w_new": new, "late": late}), {"w": "w_new"})
    assert can_overwrite(build([w, g, c], {"w_new": late + g}), {"w": "w_new"})


def test_big_weights_are_trained_in_one_copy_where_memory_is_short(monkeypatch):
    X, y, _ = data(8)
    plain = Optimizer(mlp(hidden=2**20), max_iter=1)
    assert (plain.engine_, plain._engine.copies) == ("epoch", 2)
    monkeypatch.setattr(selection, "available_memory", lambda: 2**27)
    o = Optimizer(mlp(hidden=2**20), max_iter=1)
    assert (o.engine_, o._engine.copies) == ("step", 1)
    assert o.engine_reason_ == "memory counts, so weights are overwritten where they are"
    assert Optimizer(mlp(hidden=2**20), engine="epoch")._engine.copies == 2
    assert np.isfinite(o.fit(X, y).train_losses_).all()


def test_a_first_step_rewrites_the_model_once(monkeypatch):
    """Not again for another gradient, and not for the number of threads where the weights are large."""
    rewritten, rewrite = [], spec.rewrite_model

    def count(model, **settings):
        rewritten.append(model)
        return rewrite(model, **settings)

    monkeypatch.setattr(spec, "rewrite_model", count)
    X, y, _ = data(8, features=512)
    o = Optimizer(mlp(features=512, hidden=512), checkpointing="auto", max_iter=1).fit(X, y)
    assert o._engine.copies == len(rewritten) == 1


def test_the_last_finite_step_stays():
    X, y, _ = data(40)
    o = Optimizer(mlp(), checkpointing="auto", learning_rate=1e-3, shuffle=False, **SETTINGS)
    y = y.copy()
    y[20] = 3e38
    with pytest.raises(ConvergenceError, match=r"at iteration 2 .* those of iteration 1"):
        o.fit(X, y)
    expected = Optimizer(mlp(), engine="step", learning_rate=1e-3, shuffle=False, **{**SETTINGS, "max_iter": 1})
    for a, b in zip(o.get_state(), expected.fit(X[:16], y[:16]).get_state(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("numbers", "finite"), [
    ([1, 2], True), ([3e38, 3e38], True), ([3e38, 3e38, -3e38], True), ([], True), ([1, np.nan], False),
    ([np.inf, -np.inf], False), ([-np.inf], False)])
def test_is_finite(numbers, finite):
    """Of all numbers, also of those whose sum is too large."""
    assert _is_finite(np.array(numbers, np.float32)) is finite


def test_first_weights_wait_in_a_file(monkeypatch):
    X, y, _ = data(8)
    monkeypatch.setattr(weights, "_MANY", 0)
    proto = mlp(hidden=2**18)
    o = Optimizer(proto, max_iter=1, random_state=0, learning_rate=1e-6)
    assert o._spec.model.file is not None
    first = o.fit(X, y).get_state()
    for a, b in zip(o.fit(X, y).get_state(), first, strict=True):
        np.testing.assert_array_equal(a, b)
    o.set_state([t * 0 for t in first])
    o.set_params(warm_start=False)._loop.reset()
    assert o.get_trained_onnx() == proto
    assert pickle.loads(pickle.dumps(o)).get_trained_onnx() == proto


def test_bytes_of_the_forward_pass():
    x, w = variable("x", "float32", [8, 4]), constant(np.ones((4, 16), np.float32), hint="w")
    y = op.Relu(x @ w)
    assert forward_bytes(load(build([x], {"y": y}))) == 2 * 8 * 16 * 4
    n = variable("n", "float32", ["N", 4])
    assert forward_bytes(load(build([n], {"y": op.Relu(n @ w)}))) == 0


@pytest.mark.parametrize(("reserve", "expected"), [(False, {"arena_extend_strategy": 1}), (True, None)])
def test_memory_that_lean_sessions_share(monkeypatch, reserve, expected):
    """It is made once, in one piece or by what is asked for."""
    made, options = [], sys.modules["ortpartial.runtime.session_options"]
    monkeypatch.setattr(options, "_ARENAS", [])
    monkeypatch.setattr(options.C, "OrtArenaCfg", lambda settings: made.append(settings))
    monkeypatch.setattr(options.C, "create_and_register_allocator", lambda info, settings: None)
    session_options(1, low_memory=True, reserve_arena=reserve)
    session_options(1, low_memory=True, reserve_arena=not reserve)
    assert len(made) == 1
    if expected is None:
        assert made[0]["arena_extend_strategy"] == 0
        assert made[0]["initial_chunk_size_bytes"] > 2**28
    else:
        assert made[0] == expected


def test_what_a_model_was_read_into_is_gone(tmp_path, monkeypatch):
    """A training of big weights that come from a file holds them once."""
    x, w = variable("x", "float32", ["N", 256]), constant(np.ones((256, 20_000), np.float32), hint="w")
    path = tmp_path / "big.onnx"
    onnx.save(build([x], {"y": x @ w}), path)
    read, loading = [], optimizer_module.load
    monkeypatch.setattr(selection, "available_memory", lambda: 2**26)

    def watched(*arguments, **settings):
        model = loading(*arguments, **settings)
        read.extend(map(weakref.ref, model.arrays.values()))
        return model

    monkeypatch.setattr(optimizer_module, "load", watched)
    gc.disable()
    try:
        o = Optimizer(str(path))
        assert isinstance(o._engine, InplaceEngine)
        assert read[0]() is None
    finally:
        gc.enable()


# -- steps of any source, at every door


@pytest.fixture
def no_room(monkeypatch):
    """Memory for a single copy of the smallest weights."""
    monkeypatch.setattr(selection, "available_memory", lambda: 1)
    monkeypatch.setattr(selection, "_BIG", 0)


def stored(**settings):
    return Optimizer(mlp(), random_state=0, max_iter=9, **settings).get_training_onnx()


@pytest.mark.parametrize("settings", [
    {"learning_rate": "AdamW", "accumulate": 2}, {"learning_rate": "Adafactor", "gradient_clipping": 0.1},
    {"learning_rate": LearningRateSGDNesterov(0.01), "averaging": "ema"}], ids=str)
def test_any_step_has_the_bits_of_two_copies(settings):
    source = TrainingSession(stored(**settings)).runner.source
    step, lean = StepEngine(source), InplaceEngine(source)
    X, y, _ = data(40)
    for start in range(0, 40, 8):
        feeds = {"x": X[start : start + 8], "y_target": y[start : start + 8]}
        assert lean.evaluate(feeds)["loss"] == step.evaluate(feeds)["loss"]
        assert lean.step(feeds)["loss"] == step.step(feeds)["loss"]
    assert lean.iteration == step.iteration == 5
    for name in source.first:
        np.testing.assert_array_equal(lean.get(name), step.get(name))
    epochs = [kind(source) for kind in (StepEngine, InplaceEngine)]
    for engine in epochs:
        engine.start({"x": X, "y_target": y})
    assert epochs[0].epoch(np.arange(40), 9) == epochs[1].epoch(np.arange(40), 9)
    for name in source.first:
        np.testing.assert_array_equal(epochs[0].get(name), epochs[1].get(name))


def train_module():
    X, y, _ = data(40)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).set_optimizer("adam")
    module.compile(nn.placeholder(["N", 4]), targets=nn.placeholder(["N", 1]), random_state=0)
    module.fit(X, y, epochs=2, batch_size=9)
    return module.trainer.loop.engine, module.state_dict()


def train_session():
    X, y, _ = data(40)
    session = TrainingSession(stored(learning_rate="Adam"))
    for start in range(0, 40, 10):
        session.step({"x": X[start : start + 10], "y_target": y[start : start + 10]})
    return session.runner, session.state


@pytest.mark.parametrize("train", [train_module, train_session], ids=["module", "session"])
def test_a_door_without_room_for_two_copies(train, request):
    plain, expected = train()
    request.getfixturevalue("no_room")
    lean, weights = train()
    assert (plain.copies, type(lean)) == (2, InplaceEngine)
    assert lean.reason == "memory counts, so weights are overwritten where they are"
    for name, a in expected.items():
        np.testing.assert_array_equal(weights[name], a)


def test_a_step_that_is_not_finite_is_not_taken(no_room):
    session = TrainingSession(stored(learning_rate=0.1))
    X, y, _ = data(10)
    before = session.state
    assert np.isnan(session.step({"x": X * np.nan, "y_target": y})["loss"])
    session.undo()
    assert session.steps_taken == 0
    for name, a in session.state.items():
        np.testing.assert_array_equal(a, before[name])
    session.step({"x": X, "y_target": y})
    assert session.steps_taken == 1
    with pytest.raises(ModelError, match="The step has overwritten the only copy of the state, which is big: keep"):
        session.undo()


def test_steps_that_are_not_cut_keep_two_copies(no_room, tmp_path):
    """A kit runs its file as it is, and processes exchange numbers between two parts of a step."""
    Optimizer(mlp()).export_step(tmp_path / "kit", targets=())
    TrainingKit(tmp_path / "kit").step({"x": data(8)[0], "y_target": data(8)[1]})
    session = TrainingSession(stored(), exchanges={"W1": lambda buffer: None})
    assert session.runner.copies == 2
    with pytest.raises(SettingError, match="is taken as a whole, and exchanges come between its parts"):
        InplaceEngine(session.runner.source)


def test_nothing_is_computed_twice_unless_checkpointing_asks_for_it():
    counts = [sum(node.op_type in ("Relu", "Tanh") for node in Optimizer(
        mlp(), checkpointing=checkpointing)._engine.source.compose_halves()[0].build().graph.node)
        for checkpointing in (None, "auto")]
    assert counts[0] == sum(node.op_type in ("Relu", "Tanh") for node in mlp().graph.node) <= counts[1]
