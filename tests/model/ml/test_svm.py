"""Support vector machines of ai.onnx.ml are read as kernels, and their weights written back."""

import numpy as np
import pytest
from ml_nodes import RNG, X, check_node, check_weights, ml_model
from onnx import TensorProto

from ortpartial import grad, load
from ortpartial.exceptions import ModelError
from ortpartial.graph import Operators, build, op, variable
from ortpartial.runtime import Session

KERNELS = {"LINEAR": [0.0, 0.0, 0.0], "POLY": [0.3, 0.5, 3.0], "RBF": [0.4, 0.0, 0.0], "SIGMOID": [0.2, 0.1, 0.0]}
VECTORS = RNG.normal(size=(6, 3)).round(2)
CLASSIFIED = {"label": TensorProto.INT64, "y": TensorProto.FLOAT}

WEIGHTS = {kind: ["y.support_vectors", "y.coefficients", "y.rho", *more] for kind, more in (
    ("LINEAR", []), ("POLY", ["y.gamma", "y.coef0"]), ("RBF", ["y.gamma"]), ("SIGMOID", ["y.gamma", "y.coef0"]))}


def shift(a):
    return a + 0.1


def kernel(kind):
    return {"support_vectors": VECTORS.ravel().tolist(), "kernel_type": kind, "kernel_params": KERNELS[kind]}


@pytest.mark.parametrize("kind", KERNELS)
def test_regressor(kind):
    model = ml_model("SVMRegressor", {"y": TensorProto.FLOAT}, coefficients=[0.5, -0.3, 0.2, 0.1, -0.7, 0.4],
                     rho=[0.2], n_supports=6, **kernel(kind))
    weights = dict.fromkeys(load(model).arrays, shift)
    assert {"y.support_vectors", "y.coefficients", "y.rho"} <= set(weights)
    assert ("y.gamma" in weights) == (kind != "LINEAR")
    check_node(model, weights=weights, tol=1e-4)


@pytest.mark.parametrize("offset", [0, 1000])
def test_vectors_far_from_the_origin(offset):
    """Where ‖x‖² is large, ‖x - s‖² must not be lost in the difference."""
    model = ml_model("SVMRegressor", {"y": TensorProto.FLOAT}, coefficients=[0.5, -0.3, 0.2, 0.1, -0.7, 0.4], rho=[0.2],
                     n_supports=6, **{**kernel("RBF"), "support_vectors": (VECTORS + offset).ravel().tolist()})
    check_node(model, X + np.float32(offset), tol=1e-4)


def test_one_class_and_linear_models():
    linear = {"coefficients": [0.5, -0.3, 0.2], "rho": [0.2], "kernel_type": "LINEAR", "kernel_params": [0.0] * 3}
    check_node(ml_model("SVMRegressor", {"y": TensorProto.FLOAT}, **linear), weights={"y.coefficients": shift})
    check_node(ml_model("SVMRegressor", {"y": TensorProto.FLOAT}, one_class=1, **linear))


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("is_probability", [False, True], ids=["scores", "probabilities"])
@pytest.mark.parametrize("sizes", [[2, 4], [1, 3, 2]], ids=["two classes", "three classes"])
def test_classifier(sizes, is_probability, transform):
    classes = len(sizes)
    pairs = classes * (classes - 1) // 2
    platt = {"prob_a": [-2.0, -1.0, -0.5][:pairs], "prob_b": [0.1, 0.2, 0.3][:pairs]} if is_probability else {}
    model = ml_model("SVMClassifier", CLASSIFIED, coefficients=RNG.normal(size=6 * (classes - 1)).tolist(),
                     rho=[0.1, 0.2, 0.3][:pairs], vectors_per_class=sizes, classlabels_ints=[5, 3, 7][:classes],
                     post_transform=transform, **platt, **kernel("RBF"))
    loaded = load(model)
    if classes == 2 and not is_probability and transform != "NONE":  # Versions of onnxruntime differ.
        assert [n.op_type for n in build(loaded.inputs, loaded.outputs).graph.node] == ["SVMClassifier"]
    else:
        check_node(model, weights=dict.fromkeys(loaded.arrays, shift), tol=1e-4)


@pytest.mark.parametrize("kind", ["LINEAR", "RBF"])
@pytest.mark.parametrize("classes", [2, 3])
def test_linear_classifier(classes, kind):
    """Without support vectors, the kernel does not count; of two classes, the label would be a question of signs."""
    model = ml_model("SVMClassifier", CLASSIFIED, coefficients=RNG.normal(size=3 * classes).tolist(), rho=[0.1],
                     kernel_type=kind, kernel_params=KERNELS[kind], classlabels_ints=[5, 3, 7][:classes])
    loaded = load(model)
    if classes == 2:
        assert [n.op_type for n in build(loaded.inputs, loaded.outputs).graph.node] == ["SVMClassifier"]
    else:
        check_node(model, weights=dict.fromkeys(loaded.arrays, shift))


@pytest.mark.parametrize(("name", "value"), [("rho", []), ("kernel_params", [0.1, 0.2]), ("coefficients", [0.1] * 5),
                                              ("support_vectors", [0.1] * 17)])
@pytest.mark.parametrize("op_type", ["SVMRegressor", "SVMClassifier"])
def test_sizes_that_do_not_fit(op_type, name, value):
    """onnxruntime-training 1.19.2 dies of some of them."""
    attributes = {"coefficients": [0.1] * 6, "rho": [0.1], **kernel("RBF"), name: value}
    kinds = {"y": TensorProto.FLOAT} if op_type == "SVMRegressor" else CLASSIFIED
    more = {"n_supports": 6} if op_type == "SVMRegressor" else {"vectors_per_class": [3, 3], "classlabels_ints": [0, 1]}
    with pytest.raises(ModelError, match=rf"\({op_type}, output 'y'\) has attributes that are missing or do not fit "
                                         r"together: there are "):
        load(ml_model(op_type, kinds, **{n: v for n, v in attributes.items() if v != []}, **more))


def test_classes_as_text():
    model = ml_model("SVMClassifier", {"label": TensorProto.STRING, "y": TensorProto.FLOAT}, rho=[0.1],
                     coefficients=RNG.normal(size=6).tolist(), vectors_per_class=[3, 3],
                     classlabels_strings=["no", "yes"], **kernel("LINEAR"))
    check_node(model)


@pytest.mark.parametrize("kind", KERNELS)
def test_gradient(kind):
    """Against central differences, in what the operator is composed of."""
    model = load(ml_model("SVMRegressor", {"y": TensorProto.FLOAT}, coefficients=[0.5, -0.3, 0.2, 0.1, -0.7, 0.4],
                          rho=[0.2], n_supports=6, **kernel(kind)), variables=WEIGHTS[kind])
    check_weights(model, WEIGHTS[kind])


@pytest.mark.parametrize("sizes", [[2, 4], [1, 3, 2]], ids=["two classes", "three classes"])
def test_gradient_of_probabilities(sizes):
    classes = len(sizes)
    pairs = classes * (classes - 1) // 2
    weights = [*WEIGHTS["RBF"], "y.prob_a", "y.prob_b"]
    model = load(ml_model("SVMClassifier", CLASSIFIED, coefficients=RNG.normal(size=6 * (classes - 1)).tolist(),
                          rho=[0.1, 0.2, 0.3][:pairs], vectors_per_class=sizes, classlabels_ints=[5, 3, 7][:classes],
                          prob_a=[-2.0, -1.0, -0.5][:pairs], prob_b=[0.1, 0.2, 0.3][:pairs], **kernel("RBF")),
                 variables=weights)
    check_weights(model, weights, step=2e-3)


def test_gradient_of_a_node_that_was_not_read():
    """As written by `Operators`: its weights are constants."""
    x = variable("x", "float32", ["N", 3])
    y = Operators("ai.onnx.ml").SVMRegressor(x, coefficients=[0.5, -0.3, 0.2], rho=[0.2], kernel_type="LINEAR",
                                             kernel_params=[0.0] * 3)
    (dx,) = grad(op.ReduceSum(y), [x])
    assert Session(build([x], {"dx": dx})).run({"x": X})["dx"][0].tolist() == pytest.approx([0.5, -0.3, 0.2])
