"""Stored steps: inputs, results and updates of an entry, for any or for given shapes."""

import numpy as np
from training_models import WHOLE, by_hand

from ortpartial.graph import build
from ortpartial.runtime import Session
from ortpartial.training_info.steps import compose_step, read_part

MODEL = by_hand(WHOLE)


def test_a_part():
    part = read_part(MODEL)
    assert part.updates == {"w": "w_new"}
    assert set(part.results) >= {"loss"}
    assert set(read_part(MODEL, returned=[]).results) == set()


def test_a_composed_step():
    """w - ½ mean(2 (w x - t) x)."""
    inputs, outputs, updates = compose_step(MODEL)
    assert updates == {"w_new_": "w"}
    x, t = np.float32([1, 2]), np.float32([0, 2])
    session = Session(build(inputs, outputs))
    assert session.run({"x": x, "t": t, "w": np.float32(2)})["w_new_"] == 2 - 0.5 * (2 * (2 * x - t) * x).mean()


def test_known_sizes():
    *_, updates = compose_step(MODEL, sizes={"x": (2,), "t": (2,)})
    assert updates == {"w_new_": "w"}


def test_an_entry_without_a_step():
    model = by_hand((None, None, [], []))
    assert compose_step(model)[1:] == ({}, {})
