"""Sessions that run a graph in onnxruntime, and bindings that run it in a loop without allocating or copying."""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto

from ortpartial.annotations import Reduced
from ortpartial.exceptions import DeviceError, DeviceWarning, ModelError
from ortpartial.logs import compiling, logger
from ortpartial.model import match_names, replace_weights, split_external_data, walk_graphs
from ortpartial.rewrites import (
    clear_padding,
    downgrade_opset,
    drop_default,
    has_convolutions,
    lower,
    lower_quantized,
    multiply_bytes,
    needs_lowering,
    write_convolutions,
)

from .buffer import Buffer, as_numpy, make_borrowable, to_ortvalue
from .channel_block import channel_block
from .device import CPU, C, Device, DeviceName, has_training, import_onnxruntime, runtime_version
from .errors import find_refusals, load_error, newest_opset, run_error
from .execution_providers import NodePlacement, add_provider, ask_placement, find_faults, wrong_operators
from .fork import Inherited, keep_at_fork
from .host_nodes import list_dtypes, split_host_nodes
from .ort_types import OrtSession, OrtValue, OrtValues, RunOptions, SessionOptions
from .session_options import register_custom_ops, session_options

__all__ = ["Binding", "Session", "has_training", "runtime_version"]

#: Parts of loading errors, and the optimizer of onnxruntime that they come from.
_FAILING_FUSIONS = {
    "FusedMatMul": "MatmulTransposeFusion",  # 1.19.2 fuses a transposed product in float64 into one of float32
    "com.microsoft.QuickGelu": "QuickGeluFusion",  # 1.19.2 fuses x σ(x) in float64, too, and has a kernel for float32
    "kernel for QLinearMatMul(21)": "QDQSelectorActionTransformer",  # 1.19.2 fuses one that it has up to opset 20
    "of operator (QuantizeLinear) in node": "QDQPropagationTransformer",  # 1.19.2 quantizes to int32 behind a bias
    # 1.31.1 gives a shape the name that it has in a model which was optimized before
    "Attempt to replace the existing tensor": "MatMulAddFusion",
    "Initializer with same name exists": "MatMulAddFusion",  # the same in 1.21 to 1.23
    "output_dtype INT8 does not match": "QDQS8ToU8Transformer",  # 1.31.1 turns int8 into uint8 but for an attribute
}


def _leaves_padding() -> bool:
    """Whether attention may read memory that nothing has written: see `clear_padding`."""
    return _minor_version() < (1, 32)


def _minor_version() -> tuple[int, ...]:
    return tuple(map(int, runtime_version().split(".")[:2]))


def _unwanted_optimizers(model: ModelProto | bytes, device: Device) -> list[str]:
    """The optimizers of onnxruntime that fail on a graph, or would make it worse."""
    # GemmSumFusion of 1.19.2 fails on a sum of two Gemms, the gradient of a weight that two products share.
    names = ["GemmSumFusion"]
    if device.is_cpu and _minor_version() >= (1, 30):
        # From 1.30 to 1.32, the fused kernel takes 5 times as long as a sum and LayerNormalization: bench/runtimes.py.
        names.append("SkipLayerNormFusion")
    graphs = list(walk_graphs(model.graph)) if isinstance(model, ModelProto) else []
    returned = {o.name for graph in graphs[:1] for o in graph.output}
    if any(n.op_type == "Range" and not returned.isdisjoint(n.output) for graph in graphs[:1] for n in graph.node):
        # In 1.19.2 it removes a Range that a Gather reads even if it is an output, which then holds nothing.
        names.append("GatherToSliceFusion")
    quantized = [n for graph in graphs for n in graph.node if n.op_type == "DequantizeLinear"]
    if quantized and len(graphs) > 1:
        # It aborts in 1.19.2 where the body of a node reads a dequantized and reshaped tensor.
        names.append("QDQPropagationTransformer")
    return names


def _is_fixed(graph: GraphProto | None) -> bool:
    """Whether all batches of a graph have one shape: onnxruntime 1.19 to 1.32 keeps a plan of memory for each shape."""
    return graph is None or all(d.HasField("dim_value") for i in graph.input for d in i.type.tensor_type.shape.dim)


#: No arrays.
EMPTY: Mapping[str, np.ndarray] = MappingProxyType({})


def _has_operator(model: ModelProto, op_type: str) -> bool:
    """Whether a graph has a node of an operator, not counting nodes inside of operators' bodies."""
    return any(node.op_type == op_type for g in walk_graphs(model.graph) for node in g.node)


class _UnsupportedOpset(Exception):
    """A graph has a newer opset than `newest`, the runtime's newest."""

    def __init__(self, newest: int):
        super().__init__(newest)
        self.newest = newest


class Session:
    """A graph that onnxruntime can run.

    Parameters
    ----------
    model : onnx.ModelProto or bytes
        The graph.
    device : str, tuple of str and dict, or Device
        "cpu", "cuda", "cuda:1" or an execution provider, as in `Device.parse`. Nodes that a provider does not take run
        on the CPU; `placement` says which nodes.
    threads : int or None
        Threads of an operator; None for as many as the process has `cores`. A single thread is the fastest for small
        graphs.
    options : onnxruntime.SessionOptions, optional
        All the options, in place of `threads` and `memory_pattern`; not with an execution provider by name.
    memory_pattern : bool
        Whether intermediate values have fixed places in memory. Otherwise each takes memory that was just freed, which
        is near, but searching for it is slower where nodes are small.
    arrays : dict of str to numpy.ndarray
        Initializers that the graph has as external data in no file; their memory is borrowed.

    Attributes
    ----------
    inputs, outputs : list of str
        Names, in the order of the graph.
    placement : NodePlacement or None
        The nodes that a named execution provider runs and does not run; None on other devices.

    Raises
    ------
    ModelError
        onnxruntime refuses the graph.
    DeviceError
        The device is unknown or missing.

    Warns
    -----
    DeviceWarning
        An execution provider runs no node of the graph; the message says why.

    Examples
    --------
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float32", ["N"])
    >>> Session(build([x], {"y": 2 * x})).run({"x": np.ones(2, np.float32)})
    {'y': array([2., 2.], dtype=float32)}
    """

    def __init__(self, model: ModelProto | bytes, *, device: DeviceName | Device = CPU,
                 threads: int | None = 1, options: SessionOptions | None = None, memory_pattern: bool = True,
                 arrays: Mapping[str, np.ndarray] = EMPTY):
        self._arrays = arrays
        self.device, self.threads, self._memory_pattern = Device.parse(device), threads, memory_pattern
        self.placement: NodePlacement | None = None
        # The graph that the CPU runs first, and the inputs of the graph that the execution provider runs after it.
        self._host: Session | None = None
        self._later: list[str] = []
        with compiling(f"the graph {model.graph.name!r}" if isinstance(model, ModelProto) else "a graph"):
            if self.device.is_provider:
                model = model if isinstance(model, ModelProto) else ModelProto.FromString(bytes(model))
                session, self._host = self._load_on_provider(model)
                self._report_placement(model.graph.name)
            else:
                session = self._load_supported(model, options)
        providers = session.get_providers()
        if self.device.providers[0][0] not in providers:
            raise DeviceError(f"onnxruntime {runtime_version()} cannot use the device '{self.device}'; it loaded the "
                              f"graph on {', '.join(providers)}. Is the driver of the device installed?")
        # `InferenceSession` checks all names at each run. The training loop calls the C++ session under it, which needs
        # the Python object only to be kept alive.
        self._inference_session = session
        self.handle: OrtSession = session._sess
        # Without options, onnxruntime 1.19 to 1.32 makes new ones for each run, in 0.8 us.
        self._options = C.RunOptions()
        self.inputs: list[str] = [i.name for i in self.handle.inputs_meta]
        if self._host is not None and isinstance(model, ModelProto):
            self._later = self.inputs
            self.inputs = [i.name for i in model.graph.input if i.name in {*self._host.inputs, *self._later}]
        self.outputs: list[str] = [o.name for o in self.handle.outputs_meta]
        #: The errors of nodes for numbers out of range, by name.
        self.refusals = find_refusals(model)
        self._sequences = {i.name for i in self.handle.inputs_meta if i.type.startswith("seq")}
        keep_at_fork(self)

    def replace_inherited(self) -> list[object]:
        """Replace the session of onnxruntime, which a child process must not use, and return it."""
        handle, self.handle = self.handle, Inherited()
        return [self._inference_session, handle]

    def _load_on_provider(self, model: ModelProto) -> tuple[OrtSession, Session | None]:
        """An `InferenceSession` on an execution provider, or else on the CPU, and the session before it on the CPU."""
        device, arrays, whole = self.device, self._arrays, self._fill(model)
        faults = find_faults(device, {TensorProto.FLOAT, *list_dtypes(model.graph)})
        reason = " and ".join(faults.values())
        first, rest = split_host_nodes(whole, faults)
        if rest is not None:
            try:
                session = self._load_supported(lower(rest, wrong_operators(device)), None)
                self.placement = ask_placement(session, device, first, reason if first is not None else "")
                return session, None if first is None else Session(first, threads=self.threads)
            except ModelError as e:
                reason = f"does not compile it ({textwrap.shorten(str(e), 300)})"
        self.device, self._arrays, self.placement = CPU, arrays, NodePlacement(device.kind, reason=reason)
        return self._load_supported(model, None), None

    def _report_placement(self, name: str) -> None:
        """Log which nodes run where, and warn if the execution provider runs none."""
        logger.debug("the graph %r: %s", name, self.placement)
        if self.placement is not None and self.placement.is_unused:
            warnings.warn(f"The graph {name!r}: {self.placement}.", DeviceWarning, stacklevel=4)

    def _load_supported(self, model: ModelProto | bytes, options: SessionOptions) -> OrtSession:
        """An `InferenceSession` of the graph, in an older opset if the runtime does not know that of the graph."""
        if isinstance(model, ModelProto) and needs_lowering(model):
            model = self._fill(model)
        if isinstance(model, ModelProto) and not self._arrays and has_convolutions(model):
            model = write_convolutions(model, channel_block() if self.device.kind == "cpu" else None)
        try:
            return self._load(model, options)
        except _UnsupportedOpset as e:
            assert isinstance(model, ModelProto)
            model = self._fill(model)
            try:
                return self._load(downgrade_opset(model, e.newest), options)
            except _UnsupportedOpset as e:  # The IR version, which the runtime checks first, goes with several opsets.
                return self._load(downgrade_opset(model, e.newest), options)

    def _fill(self, model: ModelProto) -> ModelProto:
        """The graph with its external data inside, for functions that read and change it."""
        arrays, self._arrays = self._arrays, EMPTY
        return replace_weights(model, arrays) if arrays else model

    def _load(self, model: ModelProto | bytes, options: SessionOptions) -> OrtSession:
        """An `InferenceSession` of the graph, with a kernel that 1.19.2 lacks worked around."""
        if options is None:
            graph = model.graph if isinstance(model, ModelProto) else None
            options = session_options(self.threads, graph, memory_pattern=self._memory_pattern and _is_fixed(graph))
        self._providers = (add_provider(options, self.device, self.threads) if self.device.is_provider
                           else self.device.providers)
        register_custom_ops(options, model)
        if isinstance(model, ModelProto):
            # Weights that are too large for one protobuf message stay in arrays, whose memory onnxruntime borrows.
            proto, apart = split_external_data(lower(model))
            if _leaves_padding():
                proto = clear_padding(proto)
            elif self.device.is_cpu:
                proto = multiply_bytes(proto)
            self._external = {**self._arrays, **apart}
            if self._external:
                self._borrow(options)
            data = proto.SerializeToString()
        else:
            data = bytes(model)
        try:
            return self._open(data, options, _unwanted_optimizers(model, self.device))
        except Exception as e:  # The errors of onnxruntime have no common base class below Exception.
            if isinstance(model, ModelProto) and "implementation for QLinearMatMul(21)" in str(e):
                return self._load(lower_quantized(self._fill(model)), options)
            missing = re.search(r"implementation for (\w+)\(", str(e))
            if isinstance(model, ModelProto) and missing and _has_operator(model, missing[1]):
                lowered = lower(self._fill(model), [missing[1]])  # such as DeformConv, in 1.19.2 of any dtype
                if not _has_operator(lowered, missing[1]):
                    return self._load(lowered, options)
            if isinstance(model, ModelProto) and (newest := newest_opset(e)):
                raise _UnsupportedOpset(newest) from None
            raise load_error(e, data) from None

    def _borrow(self, options: SessionOptions) -> None:
        """Let a session have the content of initializers in the memory where it is."""
        borrow = import_onnxruntime().OrtValue.ortvalue_from_numpy
        self._borrowed = {n: borrow(a) for n, a in self._external.items()}
        options.add_external_initializers(list(self._borrowed), list(self._borrowed.values()))
        if self.device.is_cpu:  # onnxruntime 1.19 to 1.32 copies external weights, for kernels to read.
            for name, value in self._borrowed.items():
                options.add_initializer(name, value)

    def _open(self, data: bytes, options: SessionOptions, disabled: list[str]) -> OrtSession:
        """An `InferenceSession`, without attributes unknown to the runtime and optimizers whose results it refuses."""
        try:
            return import_onnxruntime().InferenceSession(data, options, providers=self._providers,
                                                         enable_fallback=0, disabled_optimizers=disabled)
        except Exception as e:
            unknown = re.search(r"Unrecognized attribute: (\w+) for operator (\w+)", str(e))
            if unknown and drop_default(older := ModelProto.FromString(data), unknown[2], unknown[1]):
                return self._open(older.SerializeToString(), options, disabled)
            if not (wrong := [name for text, name in _FAILING_FUSIONS.items()
                              if text in str(e) and name not in disabled]):
                raise
            return self._open(data, options, [*disabled, *wrong])

    def run(self, feeds: Mapping[str, np.ndarray], options: RunOptions | None = None) -> dict[str, np.ndarray]:
        """Run the graph once on arrays.

        Parameters
        ----------
        feeds : mapping of str to numpy.ndarray
            An array for each input, a list of arrays for a sequence.
        options : onnxruntime.RunOptions, optional
            Options of an `Interrupt`, which ends the run at a deadline or at Ctrl-C with an error.

        Returns
        -------
        dict of str to numpy.ndarray
            An array, of rank 0 for a scalar, for each output.

        Raises
        ------
        DataError
            An input is missing, unknown, or of a type or shape that the graph does not take.
        ModelError
            The graph fails on these inputs.
        """
        match_names(self.inputs, feeds)
        if self._host is not None:
            first = self._host.run({n: feeds[n] for n in self._host.inputs}, options)
            feeds = {n: v for n, v in {**feeds, **first}.items() if n in self._later}
        try:
            inputs = {n: v if n in self._sequences else make_borrowable(v) for n, v in feeds.items()}
            arrays = self.handle.run(self.outputs, inputs, options or self._options)
        except Exception as e:
            raise run_error(e, self.refusals) from None
        # onnxruntime 1.19.2 returns an output that is an input as a view of its memory, and does not keep it alive.
        return {n: np.array(v) if n in inputs and not isinstance(v, list) else
                np.asarray(v) if isinstance(v, np.generic) else v for n, v in zip(self.outputs, arrays, strict=True)}

    def run_ortvalues(self, feeds: Mapping[str, OrtValue]) -> OrtValues:
        """Run the graph on OrtValues, which stay on its device. Safe from any thread.

        Names are not checked, and nothing is kept alive beyond the run: both are up to the caller.

        Parameters
        ----------
        feeds : mapping of str to OrtValue
            An OrtValue for each input.

        Returns
        -------
        onnxruntime.capi._pybind_state.OrtValueVector
            The outputs; its `to_dlpacks` is faster than a loop over them.

        Raises
        ------
        DataError
            An input is not of the shape or type that the graph takes.
        ModelError
            The graph fails.
        """
        if not self.device.is_cpu:  # run_with_ort_values would copy the outputs to the CPU.
            binding = self.binding()
            for name, value in feeds.items():
                binding.bind_ortvalue_input(name, value)
            binding.run()
            return binding.vector()
        try:
            return self.handle.run_with_ort_values(feeds, self.outputs, self._options)
        except Exception as e:
            raise run_error(e, self.refusals) from None

    def binding(self) -> Binding:
        """A new binding of inputs and outputs; a session may have several."""
        return Binding(self)

    def __repr__(self) -> str:
        return f"<Session {', '.join(self.inputs)} -> {', '.join(self.outputs)} on {self.device}>"


class Binding:
    """Inputs and outputs of a session bound to memory, so that runs in a loop neither allocate nor convert.

    A session whose execution provider asks for memory of its own copies arrays, and buffers of other devices, at each
    run.

    A binding keeps the bound buffers alive. An output without a buffer gets new memory at each run, so that a result
    that was passed on is never overwritten. Binding an output to the memory of an input that a later node reads is a
    race that nothing detects: double buffer, with two bindings in turn.

    Parameters
    ----------
    session : Session
        The graph.

    Examples
    --------
    >>> from ortpartial.graph import build
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

    __slots__ = ("__weakref__", "_binding", "_copied", "_device", "_host", "_inputs", "_missing", "_names", "_outputs",
                 "_run", "_unbound_outputs", "session")

    def __init__(self, session: Session):
        self.session = session
        self._run: OrtSession = session.handle.run_with_iobinding
        self._binding: OrtSession = C.SessionIOBinding(session.handle)
        self._device = session.device
        self._host = None if session._host is None else session._host.binding()
        # By name, the object that is bound, with its shape and dtype when it was bound.
        self._inputs: dict[str, Reduced] = {}
        # The inputs that are not in the memory of the provider: onnxruntime copies them when they are bound.
        self._copied: dict[str, OrtValue] = {}
        self._missing, self._names = set(session.inputs), frozenset(session.inputs)
        # Looking a name up in a list would take a time that grows with the square of their number.
        self._outputs: dict[str, Buffer | None] = dict.fromkeys(session.outputs)
        self._unbound_outputs: dict[str, None] = {}
        for name in session.outputs:
            self.bind_output(name)
        keep_at_fork(self)

    def replace_inherited(self) -> list[object]:
        """Replace the binding of onnxruntime, which a child process must not use, and return it."""
        binding, run = self._binding, self._run
        self._binding = self._run = Inherited()
        return [binding, run]

    def bind_input(self, name: str, value: np.ndarray | Buffer | OrtValue) -> None:
        """Bind an input to the memory of an array, a buffer or an OrtValue, which each run reads.

        Binding the same object again costs nothing. A strided array is copied, at this call alone.

        Raises
        ------
        DataError
            The graph has no such input, or onnxruntime no such dtype.
        """
        # A bound array is kept alive, so the same object of the same shape and dtype is the same memory. Comparing
        # pointers instead would cost more (1.0 us) than binding again (0.9 us).
        if self._host is not None and name in self._host.session.inputs:
            self._host.bind_input(name, value)
            if name not in self.session._later:
                self._missing.discard(name)
                return
        last = self._inputs.get(name)
        if last is not None and last[0] is value and last[1] == value.shape and last[2] == value.dtype:
            return
        if isinstance(value, Buffer):
            self._bind(name, ortvalue := self._borrow(value))
            if value.device.memory is None and self._device.memory is not None:
                self._copied[name] = ortvalue
            self._inputs[name] = value, value.shape, value.dtype
            return
        if isinstance(value, C.OrtValue):
            self.bind_ortvalue_input(name, value)
            return
        array = make_borrowable(value)
        self._bind(name, ortvalue := to_ortvalue(array, self._device))
        if self._device.memory is not None:
            self._copied[name] = ortvalue
        # A copy does not follow later writes to the array: it is kept in a tuple, which no value is, to bind it anew.
        is_shared = array is value and self._device.shares_memory
        self._inputs[name] = (array if is_shared else (array,)), array.shape, array.dtype

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to an OrtValue that owns its memory, such as an output of another session."""
        if self._host is not None and name in self._host.session.inputs:
            self._host.bind_ortvalue_input(name, ortvalue)
            if name not in self.session._later:
                self._missing.discard(name)
                return
        self._bind(name, ortvalue)
        self._inputs.pop(name, None)

    def _borrow(self, buffer: Buffer) -> OrtValue:
        """The OrtValue of a buffer, or another OrtValue of its memory for a graph that its provider does not run."""
        if buffer.array is None or self._device.memory is not None or buffer.device.memory is None:
            return buffer.ortvalue
        return to_ortvalue(buffer.array, self._device)

    def _bind(self, name: str, ortvalue: OrtValue) -> None:
        # An unknown name makes a binding of onnxruntime 1.19 to 1.31 refuse all other names as well.
        if name in self._missing:
            self._missing.remove(name)
        elif name not in self._names:
            match_names(self.session.inputs, [*self.session.inputs, name])
        self._binding.bind_ortvalue_input(name, ortvalue)
        if self._copied:
            self._copied.pop(name, None)

    def bind_output(self, name: str, buffer: Buffer | None = None) -> None:
        """Bind an output to a buffer that each run overwrites, or, without a buffer, to new memory at each run.

        Raises
        ------
        DataError
            The graph has no such output.
        """
        if buffer is not None and self._outputs.get(name) is buffer:
            return
        if name not in self._outputs:
            # onnxruntime 1.19 to 1.31 accepts an unknown name here and ignores it.
            match_names(self.session.outputs, [*self.session.outputs, name], "output")
        if buffer is None:
            self._binding.bind_output(name, self._device.ort)
            self._unbound_outputs[name] = None
        else:
            self._binding.bind_ortvalue_output(name, self._borrow(buffer))
            self._unbound_outputs.pop(name, None)
        self._outputs[name] = buffer

    def run(self, options: RunOptions | None = None) -> None:
        """Run the graph on the bound inputs.

        Parameters
        ----------
        options : onnxruntime.RunOptions, optional
            Options of an `Interrupt`, which ends the run at a deadline or at Ctrl-C with an error.

        Raises
        ------
        DataError
            An input is not bound, or a tensor is not of the shape or type that the graph takes.
        ModelError
            The graph fails.
        """
        if self._missing:
            match_names(self.session.inputs, [n for n in self.session.inputs if n not in self._missing])
        try:
            # Unless bound again, onnxruntime 1.19 to 1.31 writes to the memory of the last result, where it must fit.
            for name in self._unbound_outputs:
                self._binding.bind_output(name, self._device.ort)
            if self._host is not None:
                self._host.run(options)
                self._copied.update(self._host.ortvalues())
            if self._copied:
                for name, ortvalue in self._copied.items():
                    self._binding.bind_ortvalue_input(name, ortvalue)
            self._run(self._binding, options or self.session._options)
        except Exception as e:
            raise run_error(e, self.session.refusals) from None

    def vector(self) -> OrtValues:
        """The outputs of the last run as an OrtValueVector."""
        return self._binding.get_outputs()

    def ortvalues(self) -> dict[str, OrtValue]:
        """The outputs of the last run as OrtValues, by name."""
        # Iterating over an OrtValueVector takes 5 us an element, indexing 0.3 us.
        ortvalues = self.vector()
        return {name: ortvalues[i] for i, name in enumerate(self._outputs)}

    def numpy(self) -> dict[str, np.ndarray]:
        """Copies of the outputs of the last run as arrays, by name."""
        return {n: as_numpy(v) for n, v in self.ortvalues().items()}
