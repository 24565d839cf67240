"""Elementwise operators in C, where they differ from C's own."""

import ctypes

import numpy as np
import pytest
from onnx import TensorProto

from ortpartial.graph import op, stop_gradient, variable
from ortpartial.native import compile_library, find_compiler, translate

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="needs a C compiler")


def compute(formula, *arrays):
    """What C computes of arrays."""
    inputs = {name: variable(name, a.dtype, a.shape) for name, a in zip("ab", arrays, strict=False)}
    result = formula(*inputs.values())
    state = variable("state", result.dtype, result.shape)
    loss = op.Cast(op.ReduceSum(result, keepdims=0), to=TensorProto.FLOAT)
    step = translate({**inputs, "state": state}, {"new": result, "loss": loss}, rows=list(inputs),
                     state={"state": "new"}, loss="loss")
    run = compile_library(step.source, {"step.h": step.header}).step_step
    out, memory, given = np.zeros(result.shape, result.dtype), np.zeros(step.memory_bytes + 64, np.uint8), np.zeros(8)
    rows = (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
    loss = ctypes.byref(ctypes.c_float())
    run(*(ctypes.c_void_p(a.ctypes.data) for a in (out, memory)), rows, ctypes.c_void_p(given.ctypes.data), loss)
    return out


def test_the_end_of_a_gradient_passes_numbers_on():
    a = np.array([1.5, -2.0], np.float32)
    np.testing.assert_array_equal(compute(lambda a: stop_gradient(a) + 1.0, a), a + 1)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", ["Add", "Sub", "Mul"])
def test_whole_numbers_wrap_around(name, dtype):
    info = np.iinfo(dtype)
    a = np.array([info.max, info.min, 3, -7, info.min], dtype)
    b = np.array([info.max, info.max, -5, 2, -1], dtype)
    expected = {"Add": a + b, "Sub": a - b, "Mul": a * b}[name]
    np.testing.assert_array_equal(compute(getattr(op, name), a, b), expected)


def test_whole_numbers_are_divided_toward_zero():
    """A divisor that is 0, or -1 of the least number, is refused: see tests/robustness/test_refusals.py."""
    a, b = np.array([7, -7, 7, -(2**31), 5], np.int32), np.array([2, 2, -2, 1, -1], np.int32)
    assert compute(op.Div, a, b).tolist() == [3, -3, -3, -(2**31), -5]
