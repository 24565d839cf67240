"""Preparing an ONNX graph: inline functions, upgrade the opset, fold constants and infer shapes before it is read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TensorProto, defs, helper, inliner, numpy_helper

from ortpartial.checks import check_count
from ortpartial.exceptions import ModelError
from ortpartial.graph import FLOATS, MISTAKEN_DEFAULTS, OPSET, forget_zero_sizes

from .auto_pad import is_missized
from .custom_ops import is_opaque
from .folding import fold_constants
from .function_attributes import fill_attributes
from .ml import expand, list_ml_outputs
from .reader import EXPANSIONS
from .upgrade import STANDARD, mark_opset, upgrade
from .validation import check_proto
from .walk import bodies, walk_graphs, walk_protos

__all__ = ["check_graph", "infer_types", "is_misplaced", "prepare", "set_sizes"]

#: Types of the numbers of quantized weights, and how many of them a pass may see.
_PACKED = {TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4}
_MOST_PACKED = 2**20

#: Operators whose outputs are as long as a constant says.
_LENGTHENING = frozenset({"CenterCropPad", "Col2Im", "ConstantOfShape", "Expand", "MaxUnpool", "OneHot", "Pad",
                          "Reshape", "Resize", "Tile"})

#: The length of an axis up to which inference may look at the numbers of a tensor.
_MOST_NUMBERS = 2**24


def prepare(
    proto: ModelProto, batch: int | Mapping[str, Sequence[int]] | None = None
) -> tuple[onnx.GraphProto, Mapping[str, int]]:
    """A graph with functions inlined and opset 21 or later, in which big initializers became inputs, and its opsets.

    Operators of ai.onnx.ml that have weights are written as standard operators.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; it is not written to.
    batch : int or dict of str to sequence of int, optional
        Number of rows of every input whose first size is not static, or all the sizes of inputs by their names.

    Returns
    -------
    tuple of onnx.GraphProto and dict of str to int

    Raises
    ------
    ModelError
        The model cannot be upgraded.
    """
    light = ModelProto()
    light.CopyFrom(_without_data(proto))
    _name_domains(light)
    for nodes in (*(g.node for g in walk_graphs(light.graph)), *(f.node for f in light.functions)):
        _add_named_inputs(nodes)
        _sort(nodes)
    check_proto(light)
    versions = {o.version for m in (light, *light.functions) for o in m.opset_import if o.domain in STANDARD}
    if light.functions:
        light = _inline(light)
    if len(versions) > 1 or min(versions, default=OPSET) < OPSET:
        light = upgrade(light)
    opsets = {o.domain: o.version for o in light.opset_import}
    expand(light.graph, opsets, list_ml_outputs(proto))
    if batch is not None:
        set_sizes(light.graph, batch)
    fold_constants(light.graph, opsets)
    return light.graph, opsets


def _inline(model: ModelProto) -> ModelProto:
    """The model without functions; nodes from a function of another opset name it, for the upgrade."""
    if not any(o.domain in STANDARD for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", OPSET))
    version = next(o.version for o in model.opset_import if o.domain in STANDARD)
    for function in model.functions:
        for imported in function.opset_import:
            if imported.domain in STANDARD and imported.version != version:
                mark_opset(walk_protos(function), imported.version)
                imported.version = version  # onnx would convert the function otherwise
    fill_attributes(model)
    try:
        return inliner.inline_local_functions(model)
    except Exception as e:
        raise ModelError(f"The functions of the model cannot be inlined: {_last_line(e)}") from None


def _name_domains(model: ModelProto) -> None:
    """Put operators of onnxruntime that it writes into the domain of ONNX, which has none of the name, into its own."""
    misplaced = [node for container in (model.graph, *model.functions) for node in walk_protos(container)
                 if is_misplaced(node)]
    for node in misplaced:
        node.domain = "com.microsoft"
    if misplaced and not any(o.domain == "com.microsoft" for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def is_misplaced(node: onnx.NodeProto) -> bool:
    """Whether a node is an operator of onnxruntime, written into the domain of ONNX, which has none of the name."""
    return ("com.microsoft", node.op_type) in EXPANSIONS and node.domain in STANDARD and not defs.has(node.op_type)


def check_graph(graph: onnx.GraphProto, opsets: Mapping[str, int]) -> None:
    """Run onnx's checker, without the declared shapes of inner values, which exporters get wrong.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph; it is not written to.
    opsets : dict of str to int
        Its opsets.

    Raises
    ------
    ModelError
        The graph is not valid.
    """
    bare = helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()])
    del bare.graph.value_info[:]
    for node in (n for g in walk_graphs(bare.graph) for n in g.node if is_opaque(n)):
        node.domain = "opaque"  # of which the checker knows nothing
    bare.opset_import.add(domain="opaque", version=1)
    for v in [*bare.graph.input, *bare.graph.output]:
        if v.type.WhichOneof("value") is None:  # So skl2onnx 1.20.0 cuts a model, and onnxruntime reads it.
            v.type.tensor_type.elem_type = TensorProto.FLOAT
        if v.type.HasField("tensor_type"):
            v.type.tensor_type.shape.SetInParent()  # The checker asks for a shape, and we do not.
    try:
        onnx.checker.check_model(bare)
    except Exception as e:
        raise ModelError(f"The model is not valid ONNX: {' '.join(str(e).split())[:500]}") from None


def _without_data(proto: ModelProto) -> ModelProto:
    """The model with big initializers of floats, and of packed numbers, declared as inputs: no pass copies weights."""
    versions = {o.domain: o.version for o in proto.opset_import}  # skl2onnx 1.20.0 writes some twice.
    imports = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    light = ModelProto(ir_version=max(proto.ir_version, 4), opset_import=imports, functions=proto.functions)
    source, target = proto.graph, light.graph
    target.name = source.name or "graph"
    target.node.extend(source.node)
    target.output.extend(source.output)
    target.value_info.extend(source.value_info)
    declared = {i.name for i in source.input}
    target.input.extend(source.input)
    for t in source.initializer:
        if math.prod(t.dims) > (64 if t.data_type in FLOATS else _MOST_PACKED if t.data_type in _PACKED else math.inf):
            if t.name not in declared:
                target.input.append(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
        else:
            target.initializer.append(t)
    return light


def _add_named_inputs(nodes: Any) -> None:
    """Make the tensors that a Gradient names in attributes further inputs, so that passes rename them, too."""
    for node in nodes:
        if node.op_type == "Gradient" and node.domain == "ai.onnx.preview.training":
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            try:
                named = [n.decode() for n in (*attributes.get("xs", ()), *attributes.get("zs", ()))]
                y = attributes.get("y", b"").decode()
            except (AttributeError, TypeError, ValueError):
                raise ModelError(f"Node {node.name or '(unnamed)'} (Gradient) names tensors by something else than "
                                 f"texts.") from None
            if len(named) != len(node.input):
                raise ModelError(f"Node {node.name or '(unnamed)'} (Gradient) names {len(named)} tensors in xs and zs, "
                                 f"and has {len(node.input)} inputs; one for each was expected.")
            node.input.extend([*named, y])


def _sort(nodes: Any) -> None:
    """Sort the nodes of a graph topologically, unless they form a cycle.

    onnxruntime sorts them itself, and its converter to float16 appends the casts of inputs. A Gradient may stand before
    the nodes that compute the tensors it names: the standard orders nodes by their inputs alone.
    """
    read: set[str] = set()
    for node in nodes:
        read |= _read_names(node)
        if not read.isdisjoint(filter(None, node.output)):
            break
    else:
        return
    computed_by = {o: k for k, node in enumerate(nodes) for o in node.output if o}
    reads = [sorted({computed_by[i] for i in _read_names(node) if i in computed_by}) for node in nodes]
    try:
        order = list(TopologicalSorter(dict(enumerate(reads))).static_order())
    except CycleError:
        return
    places = {tuple(nodes[k].output): i for i, k in enumerate(order)}
    nodes.sort(key=lambda node: places[tuple(node.output)])


def _read_names(node: NodeProto) -> set[str]:
    """The names that a node reads, with the graphs inside it."""
    return {*node.input, *(i for b in bodies(node) for n in walk_protos(b) for i in n.input)}


def set_sizes(graph: onnx.GraphProto, batch: int | Mapping[str, Sequence[int]]) -> None:
    """Give the first size of every input, and every other size of the same name, the number of rows.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph; its inputs are written to.
    batch : int or dict of str to sequence of int
        The number of rows, or all sizes of inputs by their names.
    """
    if not isinstance(batch, Mapping):
        batch = check_count("batch", batch, 0, 2**62)
    else:
        for i in graph.input:
            if i.name in batch:
                i.type.CopyFrom(helper.make_tensor_type_proto(i.type.tensor_type.elem_type, list(batch[i.name])))
        return
    kinds = [i.type.tensor_type for i in graph.input if i.type.tensor_type.HasField("shape")]
    first = [k.shape.dim[0] for k in kinds if k.shape.dim and not k.shape.dim[0].HasField("dim_value")]
    names = {d.dim_param for d in first if d.dim_param}
    for d in [*first, *(d for k in kinds for d in k.shape.dim if d.dim_param in names)]:
        d.dim_value = batch


def _has_long_rows(graph: onnx.GraphProto) -> bool:
    """Whether a tensor of a single axis may be so long that inference must not follow numbers from node to node.

    onnx 1.23.2 makes a dimension of each number of a tensor that Cast, Add and others read, before it knows any.
    """
    for i in graph.input:
        dims = i.type.tensor_type.shape.dim
        if len(dims) == 1 and dims[0].dim_value > 4 * _MOST_NUMBERS:
            return True
    return any(max(_list_lengths(g), default=0) > _MOST_NUMBERS for g in walk_graphs(graph))


def _list_lengths(graph: onnx.GraphProto) -> Iterator[int]:
    """Sizes that nodes of a graph, without its bodies, give to tensors."""
    shapes = [n for node in graph.node if node.op_type in _LENGTHENING for n in node.input if n]
    stored = {t.name: t for t in graph.initializer if t.data_type == TensorProto.INT64}
    stored |= {node.output[0]: a.t for node in graph.node if node.op_type == "Constant" for a in node.attribute
               if a.name == "value" and a.t.data_type == TensorProto.INT64}
    numbers = [numpy_helper.to_array(stored[n]) for n in shapes if n in stored]
    yield from (int(a.max()) for a in numbers if a.size)
    yield from (max(a.ints, default=0) for node in graph.node for a in node.attribute if a.name == "shape")


def infer_types(graph: onnx.GraphProto, opsets: Mapping[str, int],
                opaque: Mapping[str, onnx.TypeProto] | None = None) -> dict[str, onnx.TypeProto]:
    """Types by shape inference over a graph, which follows the arithmetic of shapes from node to node.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph; it is not written to.
    opsets : dict of str to int
        Its opsets.
    opaque : dict of str to onnx.TypeProto, optional
        The types of values that inference cannot find, as ONNX does not know the operators that compute them.

    Returns
    -------
    dict of str to onnx.TypeProto
        By the names of values, also of bodies; empty where inference fails.
    """
    model = _without_types(graph, opsets, opaque or {})
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=not _has_long_rows(model.graph))
    except Exception:
        return {}
    types: dict[str, onnx.TypeProto] = {}
    for v in (v for g in walk_graphs(inferred.graph) for v in [*g.value_info, *g.output]):
        forget_zero_sizes(v.type.tensor_type.shape)
        if v.name in types and types[v.name] != v.type:  # two branches may each have a value of the same name
            types[v.name] = onnx.TypeProto()
        types.setdefault(v.name, v.type)
    return types


def _without_types(graph: onnx.GraphProto, opsets: Mapping[str, int],
                   opaque: Mapping[str, onnx.TypeProto]) -> ModelProto:
    """A model of a graph for shape inference: without declared types, which it would trust, and with unknown types."""
    bare = onnx.GraphProto()
    bare.CopyFrom(graph)
    del bare.value_info[:]
    model = helper.make_model(bare, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()])
    main, *inside = walk_graphs(model.graph)
    for g in inside:
        del g.value_info[:]
    for node in (node for g in (main, *inside) for node in g.node if is_missized(node)):
        node.op_type = "Unsized"  # an operator that inference does not know
    # Exporters declare wrong sizes now and then; the inputs of a body follow from its node.
    for o in [*main.output, *(v for g in inside for v in [*g.input, *g.output])]:
        o.type.tensor_type.ClearField("shape")
    for g in (main, *inside) if opaque else ():
        computed = [o for node in g.node for o in node.output if o in opaque]
        g.value_info.extend(helper.make_value_info(o, opaque[o]) for o in computed)
    for node in (n for g in (main, *inside) for n in g.node if n.op_type in MISTAKEN_DEFAULTS):
        _write_defaults(node)
    return model


def _write_defaults(node: onnx.NodeProto) -> None:
    """Write out the defaults of attributes that shape inference mistakes."""
    written = {a.name for a in node.attribute}
    node.attribute.extend(helper.make_attribute(n, v) for n, v in MISTAKEN_DEFAULTS[node.op_type].items()
                          if n not in written)


def _last_line(e: Exception) -> str:
    return str(e).strip().splitlines()[-1]
