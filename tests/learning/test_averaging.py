"""Averages of weights, beside their formulas."""

import numpy as np
import pytest

from ortpartial.exceptions import SettingError
from ortpartial.graph import build, variable
from ortpartial.learning.averaging import (
    ExponentialAverage,
    StochasticWeightAverage,
    resolve_averaging,
)
from ortpartial.runtime import Session

WEIGHTS = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


def averages(averaging, weights, start=0):
    """The average after each weight, the first of which follows update number `start`."""
    a, w, k = variable("a", weights.dtype, [3]), variable("w", weights.dtype, [3]), variable("k", "int64", [])
    run = Session(build([a, w, k], {"new": averaging.apply(a, w, k, start=start)})).run
    average = np.full(3, 7, weights.dtype)  # of a former training, and forgotten
    for i, each in enumerate(weights, start + 1):
        average = run({"a": average, "w": each, "k": np.array(i)})["new"]
        yield average


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exponential(start, dtype):
    weights = WEIGHTS.astype(dtype)
    expected = weights[0]
    for i, a in enumerate(averages(ExponentialAverage(0.9), weights, start)):
        expected = weights[0] if i == 0 else 0.9 * expected + 0.1 * weights[i]
        np.testing.assert_allclose(a, expected, rtol=1e-5 if dtype == "float32" else 1e-14)
    assert (next(averages(ExponentialAverage(0.9), weights, start)) == weights[0]).all()


@pytest.mark.parametrize(
    ("first", "every", "start"), [(0, 1, 0), (7, 1, 0), (0, 4, 0), (7, 4, 0), (7, 4, 3), (7, 4, 20)])
def test_stochastic(first, every, start):
    for i, a in enumerate(averages(StochasticWeightAverage(first, every), WEIGHTS, start)):
        # Numbers of updates begin with start + 1.
        begin = max(first, start)
        taken = [j for j in range(i + 1) if start + j + 1 > begin and (start + j + 1 - begin) % every == 0]
        expected = WEIGHTS[taken].mean(0) if taken else WEIGHTS[i]
        np.testing.assert_allclose(a, expected, rtol=1e-5, atol=1e-7)
        assert taken or (a == expected).all()


def test_denormal_numbers_become_zero():
    weights = np.vstack([np.full((1, 3), 1e-36, np.float32), np.zeros((200, 3), np.float32)])
    *_, last = averages(ExponentialAverage(0.9), weights)
    assert (last == 0).all()


def test_a_share_of_the_training():
    assert StochasticWeightAverage(0.5).over(11) == StochasticWeightAverage(5)
    assert StochasticWeightAverage(0.1).over(3) == StochasticWeightAverage(0)
    for fixed in (StochasticWeightAverage(0), StochasticWeightAverage(20), ExponentialAverage()):
        assert fixed.over(1) is fixed


def test_names_and_wrong_settings():
    assert resolve_averaging("EMA") == ExponentialAverage(0.999)
    assert resolve_averaging("swa") == StochasticWeightAverage(0.75, every=1)
    assert resolve_averaging(None) is None
    with pytest.raises(SettingError, match=r"'polyak' is not known\. Did you mean 'ema'\? Known are ema, swa"):
        resolve_averaging("polyak")
    with pytest.raises(SettingError, match="averaging: True is a bool; a name"):
        resolve_averaging(True)
    with pytest.raises(SettingError, match="ExponentialAverage: decay is 1, a finite number at least 0 and less"):
        ExponentialAverage(1)
    with pytest.raises(SettingError, match=r"start is 1\.5; a share of the training below 1, or a whole number"):
        StochasticWeightAverage(1.5)
    with pytest.raises(SettingError, match="every is 0, a whole number at least 1"):
        StochasticWeightAverage(every=0)
