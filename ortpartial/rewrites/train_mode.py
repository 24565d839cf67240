"""Training mode and inference mode: Dropout by masks, and BatchNormalization by the statistics of the batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.autodiff import broadcast_channels
from ortpartial.exceptions import ModelError
from ortpartial.graph import Node, Value, cast, make_rewriter, op, topological, variable
from ortpartial.model import Model

__all__ = ["DropoutMask", "RunningStatistic", "TrainingModel", "find_moving_statistics", "find_statistics",
           "to_inference_mode", "to_training_mode"]


@dataclass(frozen=True)
class DropoutMask:
    """The factors of a Dropout: 1 / keep with the probability `keep`, else 0.

    Parameters
    ----------
    value : Value
        The input of the graph that holds them.
    keep : float
        The probability to keep an element.
    """

    value: Value
    keep: float


@dataclass(frozen=True)
class RunningStatistic:
    """A running mean or variance of a BatchNormalization: r ← r·momentum + b·(1 - momentum).

    Parameters
    ----------
    name : str
        The initializer that holds r.
    batch : Value
        b, the mean or variance of the batch. The variance is biased, as in ONNX; torch's running variance is not.
    momentum : float
        The attribute of the node.
    """

    name: str
    batch: Value
    momentum: float

    def update(self, r: Value) -> Value:
        """The running statistic after the batch."""
        return r * self.momentum + self.batch * (1 - self.momentum)


@dataclass(frozen=True)
class TrainingModel:
    """A model in training mode, with the state that the caller keeps for it.

    Parameters
    ----------
    model : Model
        The rewritten model.
    masks : dict of str to DropoutMask
        Inputs that the caller draws for each run, by name.
    statistics : list of RunningStatistic
        The running statistics that the caller updates after each run.
    """

    model: Model
    masks: dict[str, DropoutMask] = field(default_factory=dict)
    statistics: list[RunningStatistic] = field(default_factory=list)


def find_statistics(model: Model) -> list[str]:
    """The initializers that hold the running mean or variance of a BatchNormalization.

    Parameters
    ----------
    model : Model
        The model.

    Returns
    -------
    list of str
    """
    nodes = topological(list(model.outputs.values()))
    statistics = {x for node in nodes if node.op_type == "BatchNormalization" for x in node.inputs[3:5]}
    return [n for n, v in model.initializers.items() if v in statistics]


def find_moving_statistics(model: Model, outputs: Collection[str], weights: Collection[str]) -> list[str]:
    """The running statistics behind some outputs, each of which nothing else may use.

    Parameters
    ----------
    model : Model
        The model.
    outputs : collection of str
        The outputs that are trained.
    weights : collection of str
        The initializers that are trained.

    Returns
    -------
    list of str

    Raises
    ------
    ModelError
        A statistic is among the weights, or another node reads it: exporters merge initializers of equal content.
    """
    model = replace(model, outputs={o: model.outputs[o] for o in outputs})
    names = {model.initializers[n]: n for n in find_statistics(model)}
    if trained := [n for n in names.values() if n in weights]:
        raise ModelError(f"{trained[0]!r} is a running statistic, which train_mode=True updates by itself, and is "
                         f"among the weights to train; leave it out.")
    for node in topological(list(model.outputs.values())):
        for x in node.inputs[: 3 if node.op_type == "BatchNormalization" else None]:
            if x in names:
                raise ModelError(f"{names[x]!r} is a running statistic, and {node!r} reads it for something else; give "
                                 f"each an initializer of its own.")
    return list(names.values())


def to_training_mode(model: Model, mask: Callable[[Value, float, int], Value] | None = None) -> TrainingModel:
    """The model with Dropout and BatchNormalization in training mode, written in plain operators.

    Dropout multiplies by a mask that is an input, so that the state of the random numbers can be saved.
    BatchNormalization normalizes by the mean and the variance of the batch.

    Parameters
    ----------
    model : Model
        The model, its running statistics loaded as variables.
    mask : callable, optional
        From the input of a Dropout, the probability to keep an element and the number of the Dropout to a computed
        mask, in place of an input.

    Returns
    -------
    TrainingModel

    Raises
    ------
    ModelError
        The graph computes the ratio of a Dropout, or a BatchNormalization is in the body of a branch or a loop.
    """
    masks: dict[str, DropoutMask] = {}
    statistics: list[RunningStatistic] = []
    names = {v: n for n, v in model.initializers.items()}
    top_level = frozenset(topological(list(model.outputs.values())))
    numbers = itertools.count()

    def change(node: Node, inputs: Sequence[Any]) -> list[Value] | None:
        if node.op_type == "Dropout":
            return dropout(node, inputs[0])
        return batch_norm(node, *inputs) if node.op_type == "BatchNormalization" else None

    def dropout(node: Node, x: Value) -> list[Value]:
        ratio = node.inputs[1] if len(node.inputs) > 1 else None
        if ratio is not None and ratio.array is None:
            raise ModelError(f"{node!r} computes its ratio, and only a constant one can be trained with; call eval().")
        keep = 1 - (0.5 if ratio is None else _decimal(ratio.array))
        factors = add_mask(x, keep) if mask is None else mask(x, keep, next(numbers))
        return [x * factors, factors > 0]

    def add_mask(x: Value, keep: float) -> Value:
        name = f"mask_{len(masks)}"
        while name in model.values:
            name += "_"
        masks[name] = DropoutMask(variable(name, x.dtype, x.shape), keep)
        return masks[name].value

    def batch_norm(node: Node, x: Value, scale: Value, b: Value, mean: Value, var: Value) -> list[Value]:
        axes, momentum = [0, *range(2, x.rank)], _decimal(node.attribute("momentum"))
        m = op.ReduceMean(x, axes, keepdims=0)
        xc = x - broadcast_channels(m, x)
        v = op.ReduceMean(xc * xc, axes, keepdims=0)
        k = cast(scale, x) / op.Sqrt(v + node.attribute("epsilon"))
        for old, new in ((node.inputs[3], m), (node.inputs[4], v)):
            if old in names:
                if node not in top_level:
                    raise ModelError(f"{node!r} is in the body of a branch or a loop, where the running statistics of "
                                     f"a batch cannot be kept; train it as it was exported.")
                statistics.append(RunningStatistic(names[old], cast(new, old), momentum))
        running = (cast(r, x) * momentum + s * (1 - momentum) for r, s in ((mean, m), (var, v)))
        return [xc * broadcast_channels(k, x) + broadcast_channels(cast(b, x), x), *(cast(r, mean) for r in running)]

    new = make_rewriter(list(model.outputs.values()), {}, change)
    outputs = {n: new(v) for n, v in model.outputs.items()}
    inputs = {**model.inputs, **{n: m.value for n, m in masks.items()}}
    return TrainingModel(replace(model, inputs=inputs, outputs=outputs), masks, statistics)


def _decimal(number: Any) -> float:
    """The shortest decimal fraction of a float32: 0.1 instead of 0.100000001."""
    return float(str(np.float32(number)))


def to_inference_mode(proto: ModelProto) -> ModelProto:
    """A model that was exported in training mode, with Dropout and BatchNormalization in inference mode.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model, which is not changed.

    Returns
    -------
    onnx.ModelProto
    """
    copy = ModelProto()
    copy.CopyFrom(proto)
    for node in copy.graph.node:
        if node.op_type == "Dropout":
            del node.input[2:]
        elif node.op_type == "BatchNormalization":
            kept = [a for a in node.attribute if a.name != "training_mode"]
            del node.attribute[:], node.output[1:]
            node.attribute.extend(kept)
    return copy
