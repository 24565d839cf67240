"""Gradients of data movement."""

import numpy as np
import pytest
import torch
from table import NOTHING, assert_as_torch, real, rows

from ortpartial.autodiff.grad import grad
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.testing import check_gradient, evaluate


def concat(axis):
    return lambda *x: op.Concat(*x, axis=axis)


def slices(starts, ends, axes=None, steps=None):
    return lambda x: op.Slice(x, starts, ends, axes, steps)


CASES = rows(
    ("Reshape", lambda x: op.Reshape(x, [3, 2]), [real(2, 3)]),
    ("Reshape 0 and -1", lambda x: op.Reshape(x, [0, -1]), [real(2, 3, 2)]),
    ("Reshape nothing", lambda x: op.Reshape(x, [3, 0], allowzero=1), [real(0, 3)]),
    ("Reshape to a scalar", lambda x: op.Reshape(x, constant([], np.int64)), [real(1, 1)]),
    ("Reshape at run time", op.Reshape, [real(2, 3), np.array([3, -1])]),
    ("Flatten", op.Flatten, [real(2, 3, 2)]),
    ("Flatten all", lambda x: op.Flatten(x, axis=0), [real(2, 3, 2)]),
    ("Flatten last", lambda x: op.Flatten(x, axis=-1), [real(2, 3, 2)]),
    ("Squeeze", lambda x: op.Squeeze(x, [1, -1]), [real(2, 1, 3, 1)]),
    ("Squeeze at run time", op.Squeeze, [real(2, 1, 3), np.array([1])]),
    ("Unsqueeze", lambda x: op.Unsqueeze(x, [0, -1]), [real(2, 3)]),
    ("Unsqueeze at run time", op.Unsqueeze, [real(2, 3), np.array([1])]),
    ("Transpose", op.Transpose, [real(2, 3, 4)]),
    ("Transpose perm", lambda x: op.Transpose(x, perm=[2, 0, 1]), [real(2, 3, 4)]),
    ("Transpose scalar", op.Transpose, [real()]),
    ("Expand", lambda x: op.Expand(x, [4, 2, 3]), [real(2, 1)]),
    ("Expand with ones", lambda x: op.Expand(x, [1, 3]), [real(2, 3)]),
    ("Expand at run time", op.Expand, [real(2, 1), np.array([2, 2, 3])]),
    ("Concat", concat(0), [real(2, 3), real(1, 3), real(3, 3)]),
    ("Concat last", concat(-1), [real(2, 3), real(2, 1)]),
    ("Concat one", concat(0), [real(2, 3)]),
    ("Concat nothing", concat(0), [real(2, 3), real(0, 3)]),
    ("Concat twice the same", lambda x: op.Concat(x, x, axis=1), [real(2, 3)]),
    ("Split", lambda x: op.Split(x, [1, 3], axis=1, n_outputs=2), [real(2, 4)]),
    ("Split evenly", lambda x: op.Split(x, num_outputs=2), [real(4, 2)]),
    ("Split unevenly", lambda x: op.Split(x, num_outputs=2), [real(5, 2)]),
    ("Split, one part used", lambda x: op.Split(x, [1, 3], axis=1, n_outputs=2)[1], [real(2, 4)]),
    ("Slice", slices([1], [3], [0]), [real(4, 3)]),
    ("Slice between Transposes",
     lambda x: op.Transpose(op.Slice(op.Transpose(x, perm=[0, 3, 1, 2]), [1, 0], [3, 2], [-2, 3]), perm=[0, 2, 3, 1]),
     [real(1, 4, 3, 2)]),
    ("Slice along axes of run time", lambda x, a: op.Slice(x, [1, 0], [3, 2], a), [real(4, 3), np.array([-2, 1])]),
    ("Slice two axes", slices([1, 0], [3, 2], [0, 1]), [real(4, 3)]),
    ("Slice without axes", slices([1, 0], [3, 2]), [real(4, 3)]),
    ("Slice from the end", slices([-3], [-1], [-1]), [real(2, 4)]),
    ("Slice beyond the end", slices([1], [1000], [1]), [real(2, 4)]),
    ("Slice before the beginning", slices([-1000], [2], [1]), [real(2, 4)]),
    ("Slice nothing", slices([3], [1], [1]), [real(2, 4)]),
    ("Slice behind the end", slices([7], [9], [1]), [real(2, 4)]),
    ("Slice steps of one", slices([1], [3], [0], [1]), [real(4, 3)]),
    ("Slice steps of two", slices([0], [5], [1], [2]), [real(2, 5)]),
    ("Slice steps of nothing", slices([0], [3], [0], [2]), [real(3, 0)], NOTHING),
    ("Slice backwards", slices([-1], [-1000], [1], [-1]), [real(2, 4)]),
    ("Slice backwards by two", slices([3], [0], [1], [-2]), [real(2, 5)]),
    ("Slice at run time", op.Slice, [real(4, 3), np.array([-3]), np.array([9]), np.array([0])]),
    ("Slice int32", op.Slice, [real(4, 3), *(np.array([v], np.int32) for v in (1, 3, 0))]),
    ("Slice at run time, steps", op.Slice, [real(4, 3), *(np.array([v]) for v in (0, 4, 0, 2))]),
    ("Pad", lambda x: op.Pad(x, [1, 0, 0, 2]), [real(2, 3)]),
    ("Pad axes", lambda x: op.Pad(x, [1, 2], None, [1]), [real(2, 3)]),
    ("Pad a number", lambda x, c: op.Pad(x, [1, 0, 0, 2], c), [real(2, 3), real()]),
    ("Pad crops", lambda x: op.Pad(x, [-1, 0, 1, -1]), [real(3, 3)]),
    ("Pad crops, a number", lambda x, c: op.Pad(x, [-1, 0, 1, -1], c), [real(3, 3), real()]),
    ("Pad at run time", op.Pad, [real(2, 3), np.array([1, 0, 0, 2])]),
    ("Pad edge", lambda x: op.Pad(x, [1, 0, 0, 2], mode="edge"), [real(2, 3)]),
    ("Pad reflect", lambda x: op.Pad(x, [1, 0, 0, 2], mode="reflect"), [real(2, 3)]),
    ("Pad wrap", lambda x: op.Pad(x, [1, 0, 0, 2], mode="wrap"), [real(2, 3)]),
    ("Tile", lambda x: op.Tile(x, [2, 3]), [real(2, 3)]),
    ("Tile nothing", lambda x: op.Tile(x, [2, 3]), [real(0, 3)], NOTHING),
    ("Tile at run time", op.Tile, [real(2, 3), np.array([2, 1])]),
    ("Range", lambda a, d: op.Range(a, 5.0, d), [real() / 3, np.array(0.7)]),
    ("Range down", op.Range, [np.array(v) for v in (3.3, -1.1, -0.7)]),
    ("Range of nothing", lambda a, d: op.Range(a, -2.0, d), [real() / 3, np.array(0.7)], NOTHING),
    ("Trilu", op.Trilu, [real(3, 4)]),
    ("Trilu lower, shifted", lambda x: op.Trilu(x, 1, upper=0), [real(3, 4)]),
    ("DepthToSpace", lambda x: op.DepthToSpace(x, blocksize=2), [real(1, 8, 2, 3)]),
    ("DepthToSpace CRD", lambda x: op.DepthToSpace(x, blocksize=2, mode="CRD"), [real(1, 8, 2, 3)]),
    ("DepthToSpace CRD of nothing", lambda x: op.DepthToSpace(x, blocksize=2, mode="CRD"), [real(1, 8, 0, 3)], NOTHING),
    ("DepthToSpace CRD of three", lambda x: op.DepthToSpace(x, blocksize=3, mode="CRD"), [real(1, 18, 1, 2)]),
    ("SpaceToDepth", lambda x: op.SpaceToDepth(x, blocksize=2), [real(1, 2, 4, 6)]),
    ("ReverseSequence", lambda x: op.ReverseSequence(x, [1, 3], batch_axis=1, time_axis=0), [real(3, 2)]),
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("f", "args"), CASES)
def test_moves(f, args):
    check_gradient(f, args, directions=1)


TORCH = rows(
    ("Transpose", lambda x: op.Transpose(x, perm=[2, 0, 1]), lambda x: x.permute(2, 0, 1), [real(2, 3, 4)]),
    ("Expand", lambda x: op.Expand(x, [4, 2, 3]), lambda x: x.expand(4, 2, 3), [real(2, 1)]),
    ("Range", lambda a, d: op.Range(a, 5.0, d) ** 2, lambda a, d: (a + d * torch.arange(7)) ** 2,
     [np.array(0.3), np.array(0.7)]),
    ("Concat", concat(1), lambda *x: torch.cat(x, 1), [real(2, 3), real(2, 1)]),
    ("Slice", slices([1], [3], [0]), lambda x: x[1:3], [real(4, 3)]),
    ("Slice steps", slices([0], [5], [1], [2]), lambda x: x[:, 0:5:2], [real(2, 5)]),
    ("Tile", lambda x: op.Tile(x, [2, 3]), lambda x: x.tile(2, 3), [real(2, 3)]),
    ("Pad", lambda x: op.Pad(x, [1, 0, 0, 2]), lambda x: torch.nn.functional.pad(x, (0, 2, 1, 0)), [real(2, 3)]),
    ("DepthToSpace", lambda x: op.DepthToSpace(x, blocksize=2, mode="CRD"),
     lambda x: torch.nn.functional.pixel_shuffle(x, 2), [real(1, 8, 2, 3)]),
    ("Split", lambda x: op.Split(x, [1, 3], axis=1, n_outputs=2), lambda x: x.split([1, 3], 1), [real(2, 4)]),
)


@pytest.mark.parametrize(("f", "torch_f", "args"), TORCH)
def test_as_torch(f, torch_f, args):
    assert_as_torch(f, torch_f, args)


@NOTHING
@pytest.mark.parametrize("f", [op.Flatten, lambda x: op.Squeeze(op.Unsqueeze(x, [1])), lambda x: op.Reshape(x, [-1])])
def test_an_empty_batch_goes_back_to_its_shape(f):
    x = variable("x", "float32", ["N", 2, 3])
    (dx,) = grad(op.ReduceSum(f(x), keepdims=0), [x])
    (found,) = evaluate(build([x], [dx]), {"x": np.zeros((0, 2, 3), np.float32)}).values()
    assert found.shape == (0, 2, 3)


def test_the_shape_of_a_batch_need_not_be_computed():
    x, dy = variable("x", "float32", ["N", 2, 3]), variable("dy", "float32", ["N", 6])
    model = build([dy], grad(op.Flatten(x), [x], [dy]))
    assert [node.op_type for node in model.graph.node] == ["Reshape"]


@pytest.mark.parametrize("op_type", ["Shape", "Size"])
def test_sizes_have_no_gradient(op_type):
    x = variable("x", "float32", ["N"])
    n = op.Cast(getattr(op, op_type)(x), to=1)
    (dx,) = grad(op.ReduceSum(n * n, keepdims=0), [x])
    (found,) = evaluate(build([x], [dx]), {"x": np.ones(3, np.float32)}).values()
    assert found.tolist() == [0, 0, 0]
