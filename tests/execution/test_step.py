"""A step: which of its inputs are state, rows or stay as they are, and its model."""

import numpy as np
import pytest

from ortpartial.execution.names import StepNames
from ortpartial.execution.step import Step
from ortpartial.graph import op, variable
from ortpartial.runtime import Session

X, W, F = (variable(n, "float32", s) for n, s in (("x", [4, 3]), ("w", [3]), ("frozen", [3])))
K = variable("iteration", "int64", [])


@pytest.fixture
def step():
    loss = op.ReduceMean(X * W * F, keepdims=0)
    inputs = {"x": X, "w": W, "frozen": F, "iteration": K}
    return Step(inputs, {"loss": loss, "w_new": W - F}, StepNames.beside(["x", "w", "frozen"]), frozenset({"frozen"}))


def test_its_parts(step):
    assert step.state == {"w": "w_new"}
    assert list(step.fixed) == ["frozen"]
    assert list(step.rows) == ["x"]
    assert step.batch_size == 4
    assert step.all_rows["x"].shape == ("rows", 3)


def test_its_model(step):
    arrays = {"x": np.ones((4, 3), np.float32), "w": np.float32([1, 2, 3]), "frozen": np.float32([1, 1, 1])}
    session = Session(step.build())
    outputs = session.run({n: arrays.get(n, np.zeros((), "int64" if n == "iteration" else "float32"))
                           for n in session.inputs})
    assert outputs["loss"] == 2
    assert outputs["w_new"].tolist() == [0, 1, 2]


def test_a_step_is_cut_before_the_update_of_its_state():
    """What takes a state element by element comes late; a state that is given anew otherwise, and the loss, do not."""
    x, w, m, n = (variable(name, "float32", shape) for name, shape in
                  {"x": ["N", 3], "w": [3, 1], "m": [3, 1], "n": []}.items())
    g = op.MatMul(op.Transpose(x, perm=[1, 0]), op.MatMul(x, w))
    new = 0.9 * m + g
    outputs = {"loss": op.ReduceSum(x), "w_new": w - new / op.Sqrt(op.ReduceSum(g * g)), "m_new": new,
               "n_new": op.ReduceMean(x)}
    first, second = Step({"x": x, "w": w, "m": m, "n": n}, outputs, StepNames(frozenset())).cut()
    assert (list(first.inputs), list(first.outputs)) == (["n", "x", "w"], ["loss", "n_new", "part_0", "part_1"])
    assert (first.state, second.state) == ({"n": "n_new"}, {"w": "w_new", "m": "m_new"})
    assert sorted(second.inputs) == ["m", "part_0", "part_1", "w"]
    assert {v.shape for n, v in second.inputs.items() if n.startswith("part")} == {(1, 1), (3, 1)}
