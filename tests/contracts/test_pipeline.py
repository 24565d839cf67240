"""Every engine, layer and session trains by the same rewritten graph of forward and backward."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.execution import call, epoch_engine, exchange, inplace_engine, step, step_engine
from ortpartial.execution.epoch_engine import EpochEngine
from ortpartial.execution.inplace_engine import InplaceEngine
from ortpartial.execution.step_engine import StepEngine
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.model.load import load
from ortpartial.torch.layer_function import make_layer_function
from ortpartial.training import SpecSource, data_parallel_engine
from ortpartial.training.data_parallel_engine import DataParallelEngine
from ortpartial.training.gradient_cut import GradientCut
from ortpartial.training_info import TrainingSession, session, to_training_info

WEIGHTS = ["w", "v", "scale", "bias"]
ROWS = 4


def attention():
    """Attention with two heads, an idle Dropout and LayerNormalization: each rewrite finds something to do."""
    rng, shapes = np.random.default_rng(0), [(8, 8), (8, 3), (8,), (8,)]
    x = variable("x", "float32", ["N", 5, 8])
    w, v, scale, bias = (constant(rng.normal(size=s).astype(np.float32), hint=n)
                         for n, s in zip(WEIGHTS, shapes, strict=True))
    h = op.Transpose(op.Reshape(x @ w, [0, 5, 2, 4]), perm=[0, 2, 1, 3])
    h = op.Softmax(h @ op.Transpose(h, perm=[0, 1, 3, 2]), axis=-1) @ h
    h = op.Dropout(op.Reshape(op.Transpose(h, perm=[0, 2, 1, 3]), [0, 5, 8]), 0.5)
    return build([x], {"y": op.LayerNormalization(h, scale, bias, axis=-1) @ v})


def data():
    rng = np.random.default_rng(1)
    return {"x": rng.normal(size=(ROWS, 5, 8)).astype(np.float32),
            "y_target": rng.normal(size=(ROWS, 5, 3)).astype(np.float32)}


@pytest.fixture
def opened(monkeypatch):
    """The graphs of the sessions that are opened, in order."""
    graphs = []

    class Recorder(session.Session):
        def __init__(self, model, *args, **kwargs):
            graphs.append(model)
            super().__init__(model, *args, **kwargs)

    for module in (call, step, step_engine, epoch_engine, inplace_engine, data_parallel_engine):
        monkeypatch.setattr(module, "Session", Recorder)
    alone = SimpleNamespace(rank=0, size=1, bytes_sent=0, all_reduce=lambda sums: None)
    monkeypatch.setattr(exchange, "ProcessGroup", lambda: alone)
    return graphs


def operators(graph):
    """How many nodes of each operator a graph has, in its Scan if there is one."""
    for node in graph.node:
        if node.op_type == "Scan":
            return operators(next(a.g for a in node.attribute if a.name == "body"))
    return Counter(node.op_type for node in graph.node)


def trained(kind, opened):
    """Operators of the gradient's graph of an engine that trains for one epoch."""
    engine = kind(SpecSource(OrtGradientForwardBackwardOptimizer(attention(), WEIGHTS)._spec))
    engine.start(data())
    opened.clear()
    engine.epoch(np.arange(ROWS), ROWS)
    return operators(opened[0].graph)


def stored(style, opened):
    """Operators of the step that a session of a stored training runs."""
    stored_session = TrainingSession(to_training_info(OrtGradientForwardBackwardOptimizer(attention(), WEIGHTS), style))
    opened.clear()
    stored_session.step(data())
    return operators(opened[0].graph)


def layer():
    """Operators of forward and backward of a layer."""
    function = make_layer_function(load(attention()), WEIGHTS, sizes={"x": (ROWS, 5, 8)}).function
    cut = GradientCut(function, WEIGHTS)
    return operators(function.graph(cut.saved).graph) + operators(cut.gradient[0].graph().graph)


def test_all_paths_run_the_same_forward_and_backward(opened):
    """What differs is the end of a step: the update, the sums of several processes, what is computed once more."""
    step = trained(StepEngine, opened)
    assert step["Dropout"] == 0, "the idle Dropout is removed before differentiation"
    assert step["Gemm"] == 3, "products of matrices take their fast form after differentiation"

    def kept(found, *kinds):
        return {kind: found[kind] for kind in kinds}

    kinds = ("Dropout", "Flatten", "Gemm", "LayerNormalization", "Softmax")
    moved = (*kinds, "MatMul", "Reshape", "Transpose")
    for other in (trained(EpochEngine, opened), stored("standard", opened), stored("lowered", opened)):
        assert kept(other, *moved) == kept(step, *moved)
    for other in (trained(InplaceEngine, opened), layer()):
        assert kept(other, *kinds, "MatMul") == kept(step, *kinds, "MatMul")
    assert kept(trained(DataParallelEngine, opened), *kinds, "Transpose") == kept(step, *kinds, "Transpose")
