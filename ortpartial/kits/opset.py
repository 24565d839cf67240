"""The opset of a step: the oldest in which its operators mean the same, so that older runtimes run it, too."""

from __future__ import annotations

from onnx import ModelProto, NodeProto, checker, defs, helper, shape_inference

from ortpartial.graph import OPSET, schema_of
from ortpartial.model import walk_graphs

__all__ = ["lower_opset"]

#: The oldest opset that a step declares. Before it, the axes of reductions were attributes.
_OLDEST = 18

#: Operators to which opsets 19 to 21 have only added types and attributes, whose use the checker of onnx notices.
_EXTENDED = frozenset({
    "Cast", "CastLike", "Constant", "ConstantOfShape", "Equal", "Flatten", "Identity", "If", "IsInf", "IsNaN", "Loop",
    "Pad", "ReduceMax", "ReduceMin", "Reshape", "Scan", "Shape", "Size", "Squeeze", "Transpose", "Unsqueeze"})


def lower_opset(model: ModelProto) -> ModelProto:
    """Declare the oldest opset, from 18 on, in which all nodes of a model are valid and mean the same.

    Parameters
    ----------
    model : onnx.ModelProto
        Is left as it is.

    Returns
    -------
    onnx.ModelProto
        With the IR version that belongs to the opset; the model itself where it needs its declared opset.

    Examples
    --------
    >>> from onnx import parser
    >>> model = parser.parse_model('<ir_version: 10, opset_import: ["": 21]> g (float[N] x) => (float[N] y) '
    ...                            '{y = Relu(x)}')
    >>> lower_opset(model).opset_import[0].version, lower_opset(model).ir_version
    (18, 8)
    """
    declared = {o.domain: o.version for o in model.opset_import}
    if declared.get("") != OPSET:  # an older opset may mean something else, a newer opset has newer operators
        return model
    nodes = [node for graph in walk_graphs(model.graph) for node in graph.node if not node.domain]
    if any(not defs.has(node.op_type) for node in nodes):  # onnxruntime's own, such as SimplifiedLayerNormalization
        return model
    since = [_since(node) for node in nodes]
    for version in range(max([_OLDEST, *since]), OPSET):
        imports = [helper.make_opsetid(d, v) for d, v in {**declared, "": version}.items()]
        lowered = ModelProto()
        lowered.CopyFrom(model)
        del lowered.opset_import[:]
        lowered.opset_import.extend(imports)
        lowered.ir_version = helper.find_min_ir_version_for(imports, ignore_unknown=True)
        try:
            checker.check_model(lowered, full_check=True)
        except (checker.ValidationError, shape_inference.InferenceError):
            continue
        return lowered
    return model


def _since(node: NodeProto) -> int:
    """The opset since which a node has its meaning, but for types and attributes."""
    is_wrapped = any(a.s == b"wrap" for a in node.attribute)  # a mode of Pad since opset 19
    return _OLDEST if node.op_type in _EXTENDED and not is_wrapped else schema_of(node.op_type, "", OPSET).since_version
