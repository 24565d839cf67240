"""Devices, the version of the installed onnxruntime, and the cores of this process."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ortpartial.exceptions import DeviceError, RuntimeMissingError

__all__ = ["CPU", "Device", "cores", "has_training", "import_onnxruntime", "runtime_version"]

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def import_onnxruntime() -> Any:
    """Import onnxruntime on first use: onnxruntime-training takes two seconds, as it imports torch.

    Returns
    -------
    module

    Raises
    ------
    RuntimeMissingError
        None is installed, or it cannot be imported.

    Examples
    --------
    >>> import_onnxruntime().__name__
    'onnxruntime'
    """
    try:
        import onnxruntime
    except ImportError as e:
        raise RuntimeMissingError(
            f"No onnxruntime that can be imported ({e}): run `pip install ortpartial[cpu]`, or `pip install "
            f"ortpartial[training]` for the one with the TrainingAgent (Python 3.12 at most), never both."
        ) from e
    return onnxruntime


class _Bindings:
    """The C++ bindings of onnxruntime, imported when the first of them is read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # What introspection asks for is not worth the import.
            raise AttributeError(name)
        import_onnxruntime()
        from onnxruntime.capi import _pybind_state

        vars(self).update(vars(_pybind_state))  # so that the next reads are as fast as those of a module
        return getattr(_pybind_state, name)


#: The C++ bindings: each Python call of the onnxruntime API that they avoid saves half a microsecond a step.
C: Any = _Bindings()


def runtime_version() -> str:
    """Version of the installed onnxruntime.

    Returns
    -------
    str

    Examples
    --------
    >>> int(runtime_version().split(".")[0])
    1
    """
    return str(import_onnxruntime().__version__)


def cores() -> int:
    """The number of cores that this process may use: those of its affinity mask, if the system has one.

    Returns
    -------
    int

    Examples
    --------
    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_training() -> bool:
    """Whether the installed onnxruntime is a training build; no other has the TrainingAgent.

    Returns
    -------
    bool

    Examples
    --------
    >>> has_training() in (True, False)
    True
    """
    return hasattr(C, "TrainingAgent")


@dataclass(frozen=True)
class Device:
    """A device, which holds tensors and runs graphs: its kind, "cpu" or "cuda", and its number.

    On CUDA, `stream` is the address of the stream to run on; by default onnxruntime creates one. With `capture`, a
    session records its first run as a CUDA graph and replays it at the same addresses; onnxruntime refuses this if a
    node runs on the CPU, unless it computes a shape.

    Examples
    --------
    >>> Device.parse("cpu")
    Device(kind='cpu', index=0, stream=None, capture=False)
    """

    kind: str = "cpu"
    index: int = 0
    stream: int | None = None
    capture: bool = False

    @staticmethod
    def parse(text: str | Device) -> Device:
        """The device for "cpu", "cuda" or "cuda:1".

        Raises
        ------
        DeviceError
            The text is not the name of a device, or the installed onnxruntime has no support for it.
        """
        if isinstance(text, Device):
            return text
        match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", text) if isinstance(text, str) else None
        if match is None or (match[1] == "cpu" and int(match[2] or 0)):
            raise DeviceError(f"The device is {text!r}; expected 'cpu', 'cuda' or 'cuda:<number>'.")
        provider, available = _PROVIDERS[match[1]], import_onnxruntime().get_available_providers()
        if provider not in available:
            raise DeviceError(f"The device {text!r} needs {provider}, onnxruntime {runtime_version()} has "
                              f"{', '.join(available)}: install ortpartial[cuda] instead of this runtime.")
        return Device(match[1], int(match[2] or 0))

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}" if self.kind != "cpu" else "cpu"

    @property
    def shares_memory(self) -> bool:
        """Whether an OrtValue on the device can borrow the memory of a numpy array."""
        return self.kind == "cpu"

    def __reduce__(self) -> tuple[Any, ...]:
        return Device, (self.kind, self.index, self.stream, self.capture)

    @cached_property
    def ort(self) -> Any:
        """The `OrtDevice` of onnxruntime."""
        kind = C.OrtDevice.cpu() if self.kind == "cpu" else C.OrtDevice.cuda()
        return C.OrtDevice(kind, C.OrtDevice.default_memory(), self.index)

    @property
    def providers(self) -> list[tuple[str, dict[str, str]]]:
        """The execution providers of a session; a node without a CUDA kernel runs on the CPU."""
        cpu: tuple[str, dict[str, str]] = (_PROVIDERS["cpu"], {})
        if self.kind == "cpu":
            return [cpu]
        options = {"device_id": str(self.index)}
        if self.stream is not None:
            options["user_compute_stream"] = str(self.stream)
        if self.capture:
            options["enable_cuda_graph"] = "1"
        return [(_PROVIDERS[self.kind], options), cpu]


CPU = Device()
