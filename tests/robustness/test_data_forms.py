"""Lists train as arrays do, to the bit; sets, ragged lists and bad batches are refused before a weight moves."""

import functools

import numpy as np
import pytest
from training_artifacts import STORED

from ortpartial import (
    OnnxRegressor,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    TrainingKit,
    TrainingSession,
    add_loss_output,
    artifacts,
    build,
    constant,
    nn,
    op,
    to_training_info,
    variable,
)
from ortpartial.exceptions import OrtPartialError

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
Y = np.ascontiguousarray(X[:, :2])
FIRST = X[:4], Y[:4]
RAGGED = [[1.0, 2.0, 3.0, 4.0]] * 7 + [[1.0]]


@functools.cache
def model():
    x = variable("x", "float32", ["N", 4])
    return build([x], {"y": op.Tanh(x @ constant(np.ones((4, 2), np.float32), hint="w"))})


def make():
    return OrtGradientForwardBackwardOptimizer(model(), learning_rate="adam", max_iter=1, batch_size=4, random_state=0)


def make_full():
    return OrtGradientOptimizer(add_loss_output(model(), weighted=False), label_names="y_target", max_iter=1,
                                batch_size=4, random_state=0)


def make_regressor():  # `partial_fit` needs no epochs to converge
    return OnnxRegressor(model(), random_state=0).partial_fit(X, Y)


def make_module():
    return nn.Linear(4, 2).compile(nn.placeholder(["N", 4]), random_state=0).set_optimizer("adam")


def make_kit():
    make().export_step("kit", batch_size=8, targets=())
    return TrainingKit("kit")


def list_arrays(arrays):
    return [np.array(a) for a in (arrays.values() if isinstance(arrays, dict) else arrays)]


def by_name(X, y):
    return {"x": X, "y_target": y}


def step_artifacts(module, X, y):
    """A step on data of another shape, in the form of these."""
    if not isinstance(X, (set, frozenset)) and X is not RAGGED:
        X = np.zeros((8, 64), np.float32) if isinstance(X, np.ndarray) else np.zeros((8, 64)).tolist()
    module.step(X, y if isinstance(y, set) else [0] * 8)


#: How a door is made, what it holds, and calls of it that train on X and y.
DOORS = {
    "optimizer": (make, lambda o: o.get_state(), [
        lambda o, X, y: o.fit(X, y), lambda o, X, y: o.partial_fit(X, y), lambda o, X, y: o.fit([(X, y), (X, y)])]),
    "full": (make_full, lambda o: o.get_state(), [
        lambda o, X, y: o.fit(by_name(X, y)), lambda o, X, y: o.fit([by_name(X, y)] * 2)]),
    "estimator": (make_regressor, lambda e: e.optimizer_.get_state(), [lambda e, X, y: e.partial_fit(X, y)]),
    "module": (make_module, lambda m: m.state_dict(), [
        lambda m, X, y: m.fit(X, y, epochs=1, batch_size=4), lambda m, X, y: m.train_one_batch(X, y),
        lambda m, X, y: m.fit([FIRST, (X, y)], epochs=1)]),
    "session": (lambda: TrainingSession(to_training_info(make())), lambda s: s.state, [
        lambda s, X, y: s.step(by_name(X, y))]),
    "kit": (make_kit, lambda k: k.state, [
        lambda k, X, y: k.step(by_name(X, y)), lambda k, X, y: k.train(by_name(X, y), 1)]),
    "artifacts": (lambda: artifacts.load(STORED / "mlp"), lambda m: {n: p.data for n, p in m.state.parameters.items()},
                  [step_artifacts]),
}
CASES = [pytest.param(*DOORS[n][:2], call, id=f"{n}-{i}") for n in DOORS for i, call in enumerate(DOORS[n][2])]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("make", "hold", "call"), CASES)
def test_lists_train_as_arrays(make, hold, call):
    expected, trained = make(), make()
    call(expected, X, Y)
    call(trained, X.tolist(), [*Y])
    for a, b in zip(list_arrays(hold(expected)), list_arrays(hold(trained)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("make", "hold", "call"), CASES)
def test_sets_and_ragged_lists_move_nothing(make, hold, call):
    door = make()
    before = list_arrays(hold(door))
    for wrong, sentence in (({1.0, 2.0}, "is a set, which has no order"), (frozenset(), "is a frozenset, which has no"),
                            (RAGGED, "has rows of 1 to 4 elements")):
        with pytest.raises((OrtPartialError, ValueError), match=f"{sentence}|inhomogeneous"):  # scikit-learn's own
            call(door, wrong, Y)
    with pytest.raises(OrtPartialError, match="is a set, which has no order"):
        call(door, X, {1.0, 2.0})
    for a, b in zip(before, list_arrays(hold(door)), strict=True):
        np.testing.assert_array_equal(a, b)


#: A second batch that is none, and a part of the sentence that refuses it.
BATCHES = [((X[:, :3], Y), "x"), ((X, Y[:, :1]), "shape"), ((X, Y[:3]), "3"), ((X,), "batch"), ((X, ["a"] * 8), "num"),
           (({1.0}, Y), "order"), ((RAGGED, Y), "elements"), (3, "batch"), (None, "batch")]


@pytest.mark.parametrize(("make", "hold", "call"), [
    pytest.param(make, lambda o: o.get_state(), lambda o, batches: o.fit(batches), id="optimizer"),
    pytest.param(make, lambda o: o.get_state(), lambda o, batches: o.partial_fit(batches), id="optimizer-partial"),
    pytest.param(make, lambda o: o.get_state(), lambda o, batches: o.fit(X, Y, X_val=batches), id="optimizer-X_val"),
    pytest.param(make_module, lambda m: m.state_dict(), lambda m, batches: m.fit(batches, epochs=1), id="module"),
    pytest.param(make_module, lambda m: m.state_dict(), lambda m, batches: m.fit(X, Y, X_val=batches, epochs=1),
                 id="module-X_val"),
])
def test_a_bad_batch_of_a_list_moves_nothing(make, hold, call):
    door = make()
    call(door, [FIRST, ([*X], [*Y])])
    before = list_arrays(hold(door))
    for wrong, sentence in BATCHES:
        with pytest.raises(OrtPartialError, match=sentence):
            call(door, [FIRST, wrong])
    for wrong in ({1.0, 2.0}, frozenset()):
        with pytest.raises(OrtPartialError, match="which has no order"):
            call(door, wrong)
    for a, b in zip(before, list_arrays(hold(door)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_step_of_a_user_reads_any_batch():
    class Own(OrtGradientForwardBackwardOptimizer):
        def train_step(self, batch):
            return float(len(batch[0]))

    optimizer = Own(model(), max_iter=1, random_state=0).fit([(X[:, :3], Y), (X[:, 0], 3.0)])
    assert optimizer.train_losses_ == [8.0]
