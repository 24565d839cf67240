"""Opset upgrade by onnx's version converter, with operators whose meaning it would change written otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper, version_converter

from ortpartial.exceptions import GraphError, ModelError
from ortpartial.graph import OPSET, schema_of

from .walk import walk_graphs, walk_protos

__all__ = ["upgrade"]


def upgrade(model: ModelProto, version: int) -> ModelProto:
    """The model in the operators of the opset that the library reads.

    The converter of onnx 1.23.2 samples a Resize before opset 11 at other places, takes Hardmax before opset 13 along
    one axis alone, refuses GroupNormalization before opset 21, and leaves Pad an attribute that it has up to opset 10.
    All other operators keep their meaning.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which may be written to.
    version : int
        Its opset, below that of the library.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        The converter fails, or the meaning of an operator cannot be kept.
    """
    for op_type, before, write in (("Hardmax", 13, _write_hardmax), ("GroupNormalization", 21, _write_group_norm),
                                   ("Pad", 11, _write_pad)):
        if version < before:
            _replace(model, op_type, write)
    try:
        model = version_converter.convert_version(model, OPSET)
    except Exception as e:
        _check_operators(model, version)
        reason = str(e).strip().splitlines()[-1]
        raise ModelError(f"The model cannot be upgraded from opset {version} to {OPSET}: {reason}") from None
    if version < 11:
        _fix_resize(model)
    return model


def _check_operators(model: ModelProto, version: int) -> None:
    """Raise an error for a node whose operator ONNX does not have; the converter's does not name the node."""
    for node in walk_protos(model.graph):
        if node.domain in ("", "ai.onnx"):
            try:
                schema_of(node.op_type, "", version)
            except GraphError as e:
                where = f"Node {node.name or '(unnamed)'} ({node.op_type}, output {node.output[0]!r})"
                raise ModelError(f"{where} cannot be read: {e}") from None


def _replace(model: ModelProto, op_type: str, write: Callable[[NodeProto], list[NodeProto]]) -> None:
    """Write other nodes in place of those of one operator, in all graphs."""
    for graph in walk_graphs(model.graph):
        if any(node.op_type == op_type and not node.domain for node in graph.node):
            nodes = [new for node in graph.node
                     for new in (write(node) if node.op_type == op_type and not node.domain else [node])]
            nodes = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
            del graph.node[:]
            graph.node.extend(nodes)


def _make(node: NodeProto, op_type: str, inputs: Sequence[str], suffix: str = "", **attributes: Any) -> NodeProto:
    """A node in place of another one; without a suffix it computes its output."""
    name = node.output[0] + suffix
    return helper.make_node(op_type, inputs, [name], name=f"{node.name}{suffix}", **attributes)


def _write_hardmax(node: NodeProto) -> list[NodeProto]:
    """Hardmax of a matrix, which all axes from `axis` on are flattened into."""
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    (x,), y = node.input, node.output[0]
    return [
        _make(node, "Shape", [x], "/shape"),
        _make(node, "Flatten", [x], "/flat", axis=axis),
        _make(node, "Hardmax", [f"{y}/flat"], "/hardmax", axis=1),
        _make(node, "Reshape", [f"{y}/hardmax", f"{y}/shape"]),
    ]


def _write_group_norm(node: NodeProto) -> list[NodeProto]:
    """GroupNormalization with a scale for each group: InstanceNormalization of the groups."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    (x, scale, bias), y = node.input, node.output[0]
    sizes = numpy_helper.from_array(np.array([0, attributes["num_groups"], -1]))
    return [
        _make(node, "Shape", [x], "/shape"),
        _make(node, "Constant", [], "/sizes", value=sizes),
        _make(node, "Reshape", [x, f"{y}/sizes"], "/groups"),
        _make(node, "InstanceNormalization", [f"{y}/groups", scale, bias], "/normal",
              epsilon=attributes.get("epsilon", 1e-5)),
        _make(node, "Reshape", [f"{y}/normal", f"{y}/shape"]),
    ]


def _write_pad(node: NodeProto) -> list[NodeProto]:
    """Pad without a value where the mode has no use for one."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if attributes.get("mode", b"constant") != b"constant":
        attributes.pop("value", None)
    return [_make(node, "Pad", node.input, **attributes)]


def _fix_resize(model: ModelProto) -> None:
    """Let each Resize sample as before opset 11: at multiples of 1 / scale, rounded down, or up where it shrinks."""
    constants = {t.name: numpy_helper.to_array(t) for g in walk_graphs(model.graph) for t in g.initializer}
    for graph in walk_graphs(model.graph):
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                constants[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
            if node.op_type != "Resize" or node.domain:
                continue
            scales = constants.get(node.input[2])
            rounding = {"ceil" if s < 1 else "floor" for s in ([] if scales is None else scales.tolist()) if s != 1}
            is_nearest = not any(a.name == "mode" and a.s != b"nearest" for a in node.attribute)
            if is_nearest and len(rounding) > 1:
                raise ModelError(f"Resize {node.name or node.output[0]!r}, written before opset 11, shrinks one axis "
                                 f"and stretches another by the nearest element, which no later Resize does.")
            for name, value in (("coordinate_transformation_mode", "asymmetric"),
                                ("nearest_mode", next(iter(rounding), "floor"))):
                for i in [i for i, a in enumerate(node.attribute) if a.name == name]:
                    del node.attribute[i]
                node.attribute.append(helper.make_attribute(name, value))
