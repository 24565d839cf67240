"""Casts keep numbers: numbers that a dtype cannot hold are refused, wherever numpy would wrap or cut them."""

import re

import ml_dtypes
import numpy as np
import pytest
from table import rows

from ortpartial.exceptions import DataError, GraphError
from ortpartial.graph import Operators, Subgraph, build, constant, op, variable
from ortpartial.graph.casting import to_dtype
from ortpartial.testing import evaluate

X, U = variable("x", "float32", ["N", 4]), variable("u", "uint8", ["N"])
I, S = variable("i", "int64", ["N"]), variable("s", "int8", ["N"])
FAR = np.uint64(2**63)


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    rows(
        ("itself", np.zeros(2), "float64", np.zeros(2)),
        ("the ends", [0, 255], "uint8", np.array([0, 255], np.uint8)),
        ("whole real numbers", [0.0, -0.0, 255.0], "uint8", np.array([0, 0, 255], np.uint8)),
        ("from unsigned", np.array([2**63 - 1], np.uint64), "int64", np.array([2**63 - 1])),
        ("truth", [1, 0.0], "bool", np.array([True, False])),
        ("rounded", 0.1, "float32", np.float32(0.1)),
        ("objects", np.array([1, True, 2.0, "3"], object), "int8", np.array([1, 1, 2, 3], np.int8)),
        ("beyond 64 bits", 2**70, "float32", np.float32(2**70)),
        ("nothing", np.array([]), "int32", np.array([], np.int32)),
        ("four bits", [-8, 7], ml_dtypes.int4, np.array([-8, 7], ml_dtypes.int4)),
        ("sixteen bits", np.array([1.5], ml_dtypes.bfloat16), "float32", np.array([1.5], np.float32)),
    ),
)
def test_what_fits(values, dtype, expected):
    array = to_dtype(values, dtype, "it")
    assert (array.dtype, array.tolist()) == (expected.dtype, expected.tolist())


@pytest.mark.parametrize(
    ("values", "dtype", "message"),
    rows(
        ("too large", 257, "uint8", "it is 257, where uint8 holds 0 to 255."),
        ("negative", [1, -1], "uint8", "it holds -1, where uint8 holds 0 to 255."),
        ("a real number too large", [1.0, 300.0], "uint8", "it holds 300.0, where uint8 holds 0 to 255."),
        ("wide", 4294967297, "int32", "it is 4294967297, where int32 holds -2147483648 to 2147483647."),
        ("unsigned", FAR, "int64", "it is 9223372036854775808, where int64 holds"),
        ("next to the last", 2.0**63, "int64", "it is 9.223372036854776e+18, where int64 holds"),
        ("a fraction", [1, 0.5], "int64", "it holds 0.5, a fraction, where int64 was expected."),
        ("NaN", float("nan"), "int64", "it is nan, where int64 was expected."),
        ("infinity", float("inf"), "int64", "it is inf, where int64 holds"),
        ("truth", 2, "bool", "it is 2, where bool holds 0 to 1."),
        ("four bits", [8], ml_dtypes.int4, "it holds 8, where int4 holds -8 to 7."),
        ("sixteen bits", np.array([1.5], ml_dtypes.bfloat16), "int8", "it holds 1.5, a fraction, where int8 was"),
        ("complex", 1j, "float32", "it is complex128, where float32 was expected."),
        ("text", "a", "float32", "it is <U1, where float32 was expected."),
        ("dates", np.array(["2026-01-01"], "datetime64[s]"), "int64", "it is datetime64[s], where int64 was expected."),
        ("beyond 64 bits", 2**64, "int64", "it does not fit int64: Python int too large to convert to C long."),
        ("objects", np.array([1, 2.5], object), "int64", "it holds 2.5, where int64 was expected."),
        ("none", [None], "int64", "it does not fit int64: int() argument must be"),
    ),
)
def test_what_does_not(values, dtype, message):
    with pytest.raises(DataError, match=f"^{re.escape(message)}"):
        to_dtype(values, dtype, "it")


@pytest.mark.parametrize(
    ("write", "message"),
    rows(
        ("sum", lambda: U + 257, "Add: input 'B' is 257, where uint8 holds 0 to 255."),
        ("sum on the left", lambda: -1 + U, "Add: input 'A' is -1, where uint8 holds 0 to 255."),
        ("a scalar of numpy", lambda: np.int64(257) + U, "Add: input 'A' is 257, where uint8 holds 0 to 255."),
        ("product", lambda: I * 0.5, "Mul: input 'B' is 0.5, a fraction, where int64 was expected."),
        ("comparison", lambda: I < 0.5, "Less: input 'B' is 0.5, a fraction, where int64 was expected."),
        ("remainder", lambda: 257 % U, "Mod: input 'A' is 257, where uint8"),
        ("quotient", lambda: 5.5 // I, "Mod: input 'A' is 5.5, a fraction, where int64"),
        ("branches", lambda: op.Where(S > 0, S, 200), "Where: input 'Y' is 200, where int8 holds -128 to 127."),
        ("index", lambda: op.Gather(X, -1.0), "Gather: input 'indices' is -1.0, of float64, where whole numbers were "
                                              "expected; convert them, such as by astype('int64')."),
        ("indices", lambda: op.Gather(X, [0.0, 1.0]), "Gather: input 'indices' holds 0.0, of float64, where whole"),
        ("unsigned index", lambda: op.Gather(X, FAR), "Gather: input 'indices' is 9223372036854775808, where int64"),
        ("shape", lambda: op.Reshape(X, [2.5, -1]), "Reshape: input 'shape' holds 2.5, of float64, where whole"),
        ("sizes", lambda: X.reshape(2.0, -1), "A size for <Value x float32[Nx4]> holds 2.0, of float64, where whole"),
        ("a size", lambda: X.reshape(X.sum(), 2), "<Value ReduceSum float32[]> is no whole number, as a size or"),
        ("constant", lambda: constant([257], "uint8"), "The constant holds 257, where uint8 holds 0 to 255."),
        ("cast constant", lambda: constant(np.array([0.5]), "int64", "w"), "The constant w holds 0.5, a fraction,"),
        ("constant beyond 64 bits", lambda: constant(2**70), "The constant does not fit int64: Python int too large"),
    ),
)
def test_numbers_beside_values_fit_their_dtype(write, message):
    with pytest.raises(GraphError, match=f"^{re.escape(message)}"):
        write()


def test_numbers_that_fit():
    assert (U + 255.0).node.inputs[1].array.tolist() == 255
    assert op.Gather(X, np.uint64(3)).node.inputs[1].dtype == np.int64
    assert op.Gather(X, np.int32(3)).node.inputs[1].dtype == np.int32
    assert op.If(1, then_branch=Subgraph.of(lambda: X), else_branch=Subgraph.of(lambda: -X)).shape == ("N", 4)
    assert Operators("ai.onnx.ml").ArrayFeatureExtractor(X, [0, 1]).node.inputs[1].dtype == np.int64


@pytest.mark.parametrize(
    ("key", "message"),
    rows(
        ("unsigned", FAR, "An index of <Value x float32[Nx4]> is 9223372036854775808, where int64"),
        ("unsigned ones", np.array([FAR]), "An index of <Value x float32[Nx4]> holds 9223372036854775808, where int64"),
        ("beyond 64 bits", 2**64, "The index 18446744073709551616 is out of range for <Value x float32[Nx4]>."),
        ("real", np.float32(-1), f"<Value x float32[Nx4]> cannot be indexed by {np.float32(-1)!r}; whole numbers"),
        ("a real value", X, "<Value x float32[Nx4]> cannot be indexed by <Value x float32[Nx4]>; whole numbers"),
        ("a real end", np.s_[1.5:], "<Value x float32[Nx4]> cannot be sliced with 1.5; a slice has whole numbers"),
        ("a real step", np.s_[::1.5], "<Value x float32[Nx4]> cannot be sliced with 1.5; a slice has whole numbers"),
    ),
)
def test_indices_are_whole_numbers(key, message):
    with pytest.raises(IndexError, match=f"^{re.escape(message)}"):
        X[key]


def test_far_ends_of_slices_are_the_ends():
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    keys = [np.s_[: 2**63], np.s_[-(2**70) :], np.s_[FAR:], np.s_[2**65 :: -1], np.s_[np.array([1], np.uint8)]]
    outputs = evaluate(build([X], {f"y{i}": X[k] for i, k in enumerate(keys)}), {"x": a})
    for y, k in zip(outputs.values(), keys, strict=True):
        np.testing.assert_array_equal(y, a[k])
