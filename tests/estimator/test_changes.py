"""Clipping, accumulation and averages: counts of updates, uses of averages, and changes in a training."""

import pickle

import numpy as np
import onnx
import pytest
from models import assert_close, data, mlp, net, weights_of
from onnx import numpy_helper

from ortpartial import (
    CosineSchedule,
    ElasticLearningPenalty,
    ExponentialAverage,
    GradientClipping,
    LearningRateAdam,
    StochasticWeightAverage,
)
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import ConvergenceWarning, SettingError

X, Y, W = data(50)  # five batches
A, B, _ = data(20, seed=4)


def optimizer(**settings):
    return Optimizer(mlp(), **{"learning_rate": LearningRateAdam(0.01), "random_state": 0, "max_iter": 4, **settings})


def bits(o):
    return [a.tobytes() for kind in ("weight", "optimizer") for a in o.get_state(kind)]


# Accumulation.


def test_an_update_is_a_step_on_one_large_batch():
    """Where batches have the same size; the penalty counts once."""
    settings = {"learning_penalty": ElasticLearningPenalty(l2=0.1), "shuffle": False, "gradient_clipping": 0.5}
    small, large = optimizer(accumulate=5, **settings).fit(X, Y), optimizer(batch_size=50, **settings).fit(X, Y)
    assert_close(small.trained_coef_, large.trained_coef_, 1e-5)


def test_what_is_left_over_is_carried_into_the_next_epoch():
    """So is it into the next call, and over pickles."""
    whole = optimizer(accumulate=3, shuffle=False).fit(np.vstack([X, X]), np.vstack([Y, Y]))
    halves = optimizer(accumulate=3, shuffle=False)
    for _ in range(8):
        halves = pickle.loads(pickle.dumps(halves.partial_fit(X, Y)))
    assert bits(halves) == bits(whole)
    assert whole.get_state("optimizer")[-1] == 40
    assert whole.get_state("optimizer")[2].any()  # 40 = 13 · 3 + 1: the sum of one gradient


def test_schedules_count_updates():
    planned = optimizer(accumulate=2, learning_rate=LearningRateAdam(0.01, schedule="cosine"))
    fixed = optimizer(accumulate=2, learning_rate=LearningRateAdam(0.01, schedule=CosineSchedule(n=10)))
    rates = []
    planned.set_params(callbacks=[lambda o: rates.append(o.learning_rate_)]).fit(X, Y)
    assert bits(planned) == bits(fixed.fit(X, Y))
    # After 2, 5, 7 and 10 updates.
    np.testing.assert_allclose(rates, 0.005 * (1 + np.cos(np.pi / 10 * np.array([2, 5, 7, 10]))), rtol=1e-5, atol=1e-9)


def test_another_accumulation_goes_on_with_the_count_of_updates():
    o = optimizer(accumulate=2, learning_rate=LearningRateAdam(0.01, schedule=CosineSchedule(n=100))).fit(X, Y)
    before = o.learning_rate_
    o.set_params(accumulate=5)
    assert o.learning_rate_ == before
    assert not o.get_state("optimizer")[2].any()
    weights = o.trained_coef_
    o.partial_fit(X[:40], Y[:40])
    assert all((a == weights[n]).all() for n, a in o.trained_coef_.items())
    o.partial_fit(X[:10], Y[:10])
    assert not any((a == weights[n]).all() for n, a in o.trained_coef_.items())


def test_fewer_batches_than_an_update_takes():
    o = optimizer(accumulate=21)
    message = "accumulate=21 takes as many batches for an update, and there are 20: no weight changes"
    with pytest.warns(ConvergenceWarning, match=message) as told:
        o.fit(X, Y)
    assert told[0].filename == __file__
    assert all((a == weights_of(mlp())[n]).all() for n, a in o.trained_coef_.items())
    o.set_params(warm_start=True, max_iter=1).fit(X, Y)
    assert not any((a == weights_of(mlp())[n]).all() for n, a in o.trained_coef_.items())


# Averages.


@pytest.mark.parametrize("averaging", ["ema", StochasticWeightAverage(10), ExponentialAverage(0.5)])
def test_averages_take_the_place_of_weights_in_all_that_uses_them(averaging, tmp_path):
    o = optimizer(averaging=averaging).fit(X, Y)
    weights, former = o.trained_coef_, [o.predict(A), o.losses(A, B), o.score(A, B)]
    averages = {n: a for (n, s), a in zip(o._spec.states.values(), o.get_state("optimizer"), strict=False)
                if s == "average"}
    o.use_average = True
    assert all((o.trained_coef_[n] == a).all() for n, a in averages.items())
    o.save(tmp_path / "model.onnx")
    saved, returned = onnx.load(tmp_path / "model.onnx"), o.get_trained_onnx()
    for model in (saved, returned):
        assert all((numpy_helper.to_array(t) == averages[t.name]).all() for t in model.graph.initializer)
    plain = Optimizer(saved)
    np.testing.assert_allclose(o.predict(A), plain.predict(A), rtol=1e-6)
    np.testing.assert_allclose(o.losses(A, B), plain.losses(A, B), rtol=1e-5)
    assert o.score(A, B) == pytest.approx(plain.score(A, B))
    np.testing.assert_allclose(o.forward([A])[0][0], plain.predict(A), rtol=1e-5)
    # The training has both.
    for a, w in zip(o.get_state(), weights.values(), strict=True):
        np.testing.assert_array_equal(a, w)
    again = pickle.loads(pickle.dumps(o))
    np.testing.assert_array_equal(again.predict(A), o.predict(A))
    again.set_params(use_average=False)
    for a, b in zip([again.predict(A), again.losses(A, B), again.score(A, B)], former, strict=True):
        np.testing.assert_array_equal(a, b)


def test_validation_uses_averages():
    plain, averaged = (optimizer(averaging="ema", use_average=use, validation_every=1).fit(X, Y, X_val=A, y_val=B)
                       for use in (False, True))
    assert bits(plain) == bits(averaged)
    assert plain.validation_losses_ != averaged.validation_losses_
    assert averaged.validation_losses_[-1] == pytest.approx(averaged.losses(A, B).mean())


@pytest.mark.parametrize("averaging", ["ema", "swa", StochasticWeightAverage(10**6)])
def test_the_average_of_no_update_is_the_weights(averaging):
    o = optimizer(averaging=averaging, use_average=True, init="random", accumulate=2)
    for _ in range(2):
        o.set_state([2 * a for a in o.get_state()])
        assert all((a == b).all() for a, b in zip(o.trained_coef_.values(), o.get_state(), strict=True))
        o.partial_fit(X[:10], Y[:10])  # which updates nothing
    o.partial_fit(X[:10], Y[:10])
    with pytest.warns(ConvergenceWarning, match="no weight changes"):
        o.set_params(warm_start=False, max_iter=1).fit(X[:10], Y[:10])  # from the start
    assert all((a == b).all() for a, b in zip(o.trained_coef_.values(), o.get_state(), strict=True))


def test_running_statistics_are_the_current_ones():
    X, y = np.random.default_rng(0).normal(size=(40, 2, 5, 5)).astype(np.float32), np.zeros((40, 2), np.float32)
    o = Optimizer(net(), train_mode=True, averaging="ema", use_average=True, random_state=0, max_iter=2).fit(X, y)
    saved = weights_of(o.get_trained_onnx())
    for name, a in zip(o._spec.statistics, o.get_state("buffer"), strict=False):
        np.testing.assert_array_equal(saved[name], a)
        assert (a != weights_of(net())[name]).any()


def test_an_average_that_is_not_there():
    message = "use_average=True takes the averages of the weights, and averaging is None; set it to 'ema' or 'swa'"
    with pytest.raises(SettingError, match=message):
        optimizer(use_average=True)
    o = optimizer(averaging="ema", use_average=True)
    with pytest.raises(SettingError, match=message):
        o.averaging = None
    with pytest.raises(SettingError, match=message):
        optimizer().use_average = True
    o.set_params(averaging=None, use_average=False)
    assert o.get_params()["averaging"] is None


# Changes.


def test_changes_in_a_callback():
    """From the next step on, with the averages and optimizer states that are there."""
    def change(o):
        if o.n_iter_ == 2:
            o.set_params(gradient_clipping=GradientClipping(value=0.01), averaging__decay=0.5)

    whole = optimizer(averaging="ema", callbacks=[change]).fit(X, Y)
    part = optimizer(averaging="ema", max_iter=2).fit(X, Y)
    part.set_params(gradient_clipping=GradientClipping(value=0.01), averaging=ExponentialAverage(0.5), warm_start=True)
    assert bits(part.fit(X, Y)) == bits(whole)
    assert whole.get_params()["averaging__decay"] == 0.5
    assert bits(part) != bits(optimizer(averaging="ema").fit(X, Y))

    def accumulate(o):
        o.accumulate = 2

    with pytest.raises(SettingError, match="accumulate belongs to the graphs that run now"):
        optimizer(callbacks=[accumulate]).fit(X, Y)


@pytest.mark.parametrize("averaging", [ExponentialAverage(0.9), StochasticWeightAverage(start=3)])
def test_averaging_that_begins_later(averaging):
    """With the first update after it; `fit` from the start forgets that."""
    o, seen = optimizer(warm_start=True).fit(X, Y), []
    o.set_params(averaging=averaging, use_average=True, max_iter=1, warm_start=True)
    assert all((a == b).all() for a, b in zip(o.trained_coef_.values(), o.get_state(), strict=True))
    for i in range(4):
        o.partial_fit(X[10 * i :][:10], Y[10 * i :][:10])
        seen.append(o.get_state()[0])
        expected = seen[0] if i == 0 else 0.9 * expected + 0.1 * seen[-1]  # noqa: F821 - of the round before
        if isinstance(averaging, StochasticWeightAverage):
            expected = np.mean(seen, 0)
        np.testing.assert_allclose(o.trained_coef_["W1"], expected, rtol=1e-5, atol=1e-7)
        o = pickle.loads(pickle.dumps(o))
    o.set_params(warm_start=False, max_iter=4).fit(X, Y)
    assert bits(o) == bits(optimizer(averaging=averaging).fit(X, Y))


def test_another_optimizer_keeps_averages_and_sums():
    o = optimizer(averaging="ema", accumulate=3).fit(X, Y)
    before = dict(zip(o._spec.states, o.get_state("optimizer"), strict=False))
    o.set_params(learning_rate="SGDNesterov")
    after = dict(zip(o._spec.states, o.get_state("optimizer"), strict=False))
    assert all((after[n] == before[n]).all() for n in after if n.endswith(("_average", "_accumulated")))
    assert after["W1_average"].any()
    assert after["W1_accumulated"].any()
    assert not after["W1_v"].any()


def test_settings():
    o = optimizer(gradient_clipping=1, averaging="swa", accumulate=np.int64(2))
    assert o.get_params(deep=False)["averaging"] == "swa"
    assert o.get_params()["gradient_clipping__norm"] == 1.0
    assert type(o.accumulate) is int
    o.set_params(gradient_clipping__per="weight", averaging__every=3)
    assert o._spec.gradient_clipping == GradientClipping(norm=1.0, per="weight")
    assert o._spec.averaging == StochasticWeightAverage(every=3)
    for wrong in (0, 1.5, True):
        with pytest.raises(SettingError, match="accumulate is a whole number of at least 1"):
            optimizer(accumulate=wrong)
    with pytest.raises(TypeError, match="did you mean 'gradient_clipping'"):
        optimizer(max_grad_norm=1.0)
    with pytest.raises(TypeError, match="did you mean 'accumulate'"):
        optimizer(gradient_accumulation_steps=4)


def test_a_share_of_batches_that_are_not_counted():
    def batches():
        yield X, Y

    with pytest.raises(SettingError, match=r"StochasticWeightAverage\(start=0\.75, every=1\) starts with a share"):
        optimizer(averaging="swa", max_iter=1).fit(batches())
