"""The picture of a graph: boxes with shares of trained numbers, edges with shapes, and frames."""

import re

import numpy as np
import pytest
from models import mlp, net, stack_layers

from ortpartial import OrtGradientForwardBackwardOptimizer, add_ia3, add_lora, build, constant, load, nn, op, variable
from ortpartial.exceptions import SettingError
from ortpartial.plots.picture import compose


def titles(picture):
    return [box.title for box in picture.boxes]


def test_a_model():
    picture = compose(mlp())
    assert picture.title == "49 of 49 parameters trained"
    assert titles(picture)[0] == "x"
    assert titles(picture)[-1] == "y"
    assert all(i < j for i, j in picture.edges)
    assert "batch × 8" in picture.edges.values()
    assert (picture.runs, picture.caption) == ((), "")


def test_an_optimizer_shows_its_training():
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), ["W1"], learning_rate="Adam", engine="step", random_state=0)
    picture = compose(optimizer)
    assert picture.title == "32 of 49 parameters trained"
    loss, gradient, update = picture.boxes[-3:]
    assert (loss.part, loss.lines[0]) == ("loss", "SquareLearningLoss")
    assert gradient.lines[0] == "by 1 weight, 32 parameters"
    assert update.lines[0] == "LearningRateAdam, states: m, v"
    assert picture.caption.startswith("Engine 'step': ")
    assert picture.runs


def test_what_is_frozen():
    picture = compose(OrtGradientForwardBackwardOptimizer(mlp(), ["W1"], random_state=0))
    styles = [box.style for box in picture.boxes if box.part == "model"]
    assert "frozen" in styles
    assert "partly" in styles
    assert any(line == "partly trained: 32 of 40" for box in picture.boxes for line in box.lines)


def test_repeated_blocks_have_one_frame():
    picture = compose(stack_layers(*[f"layers.{i}.fc" for i in range(5)]))
    ((boxes, label),) = picture.frames
    assert label == ("layers.0 … 4", "× 5")
    assert titles(picture) == ["x", "fc", "y"]
    assert len(picture.boxes) < 7
    assert all(i < len(picture.boxes) for i in boxes)


def encoder(layers):
    parts = [f"encoder.layer.{i}.{part}" for i in range(layers) for part in ("query", "out")]
    return stack_layers("embed", *parts, "head")


def module():
    """A module of `nn`, of which one part is frozen."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model.compile(nn.placeholder(["N", 4]), random_state=0)
    model[0].weight.requires_grad = False
    return model


def deep():
    """Layers that all differ, without modules."""
    x = h = variable("x", "float32", ["N", 30])
    for i in range(29):
        h = op.Tanh(h @ constant(np.full((30 - i, 29 - i), 0.1, np.float32), hint=f"w{i}"))
    return build([x], {"y": h})


SOURCES = {
    "network": mlp, "convolutions": net, "deep": deep,
    "encoder": lambda: encoder(12),
    "adapter": lambda: add_lora(encoder(12), rank=2, random_state=0),
    "ia3": lambda: add_ia3(encoder(3), "linear"),
    "optimizer": lambda: OrtGradientForwardBackwardOptimizer(
        add_lora(encoder(6), rank=2, random_state=0), "adapter", learning_rate="AdamW", accumulate=2),
    "module": module,
}


def count_parameters(picture):
    """By what is said of them, the parameters of all boxes, with their copies."""
    copies = {i: int(label[1].removeprefix("× ")) for boxes, label in picture.frames for i in boxes}
    counts = {"trained": 0, "all": 0}
    for i, box in enumerate(picture.boxes):
        for line in [*box.lines, box.adapter] * (box.part == "model"):
            if match := re.fullmatch(r"(trained|frozen|adapter|partly trained): ([\d,]+)(?: of ([\d,]+))?", line):
                count, total = (int((text or match[2]).replace(",", "")) for text in match.groups()[1:])
                counts["all"] += total * copies.get(i, 1)
                counts["trained"] += count * copies.get(i, 1) * (match[1] != "frozen")
    return counts


@pytest.mark.parametrize(("kind", "depth"), [
    pytest.param(kind, depth, marks=[pytest.mark.slow] * (depth in (1, 3) or kind == "ia3"))
    for kind in SOURCES for depth in (None, 1, 3, "nodes")])
def test_every_parameter_stands_in_one_box(kind, depth):
    """Whatever the boxes are: those of the boxes, with their copies, are as many as the title says."""
    picture = compose(SOURCES[kind](), depth, lambda picture, _: len(picture.boxes) < 12)
    counts = count_parameters(picture)
    assert picture.title == f"{counts['trained']:,} of {counts['all']:,} parameters trained"
    assert all(i < j for i, j in picture.edges)
    if depth is None:
        assert len(picture.boxes) < 12


def test_an_adapter_belongs_to_its_modules():
    picture = compose(SOURCES["adapter"](), None, lambda picture, _: len(picture.boxes) < 8)
    ((boxes, label),) = picture.frames
    assert label == ("encoder.layer.0 … 11", "× 12")
    assert titles(picture) == ["x", "embed", "query", "out", "head", "y"]
    assert [(picture.boxes[i].style, picture.boxes[i].adapter) for i in boxes] == [("frozen", "adapter: 16")] * 2
    assert not any("lora" in line for box in picture.boxes for line in box.lines)


def test_every_node_is_drawn_on_request():
    model = load(mlp())
    assert [box.title for box in compose(model, "nodes").boxes] == ["x", "MatMul", "Add", "Tanh", "MatMul", "Add", "y"]
    shapes = variable("x", "float32", ["N", 4])
    shaped = build([shapes], {"y": op.Reshape(shapes, op.Concat(op.Shape(shapes, end=1), constant([2, 2]), axis=0))})
    assert titles(compose(shaped, "nodes")) == ["x", "Shape", "Concat", "Reshape", "y"]
    assert titles(compose(shaped)) == ["x", "Reshape", "y"]


@pytest.mark.parametrize("depth", [0, -1, True, 1.5, "node"])
def test_depth(depth):
    with pytest.raises(SettingError, match=r"depth is a number of levels from 1 on, or 'nodes' for every node, not "):
        compose(mlp(), depth)
