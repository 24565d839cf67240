"""Scans over time steps: equal to the unrolled expression, with few products inside of the loop."""

import numpy as np
import pytest
from table import real, rows

from ortpartial.autodiff.grad import grad
from ortpartial.autodiff.rules.time import ROWS, find_edge, like, regroup_products, scan_steps, split_steps, state_step
from ortpartial.graph.build import build
from ortpartial.graph.ops import op, variable
from ortpartial.testing import evaluate

D, E, A, B, C = (variable(n, "float32", [ROWS, 3]) for n in "deabc")


def written(v):
    """An expression of names, the factors of a product in brackets."""
    if v.node is None:
        return v.hint
    inside = " ".join(map(written, v.node.inputs))
    return f"({inside})" if v.node.op_type == "Mul" else f"{v.node.op_type} {inside}"


PRODUCTS = rows(
    ("from the right", D * A * B, "(d (a b))"),
    ("from the left", B * (A * D), "(d (a b))"),
    ("three of them", D * A * B * C, "(d ((a b) c))"),
    ("of what is made of it", op.Exp(D) * A * B, "(Exp d (a b))"),
    ("within", op.Exp(D * A * B), "Exp (d (a b))"),
    ("of two that are carried", D * A * E, "((d a) e)"),
    ("of none", A * B * C, "((a b) c)"),
)


@pytest.mark.parametrize(("y", "expected"), PRODUCTS)
def test_a_step_has_one_product_for_what_is_carried(y, expected):
    (found,) = regroup_products([y], [D, E])
    assert written(found) == expected


def test_a_walk_back_goes_along_some_nodes():
    inner = op.Exp(A)
    y = op.Tanh(inner)
    assert find_edge([y], {y.node, inner.node}, lambda v: v is A) == [A]
    assert find_edge([y], {y.node}, lambda v: v is A) == []


def test_a_step_that_reads_nothing_reads_one_sequence():
    x = variable("x", "float32", ["T", "N", 3])
    one, two = (variable(n, "float32", [None, 3]) for n in ("one", "two"))
    found = scan_steps(x, {D: op.Gather(x, 0)}, [2 * D], [D], {A: one, B: two})
    assert found[0].node.attribute("num_scan_inputs") == 1


@pytest.mark.parametrize(("batch", "expected"), [("N", "N"), (None, ROWS)])
def test_rows_of_any_number_have_a_name(batch, expected):
    x, v = variable("x", "float32", ["T", batch, 5]), variable("v", "float32", [None, 3])
    assert split_steps(v, x).shape == ("T", expected, 3)
    assert state_step(v, x).shape == (expected, 3)
    assert like(v, "v").shape == (ROWS, 3)


def test_rows_of_which_nothing_is_known_have_a_rank():
    x, v = (variable(n, "float32", None) for n in "xv")
    assert split_steps(v, x).shape == (None, ROWS, None)
    assert state_step(v, x).shape == (ROWS, None)
    assert like(v, "v").shape == (ROWS, None)


def test_no_rows():
    x, v = variable("x", "float32", ["T", "N", 5]), variable("v", "float32", [None, 3])
    feeds = {"x": np.zeros((4, 0, 5), np.float32), "v": np.zeros((0, 3), np.float32)}
    assert evaluate(build([x, v], {"y": split_steps(v, x)}), feeds)["y"].shape == (4, 0, 3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sequence_of_which_nothing_is_known(dtype):
    args = [a.astype(dtype) for a in (real(4, 2, 3), real(1, 8, 3), real(1, 8, 2))]
    found = []
    for shape in (args[0].shape, None):
        v = [variable(n, dtype, s) for n, s in zip("xwr", (shape, *(a.shape for a in args[1:])), strict=True)]
        d = grad(op.LSTM(*v, hidden_size=2)[0], v)
        found.append(evaluate(build(v, dict(zip("abc", d, strict=True))), dict(zip("xwr", args, strict=True))))
    for n in "abc":
        np.testing.assert_allclose(found[1][n], found[0][n], rtol=1e-6)
