"""How is a graph run? A `Session` for each graph, and a `Binding` for a loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto

from ortpartial.exceptions import DeviceError
from ortpartial.model import match_names, split_external_data
from ortpartial.rewrites import downgrade_opset, lower

from .buffer import Buffer, as_numpy, make_borrowable, to_ortvalue
from .device import CPU, C, Device, has_training, runtime_version
from .errors import load_error, newest_opset, run_error
from .session_options import session_options

__all__ = ["Binding", "Session", "has_training", "runtime_version"]


class _Young(Exception):
    """A graph is younger than the runtime, which knows opsets up to `newest`."""

    def __init__(self, newest: int):
        super().__init__(newest)
        self.newest = newest


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
        Instead of `choose_threads` and `planned`, all the options.
    planned : bool
        Whether values on the way have places of their own. Without, each takes that of one that was just freed, which
        is near, but has to be looked for: slower where nodes are small.

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
    >>> from ortpartial.graph import build
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
        planned: bool = True,
    ):
        self.device, self.threads, self._planned = Device.parse(device), threads, planned
        try:
            self._python = self._load(model, options)
        except _Young as e:
            try:
                self._python = self._load(downgrade_opset(model, e.newest), options)  # type: ignore[arg-type]
            except _Young as e:  # The IR version, which the runtime looks at first, goes with several opsets.
                self._python = self._load(downgrade_opset(model, e.newest), options)  # type: ignore[arg-type]
        used = self._python.get_providers()
        if self.device.providers[0][0] not in used:
            raise DeviceError(f"onnxruntime {runtime_version()} cannot use the device '{self.device}'; it loaded the "
                              f"graph on {', '.join(used)}. Is the driver of the device installed?")
        # The Python object around it checks names again at each run: the loop of a training talks to the one below.
        self._sess = self._python._sess
        self.inputs: list[str] = [i.name for i in self._sess.inputs_meta]
        self.outputs: list[str] = [o.name for o in self._sess.outputs_meta]

    def _load(self, model: ModelProto | bytes, options: Any) -> Any:
        """onnxruntime's own session."""
        if options is None:
            graph = model.graph if isinstance(model, ModelProto) else None
            options = session_options(self.threads, graph, planned=self._planned)
        if isinstance(model, ModelProto):
            # onnxruntime borrows the memory of what is too big for one message.
            light, self._apart = split_external_data(lower(model))
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
            if isinstance(model, ModelProto) and (newest := newest_opset(e)):
                raise _Young(newest) from None
            raise load_error(e, data) from None

    def _open(self, data: bytes, options: Any, disabled: list[str]) -> Any:
        return onnxruntime.InferenceSession(
            data, options, providers=self.device.providers, enable_fallback=0,
            disabled_optimizers=disabled,
        )

    def run(self, feeds: Mapping[str, np.ndarray], options: Any = None) -> dict[str, np.ndarray]:
        """The outputs of the graph for some inputs.

        Parameters
        ----------
        feeds : mapping of str to numpy.ndarray
            An array for each input.
        options : onnxruntime.RunOptions, optional
            Those of a `Interrupt`, which ends the run at a deadline or at Ctrl-C with an error.

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
        match_names(self.inputs, feeds)
        try:
            found = self._sess.run(self.outputs, {n: make_borrowable(v) for n, v in feeds.items()}, options)
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
        array = make_borrowable(value)
        self._bind(name, to_ortvalue(array, self._device))
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
            match_names(self.session.inputs, [*self.session.inputs, name])
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
            match_names(self.session.outputs, [*self.session.outputs, name], "output")
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
            Those of a `Interrupt`, which ends the run at a deadline or at Ctrl-C with an error.

        Raises
        ------
        DataError
            What is bound is not of the shape or type that the graph takes, or some input is not bound.
        ModelError
            The graph fails.
        """
        if self._missing:
            match_names(self.session.inputs, [n for n in self.session.inputs if n not in self._missing])
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
