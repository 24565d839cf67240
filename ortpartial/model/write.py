"""Writing models: atomically, with external data beyond the size of a protobuf message."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.external_data_helper import set_external_data

from ortpartial.exceptions import ConvergenceError

from . import external_data
from .atomic import flush, flush_folder, make_folder, replace_file
from .external_data import measure
from .suffixes import check_suffix
from .walk import walk_graphs

__all__ = ["check_finite", "write", "write_folder"]

#: External data begin at multiples of this number of bytes, so that a runtime can map them into memory.
_ALIGNMENT = 2**16


def write(proto: ModelProto, path: str | os.PathLike[str]) -> None:
    """Write a model to a file, which holds either its former content or the whole model whenever the process ends.

    A model of more than 2 GB has its initializers of 256 kB or more in a second file beside it, ``<name>.data``.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model. Beyond 2 GB, its content for the second file is taken out of it.
    path : path
        The file.

    Raises
    ------
    SettingError
        It ends as a file of another library.
    OSError
        The file cannot be written; the former file remains.

    Examples
    --------
    >>> from ortpartial.graph import build, variable
    >>> from ortpartial.model import load
    >>> x = variable("x", "float32", ["N"])
    >>> write(build([x], {"y": 2 * x}), "twice.onnx")
    >>> list(load("twice.onnx").outputs)
    ['y']
    """
    check_suffix(path, "an ONNX model", ".onnx")
    _write_all({Path(path): proto})


def write_folder(protos: Mapping[str, ModelProto], folder: str | os.PathLike[str]) -> dict[str, Path]:
    """Write models into a folder, which is complete or not there whenever the process ends.

    In an existing folder, all models are written before the first replaces a former model.

    Parameters
    ----------
    protos : dict of str to onnx.ModelProto
        The models by name, as for `write`.
    folder : path
        The folder, which is made with its parents.

    Returns
    -------
    dict of str to pathlib.Path
        The files by name, ``<name>.onnx``.

    Raises
    ------
    OSError
        A file cannot be written; all former files remain.

    Examples
    --------
    >>> from ortpartial.graph import build, variable
    >>> x = variable("x", "float32", ["N"])
    >>> write_folder({"twice": build([x], {"y": 2 * x})}, "graphs")["twice"].as_posix()
    'graphs/twice.onnx'
    """
    root = Path(folder)
    names = {n: f"{n}.onnx" for n in protos}
    with nullcontext(root) if root.is_dir() else make_folder(root) as place:
        _write_all({place / names[n]: proto for n, proto in protos.items()})
    return {n: root / name for n, name in names.items()}


def check_finite(arrays: Mapping[str, np.ndarray], first: Mapping[str, np.ndarray], instead: str) -> None:
    """Refuse to write weights that a training has made NaN or infinite.

    Parameters
    ----------
    arrays : dict of str to numpy.ndarray
        The arrays to be written, by name.
    first : dict of str to numpy.ndarray
        The arrays at the start of the training. Where these are not finite, it is meant.
    instead : str
        The method that returns the model all the same.

    Raises
    ------
    ConvergenceError

    Examples
    --------
    >>> check_finite({"w": np.ones(2)}, {"w": np.zeros(2)}, "get_trained_onnx")
    """
    for n, a in arrays.items():
        if a.dtype.kind == "f" and not np.isfinite(a).all() and np.isfinite(first[n]).all():
            raise ConvergenceError(f"{n!r} is no longer finite, and nothing is written; lower the learning rate, or "
                                   f"scale the data. {instead}() returns the model all the same.")


def _write_all(protos: Mapping[Path, ModelProto]) -> None:
    """Write models to files, the first of which is replaced when all are on the disk."""
    targets = {path.resolve() if path.is_symlink() else path: proto for path, proto in protos.items()}  # A link stays.
    data = {target: set(_list_data(target)) for target in targets}
    try:
        with ExitStack() as stack:
            for target, proto in targets.items():
                _stage(proto, target, data[target], stack)
        for folder in {target.parent for target in targets}:
            flush_folder(folder)
    finally:  # The model that stands there now, former or new, keeps its data.
        for target, files in data.items():
            for unused in files.difference(_list_data(target)):
                unused.unlink(missing_ok=True)


def _stage(proto: ModelProto, target: Path, data: set[Path], stack: ExitStack) -> None:
    """Write a model such that the end of the stack puts its data in their place, and then the model itself."""
    tensors = _list_initializers(proto)
    file = stack.enter_context(replace_file(target))
    if sum(map(measure, tensors)) >= external_data.MESSAGE:
        beside = _reserve_name(target)
        data.add(beside)
        stack.callback(flush_folder, target.parent)
        data_file = stack.enter_context(replace_file(beside))
        _move(tensors, data_file, beside.name)
        flush(data_file)
    file.write(proto.SerializeToString())
    flush(file)


def _list_initializers(proto: ModelProto) -> list[TensorProto]:
    """The initializers of all graphs of a model, also of its training."""
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


def _reserve_name(path: Path) -> Path:
    """An empty file of an unused name for the data of a model.

    A former model keeps its own until it is replaced, and so does a model that another process is writing there.
    """
    n, beside = 0, path.with_name(f"{path.name}.data")
    while True:
        try:
            beside.touch(exist_ok=False)
            return beside
        except FileExistsError:
            n += 1
            beside = path.with_name(f"{path.name}.{n}.data")


def _list_data(path: Path) -> list[Path]:
    """The files of external data of a model, if any, under names that `write` gives."""
    if not path.is_file() or not any(path.parent.glob(f"{glob.escape(path.name)}.*data")):
        return []
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError:
        return []
    places = {e.value for t in _list_initializers(model) for e in t.external_data if e.key == "location"}
    return [path.with_name(p) for p in sorted(places) if p.startswith(f"{path.name}.") and p.endswith(".data")]
