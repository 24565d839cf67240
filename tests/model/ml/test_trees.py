"""Ensembles of trees of ai.onnx.ml are read as sums of leaves, which are weights, and written back."""

import numpy as np
import onnx
import pytest
from ml_nodes import X, check_node, check_weights, ml_model
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from ortpartial import load
from ortpartial.exceptions import ModelError
from ortpartial.graph import build
from ortpartial.runtime import Session

CLASSIFIED = {"label": TensorProto.INT64, "y": TensorProto.FLOAT}

#: Two trees of two leaves each.
STUMPS = {"nodes_treeids": [0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2, 0, 1, 2],
          "nodes_featureids": [0, 0, 0, 1, 0, 0],
          "nodes_values": [0.1, 0.0, 0.0, -0.2, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
          "nodes_truenodeids": [1, 0, 0, 1, 0, 0], "nodes_falsenodeids": [2, 0, 0, 2, 0, 0]}


def leaves(kind, weights, ids):
    """The attributes of leaves: `weights` holds those of all leaves for each of some targets, or classes."""
    rows = [(t, n, i) for i in ids for t in (0, 1) for n in (1, 2)]
    return {**STUMPS, **{f"{kind}_{what}": list(column) for what, column in
                         zip(("treeids", "nodeids", "ids"), zip(*rows, strict=True), strict=True)},
            f"{kind}_weights": weights}


def negate(a):
    return 0.3 - 2 * a


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("base", [{}, {"base_values": [0.05]}])
@pytest.mark.parametrize("settings", [{}, {"aggregate_function": "AVERAGE"}, {"post_transform": "LOGISTIC"},
                                      {"post_transform": "PROBIT"}], ids=str)
def test_regressor(settings, base, version):
    model = ml_model("TreeEnsembleRegressor", {"y": TensorProto.FLOAT}, version, n_targets=1, **base, **settings,
                     **leaves("target", [0.1, 0.2, 0.3, 0.4], [0]))
    weights = {"y.leaves": lambda a: 0.5 - a, **({"y.base_values": lambda a: a + 0.1} if base else {})}
    assert list(check_node(model, weights=weights, tol=1e-4).arrays) == list(weights)


@pytest.mark.parametrize("settings", [{}, {"post_transform": "SOFTMAX"}, {"post_transform": "LOGISTIC"}], ids=str)
def test_regressor_of_several_targets(settings):
    """One weight is not stored: once it is trained, all are."""
    attributes = leaves("target", [0.1, 0.2, 0.3, 0.4, -0.1, -0.2, -0.3], [0, 1])
    attributes = {n: a[:7] if n.startswith("target") else a for n, a in attributes.items()}
    model = ml_model("TreeEnsembleRegressor", {"y": TensorProto.FLOAT}, n_targets=2, **settings, **attributes)
    check_node(model, weights={"y.leaves": lambda a: np.where(a == 0, 0, a + 1)})
    loaded = check_node(model, weights={"y.leaves": lambda a: a + 1})
    assert loaded.arrays["y.leaves"].shape == (4, 2)


def test_doubles():
    """A threshold of a double, beside a row that float32 rounds to it."""
    attributes = leaves("target", [0.1, 0.2, 0.3, 0.4], [0])
    values = np.array([0.1, 0, 0, -0.2, 0, 0])
    del attributes["nodes_values"], attributes["target_weights"]
    model = ml_model("TreeEnsembleRegressor", {"y": TensorProto.FLOAT}, kind=TensorProto.DOUBLE, n_targets=1,
                     **attributes, nodes_values_as_tensor=numpy_helper.from_array(values),
                     target_weights_as_tensor=numpy_helper.from_array(np.array([0.1, 0.2, 0.3, 0.4])))
    x = np.array([[0.1 + 1e-12, -0.2, 0], [0.1, -0.2 + 1e-12, 0]])
    check_node(model, x, {"y.leaves": negate})


@pytest.mark.parametrize("base", [{}, {"base_values": [0.05]}])
@pytest.mark.parametrize("weights", [[0.1, 0.2, 0.3, 0.4], [-0.1, 0.2, 0.3, -0.4]], ids=["probabilities", "scores"])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_two_classes(transform, weights, base):
    """What a score means hangs on whether a weight is negative: it has to mean the same once weights have changed."""
    model = ml_model("TreeEnsembleClassifier", CLASSIFIED, classlabels_int64s=[5, 3], post_transform=transform, **base,
                     **leaves("class", weights, [0]))
    if transform == "LOGISTIC" and min(weights) >= 0:  # Versions of onnxruntime differ.
        loaded = load(model)
        assert [n.op_type for n in build(loaded.inputs, loaded.outputs).graph.node] == ["TreeEnsembleClassifier"]
        return
    for change in (negate, np.abs, np.negative):
        check_node(model, weights={"y.leaves": change})


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
@pytest.mark.parametrize("base", [{}, {"base_values": [0.1, -0.2, 0.3]}])
def test_three_classes(transform, base):
    weights = np.linspace(-1, 1, 12).round(2).tolist()
    model = ml_model("TreeEnsembleClassifier", {**CLASSIFIED, "label": TensorProto.STRING}, post_transform=transform,
                     classlabels_strings=["a", "b", "c"], **base, **leaves("class", weights, [0, 1, 2]))
    check_node(model, weights={"y.leaves": negate})


def test_targets_that_are_not_reached():
    """onnxruntime leaves out the base value of such a target, which no sum of leaves does."""
    attributes = leaves("target", [0.1, 0.2, 0.3, 0.4, -0.1, -0.2, -0.3], [0, 1])
    attributes = {n: a[:5] if n.startswith("target") else a for n, a in attributes.items()}
    loaded = load(ml_model("TreeEnsembleRegressor", {"y": TensorProto.FLOAT}, n_targets=2, base_values=[0.5, 0.6],
                           **attributes))
    assert [n.op_type for n in build(loaded.inputs, loaded.outputs).graph.node] == ["TreeEnsembleRegressor"]


@pytest.mark.parametrize("settings", [{"aggregate_function": "MIN"}, {"aggregate_function": "MAX"}])
def test_what_is_left_alone(settings):
    loaded = load(ml_model("TreeEnsembleRegressor", {"y": TensorProto.FLOAT}, n_targets=1, **settings,
                           **leaves("target", [0.1, 0.2, 0.3, 0.4], [0])))
    assert [n.op_type for n in build(loaded.inputs, loaded.outputs).graph.node] == ["TreeEnsembleRegressor"]


def test_gradient():
    """Linear in the leaves, and zero by the input."""
    model = load(ml_model("TreeEnsembleRegressor", {"y": TensorProto.FLOAT}, n_targets=1, base_values=[0.5],
                          **leaves("target", [0.1, 0.2, 0.3, 0.4], [0])), variables=["y.leaves", "y.base_values"])
    check_weights(model, ["y.leaves", "y.base_values"], step=1e-3)


@pytest.mark.parametrize(("targets", "aggregate", "dtype"), [(1, 1, "float32"), (2, 0, "float64"), (1, 0, "float32")])
def test_tree_ensemble(targets, aggregate, dtype):
    """TreeEnsemble 5, which onnxruntime-training 1.19.2 does not run."""
    kind = TensorProto.FLOAT if dtype == "float32" else TensorProto.DOUBLE
    model = ml_model(
        "TreeEnsemble", {"y": kind}, 5, 21, kind, n_targets=targets, aggregate_function=aggregate,
        nodes_splits=numpy_helper.from_array(np.array([0.1, -0.2], dtype)), nodes_featureids=[0, 1],
        nodes_modes=numpy_helper.from_array(np.zeros(2, np.uint8)), nodes_truenodeids=[0, 2], nodes_falsenodeids=[1, 3],
        nodes_trueleafs=[1, 1], nodes_falseleafs=[1, 1], tree_roots=[0, 1],
        leaf_targetids=[0, targets - 1, 0, targets - 1],
        leaf_weights=numpy_helper.from_array(np.array([0.1, 0.2, 0.3, 0.4], dtype)))
    loaded = load(model)
    assert list(loaded.arrays) == ["y.leaf_weights"]
    expanded, x = build(loaded.inputs, loaded.outputs), X.astype(dtype)
    (expected,), (actual,) = (ReferenceEvaluator(m).run(None, {"x": x}) for m in (model, expanded))
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    try:
        Session(model)
    except Exception:
        return
    check_node(model, x, {"y.leaf_weights": negate})


@pytest.mark.parametrize(("name", "value"), [
    ("target_treeids", [0, 0, 1]), ("target_weights", [0.1]), ("nodes_modes", ["LEAF"]), ("target_ids", "x"),
])
def test_malformed(name, value):
    attributes = {**leaves("target", [0.1, 0.2, 0.3, 0.4], [0]), name: value}
    model = ml_model("TreeEnsembleRegressor", {"y": TensorProto.FLOAT}, n_targets=1, **attributes)
    with pytest.raises(ModelError, match=r"Node \(unnamed\) \(TreeEnsembleRegressor, output 'y'\) has attributes that "
                                         r"are missing or do not fit together: "):
        load(model)


def test_schema_of_the_version_that_is_imported():
    """TreeEnsembleRegressor 3 is deprecated in version 5, which is no concern of a model that imports 3."""
    model = ml_model("TreeEnsembleRegressor", {"y": TensorProto.FLOAT}, 3, n_targets=1, aggregate_function="MAX",
                     **leaves("target", [0.1, 0.2, 0.3, 0.4], [0]))
    loaded = load(model)
    assert loaded.outputs["y"].node.schema.since_version == 3
    opsets = {o.domain: o.version for o in build(loaded.inputs, loaded.outputs).opset_import}
    assert opsets["ai.onnx.ml"] == 3
    assert onnx.defs.get_schema("TreeEnsembleRegressor", "ai.onnx.ml").deprecated
