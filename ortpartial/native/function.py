"""A function of arrays as machine code, called with the addresses of its arguments and results."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import partial
from string import Template
from typing import Any

import numpy as np

from ortpartial.exceptions import DataError, UntranslatableError
from ortpartial.graph import Value, constant, state_refusal, variable

from .c_file import lay_out
from .compiler import compile_library
from .step import translate

__all__ = ["NativeFunction", "allocate_struct"]

#: A call copies its arguments into the memory of a step, and the results out of it.
_CALL = Template("""
int32_t ${name}_call(${name}_state *state, ${name}_memory *memory, ${name}_given *given, $loss *loss$parameters) {
  const int64_t order[1] = {0};
$before
  const int32_t code = ${name}_train(state, memory, (const ${name}_rows *)order, given, order, 1, loss);
  if (code) return code;
$after
  return 0;
}
""")

_NAME, _LOSS = "function", "//loss"
#: Bytes that memory is aligned to, a line of the cache.
_LINE = 64


class NativeFunction:
    """A function of arrays in machine code.

    Parameters
    ----------
    inputs, outputs : dict of str to Value
        Its arguments and results, of static sizes.
    keeps_lock : bool
        Whether a call keeps Python's lock, so that any thread may call it: its memory serves one call at a time.
    threads : int
        Number of threads of a large product.

    Attributes
    ----------
    run : callable
        Called with the address of each argument and then of each result, contiguous arrays in the order of `inputs` and
        `outputs`. It returns 0, or the code of a refusal for `explain`.

    Raises
    ------
    UntranslatableError
        An operator or a size cannot be written in C; the message names it.
    CompilerError, CompilerMissingError
        There is no compiler, or it fails.

    Examples
    --------
    >>> x = variable("x", "float32", [3])
    >>> double = NativeFunction({"x": x}, {"y": 2 * x})
    >>> xs, ys = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    >>> double.run(xs.ctypes.data, ys.ctypes.data), ys
    (0, array([0., 2., 4.], dtype=float32))
    """

    def __init__(self, inputs: Mapping[str, Value], outputs: Mapping[str, Value], *, keeps_lock: bool = True,
                 threads: int = 1):
        if unsized := [n for n, v in outputs.items() if not v.is_static]:
            raise UntranslatableError(f"The shape of the result {unsized[0]!r} is not known before a step runs.")
        # A result is a state that nothing reads.
        results = {f"{n}//result": n for n in outputs}
        places = {key: variable(key, outputs[n].dtype, outputs[n].shape) for key, n in results.items()}
        # An argument is a state that stays as it is.
        kept = {n: f"{n}//argument" for n in inputs}
        after = {_LOSS: constant(np.float32(0)), **outputs, **{kept[n]: v for n, v in inputs.items()}}
        step = translate({**inputs, **places}, after, rows=(), state={**kept, **results}, loss=_LOSS, name=_NAME,
                         is_linked=True)
        self._refusals, layout = step.refusals, lay_out(step.state)
        given = np.dtype([("iteration", np.int64), *((name, np.intp) for name in step.links.fields)], align=True)
        self._step = step  # whose constants have to stay
        self._arrays = state, memory, numbers = (
            allocate_struct(layout), allocate_struct(lay_out(step.memory)), allocate_struct(given))
        for name, number in zip(step.links.fields, step.links.find(threads), strict=True):
            numbers[name] = number
        self._loss = np.zeros((), step.loss_dtype)
        places_of: Any = layout.fields
        copies: dict[bool, list[str]] = {True: [], False: []}
        for f in step.state:
            if f.size:
                is_result, names = f.name in results, [*inputs, *results]
                sides = [f"(char *)state + {places_of[f.c_name][1]}", f"a{names.index(f.name)}"]
                to, source = reversed(sides) if is_result else sides
                copies[is_result].append(f"  memcpy({to}, {source}, {f.size * f.dtype.itemsize});")
        text = _CALL.substitute(
            name=_NAME, loss="float", before="\n".join(copies[False]), after="\n".join(copies[True]),
            parameters="".join(f", void *a{i}" for i in range(len(inputs) + len(outputs))))
        library = compile_library(step.source + text, {f"{_NAME}.h": step.header})
        address = ctypes.cast(library[f"{_NAME}_call"], ctypes.c_void_p).value
        assert address is not None
        kinds = [ctypes.c_void_p] * (4 + len(inputs) + len(outputs))
        prototype = ctypes.PYFUNCTYPE if keeps_lock else ctypes.CFUNCTYPE
        call: Any = prototype(ctypes.c_int32, *kinds)(address)
        call.library = library
        self.run = partial(call, *(a.ctypes.data for a in (state, memory, numbers, self._loss)))

    def explain(self, code: int) -> DataError:
        """The error of a refusal.

        Parameters
        ----------
        code : int
            The code that `run` has returned.

        Returns
        -------
        DataError
        """
        return DataError(state_refusal(self._refusals[code - 1], int(self._arrays[1]["refused"].item())))


def allocate_struct(layout: np.dtype) -> np.ndarray:
    """Memory of a struct, at the beginning of a line of the cache.

    Parameters
    ----------
    layout : numpy.dtype
        Its layout, as of `lay_out`.

    Returns
    -------
    numpy.ndarray
        An array of one element.
    """
    raw = np.zeros(layout.itemsize + _LINE, np.uint8)
    start = -raw.ctypes.data % _LINE
    return raw[start : start + layout.itemsize].view(layout)
