"""Support vector machines of ai.onnx.ml: kernels of a row and the support vectors, which are weights."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import combinations

import numpy as np
from onnx import TensorProto

from ortpartial.annotations import Attributes, Settings
from ortpartial.graph import Value, constant, loop, op

from .operator import Arrays, MlOperator, post_transform, to_labels

__all__ = ["SVM"]

#: The numbers of `kernel_params` that a kernel reads, by their places; the exponent of POLY is no weight.
_PARAMETERS = {"LINEAR": {}, "POLY": {"gamma": 0, "coef0": 1}, "RBF": {"gamma": 0}, "SIGMOID": {"gamma": 0, "coef0": 1}}


def _check(holds: bool, problem: str) -> None:
    """Refuse attributes beyond whose end onnxruntime-training 1.19.2 reads."""
    if not holds:
        raise ValueError(f"there are {problem}")


def _read_kernel(attributes: Attributes, vectors: int) -> dict[str, np.ndarray] | None:
    """Support vectors (vectors, features) and the parameters of the kernel, each a number."""
    flat, parameters = attributes.get("support_vectors", ()), attributes.get("kernel_params") or (0.0, 0.0, 0.0)
    _check(bool(flat) and len(flat) % vectors == 0, f"{len(flat)} numbers in support_vectors, of {vectors} vectors")
    _check(len(parameters) == 3, f"{len(parameters)} kernel_params, where three were expected")
    if attributes["kernel_type"] not in _PARAMETERS:
        return None
    places = _PARAMETERS[attributes["kernel_type"]]
    return {"support_vectors": np.array(flat, np.float32).reshape(vectors, -1),
            **{n: np.array(parameters[i], np.float32) for n, i in places.items()}}


def _write(attributes: Attributes, arrays: Arrays) -> Settings:
    """Each weight under the name of its attribute; `kernel_params` holds several."""
    flat = {n: a.ravel().tolist() for n, a in arrays.items()}
    places = _PARAMETERS[attributes["kernel_type"]]
    if numbers := {i: flat.pop(n)[0] for n, i in places.items() if n in flat}:
        flat["kernel_params"] = [numbers.get(i, p) for i, p in enumerate(attributes["kernel_params"])]
    return flat


def _apply_kernel(attributes: Attributes, x: Value, weights: Mapping[str, Value]) -> Value:
    """The kernel of each row and each support vector, (N, vectors)."""
    vectors, kind = weights["support_vectors"], attributes["kernel_type"]
    if kind == "LINEAR":
        return x @ vectors.T
    gamma = weights["gamma"]
    if kind == "RBF":
        return op.Exp(-gamma * _squared_distances(attributes, x, vectors))
    product = gamma * (x @ vectors.T) + weights["coef0"]
    return op.Tanh(product) if kind == "SIGMOID" else op.Pow(product, np.float32(attributes["kernel_params"][2]))


def _squared_distances(attributes: Attributes, x: Value, vectors: Value) -> Value:
    """‖x - s‖², as ‖x‖² - 2 x·s + ‖s‖², first moved to the middle of the vectors, where little cancels."""
    flat = np.array(attributes["support_vectors"], np.float32)
    middle = flat.reshape(-1, *(vectors.shape or ())[1:]).mean(axis=0)
    x, vectors = x - middle, vectors - middle
    squares = op.ReduceSum(x * x, [1]) - 2 * (x @ vectors.T) + op.ReduceSum(vectors * vectors, [1]).T
    return op.Max(squares, 0.0)


# -- SVMRegressor


def _read_regressor(attributes: Attributes) -> dict[str, np.ndarray] | None:
    """The weights; without support vectors, coefficients (features,) of a linear model."""
    n = attributes["n_supports"]
    coefficients = np.asarray(attributes.get("coefficients", ()), np.float32)
    rho = np.asarray(attributes.get("rho", ()), np.float32)
    _check(len(rho) == 1, f"{len(rho)} numbers in rho, where one was expected")
    fits = len(coefficients) == n if n else len(coefficients) > 0
    _check(fits, f"{len(coefficients)} coefficients of {n} vectors")
    kernel = _read_kernel(attributes, n) if n else {}
    if kernel is None:
        return None
    return {**kernel, "coefficients": coefficients, "rho": rho}


def _regress(attributes: Attributes, inputs: Sequence[Value], weights: Mapping[str, Value]) -> list[Value]:
    """Σ coefficient k(x, vector) + rho; of a single class, whether that is positive."""
    kernel = _apply_kernel(attributes, inputs[0], weights) if attributes["n_supports"] else inputs[0]
    score = kernel @ op.Unsqueeze(weights["coefficients"], [1]) + weights["rho"]
    return [op.Where(score > 0, np.float32(1), np.float32(-1)) if attributes["one_class"] else score]


# -- SVMClassifier


def _read_linear_classifier(attributes: Attributes) -> dict[str, np.ndarray] | None:
    """The weights without support vectors, in order; of rho, onnxruntime reads the first number."""
    classes = len(attributes.get("classlabels_ints") or attributes.get("classlabels_strings") or ())
    coefficients, rho = (np.asarray(attributes.get(n, ()), np.float32) for n in ("coefficients", "rho"))
    # Of two classes, onnxruntime takes the second if any score is positive.
    is_usual = classes > 2 and len(rho) and len(coefficients) and not len(coefficients) % classes
    return {"coefficients": coefficients, "rho": rho} if is_usual else None


def _read_classifier(attributes: Attributes) -> dict[str, np.ndarray] | None:
    """The weights; coefficients are (classes - 1, vectors), row by row."""
    if not attributes.get("vectors_per_class"):
        return _read_linear_classifier(attributes)
    classes, vectors = len(attributes.get("vectors_per_class") or ()), sum(attributes.get("vectors_per_class") or ())
    pairs = classes * (classes - 1) // 2
    arrays = {n: np.asarray(attributes.get(n, ()), np.float32) for n in ("coefficients", "rho", "prob_a", "prob_b")}
    kernel = _read_kernel(attributes, vectors) if vectors else None
    sizes = {"coefficients": (classes - 1) * vectors, "rho": pairs}
    if arrays["prob_a"].size:
        sizes |= {"prob_a": pairs, "prob_b": pairs}
    labels = attributes.get("classlabels_ints") or attributes.get("classlabels_strings") or ()
    _check(len(labels) == classes, f"{len(labels)} labels of {classes} classes")
    for n, size in sizes.items():
        _check(len(arrays[n]) == size, f"{len(arrays[n])} numbers in {n}, where {size} were expected")
    if kernel is None or classes < 2:
        return None
    if attributes["post_transform"] != "NONE" and "prob_a" not in sizes and classes == 2:
        return None  # Versions of onnxruntime differ.
    return {**kernel, **{n: arrays[n] for n in sizes}}


def _compare(attributes: Attributes, x: Value, weights: Mapping[str, Value]) -> Value:
    """The score of each pair of classes, positive for the first of them, (N, pairs)."""
    sizes = attributes["vectors_per_class"]
    starts, n = np.cumsum([0, *sizes]), sum(sizes)
    pairs = list(combinations(range(len(sizes)), 2))
    places = np.full((n, len(pairs)), len(attributes["coefficients"]))
    for column, (i, j) in enumerate(pairs):
        for mine, other in ((i, j - 1), (j, i)):
            rows = np.arange(starts[mine], starts[mine + 1])
            places[rows, column] = other * n + rows
    coefficients = op.Concat(weights["coefficients"], np.zeros(1, np.float32), axis=0)
    return _apply_kernel(attributes, x, weights) @ op.Gather(coefficients, places) + weights["rho"]


def _vote(attributes: Attributes, scores: Value) -> Value:
    """The class that most pairs decide for, (N,)."""
    classes = len(attributes["vectors_per_class"])
    pairs = list(combinations(range(classes), 2))
    first, second = (np.eye(classes, dtype=np.float32)[[pair[i] for pair in pairs]] for i in (0, 1))
    wins = op.Cast(scores > 0, to=TensorProto.FLOAT)
    return op.ArgMax(wins @ constant(first) + (1 - wins) @ constant(second), axis=1, keepdims=0)


def _classify(attributes: Attributes, inputs: Sequence[Value], weights: Mapping[str, Value]) -> list[Value]:
    """The label by votes, and the scores of pairs; or the probabilities of classes, or their scores of a product."""
    if not attributes.get("vectors_per_class"):
        classes = len(attributes.get("classlabels_ints") or attributes["classlabels_strings"])
        scores = inputs[0] @ op.Reshape(weights["coefficients"], [classes, -1]).T + op.Slice(weights["rho"], [0], [1])
        label = to_labels(attributes, op.ArgMax(scores, axis=1, keepdims=0))
        return [label, post_transform(scores, attributes["post_transform"], classes)]
    scores = _compare(attributes, inputs[0], weights)
    label = to_labels(attributes, _vote(attributes, scores))
    classes, transform = len(attributes["vectors_per_class"]), attributes["post_transform"]
    if "prob_a" in weights:
        pairs = op.Clip(op.Sigmoid(-(scores * weights["prob_a"] + weights["prob_b"])), 1e-7, 1 - 1e-7)
        return [label, post_transform(_couple(pairs, classes), transform, classes)]
    if classes == 2:
        return [label, op.Concat(-scores, scores, axis=1)]
    return [label, post_transform(scores, transform, len(attributes["rho"]))]


def _couple(pairs: Value, classes: int) -> Value:
    """Probabilities of classes by pair probabilities, by the iteration of Wu, Lin and Weng (2004) as LIBSVM stops it.

    It minimizes Σ (r[j, i] p[i] - r[i, j] p[j])² over p of sum 1, where r[i, j] is the probability of class i against
    class j; each row of the batch until it has converged.
    """
    column = {pair: op.Slice(pairs, [i], [i + 1], [1]) for i, pair in enumerate(combinations(range(classes), 2))}
    r = {**column, **{(j, i): 1 - v for (i, j), v in column.items()}}
    q = [[_add_up(r[k, i] * r[k, i] for k in range(classes) if k != i) if i == j
          else -r[j, i] * r[i, j] for j in range(classes)] for i in range(classes)]
    tolerance = np.float32(0.005 / classes)

    def multiply(p: Sequence[Value]) -> tuple[list[Value], Value, Value]:
        """Q p, pᵀ Q p and whether a row has not converged."""
        qp = [_add_up(q[i][j] * p[j] for j in range(classes)) for i in range(classes)]
        pqp = _add_up(p[i] * qp[i] for i in range(classes))
        error = op.Max(*(op.Abs(qp[i] - pqp) for i in range(classes)))
        return qp, pqp, error >= tolerance

    def iterate(k: Value, going: Value, old: Value) -> tuple[Value, Value]:
        p = [op.Slice(old, [i], [i + 1], [1]) for i in range(classes)]
        qp, pqp, is_active = multiply(p)
        for i in range(classes):
            step = (pqp - qp[i]) / q[i][i]
            pqp = (pqp + step * (step * q[i][i] + 2 * qp[i])) / ((1 + step) * (1 + step))
            p = [(p[j] + step if i == j else p[j]) / (1 + step) for j in range(classes)]
            qp = [(qp[j] + step * q[i][j]) / (1 + step) for j in range(classes)]
        new = op.Where(is_active, op.Concat(*p, axis=1), old)
        return op.ReduceMax(op.Cast(is_active, to=TensorProto.INT32), keepdims=0) > 0, new

    first = op.Expand(np.full((1, classes), 1 / classes, np.float32), op.Concat(op.Shape(pairs, end=1), [1], axis=0))
    return loop(iterate, 100, first)


def _add_up(values: Iterable[Value]) -> Value:
    return reduce(operator.add, values)


SVM = {
    "SVMClassifier": MlOperator(_read_classifier, _classify, _write, reads_rows=True),
    "SVMRegressor": MlOperator(_read_regressor, _regress, _write, reads_rows=True),
}
