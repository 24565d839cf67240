"""Code of users, with the types that mypy and editors know of it: mypy checks this file, and nothing runs it."""

from typing import Any

import numpy as np
import scipy.sparse
from typing_extensions import assert_type

from ortpartial import (
    LearningRateAdam,
    OnnxLayer,
    OrtGradientForwardBackwardOptimizer,
    TrainingSession,
    Value,
    build,
    grad,
    load,
    op,
    variable,
)
from ortpartial.model import Model


class Own(OrtGradientForwardBackwardOptimizer):
    """A subclass: methods that return the optimizer return its own class."""


def values(x: Value) -> None:
    assert_type(op.Softmax(x, axis=1), Value)
    assert_type(2 * x + 1, Value)
    assert_type(x[0, ..., None], Value)
    assert_type(x.mean(axis=0).T, Value)
    first, indices = op.TopK(x, [1])
    assert_type(first, Value)
    assert_type(indices, Value)
    assert_type(op.Split(x, num_outputs=2), tuple[Value, ...])
    assert_type(grad(op.Exp(x).sum(), [x]), list[Value])


def trainings(X: Any, y: Any) -> None:
    x = variable("x", "float32", ["N", 1])
    model = build([x], {"y": x @ np.ones((1, 1), np.float32)})
    assert_type(load(model), Model)
    optimizer = Own(model, learning_loss=lambda y, t: abs(y - t), learning_rate=LearningRateAdam(0.01))
    assert_type(optimizer.fit(X, y), Own)
    assert_type(optimizer.fit(X, y).partial_fit(X, y).set_params(max_iter=5), Own)
    assert_type(optimizer.predict(X), np.ndarray | dict[str, np.ndarray])
    assert_type(optimizer.score(X, y), float | dict[str, float])
    assert_type(optimizer.trained_coef_["w"], np.ndarray)
    assert_type(TrainingSession(model).step({"x": X}), dict[str, np.ndarray])
    assert_type(OnnxLayer(model).input_names, list[str])


def data(rows: scipy.sparse.csr_matrix, batches: list[tuple[np.ndarray, np.ndarray]]) -> None:
    x = variable("x", "float32", ["N", 1])
    optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ np.ones((1, 1), np.float32)}))
    for X in (np.ones((2, 1)), [[1.0], [2.0]], rows, {"x": np.ones((2, 1))}, batches):
        optimizer.fit(X)
    optimizer.fit(np.ones((2, 1)), [1, 2], X_val=0.2)
    optimizer.predict(len)  # type: ignore[arg-type]
    optimizer.fit(None)  # type: ignore[arg-type]
