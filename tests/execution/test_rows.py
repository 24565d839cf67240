"""Rows of a batch are gathered where they stay; rows of a whole training are read where they are."""

import numpy as np

from ortpartial.execution.rows import Batch, DeviceRows

DATA = {"x": np.arange(12, dtype=np.float32).reshape(6, 2), "y": np.arange(6)}


def test_gathered_in_place():
    batch = Batch(DATA, 3)
    memory = batch.buffers["x"].numpy()
    batch.gather(np.array([5, 0, 5]))
    assert memory.tolist() == [[10, 11], [0, 1], [10, 11]]
    assert batch.buffers["y"].numpy().tolist() == [5, 0, 5]
    batch.read_from({n: a + 1 for n, a in DATA.items()})
    batch.gather(np.array([0, 1, 2]))
    assert memory.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_what_fits():
    batch = Batch(DATA, 3)
    assert batch.fits(DATA, 3)
    assert not batch.fits(DATA, 2)
    assert not batch.fits({**DATA, "x": np.zeros((6, 3))}, 3)


def test_all_rows_are_not_copied_on_the_host():
    rows = DeviceRows(DATA)
    assert rows.arrays["x"] is DATA["x"]
    rows.read_from({"x": DATA["y"]})
    assert rows.arrays == {"x": DATA["y"]}
