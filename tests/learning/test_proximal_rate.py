"""Proximal steps of every optimizer by their formula, at every engine and door; weights that are exactly 0."""

import pickle

import numpy as np
import pytest
from models import linear, mlp

from ortpartial import (
    ElasticLearningPenalty,
    LearningRateSGD,
    OnnxRegressor,
    OrtGradientForwardBackwardOptimizer,
    TrainingSession,
    nn,
    to_training_info,
)
from ortpartial.learning import BaseLearningRate, optimizers
from ortpartial.learning.proximal_rate import ProximalRate
from ortpartial.runtime import Session, has_training

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 3)).astype(np.float32)
Y = (2 * X[:, :1]).astype(np.float32)
STRONG = ElasticLearningPenalty(l1=0.3, l2=0.1, proximal=True)


def run(rate, arrays):
    session = Session(rate.build_onnx_function(dtype="float64", shape=(3, 2)))
    return session.run({n: arrays[n] for n in session.inputs})


@pytest.mark.parametrize("name", [n for n in optimizers.__all__ if n.startswith("LearningRate")])
def test_formula(name):
    rate = getattr(optimizers, name)(0.1, schedule="invscaling")
    arrays = {n: RNG.uniform(0.1, 0.5, size=shape) for n, shape in
              {"w": (3, 2), "g": (3, 2), **rate.state_shapes((3, 2))}.items()}
    arrays |= {"k": np.array(4)}
    plain, proximal = run(rate, arrays), run(ProximalRate(rate, 3.0, 2.0), arrays)
    y, eta = plain.pop("w_out"), 0.1 / 2
    w = np.sign(y) * np.maximum(abs(y) - eta * 3, 0) / (1 + eta * 2)
    np.testing.assert_allclose(proximal.pop("w_out"), w, rtol=1e-12, atol=1e-15)
    assert all(np.array_equal(proximal[n], a) for n, a in plain.items())


def test_numbers_that_are_not_finite_stay():
    arrays = {"w": np.array([[np.nan, np.inf], [-np.inf, 1], [0, -1]]), "g": np.zeros((3, 2)), "k": np.array(1)}
    w = run(ProximalRate(LearningRateSGD(1.0), 0.5, 1.0), arrays)["w_out"]
    np.testing.assert_array_equal(w, [[np.nan, np.inf], [-np.inf, 0.25], [0, -0.25]])


def test_penalty_chooses_weights():
    rate = LearningRateSGD()
    assert STRONG.join_rate(rate, (3,)) is rate
    assert ElasticLearningPenalty(proximal=True).join_rate(rate, (3, 2)) is rate
    assert ElasticLearningPenalty(l1=1.0).join_rate(rate, (3, 2)) is rate
    assert STRONG.join_rate(rate, (3, 2)) == ProximalRate(rate, 0.3, 0.1)
    assert not STRONG.applies_to((3, 2))  # It is no part of the loss.
    assert isinstance(ElasticLearningPenalty(l1=1, penalize_biases=True, proximal=True).join_rate(rate, (3,)),
                      BaseLearningRate)


def train(engine="auto", model=None, **settings):
    settings = {"learning_penalty": STRONG, "batch_size": 16, "max_iter": 40, "learning_rate": LearningRateSGD(0.05),
                "random_state": 0, **settings}
    return OrtGradientForwardBackwardOptimizer(model or linear(3, 1), engine=engine, **settings).fit(X, Y)


@pytest.mark.both
@pytest.mark.parametrize("rate", ["SGD", "SGDNesterov", "Adam"])
def test_engines(rate):
    settings = {"learning_rate": rate, "max_iter": 3, "model": mlp(3, hidden=4)}
    expected = train("step", **settings).trained_coef_
    for engine in ("epoch", "native", *(["agent"] if has_training() else [])):
        actual = train(engine, **settings).trained_coef_
        for n, w in expected.items():
            np.testing.assert_allclose(actual[n], w, rtol=1e-4, atol=1e-6, err_msg=f"{engine} {n}")


def test_weights_without_effect_are_exactly_zero():
    w = next(iter(train().trained_coef_.values())).ravel()
    assert w[1:].tolist() == [0, 0]
    assert abs(w[0] - 3.7 / 2.1) < 0.1  # where 2 (w - 2) + 0.3 + 0.1 w is 0, if the columns of X were orthogonal
    by_gradients = train(learning_penalty=ElasticLearningPenalty(l1=0.3, l2=0.1)).trained_coef_
    assert all(next(iter(by_gradients.values())).ravel()[1:])


@pytest.mark.parametrize("penalty", [{"l1": 1e5}, {"l2": 1e5}, {"l1": 1e4, "l2": 1e5}], ids=str)
def test_strong_penalties_do_not_diverge(penalty):
    w = next(iter(train(learning_penalty=ElasticLearningPenalty(**penalty, proximal=True)).trained_coef_.values()))
    assert abs(w).max() < 1e-3
    model = OnnxRegressor(penalty=ElasticLearningPenalty(**penalty, proximal=True), learning_rate="SGD", max_iter=5,
                          tol=0, n_iter_no_change=np.inf, random_state=0)
    with pytest.warns(UserWarning, match="max_iter"):
        assert abs(model.fit(X, Y.ravel()).coefs_[0]).max() < 1e-3


def test_module():
    module = nn.Linear(3, 1).set_optimizer("SGD", penalty=STRONG).compile(nn.placeholder(["N", 3]), random_state=0)
    other = train("step", module.to_onnx(), learning_rate="SGD", batch_size=64, shuffle=False, max_iter=2)
    for _ in range(2):
        module.train_one_batch(X, Y)
    expected = next(a for a in other.trained_coef_.values() if a.ndim == 2)
    w = next(a for a in (p.numpy() for p in module.parameters()) if a.ndim == 2)
    np.testing.assert_allclose(w.reshape(expected.shape), expected, rtol=1e-5)


@pytest.mark.parametrize("style", ["lowered", "standard"])
def test_stored_training(style):
    o = train("step", learning_rate="SGDNesterov", max_iter=2, batch_size=64, shuffle=False)
    session = TrainingSession(to_training_info(o, style))
    x, t = (next(n for n in session.inputs if ("target" in n) == is_target) for is_target in (False, True))
    session.step({x: X, t: Y})
    for n, w in pickle.loads(pickle.dumps(o)).partial_fit(X, Y).trained_coef_.items():
        np.testing.assert_allclose(session.get(n), w, rtol=1e-5, atol=1e-7)
    assert OrtGradientForwardBackwardOptimizer.from_training_info(session.model).learning_penalty == STRONG
