"""Gradients of Einsum."""

import numpy as np
import pytest
import torch
from table import NOTHING, assert_as_torch, real, rows

from ortpartial.autodiff.grad import grad
from ortpartial.exceptions import GraphError
from ortpartial.graph.ops import op, variable
from ortpartial.testing import check_gradient

# Equation, shapes of the operands.
TABLE = (
    ("product of matrices", "ij,jk->ik", (2, 3), (3, 4)),
    ("product of matrices, transposed", "ij,jk->ki", (2, 3), (3, 4)),
    ("batched", "bij,bjk->bik", (2, 2, 3), (2, 3, 4)),
    ("attention", "bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
    ("spaces", "i j, j -> i", (2, 3), (3,)),
    ("outer", "i,j->ij", (2,), (3,)),
    ("inner", "i,i->", (3,), (3,)),
    ("implicit result", "ij,jk", (2, 3), (3, 4)),
    ("implicit result is in the order of the alphabet", "ba", (2, 3)),
    ("implicit scalar", "i,i", (3,), (3,)),
    ("sum", "ij->", (2, 3)),
    ("sum of an axis", "ij->j", (2, 3)),
    ("transpose", "ijk->kij", (2, 3, 4)),
    ("identity", "ij->ij", (2, 3)),
    ("a letter of one operand alone", "ij,k->i", (2, 3), (4,)),
    ("trace", "ii->", (3, 3)),
    ("implicit trace", "ii", (3, 3)),
    ("diagonal", "ii->i", (3, 3)),
    ("diagonal of a batch", "bii->bi", (2, 3, 3)),
    ("diagonal, other axes between", "iji->ij", (3, 2, 3)),
    ("diagonal and a sum", "iij->j", (2, 2, 3)),
    ("two diagonals", "iijj->ij", (2, 2, 3, 3)),
    ("a letter three times", "iii->i", (3, 3, 3)),
    ("diagonal against a vector", "ii,i->", (3, 3), (3,)),
    ("ellipsis", "...ij,...jk->...ik", (2, 2, 3), (2, 3, 4)),
    ("ellipsis of several axes", "...ij,jk->...ik", (2, 3, 2, 3), (3, 4)),
    ("ellipsis that is repeated", "...ij,...jk->...ik", (1, 2, 2, 3), (2, 1, 3, 4)),
    ("ellipsis of size one", "...ij,...jk->...ik", (1, 2, 3), (2, 3, 4)),
    ("ellipsis of nothing", "...i,...i->...", (3,), (3,)),
    ("ellipsis, implicit result", "...ij,...jk", (2, 2, 3), (2, 3, 4)),
    ("ellipsis in the middle", "i...j->j...i", (2, 3, 4)),
    ("ellipsis and a diagonal", "...ii->...i", (2, 3, 3)),
    ("three operands", "ij,jk,kl->il", (2, 3), (3, 2), (2, 4)),
    ("four operands", "a,ab,bc,c->", (2,), (2, 3), (3, 2), (2,)),
    ("scalar", ",i->i", (), (3,)),
    ("big letters", "Ab,bC->AC", (2, 3), (3, 4)),
)
CASES = rows(*((name, equation, [real(*s, seed=i) for i, s in enumerate(shapes)]) for name, equation, *shapes in TABLE))


def sum_of(equation):
    return lambda *x: op.Einsum(*x, equation=equation)


@pytest.mark.parametrize(("equation", "args"), CASES)
def test_einsum(equation, args):
    check_gradient(sum_of(equation), args, directions=1)
    assert_as_torch(sum_of(equation), lambda *x: torch.einsum(equation, *x), args)


@NOTHING
@pytest.mark.parametrize("shapes", [[(0, 3), (3, 4)], [(2, 0), (0, 4)]], ids=str)
def test_of_nothing(shapes):
    check_gradient(sum_of("ij,jk->ik"), [np.zeros(s) + 1 for s in shapes], order=1)


def test_one_operand_twice():
    check_gradient(lambda x: op.Einsum(x, x, equation="ij,kj->ik"), [real(2, 3)])


def test_size_one_along_a_letter():
    # Neither onnxruntime nor torch wants it, numpy and the specification do: the operand is repeated along it.
    check_gradient(sum_of("...j,...j->..."), [real(1, 3), real(2, 3)])


def test_a_rank_that_is_not_known_is_an_error():
    x = variable("x", "float32", None)
    with pytest.raises(GraphError, match=r"rank of .* is not known; declare the shape"):
        grad(op.Einsum(x, equation="ij->i"), [x])


def test_a_gradient_is_one_product():
    a, b, dy = variable("a", "float32", [2, 3]), variable("b", "float32", [3, 4]), variable("dy", "float32", [2, 4])
    da, db = grad(op.Einsum(a, b, equation="ij,jk->ik"), [a, b], [dy])
    assert [(d.node.op_type, d.node.attributes["equation"]) for d in (da, db)] == [
        ("Einsum", "ik,jk->ij"), ("Einsum", "ik,ij->jk")]
    assert np.array_equal([da.shape, db.shape], [a.shape, b.shape])
