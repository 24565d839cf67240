"""Files of external data: tensors that a model stores beside itself, read from its folder and nowhere else."""

from __future__ import annotations

import errno
import os
import stat
import sys

from onnx import ModelProto, TensorProto

from ortpartial.exceptions import ModelError

from .stored_tensors import list_tensors, measure_bytes

__all__ = ["read_external_data"]


def read_external_data(proto: ModelProto, folder: str | os.PathLike[str] | None) -> ModelProto:
    """A model with all its tensors in it: dense and sparse initializers, attributes, and the tensors of its training.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; it is not written to.
    folder : path, optional
        Where the files are; without it there are none, as the working directory is never meant.

    Returns
    -------
    onnx.ModelProto
        The same object where no tensor is in another file.

    Raises
    ------
    ModelError
        A file, or a part of it, cannot be read; the message names the tensor.

    Examples
    --------
    >>> from onnx import parser
    >>> model = parser.parse_model('<ir_version: 8, opset_import: ["": 18]> g (float[3] x) => (float[3] y) '
    ...                            '{ y = Identity (x) }')
    >>> read_external_data(model, None) is model
    True
    """
    if not any(_is_external(t) for _, t in list_tensors(proto)):
        return proto
    copy = ModelProto()
    copy.CopyFrom(proto)
    for what, t in list_tensors(copy):
        if not _is_external(t):
            continue
        if folder is None:
            raise ModelError(f"The data of {what} are in another file (external data); give the path of the model, or "
                             f"its folder, as in load(model, folder=...).")
        try:
            _read(t, os.fspath(folder) or ".")
        except (KeyError, OSError, TypeError, ValueError) as e:
            raise ModelError(f"The external data of {what} cannot be read: {' '.join(str(e).split())}") from None
    return copy


def _is_external(t: TensorProto) -> bool:
    return t.data_location == TensorProto.EXTERNAL


def _read(t: TensorProto, folder: str) -> None:
    """Read the data of a tensor, which must fit its shape, from a file inside of the folder."""
    entries = {e.key: e.value for e in t.external_data}
    for key in ("offset", "length"):
        text = entries.get(key, "0")
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise ValueError(f"{key!r} is {text[:20]!r}, where a whole number of at least 0 was expected.")
    if t.data_type == TensorProto.STRING:
        raise ValueError("texts cannot be in another file.")
    size = measure_bytes(t)
    if int(entries.get("length", size)) != size:
        kind = TensorProto.DataType.Name(t.data_type)
        raise ValueError(f"'length' is {entries['length']}, and a tensor of {kind} and shape {tuple(t.dims)} takes "
                         f"{size} bytes.")
    location, offset = entries.get("location", ""), int(entries.get("offset", 0))
    with os.fdopen(_open_inside(folder, location), "rb") as file:
        length = os.fstat(file.fileno()).st_size
        if offset + size > length:
            raise ValueError(f"byte {offset + size} exceeds available data: {location!r} has {length} bytes.")
        file.seek(offset)
        t.raw_data = file.read(size)
    t.data_location = TensorProto.DEFAULT
    del t.external_data[:]


def _open_inside(folder: str, location: str) -> int:
    """A descriptor of a regular file in a folder or below, which no link of any kind leads to.

    onnx follows links up to 1.20, and every version looks at the file before it opens it.
    """
    parts = location.replace("\\", "/").split("/") if sys.platform == "win32" else location.split("/")
    if not location or "\0" in location or os.path.isabs(location) or ".." in parts or ":" in parts[0]:
        raise ValueError(f"its location {location!r} is no path of a file inside of the folder of the model.")
    parts = [part for part in parts if part not in ("", ".")] or [""]
    if sys.platform == "win32":  # It opens no folders. Links need rights there that users lack by default.
        path = os.path.join(os.path.realpath(folder), *parts)
        if os.path.normcase(os.path.realpath(path)) != os.path.normcase(path):
            raise ValueError(f"{location!r} is or goes through a link.")
        descriptor = os.open(path, os.O_RDONLY | os.O_BINARY)
    else:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        for i, part in enumerate(parts, 1):
            flags = os.O_NONBLOCK if i == len(parts) else os.O_DIRECTORY  # A pipe would wait for its writer.
            try:
                inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | flags, dir_fd=descriptor)
            except OSError as e:
                reason = "is or goes through a link" if e.errno in (errno.ELOOP, errno.ENOTDIR) else e.strerror
                raise ValueError(f"{location!r}: {reason}.") from None
            finally:
                os.close(descriptor)
            descriptor = inner
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise ValueError(f"{location!r} is no regular file, or has several names (hard links).")
    return descriptor
