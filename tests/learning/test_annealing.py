"""Annealing: first and last step sizes, restarts, and the length of a training."""

import math

import numpy as np
import pytest

from ortpartial.exceptions import SettingError
from ortpartial.graph import build, constant, variable
from ortpartial.learning.annealing import (
    CosineRestartsSchedule,
    CosineSchedule,
    OneCycleSchedule,
    PolynomialSchedule,
)
from ortpartial.runtime import Session


def rates(schedule, batches, eta0=2.0):
    k = variable("k", np.int64, [])
    session = Session(build([k], {"eta": schedule(constant(eta0, np.float64), k)}))
    return [session.run({"k": np.array(i)})["eta"].item() for i in batches]


def test_cosine():
    schedule = CosineSchedule(n=10, minimum=0.5)
    expected = [0.5 + 1.5 * 0.5 * (1 + math.cos(math.pi * min(j, 10) / 10)) for j in range(13)]
    np.testing.assert_allclose(rates(schedule, range(1, 14)), expected, atol=1e-12)


def test_restarts():
    """Cycles of 4, 8 and 16 batches, each of which begins at the first step size."""
    schedule = CosineRestartsSchedule(n=4, factor=2)
    etas = rates(schedule, range(1, 29))
    assert [k for k, eta in enumerate(etas) if abs(eta - 2.0) < 1e-12] == [0, 4, 12]
    np.testing.assert_allclose(etas[4:12:2], etas[:4], atol=1e-12)


@pytest.mark.parametrize("power", [1, 2.5])
def test_polynomial(power):
    expected = [0.1 + 1.9 * (1 - min(j, 5) / 5) ** power for j in range(8)]
    schedule = PolynomialSchedule(n=5, power=power, minimum=0.1)
    np.testing.assert_allclose(rates(schedule, range(1, 9)), expected, atol=1e-12)


def test_one_cycle():
    etas = rates(OneCycleSchedule(n=20, pct_start=0.25, div_factor=10, final_div_factor=100), range(1, 21))
    assert etas[0] == pytest.approx(0.2)
    assert max(etas) == etas[4] == pytest.approx(2.0)
    assert etas[-1] == pytest.approx(0.002)


@pytest.mark.parametrize("schedule", [CosineSchedule(), PolynomialSchedule(), OneCycleSchedule()])
def test_the_length_of_a_training(schedule):
    assert schedule.over(30).n == 30
    assert type(schedule)(n=7).over(30).n == 7
    with pytest.raises(SettingError, match=r"has no n and lasts as long as the training that fit is asked for"):
        rates(schedule, [1])


def test_cycles_fill_a_training():
    """Two cycles of n and 3 n batches."""
    assert CosineRestartsSchedule(factor=3).over(100).n == 25


@pytest.mark.parametrize(("make", "message"), [(lambda: CosineSchedule(n=0), "n"),
                                               (lambda: OneCycleSchedule(pct_start=1), "pct_start")])
def test_settings_out_of_range(make, message):
    with pytest.raises(SettingError, match=message):
        make()
