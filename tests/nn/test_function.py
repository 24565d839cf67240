"""Functions: graphs of a module's code, run on arrays and on its state."""

import numpy as np
import pytest

from ortpartial import nn
from ortpartial.exceptions import DataError
from ortpartial.graph import variable
from ortpartial.nn.function import compile_function
from ortpartial.nn.tracing import write

W, B = np.float32([[1, 2, 3]]), np.float32([4])


def compile_linear():
    module = nn.Linear(3, 1)
    writing = write(module, module.forward, {"x": variable("x", "float32", ["N", 3])}, training=False)
    return compile_function(writing, writing.outputs, device="cpu", sequential=True)


def test_run_on_state():
    outputs = compile_linear()([[[1, 0, 0], [0, 0, 1]]], {"weight": W, "bias": B}.__getitem__)
    assert outputs["output"].tolist() == [[5.0], [7.0]]


def test_other_shapes():
    with pytest.raises(DataError, match=r"The input 'x' has the shape \(1, 2\)"):
        compile_linear()([[[1, 0]]], {"weight": W, "bias": B}.__getitem__)
