"""Pieces with other settings train other weights: every form in which users write one, at every door."""

import copy
import dataclasses
import pickle
import warnings

import numpy as np
import pytest
from piece_forms import FORMS, KINDS, LOSS_FORMS, A, B, change, make
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from ortpartial import (
    OnnxRegressor,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    TrainingKit,
    TrainingSession,
    add_loss_output,
    build,
    constant,
    nn,
    variable,
)
from ortpartial.exceptions import CheckpointError, SettingError
from ortpartial.execution import shared_sessions
from ortpartial.learning import BaseLearningRate, LearningRateSGD, WeightDecay
from ortpartial.runtime import Session

X = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
Y = (X @ [[1.0], [-2.0]] + 3).astype(np.float32)
CHANGING = [form for form, f in LOSS_FORMS.items() if f.change]
#: Python refuses a plain dataclass whose base is a frozen one, as that of optimizers is.
OF_KIND = {kind: [f for f in (LOSS_FORMS if kind == "loss" else FORMS) if not (kind == "rate" and "plain" in f)]
           for kind in KINDS}
SETTINGS = {"loss": "learning_loss", "penalty": "learning_penalty", "rate": "learning_rate",
            "averaging": "averaging", "schedule": "learning_rate"}


def model():
    x, w = variable("x", "float32", ["N", 2]), constant(np.full((2, 1), 0.5, np.float32), hint="w")
    return build([x], {"y": x @ w})


def setting(kind, piece):
    """The settings of an optimizer of which one is the piece."""
    value = LearningRateSGD(0.5, schedule=piece) if kind == "schedule" else piece
    return {"learning_rate": 0.5, SETTINGS[kind]: value, **({"use_average": True} if kind == "averaging" else {})}


def partial(kind, piece, **settings):
    return OrtGradientForwardBackwardOptimizer(
        model(), max_iter=3, batch_size=8, shuffle=False, **{**setting(kind, piece), **settings})


def whole(kind, piece, **settings):
    return OrtGradientOptimizer(add_loss_output(model()), max_iter=3, batch_size=8, shuffle=False,
                                **setting(kind, piece), **settings)


def weights(optimizer):
    return optimizer.trained_coef_["w"].ravel()


def expected(kind, s):
    """The weights after three steps, computed by numpy."""
    w, average, (x, y) = np.full((2, 1), 0.5), None, (X.astype(float), Y.astype(float))
    eta = {"rate": 0.01 * s, "schedule": 0.5 * s}.get(kind, 0.5)
    for _ in range(3):
        e = y - x @ w
        cost = np.where(e > 0, -s, 1 - s) if kind == "loss" else -2 * e
        w = w - eta * (x.T @ cost / len(x) + (2 * s * w if kind == "penalty" else 0))
        average = w if average is None else (1 - s) * average + s * w
    return (average if kind == "averaging" else w).ravel()


def assert_trained(optimizer, kind, s):
    np.testing.assert_allclose(weights(optimizer), expected(kind, s), rtol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_settings_matter(kind):
    assert abs(expected(kind, A) - expected(kind, B)).max() > 1e-3


# Identity.


@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind in KINDS for form in OF_KIND[kind] if form in FORMS])
def test_pieces_compare_by_their_settings(kind, form):
    a, b = make(form, kind, A), make(form, kind, B)
    assert a == a
    assert a != b
    assert hash(a) == hash(a) != hash(b)
    assert len({a, b}) == 2
    assert copy.copy(a) == a
    assert type(a).__name__ in repr(a)
    assert form in ("function", "another piece", "object", "tensor") or str(A) in repr(a) != repr(b)
    if form not in ("tensor", "object", "function"):
        again = make(form, kind, A)
        assert (again, copy.deepcopy(a)) == (a, a)
        assert hash(again) == hash(a)


# Doors.


CASES = [(kind, form) for kind in KINDS for form in OF_KIND[kind]]
#: The forms of one kind in each run, and of the other kinds with slow tests.
SAMPLE = [pytest.param(kind, form, marks=() if kind == "loss" or form in ("ordinary", "array") else pytest.mark.slow)
          for kind, form in CASES]


@pytest.mark.parametrize(("kind", "form"), SAMPLE)
def test_optimizer(kind, form):
    """Another object, and a piece that has changed, in fit and partial_fit."""
    piece = make(form, kind, A)
    optimizer = partial(kind, piece).fit(X, Y)
    assert_trained(optimizer, kind, A)
    if LOSS_FORMS[form].change:
        change(form, piece, B)
        assert_trained(optimizer.fit(X, Y), kind, B)
        change(form, piece, A)
        optimizer.set_state([np.full((2, 1), 0.5)])
    optimizer.set_params(**{SETTINGS[kind]: setting(kind, make(form, kind, B))[SETTINGS[kind]]})
    assert_trained(optimizer.fit(X, Y), kind, B)
    assert_trained(partial(kind, make(form, kind, B)).fit(X, Y), kind, B)


class Line(nn.Module):
    def __init__(self, kind, piece):
        self.linear = nn.Linear(2, 1, bias=False)
        self.loss = nn.Loss(piece if kind == "loss" else "square_error")
        settings = setting(kind, piece)
        self.optimizer = nn.Optimizer(settings["learning_rate"], penalty=settings.get("learning_penalty"))

    def forward(self, x):
        return self.linear(x)

    def train_one_batch(self, x, y):
        output = self.forward(x)
        loss = self.loss(output, y)
        self.optimizer(loss)
        return output, loss

    def replace(self, kind, piece):
        if kind == "loss":
            self.loss.loss = piece
        elif kind == "penalty":
            self.optimizer.penalty = piece
        else:
            self.optimizer.rate = setting(kind, piece)["learning_rate"]

    def check(self, kind, s):
        """Three steps from the same weights."""
        self.linear.weight.set(np.full(self.linear.weight.shape, 0.5))
        self.fit(X, Y, epochs=3, batch_size=8, shuffle=False, verbose=0)
        np.testing.assert_allclose(self.linear.weight.numpy().ravel(), expected(kind, s), rtol=2e-5)


@pytest.mark.parametrize(("kind", "form"), [
    (kind, form) for kind, form in CASES if kind != "averaging" and (form in ("ordinary", "array", "closure"))])
def test_module(kind, form):
    piece = make(form, kind, A)
    module = Line(kind, piece).compile(nn.placeholder(["N", 2]))
    module.check(kind, A)
    change(form, piece, B)
    module.check(kind, B)
    module.replace(kind, make(form, kind, A))
    module.check(kind, A)


@pytest.mark.parametrize(("kind", "form"), [
    pytest.param(k, f, marks=() if f in ("ordinary", "closure", "callable object", "partial") else pytest.mark.slow)
    for k, f in CASES])
def test_checkpoints(kind, form, tmp_path):
    """A training goes on with the same settings, and not with others."""
    path = tmp_path / "last.safetensors"
    first = partial(kind, make(form, kind, A)).fit(X, Y)
    first.save_checkpoint(path)
    again = partial(kind, make(form, kind, A))
    again.fit(X, Y, resume=path)
    assert_trained(again, kind, A)
    if form not in ("object", "tensor"):
        with pytest.raises(CheckpointError, match=f"is of a training with {SETTINGS[kind]}="):
            partial(kind, make(form, kind, B)).fit(X, Y, resume=path)


@pytest.mark.parametrize(("kind", "form"), [c for c in CASES if c[1] in ("ordinary", "array", "plain dataclass")
                                            and c[0] != "loss"])
def test_a_checkpoint_has_the_pieces_of_its_time(kind, form, tmp_path):
    """A callback replaces the piece; the training that goes on begins with the former one."""
    def replace(o):
        o.set_params(**setting(kind, make(form, kind, B)))

    first = partial(kind, make(form, kind, A)).fit(X, Y)
    first.callbacks = [replace]
    first.fit(X, Y)
    first.callbacks = ()
    first.save_checkpoint(tmp_path / "last.safetensors")
    again = partial(kind, make(form, kind, A))
    again.load_checkpoint(tmp_path / "last.safetensors")
    np.testing.assert_array_equal(weights(again.partial_fit(X, Y)), weights(first.partial_fit(X, Y)))
    np.testing.assert_allclose(weights(partial(kind, getattr(again, SETTINGS[kind])
                                               if kind != "schedule" else again.learning_rate.schedule).fit(X, Y)),
                               expected(kind, B), rtol=2e-5)


@pytest.mark.parametrize(("kind", "form"), [c for c in CASES if c[0] in ("penalty", "rate") and c[1] in FORMS and (
    c[1] in ("ordinary", "list"))])
def test_whole_graphs(kind, form):
    piece = make(form, kind, A)
    optimizer = whole(kind, piece).fit(X, Y)
    assert_trained(optimizer, kind, A)
    change(form, piece, B)
    assert_trained(optimizer.fit(X, Y), kind, B)
    optimizer.set_params(**setting(kind, make(form, kind, A)))
    assert_trained(optimizer.fit(X, Y), kind, A)


@pytest.mark.parametrize(("kind", "form"), [(k, f) for k, f in CASES
                                            if k != "averaging" and f in ("ordinary", "dict", "callable object")])
def test_exports(kind, form, tmp_path):
    """A stored training, a kit and the graphs of each part have the settings of now."""
    piece = make(form, kind, A)
    optimizer = partial(kind, piece).fit(X, Y)
    optimizer.export_step(tmp_path / "former", targets=())
    change(form, piece, B)
    optimizer.set_state([np.full((2, 1), 0.5)])
    optimizer.set_state([np.zeros((), np.int64)], "optimizer")
    session = TrainingSession(optimizer.get_training_onnx("lowered", init="model"))
    optimizer.export_step(tmp_path / "kit", targets=())
    kit = TrainingKit(tmp_path / "kit")
    for _ in range(3):
        session.step({"x": X, "y_target": Y})
        kit.step({"x": X, "y_target": Y})
    for state in (session.state, kit.state):
        np.testing.assert_allclose(state["w"].ravel(), expected(kind, B), rtol=2e-5)
    rows = np.asarray(optimizer.losses(X, Y))
    if kind == "loss":
        e = Y - X @ np.full((2, 1), 0.5)
        np.testing.assert_allclose(rows, np.maximum(B * e, (B - 1) * e).ravel(), rtol=1e-5)


@pytest.mark.parametrize("form", ["ordinary", "array", "closure", "callable object", "global"])
def test_an_unchanged_training_is_compiled_once(form, monkeypatch):
    """The same object in every fit of an optimizer, and objects with equal settings in estimators."""
    compiled, open_session = [], Session.__init__

    def note(self, *args, **settings):
        compiled.append(self)
        open_session(self, *args, **settings)

    monkeypatch.setattr(Session, "__init__", note)
    optimizer = partial("loss", make(form, "loss", A)).fit(X, Y)
    first = len(compiled)
    for _ in range(3):
        optimizer.fit(X, Y).partial_fit(X, Y)
    assert first == len(compiled)
    shared_sessions.clear()
    estimator = regressor(loss=make(form, "loss", A))
    predict(estimator)
    first = len(compiled)
    predict(estimator)
    predict(clone(estimator))
    predict(regressor(loss=make(form, "loss", A)))
    assert first == len(compiled)


def regressor(**settings):
    return OnnxRegressor(None, max_iter=2, tol=0, n_iter_no_change=np.inf, random_state=0, batch_size=8, **settings)


OF_ESTIMATOR = {"loss": "loss", "penalty": "penalty", "rate": "learning_rate"}


@pytest.fixture(scope="module")
def references():
    """The predictions of networks with each setting, each compiled by itself."""
    predictions = {}
    for kind, name in OF_ESTIMATOR.items():
        for s in (A, B):
            shared_sessions.clear()
            predictions[kind, s] = predict(regressor(**{name: make("frozen dataclass", kind, s)}))
    return predictions


def predict(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(X, Y.ravel()).predict(X)


@pytest.mark.parametrize(("kind", "form"), [
    pytest.param(k, f, marks=() if f in ("plain dataclass", "ordinary", "array", "function", "closure", "partial")
                 else pytest.mark.slow) for k, f in CASES if k in OF_ESTIMATOR])
def test_estimators(kind, form, references):
    name, piece = OF_ESTIMATOR[kind], make(form, kind, A)
    estimator = regressor(**{name: piece})
    np.testing.assert_array_equal(predict(estimator), references[kind, A])
    if LOSS_FORMS[form].change:
        change(form, piece, B)
        np.testing.assert_array_equal(predict(estimator), references[kind, B])
        change(form, piece, A)
    changes = [{name: make(form, kind, B)}] + [{f"{name}__s": B}] * (f"{name}__s" in estimator.get_params())
    for settings in changes:
        np.testing.assert_array_equal(predict(clone(estimator).set_params(**settings)), references[kind, B])


@pytest.mark.parametrize(("kind", "form"), [("loss", "ordinary"), ("loss", "closure"), ("rate", "ordinary")])
def test_grid_search(kind, form, references):
    name = OF_ESTIMATOR[kind]
    pieces = [make(form, kind, s) for s in (A, B)]
    rows = np.arange(len(X))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        search = GridSearchCV(regressor(), {name: pieces}, cv=[(rows, rows)], refit=False,
                              scoring="neg_mean_absolute_error").fit(X, Y.ravel())
    errors = [-abs(Y.ravel() - references[kind, s]).mean() for s in (A, B)]
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], errors, rtol=1e-6)


# Optimizers of ordinary classes.


class ByClass(BaseLearningRate):
    schedule = "constant"

    def update(self, w, g, *, k):
        return g, ()


class ByConstructor(BaseLearningRate):
    def __init__(self, eta0, schedule="cosine"):
        self.eta0 = eta0
        self.schedule = schedule

    def update(self, w, g, *, k):
        return g, ()


class WithKeywords(WeightDecay):
    def __init__(self, factor, **settings):
        super().__init__(**settings)
        self.factor = factor

    def update(self, w, g, *, k):
        return self.factor * g, ()


@pytest.mark.parametrize(("piece", "equal"), [
    (ByClass(0.25), LearningRateSGD(0.25)), (ByClass(eta0=0.25, schedule="invscaling"), LearningRateSGD(
        0.25, schedule="invscaling")), (ByConstructor(0.25), LearningRateSGD(0.25, schedule="cosine")),
    (WithKeywords(0.5, eta0=0.5, weight_decay=0.1, no_decay="w"), LearningRateSGD(0.25)),
    (WithKeywords(1.0, eta0=0.25, weight_decay=0.1), LearningRateSGD(0.25, weight_decay=0.1))], ids=repr)
def test_an_optimizer_with_an_ordinary_constructor(piece, equal):
    first, expected = (partial("rate", p).fit(X, Y) for p in (piece, equal))
    np.testing.assert_array_equal(weights(first), weights(expected))
    again = pickle.loads(pickle.dumps(first))
    assert again.learning_rate == piece
    np.testing.assert_array_equal(weights(again.partial_fit(X, Y)), weights(expected.partial_fit(X, Y)))
    for optimizer in (first, expected):
        optimizer.set_params(learning_rate__eta0=0.125)
        assert optimizer.get_params()["learning_rate__eta0"] == 0.125
    if isinstance(piece, WithKeywords):
        return
    np.testing.assert_array_equal(weights(first.fit(X, Y)), weights(expected.fit(X, Y)))


def test_settings_of_an_ordinary_piece_are_checked_when_they_are_used():
    with pytest.raises(SettingError, match="ByConstructor: eta0 is -1, a finite number more than 0 was expected"):
        partial("rate", ByConstructor(-1)).fit(X, Y)
    with pytest.raises(SettingError, match=r"schedule: 'cosin' is not known\. Did you mean 'cosine'"):
        partial("rate", ByConstructor(1, "cosin")).fit(X, Y)


def test_the_history_has_the_step_sizes_of_its_time():
    rate = ByConstructor(0.5, "constant")
    optimizer = partial("rate", rate).fit(X, Y)
    rate.eta0 = 0.25
    assert [record["learning_rate"] for record in optimizer.history_] == [0.5] * 3
    assert optimizer.fit(X, Y).history_[-1]["learning_rate"] == optimizer.learning_rate_ == 0.25


def test_a_piece_shows_its_settings():
    assert repr(ByConstructor(0.5)) == "ByConstructor(eta0=0.5, schedule='cosine')"
    assert repr(make("array", "penalty", A)) == "Array(content=array([0.125]))"
    assert repr(make("private attribute", "loss", A)) == "Private(_s=0.125)"
    circle = make("list", "penalty", A)
    circle.content.append(circle)
    assert repr(circle) == "List(content=[0.125, ...])"
    assert circle == circle
    assert "learning_loss=Ordinary(s=0.125)" in repr(partial("loss", make("ordinary", "loss", A)))


def test_pieces_of_the_library_remain_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError, match="LearningRateSGD is immutable"):
        LearningRateSGD().eta0 = 1.0
    with pytest.raises(TypeError, match="non-frozen"):
        dataclasses.dataclass(type("Plain", (BaseLearningRate,), {"__annotations__": {"s": float}, "s": 1.0}))
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"make another one, Normal\(std=1\)"):
        nn.Normal().std = 1


def test_initializers_compare_by_what_they_hold():
    class Ramp(nn.Initializer):
        def __init__(self, ends):
            self.ends = ends

        def __call__(self, shape, dtype="float32", *, seed=None):
            return constant(np.linspace(*self.ends, np.prod(shape)).reshape(shape), dtype)

    assert Ramp([0, 1]) == Ramp([0, 1]) != Ramp([0, 2])
    assert nn.Constant(np.ones(2)) == nn.Constant(np.ones(2)) != nn.Constant(np.ones(3))
    assert repr(Ramp([0, 1])) == "Ramp(ends=[0, 1])"
