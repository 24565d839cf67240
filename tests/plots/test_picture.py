"""The picture of a graph: boxes with shares of trained numbers, edges with shapes, and frames."""

from models import mlp, stack_layers

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.plots.picture import compose


def titles(picture):
    return [box.title for box in picture.boxes]


def test_a_model():
    picture = compose(mlp(), None)
    assert picture.title == "trained: 49 of 49 numbers"
    assert titles(picture)[0] == "x"
    assert titles(picture)[-1] == "y"
    assert all(i < j for i, j in picture.edges)
    assert "N×8" in picture.edges.values()
    assert (picture.runs, picture.caption) == ((), "")


def test_an_optimizer_shows_its_training():
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), ["W1"], learning_rate="Adam", engine="step", random_state=0)
    picture = compose(optimizer, None)
    assert picture.title == "trained: 32 of 49 numbers"
    loss, gradient, update = picture.boxes[-3:]
    assert (loss.part, loss.lines[0]) == ("loss", "SquareLearningLoss")
    assert gradient.lines[0] == "by 1 weight, 32 numbers"
    assert update.lines[0] == "LearningRateAdam"
    assert picture.caption.startswith("Engine 'step': ")
    assert picture.runs


def test_what_is_frozen():
    picture = compose(OrtGradientForwardBackwardOptimizer(mlp(), ["W1"], random_state=0), None)
    styles = [box.style for box in picture.boxes if box.part == "model"]
    assert "frozen" in styles
    assert "partly" in styles
    assert any(line == "partly: 32 of 40" for box in picture.boxes for line in box.lines)


def test_repeated_blocks_have_one_frame():
    picture = compose(stack_layers(*[f"layers.{i}.fc" for i in range(5)]), None)
    ((boxes, label),) = picture.frames
    assert label.startswith("× 5")
    assert len(picture.boxes) < 7
    assert all(i < len(picture.boxes) for i in boxes)
