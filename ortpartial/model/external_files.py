"""Files of external data: tensors that a model stores beside itself, read from its folder and nowhere else."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, TensorProto, external_data_helper, helper

from ortpartial.exceptions import ModelError

__all__ = ["read_external_data"]

#: Bits of an element in memory of the types that are packed.
_PACKED = {"FLOAT4E2M1": 4, "INT2": 2, "INT4": 4, "UINT2": 2, "UINT4": 4}


def read_external_data(proto: ModelProto, folder: str | os.PathLike[str] | None) -> ModelProto:
    """A model with all its tensors in it: dense and sparse initializers, attributes, and those of its training.

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
    if not any(_is_external(t) for _, t in _list_tensors(proto)):
        return proto
    copy = ModelProto()
    copy.CopyFrom(proto)
    for what, t in _list_tensors(copy):
        if not _is_external(t):
            continue
        if folder is None:
            raise ModelError(f"The data of {what} are in another file (external data); give the path of the model, or "
                             f"its folder, as in load(model, folder=...).")
        try:
            _read(t, os.fspath(folder) or ".")
        except Exception as e:  # Those of onnx 1.23.2 are of many kinds.
            raise ModelError(f"The external data of {what} cannot be read: {' '.join(str(e).split())}") from None
    return copy


def _is_external(t: TensorProto) -> bool:
    return t.data_location == TensorProto.EXTERNAL


def _read(t: TensorProto, folder: str) -> None:
    """Read the data of a tensor, which must fit its shape, from a file inside of the folder, as onnx makes sure."""
    entries = {e.key: e.value for e in t.external_data}
    for key in ("offset", "length"):
        text = entries.get(key, "0")
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise ValueError(f"{key!r} is {text[:20]!r}, where a whole number of at least 0 was expected.")
    size = _measure(t)
    if int(entries.setdefault("length", str(size))) != size:
        kind = TensorProto.DataType.Name(t.data_type)
        raise ValueError(f"'length' is {entries['length']}, and a tensor of {kind} and shape {tuple(t.dims)} takes "
                         f"{size} bytes.")
    del t.external_data[:]
    for key in ("location", "offset", "length"):
        if key in entries:
            t.external_data.add(key=key, value=entries[key])
    external_data_helper.load_external_data_for_tensor(t, folder)
    if len(t.raw_data) != size:  # Older versions of onnx read what there is.
        raise ValueError(f"the file holds {len(t.raw_data)} of {size} bytes.")
    t.data_location = TensorProto.DEFAULT
    del t.external_data[:]


def _measure(t: TensorProto) -> int:
    """Bytes of a tensor in a file."""
    if t.data_type == TensorProto.STRING:
        raise ValueError("texts cannot be in another file.")
    if any(d < 0 for d in t.dims):
        raise ValueError(f"its shape is {tuple(t.dims)}.")
    bits = _PACKED.get(TensorProto.DataType.Name(t.data_type))
    if bits is None:
        bits = 8 * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize
    return -(-math.prod(t.dims) * bits // 8)


def _list_tensors(proto: ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """All tensors of a model, with what to call them."""
    yield from _list_inside(proto.graph)
    for function in proto.functions:
        for what, t in _list_inside(function):
            yield f"{what} of the function {function.name!r}", t
    for i, info in enumerate(proto.training_info):
        for part, graph in (("initialization", info.initialization), ("algorithm", info.algorithm)):
            for what, t in _list_inside(graph):
                yield f"{what} of training_info[{i}].{part}", t


def _list_inside(container: GraphProto | FunctionProto) -> Iterator[tuple[str, TensorProto]]:
    """The tensors of a graph or a function, those of the graphs inside it included."""
    if isinstance(container, GraphProto):
        for t in container.initializer:
            yield repr(t.name), t
        for s in container.sparse_initializer:
            yield from _list_parts(s, repr(s.values.name))
    else:
        for a in container.attribute_proto:
            yield from _list_attribute(a, f"the attribute {a.name!r}")
    for node in container.node:
        for a in node.attribute:
            yield from _list_attribute(a, f"the attribute {a.name!r} of {node.name or ''.join(node.output[:1])!r}")


def _list_attribute(a: AttributeProto, what: str) -> Iterator[tuple[str, TensorProto]]:
    """The tensors of an attribute, in whatever field they are."""
    if a.HasField("t"):
        yield what, a.t
    for t in a.tensors:
        yield what, t
    for s in (*((a.sparse_tensor,) if a.HasField("sparse_tensor") else ()), *a.sparse_tensors):
        yield from _list_parts(s, what)
    for graph in (*((a.g,) if a.HasField("g") else ()), *a.graphs):
        yield from _list_inside(graph)


def _list_parts(s: Any, what: str) -> Iterator[tuple[str, TensorProto]]:
    """The two tensors of a sparse one."""
    yield what, s.values
    yield f"{what} (indices)", s.indices
