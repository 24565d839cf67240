"""Linear models of ai.onnx.ml: products, whose coefficients and intercepts are weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ortpartial.annotations import Attributes, Settings
from ortpartial.graph import Value, op

from .operator import Arrays, MlOperator, post_transform, to_labels

__all__ = ["LINEAR"]


def _read(attributes: Attributes, outputs: int) -> dict[str, np.ndarray] | None:
    """Coefficients (features, outputs) and intercepts; None where their sizes do not fit."""
    coefficients = np.asarray(attributes.get("coefficients", ()), np.float32)
    intercepts = np.asarray(attributes.get("intercepts") or [0.0] * outputs, np.float32)
    if not len(coefficients) or not outputs or len(coefficients) % outputs or len(intercepts) != outputs:
        return None
    return {"coefficients": coefficients.reshape(outputs, -1).T.copy(), "intercepts": intercepts}


def _read_regressor(attributes: Attributes) -> dict[str, np.ndarray] | None:
    return _read(attributes, attributes["targets"])


def _read_classifier(attributes: Attributes) -> dict[str, np.ndarray] | None:
    classes = len(attributes.get("classlabels_ints") or attributes.get("classlabels_strings") or ())
    rows, n = len(attributes.get("intercepts") or ()), len(attributes.get("coefficients") or ())
    if rows not in (1, classes) or not classes or not n or n % rows:
        # onnxruntime-training 1.19.2 reads beyond their end.
        raise ValueError(f"{n} coefficients and {rows} intercepts for {classes} classes, where an intercept for each "
                         f"and as many coefficients were expected")
    return _read(attributes, classes) if rows == classes > 1 else None  # Runtimes differ about a single row.


def _write(attributes: Attributes, arrays: Arrays) -> Settings:
    return {n: a.T.ravel().tolist() for n, a in arrays.items()}


def _regress(attributes: Attributes, inputs: Sequence[Value], weights: Mapping[str, Value]) -> list[Value]:
    """y = f(x @ coefficients + intercepts)."""
    scores = inputs[0] @ weights["coefficients"] + weights["intercepts"]
    return [post_transform(scores, attributes["post_transform"], attributes["targets"])]


def _classify(attributes: Attributes, inputs: Sequence[Value], weights: Mapping[str, Value]) -> list[Value | None]:
    """The class of the largest score, and the scores f(x @ coefficients + intercepts)."""
    scores = inputs[0] @ weights["coefficients"] + weights["intercepts"]
    label = to_labels(attributes, op.ArgMax(scores, axis=1, keepdims=0))
    return [label, post_transform(scores, attributes["post_transform"], 2)]


LINEAR = {
    "LinearClassifier": MlOperator(_read_classifier, _classify, _write, reads_rows=True),
    "LinearRegressor": MlOperator(_read_regressor, _regress, _write, reads_rows=True),
}
