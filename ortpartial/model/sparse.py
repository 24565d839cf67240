"""Sparse initializers, which are made dense before a model is read."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from google.protobuf.message import Message
from onnx import GraphProto, ModelProto, SparseTensorProto, helper, numpy_helper

from ortpartial.exceptions import ModelError
from ortpartial.graph import variable

from .validation import check_size
from .walk import walk_graphs

__all__ = ["densify", "to_dense"]


def densify(proto: ModelProto) -> ModelProto:
    """The model with its sparse initializers, also of Constant nodes, as dense tensors.

    They are trained as dense weights: a gradient changes their zeros, too.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; it is not written to.

    Returns
    -------
    onnx.ModelProto
        The same object where there is none.

    Raises
    ------
    ModelError
        Indices and values do not fit together; the message names the initializer.

    Examples
    --------
    >>> from onnx import parser
    >>> model = parser.parse_model('<ir_version: 8, opset_import: ["": 18]> g (float[3] x) => (float[3] y) '
    ...                            '{ y = Identity (x) }')
    >>> densify(model) is model
    True
    """
    if not any(g.sparse_initializer or any(_constants(g)) for g in _all(proto)):
        return proto
    dense = ModelProto()
    dense.CopyFrom(proto)
    for g in _all(dense):
        g.initializer.extend(numpy_helper.from_array(to_dense(t), t.values.name) for t in g.sparse_initializer)
        g.ClearField("sparse_initializer")
        for node in _constants(g):
            value = numpy_helper.from_array(to_dense(node.attribute[0].sparse_tensor, node.output[0]))
            node.attribute[0].CopyFrom(helper.make_attribute("value", value))
    return dense


def _all(proto: ModelProto) -> Iterator[GraphProto]:
    """All graphs of a model, also of its training."""
    for g in (proto.graph, *(g for info in proto.training_info for g in (info.initialization, info.algorithm))):
        yield from walk_graphs(g)


def _constants(graph: GraphProto) -> Iterator[Message]:
    """The Constant nodes that hold a sparse tensor."""
    for node in graph.node:
        if node.op_type == "Constant" and [a.name for a in node.attribute] == ["sparse_value"]:
            yield node


def to_dense(t: SparseTensorProto, name: str = "") -> np.ndarray:
    """A sparse tensor as an array.

    Parameters
    ----------
    t : onnx.SparseTensorProto
        Its values (NNZ,), and their places in ascending order, each once: numbers (NNZ,) that count the elements row by
        row, or an index for each axis (NNZ, rank).
    name : str
        Its name in errors; by default, its own.

    Returns
    -------
    numpy.ndarray
        Of the dtype of the values, and zero where there is none.

    Raises
    ------
    ModelError
        Places are missing, not in ascending order, or not inside of the shape; or the shape is larger than the memory.

    Examples
    --------
    >>> values, places = helper.make_tensor("w", 1, [2], [5.0, 7.0]), helper.make_tensor("", 7, [2, 2], [0, 1, 1, 0])
    >>> to_dense(helper.make_sparse_tensor(values, places, [2, 3]))
    array([[0., 5., 0.],
           [7., 0., 0.]], dtype=float32)
    """
    what, shape = f"The sparse initializer {name or t.values.name!r}", tuple(t.dims)
    if not shape or min(shape) < 0 or len(shape) > 32:
        raise ModelError(f"{what} has the shape {shape}, where one to 32 sizes were expected, none of them negative.")
    try:
        values, places = numpy_helper.to_array(t.values), numpy_helper.to_array(t.indices)
    except (TypeError, ValueError) as e:
        raise ModelError(f"{what} cannot be read: {e}") from None
    if values.ndim != 1:
        raise ModelError(f"{what} has values of shape {values.shape}, where one axis was expected.")
    check_size(variable(t.values.name, values.dtype, shape), what)
    n, axes = len(values), shape if places.ndim == 2 else (math.prod(shape),)
    if places.dtype != np.int64 or places.shape not in ((n,), (n, len(shape))):
        raise ModelError(f"{what} has indices of {places.dtype} and shape {places.shape}, where int64 and {(n,)} or "
                         f"{(n, len(shape))} were expected for its {n} values.")
    rows = places.reshape(n, len(axes))
    if (outside := ((rows < 0) | (rows >= axes)).any(axis=1)).any():
        raise ModelError(f"{what} has the index {places[outside][0].tolist()}, which is outside of the shape {shape}.")
    flat = np.ravel_multi_index(tuple(rows.T), axes)
    if (wrong := flat[1:] <= flat[:-1]).any():
        before, behind = (some[wrong][0].tolist() for some in (places[:-1], places[1:]))
        raise ModelError(f"{what} has the index {behind} behind {before}; ascending ones were expected, each once.")
    dense = np.zeros(shape, values.dtype)
    dense.reshape(-1)[flat] = values
    return dense
