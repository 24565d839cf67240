"""The weighted mean of an epoch: the same bits whatever parts it is collected in, and on from a checkpoint."""

import numpy as np
import pytest

from ortpartial.execution.mean import WeightedMean

RNG = np.random.default_rng(0)
LOSSES, WEIGHTS = RNG.uniform(size=12).astype(np.float32), RNG.uniform(size=12)


def collect(sizes):
    mean, start = WeightedMean(), 0
    for n in sizes:
        mean.collect(LOSSES[start : start + n], WEIGHTS[start : start + n], 12)
        start += n
    return mean


def test_the_mean():
    mean = WeightedMean()
    mean.add(6.0, 2.0)
    mean.add(1.0, 5.0)
    assert mean.value == 1.0
    assert WeightedMean().value == 0


@pytest.mark.parametrize("sizes", [[12], [6, 6], [1] * 12, [5, 7]])
def test_parts_do_not_change_the_last_bits(sizes):
    assert collect(sizes).total == float(LOSSES @ WEIGHTS)
    assert collect(sizes).waiting == 0


def test_what_waits_counts_already():
    mean = collect([5])
    assert (mean.waiting, mean.total) == (5, 0)
    assert mean.value == pytest.approx(LOSSES[:5] @ WEIGHTS[:5] / WEIGHTS[:5].sum())
    mean.settle()
    assert mean.total > 0


def test_it_goes_on_from_its_state():
    mean = WeightedMean.from_state(collect([5]).state)
    mean.collect(LOSSES[5:], WEIGHTS[5:], 12)
    assert mean.total == collect([5, 7]).total
