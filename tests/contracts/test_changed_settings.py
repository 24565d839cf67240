"""Every setting of every door that changes after a fit takes effect in the next one, or is refused."""

import inspect
import warnings

import numpy as np
import pytest
from onnxruntime import InferenceSession
from sklearn.exceptions import ConvergenceWarning

from ortpartial import (
    ElasticLearningPenalty,
    LossScale,
    OnnxClassifier,
    OnnxRegressor,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    add_loss_output,
    build,
    constant,
    op,
    variable,
)
from ortpartial.exceptions import DeadlineError
from ortpartial.execution import shared_sessions

X = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
Y = (X @ [[1.0], [-2.0]] + 0.1).astype(np.float32)


def model(factor=1.0, a=0.25):
    x = variable("x", "float32", ["N", 2])
    a = constant(np.full((2, 3), factor * a, np.float32), hint="a")
    b = constant(np.full((3, 1), 0.5, np.float32), hint="b")
    return build([x], {"y": op.Dropout(op.Tanh(x @ a), 0.5, False) @ b})


PARTIAL = {
    "model": model(2.0), "weights_to_train": ["b"], "learning_loss": "absolute_error", "learning_rate": "Adam",
    "learning_penalty": ElasticLearningPenalty(l2=0.1), "max_iter": 5, "batch_size": 7, "shuffle": False,
    "init": "random", "train_mode": True, "precision": "float16", "loss_scale": LossScale(2.0), "random_state": 3,
    "engine": "step", "warm_start": True, "validation_every": 1, "callbacks": [lambda o: True], "metrics": ["mae"],
    "checkpointing": True, "gradient_clipping": 0.01, "accumulate": 2, "averaging": "ema", "use_average": True,
    "rate_factors": {"a": 0.5}, "freeze": "a", "timeout": 0.01, "verbose": 1, "raise_on_divergence": False,
    "check": True}

#: What has no effect on the weights of this training: how it shows is told by tests of its own.
SILENT = {"validation_every", "metrics", "timeout", "verbose", "raise_on_divergence", "check", "engine",
          "checkpointing", "loss_scale", "averaging", "precision"}

#: With which others a setting has an effect, or is allowed.
WITH = {"loss_scale": {"precision": "float16"}, "use_average": {"averaging": "ema"}, "rate_factors": {},
        "validation_every": {}}

#: Settings that need a device or processes.
ELSEWHERE = {"device", "distributed"}


def train(optimizer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {n: a.copy() for n, a in optimizer.fit(X, Y).trained_coef_.items()}


def partial(**settings):
    return OrtGradientForwardBackwardOptimizer(**{
        "model": model(), "learning_rate": 0.1, "max_iter": 2, "random_state": 0, "batch_size": 10, **settings})


def whole(**settings):
    graph = add_loss_output(settings.pop("model", model()))
    return OrtGradientOptimizer(**{
        "model": graph, "learning_rate": 0.1, "max_iter": 2, "random_state": 0, "batch_size": 10, **settings})


def settings_of(kind):
    names = [n for n in inspect.signature(kind.__init__).parameters if n != "self"]
    return [n for n in names if n not in ELSEWHERE]


def test_the_table_is_complete():
    assert set(settings_of(OrtGradientForwardBackwardOptimizer)) == PARTIAL.keys()
    assert set(settings_of(OrtGradientOptimizer)) - PARTIAL.keys() == {
        "loss_output_name", "label_names", "sample_weight_name"}
    for kind in (OnnxRegressor, OnnxClassifier):
        assert set(settings_of(kind)) - {"class_weight"} == ESTIMATOR.keys()


@pytest.mark.parametrize("way", ["attribute", pytest.param("set_params", marks=pytest.mark.slow)])
@pytest.mark.parametrize("door", [partial, pytest.param(whole, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PARTIAL)
def test_optimizers(door, name, way):
    if door is whole and name in ("learning_loss", "model"):
        pytest.skip("the loss is a part of the graph; tests/estimator/test_full_optimizer.py")
    others = WITH.get(name, {})
    changed, fresh = door(**others), door(**{**others, name: PARTIAL[name]})
    before = train(changed)
    if name == "random_state":
        fresh = door(random_state=0)
        train(fresh)
        fresh.random_state = PARTIAL[name]
    if name in ("weights_to_train", "freeze"):  # A weight that is no longer trained keeps what it has learned.
        fresh = door(model=model(a=before["a"]), **{name: PARTIAL[name]})
    if way == "set_params":
        changed.set_params(**{name: PARTIAL[name]})
    else:
        setattr(changed, name, PARTIAL[name])
    assert_effect(changed, fresh, name, before)


def assert_effect(changed, fresh, name, before):
    if name == "timeout":
        changed.max_iter = 10**6
        with pytest.raises(DeadlineError):
            changed.fit(X, Y)
        return
    if name == "warm_start":
        fresh = partial(max_iter=4) if type(changed) is OrtGradientForwardBackwardOptimizer else whole(max_iter=4)
    if name in ("init", "shuffle"):  # The generator has gone on.
        fresh._rng.bit_generator.state = changed._rng.bit_generator.state
    after, expected = train(changed), train(fresh)
    if name not in SILENT:
        assert any(not np.array_equal(after.get(n), a) for n, a in before.items())
    for n, a in expected.items():
        np.testing.assert_allclose(after[n], a, rtol=1e-6, atol=1e-7)
    assert changed.engine_ == fresh.engine_


REGRESSION = np.random.default_rng(1).normal(size=40)


BRIEF = {"max_iter": 3, "random_state": 0, "batch_size": 10, "n_iter_no_change": np.inf}


def regressor(**settings):
    return OnnxRegressor(**{**BRIEF, **settings})


def classifier(**settings):
    return OnnxClassifier(**{**BRIEF, **settings})


def fit(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(X, REGRESSION if isinstance(estimator, OnnxRegressor) else REGRESSION > 0)
    return estimator


#: Settings of which only the next new training makes use: they tell of a network, which `warm_start` does not replace.
NETWORK = ("model", "hidden_layer_sizes", "activation", "dropout", "dtype")


@pytest.mark.parametrize("make", [regressor, pytest.param(classifier, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["loss", "penalty", "alpha", "learning_rate", "learning_rate_init", "weights_to_train",
                                  "engine", "settings", "random_state", "batch_size", "max_iter", *NETWORK])
def test_estimators(make, name):
    """A new training is that of a new estimator; one that goes on changes, or says that it cannot."""
    value = ESTIMATOR[name]
    if name == "loss":
        value = "absolute_error" if make is regressor else "hinge"
    same = {"hidden_layer_sizes": (2,)} if name in ("activation", "dropout") else {}
    changed = fit(make(**same))
    setattr(changed, name, value)
    fresh = fit(make(**{**same, name: value}))
    np.testing.assert_array_equal(fit(changed).predict(X), fresh.predict(X))
    kept, warm = fit(make(**same, warm_start=True)), fit(make(**same, warm_start=True))
    warm.set_params(**{name: value})
    if name in NETWORK:
        with pytest.raises(ValueError, match=f"{name} has changed, and this training goes on with the network that it"):
            fit(warm)
        with pytest.raises(ValueError, match=f"{name} has changed"):
            warm.partial_fit(X, REGRESSION > 0)
        return
    fit(warm)
    fit(kept)
    if name == "engine":
        assert warm.optimizer_.engine_ == value
    elif name == "max_iter":
        assert (warm.n_iter_, kept.n_iter_) == (9, 3)
    else:
        assert any(not np.array_equal(a, b) for a, b in zip(warm.optimizer_.get_state(), kept.optimizer_.get_state(),
                                                            strict=False)) or name == "weights_to_train"
        assert name != "weights_to_train" or warm.optimizer_.weights_to_train == value


@pytest.mark.parametrize("frozen", [{"weights_to_train": ["coef_1"]}, {"settings": {"freeze": "coef_0"}}])
def test_estimators_do_not_share_frozen_weights(frozen):
    """They are constants of what is compiled."""
    frozen = {"hidden_layer_sizes": (3,), "max_iter": 30, **frozen}
    predictions = []
    for clear in (True, False):
        shared_sessions.clear()
        for seed in (0, 1):
            estimator = fit(regressor(**{**frozen, "random_state": seed}))
            if clear:
                shared_sessions.clear()
            predictions.append(estimator.predict(X))
    np.testing.assert_array_equal(predictions[:2], predictions[2:])
    session = InferenceSession(estimator.optimizer_.get_trained_onnx().SerializeToString())
    np.testing.assert_allclose(session.run(None, {"X": X})[0].ravel(), predictions[-1].ravel(), rtol=1e-5)


def test_settings_of_an_estimator_can_be_taken_back():
    estimator = fit(regressor(warm_start=True, settings={"gradient_clipping": 1e-3}))
    fit(estimator.set_params(settings=None))
    assert estimator.optimizer_.gradient_clipping is None


ESTIMATOR = {
    "model": lambda shape, n: model(), "hidden_layer_sizes": (3,), "activation": "tanh", "dropout": 0.5, "alpha": 1.0,
    "loss": None, "penalty": ElasticLearningPenalty(l1=1.0), "learning_rate": "SGD", "learning_rate_init": 0.5,
    "batch_size": 7, "max_iter": 9, "shuffle": False, "random_state": 5, "tol": 1e9, "n_iter_no_change": 1,
    "early_stopping": True, "validation_fraction": 0.5, "warm_start": True, "verbose": True,
    "weights_to_train": ["coef"], "dtype": "float64", "engine": "step", "callbacks": [lambda o: True],
    "metrics": ["r2"],
    "settings": {"gradient_clipping": 1e-3}}
