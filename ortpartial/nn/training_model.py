"""The model of a module: inference graph, initialization and step, in the form of the ONNX training standard."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from onnx import ModelProto

from ortpartial.graph import Value, build, constant
from ortpartial.model import walk_graphs
from ortpartial.training_info import declare_labels, store_inputs

from .parameter import Parameter
from .step_segments import Entry, split_entries
from .trace import SEED
from .traced_source import unwrap
from .tracing import Writing

__all__ = ["initial_values", "write_model"]


def write_model(name: str, inference: Writing, parameters: Mapping[str, Parameter], state: Mapping[str, np.ndarray],
                step: Writing | None = None) -> ModelProto:
    """Write the model of a module, which holds its training.

    Parameters
    ----------
    name : str
        The name of the graph.
    inference : Writing
        The graph of `forward` in evaluation mode.
    parameters : dict of str to Parameter
        All parameters and buffers by name.
    state : dict of str to numpy.ndarray
        Their numbers, and changed states of the step.
    step : Writing, optional
        The step, if it is written.

    Returns
    -------
    onnx.ModelProto
        With ``training_info``: the initialization and, for each part of the step, an algorithm.
    """
    read = inference.trace.before
    proto = build({**inference.inputs, **read}, inference.outputs, name=name)
    store_inputs(proto.graph, {n: state[n] for n in read})
    visible = {i.name for i in proto.graph.input} | {t.name for t in proto.graph.initializer}
    visible |= {o for node in proto.graph.node for o in node.output}
    firsts = initial_values(parameters)
    stored = {n: state[n] for n in parameters if n not in read}
    if step is not None:
        own = step.trace.first
        stored.update({n: state.get(n, a) for n, a in own.items()})
        firsts.update({n: constant(state[n] if n == SEED else a) for n, a in own.items()})
        for entry in split_entries(step.trace, step.outputs):
            _add_entry(proto, step, entry, visible, stored)
    info = proto.training_info[0] if proto.training_info else proto.training_info.add()
    store_inputs(info.algorithm, stored)
    initialization = build([], {f"{n}_init": v for n, v in firsts.items()}, name="initialization")
    info.initialization.CopyFrom(initialization.graph)
    for n in firsts:
        info.initialization_binding.add(key=n, value=f"{n}_init")
    _declare_opsets(proto, initialization)
    proto.ir_version = max(proto.ir_version, 7)  # training information came with version 7 of the format
    return proto


def initial_values(parameters: Mapping[str, Parameter]) -> dict[str, Value]:
    """The first values of parameters, as they have been drawn.

    Parameters
    ----------
    parameters : dict of str to Parameter
        By name.

    Returns
    -------
    dict of str to Value
    """
    return {n: p.initializer(p.shape, p.dtype, seed=p.seed) for n, p in parameters.items()}


def _add_entry(proto: ModelProto, step: Writing, entry: Entry, visible: Collection[str], states: Collection[str]
               ) -> None:
    """Add an entry to the training of a model; the first has to hold the states."""
    info, changed = proto.training_info.add(), {n: unwrap(v) for n, v in entry.updates.items()}
    results = {**entry.outputs, **{f"{n}_new": v for n, v in changed.items()}}
    inside = [g for g in walk_graphs(proto.graph) if g is not proto.graph]
    reserved = {*visible, *(i.name for g in inside for i in g.input)}
    reserved |= {o for g in inside for node in g.node for o in node.output}
    algorithm = build({**step.inputs, **step.trace.before}, results, name="training", reserved=reserved)
    info.algorithm.CopyFrom(algorithm.graph)
    info.algorithm.ClearField("input")
    info.algorithm.input.extend(i for i in algorithm.graph.input if i.name not in visible and i.name not in states)
    declare_labels(info.algorithm, step.labels)
    for n in changed:
        info.update_binding.add(key=n, value=f"{n}_new")
    _declare_opsets(proto, algorithm)


def _declare_opsets(proto: ModelProto, other: ModelProto) -> None:
    """Declare the opsets of the graph of another model."""
    versions = {o.domain: o for o in proto.opset_import}
    for o in other.opset_import:
        if o.domain not in versions:
            proto.opset_import.add(domain=o.domain, version=o.version)
        else:
            versions[o.domain].version = max(versions[o.domain].version, o.version)
    proto.ir_version = max(proto.ir_version, other.ir_version)
