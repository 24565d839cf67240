"""Loops and branches in C against onnxruntime."""

import shutil

import numpy as np
import pytest
from native_cases import compute_by_runtime, compute_in_c, write_cases
from once import ON_NEWEST

from ortpartial.autodiff import grad
from ortpartial.exceptions import UntranslatableError
from ortpartial.graph import Subgraph, body_inputs, cond, constant, loop, op, scan, variable

pytestmark = [ON_NEWEST, pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")]

rng = np.random.default_rng(0)


def make(*shape, dtype=np.float32):
    return variable("x", dtype, shape), rng.normal(size=shape).astype(dtype)


X, S, R, W = make(5, 4, 3), make(4, 3), make(4, 3), make(3, 3)
FLAG, OFF = (variable("flag", bool, []), np.array(True)), (variable("off", bool, [1]), np.array([False]))
LENGTHS = (variable("lengths", "int32", [4]), np.array([5, 1, 3, 2], np.int32))


def scan_with(function, init, xs, **attributes):
    """A Scan with these attributes."""
    attributes["num_scan_inputs"] = len(xs)
    return op.Scan(*init, *xs, body=Subgraph.of(function, *body_inputs("Scan", [*init, *xs], attributes)), **attributes)


def scans() -> dict:
    """Scans of all kinds."""
    x, s, r, w = (pair[0] for pair in (X, S, R, W))
    values = {}

    def add(name, results):
        values.update({f"{name} {i}": v for i, v in enumerate([results] if hasattr(results, "dtype") else results)})

    add("sum", scan(lambda s, x: (s + x, s * x), s, x))
    add("reverse", scan(lambda s, x: (s + x, s * x), s, x, reverse=True))
    add("product", scan(lambda s, x: (op.Tanh(s @ w + x), s @ w), s, x))
    add("exchange", scan(lambda a, b, x: (b, a + x, a - b), [s, r], x))
    add("three states", scan(lambda a, b, c, x: (b * c, a * c, a + x, c), [s, r, s], x))
    add("transposed state", scan(lambda a, x: (op.Transpose(a, perm=[1, 0]) + x[:3, :3], a), [w], x))
    add("outputs of inputs", scan(lambda a, x: (a, a, x, w), [s], x))
    add("state that stays", scan(lambda a, b, x: (a, b + a, b), [s, r], x))
    add("captured", scan(lambda a, x: (a * op.Exp(w)[0] + op.Exp(s), op.Exp(w) @ op.Transpose(x)), s, x))
    add("state of a captured value", scan(lambda a, x: (s, a * x), r, x))
    add("one step", scan(lambda a, x: (a + x, a * x), s, x[:1]))
    add("axes", scan_with(lambda a, x, y: (a + op.ReduceSum(x, keepdims=0) + op.ReduceSum(y, keepdims=0), x, y * a),
                          [op.ReduceSum(s, keepdims=0)], [x[:, :3], op.Transpose(x)[:, :, :3]],
                          scan_input_axes=[1, -1], scan_input_directions=[1, 0], scan_output_axes=[-1, 1],
                          scan_output_directions=[1, 0]))
    add("nested", scan(nested, s, x))
    add("of numbers of x", scan(lambda a, x: (a * x, a), op.ReduceSum(s, keepdims=0), x[:, 1, 2]))
    add("of numbers", scan(lambda a, x: (a + x, a), constant(np.int64(3)), constant(np.array([5, 7, 11]))))
    add("views", scan(lambda a, x: (a[::-1] + x, a), s, x[::-2]))
    return values


def nested(a, x):
    """A Scan within a Scan, over the rows of a state."""
    last, rows = scan(lambda c, r, y: (c + r * y, c - y), a[0], [a, x])
    return rows + last, op.ReduceSum(last, keepdims=0)


def loops() -> dict:
    """Loops that run a constant number of times."""
    x, s, w = X[0], S[0], W[0]
    state, number, stacked = loop(
        lambda i, going, v, n: (None, op.Sin(v) + op.Gather(x, i), n + i, v * op.Cast(i, to=1)), 4, s, np.int64(2))
    values = {"state": state, "number": number, "stacked": stacked.stated([4, 4, 3])}
    rows = loop(lambda i, going, v: (None, op.Sin(v), v), 3, s)[1]
    values["of a stack"] = (op.Exp(rows) * op.ReduceMean(rows, [0])).stated([3, 4, 3])
    values["none"] = loop(lambda i, going, v: (None, op.Sin(v)), 0, s)
    values["size of x"] = loop(lambda i, going, v: (going, v @ w), op.Shape(x)[0], s)
    return values


def branches() -> dict:
    """Branches, whose condition is data or a constant, one in the other, and in a loop."""
    x, s, w, flag, off = X[0], S[0], W[0], FLAG[0], OFF[0]
    first = {"then": cond(flag, lambda: op.Exp(s) @ w, lambda: s), "otherwise": cond(off, lambda: s @ w, lambda: s * 2),
             "constant": cond(constant(True), lambda: s + 1, lambda: s),
             "nested": cond(
                 flag, lambda: cond(off, lambda: s, lambda: cond(flag, lambda: s @ w, lambda: s)), lambda: s)}
    several = cond(op.ReduceSum(s, keepdims=0) > 0, lambda: (s, w), lambda: (s - 1, w @ w))
    in_loop = scan(lambda a, x: (cond(a[0, 0] > 0, lambda: a - op.Abs(x), lambda: x @ w - a), a), s, x)
    return {**first, **{f"several {i}": v for i, v in enumerate(several)},
            **{f"in a loop {i}": v for i, v in enumerate(in_loop)}}


def recurrent() -> dict:
    """Recurrent networks in all directions, and their gradients."""
    values = {}
    for i, (kind, gates, direction, lengths) in enumerate((
            ("RNN", 1, "forward", LENGTHS[0]), ("GRU", 3, "reverse", None), ("LSTM", 4, "bidirectional", LENGTHS[0]))):
        n, hidden, numbers = 1 + (direction == "bidirectional"), 2, np.random.default_rng(i)
        w, r, b = (constant(numbers.normal(size=size).astype(np.float32))
                   for size in ((n, gates * hidden, 3), (n, gates * hidden, hidden), (n, 2 * gates * hidden)))
        ys = getattr(op, kind)(X[0], w, r, b, lengths, hidden_size=hidden, direction=direction,
                               n_outputs=3 if kind == "LSTM" else 2)
        total = sum(op.ReduceSum(op.Sin(y), keepdims=0) for y in ys)
        values |= {f"{kind} {j}": y for j, y in enumerate(ys)}
        values |= {f"{kind} gradient {j}": g for j, g in enumerate(grad([total], [X[0], w, r, b]))}
    return values


def gradients() -> dict:
    """Gradients of loops and branches, which read values of their iterations."""
    x, s, w, flag = X[0], S[0], W[0], FLAG[0]
    last, rows = scan(lambda a, x: (op.Tanh(a @ w) * x, op.Exp(a * x)), s, x)
    looped = loop(lambda i, going, v: (None, op.Sin(v @ w)), 3, s)
    chosen = cond(flag, lambda: op.Exp(s @ w) * s, lambda: s)
    values = {}
    for name, y in (("scan", op.ReduceSum(last, keepdims=0) + op.ReduceSum(rows, keepdims=0)),
                    ("loop", op.ReduceSum(looped, keepdims=0)), ("branch", op.ReduceSum(chosen, keepdims=0))):
        wrt = [x, s, w] if name == "scan" else [s, w]
        values |= {f"{name} {i}": g for i, g in enumerate(grad([y], wrt))}
    return values


@pytest.mark.parametrize("write", [scans, loops, branches, recurrent, gradients])
def test_loops_and_branches_are_those_of_onnxruntime(write):
    values, numbers = write(), dict((X, S, R, W, FLAG, OFF, LENGTHS))
    expected = compute_by_runtime(values, numbers)
    for n, y in compute_in_c(values, numbers).items():
        np.testing.assert_allclose(y, expected[n], rtol=2e-5, atol=2e-6, err_msg=n)


@pytest.mark.parametrize("value", [
    lambda s, n: loop(lambda i, going, v: (None, op.Sin(v)), n, s),
    lambda s, n: loop(lambda i, going, v: (op.ReduceSum(v, keepdims=0) > 0, op.Sin(v)), 5, s),
], ids=["trip count", "condition"])
def test_a_loop_without_a_constant_number_of_iterations_is_refused_by_name(value):
    number = variable("n", "int64", [])
    with pytest.raises(UntranslatableError, match="Loop"):
        write_cases({"y": value(S[0], number)}, {S[0]: S[1], number: np.array(3)})
