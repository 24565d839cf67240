"""Networks that an estimator trains where it is given no model."""

import numpy as np
import pytest
from sklearn.neural_network import MLPClassifier, MLPRegressor

from ortpartial import OnnxClassifier, OnnxRegressor
from ortpartial.estimator.sklearn.networks import ACTIVATIONS

RNG = np.random.RandomState(0)
X = RNG.randn(60, 4)
SETTINGS = {"hidden_layer_sizes": (7, 3), "max_iter": 1, "learning_rate_init": 1e-12, "random_state": 3}

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("activation", ["relu", "logistic", "tanh", "identity"])
@pytest.mark.parametrize(("ours", "theirs", "y"), [
    (OnnxRegressor, MLPRegressor, X[:, 0]), (OnnxRegressor, MLPRegressor, X[:, :3]),
    (OnnxClassifier, MLPClassifier, X[:, 0] > 0), (OnnxClassifier, MLPClassifier, np.arange(60) % 3),
], ids=["regressor", "regressor of 3", "classifier of 2", "classifier of 3"])
def test_first_weights_and_function_are_those_of_scikit_learn(ours, theirs, y, activation):
    ours, theirs = (cls(activation=activation, **SETTINGS).fit(X, y) for cls in (ours, theirs))
    for a, b in zip(ours.coefs_ + ours.intercepts_, theirs.coefs_ + theirs.intercepts_, strict=True):
        assert np.allclose(a, b, atol=1e-9)
    compute = "predict_proba" if hasattr(theirs, "classes_") else "predict"
    assert np.allclose(getattr(ours, compute)(X), getattr(theirs, compute)(X), atol=1e-7)


def test_steps_are_those_of_scikit_learn():
    """Weights after 30 epochs on all rows at once, where the order of the rows does not matter."""
    settings = {"hidden_layer_sizes": (7,), "max_iter": 30, "random_state": 0, "alpha": 0.1, "tol": 0}
    for y in (X[:, 0], X[:, :3]):
        ours, theirs = OnnxRegressor(**settings).fit(X, y), MLPRegressor(**settings).fit(X, y)
        for a, b in zip(ours.coefs_ + ours.intercepts_, theirs.coefs_ + theirs.intercepts_, strict=True):
            assert np.allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_learns(activation):
    y = np.sin(2 * X[:, 0])
    model = OnnxRegressor(hidden_layer_sizes=20, activation=activation, learning_rate_init=0.02, random_state=0)
    score = model.fit(X, y).score(X, y)
    assert score > (0.05 if activation == "identity" else 0.6)


def test_dropout_masks_follow_from_the_random_state():
    y = X[:, 0]
    first, again, none = (OnnxRegressor(hidden_layer_sizes=20, dropout=d, max_iter=5, random_state=0).fit(X, y)
                          for d in (0.5, 0.5, 0.0))
    assert np.array_equal(first.predict(X), again.predict(X))
    assert not np.allclose(first.predict(X), none.predict(X))
    assert np.array_equal(first.predict(X), first.predict(X))  # Nothing is dropped.


def test_the_dtype_is_that_of_the_data_or_the_one_asked_for():
    for given in (np.float32, np.float64):
        for dtype in ("auto", "float32", "float64"):
            model = OnnxRegressor(max_iter=1, dtype=dtype).fit(X.astype(given), X[:, 0])
            assert model.coefs_[0].dtype == (given if dtype == "auto" else dtype)
