"""What if a runtime has no kernel? `lower` writes operators that onnxruntime lacks in float64 in those that it has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from .builder import build, rewritten
from .exceptions import ModelError
from .gradient import cast
from .graph import Node, Value, op
from .model import load

__all__ = ["LOWERED", "lower"]


def spatial(x: Value) -> list[int]:
    """The axes behind batch and channel."""
    return list(range(2, x.rank))


#: Operators without a float64 kernel in onnxruntime 1.19.2 and 1.31.1, each in operators that have one, exactly.
LOWERED: dict[str, Callable[..., Value]] = {
    "Elu": lambda x, *, alpha: op.Max(x, 0) + alpha * (op.Exp(op.Min(x, 0)) - 1),
    "GlobalAveragePool": lambda x: op.ReduceMean(x, spatial(x)),
    "GlobalMaxPool": lambda x: op.ReduceMax(x, spatial(x)),
    "HardSigmoid": lambda x, *, alpha, beta: op.Min(op.Max(alpha * x + beta, 0), 1),
    "LeakyRelu": lambda x, *, alpha: op.Max(x, 0) + alpha * op.Min(x, 0),
    "Mean": lambda *x: op.Sum(*x) / len(x),
    "Selu": lambda x, *, alpha, gamma: gamma * (op.Max(x, 0) + alpha * (op.Exp(op.Min(x, 0)) - 1)),
    "Softplus": lambda x: op.Max(x, 0) + op.Log(1 + op.Exp(-op.Abs(x))),
    "ThresholdedRelu": lambda x, *, alpha: x * cast(x > alpha, x),
}


def lower(model: ModelProto) -> ModelProto:
    """The model with operators that have no float64 kernel written in operators that have one.

    Parameters
    ----------
    model : onnx.ModelProto
        The model; it is not written to.

    Returns
    -------
    onnx.ModelProto
        The same object where there is nothing to do.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float64", ["N"])
    >>> [node.op_type for node in lower(build([x], {"y": op.Mean(x, x)})).graph.node]
    ['Sum', 'Div']
    """
    if not any(node.op_type in LOWERED and not node.domain for node in model.graph.node) or not _has_float64(model):
        return model
    try:
        loaded = load(model)
    except ModelError:  # The runtime may read what we do not; if not, it says why.
        return model
    new = rewritten(list(loaded.outputs.values()), _lowered)
    return build(loaded.inputs, {n: new(v) for n, v in loaded.outputs.items()}, name=model.graph.name)


def _lowered(node: Node, inputs: list[Any]) -> list[Value] | None:
    """The formula of the node's inputs and of those attributes that it asks for; None where it has a kernel."""
    if node.op_type not in LOWERED or node.outputs[0].dtype != np.float64:
        return None
    formula = LOWERED[node.op_type]
    parameters = inspect.signature(formula).parameters.values()
    return [formula(*inputs, **{p.name: node.attribute(p.name) for p in parameters if p.kind is p.KEYWORD_ONLY})]


def _has_float64(model: ModelProto) -> bool:
    """Whether anything that is declared is float64, or something is cast to it."""
    graph = model.graph
    declared = [v.type.tensor_type.elem_type for v in [*graph.input, *graph.output, *graph.value_info]]
    cast_to = [a.i for node in graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to"]
    return TensorProto.DOUBLE in {*declared, *cast_to, *(t.data_type for t in graph.initializer)}
