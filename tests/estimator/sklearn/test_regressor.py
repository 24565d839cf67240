"""The regressor: one output or several, losses of quantities."""

import numpy as np
import pytest
from sklearn.exceptions import DataConversionWarning
from sklearn.linear_model import Ridge

from ortpartial import HuberLearningLoss, OnnxRegressor, build, constant, op, variable
from ortpartial.exceptions import DataError, ModelError

RNG = np.random.RandomState(0)
X = RNG.randn(120, 5)
Y = X @ RNG.randn(5, 3) + [1.0, 2.0, 3.0]

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def regressor(**settings):
    defaults = {"random_state": 0, "learning_rate_init": 0.1, "tol": 0, "n_iter_no_change": np.inf}
    return OnnxRegressor(**{**defaults, **settings})


def test_it_converges_to_the_optimum():
    """½ mean e² + ½ alpha / n Σw², the function that ridge regression minimizes."""
    ours = regressor(alpha=10.0, max_iter=800, learning_rate_init=0.02, dtype="float64").fit(X, Y[:, 0])
    theirs = Ridge(alpha=10.0).fit(X, Y[:, 0])
    assert np.allclose(ours.coefs_[0].ravel(), theirs.coef_, atol=1e-3)
    assert np.allclose(ours.intercepts_[0], theirs.intercept_, atol=1e-3)


def test_an_output_without_columns():
    x = variable("x", "float32", ["N", 5])
    model = build([x], {"y": op.MatMul(x, constant(np.zeros((5, 0), np.float32), hint="w"))})
    with pytest.raises(ModelError, match=r"The output of the model, <Value y float32\[Nx0\]>, has no columns"):
        regressor(model=model).fit(X, Y)


def test_several_outputs():
    model = regressor().fit(X, Y)
    assert model.predict(X).shape == Y.shape
    assert model.score(X, Y) > 0.999
    assert model.n_outputs_ == 3
    assert regressor(max_iter=2).fit(X, Y[:, 0]).predict(X).shape == (120,)
    with pytest.warns(DataConversionWarning):
        assert regressor(max_iter=2).fit(X, Y[:, :1]).predict(X).shape == (120,)


def test_rows_of_weight_0_are_not_there():
    weight = (np.arange(120) < 80).astype(float)
    settings = {"max_iter": 5, "batch_size": 200, "shuffle": False, "dtype": "float64"}
    some = regressor(**settings).fit(X[:80], Y[:80])
    assert np.allclose(regressor(**settings).fit(X, Y, weight).predict(X), some.predict(X), rtol=1e-9)


@pytest.mark.parametrize("loss", ["absolute_error", "huber", HuberLearningLoss(2.0), lambda y, t: abs(y - t)])
def test_losses(loss):
    assert regressor(loss=loss).fit(X, Y[:, 0]).score(X, Y[:, 0]) > 0.97


def test_a_poisson_loss_predicts_means():
    counts = RNG.poisson(np.exp(X[:, 0]))
    model = regressor(loss="poisson").fit(X, counts)
    assert (model.predict(X) > 0).all()
    assert abs(model.predict(X).mean() - counts.mean()) < 0.1
    with pytest.raises(DataError, match="counts, at least 0, were expected"):
        regressor(loss="poisson").fit(X, -counts)
