"""Operators applied to values: constants beside values, attributes, and errors."""

import inspect

import numpy as np
import pytest
from onnx import defs
from table import rows

from ortpartial.exceptions import GraphError
from ortpartial.graph import OPSET, Operators, constant, op, variable


def x_(shape=("N", 3), name="x", dtype="float32"):
    return variable(name, dtype, shape)


@pytest.mark.parametrize(
    ("argument", "dtype", "expected"),
    rows(
        ("float", 1.5, None, np.float32),
        ("integer", 2, None, np.int64),
        ("list of floats", [1.0, 2.0], None, np.float32),
        ("nothing", [], None, np.int64),
        ("truth", True, None, np.bool_),
        ("array", np.zeros(2), None, np.float64),
        ("array, cast", np.zeros(2), "float32", np.float32),
        ("asked for", 1, "float16", np.float16),
    ),
)
def test_dtypes_of_constants(argument, dtype, expected):
    assert constant(argument, dtype).dtype == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    rows(
        ("the other argument", op.Mul(x_(dtype="float64"), 2), np.float64),
        ("half", op.Mul(2, x_(dtype="float16")), np.float16),
        ("of the type variable, not of the first input", op.Where(x_() > 0, x_(dtype="float64"), 0.0), np.float64),
        ("integers", op.Add(x_(dtype="int32"), 2), np.int32),
        ("axes are int64", op.ReduceSum(x_(dtype="float64"), [1]), np.float64),
        ("exponent of an integer", op.Pow(x_(dtype="float64"), 2), np.float64),
    ),
)
def test_numbers_take_the_dtype_of_the_values_beside_them(value, expected):
    assert value.dtype == expected


@pytest.mark.parametrize(
    ("make", "parts"),
    rows(
        ("no such operator", lambda: op.Sofmax(x_()), ["ONNX has no operator Sofmax at opset 21"]),
        ("too few inputs", lambda: op.Add(x_()), ["Add takes 2 to 2 inputs, 1 given"]),
        ("too many inputs", lambda: op.Exp(x_(), x_()), ["Exp takes 1 to 1 inputs, 2 given"]),
        ("no such attribute", lambda: op.Softmax(x_(), axes=1),
         ["Softmax has no attribute 'axes'; its attributes are: axis"]),
        ("no attributes at all", lambda: op.Exp(x_(), axis=1), ["Exp has no attribute 'axis'", "are: none"]),
        ("dtypes", lambda: x_() + x_(dtype="float64"), ["Add: input 'B' is float64 where float32 was", "cast"]),
        ("shapes", lambda: x_([2, 3]) @ x_([2, 3]), ["MatMul does not accept", "<Value x float32[2x3]>"]),
        ("broadcasting", lambda: x_([2, 3]) + x_([2, 4]), ["Add does not accept", "float32[2x4]"]),
        ("rank", lambda: op.Exp(x_(None)).rank, ["The rank of <Value Exp float32[?]> is not known", "declare"]),
    ),
)
def test_errors(make, parts):
    with pytest.raises(GraphError) as e:
        make()
    for part in parts:
        assert part in str(e.value)


def test_several_outputs():
    values, indices = op.TopK(x_(), [2])
    assert (values.shape, indices.dtype) == (("N", 2), np.int64)
    assert [v.shape for v in op.Split(x_([4, 3]), num_outputs=2)] == [(2, 3), (2, 3)]
    assert [v.shape for v in op.Split(x_([4, 3]), [1, 3], n_outputs=2)] == [(1, 3), (3, 3)]
    assert op.MaxPool(x_([1, 1, 4]), kernel_shape=[2]).node.outputs[1].dtype == np.int64


def test_shapes_follow_constants():
    assert op.Reshape(x_([2, 3]), [3, -1]).shape == (3, 2)
    assert op.Slice(x_([5, 3]), [1], [4], [0]).shape == (3, 3)


def test_operators_are_listed():
    listed = dir(op)
    assert listed == sorted({s.name for s in defs.get_all_schemas() if not s.domain and not s.deprecated})
    assert len(listed) > 190
    assert all(repr(getattr(op, name)).startswith(f"<operator {name}(") for name in listed)
    assert repr(op) == f"<{len(listed)} operators of ONNX, opset {OPSET}>"
    assert dir(Operators("ai.onnx.ml"))[0] == "ArrayFeatureExtractor"


def test_an_operator_tells_its_signature():
    assert str(inspect.signature(op.Softmax)) == "(input, /, *, axis=-1)"
    assert str(inspect.signature(op.Clip)) == "(input, min=None, max=None, /)"
    assert str(inspect.signature(op.Concat)) == "(*inputs, axis)"
    assert repr(op.Softmax) == "<operator Softmax(input, /, *, axis=-1), opset 13>"
    assert op.Softmax.__doc__.strip().startswith("The operator computes the normalized exponential values")
    assert op.Softmax.__name__ == "Softmax"


def test_a_misspelt_operator():
    with pytest.raises(GraphError, match=r"ONNX has no operator relu at opset 21\. Did you mean Relu?"):
        op.relu(x_())
    assert not hasattr(op, "relu")
    assert hasattr(op, "Relu")
    with pytest.raises(GraphError, match=r"no operator here.Mine .*onnx.defs.register_schema, and its gradient by "
                                         r"ortpartial.vjp\('Mine', 'here'\)"):
        _ = Operators("here").Mine


def test_sizes_are_numbers_of_numpy_as_well():
    assert variable("x", "float32", np.array([2, 3])).shape == (2, 3)
    assert variable("x", "float32", [np.int64(2), "N"]).shape == (2, "N")
    with pytest.raises(GraphError, match=r"the shape of 'x' is \[2\.0\]; expected sizes, names or None"):
        variable("x", "float32", [2.0])
