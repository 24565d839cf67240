"""Training mode and dtype of a graph: Dropout and BatchNormalization that train, and models cast to another dtype."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from ortpartial.autodiff import channels
from ortpartial.exceptions import ModelError
from ortpartial.graph import (
    FLOATS,
    Node,
    Value,
    cast,
    constant,
    make_node,
    make_rewriter,
    onnx_type,
    op,
    topological,
    variable,
)
from ortpartial.model import Model

__all__ = ["Mask", "Statistic", "TrainingModel", "find_moving_statistics", "find_statistics", "to_dtype",
           "to_inference_mode", "to_training_mode"]


@dataclass(frozen=True)
class Mask:
    """What a Dropout multiplies its input by: 1 / keep with the probability `keep`, else 0.

    Parameters
    ----------
    value : Value
        An input of the graph.
    keep : float
        The probability.
    """

    value: Value
    keep: float


@dataclass(frozen=True)
class Statistic:
    """A running mean or variance r, which a batch whose own is b makes r·momentum + b·(1 - momentum).

    Parameters
    ----------
    name : str
        The initializer that holds it.
    batch : Value
        That of the batch; the variance is that of the population, as ONNX has it (torch's running one is unbiased).
    momentum : float
        The attribute of the node.
    """

    name: str
    batch: Value
    momentum: float

    def moved(self, r: Value) -> Value:
        """What r is after the batch."""
        return r * self.momentum + self.batch * (1 - self.momentum)


@dataclass(frozen=True)
class TrainingModel:
    """A model as it computes while it trains.

    Parameters
    ----------
    model : Model
        Its inputs and outputs.
    masks : dict of str to Mask
        Inputs that the caller draws for each run, by their names.
    statistics : list of Statistic
        What the caller keeps of each run.
    """

    model: Model
    masks: dict[str, Mask] = field(default_factory=dict)
    statistics: list[Statistic] = field(default_factory=list)


def find_statistics(model: Model) -> list[str]:
    """The initializers that are a mean or a variance of a BatchNormalization.

    Parameters
    ----------
    model : Model
        The model.

    Returns
    -------
    list of str
    """
    nodes = topological(list(model.outputs.values()))
    read = {x for n in nodes if n.op_type == "BatchNormalization" for x in n.inputs[3:5]}
    return [n for n, v in model.initializers.items() if v in read]


def find_moving_statistics(model: Model, outputs: Collection[str], weights: Collection[str]) -> list[str]:
    """The running statistics that lead to some outputs, once it is sure that they are nothing else.

    Parameters
    ----------
    model : Model
        The model.
    outputs : collection of str
        Those that are trained.
    weights : collection of str
        Initializers that are trained.

    Returns
    -------
    list of str

    Raises
    ------
    ModelError
        One is trained as a weight, or read by something else: exporters merge initializers of the same content.
    """
    model = replace(model, outputs={o: model.outputs[o] for o in outputs})
    names = {model.initializers[n]: n for n in find_statistics(model)}
    if both := [n for n in names.values() if n in weights]:
        raise ModelError(f"{both[0]!r} is a running statistic, which train_mode=True moves by itself, and is among the "
                         f"weights to train; leave it out.")
    for node in topological(list(model.outputs.values())):
        for x in node.inputs[: 3 if node.op_type == "BatchNormalization" else None]:
            if x in names:
                raise ModelError(f"{names[x]!r} is a running statistic, and {node!r} reads it for something else; give "
                                 f"each an initializer of its own.")
    return list(names.values())


def to_training_mode(model: Model, mask: Callable[[Value, float, int], Value] | None = None) -> TrainingModel:
    """The model with Dropout and BatchNormalization as they are while it trains, in ordinary operators.

    Dropout multiplies by a mask that is an input, so that the numbers are drawn where their state can be saved;
    BatchNormalization normalizes by the mean and the variance of the batch.

    Parameters
    ----------
    model : Model
        The model, its running statistics loaded as variables.
    mask : callable, optional
        From the input of a Dropout, the probability to keep an element and the number of the Dropout to a mask that is
        computed, instead of one that is an input.

    Returns
    -------
    Training

    Raises
    ------
    ModelError
        The ratio of a Dropout is computed by the graph, or a BatchNormalization is inside of a body.
    """
    found = TrainingModel(model)
    names = {v: n for n, v in model.initializers.items()}
    outside = frozenset(topological(list(model.outputs.values())))
    count = itertools.count()

    def change(node: Node, inputs: Sequence[Any]) -> list[Value] | None:
        if node.op_type == "Dropout":
            return dropout(node, inputs[0])
        return batch_norm(node, *inputs) if node.op_type == "BatchNormalization" else None

    def dropout(node: Node, x: Value) -> list[Value]:
        ratio = node.inputs[1] if len(node.inputs) > 1 else None
        if ratio is not None and ratio.array is None:
            raise ModelError(f"{node!r} computes its ratio, and only a constant one can be trained with; call eval().")
        keep = 1 - (0.5 if ratio is None else _decimal(ratio.array))
        drawn = given(x, keep) if mask is None else mask(x, keep, next(count))
        return [x * drawn, drawn > 0]

    def given(x: Value, keep: float) -> Value:
        name = f"mask_{len(found.masks)}"
        while name in model.values:
            name += "_"
        found.masks[name] = Mask(variable(name, x.dtype, x.shape), keep)
        return found.masks[name].value

    def batch_norm(node: Node, x: Value, scale: Value, b: Value, mean: Value, var: Value) -> list[Value]:
        axes, momentum = [0, *range(2, x.rank)], _decimal(node.attribute("momentum"))
        m = op.ReduceMean(x, axes, keepdims=0)
        xc = x - channels(m, x)
        v = op.ReduceMean(xc * xc, axes, keepdims=0)
        k = cast(scale, x) / op.Sqrt(v + node.attribute("epsilon"))
        for old, new in ((node.inputs[3], m), (node.inputs[4], v)):
            if old in names:
                if node not in outside:
                    raise ModelError(f"{node!r} is inside of a branch or a loop, and only outside of them can the "
                                     f"running statistics of a batch be kept; train it as it was exported.")
                found.statistics.append(Statistic(names[old], cast(new, old), momentum))
        running = (cast(r, x) * momentum + s * (1 - momentum) for r, s in ((mean, m), (var, v)))
        return [xc * channels(k, x) + channels(cast(b, x), x), *(cast(r, mean) for r in running)]

    new = make_rewriter(list(model.outputs.values()), {}, change)
    outputs = {n: new(v) for n, v in model.outputs.items()}
    inputs = {**model.inputs, **{n: m.value for n, m in found.masks.items()}}
    return replace(found, model=replace(model, inputs=inputs, outputs=outputs))


def _decimal(number: Any) -> float:
    """The decimal fraction that was meant where a float32 says 0.100000001."""
    return float(str(np.float32(number)))


def to_inference_mode(proto: ModelProto) -> ModelProto:
    """A model that was exported in training mode, with Dropout and BatchNormalization turned off.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; it is not written to.

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


def to_dtype(model: Model, dtype: Any) -> Model:
    """The model with all real numbers in one dtype.

    Parameters
    ----------
    model : Model
        The model.
    dtype : numpy dtype
        float64, for example.

    Returns
    -------
    Model
        What an operator takes in one dtype alone, such as the scales of Resize, stays in it.
    """
    dtype = np.dtype(dtype)
    kind, spelled = helper.np_dtype_to_tensor_dtype(dtype), onnx_type(dtype)
    roots = list(model.outputs.values())
    read = [x for node in topological(roots) for x in node.inputs if x is not None]
    old = {v for v in [*read, *roots, *model.inputs.values(), *model.initializers.values()]
           if v.node is None and v.is_float}
    leaves = {v: _leaf(v, dtype) for v in old}

    def change(node: Node, given: Sequence[Value | None]) -> list[Value]:
        if node.bodies:
            raise ModelError(f"{node!r} has a graph inside, whose dtypes are fixed; leave the layer in its own.")
        formal, inputs = node.schema.inputs, list(given)
        for i, (x, was) in enumerate(zip(inputs, node.inputs, strict=True)):
            fixed = x is not None and x.is_float and spelled not in formal[min(i, len(formal) - 1)].types
            if fixed and x is not None and was is not None:
                inputs[i] = was if was.array is not None else cast(x, was)
        attributes = {k: _attribute(node, k, v, kind) for k, v in node.attributes.items()}
        made = make_node(node.schema, inputs, attributes, n_outputs=len(node.outputs), name=node.name,
                         hints=[y.hint for y in node.outputs])
        return [op.Cast(y, to=kind) if y.is_float and y.dtype != dtype else y for y in made.outputs]

    new = make_rewriter(roots, leaves, change)

    def mapped(values: Mapping[str, Value]) -> dict[str, Value]:
        return {n: new(v) for n, v in values.items()}

    return replace(model, inputs=mapped(model.inputs), outputs=mapped(model.outputs),
                   initializers=mapped(model.initializers))


def _leaf(v: Value, dtype: np.dtype) -> Value:
    """An input or a constant in another dtype."""
    return variable(v.hint, dtype, v.shape) if v.array is None else constant(v.array.astype(dtype), hint=v.hint)


def _attribute(node: Node, name: str, value: Any, kind: int) -> Any:
    """An attribute that says which dtype an output has, or holds its elements."""
    if name in ("to", "dtype") and value in FLOATS:
        return kind
    if isinstance(value, np.ndarray) and node.op_type == "ConstantOfShape" and value.dtype.kind == "f":
        return value.astype(helper.tensor_dtype_to_np_dtype(kind))
    return value
