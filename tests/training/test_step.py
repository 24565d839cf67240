"""The graphs of a training step: their inputs and outputs, and the numbers of torch."""

import numpy as np
import onnx
import pytest
from models import linear, mlp, two_in_two_out, weights_of

from ortpartial.exceptions import NoGradientError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, make_node, op, variable
from ortpartial.graph.schemas import schema_of
from ortpartial.graph.walk import find_inputs
from ortpartial.learning.losses import (
    AbsoluteLearningLoss,
    NegLogLearningLoss,
    SoftmaxCrossEntropyLearningLoss,
    SquareLearningLoss,
)
from ortpartial.learning.optimizers import LearningRateAdam, LearningRateSGD
from ortpartial.learning.penalties import ElasticLearningPenalty
from ortpartial.model.load import load
from ortpartial.runtime.session import Session
from ortpartial.training.spec import TrainingSpec
from ortpartial.training.split_graphs import forward_graph, penalty_graph, row_loss_graph, update_graph
from ortpartial.training.step import check_gradient, step_graph

SQUARE = SquareLearningLoss()


def names(model):
    """Inputs and outputs of a model that passes the checker."""
    onnx.checker.check_model(model, full_check=True)
    return [i.name for i in model.graph.input], [o.name for o in model.graph.output]


def loaded(model, *weights, **settings):
    return load(model, variables=weights, **settings)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("batch", [None, 5])
def test_step_graph(weighted, batch):
    model = loaded(mlp(), "W2", "b1", batch=batch)
    graph = step_graph(TrainingSpec(model, ("W2", "b1"), {"y": SQUARE}, rate=LearningRateAdam()), weighted=weighted)
    inputs, outputs = names(graph)
    first = ["x", "y_target", *["sample_weight"] * weighted, "iteration"]
    assert inputs == [*first, "W2", "W2_m", "W2_v", "b1", "b1_m", "b1_v"]
    assert outputs == ["loss", "W2_new", "W2_m_new", "W2_v_new", "b1_new", "b1_m_new", "b1_v_new"]
    assert [t.name for t in graph.graph.initializer if t.name in weights_of(mlp())] == ["W1", "b2"]


def test_names_give_way_to_those_of_the_model():
    x = variable("iteration", "float32", ["N", 2])
    w, v, u = (constant(np.full(s, i, np.float32), hint=n)
               for i, (n, s) in enumerate((("w", (2, 1)), ("w_new", 1), ("w_v", 1))))
    model = build([x], {"loss": x @ w + v * u})
    model = loaded(model, "w", "w_new", "w_v")
    assert names(step_graph(TrainingSpec(model, ("w", "w_new", "w_v"), {"loss": SQUARE}))) == (
        ["iteration", "loss_target", "iteration_", "w", "w_new", "w_v"],
        ["loss_", "w_new_", "w_new_new", "w_v_new"],
    )


def test_gradients_do_not_collide():
    """A weight called like the gradient of another, and one like the gradient of a penalty."""
    weights = ("a", "a_grad", "a_grad_penalty")
    x, *ws = (variable("x", "float32", [2, 2]), *(constant(np.full((2, 2), i, np.float32), hint=n)
                                                  for i, n in enumerate(weights)))
    model = loaded(build([x], {"y": x @ ws[0] @ ws[1] @ ws[2]}), *weights)
    spec = TrainingSpec(model, weights, {"y": SQUARE}, ElasticLearningPenalty(l2=1))
    graph = penalty_graph(spec)
    assert spec.penalized == weights
    inputs, _ = names(update_graph(spec, penalized=weights))
    assert len(set(inputs)) == len(inputs) == 3 * 3 + 1
    assert len({*names(graph)[0], *names(graph)[1]}) == 3 + 1 + 3


def test_what_is_not_needed_is_left_out():
    model = loaded(two_in_two_out(), "w")
    spec = TrainingSpec(model, ("w",), {"price": SQUARE})
    assert names(step_graph(spec)) == (
        ["a", "b", "price_target", "iteration", "w"], ["loss", "w_new"])
    assert names(row_loss_graph(spec)) == (["a", "b", "price_target", "w"], ["loss"])
    assert names(forward_graph(model, ["w"], ["price"], used_only=True)) == (["a", "b", "w"], ["price"])
    assert names(forward_graph(model, ["w"])) == (["a", "b", "c", "w"], ["price", "kind", "unused"])
    assert list(find_inputs([model.outputs["kind"]], model.inputs)) == ["a"]


@pytest.mark.parametrize(
    "loss", [SQUARE, AbsoluteLearningLoss(), NegLogLearningLoss(), SoftmaxCrossEntropyLearningLoss()], ids=repr)
def test_row_losses_and_their_mean(rng, loss):
    """The loss of a step is the mean of the losses of its rows."""
    model = loaded(linear(3, 4), "coef")
    feeds = {"x": rng.normal(size=(5, 3)).astype(np.float32), "coef": weights_of(linear(3, 4))["coef"]}
    labels = loss.target_dtype is not None
    feeds["y_target"] = rng.integers(0, 4, 5) if labels else rng.uniform(0, 1, (5, 4)).astype(np.float32)
    spec = TrainingSpec(model, ("coef",), {"y": loss})
    rows = Session(row_loss_graph(spec)).run(feeds)["loss"]
    assert rows.shape == (5,)
    step = Session(step_graph(spec))
    feeds["iteration"] = np.array(1)
    np.testing.assert_allclose(step.run({n: feeds[n] for n in step.inputs})["loss"], rows.mean(), rtol=1e-5)


def test_dtypes_may_differ(rng):
    """float64 outputs of float32 weights, beside float32 outputs."""
    x, w = variable("x", "float32", ["N", 2]), constant(np.ones((2, 1), np.float32), hint="w")
    y = x @ w
    model = loaded(build([x], {"y": y, "z": op.Cast(y, to=onnx.TensorProto.DOUBLE)}), "w")
    spec = TrainingSpec(model, ("w",), {"z": SQUARE, "y": SQUARE}, ElasticLearningPenalty(l2=1), LearningRateSGD(0.1))
    graph = step_graph(spec, weighted=True)
    onnx.checker.check_model(graph, full_check=True)
    x, s = rng.normal(size=(3, 2)).astype(np.float32), np.ones(3)
    t = np.zeros((3, 1))
    found = Session(graph).run({"x": x, "z_target": t, "y_target": t.astype(np.float32), "sample_weight": s,
                                "iteration": np.array(1), "w": np.ones((2, 1), np.float32)})
    y = x.sum(1, keepdims=True)
    np.testing.assert_allclose(found["loss"], 2 * (y**2).mean(), rtol=1e-6)
    expected = 1 - 0.1 * (4 * (y * x).mean(0) + 1)
    np.testing.assert_allclose(found["w_new"].ravel(), expected, rtol=1e-5)
    assert (found["loss"].dtype, found["w_new"].dtype) == (np.float64, np.float32)


def test_a_check_of_the_gradient_writes_no_update(monkeypatch):
    """Rules of other domains may refuse a node: their gradient is written, and not the update of a thousand weights."""
    x, w = variable("x", "float32", ["N", 32]), constant(np.ones((32, 32), np.float32), hint="w")
    monkeypatch.setattr("ortpartial.training.step.append_update", None)

    def check(attributes):
        packed = constant(np.zeros((8, 1, 16), np.uint8)), constant(np.ones((8, 1), np.float32))
        settings = {"K": 32, "N": 8, "bits": 4, "block_size": 32, **attributes}
        y = make_node(schema_of("MatMulNBits", "com.microsoft", 1), [x @ w, *packed], settings).outputs[0]
        check_gradient(TrainingSpec(loaded(build([x], {"y": y}), "w"), ("w",), {"y": SQUARE}))

    check({})
    with pytest.raises(NoGradientError, match="weight_prepacked"):
        check({"weight_prepacked": 1})
