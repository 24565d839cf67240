"""Estimators as ONNX models, alone or in a pipeline: labels and probabilities in the outputs that skl2onnx has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, defs, helper

from ortpartial.annotations import DTypeLike, Estimator
from ortpartial.exceptions import ModelError
from ortpartial.graph import Value, build, cast, constant, op, rewrite, variable
from ortpartial.learning import resolve_loss
from ortpartial.model import bodies, load, walk_graphs
from ortpartial.rewrites import downgrade_opset

__all__ = ["export", "register_converters"]

#: The opset that the library writes.
_OPSET = 21

#: Operators to which opsets from 15 to 21 have only added element types.
_STEADY = frozenset({"Cast", "Constant", "Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Transpose",
                     "Unsqueeze"})


def export(estimator: Estimator, *, zipmap: bool | str = False, raw_scores: bool = False) -> ModelProto:
    """A fitted estimator as an ONNX model.

    Parameters
    ----------
    estimator : OnnxRegressor or OnnxClassifier
        The estimator.
    zipmap, raw_scores : object
        As for `OnnxClassifier.to_onnx`.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ValueError
        `zipmap` is something else.
    """
    if zipmap not in (True, False, "columns"):
        raise ValueError(f"zipmap is True, False or 'columns', not {zipmap!r}.")
    classes = _to_labels(getattr(estimator, "classes_", np.empty(0, np.int64)))
    inputs, outputs = _compute(estimator, classes, raw_scores=raw_scores)
    if not zipmap:
        return build(inputs, outputs)
    labels, probabilities = classes.tolist(), outputs["probabilities"]
    is_text = isinstance(labels[0], str)
    if zipmap == "columns":
        start = "i" if estimator.classes_.dtype.kind in "biu" else "s"
        columns = {f"{start}{name:d}" if start == "i" else f"{start}{name}": probabilities[:, i]
                   for i, name in enumerate(estimator.classes_)}
        return build(inputs, {"output_label": outputs["label"], **columns})
    # The operator takes float32 alone.
    model = build(inputs, {"output_label": outputs["label"], "probabilities": _cast(probabilities, np.float32)})
    attributes = {"classlabels_strings" if is_text else "classlabels_int64s": labels}
    model.graph.node.append(helper.make_node("ZipMap", ["probabilities"], ["output_probability"], domain="ai.onnx.ml",
                                             **attributes))
    kind = helper.make_map_type_proto(TensorProto.STRING if is_text else TensorProto.INT64,
                                      helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    model.graph.output[1].CopyFrom(helper.make_value_info("output_probability", helper.make_sequence_type_proto(kind)))
    if all(opset.domain != "ai.onnx.ml" for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return model


def _compute(estimator: Estimator, classes: np.ndarray, *, raw_scores: bool = False,
             source: tuple[str, DTypeLike] | None = None) -> tuple[list[Value], dict[str, Value]]:
    """Inputs and outputs, a "variable" or a "label" and "probabilities", of an estimator.

    A source has the name and the dtype of an input in place of that of the model.
    """
    optimizer = estimator.optimizer_
    model = load(optimizer.get_trained_onnx())
    (output,) = optimizer.training.spec.losses
    scores, inputs = model.outputs[output], list(model.inputs.values())
    if source is not None:
        (former,) = inputs
        inputs = [variable(*source, former.shape)]
        (scores,) = rewrite([scores], {former: cast(inputs[0], former)})
    scores = scores if scores.rank > 1 else op.Unsqueeze(scores, [1])
    if not hasattr(estimator, "classes_"):
        return inputs, {"variable": optimizer.learning_loss.mean(scores)}
    label, probabilities = _classify(estimator, classes, scores, raw_scores)
    return inputs, {"label": label, "probabilities": probabilities}


def _classify(classifier: Estimator, classes: np.ndarray, scores: Value, raw_scores: bool) -> tuple[Value, Value]:
    """Labels and probabilities from scores, as `predict` and `predict_proba` have them."""
    raw_scores = raw_scores or not resolve_loss(classifier.loss).activations
    is_positive = op.Cast(op.Greater(scores, 0.0), to=TensorProto.INT64)
    if classifier.multilabel_:
        return is_positive, scores if raw_scores else op.Sigmoid(scores)
    labels = constant(classes, hint="classes")
    if classifier.n_outputs_ > 1:
        number = op.ArgMax(scores, axis=1, keepdims=0)
        return op.Gather(labels, number), scores if raw_scores else op.Softmax(scores, axis=1)
    positive = scores if raw_scores else op.Sigmoid(scores)
    negative = -scores if raw_scores else 1 - positive
    return op.Gather(labels, op.Squeeze(is_positive, [1])), op.Concat(negative, positive, axis=1)


def _to_labels(classes: np.ndarray) -> np.ndarray:
    """Labels as ONNX has them: strings, or integers."""
    if classes.dtype.kind in "USO" and all(isinstance(label, str) for label in classes.tolist()):
        return np.array(classes.tolist(), object)
    if classes.dtype.kind not in "biuf" or not np.array_equal(labels := classes.astype(np.int64), classes):
        raise ModelError(f"Labels of an ONNX model are integers or strings, and {classes.tolist()} are neither.")
    return labels


def _cast(v: Value, dtype: DTypeLike) -> Value:
    return v if v.dtype == dtype else op.Cast(v, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


# -- the converter of skl2onnx


def register_converters(classifier: type, regressor: type) -> None:
    """Register both estimators with skl2onnx, so that it converts them, and pipelines with them.

    Parameters
    ----------
    classifier, regressor : type
        The classes.
    """
    from skl2onnx import update_registered_converter

    options = {"zipmap": [True, False, "columns"], "output_class_labels": [False, True], "raw_scores": [True, False],
               "nocl": [True, False]}
    update_registered_converter(classifier, "OrtPartialOnnxClassifier", _declare_classifier, _convert, options=options)
    update_registered_converter(regressor, "OrtPartialOnnxRegressor", _declare_regressor, _convert)


def _declare_classifier(operator: Any) -> None:
    """The types of the outputs of a classifier."""
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType

    classifier, rows = operator.raw_operator, operator.inputs[0].get_first_dimension()
    labels = _list_labels(operator)
    kind = StringTensorType if labels.dtype == object else Int64TensorType
    operator.outputs[0].set_type(kind([rows, len(labels)] if classifier.multilabel_ else [rows]))
    operator.outputs[1].type.shape = [rows, len(labels)]
    if operator.scope_inst.get_options(classifier, {"zipmap": True})["zipmap"] is True:
        operator.outputs[1].set_type(FloatTensorType([rows, len(labels)]))  # ZipMap takes no other type.


def _list_labels(operator: Any) -> np.ndarray:
    """The labels of a classifier; with the option "nocl" their numbers, and none of a regressor."""
    from skl2onnx.common.utils_classifier import get_label_classes

    classifier = operator.raw_operator
    return _to_labels(get_label_classes(operator.scope_inst, classifier) if hasattr(classifier, "classes_") else
                      np.empty(0, np.int64))


def _declare_regressor(operator: Any) -> None:
    """The type of the output of a regressor."""
    operator.outputs[0].type.shape = [operator.inputs[0].get_first_dimension(), operator.raw_operator.n_outputs_]


def _convert(scope: Any, operator: Any, container: Any) -> None:
    """Add the graph of an estimator to the graph that skl2onnx writes."""
    estimator, is_classifier = operator.raw_operator, hasattr(operator.raw_operator, "classes_")
    if len(operator.inputs) != 1:
        raise ModelError(f"{type(estimator).__name__} reads one matrix, and {len(operator.inputs)} inputs are given; "
                         f"put a ColumnTransformer before it.")
    (source,) = operator.inputs
    options = container.get_options(estimator, {"raw_scores": False}, fail=False) if is_classifier else {}
    inputs, outputs = _compute(estimator, _list_labels(operator), raw_scores=bool(options.get("raw_scores")),
                               source=(source.full_name, _find_dtype(source)))
    named = {v.full_name: _cast(y, _find_dtype(v)) if y.is_float else y
             for v, y in zip(operator.outputs, outputs.values(), strict=True)}
    model = _fit_opset(build(inputs, named), container.target_opset_any_domain(""))
    kept = {source.full_name, *named}
    tensors = [*(t.name for t in model.graph.initializer), *(n for node in model.graph.node for n in node.output if n)]
    _rename(model.graph, {n: scope.get_unique_variable_name(n) for n in tensors if n not in kept})
    container.initializers.extend(model.graph.initializer)
    for node in model.graph.node:
        node.name = scope.get_unique_operator_name(node.name or node.op_type)
    container.nodes.extend(model.graph.node)
    container.node_domain_version_pair_sets.update((opset.domain, opset.version) for opset in model.opset_import)


def _find_dtype(v: Any) -> np.dtype:
    """The dtype of a variable of skl2onnx."""
    from skl2onnx.common.data_types import guess_numpy_type

    return np.dtype(guess_numpy_type(v.type))


def _fit_opset(model: ModelProto, newest: int) -> ModelProto:
    """A model, declared with no newer opset, or in operators of it."""
    (default,) = (opset for opset in model.opset_import if not opset.domain)
    if default.version <= newest:
        return model
    if newest >= _OPSET:
        return downgrade_opset(model, newest)
    for node in (node for graph in walk_graphs(model.graph) for node in graph.node):
        since = defs.get_schema(node.op_type, default.version, node.domain).since_version
        if not node.domain and since > newest and not (node.op_type in _STEADY and newest >= 15):
            raise ModelError(f"The operator {node.op_type} of the estimator is of opset {since}, and target_opset is "
                             f"{newest}; give target_opset={_OPSET} or later.")
    default.version = newest
    return model


def _rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Rename initializers and inputs and outputs of nodes, inside of nodes as well."""
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
        for body in bodies(node):
            _rename(body, names)
    for output in graph.output:
        output.name = names.get(output.name, output.name)
