"""Vectors: small tensors side by side, in arrays and in graphs alike."""

import numpy as np
import pytest

from ortpartial.execution.vectors import Vector
from ortpartial.graph import build, variable
from ortpartial.runtime import Session

VECTOR = Vector({"a": (2, 3), "b": (), "c": (4,)})
FLAT = np.arange(11, dtype=np.float32)


def test_arrays_are_views():
    parts = VECTOR.split_array(FLAT)
    assert (VECTOR.size, VECTOR.first) == (11, "a")
    assert {n: a.shape for n, a in parts.items()} == dict(VECTOR.shapes)
    assert all(np.shares_memory(a, FLAT) for a in parts.values())
    assert np.concatenate([a.ravel() for a in parts.values()]).tolist() == FLAT.tolist()


@pytest.mark.parametrize("order", ["abc"])
def test_graphs(order):
    flat = variable("flat", "float32", [11])
    parts = VECTOR.split(flat)
    outputs = Session(build([flat], {**parts, "again": VECTOR.join([parts[n] for n in order])})).run({"flat": FLAT})
    assert outputs["again"].tolist() == FLAT.tolist()
    for n, a in VECTOR.split_array(FLAT).items():
        np.testing.assert_array_equal(outputs[n], a)
