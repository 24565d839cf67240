"""Linear models of ai.onnx.ml, whose weights are attributes: read as products, whose weights are initializers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

__all__ = ["expand_linear_models"]

_DOMAIN, _OPERATORS = "ai.onnx.ml", ("LinearClassifier", "LinearRegressor")

#: What the scores pass through, by the attribute `post_transform`.
_TRANSFORMS: dict[str, dict[str, Any]] = {
    "NONE": {"op_type": "Identity"}, "LOGISTIC": {"op_type": "Sigmoid"}, "SOFTMAX": {"op_type": "Softmax", "axis": 1},
}


def expand_linear_models(proto: ModelProto) -> ModelProto:
    """The model with each LinearRegressor and LinearClassifier as MatMul and Add, so that they can be trained.

    A node is left as it is where its settings are rare: a classifier of one row of coefficients, or another
    ``post_transform`` than NONE, LOGISTIC and SOFTMAX.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model; it is not written to.

    Returns
    -------
    onnx.ModelProto
        The same object where there is none.

    Examples
    --------
    >>> from onnx import parser
    >>> model = parser.parse_model('''<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 1]>
    ... g (float[N, 2] x) => (float[N, 1] y) {
    ...     y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0], intercepts = [3.0]> (x)
    ... }''')
    >>> expanded = expand_linear_models(model)
    >>> [node.op_type for node in expanded.graph.node], [t.name for t in expanded.graph.initializer]
    (['Cast', 'MatMul', 'Add'], ['y.coefficients', 'y.intercepts'])
    """
    if not any(node.domain == _DOMAIN and node.op_type in _OPERATORS for node in proto.graph.node):
        return proto
    expanded = ModelProto()
    expanded.CopyFrom(proto)
    del expanded.graph.node[:]
    for node in proto.graph.node:
        weights = _read_weights(node) if node.domain == _DOMAIN and node.op_type in _OPERATORS else None
        if weights is None:
            expanded.graph.node.append(node)
            continue
        prefix = next(o for o in reversed(node.output) if o)
        names = {what: f"{prefix}.{what}" for what in weights}
        expanded.graph.initializer.extend(numpy_helper.from_array(a, names[what]) for what, a in weights.items())
        expanded.graph.node.extend(_write_nodes(node, prefix, names))
    if all(o.domain not in ("", "ai.onnx") for o in expanded.opset_import):
        expanded.opset_import.add(domain="", version=13)
    return expanded


def _read_weights(node: NodeProto) -> dict[str, np.ndarray] | None:
    """The coefficients of a linear model, (features, outputs), its intercepts and classes; None if it is left alone."""
    a = {x.name: helper.get_attribute_value(x) for x in node.attribute}
    classes = a.get("classlabels_ints") or a.get("classlabels_strings") or []
    outputs = len(classes) if node.op_type == "LinearClassifier" else a.get("targets", 1)
    coefficients = np.asarray(a.get("coefficients", []), np.float32)
    intercepts = np.asarray(a.get("intercepts") or [0.0] * outputs, np.float32)
    is_usual = outputs > (node.op_type == "LinearClassifier") and len(intercepts) == outputs and len(coefficients)
    if not is_usual or len(coefficients) % outputs or a.get("post_transform", b"NONE").decode() not in _TRANSFORMS:
        return None
    weights = {"coefficients": coefficients.reshape(outputs, -1).T.copy(), "intercepts": intercepts}
    if node.op_type == "LinearClassifier" and node.output[0]:
        weights["classes"] = np.asarray(classes, np.int64 if a.get("classlabels_ints") else object)
    return weights


def _write_nodes(node: NodeProto, prefix: str, names: dict[str, str]) -> Iterator[NodeProto]:
    """The nodes in place of a linear model."""
    cast, product, scores = (f"{prefix}.{what}" for what in ("input", "product", "scores"))
    transform = next((a.s.decode() for a in node.attribute if a.name == "post_transform"), "NONE")
    is_classifier = node.op_type == "LinearClassifier"
    results = [*node.output, ""][1 if is_classifier else 0]
    if transform == "NONE" and results:
        scores = results
    yield helper.make_node("Cast", [node.input[0]], [cast], to=TensorProto.FLOAT)
    yield helper.make_node("MatMul", [cast, names["coefficients"]], [product], name=node.name)
    yield helper.make_node("Add", [product, names["intercepts"]], [scores])
    if transform != "NONE" and results:
        yield helper.make_node(inputs=[scores], outputs=[results], **_TRANSFORMS[transform])
    if "classes" in names:
        index = f"{prefix}.index"
        yield helper.make_node("ArgMax", [scores], [index], axis=1, keepdims=0)
        yield helper.make_node("Gather", [names["classes"], index], [node.output[0]])
