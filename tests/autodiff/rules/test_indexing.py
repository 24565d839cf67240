"""Gradients of indexing operators."""

from itertools import product

import numpy as np
import pytest
import torch.nn.functional as F
from table import NOTHING, OLD, apart, assert_as_torch, real, rows

from ortpartial.autodiff.grad import grad
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.runtime.session import Session
from ortpartial.testing import check_gradient

I = np.array

NEW = pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 has no TensorScatter, which is of opset 24")


def at(f, **attributes):
    return lambda *args: f(*args, **attributes)


CASES = rows(
    ("Gather", op.Gather, [real(4, 3), I([0, 2])]),
    ("Gather the same twice", op.Gather, [real(4, 3), I([1, 1, 3, 1])]),
    ("Gather from the end", op.Gather, [real(4, 3), I([-1, 0, 3])]),
    ("Gather last axis", at(op.Gather, axis=-1), [real(2, 4), I([3, 3, 0])]),
    ("Gather middle axis, matrix of indices", at(op.Gather, axis=1), [real(2, 4, 3), I([[0, 1, 0], [3, 2, 3]])]),
    ("Gather matrix of indices", op.Gather, [real(5, 3), I([[0, 4], [4, 4], [1, 2]])]),
    ("Gather one", op.Gather, [real(4, 3), I(2)]),
    ("Gather one of the last axis", at(op.Gather, axis=1), [real(4, 3), I(-1)]),
    ("Gather of a vector", op.Gather, [real(4), I([2, 2])]),
    ("Gather int32", op.Gather, [real(4, 3), I([1, 1], np.int32)]),
    ("Gather nothing", op.Gather, [real(4, 3), np.zeros((0,), np.int64)], NOTHING),
    ("Gather no matrix", op.Gather, [real(4, 3), np.zeros((2, 0), np.int64)], NOTHING),
    ("Gather constant indices", lambda x: op.Gather(x, [0, 0, 2]), [real(4, 3)]),
    ("Gather two constant indices", lambda x: op.Gather(x, [2, 0], axis=1), [real(2, 3)]),
    ("Gather a constant matrix of one index", lambda x: op.Gather(x, [[1]], axis=1), [real(2, 3)]),
    ("Gather one constant index", lambda x: op.Gather(x, 1), [real(4, 3)]),
    ("Gather one constant index from the end", lambda x: op.Gather(x, [-1], axis=1), [real(2, 4, 3)]),
    ("Gather the only index", lambda x: op.Gather(x, 0, axis=1), [real(3, 1)]),
    ("GatherElements", op.GatherElements, [real(3, 3), I([[0, 1, 2], [0, 0, 0]])]),
    ("GatherElements last axis", at(op.GatherElements, axis=-1), [real(2, 3), I([[0, -1], [1, 1]])]),
    ("GatherND", op.GatherND, [real(2, 3), I([[0, 0], [1, 2], [1, 2]])]),
    ("GatherND rows", op.GatherND, [real(3, 2), I([[1], [1], [0]])]),
    ("GatherND batch", at(op.GatherND, batch_dims=1), [real(2, 3, 2), I([[1], [0]])]),
    ("Compress", at(op.Compress, axis=0), [real(3, 2), I([False, True, True])]),
    ("Compress all", op.Compress, [real(3, 2), I([False, True, True, False, True])]),
    ("TopK", lambda x: op.TopK(x, [2])[0], [apart(3, 4)]),
    ("TopK smallest, first axis", lambda x: op.TopK(x, [2], axis=0, largest=0)[0], [apart(3, 4)]),
    ("Unique", lambda x: op.Unique(x), [apart(3, 4)]),
    ("Unique axis", lambda x: op.Unique(x, axis=1), [apart(3, 4)]),
    ("Unique last axis, as it comes", lambda x: op.Unique(x, axis=-1, sorted=0), [apart(3, 2, 4)]),
    ("ScatterElements", op.ScatterElements, [real(3, 3), I([[1, 0, 2]]), real(1, 3)]),
    ("ScatterElements axis", at(op.ScatterElements, axis=1), [real(2, 4), I([[1, 3], [0, 2]]), real(2, 2)]),
    ("ScatterElements add", at(op.ScatterElements, reduction="add"), [real(3, 2), I([[1, 1], [1, 0]]), real(2, 2)]),
    ("ScatterElements mul", at(op.ScatterElements, reduction="mul"), [real(3, 2), I([[1, 1], [1, 0]]), real(2, 2)]),
    ("ScatterElements max", at(op.ScatterElements, reduction="max"),
     [apart(3, 2), I([[1, 1], [1, 0]]), apart(2, 2) + 0.05]),
    ("ScatterElements min", at(op.ScatterElements, reduction="min"),
     [apart(3, 2), I([[1, 1], [1, 0]]), apart(2, 2) + 0.05]),
    ("ScatterElements mul, zeros", at(op.ScatterElements, reduction="mul"),
     [real(3, 2), I([[1, 1], [1, 0], [2, 1]]), I([[0.0, 2.0], [1.5, 0.0], [0.0, 0.0]])]),
    ("ScatterND", op.ScatterND, [real(4, 2), I([[1], [3]]), real(2, 2)]),
    ("ScatterND elements", op.ScatterND, [real(2, 2), I([[1, 0], [0, 1]]), real(2)]),
    ("ScatterND add", at(op.ScatterND, reduction="add"), [real(4, 2), I([[1], [1]]), real(2, 2)]),
    ("ScatterND mul", at(op.ScatterND, reduction="mul"), [real(4, 2), I([[1], [1]]), real(2, 2)]),
    ("ScatterND max", at(op.ScatterND, reduction="max"), [apart(4, 2), I([[1], [1]]), apart(2, 2) + 0.05]),
    ("OneHot", lambda i, v: op.OneHot(i, 4, v), [I([0, 3, 3]), real(2)]),
    ("OneHot first axis", lambda i, v: op.OneHot(i, 4, v, axis=0), [I([[0, 3], [2, 1]]), real(2)]),
)

CASES += rows(
    ("TensorScatter", op.TensorScatter, [real(2, 1, 4, 3), real(2, 1, 2, 3), I([1, 0])], NEW),
    ("TensorScatter from the start", op.TensorScatter, [real(2, 4, 3), real(2, 2, 3)], NEW),
    ("TensorScatter axis", at(op.TensorScatter, axis=1), [real(2, 4, 2, 3), real(2, 2, 2, 3), I([2, 1])], NEW),
    ("TensorScatter circular", at(op.TensorScatter, mode="circular"),
     [real(2, 1, 4, 3), real(2, 1, 2, 3), I([3, 2])], NEW),
    ("MaxUnpool", at(op.MaxUnpool, kernel_shape=[2, 2], strides=[2, 2]),
     [real(1, 1, 2, 2), I([[[[5, 7], [13, 15]]]])]),
    ("MaxUnpool, a batch of three axes", at(op.MaxUnpool, kernel_shape=[2, 1, 2], strides=[2, 1, 1]),
     [real(2, 1, 1, 2, 1), I([0, 7, 9, 14]).reshape(2, 1, 1, 2, 1)]),
    ("Col2Im", lambda x: op.Col2Im(x, [5, 5], [1, 5]), [real(1, 5, 5)]),
    ("Col2Im, blocks that overlap", lambda x: op.Col2Im(x, [4, 4], [2, 3]), [real(2, 12, 6)]),
    ("Col2Im, strides", lambda x: op.Col2Im(x, [5, 5], [2, 2], strides=[2, 3]), [real(1, 8, 4)]),
    ("Col2Im, pads, strides and dilations",
     lambda x: op.Col2Im(x, [5, 4], [2, 2], strides=[1, 2], pads=[0, 1, 0, 1], dilations=[2, 1]), [real(2, 8, 9)]),
    ("Col2Im of one axis", lambda x: op.Col2Im(x, [6], [2], strides=[2]), [real(2, 6, 3)]),
    ("Col2Im of three axes", lambda x: op.Col2Im(x, [3, 3, 3], [2, 2, 2]), [real(1, 8, 8)]),
)


@pytest.mark.parametrize(("f", "args"), CASES)
def test_picks_and_places(f, args):
    check_gradient(f, args, directions=1)


@pytest.mark.parametrize(("axis", "x", "dy", "expected"), [
    (None, [2.0, 1.0, 2.0], [5.0, 7.0], [7.0, 5.0, 0.0]),
    (0, [[2.0, 1.0], [3.0, 0.0], [2.0, 1.0]], [[5.0, 6.0], [7.0, 8.0]], [[5.0, 6.0], [7.0, 8.0], [0.0, 0.0]]),
])
def test_of_equal_elements_the_first_one_has_the_gradient(axis, x, dy, expected):
    v = variable("x", "float32", I(x).shape)
    y = op.Unique(v, axis=axis)
    (dx,) = Session(build([v], grad(y, [v], [constant(I(dy, np.float32))]))).run({"x": I(x, np.float32)}).values()
    assert dx.tolist() == expected


# Reductions as torch calls them, and what is updated by what.
REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
UPDATED = [
    ("the same twice", apart(3, 2), apart(3, 2) + 0.05),
    ("ties", np.ones((3, 2)), np.ones((3, 2))),
    ("zeros", I([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), I([[0.0, 2.0], [1.5, 0.0], [0.0, 0.0]])),
]
TORCH = rows(
    ("Gather", op.Gather, lambda x, i: x[i], [real(4, 3), I([[1, 1], [3, 1]])]),
    ("Gather axis", at(op.Gather, axis=1), lambda x, i: x[:, i], [real(4, 3), I([2, 2, 0])]),
    # torch.unique has no gradient; of different numbers, it sorts them, and of rows it sorts their first column.
    ("Unique", lambda x: op.Unique(x), lambda x: x.flatten().sort()[0], [apart(3, 4)]),
    ("Unique rows", lambda x: op.Unique(x, axis=0), lambda x: x[x[:, 0].argsort()], [apart(4, 3)]),
    ("GatherElements", op.GatherElements, lambda x, i: x.gather(0, i), [real(3, 3), I([[0, 1, 2], [0, 0, 0]])]),
    ("ScatterElements", op.ScatterElements, lambda x, i, u: x.scatter(0, i, u),
     [real(3, 3), I([[1, 0, 2]]), real(1, 3)]),
    ("ScatterElements add", at(op.ScatterElements, reduction="add"), lambda x, i, u: x.scatter_add(0, i, u),
     [real(3, 2), I([[1, 1], [1, 0]]), real(2, 2)]),
    ("ScatterElements max, ties", at(op.ScatterElements, reduction="max"),
     lambda x, i, u: x.scatter_reduce(0, i, u, "amax"), [np.ones((3, 1)), I([[1], [1]]), np.ones((2, 1))]),
    *((f"ScatterElements {reduction}, {what}", at(op.ScatterElements, reduction=reduction),
       lambda x, i, u, as_torch=as_torch: x.scatter_reduce(0, i, u, as_torch), [x, I([[1, 1], [1, 0], [2, 1]]), u])
      for (reduction, as_torch), (what, x, u) in product(REDUCTIONS.items(), UPDATED)),
    *((f"ScatterND {reduction}, {what}", at(op.ScatterND, reduction=reduction),
       lambda x, i, u, as_torch=as_torch: x.scatter_reduce(0, i.expand(-1, 2), u, as_torch), [x, I([[1], [1], [0]]), u])
      for (reduction, as_torch), (what, x, u) in product(REDUCTIONS.items(), UPDATED)),
    ("TopK", lambda x: op.TopK(x, [2])[0], lambda x: x.topk(2)[0], [apart(3, 4)]),
    ("Col2Im", lambda x: op.Col2Im(x, [5, 4], [2, 2], strides=[1, 2], pads=[0, 1, 0, 1], dilations=[2, 1]),
     lambda x: F.fold(x, (5, 4), (2, 2), stride=(1, 2), padding=(0, 1), dilation=(2, 1)), [real(2, 8, 9)]),
    ("MaxUnpool", at(op.MaxUnpool, kernel_shape=[2, 2], strides=[2, 2]),
     lambda x, i: F.max_unpool2d(x, i, 2), [real(1, 1, 2, 2), I([[[[5, 7], [13, 15]]]])]),
)


@pytest.mark.parametrize(("f", "torch_f", "args"), TORCH)
def test_as_torch(f, torch_f, args):
    assert_as_torch(f, torch_f, args)


def test_unpooling_to_a_size_of_its_own():
    # onnxruntime and torch count places in the output, onnx's reference evaluator in what the kernel would give.
    def f(x):
        return op.MaxUnpool(x, constant(I([[[[6, 9], [16, 19]]]])), [1, 1, 5, 5], kernel_shape=[2, 2], strides=[2, 2])

    check_gradient(f, [real(1, 1, 2, 2)], dtype=np.float32, step=1, rtol=1e-5, order=1)


def test_col2im_of_sizes_known_at_run_time():
    args = [real(1, 12, 6), I([4, 4]), I([2, 3])]
    check_gradient(op.Col2Im, args, order=1, symbolic=False)


@pytest.mark.parametrize("f", [op.Gather, lambda x, i: op.GatherND(x, op.Unsqueeze(i, [1]))])
def test_threads_lose_nothing(f):
    # ScatterND of onnxruntime 1.19 to 1.31 loses additions to the same place when several threads make them.
    x, i = variable("x", "float32", [10, 4]), variable("i", "int64", ["N"])
    (dx,) = grad(f(x, i), [x])
    session = Session(build([x, i], [dx]), threads=2)
    index = np.arange(100_000) % 10
    (found,) = session.run({"x": np.zeros((10, 4), np.float32), "i": index}).values()
    assert found.tolist() == [[10_000] * 4] * 10
