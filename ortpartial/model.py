"""What is in an ONNX file? `load` turns a ModelProto into values, its weights into values that can be inputs."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections import ChainMap, Counter
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from .exceptions import GraphError, ModelError
from .graph import (
    CONTROL,
    OPSET,
    SMALL,
    Node,
    Subgraph,
    Value,
    _defaults,
    _newest,
    attribute_value,
    check_required,
    constant,
    make_node,
    variable,
)
from .guard import check_node, check_size, guarded
from .passes import bodies, check, constant_of, folded, graphs, prepared, shapes
from .sequences import part_of, pieces
from .sparse import densified
from .straight import straight
from .subgraph import body_inputs, widened

__all__ = ["EXPANDED", "Model", "expand", "lightened", "load", "parted", "read", "replace_weights",
           "whole"]  # fmt: skip

#: Operators that are read as what they compute: from inputs, attributes and which outputs are wanted to the outputs.
EXPANDED: dict[tuple[str, str], Callable[[Sequence[Any], Mapping[str, Any], Sequence[bool]], list[Value | None]]] = {}

#: Bytes that one protobuf message can hold are 2³¹ - 1; some are left for all that is not content of initializers.
_MESSAGE = 2**31 - 2**26

#: Bytes from which on an initializer is not worth a second copy.
_BIG = 2**20

#: Bytes of big initializers from which on they are kept in a file.
_MANY = 2**24


@dataclass(frozen=True)
class Model:
    """An ONNX model as values.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model as it was given, sparse initializers as dense ones; never written to.
    inputs, outputs : dict of str to Value
        What the graph reads and gives.
    initializers : dict of str to Value
        Its initializers: variables where `load` was told so, else constants.
    arrays : dict of str to numpy.ndarray
        The content of the initializers.
    values : dict of str to Value
        Every tensor of the graph by its name.
    straight_through : bool
        Whether gradients pass through QuantizeLinear and DequantizeLinear, as `load` was told.
    file : mmap.mmap, optional
        A file without a name, in which the content of big initializers waits until somebody reads it: see `lightened`.

    Examples
    --------
    >>> from ortpartial.builder import build
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", ["N", 3])
    >>> list(load(build([x], {"y": op.Exp(x)})).outputs)
    ['y']
    """

    proto: ModelProto
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    initializers: Mapping[str, Value]
    arrays: Mapping[str, np.ndarray]
    values: Mapping[str, Value]
    #: Whether gradients pass through QuantizeLinear and DequantizeLinear.
    straight_through: bool = False
    file: mmap.mmap | None = None

    def release(self) -> None:
        """Give back the memory that reading `arrays` took, where they wait in a file."""
        if self.file is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.file.madvise(mmap.MADV_DONTNEED)


def read(source: ModelProto | bytes | str | os.PathLike[str]) -> ModelProto:
    """A ModelProto from a ModelProto (returned as it is), its bytes, or a path (external data included).

    Sparse initializers become dense ones, in a copy.

    Parameters
    ----------
    source : onnx.ModelProto, bytes or path
        The model.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        The file does not exist, or the bytes are no ONNX model.

    Examples
    --------
    >>> read(b"not a model")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.ModelError: The 11 bytes given are no ONNX model, or one that was cut short.
    """
    if isinstance(source, ModelProto):
        model, what = source, "The ModelProto given is"
    elif isinstance(source, (bytes, bytearray)):
        model, what = ModelProto(), f"The {len(source)} bytes given are"
        try:
            model.ParseFromString(bytes(source))
        except DecodeError:
            model = ModelProto()
    elif isinstance(source, (str, os.PathLike)):
        path, what = Path(source), f"{str(source)!r} is"
        if not path.is_file():
            raise ModelError(f"There is no file {str(source)!r}; give a path to an ONNX model, bytes or a ModelProto.")
        try:
            model = onnx.load(path)
        except DecodeError:
            model = ModelProto()
        except (FileNotFoundError, onnx.checker.ValidationError) as e:
            raise ModelError(f"The external data of {str(source)!r} cannot be read: {e}") from None
    else:
        raise ModelError(f"A model is a ModelProto, bytes or a path, not {type(source).__name__}.")
    if not model.graph.output:
        raise ModelError(f"{what} no ONNX model, or one that was cut short.")
    if apart := [t.name for t in model.graph.initializer if t.data_location == TensorProto.EXTERNAL]:
        raise ModelError(f"The data of {apart[0]!r} stand in another file (external data); give the path of the model.")
    return densified(model)


def load(source: Model | ModelProto | bytes | str | os.PathLike[str], *,
         batch: int | Mapping[str, Sequence[int]] | None = None, variables: Collection[str] = (),
         straight_through: bool | None = None) -> Model:  # fmt: skip
    """An ONNX model as values: local functions inlined, older opsets upgraded, Constant nodes turned into constants.

    Sparse initializers are read as dense ones, trained as dense weights and written as such.

    Parameters
    ----------
    source : Model, onnx.ModelProto, bytes or path
        The model; it is not written to. One that was loaded before is not copied once more.
    batch : int or dict of str to sequence of int, optional
        Number of rows of every input whose first size is not static, or all the sizes of inputs by their names, so that
        what is built is made for them alone.
    variables : collection of str
        Initializers that will change: nothing that is built counts on their content.
    straight_through : bool, optional
        Whether a gradient passes through QuantizeLinear and the DequantizeLinear behind it as if they were not there,
        where nothing is cut off: their own is 0. A `Model` keeps what it was loaded with, and is given in place of the
        file to whatever trains it or differentiates it. It must be of float32 or float64.

    Returns
    -------
    Model

    Raises
    ------
    ModelError
        The model cannot be read, upgraded or understood; the message names the node.

    Examples
    --------
    >>> from ortpartial.builder import build
    >>> from ortpartial.graph import constant, op, variable
    >>> x, w = variable("x", "float32", ["N", 3]), constant([[1.0], [2.0], [3.0]], hint="w")
    >>> list(load(build([x], {"y": op.MatMul(x, w)})).initializers)
    ['w']
    """
    known = source if isinstance(source, Model) else None
    proto = known.proto if known else read(source)  # type: ignore[arg-type]
    graph, opsets = prepared(proto, batch)
    arrays = known.arrays if known else {t.name: numpy_helper.to_array(t) for t in _stored(proto)}
    initializers = {
        n: variable(n, a.dtype, a.shape) if n in variables else constant(a, hint=n) for n, a in arrays.items()
    }
    inputs = {}
    for i in graph.input:
        if i.name not in initializers:
            if not i.type.HasField("tensor_type"):
                raise ModelError(f"Input {i.name!r} is no tensor.")
            inputs[i.name] = Value(i.type, hint=i.name)
            check_size(inputs[i.name], f"Input {i.name!r}")
    values: dict[str, Value] = {**inputs, **initializers}
    if straight_through is None:
        straight_through = known is not None and known.straight_through
    reader = _Reader(opsets, shapes(graph, opsets), initializers, straight_through)
    outputs = dict(zip((o.name for o in graph.output), reader.read(graph, values), strict=True))
    if known is None:
        check(graph, opsets)  # at last, since our own errors say more
    return Model(proto, inputs, outputs, initializers, arrays, values, straight_through, known.file if known else None)


def _stored(proto: ModelProto) -> list[TensorProto]:
    """The initializers of a model, and those of its bodies whose names they share with no other."""
    every = [t for g in graphs(proto.graph) for t in g.initializer]
    counts = Counter(t.name for t in every)
    own = len(proto.graph.initializer)
    return [*every[:own], *(t for t in every[own:] if counts[t.name] == 1)]


@dataclass(frozen=True)
class _Reader:
    """What the graphs of one model have in common."""

    opsets: Mapping[str, int]
    types: Mapping[str, Any]
    initializers: Mapping[str, Value]
    straight_through: bool = False
    #: Sequences whose tensors are known.
    sequences: dict[Value, list[Value]] = dataclass_field(default_factory=dict)

    def read(self, graph: onnx.GraphProto, values: MutableMapping[str, Value]) -> list[Value]:
        """The outputs of a graph, in which values are known by their names; others are added to them."""
        for t in graph.initializer:
            if t.name not in values:
                known = self.initializers.get(t.name)
                values[t.name] = constant(numpy_helper.to_array(t), hint=t.name) if known is None else known
        for node in graph.node:
            _read_node(node, values, self)
        if missing := [o.name for o in graph.output if o.name not in values]:
            raise ModelError(f"No node computes the output {missing[0]!r}.")
        return [values[o.name] for o in graph.output]

    def bodies(self, node: NodeProto, inputs: list[Value | None], attributes: dict[str, Any],
               values: MutableMapping[str, Value]) -> dict[str, Subgraph]:  # fmt: skip
        """The graphs among the attributes of a node."""
        found = {a.name: a.g for a in node.attribute if a.type == AttributeProto.GRAPH}
        return {name: self.body(node.op_type, graph, inputs, attributes, values) for name, graph in found.items()}

    def body(self, op_type: str, graph: onnx.GraphProto, inputs: Sequence[Value | None], attributes: dict[str, Any],
             values: MutableMapping[str, Value]) -> Subgraph:  # fmt: skip
        """A graph inside a node that has these inputs, in which values are known by their names."""
        names = [i.name for i in graph.input]

        def outputs(*given: Value) -> list[Value]:
            return self.read(graph, ChainMap(dict(zip(names, given, strict=True)), values))

        def loop(kinds: Sequence[Value]) -> Subgraph:
            return Subgraph.of(outputs, *body_inputs("Loop", [None, None, *kinds], {}, names))

        if op_type == "Loop":
            return widened(loop, [x for x in inputs[2:] if x is not None])
        return Subgraph.of(outputs, *(body_inputs(op_type, inputs, attributes, names) if op_type == "Scan" else ()))


def _read_node(node: NodeProto, values: MutableMapping[str, Value], reader: _Reader) -> None:
    """Turn one node into values, in place of its outputs' names."""
    where = f"Node {node.name or '(unnamed)'} ({node.op_type}, output {node.output[0]!r})"
    if bodies(node) and node.op_type not in CONTROL:
        raise ModelError(f"{where} has a subgraph; of the operators that have one, {', '.join(CONTROL)} are read.")
    opsets, types = reader.opsets, reader.types
    attributes = {a.name: attribute_value(a) for a in node.attribute if a.type != AttributeProto.GRAPH}
    if unknown := [i for i in node.input if i and i not in values]:
        raise ModelError(f"{where} reads {unknown[0]!r}, which nothing computes before it.")
    try:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            content = constant_of(attributes)
            values[node.output[0]] = Value(content.type, array=content.array, hint=node.output[0])
            return
        schema = _newest(node.op_type, "" if node.domain == "ai.onnx" else node.domain, opsets.get(node.domain, OPSET))
        inputs = [values[i] if i else None for i in node.input]
        if (schema.domain, schema.name) in EXPANDED:
            found = _expanded(node, schema, inputs, attributes)
            values.update((n, v) for n, v in zip(node.output, found, strict=False) if n and v is not None)
            return
        check_required(schema, inputs, schema.name)
        if not schema.domain:
            check_node(schema.name, inputs, attributes, where)
            inputs = guarded(schema.name, inputs, attributes, node.name or f"{node.op_type} of {node.output[0]!r}")
        if node.op_type == "If" and (condition := inputs[0]) is not None and condition.array is not None:
            # Exporters write conditions that they could have decided.
            name = "then_branch" if condition.array.item() else "else_branch"
            (taken,) = [a.g for a in node.attribute if a.name == name]
            values.update(zip(node.output, reader.read(taken, ChainMap({}, values)), strict=True))
            return
        if inputs and inputs[0] in reader.sequences:
            known_parts = reader.sequences[inputs[0]]
            if (part := part_of(schema.name, known_parts, inputs, attributes)) is not None:
                values[node.output[0]] = part
                return
        attributes |= reader.bodies(node, inputs, attributes, values)
        owned = max(len(node.output), _owned(schema, attributes))
        made = make_node(schema, inputs, attributes, name=node.name, n_outputs=owned, hints=node.output)
        if not schema.domain and (parts := pieces(schema.name, inputs, attributes)) is not None:
            reader.sequences[made.outputs[0]] = parts
    except GraphError as e:
        raise ModelError(f"{where} cannot be read: {e}") from None
    for name, v in zip(node.output, made.outputs, strict=False):
        if name:
            if reader.straight_through and schema.name == "DequantizeLinear" and (q := inputs[0]) is not None:
                v = straight(q.node, v) if q.node is not None and q.node.op_type == "QuantizeLinear" else v
            known = types.get(name)
            if known is not None and known.tensor_type.elem_type == v.type.tensor_type.elem_type:
                shape = Value(known).shape
                v = v.stated(_reshaped(inputs[0], shape) if schema.name == "Reshape" else shape)
            check_size(v, where)
            values[name] = v


def _reshaped(x: Value | None, shape: tuple[int | str | None, ...] | None) -> tuple[int | str | None, ...] | None:
    """The shape of a Reshape, whose one new size follows from the number of elements where the names cancel out."""
    if x is None or x.shape is None or shape is None or None in (*x.shape, *shape):
        return shape
    new = [i for i, n in enumerate(shape) if isinstance(n, str) and n not in x.shape]
    others = [n for i, n in enumerate(shape) if i not in new]
    if len(new) != 1 or Counter(n for n in x.shape if isinstance(n, str)) != Counter(
        n for n in others if isinstance(n, str)
    ):
        return shape
    before, after = (int(np.prod([n for n in sizes if isinstance(n, int)])) for sizes in (x.shape, others))
    return (*shape[: new[0]], before // after, *shape[new[0] + 1 :]) if after and before % after == 0 else shape


def _expanded(node: NodeProto, schema: onnx.defs.OpSchema, inputs: Sequence[Value | None],
              attributes: Mapping[str, Any]) -> list[Value | None]:  # fmt: skip
    """What an operator of `EXPANDED` computes, once it has the inputs and attributes that it needs."""
    given = {**_defaults(schema), **attributes}
    if wrong := sorted(set(given) ^ {n for n, a in schema.attributes.items() if a.required or n in given}):
        raise GraphError(f"{schema.name} {'has no' if wrong[0] in given else 'needs the'} attribute {wrong[0]!r}.")
    if len(inputs) < schema.min_input:
        raise GraphError(f"{schema.name} takes {schema.min_input} or more inputs, {len(inputs)} given.")
    found = EXPANDED[schema.domain, schema.name](inputs, given, [bool(o) for o in node.output])
    if len(node.output) > len(found):
        raise GraphError(f"{schema.name} has {len(found)} outputs and not {len(node.output)}.")
    return found


def _owned(schema: onnx.defs.OpSchema, attributes: Mapping[str, Any]) -> int:
    """How many outputs every node of an operator has, reached or not; a variadic operator says it itself."""
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    if schema.name == "BatchNormalization" and not attributes.get("training_mode"):
        return 1  # the others, the running statistics, are outputs of training alone
    return 0 if any(o.option == variadic for o in schema.outputs) else len(schema.outputs)


def expand(node: Node) -> list[Value] | None:
    """A node's outputs computed by its body in the ONNX specification, as an expression; None where it has none."""
    function = _body(node)
    if function is None:
        return None
    given = dict(zip(function.input, node.inputs, strict=False))
    values: dict[str, Value | None] = {"": None, **given}
    versions = {o.domain: max(OPSET, o.version) for o in function.opset_import}
    graph = _typed(node, function, {n: x for n, x in given.items() if x is not None})
    types, reader = shapes(graph, versions), _Reader(versions, {}, {})
    for inner in graph.node:
        attributes = {a.name: attribute_value(a) for a in inner.attribute if a.type != AttributeProto.GRAPH}
        if inner.op_type == "Constant":
            values[inner.output[0]] = constant_of(attributes)
            continue
        inputs = [values.get(i) for i in inner.input]
        if (found := _folded(inner, inputs, versions)) is not None:
            values[inner.output[0]] = constant(found)
            continue
        schema = _newest(inner.op_type, inner.domain, versions.get(inner.domain, OPSET))
        if bodies(inner):
            known = {n: v for n, v in values.items() if v is not None}
            attributes |= reader.bodies(inner, inputs, attributes, known)
        made = make_node(schema, inputs, attributes, n_outputs=len(inner.output),
                         name=f"{node.name}.{inner.op_type}" if node.name else "")  # fmt: skip
        for name, v in zip(inner.output, made.outputs, strict=True):
            values[name] = v.stated(Value(types[name]).shape) if name in types else v
    return [y for name in function.output if (y := values.get(name)) is not None]


def _folded(inner: NodeProto, inputs: Sequence[Value | None], opsets: Mapping[str, int]) -> np.ndarray | None:
    """What a node of a body computes of whole numbers or of a shape that is known; None where it is not known yet."""
    if inner.op_type == "Shape" and (x := inputs[0]) is not None and x.shape is not None:
        known = x.shape[slice(*(next((a.i for a in inner.attribute if a.name == k), None) for k in ("start", "end")))]
        return np.asarray(known, np.int64) if all(isinstance(n, int) for n in known) else None
    arrays = {n: v.array for n, v in zip(inner.input, inputs, strict=True) if v is not None and v.array is not None}
    return folded(inner, arrays, opsets)


def _typed(node: Node, function: onnx.FunctionProto, given: Mapping[str, Value]) -> onnx.GraphProto:
    """The body of a node as a graph whose inputs have the types of what the node is given, for shape inference."""
    graph = onnx.GraphProto(name="body", node=function.node)
    for n, x in given.items():
        if x.array is not None and x.array.size <= SMALL:
            graph.initializer.append(numpy_helper.from_array(x.array, n))
        else:
            graph.input.append(onnx.ValueInfoProto(name=n, type=x.type))
    for inner in graph.node:
        written = [a for a in inner.attribute if not a.ref_attr_name]
        for a in inner.attribute:
            if a.ref_attr_name and (value := node.attribute(a.ref_attr_name)) is not None:
                written.append(helper.make_attribute(a.name, value, attr_type=a.type))
        del inner.attribute[:]
        inner.attribute.extend(written)
    return graph


def _body(node: Node) -> onnx.FunctionProto | None:
    """The function body of an operator, written for these inputs where the schema asks for them."""
    schema: Any = node.schema  # onnx 1.23.2 does not declare the types of what is asked of it here
    if schema.has_context_dependent_function:
        proto = helper.make_node(node.op_type, ["" if x is None else f"i{i}" for i, x in enumerate(node.inputs)],
                                 [f"o{i}" for i in range(len(node.outputs))], domain=node.domain)  # fmt: skip
        proto.attribute.extend(node.protos())
        types = [onnx.TypeProto().SerializeToString() if x is None else x.type.SerializeToString() for x in node.inputs]
        raw = schema.get_context_dependent_function(proto.SerializeToString(), types)
        return onnx.FunctionProto.FromString(raw) if raw else None
    return schema.function_body if schema.has_function else None


def replace_weights(proto: ModelProto, weights: Mapping[str, np.ndarray]) -> ModelProto:
    """A copy of a model in which the initializers named have new content and nothing else is changed.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; it is not written to.
    weights : dict of str to numpy.ndarray
        New content, of the same shape and dtype.

    Returns
    -------
    onnx.ModelProto
    """
    copy = ModelProto()
    copy.CopyFrom(proto)
    for t in _stored(copy):
        if t.name in weights:
            new = numpy_helper.from_array(np.ascontiguousarray(weights[t.name]).reshape(t.dims), t.name)
            for field in _DATA:
                t.ClearField(field)
            if t.data_location == TensorProto.EXTERNAL:
                t.ClearField("data_location")
                t.ClearField("external_data")
            t.raw_data = new.raw_data
    return copy


def parted(proto: ModelProto) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """A model that fits into one message of 2 GB, and the big initializers that had to be left out for that.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; it is not written to.

    Returns
    -------
    model : onnx.ModelProto
        The same object where it fits; else, initializers that were left out refer to external data in no file.
    arrays : dict of str to numpy.ndarray
        What was left out, by name.

    Examples
    --------
    >>> from ortpartial.builder import build
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float32", ["N"])
    >>> parted(build([x], {"y": 2 * x}))[1]
    {}
    """
    if sum(map(_size, proto.graph.initializer)) < _MESSAGE:
        return proto, {}
    apart = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer if _size(t) >= _BIG}
    return _emptied(proto), apart


def _size(t: TensorProto) -> int:
    """Bytes of a tensor."""
    return int(np.prod(t.dims)) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize


def _emptied(proto: ModelProto) -> ModelProto:
    """A copy of a model whose big initializers refer to external data in no file."""
    light = _but(proto, ["graph"])
    light.graph.CopyFrom(_but(proto.graph, ["initializer"]))
    for t in proto.graph.initializer:
        if _size(t) < _BIG:
            light.graph.initializer.append(t)
            continue
        left = _but(t, _DATA)
        left.data_location = TensorProto.EXTERNAL
        left.external_data.add(key="location", value="memory")
        light.graph.initializer.append(left)
    return light


def lightened(model: Model) -> Model:
    """The same model, whose proto is a copy without the content of big initializers: see `whole`.

    What a training starts from is read again when the next one does. Where there is much of it, it waits in a temporary
    file until then, and not in memory, if such a file can be written.

    Parameters
    ----------
    model : Model
        The model.

    Returns
    -------
    Model
    """
    light = replace(model, proto=_emptied(model.proto))
    big = {n: a for n, a in model.arrays.items() if a.nbytes >= _BIG}
    if model.file is not None or sum(a.nbytes for a in big.values()) < _MANY:
        return light
    try:
        with tempfile.TemporaryFile() as f:
            places = {}
            for n, a in big.items():
                places[n] = f.seek(-(-f.tell() // 64) * 64)
                f.write(np.ascontiguousarray(a).data.cast("B"))
            f.flush()
            file = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:
        return light
    apart = {n: np.frombuffer(file, a.dtype, a.size, places[n]).reshape(a.shape) for n, a in big.items()}
    return replace(light, arrays={**model.arrays, **apart}, file=file)


def whole(model: Model, weights: Mapping[str, np.ndarray] | None = None) -> ModelProto:
    """The file of a model that was lightened, in which the initializers named have new content.

    Parameters
    ----------
    model : Model
        The model.
    weights : dict of str to numpy.ndarray, optional
        New content, of the same shape and dtype.

    Returns
    -------
    onnx.ModelProto
        A copy.

    Examples
    --------
    >>> from ortpartial.builder import build
    >>> from ortpartial.graph import constant, variable
    >>> proto = build([x := variable("x", "float32", ["N", 1])], {"y": x @ constant(np.ones((1, 2**18), np.float32))})
    >>> whole(lightened(load(proto))) == proto
    True
    """
    left_out = {t.name for t in model.proto.graph.initializer if t.data_location == TensorProto.EXTERNAL}
    return replace_weights(model.proto, {**{n: model.arrays[n] for n in left_out}, **(weights or {})})


#: Where a tensor may keep its content.
_DATA = [f.name for f in TensorProto.DESCRIPTOR.fields if f.name.endswith("_data")]


def _but(message: Any, left_out: Collection[str]) -> Any:
    """A copy of a protobuf message without some of its fields, which are not even read."""
    new = type(message)()
    for field in type(message).DESCRIPTOR.fields:
        if field.name in left_out:
            continue
        content = getattr(message, field.name)
        if hasattr(content, "extend"):
            getattr(new, field.name).extend(content)
        elif message.HasField(field.name):
            if field.message_type:
                getattr(new, field.name).CopyFrom(content)
            else:
                setattr(new, field.name, content)
    return new
