"""Forward mode, beside differences along a direction; `check_gradient` compares it with reverse mode everywhere."""

import numpy as np
import pytest
from table import real

from ortpartial.autodiff import jvp
from ortpartial.autodiff.registry import RULES
from ortpartial.exceptions import GraphError, NoGradientError
from ortpartial.graph import build, cond, constant, loop, op, scan, variable
from ortpartial.testing import evaluate


def differ(f, x, v, h=1e-6):
    """The tangent of f, and central differences."""
    a, t = variable("a", "float64", x.shape), variable("t", "float64", x.shape)
    (tangent,) = jvp(f(a), [a], [t])
    result = evaluate(build([a, t], {"tangent": tangent}), {"a": x, "t": v})["tangent"]
    value = build([a], {"y": f(a)})
    plus, minus = (evaluate(value, {"a": x + s * h * v})["y"] for s in (1, -1))
    np.testing.assert_allclose(result, (plus - minus) / (2 * h), rtol=1e-6, atol=1e-8)
    return tangent


@pytest.mark.parametrize("f", [
    lambda x: op.Sin(x) * x - x / (1 + x * x),
    lambda x: op.Softmax(x @ op.Transpose(x)),
    lambda x: op.Concat(x, constant(np.ones((3, 1))), op.ReduceSum(x, [1]), axis=1),
    lambda x: op.Gemm(x, x, x[0], transB=1, alpha=0.5, beta=2.0) if x.shape == (3, 3) else x,
    lambda x: op.Add(x[0], x),
    lambda x: cond(op.ReduceSum(x, keepdims=0) > 0, lambda: op.Exp(x), lambda: op.Sin(x) * 3),
    lambda x: loop(lambda i, going, v: (None, op.Tanh(v * x)), 3, x),
    lambda x: scan(lambda s, v: (s * v + op.Sin(s), s), x[0], x)[1],
], ids=["arithmetic", "Gram", "Concat", "Gemm", "broadcast", "If", "Loop", "Scan"])
@pytest.mark.parametrize("shape", [(3, 2), (3, 3)], ids=str)
def test_tangent(f, shape):
    differ(f, real(*shape), real(*shape, seed=1))


def test_no_dependence_is_zero():
    x, z = variable("x", "float32", [2]), variable("z", "float32", [3])
    (t,) = jvp(op.Exp(z), [x], [np.ones(2)])
    assert (evaluate(build([z], {"t": t}), {"z": np.ones(3, np.float32)})["t"] == np.zeros(3)).all()


def test_intermediate_values():
    """The tangent of a value that is computed is the tangent that was given."""
    x = variable("x", "float64", [2])
    y = op.Exp(x)
    (t,) = jvp(y * x, [y], [constant(np.ones(2))])
    np.testing.assert_allclose(evaluate(build([x], {"t": t}), {"x": np.array([1.0, 2.0])})["t"], [1, 2])


def test_mistakes():
    x = variable("x", "float32", [2])
    with pytest.raises(GraphError, match="1 values in wrt and 2 tangents"):
        jvp(x, [x], [x, x])
    with pytest.raises(GraphError, match="a tangent has the shape of its value"):
        jvp(x, [x], [variable("t", "float32", [3])])
    with pytest.raises(GraphError, match="cast it to float32"):
        jvp(x, [x], [variable("t", "float64", [2])])
    with pytest.raises(GraphError, match="tangents has 'v', where a value or an array was expected"):
        jvp(x, [x], ["v"])
    with pytest.raises(GraphError, match=r"write jvp\(y, \[x\], \[v\]\)"):
        jvp(x, x, x)
    with pytest.raises(GraphError, match="not 'x'; load"):
        jvp(["x"], [x], [x])


def test_no_rule_and_no_body_is_an_error(monkeypatch):
    monkeypatch.delitem(RULES, ("", "Sin"))
    x = variable("x", "float32", [2])
    with pytest.raises(NoGradientError, match="Sin has neither a rule nor a body"):
        jvp(op.Sin(x), [x], [x])
