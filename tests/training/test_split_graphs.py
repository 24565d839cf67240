"""The graphs of a step that is run apart: their inputs and outputs, and the numbers of torch."""

import numpy as np
import onnx
import pytest
import torch
from models import two_in_two_out

from ortpartial.exceptions import GraphError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.learning.losses import AbsoluteLearningLoss, SoftmaxCrossEntropyLearningLoss, SquareLearningLoss
from ortpartial.learning.penalties import ElasticLearningPenalty
from ortpartial.model.load import load
from ortpartial.runtime.session import Session
from ortpartial.training.spec import TrainingSpec
from ortpartial.training.split_graphs import loss_graph, penalty_graph, row_loss_graph

SQUARE = SquareLearningLoss()


def names(model):
    """Inputs and outputs of a model that passes the checker."""
    onnx.checker.check_model(model, full_check=True)
    return [i.name for i in model.graph.input], [o.name for o in model.graph.output]


@pytest.mark.parametrize("weighted", [False, True])
def test_loss_graph(rng, weighted):
    model = load(two_in_two_out())
    graph = loss_graph(TrainingSpec(model, (), {"price": SQUARE, "kind": AbsoluteLearningLoss()}), weighted=weighted)
    inputs, outputs = names(graph)
    assert inputs == ["price", "kind", "price_target", "kind_target"] + ["sample_weight"] * weighted
    assert outputs == ["loss", "price_grad", "kind_grad"]
    feeds = {n: rng.normal(size=(5, 2 if "kind" in n else 1)).astype(np.float32) for n in inputs[:4]}
    w = np.arange(5, dtype=np.float32) if weighted else np.ones(5, np.float32)
    results = Session(graph).run({**feeds, "sample_weight": w} if weighted else feeds)
    t = {n: torch.tensor(a, requires_grad=True) for n, a in feeds.items()}
    rows = (t["price"] - t["price_target"]).square().mean(1) + (t["kind"] - t["kind_target"]).abs().mean(1)
    loss = (torch.tensor(w) * rows).sum() / w.sum()
    loss.backward()
    np.testing.assert_allclose(results["loss"], loss.detach(), rtol=1e-5)
    for n in ("price", "kind"):
        np.testing.assert_allclose(results[f"{n}_grad"], t[n].grad, rtol=1e-5, atol=1e-7)


def test_penalty_graph():
    x, (w, b) = variable("x", "float32", ["N", 2]), (constant(np.ones(s, np.float32), hint=n)
                                                     for n, s in (("w", (2, 1)), ("b", (1,))))
    model = load(build([x], {"y": x @ w + b}), variables=["w", "b"])
    spec = TrainingSpec(model, ("w", "b"), {"y": SQUARE}, ElasticLearningPenalty(l1=1, l2=2))
    graph = penalty_graph(spec)
    assert spec.penalized == ("w",)
    assert names(graph) == (["w"], ["penalty", "w_grad_penalty"])
    results = Session(graph).run({"w": np.array([[3], [-1]], np.float32)})
    assert results["penalty"] == 4 + 10
    assert results["w_grad_penalty"].tolist() == [[7], [-3]]
    assert penalty_graph(TrainingSpec(model, ("w", "b"), {"y": SQUARE})) is None


def test_errors():
    x = variable("x", "float32", None)
    model = load(build([x], {"y": op.Relu(x)}))
    with pytest.raises(GraphError, match=r"The rank of .* is not known; declare the shape of the model's inputs"):
        row_loss_graph(TrainingSpec(model, (), {"y": SQUARE}))
    x = variable("x", "float32", ["N"])
    with pytest.raises(GraphError, match=r"scores of shape \(N, C\) or \(N, C, d, ...\) were expected"):
        row_loss_graph(TrainingSpec(load(build([x], {"y": op.Relu(x)})), (), {"y": SoftmaxCrossEntropyLearningLoss()}))
