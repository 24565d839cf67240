"""Operators of ai.onnx.ml that scale, normalize, impute and join features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import TensorProto

from ortpartial.annotations import Attributes
from ortpartial.graph import Value, cast, op

from .operator import MlOperator

__all__ = ["OUTPUTS", "PREPROCESSING", "normalize"]


def _read_scaler(attributes: Attributes) -> dict[str, np.ndarray]:
    return {n: np.asarray(attributes[n], np.float32) for n in ("offset", "scale") if attributes.get(n)}


def _scale(attributes: Attributes, inputs: Sequence[Value], weights: Mapping[str, Value]) -> list[Value]:
    """y = (x - offset) scale, in the dtype of x."""
    y = inputs[0]
    if "offset" in weights:
        y = y - cast(weights["offset"], y)
    if "scale" in weights:
        y = y * cast(weights["scale"], y)
    return [y if y.dtype == np.float32 else op.Cast(y, to=TensorProto.FLOAT)]


def _keep_double(attributes: Attributes, elem_type: int) -> int:
    """A double remains a double where numbers such as dates may cancel."""
    return int(TensorProto.DOUBLE if elem_type == TensorProto.DOUBLE else TensorProto.FLOAT)


def normalize(x: Value, norm: str) -> Value:
    """x / ‖x‖ along the last axis, and x where the norm is 0; MAX is the largest element, not the largest size."""
    norms = {"L1": op.ReduceL1, "L2": op.ReduceL2, "MAX": op.ReduceMax}
    size = norms[norm](x, [-1])
    return x / op.Where(op.Equal(size, 0), 1, size)


def _is_whole(attributes: Attributes) -> bool:
    return bool(attributes.get("imputed_value_int64s"))


def _read_imputer(attributes: Attributes) -> dict[str, np.ndarray] | None:
    """The imputed values: weights where they are real numbers."""
    if _is_whole(attributes):
        return {}
    values = attributes.get("imputed_value_floats")
    return {"imputed_value_floats": np.asarray(values, np.float32)} if values else None


def _impute(attributes: Attributes, inputs: Sequence[Value], weights: Mapping[str, Value]) -> list[Value]:
    """x, with a value for each column, or for all, where an element is missing."""
    (x,) = inputs
    if _is_whole(attributes):
        missing = op.Equal(x, np.int64(attributes.get("replaced_value_int64", 0)))
        return [op.Where(missing, np.array(attributes["imputed_value_int64s"], np.int64), x)]
    replaced = np.float32(attributes.get("replaced_value_float", 0))
    missing = op.IsNaN(x) if np.isnan(replaced) else op.Equal(x, replaced)
    return [op.Where(missing, weights["imputed_value_floats"], x)]


def _join(attributes: Attributes, inputs: Sequence[Value], weights: Mapping[str, Value]) -> list[Value]:
    """The columns of all inputs, as many of each as `inputdimensions` says."""
    rows = op.Shape(inputs[0], end=1)
    parts = zip(inputs, attributes["inputdimensions"], strict=True)
    return [op.Concat(*(op.Reshape(x, op.Concat(rows, [n], axis=0)) for x, n in parts), axis=1)]


PREPROCESSING = {
    "FeatureVectorizer": MlOperator(lambda a: {} if a.get("inputdimensions") else None, _join),
    "Imputer": MlOperator(_read_imputer, _impute,
                          input_type=lambda a, _: TensorProto.INT64 if _is_whole(a) else TensorProto.FLOAT),
    "Normalizer": MlOperator(lambda a: {}, lambda a, inputs, weights: [normalize(inputs[0], a["norm"])]),
    "Scaler": MlOperator(_read_scaler, _scale, input_type=_keep_double),
}

#: A list of dicts for the rows of a matrix, which is read as the matrix; its labels are in the file alone.
OUTPUTS = {"ZipMap": MlOperator(lambda a: {}, lambda a, inputs, weights: [op.Identity(inputs[0])])}
