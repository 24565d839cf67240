"""Export in C: a training step as a C file with its state, which trains on a microcontroller."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.arguments import checked
from ortpartial.checks import check_count
from ortpartial.exceptions import DataError, ModelError, SettingError
from ortpartial.graph import to_dtype
from ortpartial.model import Range, read, read_regular, write_files
from ortpartial.native import Field, NativeStep, lay_out, translate
from ortpartial.texts import parse_json
from ortpartial.training_info import TrainingSession, to_training_info

from .c_model import translate_model
from .c_texts import write_check, write_page, write_state
from .checks import check_mapping, to_array
from .step import compose, share_rows

__all__ = ["export_c", "read_c_state"]

_FORMAT, _VERSION = "ortpartial.c", 1

#: How many steps the test program takes at most, with about so many numbers.
_STEPS, _NUMBERS = 5, 20_000

#: Names that functions or files cannot begin with alone.
_TAKEN = frozenset({
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "main", "register", "restrict", "return", "short", "signed", "sizeof",
    "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while"})


@checked
def export_c(
    training: object,
    folder: str | os.PathLike[str],
    batch_size: int | None = None,
    name: str = "training",
    *,
    weighted: bool | str = False,
    data: Mapping[str, object] | None = None,
) -> dict[str, Path]:
    """Write a training in C: a step with gradient and optimizer, for a program or a device without onnxruntime.

    The step is a C99 file without memory allocation. Beside it are the state that the training goes on from, as
    constant arrays; the model, as a function that predicts and as an ONNX file, which a second function saves with the
    weights of a state; a program that takes a few steps and compares losses and predictions with the numbers computed
    here, with a Makefile: ``make check``; and a page on how to call it, with all sizes in bytes.

    The function of a step returns 0, or the code of an index or a label that is out of range, and then leaves the state
    as it was; ``<name>_refusal`` is the code in words.

    Parameters
    ----------
    training : optimizer, onnx.ModelProto, bytes or path
        The training: an optimizer, or a model with training information, such as the `graph` of a module of
        `ortpartial.nn`, or a file of a `TrainingSession`.
    folder : path
        The folder. It is complete or not there, even if the process is interrupted; in an existing folder, all files
        are written before the first replaces a former file.
    batch_size : int, optional
        The number of rows of a batch; by default that of the model or of the optimizer, else 32.
    name : str
        The prefix of the names of files, functions and types: an identifier of C.
    weighted : bool or "elements"
        Of an optimizer, whether the rows have weights, as for `to_training_info`.
    data : dict of str to array_like, optional
        Rows to compare losses on, by the names of inputs, at least two batches; by default numbers between -1 and 1.

    Returns
    -------
    dict of str to pathlib.Path
        The files by name.

    Raises
    ------
    UntranslatableError
        The step has an operator that cannot be written in C; the message names it.
    SettingError
        The name is none in C, or a size of the model is not known.
    ModelError
        The model has no training information or several entries of it, its step returns no loss, or its inputs have no
        rows in common.
    DataError
        The data do not fit, or their loss is not finite.
    OSError
        A file cannot be written.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 2]), constant(np.zeros((2, 1), np.float32), hint="w")
    >>> optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), learning_rate=0.25)
    >>> sorted(export_c(optimizer, "in_c", batch_size=4))[:4]
    ['Makefile', 'README.md', 'main.c', 'training.c']
    """
    _check_name(name)
    proto = _read_training(training, weighted)
    session = TrainingSession(proto)
    step, loss = _translate(session, _choose_size(training, session, batch_size), name)
    batches, losses, trained = _train(proto, step, loss, data)
    model = translate_model(session, step)
    layout = {"format": _FORMAT, "version": _VERSION, "batch_size": step.batch, "state": [
        {"name": f.name, "dtype": f.dtype.name, "shape": list(f.shape)} for f in step.state]}
    texts = {f"{name}.c": step.source, f"{name}.h": step.header, **write_state(step, session.state),
             **write_check(step, batches, losses, model, model.predict(trained, batches[0])),
             "README.md": write_page(step, model), f"{name}.json": json.dumps(layout, indent=1) + "\n"}
    return write_files({**{file: text.encode() for file, text in texts.items()}, **model.write()}, folder)


@checked
def read_c_state(folder: str | os.PathLike[str], data: bytes, name: str = "training") -> dict[str, np.ndarray]:
    """Read the state of a training in C: the bytes of its struct, as a little-endian processor has them in memory.

    Parameters
    ----------
    folder : path
        The folder of `export_c`.
    data : bytes
        The struct.
    name : str
        As for `export_c`.

    Returns
    -------
    dict of str to numpy.ndarray
        Weights, optimizer states and counters by name, as `TrainingSession.set_state` takes them.

    Raises
    ------
    ModelError
        The bytes are not as many as the struct has, or the folder holds no such training.
    OSError
        The folder cannot be read.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 2]), constant(np.zeros((2, 1), np.float32), hint="w")
    >>> optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), learning_rate=0.25)
    >>> _ = export_c(optimizer, "to_read")
    >>> read_c_state("to_read", np.arange(2, dtype=np.float32).tobytes() + bytes(8))["w"].tolist()
    [[0.0], [1.0]]
    """
    file = Path(folder) / f"{name}.json"
    content = read_regular(file, "give the folder that export_c has written")
    try:
        layout = parse_json(content)
        if (layout["format"], layout["version"]) != (_FORMAT, _VERSION):
            raise ValueError
        fields = [Field(f["name"], f["name"], np.dtype(f["dtype"]), tuple(f["shape"])) for f in layout["state"]]
        struct = lay_out(fields)
        if not all(f.name for f in fields):  # numpy names a field without a name by its place.
            raise ValueError
    except (KeyError, SyntaxError, TypeError, ValueError):
        raise ModelError(f"{file} does not describe a training in C; export it again.") from None
    if len(data) != struct.itemsize:
        raise ModelError(f"{name}_state has {struct.itemsize} bytes, not {len(data)}; write the whole struct, of the "
                         f"training that is in {os.fspath(folder)}.")
    values = np.frombuffer(data, struct.newbyteorder("<"))[0]
    return {f.name: values[f.name][: f.size].reshape(f.shape).astype(f.dtype) for f in fields}


def _check_name(name: str) -> None:
    """Refuse a name that is not valid in C, or that another file has."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or name.lower() in _TAKEN:
        raise SettingError(f"name is {name!r}; expected a name for files and functions in C: letters, digits and _, "
                           f"no keyword and not 'main'.")


def _read_training(training: Any, weighted: bool | str) -> ModelProto:
    """The model of a training, with a single entry of training information."""
    if hasattr(training, "get_training_onnx"):
        for setting in ("precision", "checkpointing"):
            if value := getattr(training, setting, None):
                raise SettingError(f"{setting}={value!r} is not written in C; set it to None first.")
        # Not "lowered": a gradient that is written for any batch has sizes that are found when it runs.
        return to_training_info(training, init="model", weighted=weighted)
    if weighted:
        raise SettingError(f"weighted is {weighted!r}, and the model says itself which inputs it has; leave it out.")
    proto = read(training)
    if len(proto.training_info) != 1:
        raise ModelError(f"An export holds one training step, and the model has {len(proto.training_info)} entries of "
                         f"training_info; give an optimizer, or what its get_training_onnx() returns.")
    return proto


def _choose_size(training: object, session: TrainingSession, batch_size: int | None) -> int:
    """The number of rows of a batch."""
    declared = session.batch_size
    if batch_size is None:
        return declared or check_count("batch_size", getattr(training, "batch_size", 32))
    if declared is not None and batch_size != declared:
        raise SettingError(f"batch_size is {batch_size!r}, and the model takes batches of {declared} rows alone.")
    return check_count("batch_size", batch_size)


def _translate(session: TrainingSession, rows: int, name: str) -> tuple[NativeStep, str]:
    """The step for so many rows, in C, and which of its outputs is the loss."""
    shapes = share_rows(session.shapes)
    for n, shape in shapes.items():
        if unknown := [size for size in shape[1:] if isinstance(size, str)]:
            raise SettingError(f"A step in C has sizes that are known, and {unknown[0]!r} of the input {n!r} is not; "
                               f"export the model with a number in its place.")
    step = compose(session, shapes, rows)
    loss = next(iter(step.outputs))
    inputs = {**step.inputs, **{n: before for n, (_, before, _) in step.state.items()}}
    outputs = {loss: step.outputs[loss], **{new: after for new, _, after in step.state.values()}}
    state = {n: new for n, (new, *_) in step.state.items()}
    return translate(inputs, outputs, rows=list(step.inputs), state=state, loss=loss, name=name,
                     ranges={n: r for n, r in session.ranges.items() if n in inputs}), loss


def _train(
    proto: ModelProto, step: NativeStep, loss: str, data: Mapping[str, object] | None
) -> tuple[list[dict[str, np.ndarray]], list[float], TrainingSession]:
    """The batches of the test program, the loss of each before its step, and the training after them."""
    count = max(2, min(_STEPS, _NUMBERS // (step.batch * sum(f.size for f in step.rows) or 1)))
    ranges = TrainingSession(proto).ranges
    drawn = (_draw(step, count, low, ranges) for low in (-1.0, 0.0))  # Some models take the logarithm of their inputs.
    for rows in drawn if data is None else [check_mapping(data)]:
        batches = list(_cut(step, rows, count))
        session = TrainingSession(proto)
        losses = [session.step(batch)[loss].item() for batch in batches]
        if np.isfinite(losses).all():
            return batches, losses, session
    raise DataError("The loss of the rows that the test program trains on is not finite; give data of yours.")


def _draw(step: NativeStep, count: int, low: float, ranges: Mapping[str, Range]) -> dict[str, np.ndarray]:
    """So many batches of numbers up to 1, or of labels within their range."""
    rng, rows = np.random.default_rng(0), {}
    for f in step.rows:
        shape = (count * step.batch, *f.shape)
        if f.dtype.kind == "f":
            rows[f.name] = rng.uniform(low, 1, shape).astype(f.dtype)
        else:
            first, last = (ranges[f.name].low, ranges[f.name].high) if f.name in ranges else (0, 1)
            rows[f.name] = rng.integers(first, last, shape, endpoint=True).astype(f.dtype)
    return rows


def _cut(step: NativeStep, data: Mapping[str, object], count: int) -> Iterator[dict[str, np.ndarray]]:
    """Batches of these rows, so many at most."""
    arrays = {}
    for f in step.rows:
        if f.name not in data:
            raise DataError(f"The data lack the input {f.name!r}.")
        arrays[f.name] = to_dtype(to_array(f.name, data[f.name]), f.dtype, f"Input {f.name!r}")
        if arrays[f.name].shape[1:] != f.shape:
            raise DataError(f"Input {f.name!r} has the shape {list(arrays[f.name].shape)}, where "
                            f"{['N', *f.shape]} is expected.")
    rows = min(map(len, arrays.values()))
    if rows < 2 * step.batch:
        raise DataError(f"The data have {rows} rows, fewer than two batches of {step.batch}.")
    for i in range(min(count, rows // step.batch)):
        yield {n: a[i * step.batch : (i + 1) * step.batch] for n, a in arrays.items()}
