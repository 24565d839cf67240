"""Networks: the models that an estimator trains by default, linear or a multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from onnx import ModelProto

from ortpartial.graph import Value, build, constant, op, variable

__all__ = ["ACTIVATIONS", "build_network", "list_layers"]

#: Activations of the hidden layers: those of scikit-learn, and some more.
ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "identity": lambda x: x,
    "logistic": op.Sigmoid,
    "tanh": op.Tanh,
    "relu": op.Relu,
    "leaky_relu": op.LeakyRelu,
    "elu": op.Elu,
    "gelu": lambda x: op.Gelu(x, approximate="tanh"),  # without Erf, for which onnxruntime has no kernel in float64
    "swish": lambda x: x * op.Sigmoid(x),
}


def list_layers(n_hidden: int) -> list[tuple[str, str]]:
    """The names of the weights of each layer.

    Parameters
    ----------
    n_hidden : int
        Number of hidden layers.

    Returns
    -------
    list of tuple of str and str
        The matrix and the intercept, from the input to the output.

    Examples
    --------
    >>> list_layers(0), list_layers(1)
    ([('coef', 'intercept')], [('coef_0', 'intercept_0'), ('coef_1', 'intercept_1')])
    """
    if not n_hidden:
        return [("coef", "intercept")]
    return [(f"coef_{i}", f"intercept_{i}") for i in range(n_hidden + 1)]


def build_network(
    sizes: Sequence[int],
    rng: np.random.RandomState,
    *,
    activation: str = "relu",
    dropout: float = 0.0,
    dtype: str = "float32",
    output: str = "variable",
) -> ModelProto:
    """Build a multi-layer perceptron, which is a linear model without hidden layers.

    Its first weights are drawn as in scikit-learn's `MLPClassifier` and `MLPRegressor`, uniform within
    ±√(6 / (fan in + fan out)), or ±√(2 / (fan in + fan out)) before the logistic function.

    Parameters
    ----------
    sizes : sequence of int
        Number of inputs, of units of each hidden layer, and of outputs.
    rng : numpy.random.RandomState
        Source of the first weights, and drawn from in the order of scikit-learn.
    activation : str
        The function of the hidden layers, a name of `ACTIVATIONS`.
    dropout : float
        The share of the hidden units that training drops in each step.
    dtype : str
        ``"float32"`` or ``"float64"``.
    output : str
        Name of the output.

    Returns
    -------
    onnx.ModelProto
        From X of shape (N, sizes[0]) to scores of shape (N, sizes[-1]), with the weights of `list_layers`.

    Examples
    --------
    >>> model = build_network([4, 8, 3], np.random.RandomState(0))
    >>> [node.op_type for node in model.graph.node], [w.name for w in model.graph.initializer][:2]
    (['Gemm', 'Relu', 'Gemm'], ['coef_0', 'intercept_0'])
    """
    X = h = variable("X", dtype, ["N", sizes[0]])
    names = list_layers(len(sizes) - 2)
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        bound = np.sqrt((2.0 if activation == "logistic" else 6.0) / (fan_in + fan_out))
        draws = [rng.uniform(-bound, bound, shape).astype(dtype) for shape in ((fan_in, fan_out), fan_out)]
        coef, intercept = (constant(a, hint=n) for a, n in zip(draws, names[i], strict=True))
        h = op.Gemm(h, coef, intercept)
        if i < len(names) - 1:
            h = ACTIVATIONS[activation](h)
            h = op.Dropout(h, dropout) if dropout else h
    return build([X], {output: h})
