"""A function in machine code: results in the memory of the caller, refusals in words, sizes that are not known."""

from threading import Thread

import numpy as np
import pytest

from ortpartial.exceptions import DataError, UntranslatableError
from ortpartial.graph import op, variable
from ortpartial.native import NativeFunction


def call(function, *arrays):
    return function.run(*(a.ctypes.data for a in arrays))


def test_results_are_written_to_the_memory_of_the_caller(rng):
    x, n = variable("x", "float32", [2, 3]), variable("n", "int64", [])
    # Results that are an argument, a constant, equal to another, of another type, and without elements.
    outputs = {"x": x, "one": op.Identity(np.ones(2)), "a": x * 2, "b": x * 2, "big": x > 1, "n": n + 1, "none": x[:0]}
    function = NativeFunction({"x": x, "n": n}, outputs)
    given = rng.random((2, 3), np.float32) * 2
    results = [np.empty(v.shape, v.dtype) for v in outputs.values()]
    assert call(function, given, np.array(4), *results) == 0
    expected = [given, np.ones(2), given * 2, given * 2, given > 1, 5, given[:0]]
    for result, array in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, array)


def test_a_call_may_overwrite_its_arguments():
    x = variable("x", "float32", [4])
    function, given = NativeFunction({"x": x}, {"y": x[::-1], "z": x + 1}), np.arange(4, dtype=np.float32)
    z = np.empty_like(given)
    assert call(function, given, given, z) == 0
    assert given.tolist() == [3, 2, 1, 0]
    assert z.tolist() == [1, 2, 3, 4]


def test_an_index_out_of_range_is_refused():
    x, i = variable("x", "float32", [3]), variable("i", "int64", [])
    function, y = NativeFunction({"x": x, "i": i}, {"y": op.Gather(x, i)}), np.full((), 7, np.float32)
    code = call(function, np.zeros(3, np.float32), np.array(5), y)
    assert y == 7
    with pytest.raises(DataError, match=r"Gather has an index that is not in -3 to 2: 5"):
        raise function.explain(code)


def test_sizes_that_are_not_known_are_refused():
    x = variable("x", "float32", [3])
    with pytest.raises(UntranslatableError, match="The shape of the result 'y' is not known before a step runs"):
        NativeFunction({"x": x}, {"y": op.NonZero(x)})


@pytest.mark.parametrize("keeps_lock", [True, False])
def test_calls_of_a_thread(keeps_lock):
    x = variable("x", "float32", [3])
    function, y = NativeFunction({"x": x}, {"y": x + 1}, keeps_lock=keeps_lock), np.zeros(3, np.float32)
    thread = Thread(target=call, args=(function, np.ones(3, np.float32), y))
    thread.start()
    thread.join()
    assert y.tolist() == [2, 2, 2]
