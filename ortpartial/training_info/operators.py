"""The operators of the training standard as expressions: Gradient, Adagrad, Adam and Momentum."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.autodiff import backpropagate
from ortpartial.exceptions import GraphError
from ortpartial.graph import Operators, Value, build, cast, constant, ones_like, op, rewrite, variable, zeros_like
from ortpartial.model import load, register_expansion

__all__ = ["DOMAIN", "lower_training_operators", "training"]

#: The domain of ONNX's training operators.
DOMAIN = "ai.onnx.preview.training"

#: The namespace of these operators: ``training.Adam(...)``.
training: Any = Operators(DOMAIN)

Attributes = Mapping[str, Any]


def lower_training_operators(model: ModelProto | bytes | str | os.PathLike[str]) -> ModelProto:
    """Rewrite Gradient, Adagrad, Adam and Momentum in operators that every runtime has.

    The ``Gradient`` of a tensor that is not a scalar is the gradient of the sum of its elements. If it is fed other
    values than its named tensors have, the graph between them is computed again at these values. Another ``Gradient``
    may differentiate its result.

    Parameters
    ----------
    model : onnx.ModelProto, bytes or path
        The model; it is not written to. Its training information is left out.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        A node violates the specification; the message names it.
    NoGradientError
        An operator on the path that a ``Gradient`` differentiates has no gradient.

    References
    ----------
    .. [1] ONNX, operators of the domain ai.onnx.preview.training, version 1.

    Examples
    --------
    >>> from onnx.parser import parse_model
    >>> model = parse_model('''
    ... <ir_version: 8, opset_import: ["": 21, "ai.onnx.preview.training": 1]>
    ... square (float[N] x) => (float[N] dx) {
    ...     y = Mul(x, x)
    ...     dx = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x)
    ... }''')
    >>> sorted({node.op_type for node in lower_training_operators(model).graph.node})
    ['Expand', 'Mul', 'Shape']
    """
    loaded = load(model)
    return build(loaded.inputs, loaded.outputs, name=loaded.proto.graph.name or "graph")


def _gradient(inputs: Sequence[Value | None], attributes: Attributes, wanted: Sequence[bool]) -> list[Value | None]:
    """∂Σy/∂x for every x, at the values that are fed.

    The inputs are the values fed, then the tensors that the attributes name: xs, zs and y.
    """
    values = [v for v in inputs if v is not None]
    if len(values) < len(inputs):
        raise GraphError("Gradient cannot do without any of its inputs.")
    n = len(values) // 2
    fed, named, y = values[:n], values[n:-1], values[-1]
    xs = named[: len(attributes["xs"])]
    for name, v in zip([*attributes["xs"], attributes["y"]], [*xs, y], strict=True):
        if not v.is_float:
            raise GraphError(f"Gradient: {name!r} holds {v.dtype}, and only real numbers have a gradient.")
    proxies = _proxies([*attributes["xs"], *attributes.get("zs", ())], named, fed)
    if proxies:
        (y,) = rewrite([y], {a: p for a, (p, _) in proxies.items()})
    independent = [proxies[v][0] if v in proxies else v for v in named]
    wrt = [v for v, w in zip(independent[: len(xs)], wanted, strict=False) if w]
    # Paths end at the named tensors, even where a tensor is computed from another.
    cotangents = backpropagate([y], [ones_like(y)], wrt, set(independent))
    gradients = [zeros_like(x) if d is None else d for x, d in zip(wrt, cotangents, strict=True)]
    if proxies:
        gradients = rewrite(gradients, dict(proxies.values()))
    results = iter(gradients)
    return [next(results) if w else None for w in wanted[: len(xs)]]


def _proxies(names: Sequence[str], named: Sequence[Value], fed: Sequence[Value]) -> dict[Value, tuple[Value, Value]]:
    """A variable for each named tensor that is fed another value, and that value; two of them may be the same."""
    proxies = {}
    for name, a, b in zip(names, named, fed, strict=True):
        if a != b:
            if a.dtype != b.dtype or not _fits(a, b):
                raise GraphError(f"Gradient: {name!r} is {a!r} and is fed {b!r}.")
            proxies[a] = Value(b.type), b
    return proxies


def _fits(a: Value, b: Value) -> bool:
    """Whether two values may have the same shape."""
    if a.shape is None or b.shape is None:
        return True
    pairs = zip(a.shape, b.shape, strict=False)
    return len(a.shape) == len(b.shape) and all(m == n or not (isinstance(m, int) and isinstance(n, int))
                                                for m, n in pairs)


def _number(value: float, like: Value) -> Value:
    """A setting in the dtype of a tensor. Differences such as 1 - β are taken before, in double precision."""
    return constant(np.asarray(value, like.dtype))


def _regularized(x: Value, g: Value, norm: float) -> Value:
    """g + norm · x."""
    return g if norm == 0 else _number(norm, x) * x + g


def _adagrad(r: Value, t: Value, x: Value, g: Value, h: Value, a: Attributes) -> tuple[Value, ...]:
    """h ← h + g²;  x ← x - r / (1 + t·decay) · g / (√h + ε)."""
    g = _regularized(x, g, a["norm_coefficient"])
    h = h + g * g
    if a["decay_factor"]:
        r = _double(r) / (1 + _double(t) * a["decay_factor"])
    return x - cast(r, x) * g / (op.Sqrt(h) + _number(a["epsilon"], x)), h


def _adam(r: Value, t: Value, x: Value, g: Value, v: Value, h: Value, a: Attributes) -> tuple[Value, ...]:
    """v ← αv + (1-α)g;  h ← βh + (1-β)g²;  x ← (1 - post)(x - r·√(1-βᵗ)/(1-αᵗ) · v / (√h + ε)), r alone at t = 0."""
    alpha, beta = a["alpha"], a["beta"]
    g = _regularized(x, g, a["norm_coefficient"])
    v = _number(alpha, x) * v + _number(1 - alpha, x) * g
    h = _number(beta, x) * h + _number(1 - beta, x) * (g * g)
    # At t = 0 the correction is 0/0; Where does not choose it, but it must be a number all the same.
    powers = op.Where(t > 0, _double(t), constant(1.0, np.float64))
    correction = op.Sqrt(1 - op.Pow(constant(beta, np.float64), powers)) / (
        1 - op.Pow(constant(alpha, np.float64), powers))
    rate = cast(_double(r) * op.Where(t > 0, correction, constant(1.0, np.float64)), x)
    x = x - rate * (v / (op.Sqrt(h) + _number(a["epsilon"], x)))
    post = a["norm_coefficient_post"]
    return (_number(1 - post, x) * x if post else x), v, h


def _momentum(r: Value, t: Value, x: Value, g: Value, v: Value, a: Attributes) -> tuple[Value, ...]:
    """v ← αv + βg, with β = 1 at t = 0;  x ← x - r·v, or, in mode nesterov, x - r(g + αv)."""
    if a["mode"] not in ("standard", "nesterov"):
        raise GraphError(f"Momentum: mode is {a['mode']!r}; expected 'standard' or 'nesterov'.")
    g = _regularized(x, g, a["norm_coefficient"])
    scaled = g if a["beta"] == 1 else op.Where(t > 0, _number(a["beta"], x), _number(1, x)) * g
    v = _number(a["alpha"], x) * v + scaled
    return x - cast(r, x) * (g + _number(a["alpha"], x) * v if a["mode"] == "nesterov" else v), v


def _double(v: Value) -> Value:
    """v in double precision."""
    return cast(v, variable("double", np.float64, []))


def _for_each_tensor(
    op_type: str, formula: Callable[..., tuple[Value, ...]], count: int
) -> Callable[..., list[Value | None]]:
    """Apply the formula of a tensor to all: the inputs are `count` groups, each with an input for every tensor."""

    def expand(inputs: Sequence[Any], attributes: Attributes, wanted: Sequence[bool]) -> list[Value | None]:
        r, t, *rest = inputs
        n, left = divmod(len(rest), count)
        if left or not n or None in rest:
            raise GraphError(f"{op_type} has {len(rest)} inputs after R and T; a multiple of {count} was expected, "
                             f"{count} for each tensor.")
        scalars = [op.Reshape(s, constant(np.zeros(0, np.int64))) if s.shape != () else s for s in (r, t)]
        columns = [rest[i * n : (i + 1) * n] for i in range(count)]
        for group in zip(*columns, strict=True):
            for v in group[1:]:
                if v.dtype != group[0].dtype or not _fits(group[0], v):
                    raise GraphError(f"{op_type}: {v!r} belongs to {group[0]!r}, but has another type or shape.")
        new = [formula(*scalars, *group, attributes) for group in zip(*columns, strict=True)]
        stated = [tuple(v.stated(x.shape) for v in results) for results, x in zip(new, columns[0], strict=True)]
        return [v for kind in zip(*stated, strict=True) for v in kind]

    return expand


register_expansion("Gradient", DOMAIN, _gradient)
register_expansion("Adagrad", DOMAIN, _for_each_tensor("Adagrad", _adagrad, 3))
register_expansion("Adam", DOMAIN, _for_each_tensor("Adam", _adam, 4))
register_expansion("Momentum", DOMAIN, _for_each_tensor("Momentum", _momentum, 3))
