"""Buffers: memory shared by numpy and onnxruntime."""

import numpy as np
import pytest

from ortpartial.exceptions import DataError
from ortpartial.runtime.buffer import Buffer, as_numpy


def test_buffer_shares_memory():
    array = np.zeros((2, 3), np.float32)
    buffer = Buffer(array)
    assert buffer.array is array
    assert buffer.numpy() is array
    array[0, 0] = 5
    assert buffer.ortvalue.numpy()[0, 0] == 5
    buffer.fill(np.ones((2, 3), np.float32))
    assert array.sum() == 6
    assert repr(buffer) == "<Buffer float32[2, 3] on cpu>"
    with pytest.raises(DataError, match=r"A buffer of float32\[2, 3\] cannot take float64\[2, 3\]\."):
        buffer.fill(np.ones((2, 3)))


def test_buffer_copies_what_cannot_be_borrowed():
    wide = np.arange(6, dtype=np.float32).reshape(2, 3)
    for array in (wide[:, ::2], wide.T, wide.astype(">f4"), np.float32(3)):
        buffer = Buffer(array)
        assert not np.shares_memory(buffer.array, wide)
        np.testing.assert_array_equal(buffer.ortvalue.numpy(), array)
        assert buffer.shape == np.shape(array)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (0, 2), (3,), (2, 1, 2)])
def test_buffer_dtypes_and_shapes(dtype, shape):
    buffer = Buffer.empty(shape, dtype)
    buffer.fill(np.ones(shape, dtype))
    array = as_numpy(buffer.ortvalue)
    assert (array.dtype, array.shape) == (np.dtype(dtype), shape)
    assert array.all()


def test_buffer_of_strings():
    with pytest.raises(DataError, match="onnxruntime takes no array of <U1"):
        Buffer(np.array(["a"]))
