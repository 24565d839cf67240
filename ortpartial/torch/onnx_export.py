"""Export of a layer within a torch model: its graph becomes an ONNX function, for both of torch's exporters."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    defs,
    helper,
    inliner,
    shape_inference,
    version_converter,
)
from torch.onnx.symbolic_helper import parse_args

from ortpartial.exceptions import ModelError
from ortpartial.model import walk_graphs

from .custom_operator import find_layer

__all__ = ["LayerFunctionProto", "make_function_proto", "register_translations"]

#: The domain of the functions.
DOMAIN = "ortpartial"

#: The newer exporter of torch 2.13.0 declares this opset, and converts the whole model afterwards.
_TORCHLIB_OPSET = 18


@dataclass(frozen=True)
class LayerFunctionProto:
    """The function of a layer, in the form of a function of onnxscript.

    Parameters
    ----------
    proto : onnx.FunctionProto
        The function, whose inputs are the inputs of the graph, then its parameters and buffers.
    """

    proto: FunctionProto

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.proto.name

    @property
    def opset(self) -> Any:
        """Its domain and version."""
        return helper.make_opsetid(DOMAIN, 1)

    def to_function_proto(self) -> FunctionProto:
        """The function."""
        return self.proto


def make_function_proto(key: str, training: bool, opset: int) -> LayerFunctionProto:
    """Make the function of a layer.

    Parameters
    ----------
    key : str
        The key of the layer.
    training : bool
        The mode.
    opset : int
        The opset of the model that calls it.

    Returns
    -------
    LayerFunctionProto
        Its inputs are the leaves of the layer: inputs, initializers that are read, and masks.

    Raises
    ------
    ModelError
        An operator of the graph is newer than the opset.
    """
    layer = find_layer(key)
    compiled = layer.compile_form(training=training)
    model, leaves = layer.write_form(compiled), list(compiled.function.leaves)
    model = _convert_opset(inliner.inline_local_functions(model, convert_version=True), opset)
    outputs = [o.name for o in model.graph.output]
    constants = [t for t in model.graph.initializer if t.name not in leaves]
    nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in constants] + list(model.graph.node)
    computed = {o for node in nodes for o in node.output}
    for i, name in enumerate(outputs):
        # An output of a function is computed by a node of it, and has a name of its own.
        if name not in computed or name in outputs[:i]:
            outputs[i] = f"{name}_output_{i}"
            nodes.append(helper.make_node("Identity", [name], [outputs[i]]))
    function = helper.make_function(DOMAIN, "OnnxLayer", leaves, outputs, nodes, model.opset_import)
    function.name = f"OnnxLayer_{hashlib.sha256(function.SerializeToString(deterministic=True)).hexdigest()[:12]}"
    return LayerFunctionProto(function)


def _convert_opset(model: ModelProto, opset: int) -> ModelProto:
    """A copy of a model in the operators of another opset.

    A newer form of an operator mostly differs from an older form by the types that it takes.
    """
    declared = next((i.version for i in model.opset_import if not i.domain), opset)
    if declared < opset and any(_version(n, declared) != _version(n, opset) for n in _walk(model.graph)):
        return version_converter.convert_version(model, opset)
    converted = ModelProto.FromString(model.SerializeToString())
    while missing := {n.op_type for n in _walk(converted.graph) if not _has_form(n, declared, opset)}:
        for op_type in missing:
            schema: Any = defs.get_schema(op_type, declared, "")
            if not (schema.has_function or schema.has_context_dependent_function):
                raise ModelError(f"The graph of an OnnxLayer holds {op_type} of opset {declared}, which has no form of "
                                 f"opset {opset}: export with dynamo=False and a newer opset_version, if it has one.")
        # onnx 1.23.2 asks for the types of what a body reads, and does not look for those of initializers.
        converted.graph.value_info.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims)
                                          for t in converted.graph.initializer)
        converted = inliner.inline_selected_functions(
            shape_inference.infer_shapes(converted), [("", n) for n in missing], inline_schema_functions=True)
    for node in _walk(converted.graph):
        if not node.domain:
            known = defs.get_schema(node.op_type, opset, "").attributes
            kept = [a for a in node.attribute if a.name in known]
            del node.attribute[:]
            node.attribute.extend(kept)
    for i in converted.opset_import:
        if not i.domain:
            i.version = opset
    return converted


def _walk(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph and of the bodies in it."""
    return (node for g in walk_graphs(graph) for node in g.node)


def _version(node: NodeProto, opset: int) -> int | None:
    """The opset that introduced the form of an operator in another opset."""
    return defs.get_schema(node.op_type, opset, "").since_version if defs.has(node.op_type, opset, "") else None


def _has_form(node: NodeProto, declared: int, opset: int) -> bool:
    """Whether a node computes the same in an older opset, but for attributes that have their defaults."""
    if node.domain or _version(node, declared) == _version(node, opset):
        return True
    if not defs.has(node.op_type, opset, "") or node.op_type == "GroupNormalization":  # Scale by group, then channel.
        return False
    new, old = (defs.get_schema(node.op_type, v, "") for v in (declared, opset))
    read = helper.get_attribute_value
    return len(node.input) <= old.max_input and all(
        read(a) == read(new.attributes[a.name].default_value) for a in node.attribute if a.name not in old.attributes)


@cache
def register_translations() -> None:
    """Tell torch's exporters the graph of a layer; the newer exporter only where onnxscript, which it needs, is."""
    torch.onnx.register_custom_op_symbolic("ortpartial::onnx_layer", _write_symbolic, 9)
    # Beside `custom_translation_table`, an argument of each export, torch 2.13.0 has no public way, and another version
    # may have none at all.
    with suppress(ImportError, TypeError):
        from torch.onnx._internal.exporter._torchlib._torchlib_registry import onnx_impl

        onnx_impl(torch.ops.ortpartial.onnx_layer.default, no_compile=True)(_translate)


@parse_args("v", "s", "b", "is")
def _write_symbolic(g: Any, leaves: Any, key: str, training: bool, wanted: Sequence[int]) -> Any:
    """Write a call of the function of a layer, for `torch.onnx.export(dynamo=False)`."""
    layer, function, inputs = find_layer(key), make_function_proto(key, training, g.opset), list(leaves.node().inputs())
    values = list(layer.compile_form(training=training).function.function.outputs.values())
    outputs = g.onnxscript_op(function, *inputs, outputs=len(values))
    outputs = [outputs] if len(values) == 1 else outputs
    for v, y in zip(outputs, values, strict=True):
        kind = inputs[0].type().with_dtype(getattr(torch, y.dtype.name))
        v.setType(kind if y.shape is None else kind.with_sizes([d if isinstance(d, int) else None for d in y.shape]))
    for v, name in zip(inputs, layer.input_names, strict=False):
        if v.node().kind() == "prim::Param":
            v.setDebugName(name)
    for v, name in zip(outputs, layer.output_names, strict=False):
        v.setDebugName(name)
    return g.op("prim::ListConstruct", *outputs)


def _translate(leaves: Sequence[Any], layer: str, training: bool, wanted: Sequence[int]) -> Sequence[Any]:
    """Write a call of the function of a layer, for `torch.onnx.export(dynamo=True)`."""
    import onnx_ir
    from onnxscript import evaluator

    recorder: Any = evaluator.default()
    function = make_function_proto(layer, training, _TORCHLIB_OPSET).proto
    ir_function = onnx_ir.serde.deserialize_function(function)
    recorder.functions[ir_function.identifier()] = ir_function
    node = onnx_ir.Node(DOMAIN, function.name, leaves, num_outputs=len(function.output), version=1)
    recorder.nodes.append(node)
    return node.outputs
