"""Do the parts of a step that are run apart have the inputs and outputs that they say, and the numbers of torch?"""

import numpy as np
import onnx
import pytest
import torch
from models import mlp, torch_mlp, two_in_two_out, weights_of

from ortpartial.exceptions import GraphError, ModelError
from ortpartial.graph.build import build
from ortpartial.graph.ops import op, variable
from ortpartial.learning.losses import AbsoluteLearningLoss, SoftmaxCrossEntropyLearningLoss, SquareLearningLoss
from ortpartial.learning.penalties import ElasticLearningPenalty, NoLearningPenalty
from ortpartial.model.load import load
from ortpartial.runtime.session import Session
from ortpartial.training.split_graphs import backward_graph, forward_graph, loss_graph, penalty_graph, row_loss_graph
from ortpartial.training.step import Names

SQUARE, NONE = SquareLearningLoss(), NoLearningPenalty()


def names(model):
    """Inputs and outputs of a model that passes the checker."""
    onnx.checker.check_model(model, full_check=True)
    return [i.name for i in model.graph.input], [o.name for o in model.graph.output]


def loaded(model, *weights, **settings):
    return load(model, variables=weights, **settings)


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
