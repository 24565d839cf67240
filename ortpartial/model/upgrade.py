"""Opset upgrade: nodes whose operator has changed since their opset, written as opset 21 has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
    helper,
    numpy_helper,
    version_converter,
)

from ortpartial.annotations import Attributes, DTypeLike
from ortpartial.exceptions import ModelError, OrtPartialError
from ortpartial.graph import OPSET, attribute_value, defaults, schema_of

from .walk import walk_graphs, walk_protos

__all__ = ["STANDARD", "mark_opset", "upgrade"]

#: The names of the domain of ONNX's own operators.
STANDARD = frozenset({"", "ai.onnx"})

#: The first opset that is upgraded here: older opsets are left to the converter of onnx.
FIRST = 7


#: The attribute by which nodes tell their opset, if it is not the model's.
_MARK = "ortpartial.opset"


def mark_opset(nodes: Iterable[NodeProto], version: int) -> None:
    """Let nodes say of which opset they are, for `upgrade`.

    Parameters
    ----------
    nodes : iterable of onnx.NodeProto
        The nodes; they are written to.
    version : int
        Their opset.
    """
    for node in nodes:
        node.metadata_props.add(key=_MARK, value=str(version))


def upgrade(model: ModelProto) -> ModelProto:
    """The model in the operators of the opset that the library reads, or of its own, later opset.

    A node is written anew where its operator has changed: where attributes became inputs, and where the same node has
    another meaning. All other nodes stay as they are, and so do nodes of other domains. onnx's converter has no part in
    it: in 1.23.2 it changes the results of Resize, Upsample and Hardmax, and takes no graph with an operator that it
    does not know.

    Parameters
    ----------
    model : onnx.ModelProto
        The model without functions, which may be written to.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        The opset is below 7, and onnx's converter fails; or no later operator computes the same as an operator of the
        model.
    """
    version = next((o.version for o in model.opset_import if o.domain in STANDARD), OPSET)
    newest = max(OPSET, version, *(_find_opset(node, version) for node in walk_protos(model.graph)))
    if version < FIRST:
        _write(model, version)
        try:
            model = version_converter.convert_version(model, FIRST)
        except Exception as e:
            reason = str(e).strip().splitlines()[-1]
            raise ModelError(f"The model cannot be upgraded from opset {version} to {OPSET}: {reason}") from None
    _write(model, max(version, FIRST))
    for node in walk_protos(model.graph):
        for mark in [p for p in node.metadata_props if p.key == _MARK]:
            node.metadata_props.remove(mark)
    for imported in model.opset_import:
        if imported.domain in STANDARD:
            imported.version = newest  # since OPSET, operators have only gained optional parts
    return model


def _find_opset(node: NodeProto, version: int) -> int:
    """The opset of a node in a model of an opset."""
    return next((int(p.value) for p in node.metadata_props if p.key == _MARK), version)


def _write(model: ModelProto, version: int) -> None:
    """Write anew the nodes of old opsets whose operators have changed; below opset 7, nodes that onnx gets wrong."""
    context = _Context(model, version)
    for graph in reversed([*walk_graphs(model.graph)]):  # bodies before the nodes that hold them
        if any(context.find_writer(node) for node in graph.node):
            _rewrite(graph, context)


def _rewrite(graph: GraphProto, context: _Context) -> None:
    """Write the nodes of a graph anew."""
    nodes = []
    for node in graph.node:
        if write := context.find_writer(node):
            writer = _Writer(node, context)
            try:
                write(writer)
            except OrtPartialError:
                raise
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as e:
                raise ModelError(f"Node {node.name or '(unnamed)'} ({node.op_type}, output {node.output[0]!r}) cannot "
                                 f"be upgraded: its inputs or attributes are missing or do not fit: {e}.") from e
            nodes += writer.nodes
        else:
            nodes.append(NodeProto.FromString(node.SerializeToString()))
    del graph.node[:]
    graph.node.extend(nodes)


@dataclass(frozen=True)
class _Context:
    """The model around a node, as writers ask for it; all of it is computed at the first question."""

    model: ModelProto
    version: int

    def find_writer(self, node: NodeProto) -> Callable[[_Writer], None] | None:
        """The function that writes a node anew; None where it stays as it is."""
        if node.domain not in STANDARD or node.op_type not in WRITERS:
            return None
        last, write = WRITERS[node.op_type]
        is_late = self.version < FIRST <= last  # its form before opset 7 is the converter's
        return write if _find_opset(node, self.version) <= last and not is_late else None

    @cached_property
    def names(self) -> set[str]:
        """The names of all tensors."""
        graphs = list(walk_graphs(self.model.graph))
        return {*(v.name for g in graphs for v in [*g.input, *g.initializer]),
                *(o for g in graphs for node in g.node for o in node.output)}

    @cached_property
    def types(self) -> dict[str, TypeProto]:
        """The types of tensors, as far as they can be inferred at the opset of the model."""
        bare = ModelProto()
        bare.CopyFrom(self.model)
        foreign = {o for node in walk_protos(bare.graph) if node.domain not in STANDARD for o in node.output}
        for graph in walk_graphs(bare.graph):
            declared = [v for v in graph.value_info if v.name in foreign]  # others are wrong now and then
            del graph.value_info[:]
            graph.value_info.extend(declared)
        with suppress(Exception):  # then the declared types hold
            bare = onnx.shape_inference.infer_shapes(bare)
        graphs = list(walk_graphs(bare.graph))
        stored = {t.name: helper.make_tensor_type_proto(t.data_type, t.dims) for g in graphs for t in g.initializer}
        return {**stored, **{v.name: v.type for g in graphs for v in [*g.input, *g.value_info, *g.output]}}

    def array(self, name: str) -> np.ndarray | None:
        """The content of an initializer or of a Constant node; None where the tensor is computed."""
        for graph in walk_graphs(self.model.graph):
            stored = [t for t in graph.initializer if t.name == name]
            stored += [a.t for node in graph.node if node.op_type == "Constant" and node.output[0] == name
                       for a in node.attribute if a.name == "value"]
            if stored:
                return numpy_helper.to_array(stored[0])
        return None


@dataclass(frozen=True)
class _Writer:
    """Writes the nodes that replace a node."""

    node: NodeProto
    context: _Context
    nodes: list[NodeProto] = field(default_factory=list)

    @cached_property
    def version(self) -> int:
        """The opset of the node."""
        return _find_opset(self.node, self.context.version)

    @cached_property
    def attributes(self) -> Attributes:
        """The attributes of the node, and the defaults that they had at its opset."""
        schema = schema_of(self.node.op_type, "", self.version)
        return {**defaults(schema), **{a.name: attribute_value(a) for a in self.node.attribute}}

    def kind(self, name: str) -> int:
        """The type of the elements of a tensor; 0 where it is not known."""
        return self.context.types.get(name, TypeProto()).tensor_type.elem_type

    def rank(self, name: str) -> int | None:
        """The number of axes of a tensor, where it is known."""
        tensor = self.context.types.get(name, TypeProto()).tensor_type
        return len(tensor.shape.dim) if tensor.HasField("shape") else None

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """The output of a new node."""
        stem = name = f"{self.node.output[0]}/{op_type}"
        while name in self.context.names:
            name = f"{stem}_{len(self.context.names)}"
        self.context.names.add(name)
        label = f"{self.node.name}/{op_type}" if self.node.name else ""
        self.nodes.append(helper.make_node(op_type, inputs, [name], label, **attributes))
        return name

    def constant(self, array: object, dtype: DTypeLike) -> str:
        """A constant."""
        return self.add("Constant", value=numpy_helper.from_array(np.asarray(array, dtype)))

    def number(self, value: float, like: str) -> str:
        """A number of the dtype of a tensor."""
        kind = self.kind(like)
        if not kind:
            return self.add("CastLike", self.constant(value, np.float32), like)
        with np.errstate(over="ignore"):  # 3.4e38 is the default of an attribute, and infinite in float16
            return self.constant(value, helper.tensor_dtype_to_np_dtype(kind))

    def finish(self, op_type: str, *inputs: str, drop: tuple[str, ...] = (), **attributes: object) -> None:
        """Write the node itself, with other inputs, without some attributes and with others."""
        node = NodeProto.FromString(self.node.SerializeToString())
        kept = [a for a in node.attribute if a.name not in (*drop, *attributes)]
        new = NodeProto(name=node.name, op_type=op_type, input=inputs, output=node.output, attribute=kept)
        new.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        self.nodes.append(new)

    def move(self, *names: str, drop: tuple[str, ...] = ()) -> None:
        """Write the node with attributes as inputs after its own, and without some attributes."""
        count = schema_of(self.node.op_type, "", self.version).max_input
        inputs = [*self.node.input, *[""] * (count - len(self.node.input))]
        formal = schema_of(self.node.op_type, "", OPSET).inputs
        for name in names:
            value = self.attributes.get(name)
            is_optional = formal[len(inputs)].option == onnx.defs.OpSchema.FormalParameterOption.Optional
            inputs.append("" if value is None or (value == () and is_optional) else self._move(name, value))
        while not inputs[-1]:
            inputs.pop()
        self.finish(self.node.op_type, *inputs, drop=(*names, *drop))

    def _move(self, name: str, value: object) -> str:
        if isinstance(value, float) and name != "ratio":
            return self.number(value, self.node.input[0])
        return self.constant([value] if name == "k" else value, np.float32 if isinstance(value, float) else np.int64)


#: Operators -> the last opset at which they are written in another way, and the function that does it.
WRITERS: dict[str, tuple[int, Callable[[_Writer], None]]] = {}


def _until(last: int, *op_types: str) -> Callable[[Callable[[_Writer], None]], Callable[[_Writer], None]]:
    """Register a function that rewrites nodes of operators up to an opset."""
    def register(write: Callable[[_Writer], None]) -> Callable[[_Writer], None]:
        WRITERS.update(dict.fromkeys(op_types, (last, write)))
        return write

    return register


_until(9, "Slice")(lambda w: w.move("starts", "ends", "axes"))
_until(9, "TopK")(lambda w: w.move("k"))
_until(10, "Clip")(lambda w: w.move("min", "max"))
_until(12, "ReduceSum", "Squeeze", "Unsqueeze")(lambda w: w.move("axes"))
_until(17, "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
       "ReduceProd", "ReduceSumSquare")(lambda w: w.move("axes"))
_until(19, "DFT")(lambda w: w.move("axis"))
_until(10, "Scatter")(lambda w: w.finish("ScatterElements", *w.node.input))
_until(15, "RoiAlign")(lambda w: w.finish("RoiAlign", *w.node.input,
                                          coordinate_transformation_mode="output_half_pixel"))


@_until(6, "PRelu")
def _(w: _Writer) -> None:
    """With a slope for each channel, the second axis, whatever the number of axes."""
    x, slope = w.node.input
    rank = w.rank(x)
    if w.rank(slope) == 1 and rank is not None and rank > 2:
        slope = w.add("Unsqueeze", slope, axes=list(range(1, rank - 1)))
    w.finish("PRelu", x, slope)


@_until(10, "Pad")
def _(w: _Writer) -> None:
    w.move("pads", *(["value"] if w.attributes["mode"] == "constant" else []), drop=("value",))


@_until(11, "Dropout")
def _(w: _Writer) -> None:
    """Write nothing for a mask of dropped elements, where later opsets have a mask of kept elements."""
    x, *_ = w.node.input
    w.move("ratio")
    if any(w.node.output[1:]):
        kind = TensorProto.BOOL if w.version >= 10 else w.kind(x) or TensorProto.FLOAT
        nothing = helper.make_tensor("nothing", kind, [1], [0])
        mask = w.nodes[-1].output.pop()
        w.nodes.append(helper.make_node("ConstantOfShape", [w.add("Shape", x)], [mask], value=nothing))


@_until(17, "Split")
def _(w: _Writer) -> None:
    """Into parts of the same size where no sizes are given, which a number of parts says since opset 18."""
    if w.version < 13 and w.attributes.get("split"):
        w.move("split")
    elif len(w.node.input) < 2:
        w.finish("Split", *w.node.input, num_outputs=len(w.node.output), drop=("split",))
    else:
        w.finish("Split", *w.node.input)


@_until(19, "GridSample")
def _(w: _Writer) -> None:
    mode = w.attributes["mode"]
    w.finish("GridSample", *w.node.input, mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


@_until(12, "Hardmax", "LogSoftmax", "Softmax")
def _(w: _Writer) -> None:
    """Of the rows of a matrix, which all axes from `axis` on are flattened into."""
    (x,), axis, op_type = w.node.input, w.attributes["axis"], w.node.op_type
    rank = w.rank(x)
    if axis == -1 or (rank is not None and axis == rank - 1):
        return w.finish(op_type, x, axis=-1)
    shape = w.add("Shape", x)
    rows = w.add(op_type, w.add("Flatten", x, axis=axis), axis=-1)
    return w.finish("Reshape", rows, shape, drop=("axis",))


@_until(20, "GroupNormalization")
def _(w: _Writer) -> None:
    """With a scale for each group: InstanceNormalization of the groups."""
    x, scale, bias = w.node.input
    shape = w.add("Shape", x)
    groups = w.add("Reshape", x, w.constant([0, w.attributes["num_groups"], -1], np.int64))
    normal = w.add("InstanceNormalization", groups, scale, bias, epsilon=w.attributes["epsilon"])
    w.finish("Reshape", normal, shape, drop=tuple(w.attributes))


@_until(13, "BatchNormalization")
def _(w: _Writer) -> None:
    """In training mode where it has several outputs; with statistics of each element where it is not spatial."""
    is_training = any(w.node.output[1:])
    if w.attributes.get("spatial", 1):
        w.finish("BatchNormalization", *w.node.input, drop=("spatial",), training_mode=int(is_training))
        del w.nodes[-1].output[3 if is_training else 1:]
        return
    if is_training:
        raise ModelError(f"Node {w.node.name or '(unnamed)'} (BatchNormalization, output {w.node.output[0]!r}) trains "
                         f"statistics of each element (spatial = 0), which no later opset does.")
    x, scale, bias, mean, variance = w.node.input
    deviation = w.add("Sqrt", w.add("Add", variance, w.number(w.attributes["epsilon"], x)))
    normal = w.add("Div", w.add("Sub", x, mean), deviation)
    w.finish("Add", w.add("Mul", normal, scale), bias, drop=tuple(w.attributes))


@_until(10, "Resize", "Upsample")
def _(w: _Writer) -> None:
    """Of the element at a multiple of 1 / scale, rounded down where an axis is stretched, and up where it shrinks."""
    x, scales = (*w.node.input, "")[:2]
    place = {"coordinate_transformation_mode": "asymmetric"}
    array = np.asarray(w.attributes["scales"], np.float32) if not scales else w.context.array(scales)
    if not scales:
        scales = w.constant(array, np.float32)
    if w.attributes["mode"] != "nearest":
        return w.finish("Resize", x, "", scales, drop=("scales",), **place)
    if array is None or (array.min() < 1 < array.max()):
        one = w.constant(1, np.float32)
        x = w.add("Resize", x, "", w.add("Max", scales, one), **place, mode="nearest", nearest_mode="floor")
        scales = w.add("Min", scales, one)
    rounding = "floor" if array is not None and array.min() >= 1 else "ceil"
    return w.finish("Resize", x, "", scales, drop=("scales",), **place, nearest_mode=rounding)


@_until(8, "Scan")
def _(w: _Writer) -> None:
    """Of each example of a batch, the first axis: a Scan over examples whose body is the Scan over the sequence."""
    lengths, *arguments = w.node.input
    if lengths:
        raise ModelError(f"Node {w.node.name or '(unnamed)'} (Scan, output {w.node.output[0]!r}) has lengths of its "
                         f"sequences, which Scan has up to opset 8 alone; export the model at opset 9 or later.")
    body, count = w.attributes["body"], w.attributes["num_scan_inputs"]
    inner = helper.make_node("Scan", [f"{w.node.output[0]}/{i.name}" for i in body.input],
                             [f"{w.node.output[0]}/{o.name}/last" for o in body.output],
                             body=body, num_scan_inputs=count)
    if directions := w.attributes.get("directions"):
        inner.attribute.append(helper.make_attribute("scan_input_directions", directions))
    states = len(body.input) - count
    step = helper.make_graph([inner], body.name, _examples(inner.input, body.input, states),
                             _examples(inner.output, body.output, states))
    w.finish("Scan", *arguments, drop=("directions",), body=step, num_scan_inputs=len(arguments))


def _examples(names: Any, values: Any, states: int) -> list[onnx.ValueInfoProto]:
    """The states of a single example of a batch, and its sequences, with an axis more than their elements."""
    declared = [onnx.ValueInfoProto(name=name, type=v.type) for name, v in zip(names, values, strict=True)]
    for v in declared[states:]:
        if v.type.tensor_type.HasField("shape"):
            sizes = [TensorShapeProto.Dimension(), *v.type.tensor_type.shape.dim]
            del v.type.tensor_type.shape.dim[:]
            v.type.tensor_type.shape.dim.extend(sizes)
    return declared
