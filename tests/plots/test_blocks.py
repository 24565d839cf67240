"""Blocks of nodes, and their repetitions."""

from models import mlp

from ortpartial import build, constant, load, op, variable
from ortpartial.plots.blocks import Repeat, collapse, find_blocks


def blocks_of(model):
    model = load(model)
    weights = {n: v for n, v in model.initializers.items() if v.is_float}
    return find_blocks(model, weights)


def test_no_block_reads_a_later_one():
    for block_number, block in enumerate(blocks_of(mlp())):
        assert all(i < block_number for i in block.reads)


def test_shapes_are_no_connections():
    """Sizes that are computed belong to the block that reads them."""
    x, w = variable("x", "float32", ["N", 4]), constant([[1.0] * 2] * 2, hint="w")
    h = op.Reshape(x, op.Concat(op.Shape(x, end=1), constant([2, 2]), axis=0)) @ w
    first, *others = blocks_of(build([x], {"y": h}))
    assert first.path == ("x",)
    assert [list(b.reads) for b in others] == [[0], [1]]


def test_repeats():
    """Pairs that come three times, and no single block that comes twice."""
    x = h = variable("x", "float32", ["N", 3])
    for i in range(3):
        h = op.Tanh(h @ constant([[0.5] * 5] * 3, hint=f"a{i}")) @ constant([[0.5] * 3] * 5, hint=f"b{i}")
    assert collapse(blocks_of(build([x], {"y": h})), ()) == [Repeat(1, 2, 3)]
    assert collapse(blocks_of(mlp(features=1, hidden=1)), ()) == []
