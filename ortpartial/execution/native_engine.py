"""The native engine: steps compiled by the system's C compiler, many in a call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto

from ortpartial.exceptions import DataError, DeadlineError, UntranslatableError
from ortpartial.graph import Value, constant, state_refusal, variable

from .call import Call
from .epoch_engine import EpochEngine
from .mean import WeightedMean
from .runner import ProgramKey, is_symbolic
from .shared_sessions import shared_sessions
from .step import Arrays, Shapes, Step, StepSource

if TYPE_CHECKING:
    from ortpartial.native import Field, NativeStep

__all__ = ["NativeEngine", "write_step"]

#: Most steps in a call, and the most multiplications that they take together: a tenth of a second, which is all that
#: Ctrl-C can take away. A call copies the state in and out, which with fewer took 5 % of a million weights' training.
_STEPS, _WORK = 2**15, 2**30
#: Bytes that memory is aligned to, a line of the cache.
_LINE = 64
#: The loss of a step that returns none.
_NO_LOSS = "//loss"


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
        Its state has the names of the inputs of the step.

    Raises
    ------
    UntranslatableError
        An operator cannot be written in C; the message names it.
    """
    from ortpartial.native import translate  # late: short trainings need none of it

    # Compiled code takes denormal numbers for 0, so that nothing needs to flush them in a branch.
    step = source.compose(weighting, branches=False)
    return translate(step.inputs, step.outputs, rows=list(step.rows), state=step.state, loss=step.names.loss,
                     iteration=step.names.iteration, name=name)


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
        self.state, self.memory = _allocate(step.state), _allocate(step.memory)
        given = [("iteration", np.dtype(np.int64), ()), *((f.c_name, f.dtype, f.shape) for f in step.given)]
        self.given = _allocate_as(np.dtype(given, align=True))
        # All that a call can find out before, as an epoch may take microseconds.
        self._fields = [(f.name, self.state[f.c_name][0][: f.size].reshape(f.shape)) for f in step.state]
        self._further = [(f.name, self.given[f.c_name].reshape(f.shape)) for f in step.given]
        self._iteration = self.given["iteration"]
        train = library[f"{step.name}_train"]
        train.restype, train.argtypes = ctypes.c_int32, [ctypes.c_void_p] * 5 + [ctypes.c_int64, ctypes.c_void_p]
        self._train = partial(train, self.state.ctypes.data, self.memory.ctypes.data)
        self._given_address = self.given.ctypes.data

    def _take_steps(self, pointers: ctypes.Array[ctypes.c_void_p] | None, order: np.ndarray) -> np.ndarray:
        """A step for each row of an order; the losses, or the refusal of a number."""
        losses = np.empty(len(order), self.step.loss_dtype)
        if code := self._train(pointers, self._given_address, order.ctypes.data, len(order), losses.ctypes.data):
            raise self._refuse(code)
        return losses

    def _refuse(self, code: int) -> DataError:
        """The refusal of a number, to raise."""
        return DataError(state_refusal(self.step.refusals[code - 1], int(self.memory["refused"].item())))

    def _check_time(self) -> None:
        """Raise where the training was ended."""
        options = self.engine.local.options
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
        self._check_time()
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


#: A step from a set of buffers to another: pairs of addresses, to and from, of which each tells how many bytes to copy.
_CALL = Template("""
int32_t ${name}_call(${name}_state *state, ${name}_memory *memory, ${name}_given *given, void *const *copies,
    const int64_t *bytes, int64_t before, int64_t all, void *loss) {
  const int64_t order[1] = {0};
  for (int64_t i = 0; i < before; ++i) memcpy(copies[2 * i], copies[2 * i + 1], (size_t)bytes[i]);
  const int32_t code = ${name}_train(state, memory, (const ${name}_rows *)copies, given, order, 1, loss);
  for (int64_t i = before; i < all && !code; ++i) memcpy(copies[2 * i], copies[2 * i + 1], (size_t)bytes[i]);
  return code;
}
""")


class _NativeCall(_NativeMemory):
    """A step in machine code on the arrays of a batch, which returns all that it computes."""

    def __init__(self, engine: NativeEngine, part: Step, turn: int):
        self.turn = turn
        results = {n: v for n, v in part.outputs.items() if n not in part.state.values()}
        if unsized := [n for n, v in results.items() if not v.is_static]:
            raise UntranslatableError(f"The shape of the result {unsized[0]!r} is not known before a step runs; leave "
                                      f"engine at 'auto'.")
        #: A result is a state that no step reads.
        self._results = {f"{n}//result": n for n in results}
        step, library = _compile(lambda: self._write(part, results))
        super().__init__(engine, step, library)
        self._shown = [(self._results[n], array) for n, array in self._fields if n in self._results]
        self._loss = np.zeros(1, step.loss_dtype)
        #: By set of buffers, the data that a call reads, the call, and the numbers of bytes that it copies.
        self._copies: dict[int, tuple[Any, ...]] = {}
        self._call = library[f"{step.name}_call"]
        self._call.restype = ctypes.c_int32
        self._call.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 2 + [ctypes.c_void_p]

    def _write(self, part: Step, results: Mapping[str, Value]) -> NativeStep:
        """The step, whose inputs and settings are copied into its memory."""
        from ortpartial.native import translate

        inputs = {**part.inputs, **{key: variable(key, results[n].dtype, results[n].shape)
                                    for key, n in self._results.items()}}
        losses = [n for n, v in results.items() if v.is_float and v.shape == ()]
        outputs = {_NO_LOSS: constant(np.float32(0)), **part.outputs}
        step = translate(inputs, outputs, rows=(), state={**part.state, **self._results},
                         loss=next(iter(losses), _NO_LOSS), iteration=part.names.iteration)
        return replace(step, source=step.source + _CALL.substitute(name=step.name))

    def _bind(self, side: int, data: Collection[str]) -> tuple[Any, ...]:
        """The data that a call from a set of buffers reads, and its arguments: buffers do not move."""
        before, after = self.engine.buffers[side], self.engine.buffers[side ^ self.turn]
        state = [(n, a) for n, a in self._fields if n not in self._results]
        copies = [*((a, self._find_given(side, n)) for n, a in self._further if n not in data),
                  *((a, before[n].numpy()) for n, a in state), *((after[n].numpy(), a) for n, a in state)]
        addresses = [(to.ctypes.data, source.ctypes.data) for to, source in copies]
        pointers = (ctypes.c_void_p * max(2, 2 * len(copies)))(*[place for pair in addresses for place in pair])
        sizes = np.array([to.nbytes for to, _ in copies], np.int64)
        read = [(n, a) for n, a in self._further if n in data]
        self._copies[side] = read, partial(
            self._call, self.state.ctypes.data, self.memory.ctypes.data, self._given_address, pointers,
            sizes.ctypes.data, len(copies) - len(state), len(copies), self._loss.ctypes.data), sizes
        return self._copies[side]

    def __call__(self, side: int, arrays: Arrays) -> dict[str, np.ndarray]:
        """Take a step from this set of buffers to the next; return copies of the results."""
        self._check_time()
        read, call, _ = self._copies.get(side) or self._bind(side, arrays.keys())
        self._iteration[0] = self.engine.iteration
        for name, array in read:
            array[...] = arrays[name]
        if code := call():
            raise self._refuse(code)
        return {name: array.copy() for name, array in self._shown}

    def _find_given(self, side: int, name: str) -> np.ndarray:
        """A setting, or state that this kind of step only reads."""
        buffer = self.engine.fixed_inputs.get(name) or self.engine.buffers[side][name]
        return buffer.numpy()


def _point_to(arrays: Sequence[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
    """A struct of pointers to arrays."""
    return (ctypes.c_void_p * max(len(arrays), 1))(*[a.ctypes.data for a in arrays])


def _allocate(fields: Sequence[Field]) -> np.ndarray:
    """Memory of a struct."""
    from ortpartial.native import lay_out

    return _allocate_as(lay_out(fields))


def _allocate_as(dtype: np.dtype) -> np.ndarray:
    """Memory of a single element, at the beginning of a line of the cache."""
    raw = np.zeros(dtype.itemsize + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    return raw[start : start + dtype.itemsize].view(dtype)
