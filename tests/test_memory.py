"""Does training keep its memory to itself, however long it lasts?"""

import gc
import os

import pytest
from models import data, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident():
    """Bytes of this process in memory."""
    gc.collect()
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * PAGE


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["step", pytest.param("agent", marks=pytest.mark.agent)])
def test_a_hundred_thousand_steps_do_not_grow(engine):
    X, y, w = data(1000)
    o = OrtGradientForwardBackwardOptimizer(mlp(), engine=engine, learning_rate=1e-4, max_iter=100, warm_start=True)
    o.fit(X, y, w)
    before = resident()
    for _ in range(10):
        o.fit(X, y, w)
    assert o._engine.iteration == 110_000
    growth = resident() - before
    print(f"{engine}: {growth / 1024:.0f} KiB more after 100,000 steps")
    assert growth < 2 * 1024**2
