"""Memory shared by numpy and onnxruntime: a `Buffer` holds an OrtValue and the array that it borrows from."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_char
from typing import Any

import numpy as np
from onnx import helper

from ortpartial.annotations import DTypeLike
from ortpartial.exceptions import DataError

from .device import CPU, C, Device, DeviceName
from .errors import clean_message
from .ort_types import OrtValue

__all__ = ["Buffer", "as_numpy", "make_borrowable", "to_ortvalue"]


def make_borrowable(array: np.ndarray) -> np.ndarray:
    """The array itself if onnxruntime can read its memory, else a contiguous copy in native byte order.

    onnxruntime 1.19 to 1.31 ignores the byte order of an array and refuses a numpy scalar. `np.ascontiguousarray` is no
    way out: it gives a 0-d array a dimension.
    """
    array = np.asarray(array, order="C")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def to_ortvalue(array: np.ndarray, device: Device) -> OrtValue:
    """An OrtValue that borrows the memory of a borrowable array, which the caller keeps alive; on a GPU, a copy."""
    memory = device.ort
    try:
        if array.dtype.kind == "V" and memory.device_type() == C.OrtDevice.cpu():  # bfloat16, from onnxruntime 1.20 on
            bits = array.view(f"u{array.dtype.itemsize}")
            return C.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, helper.np_dtype_to_tensor_dtype(array.dtype))
        return C.OrtValue.ortvalue_from_numpy(array, memory)
    except Exception as e:  # Strings, or a dtype that ONNX does not have.
        raise DataError(f"onnxruntime takes no array of {array.dtype}: {clean_message(e)}") from None


def _allocate(array: np.ndarray, device: Device) -> tuple[OrtValue, np.ndarray]:
    """A copy of an array in memory of an execution provider: an OrtValue, and a view that keeps it alive."""
    ortvalue = C.OrtValue.ortvalue_from_shape_and_type_for_memory_info(list(array.shape), array.dtype, device.memory)
    memory: Any = (c_char * array.nbytes).from_address(ortvalue.data_ptr())
    memory.owner = ortvalue
    view = np.ndarray(array.shape, array.dtype, memory)
    view[...] = array
    return ortvalue, view


class Buffer:
    """Memory that an OrtValue and a numpy array share, and that lives as long as the buffer.

    On the CPU the OrtValue borrows the memory of the array: each sees writes to the other. An execution provider may
    ask for memory of its own, of which the array is a view. On another device the OrtValue owns the memory and there is
    no array; `numpy` copies.

    Parameters
    ----------
    array : numpy.ndarray
        The content. It is copied only if onnxruntime cannot read it in place: strided, or of foreign byte order.
    device : str or Device
        The device that holds the memory.

    Attributes
    ----------
    ortvalue : onnxruntime.capi._pybind_state.OrtValue
        The tensor.
    array : numpy.ndarray or None
        The same memory as an array; None off the CPU.

    Examples
    --------
    >>> buffer = Buffer(np.zeros(3, np.float32))
    >>> buffer.array[:] = 1
    >>> buffer.ortvalue.numpy()
    array([1., 1., 1.], dtype=float32)
    """

    __slots__ = ("array", "device", "dtype", "ortvalue", "shape")

    array: np.ndarray | None

    def __init__(self, array: np.ndarray, device: DeviceName | Device = CPU):
        array = make_borrowable(array)
        self.device = Device.parse(device)
        self.shape, self.dtype = array.shape, array.dtype
        if self.device.memory is not None:
            self.ortvalue, self.array = _allocate(array, self.device)
            return
        self.ortvalue = to_ortvalue(array, self.device)
        self.array = array if self.device.shares_memory else None

    @classmethod
    def empty(cls, shape: Sequence[int], dtype: DTypeLike = np.float32, device: DeviceName | Device = CPU) -> Buffer:
        """A buffer with uninitialized content, for a result to be written to."""
        return cls(np.empty(shape, dtype), device)

    def numpy(self) -> np.ndarray:
        """The content as an array: the same memory on the CPU, a copy from other devices."""
        return self.ortvalue.numpy() if self.array is None else self.array

    def fill(self, array: np.ndarray) -> None:
        """Overwrite the content with an array of the same shape and dtype."""
        array = make_borrowable(array)
        if array.shape != self.shape or array.dtype != self.dtype:
            raise DataError(f"A buffer of {self.dtype}{list(self.shape)} cannot take {array.dtype}{list(array.shape)}.")
        if self.array is None:
            self.ortvalue.update_inplace(array)
        else:
            self.array[...] = array

    def __repr__(self) -> str:
        return f"<Buffer {self.dtype}{list(self.shape)} on {self.device}>"


def as_numpy(ortvalue: OrtValue) -> np.ndarray:
    """The content of an OrtValue as an array: a copy, which the next run does not overwrite.

    Parameters
    ----------
    ortvalue : onnxruntime.capi._pybind_state.OrtValue
        A dense tensor.

    Returns
    -------
    numpy.ndarray
        Of rank 0 for a scalar, never a numpy scalar.
    """
    return np.asarray(ortvalue.numpy())
