"""Expressions computed in C: many in one step, whose new states they are."""

import shutil
import subprocess
from collections.abc import Mapping
from ctypes import CDLL, c_void_p
from pathlib import Path

import numpy as np

from ortpartial.exceptions import DataError
from ortpartial.graph import Value, build, constant, state_refusal, variable
from ortpartial.native import NativeStep, compile_library, lay_out, translate
from ortpartial.native.compiler import FLAGS, require_compiler
from ortpartial.runtime import Session

__all__ = ["CHECKED", "QUICK", "compute_by_runtime", "compute_in_c", "find_sanitizers", "run_cases", "write_cases"]

#: Flags that compile many cases quickly, and let no warning pass.
QUICK = (*(f for f in FLAGS if f != "-O3"), "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
#: Flags that end the process where memory is used wrongly, or a result is undefined.
CHECKED = (*(f for f in FLAGS if f != "-O3"), "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

Numbers = Mapping[Value, np.ndarray]


def find_sanitizers() -> str:
    """The libraries that a process loads before all others to run code that is compiled with `CHECKED`; "" for none."""
    if shutil.which("cc") is None:
        return ""
    # onnxruntime throws exceptions of C++, which the sanitizers see if the library of C++ comes before them.
    libraries = [subprocess.run([*require_compiler().command, f"-print-file-name={name}"], capture_output=True,
                                text=True, check=False).stdout.strip() for name in ("libasan.so", "libstdc++.so.6")]
    return " ".join(libraries) if all(Path(library).is_absolute() for library in libraries) else ""


def write_cases(values: Mapping[str, Value], numbers: Numbers) -> NativeStep:
    """A step whose states are the variables, which it keeps, and the values."""
    inputs = {f"x{i}": v for i, v in enumerate(numbers)}
    former = {f"former_{i}": variable(n, v.dtype, v.shape) for i, (n, v) in enumerate(values.items())}
    state = {n: n for n in inputs} | dict(zip(former, values, strict=True))
    outputs = {**inputs, **values, "loss": constant(0.0, np.float32)}
    return translate({**inputs, **former}, outputs, rows=[], state=state, loss="loss")


def run_cases(step: NativeStep, library: CDLL, names: list[str], arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The values by name, from the numbers of the variables; a DataError where the step refuses them."""
    state, memory, given, rows = (np.zeros(1, dtype) for dtype in (
        lay_out(step.state), lay_out(step.memory), np.dtype(np.int64), np.dtype(np.int64)))
    memory.view(np.uint8)[...] = 0x5A  # Nonsense, which no value may depend on.
    inputs, outputs = step.state[: len(arrays)], step.state[len(arrays) :]
    for f, a in zip(inputs, arrays, strict=True):
        state[f.c_name][0][: f.size] = a.ravel()
    loss, before = np.zeros(1), state.tobytes()
    if code := library.step_step(*(c_void_p(a.ctypes.data) for a in (state, memory, rows, given, loss))):
        assert state.tobytes() == before
        raise DataError(state_refusal(step.refusals[code - 1], int(memory["refused"].item())))
    return {n: state[f.c_name][0][: f.size].reshape(f.shape) for n, f in zip(names, outputs, strict=True)}


def compute_in_c(values: Mapping[str, Value], numbers: Numbers, flags: tuple[str, ...] = QUICK
                 ) -> dict[str, np.ndarray]:
    """The values by name, in C."""
    step = write_cases(values, numbers)
    library = compile_library(step.source, {"step.h": step.header}, flags=flags)
    return run_cases(step, library, list(values), list(numbers.values()))


def compute_by_runtime(values: Mapping[str, Value], numbers: Numbers) -> dict[str, np.ndarray]:
    """The values by name, by onnxruntime."""
    inputs = {f"x{i}": v for i, v in enumerate(numbers)}
    outputs = {f"y{i}": v for i, v in enumerate(values.values())}
    session = Session(build(inputs, outputs))
    feeds = {n: a for n, a in zip(inputs, numbers.values(), strict=True) if n in session.inputs}
    results = session.run(feeds)
    return {n: np.asarray(results[y]) for n, y in zip(values, outputs, strict=True)}
