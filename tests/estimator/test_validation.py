"""Validation of X, y and sample_weight: arrays of the declared shapes and dtypes, or one clear error."""

import re

import numpy as np
import pandas
import polars
import pyarrow
import pytest
from trainings import linear_engine

from ortpartial import OrtGradientForwardBackwardOptimizer, build
from ortpartial.estimator.validation import DataAdapter, check_inputs, check_sample_weight, check_target
from ortpartial.exceptions import DataError, ModelWarning
from ortpartial.graph.ops import constant, op, variable
from ortpartial.learning import SquareLearningLoss

INPUTS = {"x": variable("x", "float32", ["N", 2])}
TWO = {**INPUTS, "i": variable("i", "int64", ["N"])}
F32, I64 = np.dtype(np.float32), np.dtype(np.int64)
X = np.arange(6.0).reshape(3, 2)


def test_no_input():
    with pytest.raises(DataError, match="The model reads no input, so that there are no rows to run it on"):
        check_inputs({}, {})


@pytest.mark.parametrize(
    "given",
    [X, X.tolist(), X.astype(int), X.astype(object), X > 1, np.asfortranarray(X), X[::-1], X.astype(">f8"), {"x": X}],
    ids=["float64", "list", "int", "object", "bool", "fortran", "strided", "big endian", "dict"],
)
def test_inputs(given):
    arrays, rows = check_inputs(INPUTS, given)
    assert (rows, arrays["x"].shape, arrays["x"].dtype, arrays["x"].flags.c_contiguous) == (3, (3, 2), F32, True)
    assert (arrays["x"] == np.asarray(given["x"] if isinstance(given, dict) else given)).all()


def test_no_copy_where_none_is_needed():
    x = X.astype(np.float32)
    assert check_inputs(INPUTS, x)[0]["x"] is x


@pytest.mark.parametrize(
    ("inputs", "given", "message"),
    [
        (INPUTS, [[1, 2, 3]], "Input 'x' has shape (1, 3), where (N, 2) was expected."),
        (INPUTS, [1, 2], "Input 'x' has shape (2,), where (N, 2) was expected; a single row is X[None]."),
        (INPUTS, 1.0, "Input 'x' has shape (), where (N, 2) was expected."),
        (INPUTS, np.zeros((0, 2)), "There are no rows in X."),
        (INPUTS, [[1, np.nan]], "Input 'x' contains NaN or infinity; impute or drop those rows."),
        (INPUTS, [[1, np.inf]], "Input 'x' contains NaN or infinity; impute or drop those rows."),
        (INPUTS, [[1, 1e300]], "Input 'x' holds numbers too large for float32."),
        (INPUTS, [["a", "b"]], "Input 'x' has dtype <U1, where float32 was expected; encode it as numbers first."),
        (INPUTS, np.array([["a", "b"]], object), "Input 'x' holds str, where float32 was expected; encode it"),
        (INPUTS, [[1, None]], "Input 'x' contains NaN or infinity; impute or drop those rows."),
        (INPUTS, [[1j, 2]], "Input 'x' has dtype complex128, where float32 was expected; encode it as numbers first."),
        (INPUTS, [[1, 2], [3]], "Input 'x' has rows of 1 to 2 elements, where all were expected to have as many"),
        (INPUTS, {"z": X}, "Missing input: 'x'. Unknown input: 'z'. Expected 'x'; got 'z'."),
        (INPUTS, {}, "Missing input: 'x'. Expected 'x'; got none."),
        (INPUTS, {"x": X, "z": X}, "Unknown input: 'z'. Expected 'x'; got 'x', 'z'."),
        (TWO, X, "The model has the inputs 'x', 'i'; give a dict of arrays by name."),
        (TWO, {"x": X, "i": [1, 2]}, "The inputs have different numbers of rows: {'x': 3, 'i': 2}."),
        (TWO, {"x": X, "i": [1, 2, 2.5]}, "Input 'i' holds 2.5, a fraction, where int64 was expected."),
        ({"x": variable("x", "float32", [])}, 1.0, "Input 'x' is a scalar in the model; rows need an axis of"),
    ],
)
def test_inputs_errors(inputs, given, message):
    with pytest.raises(DataError, match=re.escape(message)):
        check_inputs(inputs, given)


@pytest.mark.parametrize(
    ("given", "dtype", "shape", "found"),
    [
        ([1, 2, 3], F32, ("N", 1), (3, 1)),
        ([[1], [2], [3]], F32, ("N",), (3,)),
        ([[1], [2], [3]], F32, ("N", 1), (3, 1)),
        (np.ones((3, 4)), F32, ("N", 2, 2), (3, 2, 2)),
        (np.ones((3, 4)), F32, ("N", "T"), (3, 4)),
        (np.ones((3, 4)), F32, None, (3, 4)),
        ([0.0, 1.0, 2.0], I64, ("N",), (3,)),
        ([True, False, True], F32, ("N", 1), (3, 1)),
    ],
)
def test_target(given, dtype, shape, found):
    array = check_target(given, dtype, shape, 3)
    assert (array.shape, array.dtype) == (found, dtype)
    assert array.ravel().tolist() == np.ravel(given).tolist()


@pytest.mark.parametrize(
    ("given", "dtype", "shape", "classes", "message"),
    [
        ([1, 2], F32, ("N", 1), None, "y has 2 rows and X has 3."),
        (1, F32, ("N", 1), None, "y has no rows and X has 3."),
        (np.ones((3, 2)), F32, ("N", 1), None, "y has shape (3, 2), where (3, 1) was expected, as the output has."),
        (np.ones(3), F32, ("N", 3), None, "y has shape (3,), where (3, 3) was expected, as the output has."),
        (np.ones(3), F32, ("N", "T"), None, "y has 1 axes, where 2 were expected."),
        ([0, 1, np.nan], F32, ("N",), None, "y contains NaN or infinity; impute or drop those rows."),
        (list("abc"), F32, ("N",), None, "y has dtype <U1, where float32 was expected; number the classes, as"),
        (list("abc"), I64, ("N",), 3, "y has dtype <U1, where int64 was expected; number the classes, as"),
        ([0, 1, 3], I64, ("N",), 3, "y has labels from 0 to 3, where 0 to 2 were expected."),
        ([0, -1, 2], I64, ("N",), 3, "y has labels from -1 to 2, where 0 to 2 were expected."),
        ([0, 0.5, 2], I64, ("N",), 3, "y holds 0.5, a fraction, where int64 was expected; quantities are for"),
        ([0, 1, np.inf], I64, ("N",), 3, "y contains NaN or infinity; impute or drop those rows."),
    ],
)
def test_target_errors(given, dtype, shape, classes, message):
    with pytest.raises(DataError, match=re.escape(message)):
        check_target(given, dtype, shape, 3, classes=classes)


@pytest.mark.parametrize("given", [[1, 2, 3], [[1], [2], [3]], np.array([1, 2, 3], np.float64)])
def test_sample_weight(given):
    w = check_sample_weight(given, F32, 3)
    assert (w.shape, w.dtype, w.tolist()) == ((3,), F32, [1, 2, 3])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2], "sample_weight has shape (2,) and X has 3 rows, where one weight a row was expected."),
        ([1, 2, -3], "sample_weight has negative weights, the least is -3.0."),
        ([1, 2, np.nan], "sample_weight contains NaN or infinity; impute or drop those rows."),
        (["a", "b", "c"], "sample_weight has dtype <U1, where float32 was expected; for weights by class give"),
    ],
)
def test_sample_weight_errors(given, message):
    with pytest.raises(DataError, match=re.escape(message)):
        check_sample_weight(given, F32, 3)


def test_numbers_are_looked_at_in_pieces(monkeypatch):
    """Where they stand in the array does not matter, nor whether it is strided."""
    monkeypatch.setattr("ortpartial.estimator.validation._CHUNK", 3)
    for i in range(10):
        a = np.zeros((5, 2))
        a[i // 2, i % 2] = np.inf
        for x in (a, np.asfortranarray(a), np.hstack([a, a])[:, :2]):
            with pytest.raises(DataError, match="contains NaN or infinity"):
                check_inputs({"x": variable("x", "float32", ["N", 2])}, x)
    check_inputs({"x": variable("x", "float32", ["N", 2])}, np.zeros((5, 2)))


TABLES = {"pandas": pandas.DataFrame, "polars": polars.DataFrame, "pyarrow": pyarrow.table,
          "batch": pyarrow.record_batch}
tables = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)


@tables
def test_a_table_is_the_matrix_of_its_columns(table):
    arrays, rows = check_inputs(INPUTS, table({"u": [1.5, 2.5, 3.5], "v": [1, 0, 2**24]}))
    assert (rows, arrays["x"].dtype, arrays["x"].flags.c_contiguous) == (3, F32, True)
    assert arrays["x"].tolist() == [[1.5, 1], [2.5, 0], [3.5, 2**24]]
    assert check_inputs(INPUTS, table({"u": [True, False], "v": [0.5, 1]}))[0]["x"].tolist() == [[1, 0.5], [0, 1]]
    target = check_target(table({"y": [0, 1, 2]}), I64, ("N",), 3)
    assert (target.tolist(), target.dtype) == ([0, 1, 2], I64)


@pytest.mark.parametrize("column", [pandas.Series, polars.Series, pyarrow.array, lambda v: pyarrow.chunked_array([v])])
def test_a_column_is_a_target(column):
    assert check_target(column([1, 2, 3]), F32, ("N", 1), 3).tolist() == [[1], [2], [3]]
    assert check_sample_weight(column([1.0, 2.0, 3.0]), F32, 3).tolist() == [1, 2, 3]


def test_what_is_in_place_stays_there():
    held = np.arange(5, dtype=np.float32)
    for column in (polars.Series(held), pyarrow.array(held)):
        assert np.shares_memory(check_target(column, F32, ("N", 1), 5), np.asarray(column))


@tables
def test_the_columns_of_a_table_are_inputs_by_name(table):
    one = {"a": variable("a", "float32", ["N", 1]), "b": variable("b", "int64", ["N"])}
    arrays, rows = check_inputs(one, table({"b": [1, 2], "other": ["u", "v"], "a": [0.5, 1.5]}))
    assert (rows, arrays["a"].tolist(), arrays["b"].tolist()) == (2, [[0.5], [1.5]], [1, 2])
    said = "Missing input: 'b'. Expected 'a', 'b'; got 'a'."
    with pytest.raises(DataError, match=re.escape(said)):
        check_inputs(one, table({"a": [0.5, 1.5]}))


@tables
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["red", "blue"], "(holds str|has dtype <U4), where float32 was expected"),
        ([1, None], "contains NaN or infinity; impute or drop those rows"),
        ([1.0, None], "contains NaN or infinity; impute or drop those rows"),
        (np.array(["2026-01-01", "2026-01-02"], "datetime64[ms]"), "has dtype datetime64.*encode it as numbers"),
    ],
)
def test_the_column_at_fault_is_named(table, values, message):
    with pytest.raises(DataError, match=f"Column 'v' of input 'x' {message}"):
        check_inputs(INPUTS, table({"u": [1, 2], "v": values}))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pandas.DataFrame({"u": [1, 2], "v": pandas.Categorical(["b", "a"])}), "Column 'v' of input 'x' holds str"),
        (polars.DataFrame({"u": [1, 2], "v": polars.Series(["b", "a"], dtype=polars.Categorical)}), "holds str"),
        (pyarrow.table({"u": [1, 2], "v": pyarrow.array(["b", "a"]).dictionary_encode()}), "Column 'v' of input 'x'"),
        (pandas.DataFrame({"u": [1, 2], "v": pandas.array([1, None], "Int64")}), "Column 'v' of input 'x'"),
        (pandas.DataFrame([[1, 2], [3, 4]], columns=["v", "v"]), "The table has two columns of the name 'v'; rename"),
        (pandas.DataFrame({"v": [1, 2]}), "Input 'x' has shape (2, 1), where (N, 2) was expected."),
        (pandas.DataFrame(index=[1, 2]), "Input 'x' has shape (2, 0), where (N, 2) was expected."),
    ],
)
def test_other_tables(table, message):
    with pytest.raises(DataError, match=re.escape(message)):
        check_inputs(INPUTS, table)


def test_an_adapter_gives_arrays_by_the_names_in_the_graphs():
    data = DataAdapter(linear_engine().source.spec)
    x, y = np.ones((6, 4)), np.arange(6)
    arrays, rows = data.to_arrays({"x": x}, y, np.ones(6), 5, forward=None)
    assert {n: (a.shape, a.dtype) for n, a in arrays.items()} == {
        "x": ((6, 4), F32), "y_target": ((6, 1), F32), "sample_weight": ((6,), F32)}
    assert (rows, data.fixed_batch) == (6, None)
    fixed = DataAdapter(linear_engine(rows=3).source.spec)
    assert (fixed.fixed_batch, fixed.to_arrays(x, y, None, 3, forward=None)[1]) == (3, 6)
    with pytest.raises(DataError, match="a fixed batch dimension of 3 and batch_size is 2"):
        fixed.to_arrays(x, y, None, 2, forward=None)
    with pytest.raises(DataError, match="a fixed batch dimension of 3 and there are 4 rows"):
        fixed.to_inputs(x[:4])


@pytest.mark.parametrize("chosen", [False, True], ids=["named", "unnamed"])
def test_sizes_of_an_output_are_found_once(chosen):
    """Where they have the names of sizes of the inputs; what depends on the data is found anew."""
    x, w = variable("x", "float32", ["N", "L", 2]), constant(np.ones((2, 3), np.float32), hint="w")
    y = op.Compress(x @ w, op.ReduceSum(x, [0, 2], keepdims=0) > 0, axis=1) if chosen else x @ w
    data, lengths = DataAdapter(OrtGradientForwardBackwardOptimizer(build([x], {"y": y}))._spec), []

    def forward(inputs):
        lengths.append(inputs["x"].shape[1])
        return {"y": np.empty((1, inputs["x"].shape[1], 3))}

    for length in (4, 5, 4, 5):
        x, y = np.ones((6, length, 2)), np.ones((6, length, 3))
        assert data.to_arrays(x, y, None, 6, forward)[0]["y_target"].shape == y.shape
    assert lengths == ([4, 5, 4, 5] if chosen else [4, 5])


@pytest.mark.parametrize("y", [np.eye(2)[[0, 1, 1]], np.eye(2, dtype=int)[[0, 1, 1]].tolist(), np.array([0, 1, 1])])
@pytest.mark.parametrize("in_batches", [False, True])
def test_the_square_loss_of_classes_is_told_once(y, in_batches):
    outputs = np.ndim(y)
    x = INPUTS["x"]
    model = build([x], {"y": x @ constant(np.full((2, outputs), 0.1, np.float32), hint="w")})
    data = [[(X, y), (X, y)]] if in_batches else [X, y]
    optimizer = OrtGradientForwardBackwardOptimizer(model, learning_rate=1e-3, max_iter=2, random_state=0)
    with pytest.warns(ModelWarning, match="of which learning_loss='square_error' takes the square loss") as told:
        optimizer.fit(*data)
    assert len(told) == 1
    assert len(str(told[0].message)) < 300
    optimizer.fit(*data).partial_fit(X, y)  # Warnings are errors: no second one.
    on_purpose = OrtGradientForwardBackwardOptimizer(model, learning_loss=SquareLearningLoss(), learning_rate=1e-3,
                                                     max_iter=2, random_state=0).fit(*data)
    np.testing.assert_array_equal(on_purpose.get_state()[0],
                                  optimizer.fit(*data).get_state()[0])


def test_weights_that_cancel_in_batches_of_one_row_are_told_once():
    x, y = np.ones((4, 2), np.float32), np.ones((4, 1))
    model = build([INPUTS["x"]], {"y": INPUTS["x"] @ constant(np.full((2, 1), 0.1, np.float32), hint="w")})
    optimizer = OrtGradientForwardBackwardOptimizer(model, batch_size=1, max_iter=1, learning_rate=1e-3)
    with pytest.warns(ModelWarning, match="they cancel in batches of one row; give batch_size=2 or more") as told:
        optimizer.fit(x, y, [1, 2, 3, 4])
    assert len(told) == 1
    optimizer.fit(x, y, [1, 2, 3, 4])  # Warnings are errors: no second one.
    for settings, weight in (({}, [2, 2, 2, 2]), ({}, [0, 1, 0, 1]), ({}, None), ({"batch_size": 2}, [1, 2, 3, 4])):
        OrtGradientForwardBackwardOptimizer(model, **{"batch_size": 1, "max_iter": 1, **settings}).fit(x, y, weight)
