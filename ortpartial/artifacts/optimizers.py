"""The optimizer models of the training artifacts: AdamWOptimizer, SGDOptimizerV2 and the clipping of gradients."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
from onnx import ModelProto, NodeProto

from ortpartial.annotations import Attributes
from ortpartial.exceptions import ModelError
from ortpartial.graph import Value, attribute_value, cast, constant, op, variable
from ortpartial.model import read

__all__ = ["AdamW", "OptimizerModel", "read_optimizer"]


@dataclass(frozen=True)
class OptimizerModel(ABC):
    """The update that an optimizer model computes.

    Parameters
    ----------
    max_norm : float or None
        The largest norm of all gradients together; None where they are not clipped.
    """

    max_norm: float | None = None

    @property
    @abstractmethod
    def momentums(self) -> tuple[str, ...]:
        """The names of the states of each parameter, as a checkpoint has them."""

    @abstractmethod
    def update(self, w: Value, g: Value, momentums: Sequence[Value], rate: Value, step: Value) -> list[Value]:
        """The new parameter and its new momentums, where `step` counts the steps that were taken before."""

    def clip(self, gradients: Sequence[Value]) -> list[Value]:
        """g · min(1, max_norm / (‖all g‖₂ + 10⁻⁶))."""
        if self.max_norm is None:
            return list(gradients)
        norm = op.Sqrt(reduce(add, (op.ReduceSum(g * g, keepdims=0) for g in gradients)))
        factor = op.Min(self.max_norm / (norm + 1e-6), 1.0)
        return [g * factor for g in gradients]


@dataclass(frozen=True)
class SGD(OptimizerModel):
    """w ← w - r g."""

    @property
    def momentums(self) -> tuple[str, ...]:
        return ()

    def update(self, w: Value, g: Value, momentums: Sequence[Value], rate: Value, step: Value) -> list[Value]:
        return [w - cast(rate, w) * g]


@dataclass(frozen=True)
class AdamW(OptimizerModel):
    """m ← αm + (1-α)g;  v ← βv + (1-β)g², and the step with the weight decay as torch or as transformers has them.

    In mode 0, of torch: w ← w - r λ w - r m̂ / (√v̂ + ε). In mode 1, of transformers: w ← (1 - r λ)(w - r̂ m / (√v + ε)),
    where r̂ is r · √(1-βᵏ) / (1-αᵏ).

    Parameters
    ----------
    max_norm : float or None
        As for `OptimizerModel`.
    alpha, beta, epsilon, weight_decay : float
        α, β, ε and λ.
    adam_mode : int
        0 or 1.
    correct_bias : int
        Whether m̂ and v̂ differ from m and v.
    """

    alpha: float = 0.9
    beta: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 1e-2
    adam_mode: int = 0
    correct_bias: int = 1

    @property
    def momentums(self) -> tuple[str, ...]:
        return "momentum0", "momentum1"

    def update(self, w: Value, g: Value, momentums: Sequence[Value], rate: Value, step: Value) -> list[Value]:
        m, v = momentums
        m = self.alpha * m + (1 - self.alpha) * g
        v = self.beta * v + (1 - self.beta) * (g * g)
        first, second = (self._correction(b, step) for b in (self.alpha, self.beta))
        wide = cast(rate, first)
        if self.adam_mode == 0:
            w = w - cast(wide * self.weight_decay, w) * w if self.weight_decay else w
            denominator = op.Sqrt(v / cast(second, v)) + self.epsilon
            return [w - cast(wide / first, w) * m / denominator, m, v]
        w = w - cast(wide * op.Sqrt(second) / first, w) * m / (op.Sqrt(v) + self.epsilon)
        return [w - cast(wide * self.weight_decay, w) * w if self.weight_decay else w, m, v]

    def _correction(self, decay: float, step: Value) -> Value:
        """1 - decayᵏ, in double precision."""
        if not self.correct_bias:
            return constant(np.float64(1))
        return 1 - op.Pow(constant(np.float64(decay)), cast(step, variable("double", np.float64, [])) + 1)


def read_optimizer(source: ModelProto | bytes | str | os.PathLike[str]) -> OptimizerModel:
    """Read the update of an ``optimizer_model.onnx``.

    Parameters
    ----------
    source : onnx.ModelProto, bytes or path
        The model.

    Returns
    -------
    OptimizerModel

    Raises
    ------
    ModelError
        It is no optimizer model, or has an operator or an attribute that is not known; the message names it.

    Examples
    --------
    >>> from onnx.parser import parse_model
    >>> read_optimizer(parse_model('''
    ...     <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    ...     optimizer (float[1] learning_rate, int64[1] step, seq(float[]) params, seq(float[]) gradients,
    ...                seq(float[]) first_order_moments) => (bool[1] done)
    ...     { done = com.microsoft.SGDOptimizerV2 (learning_rate, params, gradients) }'''))
    SGD(max_norm=None)
    """
    graph = read(source).graph
    nodes = {node.op_type: node for node in graph.node}
    if unknown := sorted(set(nodes) - _KNOWN):
        raise ModelError(f"The optimizer model has {unknown[0]}; {', '.join(sorted(_KNOWN))} are known.")
    if len(nodes) != len(graph.node):
        raise ModelError("The optimizer model has the same operator twice; one of each was expected.")
    clipping = nodes.pop("InplaceClipGradNorm", None)
    if len(nodes) != 1:
        raise ModelError(f"The optimizer model has {len(nodes)} optimizers; one was expected.")
    (node,) = nodes.values()
    gradients = _expect(clipping, ["gradients"]) if clipping else "gradients"
    max_norm = _attributes(clipping, {"max_norm": 1.0, "norm_type": "fro"})["max_norm"] if clipping else None
    if node.op_type == "SGDOptimizerV2":
        _expect(node, ["learning_rate", "params", gradients])
        return SGD(max_norm)
    _expect(node, ["learning_rate", "step", "params", gradients, "first_order_moments", "second_order_moments"])
    known = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-8, "weight_decay": 1e-2, "adam_mode": 0, "correct_bias": 1}
    settings = _attributes(node, known)
    if settings["adam_mode"] not in (0, 1):
        raise ModelError(f"AdamWOptimizer has the adam_mode {settings['adam_mode']}; 0 and 1 are known.")
    return AdamW(max_norm, **settings)


_KNOWN = {"AdamWOptimizer", "InplaceClipGradNorm", "SGDOptimizerV2"}


def _expect(node: NodeProto, inputs: Sequence[str]) -> str:
    """The first output of a node that has to have the inputs of `generate_artifacts`."""
    if list(node.input)[: len(inputs)] != list(inputs):
        raise ModelError(f"{node.op_type} reads {', '.join(node.input)}; {', '.join(inputs)} were expected.")
    return node.output[0]


def _attributes(node: NodeProto, known: Mapping[str, float | str]) -> Attributes:
    """The attributes of a node, real numbers as the decimal that was meant, as 0.9 is not the float32 next to it."""
    found = {a.name: attribute_value(a) for a in node.attribute}
    if unknown := sorted(set(found) - set(known)):
        raise ModelError(f"{node.op_type} has the attribute {unknown[0]!r}, which is not known.")
    if found.get("norm_type", "fro") != "fro":
        raise ModelError(f"{node.op_type} clips by the norm {found['norm_type']!r}; 'fro' is known.")
    return {**known, **found}
