import pickle

import numpy as np
import pytest
from sklearn.base import clone

from ortpartial import (
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    OutputLoss,
    add_loss_output,
    build,
    constant,
    op,
    variable,
)
from ortpartial.exceptions import SettingError

X = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
Y = X[:, :1] - X[:, 1:2]
W = np.linspace(0.5, 1.5, 30, dtype=np.float32)
SETTINGS = {"max_iter": 2, "batch_size": 8, "random_state": 0, "learning_rate": "Adam"}


def own():
    """A graph with a loss of its own names."""
    x, t, s = (variable(n, "float32", ["N", k]) for n, k in (("x", 3), ("truth", 1), ("share", 1)))
    w = constant(np.full((3, 1), 0.1, np.float32), hint="w")
    return build([x, t, s], {"y": x @ w, "cost": op.ReduceMean(abs(x @ w - t) * s, keepdims=0)})


def written():
    x, w = variable("x", "float32", ["N", 3]), constant(np.full((3, 1), 0.1, np.float32), hint="w")
    return add_loss_output(build([x], {"y": x @ w}), "absolute_error", weighted=True)


CASES = {"written": (written, {}),
         "own": (own, {"name": "cost", "label_names": ["truth"], "sample_weight_name": "share"})}


def train_both(case, **settings):
    make, fields = CASES[case]
    named = {"loss_output_name" if n == "name" else n: v for n, v in fields.items()}
    return (OrtGradientForwardBackwardOptimizer(make(), learning_loss=OutputLoss(**fields), **SETTINGS, **settings),
            OrtGradientOptimizer(make(), **named, **SETTINGS, **settings))


def state(optimizer):
    return [a.tobytes() for kind in ("weight", "optimizer") for a in optimizer.get_state(kind)]


def assert_equal(one, other):
    assert state(one) == state(other)
    assert one.train_losses_ == other.train_losses_


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("engine", ["step", "epoch", "native"])
def test_it_is_the_training_of_the_front(case, engine):
    w = W[:, None] if case == "own" else W
    one, other = (optimizer.fit(X, Y, w) for optimizer in train_both(case, engine=engine))
    assert_equal(one, other)
    np.testing.assert_array_equal(one.predict(X), other.predict(X))
    assert one.get_trained_onnx() == other.get_trained_onnx()
    assert [o.name for o in one.get_trained_onnx().graph.output] == ["y"]
    assert len(one.get_trained_onnx(with_loss=True).graph.output) == 2


@pytest.mark.parametrize("case", CASES)
def test_a_training_goes_on(case, tmp_path):
    w = W[:, None] if case == "own" else W
    for optimizer in train_both(case, warm_start=True):
        again = pickle.loads(pickle.dumps(optimizer.fit(X, Y, w)))
        copy = clone(optimizer).fit(X, Y, w)
        assert state(copy) == state(optimizer)
        optimizer.save_checkpoint(tmp_path / "c")
        copy.load_checkpoint(tmp_path / "c")
        stored = type(optimizer).from_training_info(optimizer.get_training_onnx(), **{**SETTINGS, "warm_start": True})
        stored.shuffle = optimizer.shuffle = again.shuffle = copy.shuffle = False
        for other in (again, copy, stored):
            assert other.learning_loss == optimizer.learning_loss
        states = [state(other.partial_fit(X, Y, w)) for other in (optimizer, again, copy, stored)]
        assert len(set(map(tuple, states))) == 1


def test_the_setting():
    optimizer, front = train_both("own")
    loss = optimizer.get_params()["learning_loss"]
    assert loss == OutputLoss("cost", ["truth"], "share")
    assert "OutputLoss(name='cost'" in repr(optimizer)
    assert front.loss_output_name == "cost"
    assert front.sample_weight_name == "share"
    assert "learning_loss" not in front.get_params()
    optimizer.set_params(learning_loss=OutputLoss("cost", ["truth", "share"]))
    front.sample_weight_name = None
    front.label_names = ["truth", "share"]
    data = X, {"truth": Y, "share": W[:, None]}
    assert_equal(optimizer.fit(*data), front.fit(*data))


def test_a_setting_that_is_wrong():
    with pytest.raises(SettingError, match="The model has no output 'loss' that would be its loss; its outputs are"):
        OrtGradientForwardBackwardOptimizer(own(), learning_loss=OutputLoss())
