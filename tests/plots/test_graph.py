"""The picture of a graph, for models of several kinds."""

import re

import pytest
from exports import exported
from matplotlib import pyplot
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from models import mlp, net, two_in_two_out
from onnx import ModelProto

from ortpartial import (
    ElasticLearningPenalty,
    OrtGradientForwardBackwardOptimizer,
    add_lora,
    build,
    constant,
    load,
    op,
    variable,
)
from ortpartial.exceptions import ModelError
from ortpartial.execution.epoch_engine import EpochEngine
from ortpartial.execution.inplace_engine import InplaceEngine
from ortpartial.execution.step_engine import StepEngine
from ortpartial.plots import plot_graph
from ortpartial.training import SpecSource
from ortpartial.training.data_parallel_engine import DataParallelEngine


def texts(ax):
    return [line for text in ax.texts for line in text.get_text().splitlines()]


def titles(ax):
    return [text.get_text() for text in ax.texts if text.get_fontweight() == "bold"]


def arrows(ax):
    return [patch for patch in ax.patches if isinstance(patch, FancyArrowPatch)]


def test_model():
    """Layers with their weights, which are trained by default."""
    ax = plot_graph(mlp())
    assert titles(ax) == ["x", "MatMul · Add · Tanh", "MatMul · Add", "y"]
    assert {"W1, b1", "trained: 40", "W2, b2", "trained: 9", "float32   batch × 4", "batch × 8"} <= set(texts(ax))
    assert len(arrows(ax)) == 3
    assert ax.get_title(loc="left") == "49 of 49 parameters trained"


def test_trained_and_frozen():
    ax = plot_graph(OrtGradientForwardBackwardOptimizer(mlp(), ["b2"], learning_rate="Adam"))
    assert {"frozen: 40", "partly trained: 1 of 9", "by 1 weight, 1 parameters", "LearningRateAdam, states: m, v",
            "SquareLearningLoss"} <= set(texts(ax))
    assert len({patch.get_facecolor() for patch in ax.patches if isinstance(patch, FancyBboxPatch)}) == 4


@pytest.mark.parametrize(("engine", "runs"), [
    ("step", ["step:"]),
    ("epoch", ["epoch:"]),
    pytest.param("agent", ["forward_backward:", "learning_loss:", "forward_backward:", "learning_rate:"],
                 marks=pytest.mark.agent),
])
def test_engines(engine, runs):
    """What is drawn of an engine are graphs that it has."""
    penalty = ElasticLearningPenalty(l2=0.1)
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), engine=engine, learning_penalty=penalty)
    lines = texts(plot_graph(optimizer))
    assert [line for line in lines if re.fullmatch(r"\w+:", line)] == runs
    assert {run.rstrip(":") for run in runs} <= optimizer.save_onnx_graph(bytes).keys()
    assert "+ ElasticLearningPenalty" in lines
    assert any(line.startswith(f"Engine '{engine}': ") for line in lines)


@pytest.mark.parametrize("kind", [StepEngine, EpochEngine, InplaceEngine, DataParallelEngine])
def test_graphs_of_engines(kind):
    """Every engine says which of its graphs compute which parts of a step, and each part is computed once."""
    engine = kind(SpecSource(OrtGradientForwardBackwardOptimizer(mlp()).training.spec))
    assert {graph for graph, _ in engine.runs} <= engine.graphs().keys()
    assert [part for _, parts in engine.runs for part in parts] == ["model", "loss", "gradient", "update"]


def height(ax):
    """Of the file, in pixels, as `save_figure` writes it."""
    return 120 * ax.figure.get_figheight()


@pytest.mark.parametrize(("name", "dynamo"), [
    ("bert", False), *(pytest.param(name, True, marks=pytest.mark.slow) for name in (
        "bert", "llama", "gpt2", "t5 encoder", "vit", "resnet", "distilbert"))])
def test_exports_fit_a_page(name, dynamo):
    """Modules stand in the order in which they run, repeated layers once; an adapter makes no more of them."""
    model = next(part for part in exported(name, dynamo, sizes=("N",)) if isinstance(part, ModelProto))
    ax = plot_graph(model)
    assert height(ax) <= 1200
    assert not any("?" in text for text in texts(ax))
    if name == "bert":
        module, frame, *modules = titles(ax)
        assert (module, frame) == ("encoder.layer.0 … 1", "× 2")
        parts = [title for title in modules if title.startswith(("attention", "intermediate", "output"))]
        assert [part.partition(".")[0] for part in parts] == sorted(part.partition(".")[0] for part in parts)
        assert not any("layer.1" in title for title in titles(ax))
        assert titles(plot_graph(model, depth=2)) == ["x", "net.embeddings", "net.encoder", "y"]
    targets = "*convolution" if name == "resnet" else "linear"
    adapted = plot_graph(add_lora(model, targets, rank=2, random_state=0))
    assert height(adapted) <= 1200
    assert any(text.startswith("adapter: ") for text in texts(adapted))
    assert len(titles(adapted)) <= len(titles(ax)) + 1


def test_settings_of_the_update():
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), freeze="W1", gradient_clipping=1.0, accumulate=4,
                                                    averaging="ema")
    assert {"partly trained: 8 of 40", "every 4 batches", "GradientClipping", "ExponentialAverage"} <= set(
        texts(plot_graph(optimizer)))


def test_layers_that_differ():
    """A layer that alone is trained is drawn beside the others, which are one."""
    x = h = variable("x", "float32", ["N", 3])
    for i in range(5):
        h = op.Tanh(h @ constant([[0.5] * 3] * 3, hint=f"w{i}"))
    ax = plot_graph(OrtGradientForwardBackwardOptimizer(build([x], {"y": h}), ["w4"]))
    assert titles(ax)[:5] == ["× 4", "x", "MatMul · Tanh", "MatMul · Tanh", "y"]


def test_convolutions():
    assert titles(plot_graph(net())) == ["x", "Conv · BatchNormalization · Relu", "MatMul · BatchNormalization", "y"]


def test_branches():
    """Inputs stand above what reads them, and no two boxes overlap."""
    ax = plot_graph(two_in_two_out())
    boxes = [p.get_bbox() for p in ax.patches if isinstance(p, FancyBboxPatch)]
    assert len(boxes) == 10
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert len(arrows(ax)) == 8


def test_notebook():
    """A picture is SVG, and its figure is closed, so that a notebook does not show it twice."""
    svg = plot_graph(load(mlp()))._repr_svg_()
    assert svg.startswith("<?xml")
    assert pyplot.get_fignums() == []
    assert not hasattr(plot_graph(mlp(), ax=pyplot.subplots()[1]), "_repr_svg_")


def test_strings():
    x = variable("x", object, ["N", 3])
    assert "string   batch × 3" in texts(plot_graph(build([x], {"y": op.Identity(x)})))


def test_small_axes():
    """Texts are as small as the boxes."""
    _, axes = pyplot.subplots(2, 2, figsize=(6, 6))
    small = {text.get_text(): text.get_fontsize() for text in plot_graph(mlp(), ax=axes[0, 0]).texts}
    large = {text.get_text(): text.get_fontsize() for text in plot_graph(mlp()).texts}
    assert all(0.3 * large[n] < size < 0.7 * large[n] for n, size in small.items())


def test_no_model():
    with pytest.raises(ModelError, match="A model is a ModelProto, bytes or a path, not int"):
        plot_graph(3)
