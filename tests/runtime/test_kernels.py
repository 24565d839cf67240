import numpy as np
import pytest
from numpy.testing import assert_array_equal

from ortpartial.exceptions import DataError, ModelError
from ortpartial.graph import evaluating, op, variable, with_numbers
from ortpartial.runtime import kernels


@pytest.fixture
def sessions(monkeypatch):
    """The sessions that are opened, one for each name in the list, from an empty cache."""
    opened, session = [], kernels.Session
    monkeypatch.setattr(kernels, "_SESSIONS", type(kernels._SESSIONS)())
    monkeypatch.setattr(kernels, "Session", lambda model, **k: opened.append(model.graph.name) or session(model, **k))
    return opened


def given(*shape, dtype="float32"):
    return with_numbers(variable("x", dtype, shape), np.ones(shape))


def test_equal_nodes_share_a_session(sessions):
    with evaluating():
        x, y = given(2, 3), given(2, 3)
        for v in (x + y, y + x, y - x, x - y):
            assert v.shape == (2, 3)
        assert sessions == ["Add", "Sub"]
        x + x, given(3) + given(3), given(2, 3, dtype="float64") + given(2, 3, dtype="float64")
        assert sessions == ["Add", "Sub", "Add", "Add", "Add"]
        assert_array_equal(x.sum(0), [2, 2, 2])
        assert_array_equal(x.sum(1), [3, 3])
        assert_array_equal(x.sum(1), [3, 3])
        assert_array_equal(x.sum(1, keepdims=True), [[3], [3]])
        assert sessions[5:] == ["ReduceSum"] * 3


def test_an_input_read_twice_is_another_node_than_two_inputs(sessions):
    with evaluating():
        x, y = given(2), given(2) + 4
        assert_array_equal(x * x, [1, 1])
        assert_array_equal(x * y, [5, 5])


def test_the_oldest_sessions_are_closed(sessions, monkeypatch):
    monkeypatch.setattr(kernels, "_MOST_SESSIONS", 2)
    with evaluating():
        x = given(2)
        for f in (op.Exp, op.Tanh, op.Exp, op.Relu, op.Exp, op.Tanh):
            f(x)
    assert sessions == ["Exp", "Tanh", "Relu", "Tanh"]
    assert len(kernels._SESSIONS) == 2


def test_operators_without_a_kernel_are_lowered(sessions):
    with evaluating():
        y = op.Conv(given(1, 1, 3, 3, dtype="float64"), np.ones((1, 1, 2, 2)))
    assert_array_equal(y, np.full((1, 1, 2, 2), 4.0))


def test_numbers_that_would_end_the_process_are_an_error():
    with evaluating():
        x = given(2, dtype="int64")
        for divisor in (0, x - 1):
            with pytest.raises((DataError, ModelError), match=r"^A Div divides .* by (0|zero)"):
                x / divisor
        assert_array_equal(x / x, [1, 1])
