"""A checker of training information, which onnx's own checker does not look into."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    StringStringEntryProto,
    TensorProto,
    TrainingInfoProto,
    defs,
    helper,
    numpy_helper,
)

from ortpartial.exceptions import GraphError, ModelError, NoGradientError
from ortpartial.graph import Value
from ortpartial.model import ONNX_DOMAINS, Model, is_misplaced, load, read, walk_graphs

from .graphs import build_step, combine_graphs, mutable, pairs

__all__ = ["check_training_info"]


def check_training_info(model: ModelProto | bytes | str | os.PathLike[str]) -> None:
    """Check the training information of a model, which onnx's checker does not look into.

    Where the documents of the standard differ, every unambiguous reading passes: an ``update_binding`` may bind an
    output of the inference graph or of the algorithm; several entries may update the same initializer in turn; the
    algorithm of an entry may read and update an initializer of another entry, if no other tensor has its name. The
    models of `to_training_info` are valid in all readings.

    Parameters
    ----------
    model : onnx.ModelProto, bytes or path
        The model.

    Raises
    ------
    ModelError
        There is no training information, or it is invalid; the message names the entry and its field.

    Examples
    --------
    >>> from onnx.parser import parse_model
    >>> model = parse_model('<ir_version: 8, opset_import: ["": 21]> f (float[2] x) => (float[2] y) { y = Abs(x) }')
    >>> model.training_info.add().update_binding.add(key="w", value="y")
    key: "w"
    value: "y"
    >>> check_training_info(model)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.ModelError: training_info[0].update_binding: 'w' is no initializer of ...
    """
    proto = read(model)
    if not proto.training_info:
        raise ModelError("The model has no training_info; to_training_info writes one.")
    _check_tensors(proto)
    _check_changing_names(proto)
    _check_inference_graph(proto)
    for i, info in enumerate(proto.training_info):
        where = f"training_info[{i}]"
        _check_bindings(where, proto, info)
        _check_operators(f"{where}.initialization", proto, info.initialization.node)
        _check_initialization(where, proto, info)
        _check_algorithm(where, proto, i)


def _check_tensors(proto: ModelProto) -> None:
    """Check that initializers hold as many numbers as their shapes say."""
    for i, info in enumerate(proto.training_info):
        for part, graph in (("initialization", info.initialization), ("algorithm", info.algorithm)):
            for t in graph.initializer:
                try:
                    numpy_helper.to_array(t)
                except Exception as e:
                    where = f"training_info[{i}].{part}"
                    raise ModelError(f"{where}: the initializer {t.name!r} is not valid: {e}") from None


def _check_changing_names(proto: ModelProto) -> None:
    """Check that no two algorithms have an initializer of the same name that a binding changes."""
    changing = mutable(proto)
    owners: dict[str, str] = {}
    for i, info in enumerate(proto.training_info):
        where = f"training_info[{i}].algorithm"
        for t in info.algorithm.initializer:
            if t.name in changing and owners.setdefault(t.name, where) != where:
                raise ModelError(f"{where}: the initializer {t.name!r} is one of {owners[t.name]}, too, and a binding "
                                 f"changes it; give them names of their own.")


def _check_inference_graph(proto: ModelProto) -> None:
    """Check that the inference graph reads no tensor of an algorithm."""
    graphs = list(walk_graphs(proto.graph))
    nodes = [node for g in graphs for node in g.node]
    tensors = {o for node in nodes for o in node.output} | {v.name for g in graphs for v in (*g.input, *g.initializer)}
    foreign = [(node, x) for node in nodes for x in node.input if x and x not in tensors]
    for i, info in enumerate(proto.training_info):
        algorithm = {v.name for v in (*info.algorithm.input, *info.algorithm.initializer)}
        algorithm |= {o for node in info.algorithm.node for o in node.output}
        for node, x in foreign:
            if x in algorithm:
                raise ModelError(f"training_info[{i}].algorithm: the inference graph reads {x!r} (node "
                                 f"{node.name or node.op_type}), which the algorithm has; it must stand alone.")


def _check_bindings(where: str, proto: ModelProto, info: TrainingInfoProto) -> None:
    """Check that keys are initializers, each bound once, and values are outputs."""
    graphs = [proto.graph, *(other.algorithm for other in proto.training_info)]
    initializers = {t.name for g in graphs for t in g.initializer}
    results = {o.name for o in info.algorithm.output}
    fields: tuple[tuple[str, Iterable[StringStringEntryProto], set[str], str], ...] = (
        ("initialization_binding", info.initialization_binding, {o.name for o in info.initialization.output},
         "the initialization"),
        ("update_binding", info.update_binding, results | {o.name for o in proto.graph.output},
         "the algorithm or of the inference graph"),
    )
    for field, binding, values, of in fields:
        counts = Counter(p.key for p in binding)
        if twice := [k for k, n in counts.items() if n > 1]:
            raise ModelError(f"{where}.{field}: {twice[0]!r} is bound {counts[twice[0]]} times.")
        for p in binding:
            if p.key not in initializers:
                raise ModelError(f"{where}.{field}: {p.key!r} is no initializer of the model or an algorithm.")
            if p.value not in values:
                raise ModelError(f"{where}.{field}: {p.value!r}, which is bound to {p.key!r}, is no output of {of}.")


def _check_operators(where: str, proto: ModelProto, nodes: Sequence[NodeProto]) -> None:
    """Check that all operators exist in the opsets that the model imports."""
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in proto.opset_import}
    functions = {(f.domain, f.name) for f in proto.functions}
    inside = (n for outer in nodes for a in outer.attribute for g in walk_graphs(a.g) for n in g.node)
    for node in (*nodes, *inside):
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) in functions:
            continue
        name = f"{domain}.{node.op_type}" if domain else node.op_type
        if domain not in opsets:
            raise ModelError(f"{where}: node {node.name or '(unnamed)'} is a {name}, and the model does not import the "
                             f"domain {domain!r}.")
        if domain in ONNX_DOMAINS and not (defs.has(node.op_type, opsets[domain], domain) or is_misplaced(node)):
            raise ModelError(f"{where}: node {node.name or '(unnamed)'} is a {name}, which is no operator of ONNX at "
                             f"version {opsets[domain]} of its domain, nor a function of the model.")


def _check_initialization(where: str, proto: ModelProto, info: TrainingInfoProto) -> None:
    """Check that the initialization has no inputs, and that its outputs have the types of their targets."""
    graph, where_in = info.initialization, f"{where}.initialization"
    if graph.input:
        raise ModelError(f"{where_in}: it has the input {graph.input[0].name!r}, where none is allowed.")
    _check_unique(where_in, [("an initializer", [t.name for t in graph.initializer]), *_computed(graph)])
    if graph.output:
        loaded = _loaded(where_in, initialization(proto, info))
        _check_types(f"{where}.initialization_binding", proto, pairs(info.initialization_binding), loaded.outputs)


def initialization(proto: ModelProto, info: TrainingInfoProto) -> ModelProto:
    """Make a model of the initialization of an entry.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    info : onnx.TrainingInfoProto
        An entry of it.

    Returns
    -------
    onnx.ModelProto
    """
    return ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, functions=proto.functions,
                      graph=info.initialization)


def _check_algorithm(where: str, proto: ModelProto, entry: int) -> None:
    """Check the combined graph, and that its outputs have the types of the tensors they are bound to."""
    where_in, info = f"{where}.algorithm", proto.training_info[entry]
    combined = combine_graphs(proto, entry).graph
    _check_operators(where_in, proto, combined.node)
    declared = [i.name for i in combined.input]
    # An initializer of the same graph is the default of an input.
    graphs = (proto.graph, info.algorithm)
    optional = {n for g in graphs for n in {i.name for i in g.input} & {t.name for t in g.initializer}}
    stored = [t.name for t in combined.initializer]
    stored = [n for j, n in enumerate(stored) if not (n in optional and n in declared and n not in stored[:j])]
    _check_unique(where_in, [("an input", declared), ("an initializer", stored), *_computed(combined)])
    if not combined.output:
        return
    try:
        loaded = build_step(proto, entry)
    except (GraphError, ModelError, NoGradientError) as e:
        raise ModelError(f"{where_in}: {e}") from None
    _check_types(f"{where}.update_binding", proto, pairs(info.update_binding), loaded.outputs)


def _computed(graph: GraphProto) -> list[tuple[str, list[str]]]:
    """The names of the nodes' outputs, with a description of each node for messages."""
    return [(f"an output of node {node.name or '(unnamed)'} ({node.op_type})", [o for o in node.output if o])
            for node in graph.node]


def _check_unique(where: str, named: Iterable[tuple[str, list[str]]]) -> None:
    """Check that every name is defined once."""
    seen: dict[str, str] = {}
    for what, names in named:
        for name in names:
            if name in seen:
                raise ModelError(f"{where}: in the combined graph {name!r} is {seen[name]} and {what}; every name is "
                                 f"given once.")
            seen[name] = what


def _loaded(where: str, model: ModelProto) -> Model:
    try:
        return load(model, ties="file")
    except (GraphError, ModelError, NoGradientError) as e:
        raise ModelError(f"{where}: {e}") from None


def _check_types(where: str, proto: ModelProto, binding: Mapping[str, str], outputs: Mapping[str, Value]) -> None:
    """Check that bound values have the type and, as far as it is known, the shape of their initializers."""
    initializers = mutable(proto)
    for key, value in binding.items():
        t, v = initializers[key], outputs[value]
        dims = tuple(t.dims)
        fits = v.shape is None or (len(v.shape) == len(dims) and all(
            m == n or not isinstance(m, int) for m, n in zip(v.shape, dims, strict=True)))
        kind = v.type.tensor_type.elem_type
        if kind != t.data_type or not fits:
            raise ModelError(f"{where}: {value!r} is {_kind(kind, v.shape)}, and {key!r}, which it is bound to, "
                             f"{_kind(t.data_type, dims)}.")


def _kind(elem_type: int, shape: Iterable[object] | None) -> str:
    """`float32[2x3]`."""
    dtype = helper.tensor_dtype_to_np_dtype(elem_type) if elem_type else TensorProto.DataType.Name(elem_type)
    return f"{dtype}[{'?' if shape is None else 'x'.join('?' if d is None else str(d) for d in shape)}]"
