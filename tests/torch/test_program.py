"""Does a tape hold what a gradient reads, and no more?"""

import numpy as np
import pytest

from ortpartial.exceptions import NoGradientError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.graph.walk import find_reached
from ortpartial.runtime.session import Session
from ortpartial.torch.program import Program, Tape, make_program

X, W, B = (variable(n, "float32", s) for n, s in (("x", [2, 3]), ("w", [3, 3]), ("b", [3])))
LEAVES = {"x": X, "w": W, "b": B}
E = op.Exp(X)

# What is computed, what it is differentiated by, and what the tape keeps: leaves, outputs, operators of what is saved.
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
    tape = Tape(Program(LEAVES, {"y": y}), wanted)
    assert (tape.leaves, tape.given, tape.outputs) == (leaves, [], outputs)
    assert [v.node.op_type for v in tape.saved.values()] == saved


@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(name):
    """In two graphs and in one."""
    y, wanted, *_ = CASES[name]
    rng = np.random.default_rng(0)
    a = {n: rng.normal(size=v.shape).astype(np.float32) for n, v in LEAVES.items()}
    dy = rng.normal(size=(2, 3)).astype(np.float32)
    program = Program(LEAVES, {"y": y})
    found = []
    for tape in (Tape(program, wanted), Tape(program, wanted, recompute=True)):
        forward = Session(program.graph(tape.saved))
        kept = {**a, **forward.run({n: a[n] for n in forward.inputs}), "y_grad": dy}
        gradient, names = tape.backward(["y"])
        assert names == wanted
        backward = Session(gradient.graph())
        found.append(list(backward.run({n: kept[n] for n in backward.inputs}).values()))
    for g, h in zip(*found, strict=True):
        np.testing.assert_allclose(g, h, rtol=1e-5)


def test_random_numbers_are_drawn_once():
    """They are kept for the gradient, or it is an error."""
    program = Program({"x": X}, {"y": op.Exp(X * op.RandomUniformLike(X))})
    assert "RandomUniformLike" in [v.node.op_type for v in Tape(program, ["x"]).saved.values()]
    Tape(program, ["x"]).backward(["y"])[0].graph()
    with pytest.raises(NoGradientError, match="RandomUniformLike> would draw other random numbers than the"):
        Tape(program, ["x"], recompute=True).backward(["y"])[0].graph()


def test_names_do_not_clash():
    v = variable("saved_0", "float32", [2, 3])
    g = variable("y_grad", "float32", [3])
    tape = Tape(Program({"saved_0": v, "y_grad": g}, {"y": op.Sin(op.Exp(v)) * g}), ["saved_0", "y_grad"])
    gradient, _ = tape.backward(["y"])
    assert list(tape.saved) == ["saved_0_", "saved_1"]
    assert list(gradient.leaves) == ["saved_0", "y_grad", "y_grad_"]
    assert len(set(gradient.sources) | set(gradient.outputs)) == len(gradient.sources) + len(gradient.outputs)


def test_reached():
    assert find_reached([X @ W], [X, W, B]) == {X, W}
    assert find_reached([X, X], [X]) == {X}


def test_mode():
    """The initializers that are read, and a graph of certain sizes."""
    x = variable("x", "float32", ["N", 2])
    w, v = constant(np.ones((2, 2), np.float32), hint="w"), constant(np.ones(2, np.float32), hint="v")
    proto = build([x, variable("unused", "float32", ["N"])], {"y": x @ w + v})
    found = make_program(proto, ["w"], dtype="float64", sizes={"x": (5, 2), "unused": (5,)})
    assert found.fed == ["w"]
    assert list(found.program.leaves) == ["x", "unused", "w"]
    assert found.program.outputs["y"].shape == (5, 2)
    assert found.program.outputs["y"].dtype == np.float64
    assert [i.name for i in found.program.graph().graph.input] == ["x", "w"]
