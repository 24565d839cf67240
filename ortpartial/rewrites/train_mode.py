"""Training mode and inference mode: Dropout by masks, and BatchNormalization by the statistics of the batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from ortpartial.annotations import Inputs
from ortpartial.autodiff import broadcast_channels
from ortpartial.exceptions import ModelError
from ortpartial.graph import Node, Value, cast, find_inputs, make_rewriter, op, topological, variable, walk_nodes
from ortpartial.model import (
    Model,
    TorchRecord,
    bodies,
    list_folded_norms,
    read_adapter,
    read_torch,
    remove_unused,
    walk_graphs,
)
from ortpartial.texts import free_name

from .protocol import count_case, numbered

__all__ = ["DropoutMask", "RunningStatistic", "TrainingModel", "choose_train_mode", "find_mode_problems",
           "find_moving_statistics", "find_statistics", "to_inference_mode", "to_training_mode"]


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
        b, the mean or variance of the batch. The variance is that of a population, as ONNX defines it; of n numbers
        of a model from torch, it is multiplied by n / (n - 1), as torch's is.
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


@numbered("dropout", "batch_norm")
def to_training_mode(model: Model, mask: Callable[[Value, float, int], Value] | None = None) -> TrainingModel:
    """The model with Dropout and BatchNormalization in training mode, written in plain operators.

    1. `dropout`: Dropout multiplies by a mask that is an input, so that the state of the random numbers can be saved.
    2. `batch_norm`: BatchNormalization normalizes by the mean and the variance of the batch, or of each row by its own,
       where the torch module that the model was exported from does.

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
        The graph computes the ratio of a Dropout, a BatchNormalization is in the body of a branch or a loop, or the
        running statistics of a torch module are the mean of all batches.
    """
    record = read_torch(model.proto)
    masks: dict[str, DropoutMask] = {}
    statistics: list[tuple[int, RunningStatistic]] = []
    names = {v: n for n, v in model.initializers.items()}
    places = {n: i for i, n in enumerate(model.values)}
    top_level = frozenset(topological(list(model.outputs.values())))
    numbers = itertools.count()

    def change(node: Node, inputs: Inputs) -> list[Value] | None:
        if node.op_type not in ("Dropout", "BatchNormalization"):
            return None
        count_case("dropout" if node.op_type == "Dropout" else "batch_norm")
        return dropout(node, inputs[0]) if node.op_type == "Dropout" else batch_norm(node, *inputs)

    def dropout(node: Node, x: Value) -> list[Value]:
        ratio = node.inputs[1] if len(node.inputs) > 1 else None
        if ratio is not None and ratio.array is None:
            raise ModelError(f"{node!r} computes its ratio, and only a constant one can be trained with; call eval().")
        keep = 1 - (0.5 if ratio is None else _decimal(ratio.array))
        factors = add_mask(x, keep) if mask is None else mask(x, keep, next(numbers))
        return [x * factors, factors > 0]

    def add_mask(x: Value, keep: float) -> Value:
        name = free_name(f"mask_{len(masks)}", model.values)
        masks[name] = DropoutMask(variable(name, x.dtype, x.shape), keep)
        return masks[name].value

    def batch_norm(node: Node, x: Value, scale: Value, b: Value, mean: Value, var: Value) -> list[Value]:
        narrow = x
        if x.dtype.itemsize < 4:  # Squares of numbers and sums of them would overflow float16.
            x = op.Cast(x, to=TensorProto.FLOAT)
        momentum, name = _decimal(node.attribute("momentum")), names.get(mean, "")
        _check_cumulative(record, name)
        is_apart = record is not None and name in record.per_instance
        xc, m, v = _center(x, is_apart)
        k = cast(scale, x) / op.Sqrt(v + node.attribute("epsilon"))
        batch = [op.ReduceMean(s, [0], keepdims=0) if is_apart else s for s in (m, _unbias(v, x, record))]
        for old, new in zip(node.inputs[3:5], batch, strict=True):
            if old in names:
                if node not in top_level:
                    raise ModelError(f"{node!r} is in the body of a branch or a loop, where the running statistics of "
                                     f"a batch cannot be kept; train it as it was exported.")
                place = places.get(node.outputs[0].hint, len(places))
                statistics.append((place, RunningStatistic(names[old], cast(new, old), momentum)))
        running = (cast(r, x) * momentum + s * (1 - momentum) for r, s in zip((mean, var), batch, strict=True))
        y = xc * _spread(k, x) + broadcast_channels(cast(b, x), x)
        return [cast(y, narrow), *(cast(r, mean) for r in running)]

    new = make_rewriter(list(model.outputs.values()), {}, change)
    outputs = {n: new(v) for n, v in model.outputs.items()}
    inputs = {**model.inputs, **{n: m.value for n, m in masks.items()}}
    # A statistic of two nodes is updated in the order of the file, whichever of them the outputs need first.
    in_order = [s for _, s in sorted(statistics, key=lambda pair: pair[0])]
    return TrainingModel(replace(model, inputs=inputs, outputs=outputs), masks, in_order)


def _center(x: Value, by_row: bool) -> tuple[Value, Value, Value]:
    """x minus its mean, the mean and the variance, of each channel or of each channel of each row."""
    axes = [*([] if by_row else [0]), *range(2, x.rank)]
    m = op.ReduceMean(x, axes, keepdims=0)
    xc = x - _spread(m, x)
    return xc, m, op.ReduceMean(xc * xc, axes, keepdims=0)


def _spread(s: Value, x: Value) -> Value:
    """A number of each channel, or of each channel of each row, beside x."""
    return broadcast_channels(s, x) if s.rank == 1 else op.Unsqueeze(s, [*range(2, x.rank)])


def _check_cumulative(record: TorchRecord | None, name: str) -> None:
    """Refuse a running statistic that is the mean of all batches."""
    if record is not None and name in record.cumulative:
        raise ModelError(f"{name!r} is the mean of all batches, as the momentum of its torch module is None, and ONNX "
                         f"has no such statistic; export the module with a momentum, or train with train_mode=False.")


def _unbias(v: Value, x: Value, record: TorchRecord | None) -> Value:
    """The variance v of x as torch counts it, with n - 1 in place of n; as ONNX does, for a model that is not torch's.

    Where torch refuses a single number, its variance is 0.
    """
    if record is None:
        return v
    if x.is_static and v.is_static:
        size = prod(x.shape) // max(prod(v.shape), 1)  # type: ignore[arg-type]
        return v * (size / max(size - 1, 1))
    kind = TensorProto.DOUBLE if v.dtype == np.float64 else TensorProto.FLOAT  # Sizes are beyond float16.
    n = op.Cast(op.Size(x), to=kind) / op.Cast(op.Size(v), to=kind)
    return v * cast(n / op.Max(n - 1.0, 1.0), v)


def _decimal(number: Any) -> float:
    """The shortest decimal fraction of a float32: 0.1 instead of 0.100000001."""
    return float(str(np.float32(number)))


@numbered("dropout", "batch_norm")
def to_inference_mode(proto: ModelProto) -> ModelProto:
    """A model that was exported in training mode, with Dropout and BatchNormalization in inference mode.

    1. `dropout`: Dropout loses its mode, which is a constant.
    2. `batch_norm`: BatchNormalization loses its mode, and the running statistics that it gives anew.

    Nodes without such a mode stay as they are: a BatchNormalization whose running statistics are not stored, or whose
    new statistics are read, and a Dropout whose mode is computed.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model, which is not changed.

    Returns
    -------
    onnx.ModelProto
        The same object where nothing is to change.
    """
    if next(_find_convertible(proto), None) is None:
        return proto
    copy = ModelProto()
    copy.CopyFrom(proto)
    modes = set()
    for node in list(_find_convertible(copy)):
        count_case("dropout" if node.op_type == "Dropout" else "batch_norm")
        if node.op_type == "Dropout":
            modes.add(node.input[2])
            del node.input[2:]
        else:
            kept = [a for a in node.attribute if a.name != "training_mode"]
            del node.attribute[:], node.output[1:]
            node.attribute.extend(kept)
    for container in (copy.graph, *copy.functions):
        remove_unused(container, modes)
    return copy


def _find_convertible(proto: ModelProto) -> Iterator[NodeProto]:
    """The nodes in training mode that compute the same in inference mode, but for the statistics and the mask."""
    for f in proto.functions:
        inside = [g for node in f.node for body in bodies(node) for g in walk_graphs(body)]
        yield from _convertible([f, *inside], {*f.output})
    graphs = list(walk_graphs(proto.graph))
    yield from _convertible(graphs, {o.name for o in proto.graph.output})


def _convertible(graphs: Sequence[GraphProto | FunctionProto], outputs: Collection[str]) -> Iterator[NodeProto]:
    """The convertible nodes of a graph, or of a function, and of its bodies."""
    nodes: list[NodeProto] = [node for g in graphs for node in g.node]
    constants = _list_constants(graphs, nodes)
    read = {*outputs, *(i for node in nodes for i in node.input), *(o.name for g in graphs[1:] for o in g.output)}
    yield from (node for node in nodes if node.domain in ("", "ai.onnx") and _is_convertible(node, constants, read))


def _list_constants(graphs: Sequence[GraphProto | FunctionProto], nodes: Iterable[NodeProto]) -> dict[str, TensorProto]:
    """Initializers and constants by name, and by the names that Identity gives them."""
    constants = {t.name: t for g in graphs if isinstance(g, GraphProto) for t in g.initializer}
    for node in (n for n in nodes if n.domain in ("", "ai.onnx")):
        if node.op_type == "Constant":
            constants.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
        elif node.op_type == "Identity" and node.input and node.input[0] in constants:
            # torch's exporter merges equal initializers.
            constants[node.output[0]] = constants[node.input[0]]
    return constants


def _is_convertible(node: NodeProto, constants: Mapping[str, TensorProto], read: Collection[str]) -> bool:
    """Whether a node is in training mode, and nothing but its mode and its constants keeps it from inference."""
    if node.op_type == "Dropout" and len(node.input) > 2:
        mode = constants.get(node.input[2])
        return mode is not None and bool(numpy_helper.to_array(mode).all())
    if node.op_type != "BatchNormalization" or any(o in read for o in node.output[1:] if o):
        return False
    is_training = any(a.name == "training_mode" and a.i for a in node.attribute) or len(node.output) > 1
    return is_training and all(i in constants for i in node.input[3:5])


def _find_folded(model: Model, outputs: Collection[str]) -> list[str]:
    """The weights behind some outputs into which an exporter has folded a normalization."""
    folded = {n: model.initializers[n] for n in list_folded_norms(model.proto)}
    return [model.main_names[n] for n in find_inputs([model.outputs[o] for o in outputs], folded)] if folded else []


def _find_modal(model: Model, outputs: Collection[str]) -> list[Node]:
    """The nodes behind some outputs that have a mode."""
    nodes = walk_nodes(topological([model.outputs[o] for o in outputs]))
    return [node for node in nodes if node.op_type in ("BatchNormalization", "Dropout")]


def choose_train_mode(model: Model, outputs: Collection[str]) -> bool:
    """Whether a model trains in training mode where nothing else is asked for: as its torch module did.

    Parameters
    ----------
    model : Model
        The model, of which `ortpartial.torch.export` has recorded the mode.
    outputs : collection of str
        The outputs that are trained.

    Returns
    -------
    bool
        False where no record says it, or no node has a mode.
    """
    record = read_torch(model.proto)
    if record is None or not record.training:
        return False
    ratios = (node.inputs[1] if len(node.inputs) > 1 else None for node in _find_modal(model, outputs)
              if node.op_type == "Dropout")
    drops = any(r is None or r.array is None or r.array.any() for r in ratios)
    return drops or any(node.op_type == "BatchNormalization" for node in _find_modal(model, outputs))


def find_mode_problems(model: Model, outputs: Collection[str], train_mode: bool) -> list[str]:
    """Problems of a model with the modes of Dropout and BatchNormalization, a sentence or two for each.

    Parameters
    ----------
    model : Model
        The model, after `to_inference_mode`.
    outputs : collection of str
        The outputs that are trained.
    train_mode : bool
        Whether the model will be in training mode.

    Returns
    -------
    list of str
    """
    modal = _find_modal(model, outputs)
    problems = []
    folded = _find_folded(model, outputs)
    if folded:
        problems.append(
            f"An exporter has folded normalizations into {', '.join(map(repr, folded[:3]))}"
            f"{f' and {len(folded) - 3} more' if len(folded) > 3 else ''}, which train to other numbers than the torch "
            f"module. To train as it does, export it with ortpartial.torch.export(module, *example), which keeps "
            f"BatchNormalization.")
    elif train_mode and not modal:
        problems.append(
            "train_mode=True changes nothing, as the model has no Dropout and no BatchNormalization: exporters leave "
            "them out unless told otherwise. Of a module of torch, ortpartial.torch.export(module, *example) keeps "
            "both.")
    adapter = read_adapter(model.proto)
    if adapter is not None and adapter.dropout and not train_mode:
        problems.append(f"The adapter's dropout of {adapter.dropout:g} drops nothing, as Dropout does in training mode "
                        f"alone: say train_mode=True, or add the adapter without dropout.")
    if batched := [n for n in modal if n.op_type == "BatchNormalization" and n.attribute("training_mode")]:
        problems.append(
            f"{batched[0]!r} was exported in training mode and has no running statistics to be put into inference "
            f"mode with: predictions depend on the other rows of their batch. Export a module that tracks them "
            f"(track_running_stats=True in torch), or in eval mode.")
    return problems
