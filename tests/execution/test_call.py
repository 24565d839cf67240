"""A call: the parts of a step in turn, from one set of buffers to the other, with copies of the results."""

import numpy as np
import pytest

from ortpartial.execution.call import CallProgram
from ortpartial.execution.names import StepNames
from ortpartial.execution.program import RunLocal
from ortpartial.execution.step import Step
from ortpartial.graph import op, variable
from ortpartial.runtime import Buffer

X, W = variable("x", "float32", [3]), variable("w", "float32", [3])
NAMES = StepNames.beside(["x", "w"])


def make(exchanges=None):
    """Two parts: w + x, which the second reads, and then halves."""
    parts = [Step({"x": X, "w": W}, {"sum": op.ReduceSum(X * W, keepdims=0), "w_new": W + X}, NAMES),
             Step({"w": W}, {"seen": W * 1, "w_new": W * 0.5}, NAMES)]
    sides = tuple({"w": Buffer(np.float32(a))} for a in ([2, 4, 6], [0, 0, 0]))
    program = CallProgram(parts, sides, {}, device="cpu", threads=1, local=RunLocal(),
                          exchanges=exchanges or {},
                          exchange=lambda new: [exchanges[n](buffer) for n, buffer in new.items()])
    return program, sides


def test_parts_in_turn():
    program, sides = make()
    outputs = program(0, {"x": np.float32([2, 0, 2])})
    assert outputs["sum"] == 16
    assert outputs["seen"].tolist() == [4, 4, 8]
    assert sides[1]["w"].numpy().tolist() == [2, 2, 4]
    assert sides[0]["w"].numpy().tolist() == [2, 4, 6]


def test_and_back():
    program, sides = make()
    x = np.float32([2, 0, 2])
    program(0, {"x": x})
    first = program(1, {"x": x})
    assert sides[0]["w"].numpy().tolist() == [2, 1, 3]
    kept = first["seen"].copy()
    program(0, {"x": x})
    np.testing.assert_array_equal(first["seen"], kept)


def test_what_processes_exchange():
    """Between two parts: what another process adds is read by the next one."""
    def add(buffer):
        buffer.numpy()[...] += 10

    program, sides = make({"w": add})
    outputs = program(0, {"x": np.float32([0, 0, 0])})
    assert outputs["seen"].tolist() == [12, 14, 16]
    assert sides[1]["w"].numpy().tolist() == [16, 17, 18]


def test_an_exchange_that_fails():
    def fail(buffer):
        raise ConnectionError("lost")

    program, sides = make({"w": fail})
    with pytest.raises(ConnectionError):
        program(0, {"x": np.float32([1, 1, 1])})
    assert sides[0]["w"].numpy().tolist() == [2, 4, 6]
