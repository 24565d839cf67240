"""How is a graph run? A `Session` for each graph, a `Binding` for a loop, a `Buffer` for memory that is used again."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from .exceptions import DataError, DeviceError, ModelError, OrtPartialError, RuntimeMissingError
from .lower import aged, lower
from .model import load, parted
from .subgraph import nested

try:
    import onnxruntime
    from onnxruntime.capi import _pybind_state
except ImportError as e:
    raise RuntimeMissingError(
        f"No onnxruntime that can be imported ({e}): run `pip install ortpartial[cpu]`, or `pip install "
        f"ortpartial[training]` for the one with the TrainingAgent (Python 3.12 at most), never both."
    ) from e

__all__ = ["Binding", "Buffer", "Device", "Session", "as_numpy", "cores", "has_training", "runtime_version"]

#: The objects below onnxruntime's Python ones: each call that they save is half a microsecond of a step.
C = _pybind_state

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


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
    return onnxruntime.__version__


def cores() -> int:
    """How many cores this process may use: those of its affinity mask, where the system has one.

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
    """Whether the installed onnxruntime is a training build, which alone has the TrainingAgent.

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
    """Where tensors live and graphs run: a kind, "cpu" or "cuda", and the number of the device.

    A graph on CUDA runs on a stream of onnxruntime's own, or on the one whose address `stream` is. With `capture` its
    session records a run as a CUDA graph and replays it from then on, at the same addresses; it is refused where a
    node runs on the CPU, other than for shapes.

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
        """The device that "cpu", "cuda" or "cuda:1" means.

        Raises
        ------
        DeviceError
            The text means no device, or the installed onnxruntime cannot drive it.
        """
        if isinstance(text, Device):
            return text
        match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", text) if isinstance(text, str) else None
        if match is None or (match[1] == "cpu" and int(match[2] or 0)):
            raise DeviceError(f"The device is {text!r}; expected 'cpu', 'cuda' or 'cuda:<number>'.")
        provider, found = _PROVIDERS[match[1]], onnxruntime.get_available_providers()
        if provider not in found:
            raise DeviceError(f"The device {text!r} needs {provider}, onnxruntime {runtime_version()} has "
                              f"{', '.join(found)}: install ortpartial[cuda] instead of this runtime.")  # fmt: skip
        return Device(match[1], int(match[2] or 0))

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}" if self.kind != "cpu" else "cpu"

    @property
    def shares_memory(self) -> bool:
        """Whether an OrtValue there can borrow the memory of a numpy array."""
        return self.kind == "cpu"

    @cached_property
    def ort(self) -> Any:
        """The device as onnxruntime names it."""
        kind = C.OrtDevice.cpu() if self.kind == "cpu" else C.OrtDevice.cuda()
        return C.OrtDevice(kind, C.OrtDevice.default_memory(), self.index)

    @property
    def providers(self) -> list[tuple[str, dict[str, str]]]:
        """The execution providers of a session; what CUDA has no kernel for runs on the CPU."""
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


def _borrowable(array: np.ndarray) -> np.ndarray:
    """The array itself if onnxruntime can read its memory, else a copy that it can.

    onnxruntime 1.19 to 1.31 takes an array of foreign byte order as if it were of its own, and a numpy scalar not at
    all. `ascontiguousarray` would turn a 0-d array into a 1-d one.
    """
    array = np.asarray(array, order="C")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _ortvalue(array: np.ndarray, device: Device) -> Any:
    """An OrtValue over the memory of a borrowable array, which the caller keeps alive; off the CPU, a copy."""
    try:
        return C.OrtValue.ortvalue_from_numpy(array, device.ort)
    except Exception as e:  # a dtype without an ONNX counterpart, or strings
        raise DataError(f"onnxruntime takes no array of {array.dtype}: {sentence(e)}") from None


class Buffer:
    """Memory that an `OrtValue` and a numpy array share, kept together so that neither outlives it.

    On the CPU the OrtValue borrows the memory of the array: what one writes, the other reads. On another device the
    OrtValue owns the memory and there is no array; `numpy` copies.

    Parameters
    ----------
    array : numpy.ndarray
        The content. It is copied only where onnxruntime cannot read it in place: strided, or of foreign byte order.
    device : str or Device
        Where the memory is.

    Attributes
    ----------
    ortvalue : onnxruntime.capi._pybind_state.OrtValue
        The tensor as onnxruntime sees it.
    array : numpy.ndarray or None
        The same memory, on the CPU.

    Examples
    --------
    >>> buffer = Buffer(np.zeros(3, np.float32))
    >>> buffer.array[:] = 1
    >>> buffer.ortvalue.numpy()
    array([1., 1., 1.], dtype=float32)
    """

    __slots__ = ("array", "device", "dtype", "ortvalue", "shape")

    def __init__(self, array: np.ndarray, device: str | Device = CPU):
        array = _borrowable(array)
        self.device = Device.parse(device)
        self.ortvalue = _ortvalue(array, self.device)
        self.array = array if self.device.shares_memory else None
        self.shape, self.dtype = array.shape, array.dtype

    @classmethod
    def empty(cls, shape: Sequence[int], dtype: Any = np.float32, device: str | Device = CPU) -> Buffer:
        """Memory of a shape and a dtype with nothing in particular in it, for a result to be written to."""
        return cls(np.empty(shape, dtype), device)

    def numpy(self) -> np.ndarray:
        """The content as an array: the very memory on the CPU, a copy from elsewhere."""
        return self.ortvalue.numpy() if self.array is None else self.array

    def fill(self, array: np.ndarray) -> None:
        """Overwrite the content with an array of the same shape and dtype."""
        array = _borrowable(array)
        if array.shape != self.shape or array.dtype != self.dtype:
            raise DataError(f"A buffer of {self.dtype}{list(self.shape)} cannot take {array.dtype}{list(array.shape)}.")
        if self.array is None:
            self.ortvalue.update_inplace(array)
        else:
            self.array[...] = array

    def __repr__(self) -> str:
        return f"<Buffer {self.dtype}{list(self.shape)} on {self.device}>"


def as_numpy(ortvalue: Any) -> np.ndarray:
    """The content of an OrtValue as an array: a copy, so that it outlives the run that overwrites the tensor.

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


def sentence(e: Exception) -> str:
    """What onnxruntime says about an error, without its codes and places in its source."""
    text = " ".join(str(e).split())
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = text.removeprefix("Error in execution: ")
    text = re.sub(r"Non-zero status code returned while running (\w+) node\. Name:'(.*?)' "
                  r"Status Message: ", r"\1 node '\2': ", text)  # fmt: skip
    # A place in the source: its path, and then the signature of the function up to its closing parenthesis.
    text = re.sub(r"/?\S*onnxruntime_src/\S+:\d+ [^()]*\((?:[^()]|\([^()]*\))*\)( const)?( \[with [^\]]*\])? ?", "",
                  text)  # fmt: skip
    if newer := re.search(r"Opset (\d+) is under development .* till opset (\d+)", text):
        text = f"the model has opset {newer[1]}, and the newest that it knows is {newer[2]}"
    return text.strip().rstrip(".") + "."


def run_error(e: Exception) -> Exception:
    """What was given does not fit, or the graph cannot be run: a `DataError` or a `ModelError`."""
    if isinstance(e, C.InvalidArgument) or re.search("hape|Invalid rank|invalid dimensions|data type|out of", str(e)):
        return DataError(f"onnxruntime {runtime_version()} refuses what it is given: {sentence(e)}")
    return ModelError(f"onnxruntime {runtime_version()} fails while it runs the graph: {sentence(e)}")


def _load_error(e: Exception, data: bytes) -> ModelError:
    """Why a graph is refused; a missing kernel with the operator, the node and the dtypes that it is given."""
    missing = re.search(r"Could not find an implementation for (\w+)\((\d+)\) node with name '(.*?)'", str(e))
    if missing is None:
        return ModelError(f"onnxruntime {runtime_version()} does not load the graph: {sentence(e)}")
    operator, version, name = missing.groups()
    try:
        nodes = {n.name: n for n in nested(v.node for v in load(data).values.values() if v.node is not None)}
        dtypes = sorted({str(x.dtype) for x in nodes[name].inputs if x is not None})
    except (KeyError, OrtPartialError):
        dtypes = []
    given = f" with inputs of {' and '.join(dtypes)}" if dtypes else ""
    return ModelError(f"onnxruntime {runtime_version()} has no kernel for {operator} (since opset {version}, node "
                      f"{name!r}){given}; use another dtype, such as float32, or a runtime that has it.")  # fmt: skip


class _Young(Exception):
    """A graph is younger than the runtime, which knows opsets up to `newest`."""

    def __init__(self, newest: int):
        super().__init__(newest)
        self.newest = newest


def _newest_opset(e: Exception) -> int | None:
    """The newest opset that a runtime knows, if it refuses a graph for being younger."""
    if found := re.search(r"till opset (\d+)", str(e)):
        return int(found[1])
    if found := re.search(r"max supported IR version: (\d+)", str(e)):
        return max(row[2] for row in helper.VERSION_TABLE if row[1] <= int(found[1]))
    return None


#: With more nodes than this, onnxruntime's own optimization takes longer than any training would gain by it: its
#: passes, and its search for memory to use again, grow with the square of the number (3,000 nodes in a row: 0.8 s
#: without, 19 s with).
_LARGE = 10_000


def session_options(threads: int | None, nodes: int = 0, *, lean: bool = False, spare: bool = False) -> Any:
    """Session options: errors only in the log, and no thread pool, hence no spinning threads, for one thread.

    A lean session computes node by node in the order of the graph, and takes no more memory than it asks for.
    Otherwise onnxruntime 1.19 to 1.31 computes what it can as early as it can, the masks of a backward pass before the
    loss for example, and doubles what it takes; fused nodes would lose their place in the order. One that spares memory
    gives all of it back at once, which takes time.
    """
    options = C.SessionOptions()
    options.log_severity_level = 3
    options.inter_op_num_threads = 1
    # Left to itself, onnxruntime 1.19 to 1.31 takes cores that the process may not use, and pins threads to them.
    options.intra_op_num_threads = threads or cores()
    if lean:
        options.execution_order = C.ExecutionOrder.PRIORITY_BASED
        options.graph_optimization_level = C.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_mem_pattern = False
        if spare:
            _give_back()
            options.enable_cpu_mem_arena = False
        else:
            _as_requested()
            options.add_session_config_entry("session.use_env_allocators", "1")
    if nodes > _LARGE:
        options.graph_optimization_level = C.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_mem_pattern = options.enable_mem_reuse = False
    return options


@cache
def _as_requested() -> None:
    """Make memory that lean sessions share, and that grows by what they ask for."""
    info = C.OrtMemoryInfo("Cpu", C.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, C.OrtMemType.DEFAULT)
    with suppress(RuntimeError):  # Somebody else has made one, which serves as well.
        C.create_and_register_allocator(info, C.OrtArenaCfg({"arena_extend_strategy": 1}))


@cache
def _give_back() -> None:
    """Let memory from 1 MB on go back to the system when it is freed; glibc keeps blocks of up to 32 MB otherwise."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # not in musl
        if mallopt is not None:
            mallopt(-3, 2**20)  # M_MMAP_THRESHOLD


class Session:
    """A graph that onnxruntime can run.

    Parameters
    ----------
    model : onnx.ModelProto or bytes
        The graph.
    device : str
        "cpu", "cuda" or "cuda:1".
    threads : int or None
        Threads that one operator may use; None for as many as the process has `cores`. For small graphs one is the
        fastest.
    options : onnxruntime.SessionOptions, optional
        Instead of `threads`, all the options.

    Attributes
    ----------
    inputs, outputs : list of str
        Names, in the order of the graph.

    Raises
    ------
    ModelError
        onnxruntime refuses the graph.
    DeviceError
        The device is unknown or missing.

    Examples
    --------
    >>> from ortpartial.builder import build
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float32", ["N"])
    >>> Session(build([x], {"y": 2 * x})).run({"x": np.ones(2, np.float32)})
    {'y': array([2., 2.], dtype=float32)}
    """

    def __init__(
        self,
        model: ModelProto | bytes,
        *,
        device: str | Device = CPU,
        threads: int | None = 1,
        options: Any = None,
    ):
        self.device, self.threads = Device.parse(device), threads
        try:
            self._python = self._load(model, options)
        except _Young as e:
            try:
                self._python = self._load(aged(model, e.newest), options)  # type: ignore[arg-type]
            except _Young as e:  # The IR version, which the runtime looks at first, goes with several opsets.
                self._python = self._load(aged(model, e.newest), options)  # type: ignore[arg-type]
        used = self._python.get_providers()
        if self.device.providers[0][0] not in used:
            raise DeviceError(f"onnxruntime {runtime_version()} cannot use the device '{self.device}'; it loaded the "
                              f"graph on {', '.join(used)}. Is the driver of the device installed?")  # fmt: skip
        # The Python object around it checks names again at each run: the loop of a training talks to the one below.
        self._sess = self._python._sess
        self.inputs: list[str] = [i.name for i in self._sess.inputs_meta]
        self.outputs: list[str] = [o.name for o in self._sess.outputs_meta]

    def _load(self, model: ModelProto | bytes, options: Any) -> Any:
        """onnxruntime's own session."""
        nodes = len(model.graph.node) if isinstance(model, ModelProto) else 0
        options = options or session_options(self.threads, nodes)
        if isinstance(model, ModelProto):
            # onnxruntime borrows the memory of what is too big for one message.
            light, self._apart = parted(lower(model))
            if self._apart:
                values = [onnxruntime.OrtValue.ortvalue_from_numpy(a) for a in self._apart.values()]
                options.add_external_initializers(list(self._apart), values)
            data = light.SerializeToString()
        else:
            data = bytes(model)
        # GemmSumFusion of 1.19.2 fails on a sum of two Gemms, the gradient of a weight that two products share.
        disabled = ["GemmSumFusion"]
        try:
            try:
                return self._open(data, options, disabled)
            except Exception as e:
                # 1.19.2 fuses a transposed product in float64 into a FusedMatMul that it has in float32 alone.
                if "FusedMatMul" not in str(e):
                    raise
                return self._open(data, options, [*disabled, "MatmulTransposeFusion"])
        except Exception as e:  # its errors have no common base below Exception
            if isinstance(model, ModelProto) and (newest := _newest_opset(e)):
                raise _Young(newest) from None
            raise _load_error(e, data) from None

    def _open(self, data: bytes, options: Any, disabled: list[str]) -> Any:
        return onnxruntime.InferenceSession(
            data, options, providers=self.device.providers, enable_fallback=0,
            disabled_optimizers=disabled,
        )  # fmt: skip

    def run(self, feeds: Mapping[str, np.ndarray], options: Any = None) -> dict[str, np.ndarray]:
        """The outputs of the graph for some inputs.

        Parameters
        ----------
        feeds : mapping of str to numpy.ndarray
            An array for each input.
        options : onnxruntime.RunOptions, optional
            Those of a `Watch`, which ends the run at a deadline or at Ctrl-C with an error.

        Returns
        -------
        dict of str to numpy.ndarray
            An array, of rank 0 for a scalar, for each output.

        Raises
        ------
        DataError
            An input is missing, unknown, or of a type or shape that the graph does not take.
        ModelError
            The graph fails on this input.
        """
        if feeds.keys() != set(self.inputs):
            raise DataError(_names("an input", self.inputs, feeds))
        try:
            found = self._sess.run(self.outputs, {n: _borrowable(v) for n, v in feeds.items()}, options)
        except Exception as e:
            raise run_error(e) from None
        return {n: np.asarray(v) if isinstance(v, np.generic) else v for n, v in zip(self.outputs, found, strict=True)}

    def run_ortvalues(self, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs of the graph, in their order and where it runs, for inputs that are OrtValues; from any thread.

        Nothing is checked before the run and nothing is kept after it, which a loop of one's own does for itself.

        Raises
        ------
        DataError
            What is given is not of the shape or type that the graph takes.
        ModelError
            The graph fails.
        """
        if self.device.kind != "cpu":  # Outputs would come back to the CPU.
            binding = self.binding()
            for name, value in feeds.items():
                binding.bind_ortvalue_input(name, value)
            binding.run()
            return list(binding.ortvalues().values())
        try:
            found = self._sess.run_with_ort_values(feeds, self.outputs, None)
        except Exception as e:
            raise run_error(e) from None
        return [found[i] for i in range(len(self.outputs))]  # Iterating takes 5 us an element, asking by number 0.3.

    def binding(self) -> Binding:
        """A new set of bound inputs and outputs; a session may have several."""
        return Binding(self)

    def __repr__(self) -> str:
        return f"<Session {', '.join(self.inputs)} -> {', '.join(self.outputs)} on {self.device}>"


def _names(what: str, known: Sequence[str], given: Iterable[str]) -> str:
    """Which name is missing or unknown."""
    given = list(given)
    missing, unknown = [n for n in known if n not in given], [n for n in given if n not in known]
    found = f"lacks {what} named {missing[0]!r}" if missing else f"has {what} named {unknown[0]!r} which nobody reads"
    return f"What is given {found}; the graph has: {', '.join(map(repr, known)) or 'none'}."


class Binding:
    """Inputs and outputs of a session bound to memory, so that a run in a loop costs no allocation and no conversion.

    A binding keeps alive what is bound to it. An output bound to no buffer gets memory of its own at each run, so that
    a result handed on is never overwritten. An output bound to the memory of an input that a later node still reads is
    a race that nobody detects: use two bindings in turn.

    Parameters
    ----------
    session : Session
        The graph.

    Examples
    --------
    >>> from ortpartial.builder import build
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float32", [2])
    >>> binding = Session(build([x], {"y": 2 * x})).binding()
    >>> xs, ys = np.ones(2, np.float32), Buffer.empty([2])
    >>> binding.bind_input("x", xs)
    >>> binding.bind_output("y", ys)
    >>> xs[1] = 5
    >>> binding.run()
    >>> ys.array
    array([ 2., 10.], dtype=float32)
    """

    __slots__ = ("_binding", "_bound", "_device", "_loose", "_missing", "_outputs", "_run", "session")

    def __init__(self, session: Session):
        self.session = session
        self._binding = C.SessionIOBinding(session._sess)
        self._run = session._sess.run_with_iobinding
        self._device = session.device
        # By name, what is bound and its shape and dtype when it was bound.
        self._bound: dict[str, tuple[Any, ...]] = {}
        self._missing = set(session.inputs)
        self._outputs: dict[str, Buffer | None] = {}
        self._loose: list[str] = []
        for name in session.outputs:
            self.bind_output(name)

    def bind_input(self, name: str, value: np.ndarray | Buffer | Any) -> None:
        """Let an input read the memory of an array, a buffer or an OrtValue at each run, until something else is bound.

        What is bound already is not bound again. Strided arrays are copied once, at this call.

        Raises
        ------
        DataError
            The graph has no such input, or onnxruntime no such dtype.
        """
        # An array that is bound is kept alive, so the same object of the same shape and dtype is the same memory.
        # Asking numpy for a pointer instead (1.0 us) costs more than binding again (0.9 us).
        last = self._bound.get(name)
        if last is not None and last[0] is value and last[1] == value.shape and last[2] == value.dtype:
            return
        if isinstance(value, Buffer):
            self._bind(name, value.ortvalue)
            self._bound[name] = value, value.shape, value.dtype
            return
        if isinstance(value, C.OrtValue):
            self.bind_ortvalue_input(name, value)
            return
        array = _borrowable(value)
        self._bind(name, _ortvalue(array, self._device))
        # A copy, here or on another device, would not follow what is written to the array later: bind again next time.
        same = array is value and self._device.shares_memory
        self._bound[name] = (array if same else (array,)), array.shape, array.dtype

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Let an input read an OrtValue that owns its memory, such as the result of another session."""
        self._bind(name, ortvalue)
        self._bound.pop(name, None)

    def _bind(self, name: str, ortvalue: Any) -> None:
        # After a name that it does not know, a binding of onnxruntime 1.19 to 1.31 takes no other name either.
        if name in self._missing:
            self._missing.remove(name)
        elif name not in self.session.inputs:
            raise DataError(_names("an input", self.session.inputs, [*self.session.inputs, name]))
        self._binding.bind_ortvalue_input(name, ortvalue)

    def bind_output(self, name: str, buffer: Buffer | None = None) -> None:
        """Let an output be written to a buffer at each run, or, without one, to new memory at each run.

        Raises
        ------
        DataError
            The graph has no such output.
        """
        if buffer is not None and self._outputs.get(name) is buffer:
            return
        if name not in self.session.outputs:
            # onnxruntime 1.19 to 1.31 takes any name here and ignores it.
            raise DataError(_names("an output", self.session.outputs, [*self.session.outputs, name]))
        if buffer is None:
            self._binding.bind_output(name, self._device.ort)
        else:
            self._binding.bind_ortvalue_output(name, buffer.ortvalue)
        self._outputs[name] = buffer
        self._loose = [n for n, b in self._outputs.items() if b is None]

    def run(self, options: Any = None) -> None:
        """Run the graph on what is bound.

        Parameters
        ----------
        options : onnxruntime.RunOptions, optional
            Those of a `Watch`, which ends the run at a deadline or at Ctrl-C with an error.

        Raises
        ------
        DataError
            What is bound is not of the shape or type that the graph takes, or some input is not bound.
        ModelError
            The graph fails.
        """
        if self._missing:
            raise DataError(_names("an input", self.session.inputs, set(self.session.inputs) - self._missing))
        try:
            # onnxruntime 1.19 to 1.31 writes the next result to the memory of the last one, where it even must fit.
            for name in self._loose:
                self._binding.bind_output(name, self._device.ort)
            self._run(self._binding, options)
        except Exception as e:
            raise run_error(e) from None

    def ortvalues(self) -> dict[str, Any]:
        """The outputs of the last run as OrtValues, by name."""
        # Iterating over the vector takes 5 us an element, asking by number 0.3.
        found = self._binding.get_outputs()
        return {name: found[i] for i, name in enumerate(self._outputs)}

    def numpy(self) -> dict[str, np.ndarray]:
        """The outputs of the last run as arrays of their own, by name."""
        return {n: as_numpy(v) for n, v in self.ortvalues().items()}
