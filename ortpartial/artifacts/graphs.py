"""The graphs of the training artifacts: a gradient graph without in-place kernels, and the roles of its tensors."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from ortpartial.arguments import checked
from ortpartial.exceptions import ModelError
from ortpartial.graph import OpaqueSchema, build, topological, walk_nodes
from ortpartial.model import Model, load, read, replace_messages
from ortpartial.rewrites import rewrite_model

from .kernels import DOMAIN

__all__ = ["TrainingGraph", "load_lowered", "lower_training_model", "read_eval_graph", "read_training_graph"]

#: It adds a gradient to a buffer, in place, unless the last input says that it replaces it.
_ACCUMULATOR = "InPlaceAccumulatorV2"


@dataclass(frozen=True)
class TrainingGraph:
    """A gradient graph, and the roles of its inputs and outputs.

    Parameters
    ----------
    model : onnx.ModelProto
        From the inputs of the user and the parameters to the outputs of the user, the gradients, and the new running
        statistics.
    inputs, outputs : list of str
        The inputs and outputs of the user, in order; the first output is the loss.
    parameters : list of str
        The inputs that are parameters, trainable and frozen.
    gradients : dict of str to str
        By trainable parameter, the output that is its gradient.
    statistics : dict of str to str
        By frozen parameter that is a running statistic, the output that is its new value.
    """

    model: ModelProto
    inputs: list[str]
    outputs: list[str]
    parameters: list[str]
    gradients: dict[str, str]
    statistics: dict[str, str]


def read_training_graph(
    source: ModelProto | bytes | str | os.PathLike[str], parameters: Collection[str] | None = None
) -> TrainingGraph:
    """Read the roles of the tensors of a ``training_model.onnx``.

    Parameters
    ----------
    source : onnx.ModelProto, bytes or path
        The model.
    parameters : collection of str, optional
        The names of the parameters that a checkpoint has; without them, parameters are the inputs with a gradient and
        the running statistics.

    Returns
    -------
    TrainingGraph

    Raises
    ------
    ModelError
        The model accumulates no gradients, or not as `generate_artifacts` has it.
    """
    proto = ModelProto()
    proto.CopyFrom(read(source))
    graph = proto.graph
    accumulators = [node for node in graph.node if node.op_type == _ACCUMULATOR]
    gradients, internal = _read_accumulators(accumulators)
    inputs = {i.name: i for i in graph.input if i.name not in internal}
    if lost := [n for n in gradients if n not in inputs]:
        raise ModelError(f"The training model has a gradient of {lost[0]!r}, which is no input of it.")
    moving = {name: new for name, new in _find_moving(graph).items() if name in inputs and name not in gradients}
    known = _choose_parameters(inputs, [*gradients, *moving], parameters)
    done = {o for node in accumulators for o in node.output}
    outputs = [o for o in graph.output if o.name not in done]
    _return_computed(graph, inputs, outputs, {**gradients, **moving})
    return TrainingGraph(proto, [n for n in inputs if n not in known], [o.name for o in outputs],
                         [n for n in inputs if n in known], gradients, moving)


def _return_computed(graph: GraphProto, inputs: Mapping[str, ValueInfoProto], outputs: Sequence[ValueInfoProto],
                     computed: Mapping[str, str]) -> None:
    """Let a graph return, beside outputs, values computed for parameters, in place of accumulating gradients."""
    # A gradient, and the next value of a statistic, is of the type of its parameter.
    values = [ValueInfoProto(name=name, type=inputs[n].type) for n, name in computed.items()]
    nodes = [node for node in graph.node if node.op_type != _ACCUMULATOR]
    _add_forward_inputs(nodes)
    replace_messages(graph.node, nodes)
    replace_messages(graph.input, list(inputs.values()))
    replace_messages(graph.output, [*outputs, *values])


def _find_moving(graph: GraphProto) -> dict[str, str]:
    """By name of a running statistic, the output that takes its place."""
    return {name: node.output[i] for node in graph.node if node.op_type == "BatchNormInternal"
            for i, name in zip((1, 2), node.input[3:5], strict=False) if len(node.output) > i and node.output[i]}


def _choose_parameters(inputs: Collection[str], changing: Sequence[str], parameters: Collection[str] | None
                       ) -> set[str]:
    """The inputs that are parameters: the changing inputs, or the names of a checkpoint, which must include these."""
    if parameters is None:
        return set(changing)
    if missing := [n for n in changing if n not in parameters]:
        raise ModelError(f"The training model has the parameter {missing[0]!r}, and the checkpoint does not; give the "
                         f"checkpoint that was made with it.")
    return {n for n in inputs if n in parameters}


def _read_accumulators(nodes: Collection[NodeProto]) -> tuple[dict[str, str], set[str]]:
    """The gradients by parameter, and the names of their buffers and of the signal that resets them."""
    if not nodes:
        raise ModelError("The model accumulates no gradients: it is no training_model.onnx of generate_artifacts.")
    if wrong := [node for node in nodes if len(node.input) != 3 or not node.input[1].endswith("_grad")]:
        raise ModelError(f"Node {wrong[0].name!r} ({_ACCUMULATOR}) has not the inputs that generate_artifacts gives "
                         f"it: a buffer, a gradient, and whether it is reset.")
    gradients = {node.input[1].removesuffix("_grad"): node.input[1] for node in nodes}
    return gradients, {n for node in nodes for n in (node.input[0], node.input[2])}


def _add_forward_inputs(nodes: Collection[NodeProto]) -> None:
    """Give each AveragePoolGrad the input of its pool, by which its sizes are known."""
    pools = {node.output[0]: node.input[0] for node in nodes if node.op_type == "AveragePool"}
    for node in nodes:
        if node.op_type == "AveragePoolGrad" and len(node.input) == 1:
            y = node.input[0].removesuffix("_grad")
            if y in pools:
                node.input.append(pools[y])


def read_eval_graph(source: ModelProto | bytes | str | os.PathLike[str]) -> ModelProto:
    """An ``eval_model.onnx`` as the standard has it.

    A BatchNormalization that was in training mode still has its running statistics as outputs there, for which
    onnxruntime refuses it.

    Parameters
    ----------
    source : onnx.ModelProto, bytes or path
        The model.

    Returns
    -------
    onnx.ModelProto
    """
    proto = ModelProto()
    proto.CopyFrom(read(source))
    for node in proto.graph.node:
        if node.op_type == "BatchNormalization" and not any(a.name == "training_mode" and a.i for a in node.attribute):
            del node.output[1:]
    return proto


def load_lowered(graph: TrainingGraph, sizes: Mapping[str, Sequence[int]] | None = None) -> Model:
    """The values of a gradient graph, for some sizes of inputs or for any.

    Parameters
    ----------
    graph : TrainingGraph
        The graph.
    sizes : dict of str to tuple of int, optional
        The shapes of the inputs of the user.

    Returns
    -------
    Model

    Raises
    ------
    ModelError
        A kernel cannot be read in standard operators.
    """
    model = load(graph.model, batch=sizes, ties="file")
    for node in walk_nodes(topological(list(model.outputs.values()))):
        if isinstance(node.schema, OpaqueSchema) and node.domain == DOMAIN:
            raise ModelError(f"{node!r}: {DOMAIN}.{node.op_type.removeprefix(f'{DOMAIN}.')} is a kernel of "
                             f"onnxruntime's training that is not known in other operators, and no runtime after "
                             f"1.19.2 has it.")
    return model


@checked
def lower_training_model(
    source: ModelProto | bytes | str | os.PathLike[str], parameters: Collection[str] | None = None
) -> ModelProto:
    """The gradient graph of a ``training_model.onnx`` in standard operators, which any runtime runs.

    Gradients are outputs, named as their parameters with ``_grad``, and not accumulated. So are new running statistics
    of a BatchNormalization in training mode.

    Parameters
    ----------
    source : onnx.ModelProto, bytes or path
        The training model.
    parameters : collection of str, optional
        The names of its parameters, if they are known from a checkpoint.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        It is no training model, or has a kernel that is not known in other operators; the message names it.

    Examples
    --------
    >>> from onnx.parser import parse_model
    >>> model = parse_model('''
    ...     <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    ...     training (float[N, 2] x, float[2] w, float[2] buffer, bool[1] reset) => (float loss, bool[1] done)
    ...     <float one = {1}, int64[1] first = {0}>
    ...     {
    ...         y = Mul (x, w)
    ...         loss = ReduceSum <keepdims = 0> (y)
    ...         w_grad = ReduceSum <keepdims = 0> (x, first)
    ...         done = com.microsoft.InPlaceAccumulatorV2 (buffer, w_grad, reset)
    ...     }''')
    >>> lowered = lower_training_model(model)
    >>> [o.name for o in lowered.graph.output], sorted({node.op_type for node in lowered.graph.node})
    (['loss', 'w_grad'], ['Mul', 'ReduceSum'])
    """
    graph = read_training_graph(source, parameters)
    model = load_lowered(graph)
    outputs = rewrite_model(replace(model, outputs=model.outputs)).outputs
    return build(model.inputs, outputs, name="training")
