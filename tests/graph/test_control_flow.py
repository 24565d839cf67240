"""If, Loop and Scan: types, captured values, names, and computation of the branch taken alone."""

import numpy as np
import pytest
from control_graphs import ONE, checked, positive, tree, x_
from table import rows

from ortpartial.exceptions import GraphError
from ortpartial.graph import Subgraph, constant, op, variable
from ortpartial.graph.build import build
from ortpartial.graph.control_flow import cond, loop, scan
from ortpartial.testing import evaluate

# Types.


@pytest.mark.parametrize(
    ("make", "shapes"),
    rows(
        ("If", lambda: cond(positive(x_()), lambda: x_(), lambda: -x_()), [(3,)]),
        ("If of two sizes", lambda: cond(positive(x_()), lambda: x_((2, 3)), lambda: x_((4, 3))), [(None, 3)]),
        ("If of two ranks", lambda: cond(positive(x_()), lambda: x_(), lambda: x_((4, 3))), [None]),
        ("If of one name", lambda: cond(positive(x_()), lambda: x_(("N",)), lambda: x_(("N",))), [("N",)]),
        ("Scan", lambda: scan(lambda s, x: (s + x, x, op.ReduceSum(x, keepdims=0)), x_(), x_((5, 3))),
         [(3,), (5, 3), (5,)]),
        ("Scan of symbols", lambda: scan(lambda s, x: (s + x, x), x_(("N",)), x_(("T", "N"))), [("N",), ("T", "N")]),
        ("Scan of no known length", lambda: scan(lambda s, x: (s, x), x_(), x_((None, "N"))), [(3,), (None, "N")]),
        ("Loop", lambda: loop(lambda i, going, v: (None, v * 2, v), 3, x_()), [(3,), (None, 3)]),
        ("Loop that grows", lambda: loop(lambda i, going, v: (None, op.Concat(v, v, axis=0)), 3, x_((2, 3))),
         [(None, 3)]),
        ("Loop that grows an axis", lambda: loop(lambda i, going, v: (None, op.Unsqueeze(v, [0])), 3, x_((2, 3))),
         [None]),
    ),
)
def test_types(make, shapes):
    made = make()
    made = made if isinstance(made, tuple) else (made,)
    assert [v.shape for v in made] == shapes
    assert all(v.dtype == np.float32 for v in made)


def test_axes_of_a_scan():
    body = Subgraph.of(lambda s, x: (s, x), x_(()), x_(("N", 3)))
    s, y = op.Scan(x_(()), x_(("N", "T", 3)), body=body, num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[-1])
    assert (s.shape, y.shape) == ((), ("N", 3, "T"))


@pytest.mark.parametrize(
    ("make", "message"),
    rows(
        ("no body", lambda: op.If(positive(x_()), then_branch=Subgraph([], [x_()])),
         "If: else_branch is a Subgraph of values, not NoneType"),
        ("another number of outputs", lambda: cond(positive(x_()), lambda: x_(), lambda: (x_(), x_())),
         "If: the outputs of else_branch, 2 of them, should be 1, as many as of then_branch"),
        ("inputs of a branch", lambda: op.If(positive(x_()), then_branch=Subgraph([x_()], [x_()]),
                                             else_branch=Subgraph([], [x_()])),
         "If: the inputs of then_branch, 1 of them, should be 0: a branch reads what is around it"),
        ("dtypes", lambda: cond(positive(x_()), lambda: x_(), lambda: x_(dtype="float64")),
         "If: output 0 is float32 and becomes float64; cast one of them"),
        ("inputs of Loop", lambda: op.Loop(3, None, x_(), body=Subgraph([x_()], [x_()])),
         "Loop: the inputs of the body, 1 of them, should be 3: iteration, condition and 1 values"),
        ("outputs of Loop", lambda: loop(lambda i, going, v: (None,), 3, x_()),
         "Loop: the outputs of the body, 1 of them, should be 2 or more: condition, 1 values, stacked ones"),
        ("dtype of Loop", lambda: loop(lambda i, going, v: (None, i), 3, x_()),
         "Loop: the loop-carried value 0 is float32 and becomes int64; cast one of them"),
        ("inputs of Scan", lambda: op.Scan(x_(), x_(), body=Subgraph([x_()], [x_()]), num_scan_inputs=1),
         "Scan: the inputs of the body, 1 of them, should be 2: 1 states and 1 slices"),
        ("outputs of Scan", lambda: op.Scan(x_(), x_(), body=Subgraph([x_(), x_()], []), num_scan_inputs=1),
         "Scan: the outputs of the body, 0 of them, should be 1 or more: the states, then what is stacked"),
        ("state of Scan", lambda: scan(lambda s, x: (op.Concat(s, s, axis=0),), x_(), x_()),
         r"Scan: state 0 is .*float32\[3\]> and becomes .*float32\[6\]>; a state keeps its shape"),
        ("no number", lambda: op.Scan(x_(), body=Subgraph([x_()], [x_()])), "Scan needs num_scan_inputs, how many of"),
        ("no such input", lambda: build([x := x_()], [cond(positive(x), lambda: x * x_((), "other"), lambda: x)]),
         r"The outputs need <Value other float32\[\]>, which is not among the inputs"),
    ),
)
def test_errors(make, message):
    with pytest.raises(GraphError, match=message):
        make()


# What is captured, and where it is computed.


def test_a_node_reads_what_its_bodies_capture():
    s, xs, w = x_(name="s"), x_((5, 3), "xs"), x_(name="w")
    v = op.Exp(w)
    y = scan(lambda s, x: (s * v + x,), s, xs)
    assert y.node.reads == (s, xs, v)
    assert [n.op_type for n in y.node.bodies[0].nodes] == ["Mul", "Add"]
    deep = cond(positive(s), lambda: scan(lambda s, x: (s * v,), s, xs), lambda: w)
    assert set(deep.node.reads) == {deep.node.inputs[0], s, xs, v, w}


def test_what_does_not_depend_on_an_iteration_is_computed_once():
    s, xs, w = x_(name="s"), x_((5, 3), "xs"), x_(name="w")
    model = checked([s, xs, w], {"y": scan(lambda s, x: (s * op.Exp(w) + x,), s, xs)})
    assert tree(model.graph) == ["Exp", ("Scan", ["Mul", "Add"])]


def test_a_branch_computes_what_is_its_own():
    x = x_()
    y = cond(positive(x), lambda: op.Exp(x) * op.Exp(x), lambda: -x)
    assert tree(checked([x], {"y": y}).graph) == ["ReduceSum", "Greater", ("If", ["Neg"], ["Exp", "Mul"])]
    # The same with branches as values.
    y = op.If(positive(x), then_branch=Subgraph([], [op.Exp(x)]), else_branch=Subgraph([], [-x]))
    assert tree(checked([x], {"y": y}).graph) == ["ReduceSum", "Greater", ("If", ["Neg"], ["Exp"])]


def test_a_branch_reads_what_is_computed_around_it():
    x = x_()
    h = op.Exp(x)
    outer = op.If(positive(x), then_branch=Subgraph([], [h * 2]), else_branch=Subgraph([], [x]))
    for y in (outer + h, h + outer):
        graph = checked([x], {"y": y}).graph
        assert tree(graph).count("Exp") == 1
        assert [t for t in tree(graph) if t[0] == "If"] == [("If", ["Identity"], ["Mul"])]
    # An equal expression, written again, is found before the branch.
    y = h + cond(positive(h), lambda: op.Exp(x) * 2, lambda: x)
    assert [t for t in tree(checked([x], {"y": y}).graph) if t[0] == "If"] == [("If", ["Identity"], ["Mul"])]


def test_what_both_branches_need_is_around_them():
    x = x_()
    h = op.Exp(x)
    y = op.If(positive(x), then_branch=Subgraph([], [h * 2]), else_branch=Subgraph([], [h * 3]))
    assert tree(checked([x], {"y": y}).graph) == ["ReduceSum", "Greater", "Exp", ("If", ["Mul"], ["Mul"])]


def test_equal_nodes_of_a_body_are_one():
    s, xs = x_(name="s"), x_((5, 3), "xs")
    y = scan(lambda s, x: (op.Exp(s) * op.Exp(s) + x,), s, xs)
    assert tree(checked([s, xs], {"y": y}).graph) == [("Scan", ["Exp", "Mul", "Add"])]


def test_equal_loops_are_one():
    s, xs = x_(name="s"), x_((5, 3), "xs")

    def f(k):
        return scan(lambda s, x: (cond(positive(s), lambda: op.Exp(s) * k, lambda: x), x), s, xs)[0]

    assert [t[0] for t in tree(checked([s, xs], {"y": f(2.0) + f(2.0)}).graph)] == ["Scan", "A"]
    assert [t[0] for t in tree(checked([s, xs], {"y": f(2.0) + f(3.0)}).graph)] == ["Scan", "Scan", "A"]
    assert [t[0] for t in tree(checked([s, xs], {"y": f(2.0) + scan(lambda s, x: (s, x), s, xs)[0]}).graph)] == [
        "Scan", "Scan", "A"]


def test_the_same_value_means_something_else_in_a_body_that_it_is_an_input_of():
    # h is computed outside, and an input of the body: what is computed of it inside is not what it is outside.
    x, xs = x_(), x_((2, 3), "xs")
    h = op.Exp(x)
    y = op.Scan(x, xs, body=Subgraph([h, z := x_(name="z")], [op.Neg(h) + z]), num_scan_inputs=1)
    model = checked([x, xs], {"y": y, "z": op.Neg(h)})
    found = evaluate(model, {"x": ONE * 0, "xs": np.ones((2, 3), np.float32)})
    assert found["z"].tolist() == [-1, -1, -1]
    assert found["y"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("draw", [op.RandomUniformLike, lambda v: op.RandomUniform(shape=[3])], ids=["like", "shape"])
def test_random_numbers_are_drawn_in_every_iteration(draw):
    x = x_()
    model = checked([x], {"y": loop(lambda i, going, v: (None, v, draw(v)), 4, x)[1]})
    y = evaluate(model, {"x": ONE})["y"]
    assert len(np.unique(y)) == 12


def test_a_random_value_in_a_branch_and_around_it_is_one():
    x = x_()
    r = op.RandomUniformLike(x)
    y = op.If(positive(x), then_branch=Subgraph([], [r * 2]), else_branch=Subgraph([], [x]))
    found = evaluate(checked([x], {"y": y, "r": r}), {"x": ONE})
    assert (found["y"] == 2 * found["r"]).all()


def test_a_graph_that_is_cut_is_cut_in_its_branches():
    x = x_()
    h = op.Exp(x)
    y = op.If(positive(x), then_branch=Subgraph([], [op.Neg(h)]), else_branch=Subgraph([], [x]))
    assert tree(checked([x, variable("h", "float32", [3])], {"y": y}).graph)[-1] == ("If", ["Identity"], ["Exp", "Neg"])
    model = checked({"x": x, "h": h}, {"y": y})
    assert tree(model.graph)[-1] == ("If", ["Identity"], ["Neg"])
    assert evaluate(model, {"x": ONE, "h": ONE * 5})["y"].tolist() == [-5, -5, -5]


def test_random_loops_are_never_merged():
    x = x_()

    def f():
        return loop(lambda i, going, v: (None, v * op.RandomUniformLike(v)), 2, x)

    assert [t[0] for t in tree(build([x], {"y": f() + f()}).graph)] == ["Loop", "Loop", "A"]


# Values that are handed out.


def test_a_value_of_a_body_is_handed_out_where_it_is_asked_for():
    s, xs = x_(name="s"), x_((5, 3), "xs")
    y = scan(lambda s, x: (op.Exp(s) * x,), s, xs)
    (exp, _) = y.node.bodies[0].nodes
    tap = y.node.tap(exp.outputs[0])
    assert tap.shape == (5, 3)
    assert len(build([s, xs], {"y": y}).graph.node[0].output) == 1
    found = evaluate(checked([s, xs], {"y": y, "e": tap}), {"s": ONE, "xs": np.zeros((5, 3), np.float32)})
    np.testing.assert_allclose(found["e"], [[np.e] * 3] + [[1] * 3] * 4, rtol=1e-6)
    assert found["y"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("sign", "expected"), [(1, [np.e] * 3), (-1, [0, 0, 0])])
def test_a_branch_that_is_not_taken_hands_out_zeros(sign, expected):
    x = x_()
    y = cond(positive(x), lambda: op.Exp(x) * 2, lambda: x)
    tap = y.node.tap(next(n for b in y.node.bodies for n in b.nodes if n.op_type == "Exp").outputs[0])
    found = evaluate(checked([x], {"e": tap}), {"x": ONE * sign})
    np.testing.assert_allclose(found["e"], expected, rtol=1e-6)


# What is built runs.


def test_loops_run():
    x, xs = x_(), x_(("T", 3), "xs")
    going = loop(lambda i, going, v: (op.ReduceSum(v, keepdims=0) < 20.0, v * 2, v), 10, x)
    last, stacked = scan(lambda s, x: (s + x, s), x, xs, reverse=True)
    never = loop(lambda i, going, v: (None, v * 2), 3, x, going=constant(False))
    model = checked([x, xs], {"a": going[0], "b": going[1], "c": last, "d": stacked, "e": never})
    found = evaluate(model, {"x": ONE, "xs": np.array([[1] * 3, [2] * 3], np.float32)})
    assert found["a"].tolist() == [16, 16, 16]
    assert found["b"][:, 0].tolist() == [1, 2, 4, 8]
    assert found["c"].tolist() == [4, 4, 4]
    assert found["d"][:, 0].tolist() == [3, 1]
    assert found["e"].tolist() == [1, 1, 1]


def test_constants_and_what_is_around_can_be_outputs_of_a_body():
    x = x_()
    y = cond(positive(x), lambda: (constant(ONE * 7), x), lambda: (x, x))
    z = scan(lambda s: (x, constant(ONE)), (), x_((2, 3), "xs"))
    model = checked([x, variable("xs", "float32", [2, 3])], {"a": y[0], "b": y[1]})
    assert evaluate(model, {"x": ONE, "xs": np.ones((2, 3), np.float32)})["a"].tolist() == [7, 7, 7]
    assert [v.shape for v in z] == [(2, 3), (2, 3)]


def test_names_of_loops_side_by_side_and_nested():
    s, xs = x_(name="s0"), x_((5, 3), "x0")

    def f(s, x):
        return (scan(lambda s, x: (op.Exp(s) + x,), s, xs) + x,)

    y = scan(f, s, xs)
    z = scan(lambda s, x: (s * x,), y, xs)
    checked([s, xs], {"body_out_0": z, "in_0": y})


@pytest.mark.parametrize(("write", "message"), [
    (lambda f, x: loop(5, f, x), r"^loop\(function, trips, \*init\) takes a function first, and was given 5 in its"),
    (lambda f, x: loop(f, x, 5), r"^loop takes a whole number of iterations, and was given <Value x float32\[3\]>"),
    (lambda f, x: loop(f, 2.5, x), r"^loop takes a whole number of iterations, and was given 2\.5"),
    (lambda f, x: scan(x, f, x), r"^scan\(function, init, xs\) takes a function first, and was given <Value x float32"),
    (lambda f, x: scan(x, x, f), r"^scan\(function, init, xs\) takes a function first"),
])
def test_swapped_arguments(write, message):
    with pytest.raises(GraphError, match=message):
        write(lambda *given: given, variable("x", "float32", [3]))
