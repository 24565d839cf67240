"""A refusal to write C names the node, and the reason."""

import numpy as np
import pytest
from native_cases import write_cases
from onnx import TensorProto

from ortpartial.exceptions import UntranslatableError
from ortpartial.graph import constant, op, variable
from ortpartial.native import translate

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


def write_step(value, state):
    return translate({v.hint: v for v in state}, {"y": value, "loss": constant(0.0, np.float32)}, rows=[],
                     state={state[0].hint: "y"}, loss="loss", is_linked=True).source


def round_to(v):
    return op.Cast(op.Cast(v, to=TensorProto.BFLOAT16), to=TensorProto.FLOAT)


IMAGE, KERNEL = variable("x", "float32", [2, 3, 8, 8]), variable("w", "float32", [3, 3, 3, 3])
WEIGHT = constant(np.linspace(-1, 1, 16).astype(np.float32).reshape(4, 4))
#: Products whose operands are numbers of bfloat16, by how they are read, and how many roundings are left in loops.
ROUNDED = {
    "product": (round_to(X) @ round_to(op.Exp(X)), [X], 0),
    "views": (op.Transpose(round_to(X)) @ op.Reshape(round_to(X), [4, 4]), [X], 0),
    "read twice": (round_to(op.Exp(X)) @ round_to(X) + op.Transpose(round_to(op.Exp(X))) @ round_to(X), [X], 0),
    "constant": (round_to(X) @ round_to(WEIGHT), [X], 0),
    "addend": (op.Gemm(round_to(X), round_to(op.Exp(X)), X, transB=1, alpha=-0.5), [X], 0),
    "convolution": (op.Conv(round_to(IMAGE), round_to(KERNEL), pads=[1, 1, 1, 1]), [IMAGE, KERNEL], 1),
}


@pytest.mark.parametrize("case", ROUNDED)
def test_products_of_rounded_operands_are_those_in_bfloat16(case):
    value, state, roundings = ROUNDED[case]
    source = write_step(value, state)
    body = source.partition("static int32_t step_run")[2]
    assert "op_bfloat16(z" in body
    assert "op_large" not in body
    assert "product_" not in body
    assert body.count("op_round_bfloat16") == roundings


def test_products_of_other_numbers_stay_in_float32():
    """A single operand that is rounded, and an array of which only a part is."""
    margin = op.Pad(round_to(X), [0, 0, 0, 4], 0.1)
    for value in (round_to(X) @ X, margin @ op.Transpose(margin)):
        assert "op_bfloat16" not in write_step(value, [X])
