"""Schedules, beside their formulas, torch and scikit-learn."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.linear_model import SGDClassifier, SGDRegressor

from ortpartial.exceptions import SettingError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, variable
from ortpartial.learning import LearningRateAdam, LearningRateSGD, LearningRateSGDNesterov
from ortpartial.learning.schedules import (
    ConstantSchedule,
    CosineRestartsSchedule,
    CosineSchedule,
    InvScalingSchedule,
    OneCycleSchedule,
    OptimalSchedule,
    PolynomialSchedule,
    ReduceOnPlateauSchedule,
    StepSchedule,
    WarmUpSchedule,
    resolve_schedule,
)
from ortpartial.testing import _make_runner, evaluate


def steps(schedule, batches, eta0=0.1, dtype="float64"):
    """η at some batches."""
    k = variable("k", np.int64, [])
    run = _make_runner(build({"k": k}, {"eta": schedule(constant(eta0, dtype), k)}))
    return np.array([run({"k": np.array(i)})["eta"] for i in batches])


K = np.array([1, 2, 3, 100, 12345])


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ConstantSchedule(), np.full(5, 0.1)),
        (InvScalingSchedule(), 0.1 / np.sqrt(K)),
        (InvScalingSchedule(power_t=0.25), 0.1 / K**0.25),
        (InvScalingSchedule(power_t=0), np.full(5, 0.1)),
        (OptimalSchedule(), 1 / (1e-4 * (1000 + K))),
        (OptimalSchedule(alpha=0.0016), 1 / (0.0016 * (125 + K))),
        (OptimalSchedule(alpha=0.0016, from_eta0=True), 0.1 * 126 / (125 + K)),
        (WarmUpSchedule(n=10), 0.1 * np.minimum(K / 10, 1)),
        (WarmUpSchedule("invscaling", n=2), [0.05, 0.1, 0.1, 0.1 / np.sqrt(98), 0.1 / np.sqrt(12343)]),
        (WarmUpSchedule(WarmUpSchedule(n=2), n=1), [0.05, 0.05, 0.1, 0.1, 0.1]),
        (CosineSchedule(n=4), 0.05 * (1 + np.cos(np.pi * np.array([0, 0.25, 0.5, 1, 1])))),
        (CosineSchedule(n=1, minimum=0.01), [0.1, 0.01, 0.01, 0.01, 0.01]),
        (StepSchedule(n=20), [0.1, 0.1, 0.1, 1e-5, 0]),
        (StepSchedule(n=10000, factor=2), [0.1, 0.1, 0.1, 0.1, 0.2]),
        (OneCycleSchedule(n=3, pct_start=0.5, div_factor=10, final_div_factor=100),
         [0.01, 1e-4 + 0.0999 * (1 + np.cos(np.pi / 3)) / 2, 1e-4, 1e-4, 1e-4]),
        (OneCycleSchedule(n=1, pct_start=0), [0.1 / 25e4] * 5),
    ],
    ids=repr,
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_formula(schedule, expected, dtype):
    np.testing.assert_allclose(steps(schedule, K, dtype=dtype), expected, rtol=2e-6 if dtype == "float32" else 1e-14)


@pytest.mark.parametrize("schedule", [InvScalingSchedule(), OptimalSchedule()], ids=repr)
def test_three_operators(schedule):
    k = variable("k", np.int64, [])
    assert len(build({"k": k}, [schedule(constant(0.1), k)]).graph.node) == 3


schedulers = torch.optim.lr_scheduler


@pytest.mark.parametrize(
    ("schedule", "in_torch"),
    [
        (CosineSchedule(n=120), lambda o: schedulers.CosineAnnealingLR(o, 120)),
        (CosineSchedule(n=130, minimum=0.02), lambda o: schedulers.CosineAnnealingLR(o, 130, eta_min=0.02)),
        (CosineRestartsSchedule(n=25), lambda o: schedulers.CosineAnnealingWarmRestarts(o, 25)),
        *((CosineRestartsSchedule(n=n, factor=f, minimum=0.02),
           lambda o, n=n, f=f: schedulers.CosineAnnealingWarmRestarts(o, n, T_mult=f, eta_min=0.02))
          for n, f in ((1, 2), (10, 2), (1, 3), (4, 3), (50, 7))),
        (PolynomialSchedule(n=100), lambda o: schedulers.PolynomialLR(o, 100)),
        (PolynomialSchedule(n=130, power=0.4), lambda o: schedulers.PolynomialLR(o, 130, power=0.4)),
        (StepSchedule(n=30), lambda o: schedulers.StepLR(o, 30)),
        (StepSchedule(n=7, factor=0.9), lambda o: schedulers.StepLR(o, 7, gamma=0.9)),
        *((OneCycleSchedule(n=n, **settings),
           lambda o, n=n, s=settings: schedulers.OneCycleLR(o, 0.1, total_steps=n, cycle_momentum=False, **s))
          for n in (120, 123)
          for settings in ({}, {"pct_start": 0.0}, {"pct_start": 0.55, "div_factor": 3.0, "final_div_factor": 7.0},
                           {"pct_start": 0.005}, {"pct_start": 0.99})),
        *((WarmUpSchedule(schedule, n=20),
           lambda o, f=f: schedulers.SequentialLR(
               o, [schedulers.LinearLR(o, start_factor=1 / 20, total_iters=19), f(o)], milestones=[20]))
          for schedule, f in (("constant", lambda o: schedulers.ConstantLR(o, factor=1.0)),
                              (CosineSchedule(n=100, minimum=0.02),
                               lambda o: schedulers.CosineAnnealingLR(o, 100, eta_min=0.02)))),
    ],
    ids=lambda v: repr(v) if not callable(v) or not hasattr(v, "__name__") else "",
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_hundred_and_twenty_steps_of_torch(schedule, in_torch, dtype):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler, expected = in_torch(optimizer), []
    for _ in range(120):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    rtol, atol = (2e-6, 1e-9) if dtype == "float32" else (1e-12, 1e-16)
    np.testing.assert_allclose(steps(schedule, range(1, 121), dtype=dtype), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("schedule", [
    pytest.param((WarmUpSchedule("linear", 20, from_zero=True), "get_linear_schedule_with_warmup", {}), id="linear"),
    pytest.param((WarmUpSchedule(PolynomialSchedule(power=2, minimum=0.01), 20, from_zero=True),
                  "get_polynomial_decay_schedule_with_warmup", {"power": 2.0, "lr_end": 0.01}), id="polynomial"),
    pytest.param((WarmUpSchedule("cosine", 20, from_zero=True), "get_cosine_schedule_with_warmup", {}), id="cosine"),
    pytest.param((WarmUpSchedule(CosineRestartsSchedule(cycles=4), 20, from_zero=True),
                  "get_cosine_with_hard_restarts_schedule_with_warmup", {"num_cycles": 4}), id="restarts")])
def test_hundred_steps_of_transformers(schedule):
    optimization = pytest.importorskip("transformers.optimization")
    ours, name, settings = schedule
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    theirs, expected = getattr(optimization, name)(optimizer, 20, 100, **settings), []
    for _ in range(100):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    np.testing.assert_allclose(steps(ours.over(100), range(1, 101)), expected, rtol=1e-12, atol=1e-16)


def test_restarts_far_from_the_start():
    """At the first batch of a cycle, which whole numbers find even where logarithms are rounded."""
    for factor in (2, 3, 10):
        starts = [7 * (factor**m - 1) // (factor - 1) for m in range(1, 12)]
        actual = steps(CosineRestartsSchedule(n=7, factor=factor), [k for s in starts for k in (s, s + 1)])
        np.testing.assert_array_equal(actual[1::2], 0.1)
        assert (actual[::2] < 0.01).all()
    np.testing.assert_allclose(steps(CosineRestartsSchedule(n=4), [1, 5, 4 * 10**12 + 1, 4 * 10**12 + 3]),
                               [0.1, 0.1, 0.1, 0.05])


def test_last_step_of_a_polynomial():
    np.testing.assert_array_equal(steps(PolynomialSchedule(n=7), [8, 9, 10**12]), 0)
    np.testing.assert_allclose(steps(PolynomialSchedule(n=7, minimum=0.02, power=3), [8, 10**12]), 0.02)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_last_step_is_exact(dtype):
    # As ½(1 + cos π), the last step would be one of rounding: 1e-9 and not 0, or 2 % off a very small one.
    after = [8, 9, 10**12]
    np.testing.assert_array_equal(steps(CosineSchedule(n=7), after, dtype=dtype), 0)
    rtol = 1e-6 if dtype == "float32" else 1e-15
    np.testing.assert_allclose(steps(CosineSchedule(n=7, minimum=1e-6), after, dtype=dtype), 1e-6, rtol=rtol)
    np.testing.assert_allclose(steps(OneCycleSchedule(n=7), after, dtype=dtype), 0.1 / 25e4, rtol=rtol)


def test_constant_emits_nothing():
    eta0 = constant(0.1)
    assert ConstantSchedule()(eta0, variable("k", np.int64, [])) is eta0


def test_first_step_may_be_an_input():
    eta0, k = variable("eta0", "float32", []), variable("k", np.int64, [])
    model = build([eta0, k], {"eta": InvScalingSchedule()(eta0, k)})
    np.testing.assert_allclose(evaluate(model, {"eta0": np.float32(3), "k": np.array(9)})["eta"], 1, rtol=1e-6)


def test_invscaling_is_that_of_scikit_learn_for_batches_of_one():
    model = SGDRegressor(learning_rate="invscaling", eta0=0.1, power_t=0.3, penalty=None, fit_intercept=False)
    actual, w = [], 0.0
    for _ in range(5):
        # The gradient of ½(w - 1)² is w - 1.
        model.partial_fit([[1.0]], [1.0])
        actual.append((model.coef_[0] - w) / (1 - w))
        w = model.coef_[0]
    np.testing.assert_allclose(actual, steps(InvScalingSchedule(power_t=0.3), range(1, 6)), rtol=1e-12)


def test_optimal_is_one_step_ahead_of_scikit_learn_for_batches_of_one():
    # The sample that scikit-learn counts as number 0 is the batch that we count as number 1.
    alpha = 0.01
    model = SGDClassifier(loss="log_loss", learning_rate="optimal", alpha=alpha, penalty=None, fit_intercept=False)
    actual, w = [], 0.0
    for _ in range(5):
        # The gradient of log(1 + exp(-w)) is σ(w) - 1.
        model.partial_fit([[1.0]], [1], classes=[0, 1])
        actual.append((model.coef_[0, 0] - w) * (1 + np.exp(w)))
        w = model.coef_[0, 0]
    np.testing.assert_allclose(actual, steps(OptimalSchedule(alpha=alpha), range(5)), rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("constant", ConstantSchedule()), ("invscaling", InvScalingSchedule()), ("optimal", OptimalSchedule()),
     ("warmup", WarmUpSchedule(ConstantSchedule(), n=100)), ("CosineSchedule", CosineSchedule(n=None)),
     ("cosine", CosineSchedule()), ("step", StepSchedule()), ("onecycle", OneCycleSchedule()),
     ("linear", PolynomialSchedule(power=1.0)), ("polynomial", PolynomialSchedule()),
     ("cosine_restarts", CosineRestartsSchedule(cycles=2)), ("plateau", ReduceOnPlateauSchedule()),
     ("stepschedule", StepSchedule(n=1000, factor=0.1)),
     ("InvScalingSchedule", InvScalingSchedule()),
     (InvScalingSchedule(0.1), InvScalingSchedule(power_t=0.1))],
)
def test_names(name, expected):
    assert resolve_schedule(name) == expected


def test_optimal_begins_with_a_step_size_that_is_given():
    """Without one it is that of scikit-learn, whatever the class of the optimizer has for a default."""
    for rate, expected in ((LearningRateSGD(schedule="optimal"), 1 / (1e-4 * 1001)),
                           (LearningRateAdam(schedule="optimal"), 1 / (1e-4 * 1001)),
                           (LearningRateSGD(0.01, schedule="optimal"), 0.01),
                           (LearningRateSGDNesterov(eta0=0.05, schedule="optimal"), 0.05),
                           (pickle.loads(pickle.dumps(LearningRateSGD(0.01, schedule="optimal"))), 0.01)):
        np.testing.assert_allclose(steps(rate.schedule, [1], rate.eta0), expected)
    assert LearningRateSGD() == LearningRateSGD(0.01)


def test_length_of_a_training():
    cosine = CosineSchedule(n=7, minimum=0.1)
    assert cosine.over(9) is cosine
    assert CosineSchedule(minimum=0.1).over(7) == cosine
    assert PolynomialSchedule(power=2).over(7) == PolynomialSchedule(n=7, power=2)
    assert CosineRestartsSchedule(cycles=3).over(10) == CosineRestartsSchedule(n=4, cycles=3)
    assert CosineRestartsSchedule(cycles=3, factor=2).over(70) == CosineRestartsSchedule(n=10, cycles=3, factor=2)
    assert ReduceOnPlateauSchedule("cosine").over(7) == ReduceOnPlateauSchedule(CosineSchedule(n=7))
    assert WarmUpSchedule("onecycle", n=5).over(12) == WarmUpSchedule(OneCycleSchedule(n=7), n=5)
    assert WarmUpSchedule("cosine", n=5).over(3) == WarmUpSchedule(CosineSchedule(n=1), n=5)
    assert all(s.over(9) is s for s in (StepSchedule(), ConstantSchedule(), WarmUpSchedule("step"), cosine))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InvScalingSchedule(power_t=-0.5),
         "InvScalingSchedule: power_t is -0.5, a finite number at least 0 was expected."),
        (lambda: OptimalSchedule(alpha=0), "OptimalSchedule: alpha is 0, a finite number more than 0 was expected."),
        (lambda: WarmUpSchedule("invscale"), "schedule: 'invscale' is not known. Did you mean 'invscaling'? "),
        (lambda: WarmUpSchedule(n=0), "WarmUpSchedule: n is 0, a whole number at least 1 was expected."),
        (lambda: CosineSchedule(n=1e3), "CosineSchedule: n is 1000.0, a whole number at least 1 was expected."),
        (lambda: CosineSchedule(minimum=-1), "CosineSchedule: minimum is -1, a finite number at least 0 was expected."),
        (lambda: OneCycleSchedule(n=0), "OneCycleSchedule: n is 0, a whole number at least 1 was expected."),
        (lambda: StepSchedule(factor=0), "StepSchedule: factor is 0, a finite number more than 0 was expected."),
        (lambda: OneCycleSchedule(pct_start=1),
         "OneCycleSchedule: pct_start is 1, a finite number at least 0 and less than 1 was expected."),
        (lambda: OneCycleSchedule(div_factor=0),
         "OneCycleSchedule: div_factor is 0, a finite number more than 0 was expected."),
        (lambda: resolve_schedule("invscale"), "schedule: 'invscale' is not known. Did you mean 'invscaling'? "),
        (lambda: ReduceOnPlateauSchedule(factor=1),
         "ReduceOnPlateauSchedule: factor is 1, a finite number more than 0 and less than 1 was expected."),
        (lambda: CosineRestartsSchedule(factor=1.5),
         "CosineRestartsSchedule: factor is 1.5, a whole number at least 1 was expected."),
        (lambda: CosineRestartsSchedule(t_mult=2), "CosineRestartsSchedule has no setting 't_mult'; did you mean"),
        (lambda: resolve_schedule("ReduceLROnPlateau"),
         "schedule: 'ReduceLROnPlateau' is not known. Did you mean 'plateau'? Known are "),
        (lambda: resolve_schedule("CosineAnnealingWarmRestarts"),
         "schedule: 'CosineAnnealingWarmRestarts' is not known. Did you mean 'cosine_restarts'? Known are "),
        (lambda: resolve_schedule(0.1), "schedule: 0.1 is a float; a name (constant, invscaling, optimal, warmup, "),
    ],
)
def test_errors(make, message):
    with pytest.raises((SettingError, TypeError)) as e:
        make()
    assert str(e.value).startswith(message)
