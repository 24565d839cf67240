"""A step that processes interrupt is cut where they exchange numbers, and each part reads the state that it finds."""

import numpy as np
import pytest

from ortpartial import nn, op, variable
from ortpartial.exceptions import GraphError
from ortpartial.graph import build, find_inputs
from ortpartial.nn.data_parallel import average
from ortpartial.nn.step_segments import split_entries
from ortpartial.nn.trace import PASSING, Trace
from ortpartial.runtime import Session

X = variable("x", "float32", [3])
NUMBERS = np.float32([1, 2, 4])


@pytest.fixture
def trace():
    """What a step has written that has read the state w."""
    trace = Trace(nn.Module(), training=True)
    trace.read_state("w", np.float32, (3,), np.ones(3, np.float32))
    return trace


def update(trace):
    """Take off x · w, averaged over the processes; returns w before and after."""
    w = trace.after["w"]
    trace.write_state("w", w - average(trace, [X * w], "mean")[0])
    return w, trace.after["w"]


def run(trace, entries):
    """Run the entries of one process in turn."""
    state, results = dict(trace.first), {}
    for entry in entries:
        new = {f"{n} new": v for n, v in entry.updates.items()}
        inputs = {"x": X, **trace.before}
        session = Session(build(inputs, {**entry.outputs, **new}))
        arrays = {"x": NUMBERS, **state}
        outputs = session.run({n: arrays[n] for n in session.inputs})
        state.update({n: outputs[f"{n} new"] for n in entry.updates})
        results.update({n: outputs[n] for n in entry.outputs})
    return state, results


def test_a_step_of_one_process_is_one_entry(trace):
    trace.write_state("w", trace.after["w"] * X)
    (entry,) = split_entries(trace, {"y": X + 1})
    assert list(entry.outputs) == ["y"]
    assert list(entry.updates) == ["w"]


def test_the_state_is_that_of_the_code_so_far(trace):
    """w(1 - x), twice: the second part reads what the first has left, not what it was made of."""
    first, _ = update(trace)
    update(trace)
    entries, mean = split_entries(trace, {"first": first * X}), f"{PASSING}mean"
    assert [list(e.outputs) for e in entries] == [["first"], [], []]
    assert [list(e.updates) for e in entries] == [[mean], [f"{mean}_", "w"], ["w"]]
    assert list(find_inputs(entries[2].updates.values(), {"x": X, **trace.before})) == ["w", f"{mean}_"]
    state, results = run(trace, entries)
    np.testing.assert_allclose(state["w"], (1 - NUMBERS) ** 2)
    np.testing.assert_array_equal(results["first"], NUMBERS)


def test_a_state_that_is_read_later_stays(trace):
    """The last output reads the weights before the step, so that they change no earlier than it is computed."""
    first, _ = update(trace)
    _, last = update(trace)
    entries, mean = split_entries(trace, {"both": last + 10 * first}), f"{PASSING}mean"
    assert [list(e.updates) for e in entries] == [[mean], [f"{mean}_"], ["w"]]
    state, results = run(trace, entries)
    np.testing.assert_allclose(state["w"], (1 - NUMBERS) ** 2)
    np.testing.assert_allclose(results["both"], (1 - NUMBERS) ** 2 + 10)


def test_exchanges_that_wait_for_nothing_are_of_one_entry(trace):
    means = [average(trace, [X * trace.after["w"]], name)[0] for name in ("a", "b")]
    trace.write_state("w", means[0] + means[1])
    entries = split_entries(trace, {})
    assert [list(e.updates) for e in entries] == [[f"{PASSING}a", f"{PASSING}b"], ["w"]]
    np.testing.assert_allclose(run(trace, entries)[0]["w"], 2 * NUMBERS)


def test_random_numbers_are_not_drawn_again(trace):
    noise = op.RandomNormalLike(X)
    trace.write_state("w", average(trace, [X * noise], "mean")[0] * noise)
    with pytest.raises(GraphError, match=r"draws RandomNormalLike before gradients are exchanged and needs the same "
                                         r"numbers after that; take them as an input of train_one_batch\."):
        split_entries(trace, {})
