"""Every door separates the weights that an exporter has merged, and joins tied weights, unless told otherwise."""

import pickle

import numpy as np
import pytest
from onnx import helper, numpy_helper

from ortpartial import (
    OrtGradientForwardBackward,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    add_loss_output,
    gradient_model,
    load,
    nn,
)
from ortpartial.model import Model
from ortpartial.torch import OnnxLayer
from ortpartial.training_info import TrainingSession, to_training_info

ARRAYS = {"a.weight": np.ones(4, np.float32),
          "c.weight": np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)}
WEIGHTS = {"infer": {"a.weight", "b.weight", "c.weight"}, "file": {"a.weight", "c.weight", "onnx::MatMul_9"}}
X = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)


def exported():
    """Two norms with one weight of ones, and two layers with a weight that is written twice."""
    nodes = [helper.make_node("LayerNormalization", ["x", "a.weight"], ["h"], "/a/LayerNormalization"),
             helper.make_node("LayerNormalization", ["h", "a.weight"], ["k"], "/b/LayerNormalization"),
             helper.make_node("Gemm", ["k", "c.weight"], ["l"], "/c/Gemm"),
             helper.make_node("MatMul", ["l", "onnx::MatMul_9"], ["y"], "/d/MatMul")]
    arrays = {**ARRAYS, "onnx::MatMul_9": ARRAYS["c.weight"].T}
    x, y = (helper.make_tensor_value_info(n, 1, ["N", 4]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(a, n) for n, a in arrays.items()])
    return helper.make_model(graph, producer_name="pytorch", ir_version=9,
                             opset_imports=[helper.make_opsetid("", 20)])


def train_in_file(model):
    session = TrainingSession(to_training_info(OrtGradientForwardBackwardOptimizer(model)))
    return set(session.state) & set.union(*WEIGHTS.values())


def train_with_loss(model):
    ties = "file" if isinstance(model, Model) else "infer"
    return OrtGradientOptimizer(load(add_loss_output(model), ties=ties)).weights_to_train


DOORS = {
    "OrtGradientForwardBackwardOptimizer": lambda m: OrtGradientForwardBackwardOptimizer(m).weights_to_train,
    "pickle": lambda m: pickle.loads(pickle.dumps(OrtGradientForwardBackwardOptimizer(m))).weights_to_train,
    "trained model": lambda m: [t.name for t in OrtGradientForwardBackwardOptimizer(m).fit(
        X, X).get_trained_onnx().graph.initializer],
    "OrtGradientForwardBackward": lambda m: OrtGradientForwardBackward(m).weights_to_train,
    "OrtGradientOptimizer": train_with_loss,
    "OnnxLayer": lambda m: OnnxLayer(m).state_names,
    "pickle of OnnxLayer": lambda m: pickle.loads(pickle.dumps(OnnxLayer(m))).state_names,
    "nn.Module": lambda m: nn.Module.from_onnx(m).weights,
    "gradient_model": lambda m: [o.name.removesuffix("_grad") for o in gradient_model(m).graph.output],
    "to_training_info": train_in_file,
}


@pytest.mark.parametrize("door", DOORS)
def test_a_door_reads_ties(door):
    assert set(DOORS[door](exported())) == WEIGHTS["infer"]
    assert set(DOORS[door](load(exported(), ties="file"))) == WEIGHTS["file"]


def test_a_trained_model_stays_as_it_is():
    """It computes what the optimizer predicts, and has nothing to separate or join; names stand for what they did."""
    trained = OrtGradientForwardBackwardOptimizer(exported(), random_state=0, learning_rate=0.01).fit(X, X)
    model = trained.get_trained_onnx()
    again = load(model)
    assert not again.ties
    np.testing.assert_array_equal(OrtGradientForwardBackwardOptimizer(model).predict(X), trained.predict(X))
    w = trained.trained_coef_
    assert not np.array_equal(w["a.weight"], w["b.weight"])
    np.testing.assert_array_equal(w["onnx::MatMul_9"], w["c.weight"])
    assert OrtGradientForwardBackwardOptimizer(exported(), ["onnx::MatMul_9"]).weights_to_train == ["c.weight"]


def test_the_page_of_an_optimizer_lists_ties():
    html = OrtGradientForwardBackwardOptimizer(exported())._repr_html_()
    assert "a.weight was one with b.weight" in html
    assert "onnx::MatMul_9 is the transpose of c.weight" in html
    assert "ties" not in OrtGradientForwardBackwardOptimizer(load(exported(), ties="file"))._repr_html_()
