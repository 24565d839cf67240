"""A refused setting changes nothing: settings, weights, states and predictions are to the bit as before."""

import inspect
import warnings
from typing import ClassVar

import numpy as np
import pytest
from public_calls import VALUES, show

from ortpartial import (
    OnnxRegressor,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    add_loss_output,
    build,
    constant,
    nn,
    op,
    variable,
)
from ortpartial.exceptions import SettingError

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
Y = np.ascontiguousarray(X[:, :2])


def model():
    x = variable("x", "float32", ["N", 4])
    return build([x], {"y": op.Tanh(x @ constant(np.ones((4, 2), np.float32), hint="w"))})


class Door:
    """An object that has been trained, its calls that take settings, and what it holds."""

    def list_settings(self):
        """Pairs of a call and the name of its setting."""
        for name in self.calls:
            parameters = list(inspect.signature(getattr(self.target, name)).parameters.values())
            yield from ((name, p.name) for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
        yield from (("set_params", name) for name in self.names)
        yield from (("assign", name) for name in self.attributes)

    names = attributes = ()

    def apply(self, call, setting, value):
        if call == "assign":
            setattr(self.target, setting, value)
        elif call == "set_params":
            self.target.set_params(**{setting: value})
        else:
            getattr(self.target, call)(**{**self.calls[call], setting: value})


class Estimator(Door):
    data: ClassVar = {"X": X, "y": Y}
    kinds = ("weight", "optimizer", "buffer")

    def __init__(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # two epochs are few
            self.target = self.make().fit(**self.data)
        self.names = self.target.get_params()
        self.attributes = [n for n in self.names if isinstance(getattr(type(self.target), n, None), property)]
        self.calls = {"fit": self.data, "partial_fit": self.data}

    def make(self):
        return OrtGradientForwardBackwardOptimizer(model(), learning_rate="adam", max_iter=2, batch_size=4,
                                                   random_state=0, averaging="ema", train_mode=False)

    def list_held(self):
        arrays = [a.tobytes() for kind in self.kinds for a in self.target.get_state(kind)]
        return repr(self.target.get_params()), arrays, self.predict().tobytes(), repr(self.target.history_)

    def predict(self):
        return self.target.predict(X)


class Full(Estimator):
    data: ClassVar = {"X": {"x": X, "y_target": Y}}

    def make(self):
        proto = add_loss_output(model(), weighted=False)
        return OrtGradientOptimizer(proto, label_names="y_target", max_iter=2, batch_size=4, random_state=0)


class Regressor(Estimator):
    """Its `set_params` takes everything, as scikit-learn's; `fit` refuses."""

    def make(self):
        return OnnxRegressor(model(), max_iter=2, batch_size=4, random_state=0)

    def __init__(self):
        super().__init__()
        self.names = self.attributes = ()

    def list_held(self):
        arrays = [a.tobytes() for a in self.target.optimizer_.get_state()]
        return repr(self.target.get_params()), arrays, self.predict().tobytes()


class Module(Door):
    def __init__(self):
        self.target = nn.Linear(4, 2).compile(nn.placeholder(["N", 4]), random_state=0).set_optimizer("adam")
        self.target.fit(X, Y, epochs=1, batch_size=4)
        self.calls = {"fit": {"X": X, "y": Y, "epochs": 1}, "set_optimizer": {"rate": 0.1},
                      "compile": {"inputs": nn.placeholder(["N", 4])}, "train_one_batch": {"x": X, "y": Y}}
        optimizer = inspect.signature(nn.Optimizer.__init__).parameters
        self.settings = [n for n in optimizer if n not in ("self", "rate")]

    def list_settings(self):
        for call, setting in super().list_settings():
            if setting != "settings":
                yield call, setting
        yield from (("set_optimizer", n) for n in self.settings)

    def list_held(self):
        state = {n: a.tobytes() for n, a in self.target.state_dict().items()}
        held = {n: a.tobytes() for n, a in self.target.optimizer.state_dict().items()} if hasattr(
            self.target.optimizer, "state_dict") else {}
        return state, held, repr(self.target.optimizer), self.target(X).tobytes(), repr(self.target.history_)


class NnOptimizer(Door):
    def __init__(self):
        self.module = nn.Linear(4, 2).compile(nn.placeholder(["N", 4]), random_state=0).set_optimizer("adam")
        self.module.fit(X, Y, epochs=1, batch_size=4)
        self.target, self.calls = self.module.optimizer, {}
        self.attributes = [n for n in inspect.signature(nn.Optimizer.__init__).parameters if n != "self"]

    def list_held(self):
        return {n: a.tobytes() for n, a in self.module.state_dict().items()}, repr(self.target)


DOORS = {d.__name__: d for d in (Estimator, Full, Regressor, Module, NnOptimizer)}


def find_changes(door, rows):
    """Settings whose refusal changed something, and how many were refused; what takes one is trained anew."""
    kind, before, changes, refused = type(door), door.list_held(), [], 0
    for call, setting, value in rows:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                door.apply(call, setting, value)
            is_changed = True
        except Exception as e:
            refused += 1
            if is_changed := door.list_held() != before:
                changes.append((call, setting, show(value), f"{type(e).__name__}: {str(e)[:80]}"))
        if is_changed:
            door = kind()
            before = door.list_held()
    return changes, refused


def list_rows(door, values):
    """Each setting with some values."""
    return [(call, setting, value) for k, (call, setting) in enumerate(door.list_settings()) for value in values(k)]


@pytest.mark.parametrize("name", DOORS)
def test_a_refusal_changes_nothing_in_a_sample(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    door = DOORS[name]()
    rows = list_rows(door, lambda k: [VALUES[11 * k % len(VALUES)]] if k % 3 != 1 else [])
    changes, refused = find_changes(door, rows)
    assert changes == []
    assert refused > 1


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", DOORS)
def test_a_refusal_changes_nothing(name, part, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    door = DOORS[name]()
    changes, refused = find_changes(door, list_rows(door, lambda k: VALUES[part::4]))
    assert changes == []
    assert refused > 10


def test_a_change_would_be_seen():
    class Careless(Estimator):
        def apply(self, call, setting, value):
            self.target.get_state()
            self.target.partial_fit(X, Y)
            raise ValueError("too late")

    changes, refused = find_changes(Careless(), [("fit", "X", None)])
    assert (len(changes), refused) == (1, 1)


def test_an_estimator_keeps_its_training_where_resume_is_no_path():
    regressor = Regressor().target
    before = regressor.optimizer_
    with pytest.raises(SettingError, match=r"^resume is a path, a string or a Path, not 3\.$"):
        regressor.fit(X, Y, resume=3)
    assert regressor.optimizer_ is before
