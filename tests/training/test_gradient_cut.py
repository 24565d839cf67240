"""Forward keeps the inputs of the gradient, and no more."""

import numpy as np
import pytest

from ortpartial.exceptions import ModelError, NoGradientError
from ortpartial.graph.ops import op, variable
from ortpartial.graph.walk import find_reached
from ortpartial.runtime.session import Session
from ortpartial.training.gradient_cut import GradientCut, GraphFunction

X, W, B = (variable(n, "float32", s) for n, s in (("x", [2, 3]), ("w", [3, 3]), ("b", [3])))
LEAVES = {"x": X, "w": W, "b": B}
E = op.Exp(X)

# What is computed, what it is differentiated by, and what the cut keeps: leaves, outputs, operators of what is saved.
CASES = {
    "linear": (X @ W + B, ["w", "b"], ["x", "w", "b"], [], []),
    "an output": (op.Sigmoid(X @ W), ["w"], ["x", "w"], ["y"], []),
    "a value": (op.Exp(X @ W) * B, ["w"], ["x", "w", "b"], [], ["Exp"]),
    "a factor of a value": (op.Sin(2 * E) + op.Sin(E), ["x"], ["x"], [], ["Exp"]),
    "a transposed leaf": (op.Sin(X @ op.Transpose(W, perm=[1, 0])), ["x"], ["x", "w"], [], ["MatMul"]),
    "what was moved and scaled": (
        op.Transpose(op.Sin(2 * op.Transpose(X @ W, perm=[1, 0])), perm=[1, 0]), ["w"], ["x", "w"], [], ["MatMul"]),
    "nothing": (X + B, ["b"], ["b"], [], []),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_kept(name):
    y, wanted, leaves, outputs, saved = CASES[name]
    cut = GradientCut(GraphFunction(LEAVES, {"y": y}), wanted)
    assert (cut.leaves, cut.precomputed, cut.outputs) == (leaves, [], outputs)
    assert [v.node.op_type for v in cut.saved.values()] == saved


@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(name):
    """In two graphs and in one."""
    y, wanted, *_ = CASES[name]
    rng = np.random.default_rng(0)
    a = {n: rng.normal(size=v.shape).astype(np.float32) for n, v in LEAVES.items()}
    dy = rng.normal(size=(2, 3)).astype(np.float32)
    function = GraphFunction(LEAVES, {"y": y})
    gradients = []
    for cut in (GradientCut(function, wanted), GradientCut(function, wanted, recompute=True)):
        forward = Session(function.graph(cut.saved))
        kept = {**a, **forward.run({n: a[n] for n in forward.inputs}), "y_grad": dy}
        gradient, names = cut.backward(["y"])
        assert names == wanted
        backward = Session(gradient.graph())
        gradients.append(list(backward.run({n: kept[n] for n in backward.inputs}).values()))
    for g, h in zip(*gradients, strict=True):
        np.testing.assert_allclose(g, h, rtol=1e-5)


def test_random_numbers_are_drawn_once():
    """They are kept for the gradient, or it is an error."""
    function = GraphFunction({"x": X}, {"y": op.Exp(X * op.RandomUniformLike(X))})
    assert "RandomUniformLike" in [v.node.op_type for v in GradientCut(function, ["x"]).saved.values()]
    GradientCut(function, ["x"]).backward(["y"])[0].graph()
    with pytest.raises(NoGradientError, match="RandomUniformLike> would draw other random numbers than the"):
        GradientCut(function, ["x"], recompute=True).backward(["y"])[0].graph()


def test_names_do_not_clash():
    v = variable("saved_0", "float32", [2, 3])
    g = variable("y_grad", "float32", [3])
    cut = GradientCut(GraphFunction({"saved_0": v, "y_grad": g}, {"y": op.Sin(op.Exp(v)) * g}), ["saved_0", "y_grad"])
    gradient, _ = cut.backward(["y"])
    assert list(cut.saved) == ["saved_0_", "saved_1"]
    assert list(gradient.leaves) == ["saved_0", "y_grad", "y_grad_"]
    assert len(set(gradient.sources) | set(gradient.outputs)) == len(gradient.sources) + len(gradient.outputs)


def test_reached():
    assert find_reached([X @ W], [X, W, B]) == {X, W}
    assert find_reached([X, X], [X]) == {X}


def test_integers_have_no_gradient():
    i = variable("i", "int64", ["N"])
    with pytest.raises(ModelError, match="'i' holds int64, and only real numbers have a gradient"):
        GradientCut(GraphFunction({"i": i}, {"y": op.Cast(i, to=1)}), ["i"])
