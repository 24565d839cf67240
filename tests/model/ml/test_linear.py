"""Linear models of ai.onnx.ml are read as products, and their weights written back."""

import numpy as np
import pytest
from ml_nodes import X, check_node, ml_model
from onnx import TensorProto

from ortpartial import load
from ortpartial.graph import build

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


@pytest.mark.parametrize(("attributes", "targets"), [
    ({"coefficients": [1.0, 2.0], "intercepts": [0.1], "classlabels_ints": [0, 1]}, 2),
    ({"coefficients": [1.0, 2.0], "classlabels_ints": [0, 1, 2]}, 3),
])
def test_what_is_left_alone(attributes, targets):
    """One row of coefficients for two classes, which versions of onnxruntime read otherwise, and sizes that differ."""
    loaded = load(ml_model("LinearClassifier", CLASSIFIED, **attributes))
    assert [n.op_type for n in build(loaded.inputs, loaded.outputs).graph.node] == ["LinearClassifier"]


def test_the_model_given_is_not_written_to():
    model = ml_model("LinearRegressor", {"y": TensorProto.FLOAT}, coefficients=[1.0, 2.0, 3.0])
    before = model.SerializeToString()
    check_node(model, X, {"y.coefficients": double})
    assert model.SerializeToString() == before
