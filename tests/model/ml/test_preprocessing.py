"""Scaler, Normalizer, Imputer and FeatureVectorizer are read as standard operators."""

import numpy as np
import pytest
from ml_nodes import X, check_node, ml_model
from onnx import TensorProto
from onnx.parser import parse_model

from ortpartial import grad, load
from ortpartial.graph import build
from ortpartial.runtime import Session

Y = {"y": TensorProto.FLOAT}
HOLES = np.where(np.arange(21).reshape(7, 3) % 4 == 0, np.nan, X).astype(np.float32)


@pytest.mark.parametrize("n", [1, 3])
def test_scaler(n):
    model = ml_model("Scaler", Y, offset=[1.0, 2.0, 3.0][:n], scale=[0.5, 2.0, 1.5][:n])
    check_node(model, weights={"y.offset": lambda a: a + 1, "y.scale": lambda a: 2 * a})


def test_scaler_of_doubles():
    """Numbers such as dates, of which float32 would leave nothing but their mean."""
    model = ml_model("Scaler", Y, kind=TensorProto.DOUBLE, offset=[1.6e9], scale=[0.5])
    check_node(model, X.astype(np.float64) + 1.6e9, {"y.offset": lambda a: a + 1024, "y.scale": lambda a: 2 * a})


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm):
    check_node(ml_model("Normalizer", Y, norm=norm), np.where(np.arange(7)[:, None] == 2, 0, X).astype(np.float32))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("replaced", [np.nan, 0.0])
def test_imputer(n, replaced):
    model = ml_model("Imputer", Y, imputed_value_floats=[1.0, 2.0, 3.0][:n], replaced_value_float=replaced)
    check_node(model, np.where(np.isnan(HOLES), replaced, X).astype(np.float32),
               {"y.imputed_value_floats": lambda a: a + 1})


def test_imputer_of_whole_numbers():
    model = ml_model("Imputer", {"y": TensorProto.INT64}, kind=TensorProto.INT64, imputed_value_int64s=[7],
                     replaced_value_int64=-1)
    check_node(model, np.arange(-2, 4).reshape(2, 3))


def test_gradient_passes_where_nothing_is_imputed():
    model = load(ml_model("Imputer", Y, imputed_value_floats=[1.0, 2.0, 3.0]), variables=["y.imputed_value_floats"])
    x, w = model.inputs["x"], model.initializers["y.imputed_value_floats"]
    dx, dw = grad(model.outputs["y"], [x, w])
    missing = X.copy()
    missing[0] = 0
    ran = Session(build([x, w], {"dx": dx, "dw": dw})).run({"x": missing, "y.imputed_value_floats": np.ones(3, "f4")})
    assert ran["dx"].tolist() == [[0] * 3, *([[1] * 3] * 6)]
    assert ran["dw"].tolist() == [1, 1, 1]


def test_feature_vectorizer():
    model = parse_model("""<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1]>
        g (float[N, 2] a, float[N, 1] b, float[N, 3] c) => (float[N, 6] y) {
            y = ai.onnx.ml.FeatureVectorizer <inputdimensions = [2, 1, 3]> (a, b, c) }""")
    loaded = load(model)
    assert loaded.outputs["y"].shape == ("N", 6)
    feeds = {"a": X[:, :2].copy(), "b": X[:, :1].copy(), "c": X}
    actual, expected = (Session(m).run(feeds)["y"] for m in (build(loaded.inputs, loaded.outputs), model))
    np.testing.assert_array_equal(actual, expected)


def test_shapes_are_inferred():
    assert load(ml_model("Scaler", Y, offset=[1.0], scale=[2.0]), batch=5).outputs["y"].shape == (5, 3)
