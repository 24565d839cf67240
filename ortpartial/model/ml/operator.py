"""Operators of ai.onnx.ml: their formulas, the attributes that are weights, and the way back into attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from ortpartial.annotations import Attributes, Settings
from ortpartial.graph import Value, constant, op

__all__ = ["Arrays", "Attributes", "MlOperator", "post_transform", "to_labels"]

Arrays = Mapping[str, np.ndarray]


def _flatten(attributes: Attributes, arrays: Arrays) -> Settings:
    """Each weight under the name of its attribute, row by row."""
    return {n: a.ravel().tolist() for n, a in arrays.items()}


def _to_float(attributes: Attributes, elem_type: int) -> int:
    """The type of inputs of most operators, which compute in float32."""
    return int(TensorProto.FLOAT)


@dataclass(frozen=True)
class MlOperator:
    """An operator of ai.onnx.ml as an expression of standard operators.

    Parameters
    ----------
    read : callable
        From the attributes, with defaults, to the weights by name; None where the operator is left as it is.
    compute : callable
        From the attributes, the inputs and the weights to the outputs.
    write : callable
        From the attributes and the weights that changed to the attributes that change.
    input_type : callable
        From the attributes and the element type of an input, 0 if it is not known, to the type that it is cast to, 0
        for its own.
    reads_rows : bool
        Whether a vector is a row for it, and its outputs belong to a single row.
    """

    read: Callable[[Attributes], dict[str, np.ndarray] | None]
    compute: Callable[[Attributes, Sequence[Value], Mapping[str, Value]], Sequence[Value | None]]
    write: Callable[[Attributes, Arrays], Settings] = _flatten
    input_type: Callable[[Attributes, int], int] = _to_float
    reads_rows: bool = False


def post_transform(scores: Value, transform: str, width: int) -> Value:
    """Transform scores (N, width) as the attribute `post_transform` says.

    As in onnxruntime, a single column passes through PROBIT alone.
    """
    if transform == "PROBIT":
        return _probit(scores)
    if transform == "NONE" or width == 1:
        return scores
    if transform == "LOGISTIC":
        return op.Sigmoid(scores)
    return op.Softmax(scores, axis=1) if transform == "SOFTMAX" else _softmax_zero(scores)


def _probit(x: Value) -> Value:
    """√2 erf⁻¹(2 x - 1), with the inverse error function by Winitzki's formula, as in onnxruntime."""
    u = 2 * x - 1
    log = op.Log((1 - u) * (1 + u))
    v = 2 / (np.pi * 0.147) + log / 2
    return np.sqrt(2) * op.Sign(u) * op.Sqrt(op.Sqrt(v * v - log / 0.147) - v)


def _softmax_zero(x: Value) -> Value:
    """Softmax of the scores that are not 0; the others remain 0."""
    largest = op.ReduceMax(x, [1])
    counts = op.Abs(x) > 1e-7
    terms = op.Where(counts, op.Exp(op.Where(counts, x, largest) - largest), 0.0)
    return terms / op.ReduceSum(terms, [1])


def to_labels(attributes: Attributes, index: Value) -> Value:
    """The labels of a classifier that an index chooses."""
    strings = attributes.get("classlabels_strings") or ()
    ints = attributes.get("classlabels_ints") or attributes.get("classlabels_int64s") or ()
    labels = np.array(strings, object) if strings else np.array(ints, np.int64)
    return op.Gather(constant(labels), index)
