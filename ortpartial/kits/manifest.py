"""The manifest of a training kit: the inputs and results of its graphs, in the order of their bindings, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
from onnx import helper

from ortpartial.exceptions import DataError, ModelError
from ortpartial.model import read_regular
from ortpartial.texts import parse_json

__all__ = ["FORMAT", "VERSION", "Manifest", "Tensor", "read_manifest"]

FORMAT, VERSION = "ortpartial.kit", 1


@dataclass(frozen=True)
class Tensor:
    """A tensor that a graph of a kit reads or writes.

    Parameters
    ----------
    name : str
        Its name.
    dtype : str
        Its dtype, as numpy calls it.
    shape : tuple of int and str
        A name stands for any size, the same wherever it stands.
    low, high : int, optional
        The range of labels and indices.
    ignored : int, optional
        The label that does not count.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    low: int | None = None
    high: int | None = None
    ignored: int | None = None

    def check(self, array: np.ndarray) -> None:
        """Check that an array fits, but for the number of its rows."""
        if array.dtype.name != self.dtype:
            raise DataError(f"Input {self.name!r} is {array.dtype}, where {self.dtype} is expected.")
        if array.ndim != len(self.shape) or any(isinstance(size, int) and n != size for n, size in
                                                zip(array.shape[1:], self.shape[1:], strict=True)):
            expected = ", ".join(map(str, self.shape))
            are_labels = array.ndim == 1 and len(self.shape) == 2 and self.shape[1] != 1
            hint = "; where these are labels of classes, export the kit with the loss 'softmax_cross_entropy'"
            raise DataError(f"Input {self.name!r} has the shape {list(array.shape)}, where [{expected}] is expected"
                            f"{hint if are_labels else ''}.")
        counted = array if self.ignored is None else array[array != self.ignored]
        if self.low is None or self.high is None or not counted.size:
            return
        low, high = counted.min(), counted.max()
        if low < self.low or high > self.high:
            ignored = "" if self.ignored is None else f", or {self.ignored} for what does not count"
            raise DataError(f"Input {self.name!r} has values from {low} to {high}, where {self.low} to {self.high} are "
                            f"expected{ignored}.")


@dataclass(frozen=True)
class Manifest:
    """The contents of a kit, and the order in which its graphs are bound.

    Parameters
    ----------
    batch_size : int
        The number of rows of a step, if nothing else is asked for.
    steps : dict of int or None to str
        The file of a step by the number of its rows; None for any number.
    inputs : tuple of Tensor
        The inputs of a step from a batch. The state follows, in the order of `state`.
    outputs : tuple of Tensor
        The results of a step, first the loss of the batch. The next state follows.
    state : tuple of Tensor
        All that a step changes.
    weights : dict of str to int
        By state tensor, where its numbers begin in the file of the inference model, in bytes.
    """

    batch_size: int
    steps: Mapping[int | None, str]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    state: tuple[Tensor, ...]
    weights: Mapping[str, int]

    #: The names of files in every kit.
    NAME: ClassVar = "kit.json"
    STATE: ClassVar = "state.safetensors"
    MODEL: ClassVar = "model.onnx"

    def find_step(self, rows: int) -> str:
        """The file of the step for batches of so many rows."""
        if rows in self.steps or None in self.steps:
            return self.steps[rows if rows in self.steps else None]
        sizes = " or ".join(map(str, sorted(size for size in self.steps if size is not None)))
        raise DataError(f"The kit has steps for batches of {sizes} rows, not of {rows}.")

    def to_json(self) -> str:
        """The manifest as text, with a line for each tensor."""
        weights = [{"name": n, "offset": offset} for n, offset in self.weights.items()]
        return "\n".join([
            "{", f'  "format": "{FORMAT}",', f'  "version": {VERSION},',
            f'  "batch_size": {self.batch_size},',
            f'  "steps": {_lines({"file": file, "batch_size": size} for size, file in self.steps.items())},',
            f'  "inputs": {_lines(map(_describe, self.inputs))},',
            f'  "outputs": {_lines(map(_describe, self.outputs))},',
            f'  "state": {{"file": "{self.STATE}", "tensors": {_lines(map(_describe, self.state))}}},',
            f'  "model": {{"file": "{self.MODEL}", "weights": {_lines(weights)}}}',
            "}", ""])


def _describe(tensor: Tensor) -> dict[str, Any]:
    """A tensor without the fields that do not apply to it."""
    values = {f.name: getattr(tensor, f.name) for f in fields(tensor)}
    return {n: v for n, v in values.items() if v is not None}


def _lines(items: Iterable[Mapping[str, object]]) -> str:
    """A list in JSON, with a line for each item."""
    return "[" + ",\n    ".join(map(json.dumps, items)) + "]"


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a kit.

    Parameters
    ----------
    folder : pathlib.Path
        The folder of the kit.

    Returns
    -------
    Manifest

    Raises
    ------
    ModelError
        It is no manifest, or of a newer version.
    FileMissingError, OSError
        It is not there, or cannot be read.
    """
    data = read_regular(folder / Manifest.NAME, "give the folder that export_step or write_kit has written")
    try:
        stored = parse_json(data)
        newer = stored["format"] == FORMAT and _whole(stored["version"]) > VERSION
        manifest = None if newer else _parse(stored)
    except (KeyError, TypeError, ValueError, RecursionError, SyntaxError):  # the last of numpy, for the name of a dtype
        raise ModelError(f"{Manifest.NAME} is no manifest of a training kit.") from None
    if manifest is None:
        raise ModelError(f"{Manifest.NAME} is of version {stored['version']}, and this runner reads version {VERSION}: "
                         f"take the runner that was exported with the kit.")
    return manifest


def _parse(stored: Mapping[str, Any]) -> Manifest:
    """A manifest of this version; an error of any kind where it is none."""
    model, state = stored["model"], stored["state"]
    if (stored["format"], stored["version"]) != (FORMAT, VERSION) or (state["file"], model["file"]) != (
            Manifest.STATE, Manifest.MODEL):
        raise ValueError
    steps = {None if s["batch_size"] is None else _whole(s["batch_size"], 1): _file(s["file"])
             for s in _list(stored["steps"])}
    inputs, outputs, tensors = (tuple(map(_tensor, _list(t)))
                                for t in (stored["inputs"], stored["outputs"], state["tensors"]))
    weights = {_text(w["name"]): _whole(w["offset"]) for w in _list(model["weights"])}
    if not (steps and inputs and outputs and tensors) or not weights.keys() <= {t.name for t in tensors} or any(
            isinstance(size, str) for t in tensors for size in t.shape) or not all(t.shape for t in inputs):
        raise ValueError
    return Manifest(_whole(stored["batch_size"], 1), steps, inputs, outputs, tensors, weights)


def _tensor(stored: Mapping[str, Any]) -> Tensor:
    helper.np_dtype_to_tensor_dtype(np.dtype(_text(stored["dtype"])))
    shape = tuple([size if isinstance(size, str) else _whole(size) for size in _list(stored["shape"])])
    limits = [None if stored.get(n) is None else _whole(stored[n], None) for n in ("low", "high", "ignored")]
    return Tensor(_text(stored["name"]), stored["dtype"], shape, *limits)


def _whole(number: object, least: int | None = 0) -> int:
    """A whole number of at least so much."""
    if type(number) is not int or (least is not None and number < least):
        raise ValueError
    return number


def _list(items: object) -> list[Any]:
    if not isinstance(items, list):
        raise TypeError
    return items


def _text(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError
    return text


def _file(name: object) -> str:
    """The name of a file in the folder itself, of no more characters than file systems take."""
    text = _text(name)
    is_inside = PurePosixPath(text).name == text and text not in ("", "..")
    if not is_inside or "\\" in text or "\0" in text or len(text) > 255:
        raise ValueError
    return text
