"""Linear models of scikit-learn are read as products, and trained."""

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.parser import parse_model

from ortpartial import OrtGradientForwardBackwardOptimizer, load
from ortpartial.cli import main
from ortpartial.exceptions import ModelError, SettingError
from ortpartial.model import read
from ortpartial.model.linear_models import expand_linear_models
from ortpartial.runtime import Session

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype(np.float32)
Y = X @ RNG.normal(size=(3, 2))
CLASSES = (Y > 0) @ [1, 1]


def export(estimator, y, **options):
    skl2onnx = pytest.importorskip("skl2onnx")
    return skl2onnx.to_onnx(estimator.fit(X, y), X[:1], target_opset={"": 17, "ai.onnx.ml": 3}, options=options or None)


def check_same(model):
    """Check that the model and its expansion compute the same."""
    expanded = read(model)
    assert not {"LinearClassifier", "LinearRegressor"} & {node.op_type for node in expanded.graph.node}
    for actual, expected in zip(*(Session(m).run({"X": X}).values() for m in (expanded, model)), strict=True):
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
        else:
            assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize("y", [Y[:, 0], Y], ids=["one target", "two targets"])
def test_regression(y):
    linear_model = pytest.importorskip("sklearn.linear_model")
    model = export(linear_model.LinearRegression(), y)
    check_same(model)
    o = OrtGradientForwardBackwardOptimizer(model, max_iter=50, learning_rate=0.05, random_state=0)
    assert o.weights_to_train == ["variable.coefficients", "variable.intercepts"]
    assert o.fit(X, 2 * y).score(X, 2 * y) > 0.999
    np.testing.assert_allclose(Session(o.get_trained_onnx()).run({"X": X})["variable"], o.predict(X), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:The output 'probabilities' ends in")
@pytest.mark.parametrize("labels", [CLASSES, CLASSES > 0, np.array(["a", "b", "c"])[CLASSES]], ids=["3", "2", "text"])
def test_classification(labels):
    linear_model = pytest.importorskip("sklearn.linear_model")
    model = export(linear_model.LogisticRegression(), labels, zipmap=False)
    check_same(model)
    o = OrtGradientForwardBackwardOptimizer(model, learning_loss="cross_entropy", max_iter=2, random_state=0)
    assert [n.split(".")[1] for n in o.weights_to_train] == ["coefficients", "intercepts"]
    assert o.fit(X, np.unique(labels, return_inverse=True)[1]).n_iter_ == 2


def test_what_is_left_alone():
    text = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1]> g (float[N,2] x) => (float[N,1] y) {
        y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0]%s> (x)
    }"""
    assert expand_linear_models(parse_model(text % ', post_transform = "PROBIT"')).graph.node[0].op_type[:6] == "Linear"
    model = parse_model(text % "")
    assert [t.name for t in expand_linear_models(model).graph.initializer] == ["y.coefficients", "y.intercepts"]
    assert model == parse_model(text % "")
    assert load(model).initializers["y.intercepts"].array.tolist() == [0.0]
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.append(helper.make_attribute("coefficients", [1.0, 2.0, 3.0]))
    model.graph.node[0].attribute.append(helper.make_attribute("targets", 2))
    assert expand_linear_models(model).graph.node[0].op_type == "LinearRegressor"


def test_a_model_of_attributes_says_so():
    ensemble = pytest.importorskip("sklearn.ensemble")
    model = export(ensemble.RandomForestRegressor(n_estimators=2), Y[:, 0])
    with pytest.raises(ModelError, match=r"\(TreeEnsembleRegressor, output 'variable'\) holds its weights as "
                                         r"attributes and has no gradient; what is to be trained"):
        OrtGradientForwardBackwardOptimizer(model)


def test_zipmap(tmp_path, capsys):
    linear_model = pytest.importorskip("sklearn.linear_model")
    model = export(linear_model.LogisticRegression(), CLASSES)
    with pytest.raises(SettingError, match=r"The output 'output_probability' is a list of dicts, made by ZipMap of "
                                           r"skl2onnx: export without it, to_onnx\(\.\.\., options=\{'zipmap': "):
        OrtGradientForwardBackwardOptimizer(model)
    onnx.save(model, tmp_path / "m.onnx")
    assert main(["info", str(tmp_path / "m.onnx")]) == 1
    assert "not trained: The output 'output_probability' is a list of dicts, made by ZipMap" in capsys.readouterr().out
