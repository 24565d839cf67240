"""The trace: the state that code reads and leaves, names by attributes, masks that differ, errors that name a layer."""

import numpy as np
import pytest

from ortpartial import nn
from ortpartial.exceptions import GraphError, SettingError
from ortpartial.graph import variable
from ortpartial.nn.trace import ITERATION, SEED, Trace, current_trace

X = variable("x", "float32", ["N", 3])


class Net(nn.Module):
    def __init__(self):
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(x)


@pytest.fixture
def trace():
    return Trace(Net(), training=True)


def test_what_is_written_now(trace):
    assert current_trace() is None
    with trace.writing():
        assert current_trace() is trace
    assert current_trace() is None


def test_state(trace):
    """A value that was written is read from then on."""
    weight = trace.module.fc.weight
    w = trace.read(weight)
    assert trace.read(weight) is w
    assert trace.changed == {}
    trace.write(weight, w * 2)
    assert trace.read(weight) is not w
    assert list(trace.changed) == ["fc.weight"]
    assert trace.before["fc.weight"] is w
    with pytest.raises(GraphError, match=r"'fc\.weight' is float32\[2x3\] and cannot become float64"):
        trace.write(weight, w.astype(np.float64))


def test_names(trace):
    assert trace.name_of(trace.module.fc.weight) == "fc.weight"
    assert trace.path_of(trace.module.fc) == "fc"
    with pytest.raises(SettingError, match=r"is no attribute of Net or of a module in it; assign it in __init__"):
        trace.name_of(nn.Parameter([2], 0.0))


def test_masks_and_counts(trace):
    a, b = trace.draw_mask(X, 0.5), trace.draw_mask(X, 0.5)
    assert a is not b
    assert {SEED, ITERATION} <= trace.before.keys()
    trace.count_batch()
    assert list(trace.changed) == [ITERATION]


def test_calls_are_recorded(trace):
    with trace.writing():
        trace.module(X)
    assert [c.path for c in trace.calls] == ["fc", ""]
    with trace.writing(), pytest.raises(GraphError, match=r"^fc \(Linear\): ") as e:
        trace.module(variable("y", "float32", ["N", 5]))
    assert e.value.layer == "fc"
