"""Devices and execution providers, the version of the installed onnxruntime, and the cores of this process."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from threading import get_ident
from typing import Any, TypeAlias

from ortpartial.annotations import Reduced
from ortpartial.exceptions import DeviceError, RuntimeMissingError
from ortpartial.installation import install_command

__all__ = ["CPU", "Device", "DeviceName", "cores", "has_training", "import_onnxruntime", "plug_in_devices",
           "runtime_version"]

#: The name of a device, or the name of an execution provider and its options.
DeviceName: TypeAlias = "str | tuple[str, Mapping[str, object]]"

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

#: The package of an execution provider, by the beginning of its name.
_PACKAGES = {
    "OpenVINO": "onnxruntime-ep-openvino, beside onnxruntime 1.23 or newer",
    "Tensorrt": "onnxruntime-gpu instead of this runtime",
    "ROCM": "onnxruntime-rocm instead of this runtime",
    "MIGraphX": "onnxruntime-migraphx instead of this runtime",
    "QNN": "onnxruntime-qnn instead of this runtime",
    "Dml": "onnxruntime-directml instead of this runtime",
}


def import_onnxruntime() -> Any:
    """Import onnxruntime on first use, and of onnxruntime-training the C++ bindings alone.

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
        if "onnxruntime" not in sys.modules:
            _import_bindings()
        import onnxruntime
    except ImportError as e:
        raise RuntimeMissingError(
            f"No onnxruntime that can be imported ({e}): run {install_command('cpu')}, or `pip install "
            f"'.[training]'` for the one with the TrainingAgent (Python 3.12 at most), never both."
        ) from e
    return onnxruntime


class _NoFrontEnd:
    """A finder that hides `onnxruntime.training` from the thread that imports onnxruntime.

    The import of onnxruntime-training 1.19.2 includes that of its Python front end, and so torch and sympy where they
    are installed: 1.5 of 1.6 seconds.
    """

    def __init__(self) -> None:
        self._thread = get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Find nothing, and let no other finder look for the front end."""
        if name == "onnxruntime.training" and get_ident() == self._thread:
            raise ModuleNotFoundError(name, name=name)


def _import_bindings() -> None:
    """Import onnxruntime without its front end for training, which is imported when it is first read."""
    finder: Any = _NoFrontEnd()
    sys.meta_path.insert(0, finder)
    try:
        module = import_module("onnxruntime")
    finally:
        sys.meta_path.remove(finder)
    if hasattr(module.capi._pybind_state, "TrainingAgent"):
        vars(module)["__getattr__"] = _read_front_end


def _read_front_end(name: str) -> Any:
    """The module `onnxruntime.training`, for code that expects the import of onnxruntime to have imported it."""
    if name != "training":
        raise AttributeError(f"module 'onnxruntime' has no attribute {name!r}", name=name)
    return import_module("onnxruntime.training")


class _Bindings:
    """The C++ bindings of onnxruntime, imported when the first of them is read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Introspection is not worth the import.
            raise AttributeError(name)
        import_onnxruntime()
        from onnxruntime.capi import _pybind_state

        vars(self).update(vars(_pybind_state))  # so that the next reads are as fast as a module's
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
    """The number of cores that this process may use, by its affinity mask where the system has such masks.

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
    """A device, which holds tensors and runs graphs: "cpu", "cuda" with its number, or an execution provider by name.

    `options` are the options of the execution provider. On CUDA, `stream` is the address of the stream to run on; by
    default onnxruntime creates a stream. With `capture`, a session records its first run as a CUDA graph and replays it
    at the same addresses; onnxruntime refuses this if a node runs on the CPU, unless it computes a shape.

    Examples
    --------
    >>> Device.parse("cpu")
    Device(kind='cpu', index=0, stream=None, capture=False, options=())
    >>> str(Device("OpenVINOExecutionProvider", options=(("num_of_threads", "2"),)))
    'OpenVINOExecutionProvider:num_of_threads=2'
    """

    kind: str = "cpu"
    index: int = 0
    stream: int | None = None
    capture: bool = False
    options: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def parse(device: DeviceName | Device) -> Device:
        """The device of a name, or of a pair of the name of an execution provider and a dict of its options.

        Parameters
        ----------
        device : str, tuple of str and dict, or Device
            "cpu", "cuda", "cuda:1", or an execution provider: ``"OpenVINOExecutionProvider"``, with options as a pair,
            ``("OpenVINOExecutionProvider", {"num_of_threads": 2})``, or in its name,
            ``"OpenVINOExecutionProvider:num_of_threads=2"``, behind the colon as JSON where a value has a comma.

        Returns
        -------
        Device

        Raises
        ------
        DeviceError
            This is not the name of a device, or the installed onnxruntime has no support for it.
        """
        if isinstance(device, Device):
            return device
        if isinstance(device, str) and device == "cpu":  # asked for with every buffer
            return CPU
        name, options = _read_name(device)
        if name in _PROVIDERS.values():
            name, options = _name_short(name, options)
        match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", name)
        if match is None:
            _check_provider(name)
            return Device(name, options=tuple(options.items()))
        if match[1] == "cpu" and (match[2] or options):
            raise DeviceError(f"The device is {device!r}; the CPU has neither a number nor options: write 'cpu'.")
        provider, available = _PROVIDERS[match[1]], import_onnxruntime().get_available_providers()
        if provider not in available:
            raise DeviceError(f"The device {name!r} needs {provider}, onnxruntime {runtime_version()} has "
                              f"{', '.join(available)}: instead of this runtime, run "
                              f"{install_command('cuda')}.")
        return Device(match[1], int(match[2] or 0), options=tuple(options.items()))

    def __str__(self) -> str:
        name = f"{self.kind}:{self.index}" if self.kind == "cuda" else self.kind
        if not self.options:
            return name
        name = _PROVIDERS.get(self.kind, self.kind)
        options = {**({"device_id": str(self.index)} if self.kind == "cuda" else {}), **dict(self.options)}
        if any(re.search("[,={]", v) for v in options.values()):
            return f"{name}:{json.dumps(options)}"
        return f"{name}:{','.join(f'{k}={v}' for k, v in options.items())}"

    @property
    def is_cpu(self) -> bool:
        """Whether onnxruntime's own CPU kernels run all nodes, one by one in the order of the graph."""
        return self.kind == "cpu"

    @property
    def is_provider(self) -> bool:
        """Whether it is an execution provider by name, which takes the nodes that it supports."""
        return self.kind not in _PROVIDERS

    @property
    def shares_memory(self) -> bool:
        """Whether numpy arrays can be views of memory on the device."""
        return self.kind != "cuda"

    def __reduce__(self) -> Reduced:
        return Device, (self.kind, self.index, self.stream, self.capture, self.options)

    @cached_property
    def memory(self) -> Any:
        """The `OrtMemoryInfo` of memory that its sessions read and write without a copy; None for that of the CPU."""
        return _find_memory(self.kind) if self.is_provider else None

    @cached_property
    def ort(self) -> Any:
        """The `OrtDevice` of onnxruntime."""
        kind = C.OrtDevice.cuda() if self.kind == "cuda" else C.OrtDevice.cpu()
        return C.OrtDevice(kind, C.OrtDevice.default_memory(), self.index)

    @property
    def providers(self) -> list[tuple[str, dict[str, str]]]:
        """The execution providers of a session; a node without a kernel on the device runs on the CPU."""
        cpu: tuple[str, dict[str, str]] = (_PROVIDERS["cpu"], {})
        if self.kind != "cuda":
            return [cpu] if self.is_cpu else [(self.kind, dict(self.options)), cpu]
        # By default products of float32 round their factors to 10 bits.
        options = {"device_id": str(self.index), "use_tf32": "0", **dict(self.options)}
        if self.stream is not None:
            options["user_compute_stream"] = str(self.stream)
        if self.capture:
            options["enable_cuda_graph"] = "1"
        return [(_PROVIDERS[self.kind], options), cpu]


def _read_name(device: object) -> tuple[str, dict[str, str]]:
    """The name of a device, and the options that are part of the name or beside it."""
    pair = tuple(device) if isinstance(device, (tuple, list)) else (device, {})
    if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], Mapping):
        raise DeviceError(f"The device is {device!r}; expected 'cpu', 'cuda', 'cuda:<number>', the name of an "
                          f"execution provider, or a pair of this name and a dict of options.")
    name, _, text = pair[0].partition(":")
    if name in _PROVIDERS:
        return pair[0], dict(pair[1])
    try:
        options = json.loads(text) if text.startswith("{") else dict(o.split("=", 1) for o in text.split(",") if o)
    except ValueError:
        raise DeviceError(f"The device is {device!r}; behind the colon, options are written 'name=value,name=value' "
                          f"or as a JSON object.") from None
    return name, {k: v if isinstance(v, str) else json.dumps(v) for k, v in {**options, **pair[1]}.items()}


def _name_short(provider: str, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The short name of the CPU or a CUDA device for its execution provider, and the options that are left."""
    name = next(short for short, long in _PROVIDERS.items() if long == provider)
    left = {k: v for k, v in options.items() if k != "device_id"}
    return (f"{name}:{options['device_id']}" if "device_id" in options else name), left


def plug_in_devices(provider: str) -> list[Any]:
    """The devices of an execution provider that is a plug-in, whose library is loaded where its package is installed.

    Parameters
    ----------
    provider : str
        Its name.

    Returns
    -------
    list of onnxruntime.OrtEpDevice
        Empty where there is no such plug-in, or onnxruntime is older than 1.23.
    """
    ort = import_onnxruntime()
    if not hasattr(ort, "register_execution_provider_library"):
        return []
    if not any(d.ep_name == provider for d in ort.get_ep_devices()):
        _register(provider)
    return [d for d in ort.get_ep_devices() if d.ep_name == provider]


def _register(provider: str) -> None:
    """Load the library of a provider from its package, named `onnxruntime_ep_...` by convention."""
    for module in pkgutil.iter_modules():
        if not module.name.startswith("onnxruntime_ep_"):
            continue
        package = import_module(module.name)
        # A provider may have variants: OpenVINOExecutionProvider.AUTO
        if provider.split(".")[0] in package.get_ep_names():
            import_onnxruntime().register_execution_provider_library(module.name, package.get_library_path())
            return


def _check_provider(name: str) -> None:
    """Refuse an execution provider that onnxruntime does not have."""
    try:
        if plug_in_devices(name):
            return
    except Exception as e:  # The package, or its library for this system.
        raise DeviceError(f"The plug-in of the execution provider {name!r} cannot be loaded: {e}") from None
    available = import_onnxruntime().get_available_providers()
    if name in available:
        return
    if not name.endswith("ExecutionProvider"):
        raise DeviceError(f"The device is {name!r}; expected 'cpu', 'cuda', 'cuda:<number>' or an execution provider, "
                          f"of which onnxruntime {runtime_version()} has {', '.join(available)}.")
    package = next((p for start, p in _PACKAGES.items() if name.startswith(start)), None)
    raise DeviceError(f"The device {name!r} is an execution provider that onnxruntime {runtime_version()} does not "
                      f"have; it has {', '.join(available)}: "
                      + (f"install {package}." if package else "install a runtime or a plug-in that brings it."))


def _find_memory(provider: str) -> Any:
    """Where the sessions of a plug-in read and write memory that the CPU reads and writes, too; None for anywhere."""
    kind = getattr(C, "OrtDeviceMemoryType", None)
    devices = plug_in_devices(provider)
    return devices[0].memory_info(kind.HOST_ACCESSIBLE) if devices and kind is not None else None


CPU = Device()
