"""Are the step sizes those of the formulas, and those of scikit-learn as far as is promised?"""

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier, SGDRegressor

from ortpartial.exceptions import SettingError
from ortpartial.graph import build, constant, variable
from ortpartial.schedule import ConstantSchedule, InvScalingSchedule, OptimalSchedule, resolve_schedule
from ortpartial.testing import evaluate


def steps(schedule, batches, eta0=0.1, dtype="float64"):
    """η at some batches."""
    k = variable("k", np.int64, [])
    model = build({"k": k}, {"eta": schedule(constant(eta0, dtype), k)})
    return np.array([evaluate(model, {"k": np.array(i)})["eta"] for i in batches])


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


def test_constant_emits_nothing():
    eta0 = constant(0.1)
    assert ConstantSchedule()(eta0, variable("k", np.int64, [])) is eta0


def test_first_step_may_be_an_input():
    eta0, k = variable("eta0", "float32", []), variable("k", np.int64, [])
    model = build([eta0, k], {"eta": InvScalingSchedule()(eta0, k)})
    np.testing.assert_allclose(evaluate(model, {"eta0": np.float32(3), "k": np.array(9)})["eta"], 1, rtol=1e-6)


def test_invscaling_is_that_of_scikit_learn_for_batches_of_one():
    model = SGDRegressor(learning_rate="invscaling", eta0=0.1, power_t=0.3, penalty=None, fit_intercept=False)
    found, w = [], 0.0
    for _ in range(5):
        # The gradient of ½(w - 1)² is w - 1.
        model.partial_fit([[1.0]], [1.0])
        found.append((model.coef_[0] - w) / (1 - w))
        w = model.coef_[0]
    np.testing.assert_allclose(found, steps(InvScalingSchedule(power_t=0.3), range(1, 6)), rtol=1e-12)


def test_optimal_is_one_step_ahead_of_scikit_learn_for_batches_of_one():
    # The sample that scikit-learn counts as number 0 is the batch that we count as number 1.
    alpha = 0.01
    model = SGDClassifier(loss="log_loss", learning_rate="optimal", alpha=alpha, penalty=None, fit_intercept=False)
    found, w = [], 0.0
    for _ in range(5):
        # The gradient of log(1 + exp(-w)) is σ(w) - 1.
        model.partial_fit([[1.0]], [1], classes=[0, 1])
        found.append((model.coef_[0, 0] - w) * (1 + np.exp(w)))
        w = model.coef_[0, 0]
    np.testing.assert_allclose(found, steps(OptimalSchedule(alpha=alpha), range(5)), rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("constant", ConstantSchedule()), ("invscaling", InvScalingSchedule()), ("optimal", OptimalSchedule()),
     ("InvScalingSchedule", InvScalingSchedule()), (OptimalSchedule, OptimalSchedule()),
     (InvScalingSchedule(0.1), InvScalingSchedule(power_t=0.1))],
)  # fmt: skip
def test_names(name, expected):
    assert resolve_schedule(name) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: InvScalingSchedule(power_t=-0.5),
         "InvScalingSchedule: power_t is -0.5, a finite number at least 0 was expected."),
        (lambda: OptimalSchedule(alpha=0), "OptimalSchedule: alpha is 0, a finite number more than 0 was expected."),
        (lambda: resolve_schedule("invscale"), "schedule: 'invscale' is not known. Did you mean 'invscaling'? "),
        (lambda: resolve_schedule(0.1), "schedule: 0.1 is a float; a name (constant, invscaling, optimal) or an "),
    ],
)  # fmt: skip
def test_errors(make, message):
    with pytest.raises(SettingError) as e:
        make()
    assert str(e.value).startswith(message)
