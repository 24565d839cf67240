"""A refusal to write C names the node, and the reason."""

import numpy as np
import pytest
from native_cases import write_cases
from onnx import TensorProto

from ortpartial.exceptions import UntranslatableError
from ortpartial.graph import constant, op, variable

X, PLACE, NUMBER = variable("x", "float32", [4, 4]), variable("i", "int64", [1]), variable("k", "int64", [])
CASES = {
    "type": (op.Cast(op.Cast(X, to=TensorProto.FLOAT16), to=TensorProto.FLOAT),
             "Cast.* is of a type that is not written in C"),
    "operator": (op.Det(X), "Det.* is not among the operators that are written in C"),
    "slice": (op.Slice(X, PLACE, constant([4]), [0]), "not known before|starts at a place that is computed"),
    "diagonal": (op.Trilu(X, NUMBER), "Trilu.* with a diagonal that is computed is not written in C"),
    "shape": (op.ReduceSum(op.NonZero(X), keepdims=0), "NonZero|not known before"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_written_is_named(case):
    value, message = CASES[case]
    numbers = {X: np.ones((4, 4), np.float32), PLACE: np.zeros(1, np.int64), NUMBER: np.array(0)}
    with pytest.raises(UntranslatableError, match=message):
        write_cases({"y": value}, numbers)


def test_a_value_from_elsewhere_is_no_input_of_the_step():
    with pytest.raises(UntranslatableError, match=r"<Value x float32\[4x4\]> is no input of the step\."):
        write_cases({"y": op.Exp(X)}, {})
