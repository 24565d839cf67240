"""Gradients of If, Loop and Scan: nested, of any length, to the second order."""

import numpy as np
import onnx
import pytest
import torch
from table import OLD, assert_as_torch, gradients, real, rows, torch_gradients, within

from ortpartial.autodiff.grad import grad
from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Subgraph, constant, op, variable
from ortpartial.graph.build import build
from ortpartial.graph.control_flow import cond, loop, scan
from ortpartial.testing import check_gradient, evaluate

REVERSED = pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 lacks a float64 kernel, and onnx 1.23.2's reference has "
                              "no Scan backwards")


def positive(x):
    return op.ReduceSum(x, keepdims=0) > 0


def rnn(s, x, w, u):
    def step(s, x):
        h = op.Tanh(s @ w + x @ u)
        return h, h * 2

    return scan(step, s, x)


def gated(s, x, w):
    """A branch in a loop, which captures what is computed outside of both."""
    v = op.Exp(w)

    def step(s, x):
        h = cond(positive(x), lambda: op.Tanh(s * v), lambda: s - x)
        return h, h * w

    return scan(step, s, x)


def scan_in_loop(s, x, w):
    def step(i, going, v):
        last, all_of_them = scan(lambda s, x: (op.Tanh(s * w + x), s), v, x)
        return None, last, op.ReduceMean(all_of_them, [0])

    return loop(step, 2, s)


def loop_in_branch(x, w):
    return cond(positive(w), lambda: loop(lambda i, going, v: (None, op.Tanh(v * w)), 3, x), lambda: -x)


def early_stop(x, w):
    return loop(lambda i, going, v: (op.ReduceSum(v, keepdims=0) < 6.0, v * w + 1, op.Tanh(v)), 10, x)


def two_states(a, b, x):
    return scan(lambda a, b, x: (b * x, op.Tanh(a) + b, a * b), [a, b], x)


def two_sequences(s, x, y):
    return scan(lambda s, x, y: (s * x + y, s, y), s, [x, y])


def only_sequences(x, w):
    """No state at all."""
    return scan(lambda x: (op.Exp(x) * w,), (), x)


def unread_state(s, x):
    """A state on which nothing depends that is asked for, and one that no cotangent reaches."""
    return scan(lambda s, i, x: (s * x, i + 1, s), [s, constant(np.int64(0))], x)[2]


def over_axes(s, x):
    body = Subgraph.of(lambda s, x: (s + x, op.Tanh(s) * x), variable("s", s.dtype, s.shape),
                       variable("x", x.dtype, [x.shape[0], x.shape[2]]))
    return op.Scan(s, x, body=body, num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[-1])


def of_size(x, w):
    """The number of iterations is computed."""
    n = op.Cast(op.ReduceSum(op.Abs(w), keepdims=0), to=7)
    return loop(lambda i, going, v: (None, op.Tanh(v) * w), n, x)


def by_iteration(x):
    return loop(lambda i, going, v: (None, v * op.Cast(i + 2, to=v.type.tensor_type.elem_type)), 3, x)


TABLE = rows(
    ("If, taken", lambda c, x: cond(positive(c), lambda: op.Exp(x) * x, lambda: c * x), within(0.5, 1, 3), real(3)),
    ("If, not taken", lambda c, x: cond(positive(c), lambda: op.Exp(x) * x, lambda: c * x), -within(0.5, 1, 3),
     real(3)),
    ("If of two outputs", lambda c, x: cond(positive(c), lambda: (x * x, c), lambda: (c, x)), within(0.5, 1, 3),
     real(3)),
    ("If with branches as values", lambda x, y: op.If(positive(x), then_branch=Subgraph([], [op.Tanh(x) * y]),
                                                      else_branch=Subgraph([], [y])), within(0.5, 1, 3), real(3)),
    ("If of what is around it alone", lambda x, y: cond(positive(x), lambda: op.Identity(x), lambda: y),
     within(0.5, 1, 3), real(3)),
    ("If of two ranks", lambda x, y: op.ReduceSum(cond(positive(x), lambda: op.Tanh(x) * y,
                                                       lambda: op.Unsqueeze(y, [0])), keepdims=0),
     within(0.5, 1, 3), real(3)),
    ("If without a gradient", lambda x: x + cond(positive(x), lambda: op.Floor(x), lambda: op.Sign(x)),
     within(0.5, 0.9, 3)),
    ("If in If", lambda x, y: cond(positive(x), lambda: cond(positive(-x), lambda: x * 2, lambda: op.Tanh(x * y)) * x,
                                   lambda: y), within(0.5, 1, 3), real(3)),
    ("Scan", rnn, real(2, 3), real(4, 2, 5), 0.3 * real(3, 3), 0.3 * real(5, 3)),
    ("Scan of two states", two_states, real(2), real(2), real(3, 2)),
    ("Scan of two sequences", two_sequences, real(2), real(3, 2), real(3, 2, seed=1)),
    ("Scan without a state", only_sequences, real(4, 2), real(2)),
    ("Scan of integers too", unread_state, real(2), real(3, 2)),
    ("Scan that reads no state", lambda s, x, w: scan(lambda s, x: (op.Tanh(x * w), x * x), s, x), real(2), real(3, 2),
     real(2)),
    ("Scan of a state by way of another", lambda a, b, x: scan(lambda a, b, x: (op.Exp(x), op.Tanh(a) * b, b), [a, b],
                                                               x)[2], real(2), real(2), real(3, 2)),
    ("Scan of a state that another one reads", lambda a, b, x: scan(lambda a, b, x: (a * b, op.Tanh(b) * x), [a, b],
                                                                    x)[0], real(2), real(2), real(3, 2)),
    ("Scan with what has no rank", lambda s, x, n: scan(lambda s, x: (s + op.ReduceSum(op.Reshape(x, n) ** 2,
                                                                                       keepdims=0),), s, x),
     real(2), real(3, 4), np.array([2, 2])),
    ("Scan with a sum", lambda s, x: scan(lambda s, x: (s + x, s), s, x), real(2), real(4, 2)),
    ("Scan over other axes", over_axes, real(2, 3), real(2, 4, 3)),
    ("Scan of one slice", rnn, real(2, 3), real(1, 2, 5), 0.3 * real(3, 3), 0.3 * real(5, 3)),
    ("If in Scan", gated, real(2), real(4, 2), real(2, seed=2)),
    ("Scan in Loop", scan_in_loop, real(2), real(3, 2), real(2, seed=2)),
    ("Scan in Loop in If", lambda s, x, w: cond(positive(w), lambda: scan_in_loop(s, x, op.Tanh(w))[0], lambda: s),
     real(2), real(3, 2), within(0.5, 1, 2)),
    ("Loop in If", loop_in_branch, real(2), within(0.5, 1, 2)),
    ("Loop", lambda x: loop(lambda i, going, v: (None, op.Tanh(v) * v, v * v), 3, x), real(3)),
    ("Loop that stops early", early_stop, real(3), within(1.1, 1.5, 3)),
    ("Loop of no iteration", lambda x, w: loop(lambda i, going, v: (None, op.Tanh(v * w)), 0, x) * 2, real(3), real(3)),
    ("Loop that never starts", lambda x, w: loop(lambda i, going, v: (None, op.Tanh(v * w)), 3, x,
                                                 going=constant(False)) + w, real(3), real(3)),
    ("Loop that may start", lambda x, w: loop(lambda i, going, v: (None, op.Tanh(v * w)), 3, x, going=positive(w)),
     real(3), within(0.5, 1, 3)),
    ("Loop of a computed number", of_size, real(2), np.array([1.25, -1.5])),
    ("Loop that reads its number", by_iteration, real(3)),
    ("Loop of sizes not known", lambda x: loop(lambda i, going, v: (None, op.Reshape(v * x, op.Shape(x)), v), 2, x),
     real(2, 3)),
    ("Loop that is linear", lambda x: loop(lambda i, going, v: (None, 2 * v), 3, x), real(3)),
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("row", [pytest.param(row.values, id=row.id) for row in TABLE])
def test_control(row):
    f, *args = row
    check_gradient(f, args)


@pytest.mark.parametrize("sizes", ["static", "symbolic"])
@pytest.mark.parametrize("row", [pytest.param(row.values, id=row.id) for row in TABLE])
def test_gradients_are_valid(row, sizes):
    f, *args = row
    shapes = [a.shape if sizes == "static" else [f"n{i}_{k}" for k in range(a.ndim)] for i, a in enumerate(args)]
    x = [variable(f"x{i}", a.dtype, shape) for i, (a, shape) in enumerate(zip(args, shapes, strict=True))]
    y = f(*x)
    y = y if isinstance(y, tuple) else (y,)
    wrt = [v for v in x if v.is_float]
    dy = [variable(f"dy{i}", v.dtype, v.shape or ()) for i, v in enumerate(y) if v.is_float]
    model = build(x + dy, {f"dx{i}": d for i, d in enumerate(grad([v for v in y if v.is_float], wrt, dy))})
    onnx.checker.check_model(model, full_check=True)


def torch_loop(f, n, *init):
    stacked = []
    for i in range(n):
        going, *values = f(i, *init)
        init, ys = values[: len(init)], values[len(init) :]
        stacked.append(ys)
        if not going:
            break
    return [*init, *(torch.stack(y) for y in zip(*stacked, strict=True))]


def torch_scan(f, init, *xs, reverse=False):
    n = len(xs[0])
    init, stacked = list(init), []
    for t in reversed(range(n)) if reverse else range(n):
        values = f(*init, *(x[t] for x in xs))
        init, ys = values[: len(init)], values[len(init) :]
        stacked.append(ys)
    stacked = stacked[::-1] if reverse else stacked
    return [*init, *(torch.stack(y) for y in zip(*stacked, strict=True))]


def torch_rnn(s, x, w, u):
    return torch_scan(lambda s, x: ((h := torch.tanh(s @ w + x @ u)), h * 2), [s], x)


def torch_gated(s, x, w):
    def step(s, x):
        h = torch.tanh(s * w.exp()) if x.sum() > 0 else s - x
        return h, h * w

    return torch_scan(step, [s], x)


def torch_scan_in_loop(s, x, w):
    def step(i, v):
        last, all_of_them = torch_scan(lambda s, x: (torch.tanh(s * w + x), s), [v], x)
        return True, last, all_of_them.mean(0, keepdim=True)

    return torch_loop(step, 2, s)


TORCH = rows(
    ("RNN", rnn, torch_rnn, real(2, 3), real(6, 2, 5), 0.3 * real(3, 3), 0.3 * real(5, 3)),
    ("backwards", lambda s, x: scan(lambda s, x: (s * x, op.Tanh(s)), s, x, reverse=True),
     lambda s, x: torch_scan(lambda s, x: (s * x, s.tanh()), [s], x, reverse=True), real(2), real(4, 2)),
    ("If in Scan", gated, torch_gated, real(2), real(6, 2), real(2, seed=2)),
    ("Scan in Loop", scan_in_loop, torch_scan_in_loop, real(2), real(3, 2), real(2, seed=2)),
    ("early stop", early_stop,
     lambda x, w: torch_loop(lambda i, v: ((v.sum() < 6.0), v * w + 1, v.tanh()), 10, x), real(3), within(1.1, 1.5, 3)),
    ("two states", two_states,
     lambda a, b, x: torch_scan(lambda a, b, x: (b * x, a.tanh() + b, a * b), [a, b], x), real(2), real(2), real(3, 2)),
    ("over axes", over_axes,
     lambda s, x: (lambda last, y: (last, y.permute(1, 2, 0)))(
         *torch_scan(lambda s, x: (s + x, s.tanh() * x), [s], x.transpose(0, 1))), real(2, 3), real(2, 4, 3)),
)


@pytest.mark.parametrize(("f", "torch_f", "args"), [pytest.param(r.values[0], r.values[1], r.values[2:], id=r.id)
                                                    for r in TORCH])
def test_as_torch(f, torch_f, args):
    assert_as_torch(f, torch_f, args)


@REVERSED
def test_a_scan_backwards():
    check_gradient(lambda s, x: scan(lambda s, x: (s * x, op.Sin(s)), s, x, reverse=True), [real(2), real(4, 2)])


def test_second_order_as_torch():
    s, x, w, u = real(2, 3), real(4, 2, 5), 0.3 * real(3, 3), 0.3 * real(5, 3)

    def first(*args):
        y = rnn(*args)
        return grad(op.ReduceSum(y[1] * y[1], keepdims=0), [args[2], args[0]])

    def in_torch(*args):
        y = torch_rnn(*args)[1]
        return torch.autograd.grad((y * y).sum(), [args[2], args[0]], create_graph=True)

    for a, b in zip(gradients(first, [s, x, w, u]), torch_gradients(in_torch, [s, x, w, u]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


def inner(graph):
    """The graphs inside the nodes of a graph, with the nodes."""
    return [(node, a.g) for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def bodies_with(graph, op_type):
    """How many nodes of an operator there are, those in bodies included."""
    own = sum(node.op_type == op_type for node in graph.node)
    return own + sum(bodies_with(body, op_type) for _, body in inner(graph))


def test_the_branch_not_taken_does_not_spoil_the_gradient():
    x = variable("x", "float64", [2])
    y = cond(positive(x), lambda: op.Log(x), lambda: x * 3)
    found = evaluate(build([x], {"d": grad(y, [x])[0]}), {"x": np.array([-1.0, 0.0])})
    assert found["d"].tolist() == [3, 3]


def test_forward_is_computed_once():
    s, x = variable("s", "float64", [2]), variable("x", "float64", [4, 2])
    y = scan(lambda s, x: (op.Tanh(s * x), s), s, x)
    graph = build([s, x], {"y": y[0], "z": y[1], **{f"d{i}": d for i, d in enumerate(grad(y, [s, x]))}}).graph
    bodies = [{n.op_type for n in body.node} for _, body in inner(graph)]
    assert len(bodies) == 2
    assert sum("Tanh" in body for body in bodies) == 1


def test_only_what_is_asked_for_is_carried():
    s, x, w = variable("s", "float64", [2]), variable("x", "float64", [4, 2]), variable("w", "float64", [2])
    y = scan(lambda s, x: (op.Tanh(s * w) + x, s * s), s, x)[1]

    def outputs(wrt):
        graph = build([s, x, w], {"a": grad(y, wrt)[0]}).graph
        (node,) = [n for n, _ in inner(graph) if "a" in n.output]
        return len(node.output)

    assert outputs([s]) == 1
    assert outputs([w]) == 2
    # What is stacked of each slice alone carries nothing.
    z = scan(lambda s, x: (s * w, x * w), s, x)[1]
    graph = build([x, w, s], {"a": grad(z, [x])[0]}).graph
    assert [len(n.output) for n, _ in inner(graph)] == [1]


def test_by_a_value_inside_a_branch():
    # h is written for the branch and read outside of it as well: what is asked by it flows along both ways.
    x = variable("x", "float64", [2])
    h = op.Exp(x)
    y = op.If(positive(x), then_branch=Subgraph([], [h * h]), else_branch=Subgraph([], [x]))
    dh, dx = grad([y, h * 5], [h, x])
    found = evaluate(build([x], {"dh": dh, "dx": dx}), {"x": np.array([0.5, 1.0])})
    e = np.exp([0.5, 1.0])
    np.testing.assert_allclose(found["dh"], 2 * e + 5)
    np.testing.assert_allclose(found["dx"], 2 * e * e + 5 * e)


def test_what_changes_its_shape_is_refused():
    x = variable("x", "float64", [2])
    y = loop(lambda i, going, v: (None, op.Concat(v, x, axis=0)), 3, x)
    with pytest.raises(NoGradientError, match=r"<Node .*Loop> has no gradient: a carried value .*float64\[2\]> becomes "
                       r".*float64\[4\]>.* keeps its shape"):
        grad(y, [x])


def test_indices_that_grow_are_refused():
    x = variable("x", "float64", [5])

    def step(i, going, places, v):
        return None, op.Concat(places, op.Unsqueeze(i, [0]), axis=0), v * op.ReduceSum(op.Gather(x, places), keepdims=0)

    _, y = loop(step, 3, constant([0]), op.ReduceSum(x, keepdims=0))
    with pytest.raises(NoGradientError, match=r"a carried value of type .*int64\[1\].* becomes .*int64\[2\]"):
        grad(y, [x])


def bag(reduce, starts, ends, w, places):
    """Rows of a table, reduced bag by bag, as torch.onnx.export writes EmbeddingBag: each bag has a size of its own."""

    def step(i, going):
        first, last = (op.Gather(v, op.Unsqueeze(i, [0])) for v in (starts, ends))
        return None, reduce(op.Tanh(op.Gather(w, op.Slice(places, first, last, [0]))), [0], keepdims=0)

    return loop(step, len(starts.array))


@pytest.mark.parametrize(("reduce", "ends"), [
    ("sum", [3, 6]), ("sum", [1, 1, 6]), ("sum", [0, 4, 6]), ("sum", [6]), ("mean", [4, 6]), ("mean", [2, 3, 4, 6])])
def test_bags_of_different_sizes(reduce, ends):
    starts, places = [0, *ends[:-1]], np.array([1, 2, 0, 3, 3, 2])
    operator = {"sum": op.ReduceSum, "mean": op.ReduceMean}[reduce]

    def f(w):
        return bag(operator, constant(starts), constant(ends), w, constant(places))

    def torch_f(w):
        return torch.nn.functional.embedding_bag(torch.tensor(places), torch.tanh(w), torch.tensor(starts), mode=reduce)

    assert_as_torch(f, torch_f, [real(4, 3)])
    check_gradient(f, [real(4, 3)])


@pytest.mark.parametrize("trips", [0, 1, 4])
def test_a_number_of_iterations_given_at_run_time(trips):
    def f(x, n):
        return loop(lambda i, going, v: (None, op.Tanh(v) * 2, v), n, x)

    if trips:
        check_gradient(f, [real(3), np.array(trips)], order=1)
    check_gradient(lambda x, n: f(x, n)[0], [real(3), np.array(trips)])


def test_random_numbers_are_those_of_the_forward_pass():
    # y = x^8 times draws in (0, 1) of every iteration, so that dy/dx is y times 8 / x.
    x = variable("x", "float32", [1])

    def step(i, going, v):
        return None, v * v * op.RandomUniformLike(v)

    for y in (cond(positive(x), lambda: loop(step, 3, x), lambda: x),
              scan(lambda v, t: (cond(positive(v), lambda: step(None, None, v)[1], lambda: v),), x,
                   constant(np.zeros(3, np.float32)))):
        model = build([x], {"y": y, "d": grad(y, [x])[0]})
        found = evaluate(model, {"x": np.array([2.0], np.float32)})
        np.testing.assert_allclose(found["d"], found["y"] * 4, rtol=1e-5)
        assert 0 < found["y"][0] < 2**8
        # Two nodes would draw the same numbers from the same seed: there is one.
        assert bodies_with(model.graph, "RandomUniformLike") == 1


@pytest.mark.parametrize("n", [300, 20000])
def test_a_long_chain_before_and_inside_a_body(n):
    x = variable("x", "float32", [1])
    h = x
    for _ in range(n):
        h = -h

    def step(i, going, v):
        for _ in range(n // 10):
            v = -v
        return None, v * h

    model = build([x], {"d": grad(loop(step, 2, h), [x])[0]})
    if n < 1000:  # onnxruntime takes seconds to load many nodes
        assert evaluate(model, {"x": np.array([3.0], np.float32)})["d"].tolist() == [27]
