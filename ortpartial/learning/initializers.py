"""Glorot-uniform initialization of the weights of products, convolutions and embeddings."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ortpartial.graph import Value, topological
from ortpartial.model import Model

__all__ = ["draw_weights", "glorot_bounds"]

#: Operators whose weights are drawn, and which of their inputs are weights.
_FACTORS = {"Conv": (1,), "ConvTranspose": (1,), "Einsum": (0, 1), "GRU": (1, 2), "Gather": (0,), "Gemm": (0, 1),
            "LSTM": (1, 2), "MatMul": (0, 1), "RNN": (1, 2)}

#: Operators that may stand between an initializer and the operator whose weight it is.
_VIEWS = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def draw_weights(model: Model, weights: Collection[str], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """First values of the weights: factors from U(-b, b) with b = √(6 / (fan in + fan out)), others as in the model.

    Factors are the weights of Gemm, MatMul, Einsum, convolutions and recurrent operators, and the table of Gather, also
    behind a Transpose or a Reshape. Biases and the scales of normalizations keep the values of the model. The fans of a
    weight of shape (m, n, k...) are m·∏k and n·∏k.

    Parameters
    ----------
    model : Model
        The model.
    weights : collection of str
        Initializers that are trained.
    rng : numpy.random.Generator
        The source of the random numbers.

    Returns
    -------
    dict of str to numpy.ndarray
        By name, with the shape and dtype of the model.

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
    """The bound b of each weight that is drawn.

    Parameters
    ----------
    model : Model
        The model.
    weights : collection of str
        Initializers that are trained.

    Returns
    -------
    dict of str to float
        Of the factors among them, in their order.
    """
    factors = {
        _find_viewed(x)
        for node in topological(list(model.outputs.values()))
        for i, x in enumerate(node.inputs)
        if x is not None and not node.domain and i in _FACTORS.get(node.op_type, ())
    }
    return {n: _bound(model.arrays[n].shape) for n in weights if model.initializers[n] in factors}


def _find_viewed(v: Value) -> Value:
    """The value behind a chain of casts, reshapes and transposes."""
    while v.node is not None and v.node.op_type in _VIEWS and v.node.inputs[0] is not None:
        v = v.node.inputs[0]
    return v


def _bound(shape: Sequence[int]) -> float:
    """√(6 / (fan in + fan out)) of a weight of this shape."""
    m, n, *rest = (*shape, 1, 1)
    return float(np.sqrt(6 / max(1, (m + n) * np.prod(rest))))
