"""The graphs of training information: each training step as a model of its own, and the model without them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    StringStringEntryProto,
    TensorProto,
    TrainingInfoProto,
    helper,
    numpy_helper,
)

from ortpartial.arguments import checked
from ortpartial.exceptions import ModelError
from ortpartial.graph import Value, build, find_inputs
from ortpartial.model import Model, load, read, walk_graphs

from .graph_call import inline_call, is_call
from .operators import DOMAIN
from .record import forget_settings

__all__ = ["build_step", "combine_graphs", "list_computed", "lowered_step", "mutable", "pairs", "strip_training_info"]

Source = ModelProto | bytes | str | os.PathLike[str]


def strip_training_info(model: Source) -> ModelProto:
    """Copy a model without its training information.

    Parameters
    ----------
    model : onnx.ModelProto, bytes or path
        The model; it is not written to.

    Returns
    -------
    onnx.ModelProto

    Examples
    --------
    >>> from onnx.parser import parse_model
    >>> model = parse_model('<ir_version: 8, opset_import: ["": 21]> f (float[2] x) => (float[2] y) { y = Abs(x) }')
    >>> strip_training_info(model) == model
    True
    """
    stripped = ModelProto()
    stripped.CopyFrom(read(model))
    del stripped.training_info[:]
    forget_settings(stripped)
    used = {node.domain for g in walk_graphs(stripped.graph) for node in g.node}
    used |= {node.domain for f in stripped.functions for node in f.node}
    kept = [o for o in stripped.opset_import if o.domain != DOMAIN or DOMAIN in used]
    del stripped.opset_import[:]
    stripped.opset_import.extend(kept)
    return stripped


def store_inputs(graph: GraphProto, arrays: Mapping[str, np.ndarray]) -> None:
    """Turn inputs of a graph into initializers.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph, which is changed.
    arrays : dict of str to numpy.ndarray
        The content of each input that becomes an initializer.
    """
    inputs = [i for i in graph.input if i.name not in arrays]
    graph.ClearField("input")
    graph.input.extend(inputs)
    graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())


def pairs(binding: Iterable[StringStringEntryProto]) -> dict[str, str]:
    """Turn a binding into a dict from initializers to outputs.

    Parameters
    ----------
    binding : iterable of onnx.StringStringEntryProto
        ``update_binding`` or ``initialization_binding`` of an entry.

    Returns
    -------
    dict of str to str
    """
    return {p.key: p.value for p in binding}


def mutable(model: ModelProto) -> dict[str, TensorProto]:
    """Find the initializers that a binding changes, in the order in which they are stored.

    Parameters
    ----------
    model : onnx.ModelProto
        A model with training information.

    Returns
    -------
    dict of str to onnx.TensorProto
        By name; initializers of the inference graph first.
    """
    infos = model.training_info
    bound = {p.key for t in infos for p in (*t.update_binding, *t.initialization_binding)}
    stored = [*model.graph.initializer, *(t for info in infos for t in info.algorithm.initializer)]
    return {t.name: t for t in stored if t.name in bound}


def combine_graphs(model: ModelProto, entry: int = 0) -> ModelProto:
    """Combine the inference graph and an algorithm into the graph that a training step runs.

    Parameters
    ----------
    model : onnx.ModelProto
        A model with training information; it is not written to.
    entry : int
        The index of the entry.

    Returns
    -------
    onnx.ModelProto
        Each field holds the members of the inference graph, then the algorithm's. If the algorithm calls the inference
        graph by GraphCall (ONNX 1.7), each call is inlined, and only the initializers are taken from the inference
        graph itself.
    """
    combined = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions,
                          metadata_props=model.metadata_props)
    graph, algorithm, inference = combined.graph, model.training_info[entry].algorithm, model.graph
    graph.name = algorithm.name or inference.name or "training"
    calls = any(is_call(node) for node in algorithm.node)
    for field in ("input", "initializer", "output", "node", "value_info", "sparse_initializer"):
        if not calls or field in ("initializer", "sparse_initializer"):
            getattr(graph, field).extend(getattr(inference, field))
        if field != "node":
            getattr(graph, field).extend(getattr(algorithm, field))
    taken = {v.name for v in (*graph.input, *graph.initializer)}
    taken |= {o for g in walk_graphs(algorithm) for node in g.node for o in node.output}
    for n, node in enumerate(algorithm.node):
        graph.node.extend(inline_call(node, inference, f"training_info[{entry}].algorithm", f"call{n}", taken)
                          if is_call(node) else [node])
    defined = taken | {o for node in graph.node for o in node.output}
    _add_foreign_initializers(graph, defined, [t.algorithm for i, t in enumerate(model.training_info) if i != entry])
    return combined


def _add_foreign_initializers(graph: GraphProto, defined: Collection[str], algorithms: Iterable[GraphProto]) -> None:
    """Add initializers of other entries' algorithms that nodes read: visible where no other has the name."""
    foreign: dict[str, list[TensorProto]] = {}
    for t in (t for algorithm in algorithms for t in algorithm.initializer):
        foreign.setdefault(t.name, []).append(t)
    read = dict.fromkeys(i for g in walk_graphs(graph) for node in g.node for i in node.input if i not in defined)
    graph.initializer.extend(foreign[i][0] for i in read if len(foreign.get(i, ())) == 1)


def build_step(model: ModelProto, entry: int = 0, sizes: Mapping[str, Sequence[int]] | None = None) -> Model:
    """Load a training step, with the initializers that a binding changes as further inputs.

    Parameters
    ----------
    model : onnx.ModelProto
        A model with training information.
    entry : int
        The index of the entry.
    sizes : dict of str to sequence of int, optional
        The shapes of all inputs, if the step is for these alone.

    Returns
    -------
    Model
        Its outputs are the outputs of the inference graph and of the algorithm.

    Raises
    ------
    ModelError
        The step is not a valid graph.
    """
    proto, changing = combine_graphs(model, entry), mutable(model)
    graph = proto.graph
    constants = [t for t in graph.initializer if t.name not in changing]
    moved = [t for t in graph.initializer if t.name in changing]
    inputs = [i for i in graph.input if i.name not in changing]
    for field, new in (("initializer", constants), ("input", inputs)):
        new = list(new)
        graph.ClearField(field)
        getattr(graph, field).extend(new)
    graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in moved)
    return load(proto, batch=sizes, ties="file")


def list_computed(
    step: Model, info: TrainingInfoProto, returned: Collection[str] | None = None
) -> tuple[dict[str, Value], dict[str, Value]]:
    """List the inputs and outputs of a step; of the inference graph, only outputs that need no further inputs.

    Parameters
    ----------
    step : Model
        An entry, loaded by `build_step`.
    info : onnx.TrainingInfoProto
        The entry.
    returned : collection of str, optional
        The outputs to compute among the unbound; all of them by default.

    Returns
    -------
    inputs, outputs : dict of str to Value
    """
    bound = dict.fromkeys(pairs(info.update_binding).values())
    if returned is not None:
        wanted = dict.fromkeys([*(o.name for o in info.algorithm.output if o.name in returned), *bound])
        return find_inputs([step.outputs[o] for o in wanted], step.inputs), {o: step.outputs[o] for o in wanted}
    required = dict.fromkeys([*(o.name for o in info.algorithm.output), *bound])
    inputs = find_inputs([step.outputs[o] for o in required], step.inputs)
    further = (o for o, v in step.outputs.items() if required and find_inputs([v], step.inputs).keys() <= inputs.keys())
    return inputs, {o: step.outputs[o] for o in dict.fromkeys([*required, *further])}


@checked
def lowered_step(model: Source, entry: int = 0) -> ModelProto:
    """Write a training step as a plain model, in operators that every runtime has.

    Parameters
    ----------
    model : onnx.ModelProto, bytes or path
        A model with training information; it is not written to.
    entry : int
        The index of the entry.

    Returns
    -------
    onnx.ModelProto
        Inputs: the inputs of the step, including the initializers that a binding changes. Outputs: the outputs of the
        algorithm, then the outputs of the inference graph that need no further inputs. ``metadata_props`` maps each
        input that is updated to the output that is its next value.

    Raises
    ------
    ModelError
        The model has no such entry, or the entry is invalid.

    Examples
    --------
    >>> from onnx.parser import parse_model
    >>> model = parse_model('<ir_version: 8, opset_import: ["": 21]> f (float[2] x) => (float[2] y) { y = Abs(x) }')
    >>> lowered_step(model)
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.ModelError: The model has 0 entries of training_info, and there is no training_info[0].
    """
    proto = read(model)
    if not 0 <= entry < len(proto.training_info):
        raise ModelError(f"The model has {len(proto.training_info)} entries of training_info, and there is no "
                         f"training_info[{entry}].")
    loaded, info = build_step(proto, entry), proto.training_info[entry]
    step = build(*list_computed(loaded, info), name="step")
    helper.set_model_props(step, pairs(info.update_binding))
    return step
