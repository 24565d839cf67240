"""An epoch in one graph is its steps, bit for bit."""

import numpy as np
import pytest
from models import linear, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.execution.epoch import epoch_graph
from ortpartial.execution.epoch_engine import EpochEngine
from ortpartial.execution.step_engine import StepEngine
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.learning.losses import SquareLearningLoss
from ortpartial.learning.optimizers import LearningRateAdam, LearningRateSGD
from ortpartial.model.load import load
from ortpartial.runtime import has_training
from ortpartial.training import SpecSource, TrainingSpec


def epoch(proto, weights, rate=None, batch=3, **settings):
    """The graph around the steps, and that of a step."""
    model = load(proto, variables=weights, batch=batch)
    rate = rate or LearningRateSGD()
    spec = TrainingSpec(model, tuple(weights), {"y": SquareLearningLoss()}, rate=rate)
    proto = epoch_graph(SpecSource(spec), **settings)
    (scan,) = (n for n in proto.graph.node if n.op_type == "Scan")
    return proto.graph, next(a.g for a in scan.attribute if a.name == "body")


def types(graph):
    return [n.op_type for n in graph.node]


def test_a_step_of_a_linear_regression_has_six_nodes():
    around, body = epoch(linear(3, 1), ["coef", "intercept"])
    assert sorted(types(body)) == ["Gemm", "Gemm", "MatMul", "ReduceSumSquare", "Sub", "Sub"]
    assert sorted(types(around)) == ["Div", "Gather", "Gather", "Scan"]


@pytest.mark.parametrize(("rate", "counted"), [
    (LearningRateSGD(), False), (LearningRateSGD(schedule="invscaling"), True), (LearningRateAdam(), True),
])
def test_batches_are_counted_where_a_rate_reads_the_number(rate, counted):
    around, _ = epoch(mlp(), ["W1"], rate)
    assert any("iteration" in n.input for n in around.node) == counted


def test_numbers_that_follow_from_that_of_the_batch_are_computed_once_for_all_steps():
    around, body = epoch(mlp(), ["W1"], LearningRateAdam(schedule="invscaling"))
    assert {"Pow", "Sqrt", "Mod", "Range"} <= set(types(around))
    assert not {"Pow", "Mod", "Equal", "Cast"} & set(types(body))
    _, body = epoch(mlp(), ["W1"], LearningRateSGD(schedule="cosine"))
    assert types(body).count("Sin") == 1  # A vector has other bits.


def network(first, width=7):
    """A weight behind an operator that reads the rows first."""
    x, w = variable("x", "float32", ["N", width]), constant(np.ones((width, 1), np.float32) / 9, hint="w")
    return build([x], {"y": first(x) @ w})


FIRST = {
    "sum": lambda x: x * op.ReduceSum(x, [1]),
    "layer norm": lambda x: op.LayerNormalization(x, np.ones(7, np.float32)),
    "softmax": lambda x: op.Softmax(op.Reshape(x, [-1, 7]), axis=1),
    "exp": op.Exp,
    "product": lambda x: op.Reshape(x, [0, 7]) * 2,
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("batch", [1, 3, 5])
@pytest.mark.filterwarnings("ignore:The loss of a batch is divided by the weights of its rows")
def test_an_epoch_is_its_steps(first, batch, weighted):
    """Sums of onnxruntime depend on where in memory their numbers start."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(61, 7)).astype(np.float32), rng.normal(size=(61, 1)).astype(np.float32)
    weight = rng.uniform(0.1, 1, 61).astype(np.float32) if weighted else None
    one, all_ = (OrtGradientForwardBackwardOptimizer(network(FIRST[first]), ["w"], engine=e, batch_size=batch,
                                                     max_iter=3, random_state=0, learning_rate=1e-3).fit(X, y, weight)
                 for e in ("step", "epoch"))
    assert (type(one._engine), type(all_._engine)) == (StepEngine, EpochEngine)
    np.testing.assert_array_equal(all_.trained_coef_["w"], one.trained_coef_["w"])
    np.testing.assert_allclose(all_.train_losses_, one.train_losses_, rtol=1e-12)


@pytest.mark.parametrize(("first", "width", "ahead"), [
    ("product", 7, 2), ("exp", 7, 1), ("sum", 7, 1), ("sum", 16, 2),
])
def test_rows_are_gathered_ahead_where_that_changes_no_bit(first, width, ahead):
    around, body = epoch(network(FIRST[first], width), ["w"])
    assert (types(around).count("Gather"), types(body).count("Gather")) == (ahead, 2 - ahead)


@pytest.mark.parametrize("rate", ["Adam", "Nesterov"])
def test_features_that_are_no_longer_seen_leave_no_denormal_numbers(rate):
    """First moments stuck at some units in the last place after 800 steps, and each step took six times as long."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(8, 4)).astype(np.float32), rng.normal(size=(8, 1)).astype(np.float32)
    states, engines = [], ["step", "epoch", *(["agent"] if has_training() else [])]
    for engine in engines:
        o = OrtGradientForwardBackwardOptimizer(
            linear(), learning_rate=rate, engine=engine, batch_size=4, random_state=0)
        o.partial_fit(X, y)
        o.set_params(max_iter=460, warm_start=True).fit(X * [0, 0, 1, 1], y)
        assert o.engine_ == engine
        states.append([*o.get_state(), *o.get_state("optimizer")])
        for a in o.get_state("optimizer"):
            assert not ((a != 0) & (abs(a) < np.finfo(np.float32).tiny)).any()
        assert any((a[:2] == 0).all() for a in o.get_state("optimizer"))
    for a, b in zip(states[0], states[1], strict=True):
        np.testing.assert_array_equal(a, b)
