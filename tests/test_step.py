"""Do the graphs of a training step have the inputs and outputs that they say, and the numbers of torch?"""

import numpy as np
import onnx
import pytest
import torch
from models import linear, mlp, torch_mlp, two_in_two_out, weights_of

from ortpartial.builder import build
from ortpartial.exceptions import GraphError, ModelError
from ortpartial.graph import constant, op, variable
from ortpartial.learning_loss import (
    AbsoluteLearningLoss,
    NegLogLearningLoss,
    SoftmaxCrossEntropyLearningLoss,
    SquareLearningLoss,
)
from ortpartial.learning_penalty import ElasticLearningPenalty, NoLearningPenalty
from ortpartial.learning_rate import LearningRateAdam, LearningRateSGD
from ortpartial.model import load
from ortpartial.runtime import Session
from ortpartial.step import (
    Names,
    backward_graph,
    forward_graph,
    loss_graph,
    penalty_graph,
    read_by,
    row_loss_graph,
    step_graph,
    update_graph,
)

SQUARE, NONE = SquareLearningLoss(), NoLearningPenalty()


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
    graph = step_graph(model, ["W2", "b1"], {"y": SQUARE}, NONE, LearningRateAdam(), weighted=weighted)
    inputs, outputs = names(graph)
    first = ["x", "y_target", *["sample_weight"] * weighted, "iteration"]
    assert inputs == [*first, "W2", "W2_m", "W2_v", "b1", "b1_m", "b1_v"]
    assert outputs == ["loss", "W2_new", "W2_m_new", "W2_v_new", "b1_new", "b1_m_new", "b1_v_new"]
    assert [t.name for t in graph.graph.initializer if t.name in weights_of(mlp())] == ["W1", "b2"]


def test_names_give_way_to_those_of_the_model():
    x = variable("iteration", "float32", ["N", 2])
    w, v, u = (constant(np.full(s, i, np.float32), hint=n)
               for i, (n, s) in enumerate((("w", (2, 1)), ("w_new", 1), ("w_v", 1))))  # fmt: skip
    model = build([x], {"loss": x @ w + v * u})
    model = loaded(model, "w", "w_new", "w_v")
    assert names(step_graph(model, ["w", "w_new", "w_v"], {"loss": SQUARE}, NONE, LearningRateSGD())) == (
        ["iteration", "loss_target", "iteration_", "w", "w_new", "w_v"],
        ["loss_", "w_new_", "w_new_new", "w_v_new"],
    )


def test_gradients_do_not_collide():
    """A weight called like the gradient of another, and one like the gradient of a penalty."""
    model = Names(frozenset({"a", "a_grad", "a_grad_penalty"}))
    weights = {n: variable(n, "float32", [2, 2]) for n in sorted(model.taken)}
    graph, chosen = penalty_graph(weights, ElasticLearningPenalty(l2=1), model)
    assert chosen == sorted(model.taken)
    inputs, _ = names(update_graph(weights, LearningRateSGD(), model, penalised=chosen))
    assert len(set(inputs)) == len(inputs) == 3 * 3 + 1
    assert len({*names(graph)[0], *names(graph)[1]}) == 3 + 1 + 3


def test_what_is_not_needed_is_left_out():
    model = loaded(two_in_two_out(), "w")
    losses = {"price": SQUARE}
    assert names(step_graph(model, ["w"], losses, NONE, LearningRateSGD())) == (
        ["a", "b", "price_target", "iteration", "w"], ["loss", "w_new"])  # fmt: skip
    assert names(row_loss_graph(model, ["w"], losses)) == (["a", "b", "price_target", "w"], ["loss"])
    assert names(forward_graph(model, ["w"], ["price"], used_only=True)) == (["a", "b", "w"], ["price"])
    assert names(forward_graph(model, ["w"])) == (["a", "b", "c", "w"], ["price", "kind", "unused"])
    assert list(read_by([model.outputs["kind"]], model.inputs)) == ["a"]


@pytest.mark.parametrize("weighted", [False, True])
def test_loss_graph(rng, weighted):
    model = load(two_in_two_out())
    graph = loss_graph(model, {"price": SQUARE, "kind": AbsoluteLearningLoss()}, weighted=weighted)
    inputs, outputs = names(graph)
    assert inputs == ["price", "kind", "price_target", "kind_target"] + ["sample_weight"] * weighted
    assert outputs == ["loss", "price_grad", "kind_grad"]
    feeds = {n: rng.normal(size=(5, 2 if "kind" in n else 1)).astype(np.float32) for n in inputs[:4]}
    w = np.arange(5, dtype=np.float32) if weighted else np.ones(5, np.float32)
    found = Session(graph).run({**feeds, "sample_weight": w} if weighted else feeds)
    t = {n: torch.tensor(a, requires_grad=True) for n, a in feeds.items()}
    rows = (t["price"] - t["price_target"]).square().mean(1) + (t["kind"] - t["kind_target"]).abs().mean(1)
    loss = (torch.tensor(w) * rows).sum() / w.sum()
    loss.backward()
    np.testing.assert_allclose(found["loss"], loss.detach(), rtol=1e-5)
    for n in ("price", "kind"):
        np.testing.assert_allclose(found[f"{n}_grad"], t[n].grad, rtol=1e-5, atol=1e-7)


def test_penalty_graph():
    weights = {n: variable(n, "float32", s) for n, s in (("w", (2, 1)), ("b", (1,)))}
    graph, chosen = penalty_graph(weights, ElasticLearningPenalty(l1=1, l2=2), Names(frozenset(weights)))
    assert chosen == ["w"]
    assert names(graph) == (["w"], ["penalty", "w_grad_penalty"])
    found = Session(graph).run({"w": np.array([[3], [-1]], np.float32)})
    assert found["penalty"] == 4 + 10
    assert found["w_grad_penalty"].tolist() == [[7], [-3]]
    assert penalty_graph(weights, NONE, Names(frozenset())) == (None, [])


def test_backward_graph(rng):
    model = loaded(mlp(), "W1", "b2")
    backward, saved, again = backward_graph(model, ["W1", "b2"], ["y"], ["x"])
    forward = forward_graph(model, ["W1", "b2"], ["y"], saved)
    assert names(forward) == (["x", "W1", "b2"], ["y", *(f"saved_{i}" for i in range(len(saved)))])
    assert names(backward)[1] == ["W1_grad", "b2_grad", "x_grad"]
    weights = weights_of(mlp())
    feeds = {"x": rng.normal(size=(3, 4)).astype(np.float32), **{n: weights[n] for n in ("W1", "b2")}}
    dy = rng.normal(size=(3, 1)).astype(np.float32)
    pool = {**feeds, **Session(forward).run(feeds), "y_grad": dy}
    assert set(again) <= {"x", "W1"}
    session = Session(backward)
    found = session.run({n: pool[n] for n in session.inputs})
    t = {n: torch.tensor(a, requires_grad=True) for n, a in {**weights, "x": feeds["x"]}.items()}
    torch_mlp(t, t["x"]).backward(torch.tensor(dy))
    for n in ("W1", "b2", "x"):
        np.testing.assert_allclose(found[f"{n}_grad"], t[n].grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "loss", [SQUARE, AbsoluteLearningLoss(), NegLogLearningLoss(), SoftmaxCrossEntropyLearningLoss()], ids=repr)
def test_row_losses_and_their_mean(rng, loss):
    """The loss of a step is the mean of the losses of its rows."""
    model = loaded(linear(3, 4), "coef")
    feeds = {"x": rng.normal(size=(5, 3)).astype(np.float32), "coef": weights_of(linear(3, 4))["coef"]}
    labels = loss.target_dtype is not None
    feeds["y_target"] = rng.integers(0, 4, 5) if labels else rng.uniform(0, 1, (5, 4)).astype(np.float32)
    rows = Session(row_loss_graph(model, ["coef"], {"y": loss})).run(feeds)["loss"]
    assert rows.shape == (5,)
    step = Session(step_graph(model, ["coef"], {"y": loss}, NONE, LearningRateSGD()))
    feeds["iteration"] = np.array(1)
    np.testing.assert_allclose(step.run({n: feeds[n] for n in step.inputs})["loss"], rows.mean(), rtol=1e-5)


def test_dtypes_may_differ(rng):
    """float64 outputs of float32 weights, beside float32 outputs."""
    x, w = variable("x", "float32", ["N", 2]), constant(np.ones((2, 1), np.float32), hint="w")
    y = x @ w
    model = loaded(build([x], {"y": y, "z": op.Cast(y, to=onnx.TensorProto.DOUBLE)}), "w")
    losses, rate = {"z": SQUARE, "y": SQUARE}, LearningRateSGD(0.1)
    graph = step_graph(model, ["w"], losses, ElasticLearningPenalty(l2=1), rate, weighted=True)
    onnx.checker.check_model(graph, full_check=True)
    x, s = rng.normal(size=(3, 2)).astype(np.float32), np.ones(3)
    t = np.zeros((3, 1))
    found = Session(graph).run({"x": x, "z_target": t, "y_target": t.astype(np.float32), "sample_weight": s,
                                "iteration": np.array(1), "w": np.ones((2, 1), np.float32)})  # fmt: skip
    y = x.sum(1, keepdims=True)
    np.testing.assert_allclose(found["loss"], 2 * (y**2).mean(), rtol=1e-6)
    expected = 1 - 0.1 * (4 * (y * x).mean(0) + 1)
    np.testing.assert_allclose(found["w_new"].ravel(), expected, rtol=1e-5)
    assert (found["loss"].dtype, found["w_new"].dtype) == (np.float64, np.float32)


def test_errors():
    x = variable("x", "float32", None)
    model = load(build([x], {"y": op.Relu(x)}))
    with pytest.raises(GraphError, match=r"The rank of .* is not known; declare the shape of the model's inputs"):
        row_loss_graph(model, [], {"y": SQUARE})
    i = variable("i", "int64", ["N"])
    with pytest.raises(ModelError, match="'i' holds int64, and only real numbers have a gradient"):
        backward_graph(load(build([i], {"y": op.Cast(i, to=1)})), [], ["y"], ["i"])
    x = variable("x", "float32", ["N"])
    with pytest.raises(GraphError, match=r"scores of shape \(N, C\) or \(N, C, d, ...\) were expected"):
        row_loss_graph(load(build([x], {"y": op.Relu(x)})), [], {"y": SoftmaxCrossEntropyLearningLoss()})
