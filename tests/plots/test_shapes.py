"""Sizes by the names of those that inputs leave open."""

import pytest

from ortpartial import build, constant, load, op, variable
from ortpartial.plots.shapes import describe_shape, name_sizes


def describe(function, *shape):
    x = variable("x", "float32", shape)
    model = load(build([x], {"y": function(x)}))
    return describe_shape(model.outputs["y"], name_sizes(model))


def reshape(*shape):
    return lambda x: op.Reshape(x, op.Concat(op.Shape(x, end=1), constant(list(shape)), axis=0))


@pytest.mark.parametrize(("function", "shape", "text"), [
    (op.Relu, ("N", 512), "batch × 512"), (op.Relu, (None, 512), "batch × 512"), (op.Relu, ("rows", 4), "rows × 4"),
    (op.Relu, (3, 4), "3 × 4"), (op.Relu, ("N", "length", 4), "batch × length × 4"),
    (reshape(2, 2), ("N", 4), "batch × 2 × 2"),
    (lambda x: op.Reshape(x, constant([-1, 4])), ("N", 5, 4), "5·batch × 4"),
    (lambda x: op.Reshape(x, constant([-1, 4])), ("N", "length", 4), "batch·length × 4"),
    (lambda x: op.Transpose(x, perm=[1, 0]), ("N", 4), "4 × batch"),
    (lambda x: op.Transpose(op.NonZero(x), perm=[1, 0]), ("N", 4), "")],
    ids=lambda part: "" if callable(part) else str(part))
def test_sizes(function, shape, text):
    assert describe(function, *shape) == text
