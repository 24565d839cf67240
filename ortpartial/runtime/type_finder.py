"""Types of operators that ONNX does not know: onnxruntime infers them, or computes a node to see the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from ortpartial.exceptions import GraphError, ModelError, RuntimeMissingError
from ortpartial.graph import OPSET, SMALL, Node, Value, register_type_finder
from ortpartial.model import find_libraries

from .device import C, import_onnxruntime, runtime_version
from .errors import clean_message
from .ort_types import OrtSession, SessionOptions
from .session_options import register_custom_ops, session_options

__all__ = ["find_types"]

#: Where a node is computed: the first size to try for axes that have none, how many of the static sizes beside them are
#: tried next, and the most elements of an input.
_SIZE, _TRIALS, _MOST = 2, 4, 2**20

#: The types by the nodes, the libraries that have their operators, and the declarations of the models.
_FOUND: dict[tuple[bytes, tuple[str, ...], tuple[bytes, ...]], list[TypeProto]] = {}

#: Operators that are not computed: onnxruntime 1.19.2 dies of a total_sequence_length of 0.
_DEADLY = {("com.microsoft", "GroupQueryAttention")}


def find_types(node: Node) -> list[TypeProto]:
    """The types of the outputs of a node, as far as onnxruntime finds them.

    A session that is loaded and not initialized has inferred all types and needs no kernel: it takes 0.2 ms. Custom
    operators tell no shapes. Where the model does not declare the rank either, the node is computed, alone and on
    arbitrary numbers, and the ranks of the results are taken.

    Parameters
    ----------
    node : Node
        The node, whose outputs are not known yet.

    Returns
    -------
    list of onnx.TypeProto
        The type of each output, without a shape where the rank is not known; empty for an output that the node leaves
        out.

    Raises
    ------
    GraphError
        onnxruntime does not have the operator, or not for these inputs.

    Examples
    --------
    >>> from ortpartial.graph import describe_opaque, variable
    >>> proto = helper.make_node("SampleOp", ["x"], ["y"], domain="com.microsoft")
    >>> schema, attributes = describe_opaque(proto, 1, [None])
    >>> [kind] = find_types(Node(schema, (variable("x", "float32", ["N", 3, 3]),), attributes))
    >>> Value(kind).shape
    ('N', 3, 3)
    """
    model = _alone(node, {})
    schema: Any = node.schema
    key = model.SerializeToString(deterministic=True), find_libraries(model), schema.declared
    if key not in _FOUND:
        _FOUND[key] = _find_types(node)
    return _FOUND[key]


def _find_types(node: Node) -> list[TypeProto]:
    """The types that `find_types` returns, for a node that is new."""
    schema: Any = node.schema
    names = [f"o{i}" if is_named else "" for i, is_named in enumerate(schema.named)]
    declared = dict(zip(names, map(TypeProto.FromString, schema.declared), strict=False))
    try:
        types = _infer_types(node, declared)
        unranked = [n for n, kind in types.items() if _is_unranked(kind)]
        ranks = _infer_ranks(node, types, unranked)
        if any(n not in ranks and _is_unranked(declared.get(n, TypeProto()), missing=True) for n in unranked):
            ranks = _compute_ranks(node, types, unranked) | ranks
    except (ModelError, RuntimeMissingError) as e:
        raise GraphError(str(e)) from None
    for n, rank in ranks.items():
        types[n] = helper.make_tensor_type_proto(types[n].tensor_type.elem_type, [None] * rank)
    return [types.get(n, TypeProto()) for n in names]


def _is_unranked(kind: TypeProto, missing: bool = False) -> bool:
    """Whether a type is a tensor without a shape; `missing` is the answer for no type."""
    is_tensor = kind.HasField("tensor_type")
    return not kind.tensor_type.HasField("shape") if is_tensor else missing and kind.WhichOneof("value") is None


def _infer_types(node: Node, declared: Mapping[str, TypeProto]) -> dict[str, TypeProto]:
    """The types of outputs by name; where an operator may give several, the types that the model declares."""
    try:
        session = _load(_alone(node, {}))
    except GraphError:
        if not any(kind.tensor_type.elem_type for kind in declared.values()):
            raise
        session = _load(_alone(node, declared))
    return {o.name: _read_type(o.type, o.shape) for o in session.outputs_meta}


def _infer_ranks(node: Node, types: Mapping[str, TypeProto], outputs: Sequence[str]) -> dict[str, int]:
    """The ranks of outputs where inference knows them: onnxruntime lists no sizes for a scalar as for no shape."""
    if not outputs:
        return {}
    model = _alone(node, types)
    model.graph.node.extend(helper.make_node("Shape", [n], [f"{n}_shape"]) for n in outputs)
    model.graph.output.extend(ValueInfoProto(name=f"{n}_shape") for n in outputs)
    lengths = {o.name: o.shape[0] for o in _load(model).outputs_meta if o.name not in types}
    return {n: rank for n in outputs if isinstance(rank := lengths[f"{n}_shape"], int)}


def _compute_ranks(node: Node, types: Mapping[str, TypeProto], outputs: Sequence[str]) -> dict[str, int]:
    """The ranks of outputs for some inputs; none where the node cannot be computed on them."""
    if node.key in _DEADLY and tuple(map(int, runtime_version().split(".")[:2])) < (1, 20):
        return {}
    model = _alone(node, types)
    try:
        session = import_onnxruntime().InferenceSession(model.SerializeToString(), _options(model),
                                                        providers=["CPUExecutionProvider"])
    except Exception:  # There is no kernel for it.
        return {}
    static = {n for v in node.inputs if v is not None for n in v.shape or () if isinstance(n, int)}
    for size in [_SIZE, *sorted(static - {_SIZE})[:_TRIALS]]:
        feeds = {f"i{i}": _draw(v, size) for i, v in enumerate(node.inputs) if v is not None}
        feeds = {i.name: feeds[i.name] for i in model.graph.input}
        if any(a is None for a in feeds.values()):
            return {}
        with suppress(Exception):  # The numbers mean nothing, and the operator may say so.
            return {n: np.ndim(a) for n, a in zip(outputs, session.run(outputs, feeds), strict=True)}
    return {}


def _draw(v: Value, size: int) -> np.ndarray | None:
    """Some content for an input: zeros where it holds no real numbers; None where it is too large or no tensor."""
    if v.array is not None or not v.type.tensor_type.elem_type or v.shape is None:
        return v.array
    shape = [d if isinstance(d, int) else size for d in v.shape]
    if np.prod(shape, dtype=float) > _MOST:
        return None
    if v.type.tensor_type.elem_type == TensorProto.STRING:
        return np.full(shape, "", object)
    return np.random.default_rng(0).standard_normal(shape).astype(v.dtype) if v.is_float else np.zeros(shape, v.dtype)


def _alone(node: Node, types: Mapping[str, TypeProto]) -> ModelProto:
    """A model of one node, with small constants as initializers, and outputs of these element types."""
    domain, operator = node.key
    schema: Any = node.schema
    proto = NodeProto(op_type=operator, domain=domain, name=node.name, attribute=node.protos())
    proto.input.extend("" if v is None else f"i{i}" for i, v in enumerate(node.inputs))
    proto.output.extend(f"o{i}" if is_named else "" for i, is_named in enumerate(schema.named))
    graph = GraphProto(name="alone", node=[proto], output=[ValueInfoProto(name=n) for n in proto.output if n])
    for o in graph.output:
        if o.name in types and (kind := types[o.name].tensor_type.elem_type):
            o.type.tensor_type.elem_type = kind
    for i, v in enumerate(node.inputs):
        if v is not None and v.array is not None and v.array.size <= SMALL:
            graph.initializer.append(numpy_helper.from_array(v.array, f"i{i}"))
        elif v is not None:
            graph.input.append(helper.make_value_info(f"i{i}", v.type))
    opsets = {"": OPSET, "com.microsoft": 1, domain: schema.since_version}
    standard = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()],
                             ir_version=helper.find_min_ir_version_for([standard]))


def _options(model: ModelProto) -> SessionOptions:
    options = session_options(1, model.graph)
    register_custom_ops(options, model)
    return options


def _load(model: ModelProto) -> OrtSession:
    """A session that is not initialized; a GraphError where onnxruntime refuses the model."""
    try:
        return C.InferenceSession(_options(model), model.SerializeToString(), False, False)
    except (ModelError, RuntimeMissingError):
        raise
    except Exception as e:
        raise GraphError(clean_message(e)) from None


_KINDS: Mapping[str, str] = {"seq": "sequence_type", "optional": "optional_type"}


def _read_type(text: str, shape: Sequence[int | str | None]) -> TypeProto:
    """A type as onnxruntime writes it, such as ``seq(tensor(float))``; without a shape where no sizes are listed."""
    name, _, inner = text.removesuffix(")").partition("(")
    kind = TypeProto()
    if name in ("tensor", "sparse_tensor"):
        getattr(kind, f"{name}_type").elem_type = TensorProto.DataType.Value(inner.upper())
        if name == "tensor" and shape:
            return helper.make_tensor_type_proto(kind.tensor_type.elem_type, list(shape))
    elif name == "map":
        key, _, value = inner.partition(",")
        kind.map_type.key_type = TensorProto.DataType.Value(key.upper())
        kind.map_type.value_type.CopyFrom(_read_type(value.strip(), ()))
    elif name in _KINDS:
        getattr(kind, _KINDS[name]).elem_type.CopyFrom(_read_type(inner, ()))
    return kind


register_type_finder(find_types)
