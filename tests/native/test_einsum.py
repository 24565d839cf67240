"""Einsum as matrix products: the same sums, and the equations that are left alone."""

import numpy as np
import pytest

from ortpartial.graph import build, op, topological, variable
from ortpartial.native.einsum import expand_einsum
from ortpartial.runtime import Session

SIZES = {"a": 2, "b": 3, "c": 4, "d": 5}
EQUATIONS = ["ab,bc->ac", "ab,bc->ca", "ab,ab->", "ab,cd->dbac", "abc,abd->acd", "ab,bc,cd->ad", "ab,b", "abc->ca",
             "ab,ac->bc", "a,a,a->a"]


def draw(equation):
    rng = np.random.default_rng(0)
    return [rng.normal(size=[SIZES[letter] for letter in term]) for term in equation.partition("->")[0].split(",")]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_the_same_sums(equation):
    arrays = draw(equation)
    inputs = [variable(f"x{i}", "float64", a.shape) for i, a in enumerate(arrays)]
    y = expand_einsum(op.Einsum(*inputs, equation=equation).node)
    assert "Einsum" not in [n.op_type for n in topological([y])]
    outputs = Session(build(inputs, {"y": y})).run({f"x{i}": a for i, a in enumerate(arrays)})
    np.testing.assert_allclose(outputs["y"], np.einsum(equation, *arrays), rtol=1e-12)


@pytest.mark.parametrize("equation", ["aa->a", "...a,ab->...b"])
def test_what_is_no_product_of_matrices(equation):
    inputs = [variable(f"x{i}", "float64", [2] * 2) for i in range(1 + equation.count(","))]
    assert expand_einsum(op.Einsum(*inputs, equation=equation).node) is None
