"""Programs: what a step computes as values, and a graph that is bound to buffers in turn."""

import numpy as np
import pytest

from ortpartial.artifacts.optimizers import SGD
from ortpartial.artifacts.programs import RATE, STEP, Composition, Program, compose_update, finish, state_name
from ortpartial.artifacts.state import Tensors
from ortpartial.exceptions import ConvergenceError
from ortpartial.graph import op, variable
from ortpartial.runtime import CPU, Buffer

W, X = variable("w", "float32", [3]), variable("x", "float32", [3])


def open_program():
    """Returns the sum of x w, and adds x to w."""
    tensors = Tensors({"w": np.float32([1, 2, 3])})
    composition = finish({"w": W, "x": X}, {"loss": op.ReduceSum(X * W, keepdims=0)}, {("w", ""): W + X})
    return Program(composition, {("w", ""): tensors}, {}, CPU), tensors


def test_names_of_states():
    assert (state_name("w", ""), state_name("w", "momentum0")) == ("w", "w//momentum0")


def test_a_program_reads_one_buffer_and_writes_the_other():
    program, tensors = open_program()
    losses = [program.run({"x": np.ones(3, np.float32)})[0].item() for _ in range(3)]
    assert losses == [6, 9, 12]
    assert tensors.current("w").numpy().tolist() == [4, 5, 6]


def test_a_loss_that_is_nan_leaves_the_state():
    program, tensors = open_program()
    with pytest.raises(ConvergenceError, match=r"The loss 'loss' is nan; parameters and gradients are those before"):
        program.run({"x": np.float32([0, np.nan, 0])})
    assert tensors.current("w").numpy().tolist() == [1, 2, 3]
    assert program.run({"x": np.ones(3, np.float32)})[0] == 6


def test_an_update_as_values():
    inputs, written = compose_update(SGD(), {"w": W}, {"w": X})
    assert set(inputs) == {RATE, STEP}
    tensors = Tensors({"w": np.float32([1, 2, 3])})
    composition = finish({"w": W, "x": X, **inputs}, {}, written)
    assert isinstance(composition, Composition)
    numbers = {RATE: Buffer(np.float32([0.5])), STEP: Buffer(np.array(0))}
    Program(composition, {("w", ""): tensors}, numbers, CPU).run({"x": np.float32([2, 2, 4])})
    assert tensors.current("w").numpy().tolist() == [0, 1, 1]
