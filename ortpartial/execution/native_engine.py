"""The native engine: steps compiled by the system's C compiler, many in a call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from onnx import ModelProto

from ortpartial.exceptions import DataError, DeadlineError, UntranslatableError
from ortpartial.graph import Value, state_refusal
from ortpartial.limits import limits, use_limits
from ortpartial.runtime import cores

from .call import Call
from .epoch_engine import EpochEngine
from .mean import WeightedMean
from .runner import ProgramKey, is_symbolic
from .shared_sessions import shared_sessions
from .step import Arrays, Shapes, Step, StepSource

if TYPE_CHECKING:
    from ortpartial.native import NativeStep

__all__ = ["NativeEngine", "write_step"]

#: Most steps in a call, and the most multiplications that they take together: a tenth of a second, which is all that
#: Ctrl-C can take away. A call copies the state in and out, which with fewer took 5 % of a million weights' training.
_STEPS, _WORK = 2**15, 2**30


def write_step(source: StepSource, weighting: bool | str = False, name: str = "step") -> NativeStep:
    """A training step as a C file.

    Parameters
    ----------
    source : StepSource
        Composes the step, with the sizes of a batch.
    weighting : bool or "elements"
        Whether the rows have weights, or the elements of the targets.
    name : str
        The prefix of functions and types.

    Returns
    -------
    NativeStep
        Its state has the names of the inputs of the step. Constants and kernels of large products are read by address.

    Raises
    ------
    UntranslatableError
        An operator cannot be written in C; the message names it.
    """
    from ortpartial.native import translate  # late: short trainings need none of it

    # Compiled code takes denormal numbers for 0, so that nothing needs to flush them in a branch.
    # Its kernels convolve images of any size, so that none are taken apart into columns for a product, and no margin
    # is computed that nothing reads.
    with use_limits(replace(limits(), few_windows=0, unseen_margin=1), everywhere=False):
        step = source.compose(weighting, branches=False)
    return translate(step.inputs, step.outputs, rows=list(step.rows), state=step.state, loss=step.names.loss,
                     iteration=step.names.iteration, name=name, is_linked=True)


class NativeEngine(EpochEngine):
    """Machine code for batches of the size that most have, many steps in a call.

    The last batch of an epoch, where it is smaller, and batches of many shapes are steps of onnxruntime. Sums are added
    up in an order of their own: numbers agree with the other engines within rounding.

    Parameters
    ----------
    source : StepSource
        Composes the steps.
    """

    name = "native"
    runs = (("step", ("model", "loss", "gradient", "update")),)
    #: Whether single steps, which return all that they compute, are machine code as well.
    compiles_calls = False
    #: Whether single steps that cannot be machine code are graphs, as nobody has asked for this engine.
    may_run_graphs = False

    def __init__(self, source: StepSource):
        super().__init__(source)
        self._size = 0  # of the batches that are compiled for

    def graphs(self) -> dict[str, ModelProto]:
        """The step that is compiled, with symbolic sizes where the model has them."""
        return {"step": self.source.compose(self.weighting).build()}

    def epoch(self, order: np.ndarray, batch_size: int, start: int = 0, stop: int | None = None) -> float:
        """Train once on the rows in this order; see `StepRunner.epoch`."""
        self._size = min(batch_size, order.size)
        return super().epoch(order, batch_size, start, stop)

    def _train(self, batches: np.ndarray, shapes: Shapes, mean: WeightedMean, steps: int) -> None:
        """Take a step for each row of `batches`, many in a call."""
        rows = batches.shape[1]
        if rows != self._size or is_symbolic(shapes) or not self._is_whole:
            super()._train(batches, shapes, mean, steps)
            return
        program = self._program("native", shapes, rows)
        chunk = min(_STEPS, _WORK // (rows * self._trained + 1))
        self._run(program, batches, max(1, chunk if program.is_direct else min(chunk, self._count_near(rows))), mean,
                  steps)

    def _open(self, key: ProgramKey) -> object:
        """The compiled steps, or the steps of another engine."""
        if key.kind != "native":
            return super()._open(key)

        def compile_step() -> tuple[NativeStep, ctypes.CDLL]:
            return _compile(lambda: write_step(self._source_for(key.shapes), self.weighting))

        return _NativeProgram(self, *shared_sessions.get(self.identity, (key, self.weighting), compile_step))

    def _open_call(self, source: StepSource, shapes: Shapes) -> Call:
        """A compiled step that returns all that it computes, or a graph for batches of any shape."""
        if not self.compiles_calls or is_symbolic(shapes):
            return super()._open_call(source, shapes)
        parts = source.compose_parts()
        try:
            if len(parts) != 1:
                raise UntranslatableError(f"engine='native' takes a step of one part, and this one has {len(parts)}; "
                                          f"leave it at 'auto'.")
            return _NativeCall(self, parts[0], self._find_turn(parts))
        except UntranslatableError:
            if self.may_run_graphs:
                return super()._open_call(source, shapes)
            raise


def _compile(write: Callable[[], NativeStep]) -> tuple[NativeStep, ctypes.CDLL]:
    """A step as C, and the library of it."""
    from ortpartial.native import compile_library

    try:
        step = write()
    except UntranslatableError as e:
        raise UntranslatableError(f"{e} Train it with engine='auto', 'epoch' or 'step'.") from None
    return step, compile_library(step.source, {f"{step.name}.h": step.header})


class _NativeMemory:
    """The memory of a compiled step: weights, states and settings, and where its function is."""

    def __init__(self, engine: NativeEngine, step: NativeStep, library: ctypes.CDLL):
        self.engine, self.step = engine, step
        from ortpartial.native import allocate_struct, lay_out

        self.state, self.memory = allocate_struct(lay_out(step.state)), allocate_struct(lay_out(step.memory))
        given = [("iteration", np.dtype(np.int64), ()), *((f.c_name, f.dtype, f.shape) for f in step.given),
                 *((name, np.dtype(np.intp), ()) for name in step.links.fields)]
        self.given = allocate_struct(np.dtype(given, align=True))
        # All that a call can find out before, as an epoch may take microseconds.
        self._fields = [(f.name, self.state[f.c_name][0][: f.size].reshape(f.shape)) for f in step.state]
        self._further = [(f.name, self.given[f.c_name].reshape(f.shape)) for f in step.given]
        for name, address in zip(step.links.fields, step.links.find(engine.source.threads() or cores()), strict=True):
            self.given[name] = address
        self._iteration = self.given["iteration"]
        train = library[f"{step.name}_train"]
        train.restype, train.argtypes = ctypes.c_int32, [ctypes.c_void_p] * 5 + [ctypes.c_int64, ctypes.c_void_p]
        self._train = partial(train, self.state.ctypes.data, self.memory.ctypes.data)
        self._given_address = self.given.ctypes.data

    def _take_steps(self, pointers: ctypes.Array[ctypes.c_void_p] | None, order: np.ndarray) -> np.ndarray:
        """A step for each row of an order; the losses, or the refusal of a number."""
        losses = np.empty(len(order), self.step.loss_dtype)
        if code := self._train(pointers, self._given_address, order.ctypes.data, len(order), losses.ctypes.data):
            raise DataError(state_refusal(self.step.refusals[code - 1], int(self.memory["refused"].item())))
        return losses


def check_time(engine: NativeEngine) -> None:
    """Raise where the training was ended."""
    options = engine.local.options
    if options is not None and options.terminate:  # as onnxruntime ends a run by them
        raise DeadlineError("The training was ended between two batches.")


class _NativeProgram(_NativeMemory):
    """The steps of an epoch in machine code, with memory of their own for weights and states."""

    source: tuple[int, int] | None = None

    def __init__(self, engine: NativeEngine, step: NativeStep, library: ctypes.CDLL):
        super().__init__(engine, step, library)
        self.is_direct = True
        self._rows: list[np.ndarray] = []
        self._pointers: ctypes.Array[ctypes.c_void_p] | None = None

    def read_from(self, data: Mapping[str, np.ndarray], rows: int) -> None:
        """Take the rows from these arrays from now on; each run chooses the batch among them."""
        self._rows = [data[f.name] for f in self.step.rows]
        self.is_direct = all(a.flags.c_contiguous and a.dtype == f.dtype and a.dtype.isnative
                             for a, f in zip(self._rows, self.step.rows, strict=True))
        self._pointers = _point_to(self._rows) if self.is_direct else None

    def __call__(self, side: int, batches: np.ndarray) -> np.ndarray:
        engine, order, pointers = self.engine, np.ascontiguousarray(batches, np.int64), self._pointers
        check_time(engine)
        if not self.is_direct:
            rows = [np.ascontiguousarray(a[order.ravel()], f.dtype)
                    for a, f in zip(self._rows, self.step.rows, strict=True)]
            order, pointers = np.arange(order.size).reshape(order.shape), _point_to(rows)
        before, after = engine.buffers[side], engine.buffers[side ^ 1]
        for name, array in self._fields:
            array[...] = before[name].array
        self._iteration[0] = engine.iteration
        for name, array in self._further:
            array[...] = engine.fixed_inputs[name].array
        losses = self._take_steps(pointers, order)
        for name, array in self._fields:
            after[name].numpy()[...] = array
        return losses


class _NativeCall:
    """A step in machine code on the arrays of a batch, which returns all that it computes."""

    def __init__(self, engine: NativeEngine, part: Step, turn: int):
        from ortpartial.native import NativeFunction

        self.engine, self.part, self.turn = engine, part, turn
        try:
            self._function = NativeFunction(part.inputs, part.outputs, keeps_lock=False,
                                            threads=engine.source.threads() or cores())
        except UntranslatableError as e:
            raise UntranslatableError(f"{e} Leave engine at 'auto'.") from None
        results = [n for n in part.outputs if n not in part.state.values()]
        self._results = {n: np.zeros(known_sizes(part.outputs[n]), part.outputs[n].dtype) for n in results}
        #: By set of buffers, the data that a call reads, and the call.
        self._calls: dict[int, tuple[dict[str, np.ndarray], Callable[[], int]]] = {}

    def _bind(self, side: int, data: Collection[str]) -> tuple[dict[str, np.ndarray], Callable[[], int]]:
        """The arrays that a call from a set of buffers reads data from, and the call: no array moves."""
        engine, part = self.engine, self.part
        before, after = engine.buffers[side], engine.buffers[side ^ self.turn]
        read = {n: np.zeros(known_sizes(v), v.dtype) for n, v in part.inputs.items() if n in data}
        arrays = {n: read[n] if n in read else (engine.fixed_inputs.get(n) or before[n]).numpy() for n in part.inputs}
        written = {new: after[n].numpy() for n, new in part.state.items()} | self._results
        addresses = [a.ctypes.data for a in (*arrays.values(), *(written[n] for n in part.outputs))]
        self._calls[side] = read, partial(self._function.run, *addresses)
        return self._calls[side]

    def __call__(self, side: int, arrays: Arrays) -> dict[str, np.ndarray]:
        """Take a step from this set of buffers to the next; return copies of the results."""
        check_time(self.engine)
        read, call = self._calls.get(side) or self._bind(side, arrays.keys())
        for name, array in read.items():
            array[...] = arrays[name]
        if code := call():
            raise self._function.explain(code)
        return {n: a.copy() for n, a in self._results.items()}


def known_sizes(v: Value) -> tuple[int, ...]:
    """The shape of a value, of which a step in C knows all sizes."""
    return tuple([d for d in v.shape or () if isinstance(d, int)])


def _point_to(arrays: Sequence[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
    """A struct of pointers to arrays."""
    return (ctypes.c_void_p * max(len(arrays), 1))(*[a.ctypes.data for a in arrays])
