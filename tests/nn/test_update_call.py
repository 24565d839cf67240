"""The call of an optimizer: nothing changes where it is guarded and a gradient is not finite."""

import numpy as np
import pytest

from ortpartial.graph import build, variable
from ortpartial.learning import LearningRateSGDNesterov
from ortpartial.nn.update_call import UpdateCall
from ortpartial.runtime import Session
from ortpartial.training import Update

K = variable("k", "int64", [])


@pytest.mark.parametrize("gradient", [[1, 2], [np.inf, 0], [np.nan, 1]])
@pytest.mark.parametrize("is_guarded", [False, True])
def test_guard(gradient, is_guarded):
    w, g, v = (variable(n, "float32", [2]) for n in "wgv")
    update = Update({"w": w}, {"w": {"velocity": v}}, {"w": LearningRateSGDNesterov(0.1)}, "{}.{}".format)
    after = UpdateCall(update, {"w": g}, K, is_guarded).take()
    assert list(after) == ["w", "w.velocity"]
    model = build({"w": w, "g": g, "v": v, "k": K}, {f"{n}_new": a for n, a in after.items()})
    feeds = {"w": np.ones(2), "g": np.array(gradient), "v": np.ones(2)}
    outputs = Session(model).run({**{n: a.astype(np.float32) for n, a in feeds.items()}, "k": np.array(1)})
    is_skipped = is_guarded and not np.isfinite(gradient).all()
    assert all((a == 1).all() == is_skipped for a in outputs.values())
