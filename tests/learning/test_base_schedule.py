"""A schedule of a user: three lines, which every optimizer takes."""

from dataclasses import dataclass

import numpy as np
import pytest

from ortpartial.learning import LearningRateSGD
from ortpartial.learning.base_schedule import Schedule
from ortpartial.runtime import Session


@dataclass(frozen=True)
class Halved(Schedule):
    after: int = 2

    def __call__(self, eta0, k):
        return eta0 * 0.5 ** (k > self.after).astype(eta0.dtype)


def test_an_optimizer_steps_by_it():
    session = Session(LearningRateSGD(1.0, schedule=Halved()).build_onnx_function(dtype="float32", shape=[1]))
    w, g = np.zeros(1, np.float32), np.ones(1, np.float32)
    assert [session.run({"w": w, "g": g, "k": np.array(k)})["w_out"].item() for k in (1, 2, 3)] == [-1, -1, -0.5]


def test_defaults():
    schedule = Halved()
    assert schedule.plateau is None
    assert schedule.over(100) is schedule
    assert schedule == Halved() != Halved(3)


def test_the_formula_is_asked_for():
    with pytest.raises(TypeError, match="abstract"):
        Schedule()
