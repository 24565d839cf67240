"""External data: weights replaced in a model, left out of it to save memory, and put back."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from .load import Model, list_initializers
from .ml import read_ml_weights, write_ml_weights

__all__ = ["change_weights", "offload_weights", "replace_weights", "restore_weights", "split_external_data"]

#: Bytes of initializers that a protobuf message, which holds 2³¹ - 1 bytes, has room for beside everything else.
MESSAGE = 2**31 - 2**26

#: Bytes from which on an initializer is big.
BIG = 2**18

#: Bytes of all big initializers from which on they are moved to a file.
_MANY = 2**24

#: Fields of a TensorProto that may hold its content.
_DATA = [f.name for f in TensorProto.DESCRIPTOR.fields if f.name.endswith("_data")]


def replace_weights(proto: ModelProto, weights: Mapping[str, np.ndarray]) -> ModelProto:
    """A copy of a model with some initializers, or weights that are attributes, replaced and all else unchanged.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; it is not written to.
    weights : dict of str to numpy.ndarray
        New content, of the same shape and dtype.

    Returns
    -------
    onnx.ModelProto
    """
    copy = ModelProto()
    copy.CopyFrom(proto)
    for t in list_initializers(copy):
        if t.name in weights:
            new = numpy_helper.from_array(np.ascontiguousarray(weights[t.name]).reshape(t.dims), t.name)
            for field in _DATA:
                t.ClearField(field)
            if t.data_location == TensorProto.EXTERNAL:
                t.ClearField("data_location")
                t.ClearField("external_data")
            t.raw_data = new.raw_data
    write_ml_weights(copy, weights)
    return copy


def split_external_data(proto: ModelProto) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A model that fits into a protobuf message of 2 GB, and the big initializers left out for that.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; it is not written to.

    Returns
    -------
    model : onnx.ModelProto
        The same object where it fits; else a copy, where initializers left out refer to external data in no file.
    arrays : dict of str to numpy.ndarray
        The initializers left out, by name.

    Examples
    --------
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float32", ["N"])
    >>> split_external_data(build([x], {"y": 2 * x}))[1]
    {}
    """
    inside = [t for t in proto.graph.initializer if t.data_location != TensorProto.EXTERNAL]
    if sum(map(measure, inside)) < MESSAGE:
        return proto, {}
    apart = {t.name: numpy_helper.to_array(t) for t in inside if measure(t) >= BIG}
    return _emptied(proto), apart


def measure(t: TensorProto) -> int:
    """Bytes of a tensor."""
    return int(np.prod(t.dims)) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize


def _emptied(proto: ModelProto) -> ModelProto:
    """A copy of a model whose big initializers refer to external data in no file."""
    light = _but(proto, ["graph"])
    light.graph.CopyFrom(_but(proto.graph, ["initializer"]))
    for t in proto.graph.initializer:
        if measure(t) < BIG:
            light.graph.initializer.append(t)
            continue
        left = _but(t, _DATA)
        left.data_location = TensorProto.EXTERNAL
        left.external_data.add(key="location", value="memory")
        light.graph.initializer.append(left)
    return light


def offload_weights(model: Model) -> Model:
    """The same model without the content of big initializers in its proto: see `restore_weights`.

    The arrays remain, since the next training starts from them; many of them are moved from memory to a temporary file,
    if it can be written.

    Parameters
    ----------
    model : Model
        The model.

    Returns
    -------
    Model
    """
    light = replace(model, proto=_emptied(model.proto))
    big = {n: a for n, a in model.arrays.items() if a.nbytes >= BIG}
    if model.file is not None or sum(a.nbytes for a in big.values()) < _MANY:
        return light
    try:
        with tempfile.TemporaryFile() as f:
            places = {}
            for n, a in big.items():
                places[n] = f.seek(-(-f.tell() // 64) * 64)
                f.write(np.ascontiguousarray(a).data.cast("B"))
            f.flush()
            file = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:
        return light
    apart = {n: np.frombuffer(file, a.dtype, a.size, places[n]).reshape(a.shape) for n, a in big.items()}
    return replace(light, arrays={**model.arrays, **apart}, file=file)


def change_weights(model: Model, weights: Mapping[str, np.ndarray]) -> Model:
    """The same model with other content of some initializers, in the values that `specialize` makes of it.

    Parameters
    ----------
    model : Model
        The model, with or without the content of big initializers in its proto.
    weights : dict of str to numpy.ndarray
        New content, of the same shape and dtype.

    Returns
    -------
    Model
    """
    stored = {t.name for t in list_initializers(model.proto) if t.data_location != TensorProto.EXTERNAL}
    proto = replace_weights(model.proto, {n: a for n, a in weights.items() if n in stored})
    return replace(model, proto=proto, arrays={**model.arrays, **weights})


def restore_weights(model: Model, weights: Mapping[str, np.ndarray] | None = None) -> ModelProto:
    """The proto of a model with its weights put back, after `offload_weights`, and some of them replaced.

    Parameters
    ----------
    model : Model
        The model.
    weights : dict of str to numpy.ndarray, optional
        New content, of the same shape and dtype.

    Returns
    -------
    onnx.ModelProto
        A copy.

    Examples
    --------
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import constant, variable
    >>> from ortpartial.model import load
    >>> proto = build([x := variable("x", "float32", ["N", 1])], {"y": x @ constant(np.ones((1, 2**18), np.float32))})
    >>> restore_weights(offload_weights(load(proto))) == proto
    True
    """
    left_out = {t.name for t in model.proto.graph.initializer if t.data_location == TensorProto.EXTERNAL}
    # Attributes hold their content, which may decide about the meaning of others, until they are written.
    left_out |= read_ml_weights(model.proto).keys()
    return replace_weights(model.proto, {**{n: model.arrays[n] for n in left_out}, **(weights or {})})


def _but(message: Any, left_out: Collection[str]) -> Any:
    """A copy of a protobuf message without some of its fields, which are never read."""
    new = type(message)()
    for field in type(message).DESCRIPTOR.fields:
        if field.name in left_out:
            continue
        content = getattr(message, field.name)
        if hasattr(content, "extend"):
            getattr(new, field.name).extend(content)
        elif message.HasField(field.name):
            if field.message_type:
                getattr(new, field.name).CopyFrom(content)
            else:
                setattr(new, field.name, content)
    return new
