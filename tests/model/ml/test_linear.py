"""Linear models of ai.onnx.ml are read as products, and their weights written back."""

import numpy as np
import pytest
from ml_nodes import X, check_node, ml_model
from onnx import TensorProto, numpy_helper
from onnx.parser import parse_model

from ortpartial import grad, load
from ortpartial.exceptions import ModelError
from ortpartial.graph import build, op
from ortpartial.runtime import Session

TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]
CLASSIFIED = {"label": TensorProto.INT64, "y": TensorProto.FLOAT}


def double(a):
    return 2 * a + 0.25


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_regressor(transform, targets):
    coefficients = [0.01, -0.02, 0.03, 0.01, 0.02, 0.005][: 3 * targets]  # PROBIT takes numbers from 0 to 1
    model = ml_model("LinearRegressor", {"y": TensorProto.FLOAT}, coefficients=coefficients, targets=targets,
                     intercepts=[0.3, 0.4][:targets], post_transform=transform)
    weights = {"y.coefficients": lambda a: 1.5 * a, "y.intercepts": lambda a: a + 0.1}
    assert list(check_node(model, weights=weights, tol=1e-4).arrays) == list(weights)


@pytest.mark.parametrize("transform", TRANSFORMS[:-1])
@pytest.mark.parametrize("labels", [{"classlabels_ints": [7, 5, 9]}, {"classlabels_strings": ["a", "c", "b"]}])
def test_classifier(transform, labels):
    outputs = {**CLASSIFIED, "label": TensorProto.STRING} if "classlabels_strings" in labels else CLASSIFIED
    model = ml_model("LinearClassifier", outputs, coefficients=np.linspace(-1, 1, 9).round(2).tolist(),
                     intercepts=[0.3, 0.4, 0.1], post_transform=transform, multi_class=1, **labels)
    check_node(model, weights={"y.coefficients": double, "y.intercepts": double})


def test_intercepts_that_the_file_leaves_out():
    model = ml_model("LinearRegressor", {"y": TensorProto.FLOAT}, coefficients=[1.0, 2.0, 3.0])
    assert load(model).arrays["y.intercepts"].tolist() == [0.0]
    check_node(model, weights={"y.intercepts": double})


def test_what_is_left_alone():
    """One row of coefficients for two classes, which versions of onnxruntime read otherwise."""
    loaded = load(ml_model("LinearClassifier", CLASSIFIED, coefficients=[1.0, 2.0, 3.0], intercepts=[0.1],
                           classlabels_ints=[0, 1]))
    assert [n.op_type for n in build(loaded.inputs, loaded.outputs).graph.node] == ["LinearClassifier"]


@pytest.mark.parametrize("attributes", [
    {"coefficients": [1.0, 2.0, 3.0], "classlabels_ints": [0, 1, 2]},
    {"coefficients": [1.0, 2.0, 3.0], "intercepts": [1.0, 2.0], "classlabels_ints": [0, 1]},
    {"coefficients": [1.0, 2.0, 3.0], "intercepts": [1.0]},
])
def test_sizes_that_do_not_fit(attributes):
    """onnxruntime-training 1.19.2 dies of them."""
    with pytest.raises(ModelError, match=r"Node \(unnamed\) \(LinearClassifier, output 'y'\) has attributes that are "
                                         r"missing or do not fit together: 3 coefficients and . intercepts for . cl"):
        load(ml_model("LinearClassifier", CLASSIFIED, **attributes))


def test_a_vector_is_a_row():
    model = parse_model("""<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1]> g (float[3] x) => (float[M, 1] y) {
        y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0, 3.0]> (x) }""")
    check_node(model, X[0])


@pytest.mark.parametrize("node", [
    "LinearRegressor <coefficients = [1.0, 2.0, 3.0, 1.0, 0.0, 1.0], intercepts = [0.5, 1.0], targets = 2>",
    """TreeEnsembleRegressor <n_targets = 1, nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2],
    nodes_featureids = [0, 0, 0], nodes_values = [0.5, 0.0, 0.0], nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"],
    nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0], target_treeids = [0, 0], target_nodeids = [1, 2],
    target_ids = [0, 0], target_weights = [1.0, 2.0]>"""], ids=lambda n: n.split()[0])
def test_a_computed_vector_is_a_row(node):
    model = parse_model(f"""<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1]>
        g (float[3] x) => (float[M, K] y) {{ a = Abs(x) y = ai.onnx.ml.{node} (a) }}""")
    check_node(model, X[0])


@pytest.mark.parametrize("body", [
    """g (float[N, 3] x) => (float[N, 1] y) { y = here.f(x) }
    <domain: "here", opset_import: ["": 17, "ai.onnx.ml": 1]> f (x) => (y) {
        z = ai.onnx.ml.Scaler <offset = [1.0], scale = [2.0]> (x)
        y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0, 3.0]> (z) }""",
    """g (float[N, 3] x) => (float[N, 3] y) {
        n = Constant <value_int = 3> () going = Constant <value = bool {1}> ()
        y = Loop (n, going, x) <body = b (int64 i, bool g, float[N, 3] s) => (bool h, float[N, 3] t) {
            h = Identity(g) t = ai.onnx.ml.Scaler <offset = [1.0], scale = [0.5]> (s) }> }""",
], ids=["function", "body"])
def test_inside(body):
    """In functions and bodies, weights are constants, and gradients pass."""
    model = parse_model(f"""<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1, "here": 1]> {body}""")
    loaded = check_node(model)
    assert not loaded.arrays
    x = loaded.inputs["x"]
    (dx,) = grad(op.ReduceSum(loaded.outputs["y"]), [x])
    expected = [2, 4, 6] if "LinearRegressor" in body else [0.125] * 3
    assert Session(build([x], {"dx": dx})).run({"x": X})["dx"].tolist() == [expected] * 7


def test_names_that_clash():
    model = ml_model("LinearRegressor", {"y": TensorProto.FLOAT}, coefficients=[1.0, 2.0, 3.0])
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "y.coefficients"))
    with pytest.raises(ModelError, match=r"Two tensors are called 'y.coefficients': a weight of node \(unnamed\) "
                                         r"\(LinearRegressor\) and another one; rename the output 'y'."):
        load(model)


def test_the_model_given_is_not_written_to():
    model = ml_model("LinearRegressor", {"y": TensorProto.FLOAT}, coefficients=[1.0, 2.0, 3.0])
    before = model.SerializeToString()
    check_node(model, X, {"y.coefficients": double})
    assert model.SerializeToString() == before
