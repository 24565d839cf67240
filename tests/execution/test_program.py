"""Programs: a batch that is bound once, and both directions of the double buffer."""

import numpy as np

from ortpartial.execution.names import StepNames
from ortpartial.execution.program import Program, bind, directions
from ortpartial.graph import build, op, variable
from ortpartial.runtime import Buffer, Session


def test_directions():
    a, b = {"w": 1}, {"w": 2}
    assert directions((a, b), StepNames.beside(["w"])) == [({"w": 1}, {"w_new": 2}), ({"w": 2}, {"w_new": 1})]


class Sum(Program):
    def __call__(self, side):
        self.bindings[side].run()
        return 0.0


def test_a_batch_is_bound_once():
    """Other data of the same shapes are read through the same memory."""
    x, w = variable("x", "float32", [2]), variable("w", "float32", [2])
    session = Session(build([x, w], {"w_new": w + op.Neg(x)}))
    w, new = Buffer(np.float32([5, 5])), Buffer(np.zeros(2, np.float32))
    program = Sum([bind(session, {"w": w, "unread": new}, {"w_new": new})])
    data = {"x": np.arange(6, dtype=np.float32)}
    program.read_from(data, 2)
    batch = program.batch
    batch.gather(np.array([3, 1]))
    program(0)
    assert new.numpy().tolist() == [2, 4]
    program.read_from({"x": data["x"] * 10}, 2)
    assert program.batch is batch
    batch.gather(np.array([0, 1]))
    program(0)
    assert new.numpy().tolist() == [5, -5]
