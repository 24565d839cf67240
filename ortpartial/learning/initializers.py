"""Initializers: Glorot-uniform values for the weights that something is multiplied with."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ortpartial.graph import Value, topological
from ortpartial.model import Model

__all__ = ["draw_weights", "glorot_bounds"]

#: Operators with a sum of products, or a table, and which of their inputs are the factors that are drawn.
_FACTORS = {"Conv": (1,), "ConvTranspose": (1,), "Einsum": (0, 1), "GRU": (1, 2), "Gather": (0,), "Gemm": (0, 1),
            "LSTM": (1, 2), "MatMul": (0, 1), "RNN": (1, 2)}

#: Operators through which a factor is only looked at.
_VIEWS = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def draw_weights(model: Model, weights: Collection[str], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """First values of weights: factors of products from U(-b, b), b = √(6 / (fan in + fan out)); others as they are.

    The factors are the weights of Gemm, MatMul, Einsum, convolutions and recurrent operators, and the table of Gather,
    also behind a Transpose or a Reshape. Biases and the scales of normalizations keep what the model holds. The fans of
    a weight of shape (m, n, k...) are m·∏k and n·∏k, whichever is which.

    Parameters
    ----------
    model : Model
        The model.
    weights : collection of str
        Initializers that are trained.
    rng : numpy.random.Generator
        Where the numbers come from.

    Returns
    -------
    dict of str to numpy.ndarray
        By name, of the shape and dtype that the model has.

    References
    ----------
    .. [1] X. Glorot, Y. Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS,
       2010.

    Examples
    --------
    >>> from ortpartial.graph import build
    >>> from ortpartial.graph import constant, variable
    >>> from ortpartial.model import load
    >>> x, w, b = variable("x", "float32", ["N", 2]), constant([[0.0], [0.0]], hint="w"), constant([7.0], hint="b")
    >>> first = draw_weights(load(build([x], {"y": x @ w + b})), ["w", "b"], np.random.default_rng(0))
    >>> bool((abs(first["w"]) < 2 ** 0.5).all() and first["w"].all()), first["b"].tolist()
    (True, [7.0])
    """
    first = {n: model.arrays[n] for n in weights}
    for n, b in glorot_bounds(model, weights).items():
        first[n] = rng.uniform(-b, b, first[n].shape).astype(first[n].dtype)
    return first


def glorot_bounds(model: Model, weights: Collection[str]) -> dict[str, float]:
    """Which weights are drawn, and b, their bound.

    Parameters
    ----------
    model : Model
        The model.
    weights : collection of str
        Initializers that are trained.

    Returns
    -------
    dict of str to float
        Those of them that are factors, in their order.
    """
    factors = {
        _seen(x)
        for node in topological(list(model.outputs.values()))
        for i, x in enumerate(node.inputs)
        if x is not None and not node.domain and i in _FACTORS.get(node.op_type, ())
    }
    return {n: _bound(model.arrays[n].shape) for n in weights if model.initializers[n] in factors}


def _seen(v: Value) -> Value:
    """What is looked at through views."""
    while v.node is not None and v.node.op_type in _VIEWS and v.node.inputs[0] is not None:
        v = v.node.inputs[0]
    return v


def _bound(shape: Sequence[int]) -> float:
    """√(6 / (fan in + fan out)) of a weight of this shape."""
    m, n, *rest = (*shape, 1, 1)
    return float(np.sqrt(6 / max(1, (m + n) * np.prod(rest))))
