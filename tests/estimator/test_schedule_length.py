"""Schedules that last as long as the training that is asked for."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
from trainings import ENGINES

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
from ortpartial.exceptions import SettingError
from ortpartial.learning import CosineSchedule, LearningRateAdam, LearningRateSGD, OneCycleSchedule, WarmUpSchedule

X = np.random.default_rng(0).normal(size=(23, 2)).astype(np.float32)  # batches of 5: 4 and a smaller one
Y = X @ [[1.0], [2.0]]


def optimizer(schedule="cosine", rate=LearningRateAdam, **settings):
    x, w = variable("x", "float32", ["N", 2]), constant(np.zeros((2, 1), np.float32), hint="w")
    settings = {"max_iter": 6, "batch_size": 5, "random_state": 0, **settings}
    return OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), learning_rate=rate(0.1, schedule=schedule),
                                               **settings)


def bits(o):
    return [a.tobytes() for kind in ("weight", "optimizer") for a in o.get_state(kind)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("schedule", "same"),
    [
        ("cosine", CosineSchedule(n=30)),
        ("onecycle", OneCycleSchedule(n=30)),
        (CosineSchedule(minimum=0.01), CosineSchedule(n=30, minimum=0.01)),
        (WarmUpSchedule("cosine", n=4), WarmUpSchedule(CosineSchedule(n=26), n=4)),
    ],
)
def test_fit(engine, schedule, same):
    assert bits(optimizer(schedule, engine=engine).fit(X, Y)) == bits(optimizer(same, engine=engine).fit(X, Y))


@pytest.mark.parametrize("epochs", [2, 7])
def test_steps_shrink_to_the_end_whatever_the_length(epochs):
    weights = [np.zeros((2, 1))]
    o = optimizer(max_iter=epochs, batch_size=23, rate=LearningRateSGD,
                  callbacks=[lambda o: weights.append(o.trained_coef_["w"])]).fit(X, Y)
    steps = [np.abs(b - a).max() for a, b in pairwise(weights)]
    assert 0 < steps[-1] < steps[0] / 2
    o.fit(X, Y)  # again, from the start
    np.testing.assert_array_equal(weights[epochs + 1 :], weights[1 : epochs + 1])


def stop_after_two_epochs(o):
    return o.n_iter_ == 2


def test_interruption_pickle_and_warm_start():
    whole = bits(optimizer().fit(X, Y))
    stopped = optimizer(callbacks=[stop_after_two_epochs]).fit(X, Y)
    copies = [pickle.loads(pickle.dumps(stopped)) for _ in range(2)]
    for o in (stopped, copies[0]):
        o.set_params(callbacks=(), warm_start=True, max_iter=4)
        assert bits(o.fit(X, Y)) == whole
    for _ in range(4):
        copies[1].partial_fit(X, Y)
    assert bits(copies[1]) == whole


def test_partial_fit_plans_max_iter_calls():
    o, whole = optimizer(), optimizer().fit(X, Y)
    for _ in range(6):
        o.partial_fit(X, Y)
    assert bits(o) == bits(whole)
    o.partial_fit(X, Y)  # the plan is over, and another begins, as with a warm start
    assert bits(o) == bits(whole.set_params(warm_start=True, callbacks=[lambda o: True]).fit(X, Y))


def test_other_settings_keep_the_plan():
    o = optimizer(callbacks=[lambda o: o.n_iter_ == 3]).fit(X, Y)
    o.set_params(engine="step")
    for _ in range(3):
        o.partial_fit(X, Y)
    assert bits(o) == bits(optimizer().fit(X, Y))


def test_batches():
    batches = [(X[i : i + 5], Y[i : i + 5]) for i in range(0, 23, 5)]
    assert bits(optimizer().fit(batches)) == bits(optimizer(CosineSchedule(n=30)).fit(batches))
    with pytest.raises(SettingError, match=r"X has no len\(\) and does not say how many batches it gives; give the "
                                           r"schedule their number"):
        optimizer(max_iter=1).fit(iter(batches))
    optimizer(CosineSchedule(n=5), max_iter=1).fit(iter(batches))


def test_what_needs_a_length_before_fit_says_so():
    with pytest.raises(SettingError, match=r"CosineSchedule\(n=None, minimum=0\.0\) lasts as long as the training that "
                                           r"fit is asked for, and there has been none"):
        optimizer().get_training_onnx()
    assert optimizer().fit(X, Y).get_training_onnx() == optimizer(CosineSchedule(n=30)).fit(X, Y).get_training_onnx()
    with pytest.raises(SettingError, match=r"CosineSchedule has no n and lasts as long as the training .*n=1000"):
        LearningRateSGD(schedule="cosine").build_onnx_function(shape=[2])
    optimizer().save_onnx_graph(bytes)
