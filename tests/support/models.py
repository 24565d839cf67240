"""Small models that several tests train, and their counterparts in torch."""

import numpy as np
from onnx import numpy_helper

from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable


def linear(features: int = 4, outputs: int = 1, dtype: str = "float32", rows="N", seed: int = 1):
    """y = x coef + intercept."""
    rng = np.random.default_rng(seed)
    x = variable("x", dtype, [rows, features])
    coef = constant(rng.normal(size=(features, outputs)).astype(dtype), hint="coef")
    intercept = constant(rng.normal(size=outputs).astype(dtype), hint="intercept")
    return build([x], {"y": op.Gemm(x, coef, intercept)})


def mlp(features: int = 4, outputs: int = 1, dtype: str = "float32", hidden: int = 8, seed: int = 1):
    """y = tanh(x W1 + b1) W2 + b2."""
    rng = np.random.default_rng(seed)

    def weight(name, *shape):
        return constant((rng.normal(size=shape) / np.sqrt(shape[0])).astype(dtype), hint=name)

    x = variable("x", dtype, ["N", features])
    h = op.Tanh(x @ weight("W1", features, hidden) + weight("b1", hidden))
    return build([x], {"y": h @ weight("W2", hidden, outputs) + weight("b2", outputs)})


def parameter(name, *shape, positive=False):
    """An initializer whose content follows from its name."""
    a = np.random.default_rng(sum(map(ord, name))).normal(size=shape) * 0.3
    return constant((np.exp(a) if positive else a).astype(np.float32), hint=name)


def normalization(h, n, i, **attributes):
    """BatchNormalization over n channels, with initializers of its own."""
    weights = [parameter(f"{name}{i}", n, positive=name in ("scale", "var")) for name in ("scale", "b", "mean", "var")]
    return op.BatchNormalization(h, *weights, n_outputs=1, **attributes)[0]


def net(ratio=None, statistics=True):
    """Convolution, normalization, Dropout, dense layer, normalization."""
    h = op.Conv(x := variable("x", "float32", ["N", 2, 5, 5]), parameter("K", 3, 2, 3, 3))
    h = normalization(h, 3, 1, momentum=0.8, epsilon=1e-3) if statistics else h
    h = op.Flatten(op.Relu(h))
    if ratio is not None:
        h = op.Dropout(h, constant(np.float32(ratio).reshape(())))
    h = h @ parameter("W", 27, 2)
    h = normalization(h, 2, 2) if statistics else h
    if ratio is not None:
        h = op.Dropout(h * 2)
    return build([x], {"y": h})


def images(rows: int = 100):
    """X and y for `net`."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 2, 5, 5)).astype(np.float32), rng.normal(size=(rows, 2)).astype(np.float32)


def torch_linear(w, x):
    return x @ w["coef"] + w["intercept"]


def torch_mlp(w, x):
    return (x @ w["W1"] + w["b1"]).tanh() @ w["W2"] + w["b2"]


def two_in_two_out(dtype: str = "float32"):
    """price = (a + b) w, kind = a v; an input c and an output unused that training has no use for."""
    rng = np.random.default_rng(2)
    a, b, c = (variable(n, dtype, ["N", 3]) for n in "abc")
    w, v = (constant(rng.normal(size=s).astype(dtype), hint=n) for n, s in (("w", (3, 1)), ("v", (3, 2))))
    return build([a, b, c], {"price": (a + b) @ w, "kind": a @ v, "unused": c @ w})


def weights_of(model):
    """The initializers of a model by name."""
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def data(rows: int = 60, features: int = 4, dtype: str = "float32", seed: int = 3):
    """X, y and weights of the rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, features))
    y = np.sin(X[:, :1]) + X[:, 1:2] - 0.5
    return X.astype(dtype), y.astype(dtype), rng.uniform(0.1, 2, rows).astype(dtype)


def assert_close(tensors, expected, tol: float) -> None:
    """max|w - w'| <= tol max|w'|, tensor by tensor."""
    for name, e in expected.items():
        error = np.abs(tensors[name] - e).max() / np.abs(e).max()
        assert error <= tol, f"{name} is off by {error:.1e}"


def stack_layers(*names):
    """A model of products one after the other, each with a weight of shape (4, 4) and a bias."""
    h = x = variable("x", "float32", ["N", 4])
    for name in names:
        h = h @ parameter(f"{name}.weight", 4, 4) + parameter(f"{name}.bias", 4)
    return build([x], {"y": h})
