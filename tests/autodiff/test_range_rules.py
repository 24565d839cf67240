"""Rules of the interval analysis: each range holds what numpy computes inside of the ranges of the inputs."""

import numpy as np
import pytest

from ortpartial.autodiff.range_rules import ANY, EXTENDED, FINITE, RULES, Range
from ortpartial.graph.ops import op, variable

X, Y = (variable(n, "float64", ["N"]) for n in "xy")
ENDS = [(-2.0, 3.0), (0.5, 4.0), (-3.0, -0.25), (0.0, 1.0)]

UNARY = {"Neg": np.negative, "Abs": np.abs, "Relu": lambda x: np.maximum(x, 0), "Sqrt": np.sqrt, "Log": np.log,
         "Exp": np.exp, "Tanh": np.tanh, "Reciprocal": np.reciprocal, "Cosh": np.cosh, "Asin": np.arcsin,
         "Softplus": lambda x: np.logaddexp(0, x), "Sigmoid": lambda x: 1 / (1 + np.exp(-x))}
BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum,
          "Min": np.minimum}


def check(computed, r):
    """The elements are within the range, and finite where it says so."""
    finite = computed[np.isfinite(computed)]
    assert ((finite >= r.low - 1e-12) & (finite <= r.high + 1e-12)).all()
    assert r.kind != FINITE or np.isfinite(computed).all()


@pytest.mark.parametrize("name", UNARY)
def test_functions_stay_in_their_ranges(name):
    node = getattr(op, name)(X).node
    for low, high in ENDS:
        with np.errstate(all="ignore"):
            computed = UNARY[name](np.linspace(low, high, 101))
        check(computed, RULES[name](node, Range(low, high, FINITE, low > 0 or high < 0)))


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_stay_in_their_ranges(name):
    node = getattr(op, name)(X, Y).node
    for a in ENDS:
        for b in ENDS:
            x, y = np.meshgrid(np.linspace(*a, 31), np.linspace(*b, 31))
            with np.errstate(all="ignore"):
                computed = BINARY[name](x, y)
            check(computed, RULES[name](node, *(Range(*ends, FINITE, ends[0] > 0 or ends[1] < 0) for ends in (a, b))))


def test_infinity_passes_on():
    hidden = Range(-np.inf, 1.0, EXTENDED)
    assert RULES["Neg"](op.Neg(X).node, hidden) == Range(-1.0, np.inf, EXTENDED)
    assert RULES["Exp"](op.Exp(X).node, hidden).kind == ANY
    assert RULES["Add"](op.Add(X, Y).node, hidden, Range(0, 1)).kind == ANY
