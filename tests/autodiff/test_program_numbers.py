"""Constants that a program computes with: masks, tables of positions, angles; and weights that look like none."""

import numpy as np
import pytest

from ortpartial.autodiff.program_numbers import explain_program_numbers, is_mask, is_sinusoidal
from ortpartial.graph import constant, op, topological, variable

POSITIONS = np.arange(16)[:, None] / 100.0 ** (np.arange(4) / 4)
TABLE = np.stack([np.sin(POSITIONS), np.cos(POSITIONS)], 2).reshape(16, 8)


def explain(y):
    """The reasons for the constants that `y` reads."""
    readers = {}
    for node in topological([y]):
        for v in node.reads:
            if v.array is not None and v.is_float:
                readers.setdefault(v, []).append(node)
    return list(explain_program_numbers([y], readers).values())


@pytest.mark.parametrize(("a", "expected"), [
    (np.triu(np.full((3, 3), -np.inf), 1), True), (np.triu(np.full((3, 3), -1e9), 1), True),
    (np.zeros(3), False), (np.eye(3), False), (np.full((2, 2), -100.0), False)])
def test_masks(a, expected):
    assert is_mask(a) == expected


def test_tables_of_sines():
    assert is_sinusoidal(TABLE)
    assert is_sinusoidal(TABLE[None])
    assert not is_sinusoidal(TABLE[1:])
    assert not is_sinusoidal(np.random.default_rng(0).normal(size=(16, 8)))
    assert not is_sinusoidal(np.zeros((16, 8)))


def test_what_is_said_of_them():
    x = variable("x", "float32", ["N", 16, 8])
    table, weight = constant(TABLE.astype(np.float32)), constant(np.ones((16, 8), np.float32))
    mask = constant(np.triu(np.full((16, 16), -1e9, np.float32), 1))
    assert explain(x + table) == ["a table of the sines and cosines of positions: trained by name only"]
    assert explain(x @ op.Transpose(x, perm=[0, 2, 1]) + mask) == ["a mask that Add reads"]
    assert explain(x + weight) == []
    assert explain(x @ constant(TABLE.T.astype(np.float32))) == []


def test_angles_feed_sines_and_cosines_alone():
    position, x = variable("position", "int64", ["N", 1]), variable("x", "float32", ["N", 3])
    angles = op.Cast(position, to=1) * constant(np.float32([1, 0.1, 0.01]))
    rotation = x * op.Cos(angles) + op.Sin(angles)
    assert explain(rotation) == ["angles of a rotary embedding, which feed cos and sin alone: trained by name only"]
    assert explain(rotation + angles) == []
