"""Writing a model: atomically, with external data where it exceeds one protobuf message."""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.external_data_helper import set_external_data

from . import external_data
from .external_data import measure
from .walk import walk_graphs

__all__ = ["write"]

#: External data begin at multiples of this number of bytes, so that a runtime can map them into memory.
_ALIGNMENT = 2**16


def write(proto: ModelProto, path: str | os.PathLike[str]) -> None:
    """Write a model to a file, which holds either its former content or the whole model whenever the process ends.

    A model of more than 2 GB has its initializers of 1 MB or more in a second file beside it, ``<name>.data``.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model. Of one of more than 2 GB, what goes to the second file is taken out.
    path : path
        The file.

    Raises
    ------
    OSError
        The file cannot be written.

    Examples
    --------
    >>> from ortpartial.graph import build, variable
    >>> from ortpartial.model import load
    >>> x = variable("x", "float32", ["N"])
    >>> write(build([x], {"y": 2 * x}), "twice.onnx")
    >>> list(load("twice.onnx").outputs)
    ['y']
    """
    target = Path(path)
    if target.is_symlink():  # It stays one.
        target = target.resolve()
    data = set(_list_data(target))
    try:
        tensors = _list_initializers(proto)
        if sum(map(measure, tensors)) >= external_data.MESSAGE:
            beside = _find_free_name(target)
            data.add(beside)
            with _replace(beside) as file:
                _move(tensors, file, beside.name)
        with _replace(target) as file:
            file.write(proto.SerializeToString())
    finally:  # The model that stands there now, the former or the new one, keeps its data.
        for unused in data.difference(_list_data(target)):
            unused.unlink(missing_ok=True)


@contextmanager
def _replace(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of another one once all of it is on the disk."""
    if path.exists() and not path.is_file():  # A device or a pipe has no content that could be lost.
        with path.open("wb") as file:
            yield file
        return
    temporary = path.with_name(f".ortpartial-{secrets.token_hex(8)}.tmp")
    try:
        file = temporary.open("xb")
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(path)) from None
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o777)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # for the name
    finally:
        os.close(folder)


def _list_initializers(proto: ModelProto) -> list[TensorProto]:
    """The initializers of all graphs of a model, those of its training included."""
    graphs = [proto.graph, *(g for info in proto.training_info for g in (info.initialization, info.algorithm))]
    return [t for graph in graphs for g in walk_graphs(graph) for t in g.initializer]


def _move(tensors: list[TensorProto], file: BinaryIO, name: str) -> None:
    """Move the content of big tensors to a file of this name."""
    for t in tensors:
        if measure(t) < external_data.BIG:
            continue
        if not t.HasField("raw_data"):
            t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t), t.name))
        start = file.seek(-(-file.tell() // _ALIGNMENT) * _ALIGNMENT)
        length = file.write(t.raw_data)
        set_external_data(t, name, start, length)
        t.ClearField("raw_data")


def _find_free_name(path: Path) -> Path:
    """An unused name for the data of a model: a former model keeps its own until it is replaced."""
    n, name = 0, f"{path.name}.data"
    while path.with_name(name).exists():
        n, name = n + 1, f"{path.name}.{n + 1}.data"
    return path.with_name(name)


def _list_data(path: Path) -> list[Path]:
    """The files of external data of a model, if there is one, under names that `write` gives."""
    if not path.is_file() or not any(path.parent.glob(f"{glob.escape(path.name)}.*data")):
        return []
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError:
        return []
    places = {e.value for t in _list_initializers(model) for e in t.external_data if e.key == "location"}
    return [path.with_name(p) for p in sorted(places) if p.startswith(f"{path.name}.") and p.endswith(".data")]
