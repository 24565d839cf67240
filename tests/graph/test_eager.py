import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import ortpartial.runtime  # noqa: F401  (it registers what computes)
from ortpartial.exceptions import DataError, GraphError, ModelError
from ortpartial.graph import build, cond, constant, evaluating, find_numbers, loop, op, rewrite, variable, with_numbers


def given(*shape, dtype="float32", name="x"):
    """An input that holds 1, 2, 3, ..."""
    return with_numbers(variable(name, dtype, shape), np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape))


def test_values_are_computed_as_they_are_written():
    with evaluating():
        x = given(2, 3)
        y = op.Relu(x - 3).sum()
        assert float(y) == y.item() == 6
        assert int(y) == 6
        assert complex(y) == 6
        assert bool(y > 5)
        assert not y < 5
        assert f"{y:.2f}" == "6.00"
        assert f"{y}" == repr(y) == "<Value ReduceSum float32[] 6.>"
        assert_array_equal(np.asarray(x[0]), [1, 2, 3])
        assert np.asarray(x, "int64").dtype == np.int64
        assert [10, 20, 30][op.ArgMax(x[1], axis=0, keepdims=0)] == 30
        assert repr(x + 0.5) == "<Value Add float32[2x3] [[1.5 2.5 3.5] [4.5 5.5 6.5]]>"
        large = given(30, 40)
        assert "..." in repr(large)
        assert len(repr(large)) < 250
        assert "\n" not in repr(large)
    assert float(y) == 6  # The numbers stay after the context.


def test_numbers_are_copies():
    with evaluating():
        x = given(2)
        y = 2 * x
    y.numpy()[:] = 0
    np.asarray(x)[:] = 0
    assert_array_equal(y, [2, 4])
    assert_array_equal(x, [1, 2])


def test_what_depends_on_a_variable_is_not_computed():
    n = variable("n", "float32", ["N"])
    with evaluating():
        y, z = n + given(1), n + 1
    for f in (float, int, bool, np.asarray, lambda v: v.numpy(), lambda v: v.item()):
        with pytest.raises(TypeError, match=r"<Value Add float32\[N\]> has no (numbers|truth value) before it is comp"):
            f(y)
    assert find_numbers(z) is None
    assert repr(z) == "<Value Add float32[N]>"


def test_outside_of_the_context_nothing_is_computed():
    x = given(2)
    assert find_numbers(x + 1) is None
    with evaluating(), evaluating():
        pass
    assert find_numbers(x + 1) is None
    with pytest.raises(ZeroDivisionError), evaluating():
        raise ZeroDivisionError
    assert find_numbers(x + 1) is None
    assert float(constant(2.0)) == 2


def test_a_context_holds_for_one_thread():
    numbers = []
    with evaluating():
        thread = threading.Thread(target=lambda: numbers.append(find_numbers(given(1) + 1)))
        thread.start()
        thread.join()
    assert numbers == [None]


def test_shapes_are_those_of_the_numbers():
    with evaluating():
        x = given(2, 3)
        assert op.NonZero(x > 4).shape == (2, 2)
        assert x[x > 2].shape == (4,)
        assert op.Reshape(x, op.Shape(x)[::-1]).shape == (3, 2)
        assert loop(lambda i, going, v: (None, op.Concat(v, v, axis=0)), 3, x).shape == (16, 3)


def test_iteration_stays_refused():
    with evaluating(), pytest.raises(TypeError, match=r"cannot be iterated over; where a list of values is expected"):
        list(given(2))


def test_a_graph_of_values_with_numbers_is_the_same():
    def write(x):
        y = op.Softmax(x @ np.ones((3, 2), np.float32))
        return build([x], {"y": cond(y.sum() > 0, lambda: y * 2, lambda: op.Log(y))})

    with evaluating():
        eager = write(given(2, 3))
    assert eager == write(variable("x", "float32", [2, 3]))


def test_rewritten_values_are_computed():
    x, y = variable("x", "float32", ["N"]), given(2, name="y")
    z = op.Exp(x) * 0 + loop(lambda i, going, v: (None, v + x), 2, x)
    with evaluating():
        (w,) = rewrite([z], {x: y})
        assert_array_equal(w, [3, 6])


def test_values_written_before_are_computed_where_they_are_read():
    x, n = given(2), variable("n", "float32", [2])
    before, unknown = op.Exp(x * 0) + op.Expand(constant(1.0), constant([2])), op.Exp(n)
    with evaluating():
        y, z = before + x, unknown + x
        assert list(y.node.results.numbers) == [0]
    assert_array_equal(y, [3, 4])
    assert_array_equal(before, [2, 2])
    assert find_numbers(z) is find_numbers(unknown) is None


def test_random_operators_draw_once():
    def draw(seed):
        with evaluating(seed):
            x = given(100)
            a, b, c = op.RandomNormal(shape=[3]), op.RandomNormal(shape=[3]), op.RandomUniform(shape=[3], seed=5.0)
            with evaluating():
                y, mask = op.Dropout(x, 0.5, True).node.outputs
            assert_array_equal(y, x.numpy() * mask.numpy() * 2)
            return np.stack([a.numpy(), a.numpy(), b.numpy(), c.numpy()])

    first, again, other = draw(0), draw(0), draw(1)
    assert_array_equal(first, again)
    assert_array_equal(first[0], first[1])
    assert (first[0] != first[2]).all()
    assert (first[:3] != other[:3]).all()
    assert (first[3] == other[3]).all()


def test_further_outputs_are_computed_when_they_are_asked_for():
    with evaluating():
        y, indices = op.MaxPool(given(1, 1, 4), kernel_shape=[2], strides=[2]).node.outputs
        values, places = op.TopK(given(4), [2])
    assert list(y.node.results.numbers) == [0]
    assert indices.numpy().ravel().tolist() == [1, 3]
    assert values.numpy().tolist() == [4, 3]
    assert places.numpy().tolist() == [3, 2]


def test_a_branch_that_is_not_taken_is_not_computed():
    with evaluating():
        x = given(3)
        y = cond(x.sum() > 0, lambda: op.Exp(x * 0), lambda: op.Gather(x, x.astype("int64") + 9))
        assert_array_equal(y, [1, 1, 1])
        with pytest.raises(DataError, match=r"^A Gather has an index that is not in -3 to 2: 10\.$"):
            cond(x.sum() < 0, lambda: x, lambda: op.Gather(x, x.astype("int64") + 9))


def test_what_a_body_captures_is_computed():
    inside = []

    def body(i, going, v):
        inside.extend([op.Exp(w), v + op.Exp(w)])
        return None, inside[1]

    with evaluating():
        w = given(2, name="w")
        y = loop(body, 2, w)
    assert_allclose(y, w.numpy() + 2 * np.exp(w.numpy()), rtol=1e-6)
    assert_allclose(inside[0], np.exp(w.numpy()), rtol=1e-6)
    assert find_numbers(inside[1]) is None


def test_sequences_and_strings():
    with evaluating():
        x = given(2, 2)
        xs = op.SequenceInsert(op.SequenceConstruct(x, 2 * x), 3 * x)
        assert_array_equal(op.SequenceAt(xs, 2), x.numpy() * 3)
        assert len(xs.numpy()) == 3
        assert op.SequenceInsert(op.SequenceEmpty(), x).numpy()[0].shape == (2, 2)
        assert op.StringConcat(np.array(["a"], object), np.array(["b"], object)).numpy().tolist() == ["ab"]


def test_an_error_is_raised_where_the_node_is_made():
    with evaluating():
        x = given(4, 3)
        with pytest.raises(ModelError, match=r"^A Gather has indices from 9 to 9, where -4 to 3 were"):
            op.Gather(x, 9)
        with pytest.raises((DataError, ModelError), match=r"^Reshape cannot be computed from \(float32\[4x3\], int64"):
            op.Reshape(x, op.Shape(x) + 1)
        with pytest.raises(GraphError, match=r"^MatMul does not accept"):
            x @ x


@pytest.mark.parametrize(("value", "numbers", "message"), [
    (variable("x", "float32", [2, "N"]), np.ones(2), r"<Value x .*> does not take numbers of the shape \[2\]"),
    (variable("x", "float32", [2]), np.ones(3), r"The input <Value x .*> does not take numbers of the shape \[3\]"),
    (variable("x", "int64", [1]), [0.5], r"The input 'x' is 0.5|The input 'x' holds 0.5"),
    (constant(1.0), 2.0, r"with_numbers gives numbers to an input, a `variable`, and <Value constant .*> is none"),
    (-variable("x", "float32", [1]), [2.0], r"with_numbers gives numbers to an input"),
], ids=lambda v: "")
def test_numbers_that_an_input_does_not_take(value, numbers, message):
    with pytest.raises(GraphError, match=message):
        with_numbers(value, numbers)
