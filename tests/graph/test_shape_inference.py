"""Repairs of shape inference: the shapes that onnx leaves out or gets wrong."""

import numpy as np
import pytest
import torch
from table import real, rows

from ortpartial import build, gradient_model
from ortpartial.graph import constant, op, variable
from ortpartial.testing import evaluate


def x(*shape):
    return variable("x", "float32", shape)


def shape(n):
    return variable("shape", "int64", [n])


ONES = constant(np.ones(4, np.float32))


@pytest.mark.parametrize(
    ("y", "expected"),
    rows(
        ("GroupNormalization", op.GroupNormalization(x("N", 4, "H"), ONES, ONES, num_groups=2), ("N", 4, "H")),
        ("MeanVarianceNormalization", op.MeanVarianceNormalization(x("N", 4, "H", 3)), ("N", 4, "H", 3)),
        ("Conv", op.Conv(x("N", "C", "H"), variable("w", "float32", ["M", "C", "k"])), (None,) * 3),
        ("ConvTranspose", op.ConvTranspose(x("N", "C", "H"), variable("w", "float32", ["C", "M", "k"])), (None,) * 3),
        ("MaxUnpool", op.MaxUnpool(x(1, 1, 2, 2), constant(np.zeros((1, 1, 2, 2), np.int64)), shape(4),
                                   kernel_shape=[2, 2]), (None,) * 4),
        ("ReduceSum", op.ReduceSum(x("N", 3), shape("n")), (None,) * 2),
        ("ReduceSum away", op.ReduceSum(x("N", 3), shape("n"), keepdims=0), None),
        ("ReduceMax", op.ReduceMax(x("N", "C", 3), shape("n")), (None,) * 3),
        ("DeformConv", op.DeformConv(x("N", "C", "H", "W"), variable("w", "float32", ["M", "C", "k", "l"]),
                                     x("N", "O", "P", "Q")), (None,) * 4),
        ("of unknown rank", op.MeanVarianceNormalization(variable("x", "float32", None)), None),
        ("Attention", op.Attention(*(x("N", "S", "E"),) * 3, q_num_heads=2, kv_num_heads=2), ("N", "S", None)),
        ("Attention, scores", op.Attention(*(x("N", 2, "S", 4),) * 3).node.outputs[3], (None,) * 4),
        ("Attention of known sizes", op.Attention(*(x(1, 2, 3, 4),) * 3).node.outputs[3], (1, 2, 3, 3)),
        ("Attention of nothing", op.Attention(*(x(0, 2, 3, 4),) * 3), (0, 2, 3, 4)),
    ),
)
def test_shapes(y, expected):
    assert y.shape == expected


def test_a_stored_gradient_of_symbolic_sizes_is_differentiated_again():
    image, w, dy = real(2, 3, 4, 5), real(3, 2, 3, 3), real(2, 2, 9, 11)
    x, v = (variable(n, "float64", [f"{n}{i}" for i in range(4)]) for n in "xw")
    first = gradient_model(build([x, v], {"y": op.ConvTranspose(x, v, strides=[2, 2])}), ["x", "w"])
    second = gradient_model(first, ["x", "w", "y_grad"], ["x_grad", "w_grad"], suffix="_two", cotangents="ones")
    found = evaluate(second, {"x": image, "w": w, "y_grad": dy})
    t = [torch.tensor(a, requires_grad=True) for a in (image, w, dy)]
    y = torch.nn.functional.conv_transpose2d(t[0], t[1], stride=2)
    once = torch.autograd.grad(y, t[:2], t[2], create_graph=True)
    for a, b in zip(found.values(), torch.autograd.grad(sum(g.sum() for g in once), t), strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-9)


@pytest.mark.parametrize(("shape", "sizes", "expected"), [
    (["N", "T", 64], [0, -1, 16], ("N", "4*T", 16)),
    (["N", "4*T", 16], [0, -1, 64], ("N", "T", 64)),
    (["N", "4*T", 16], [0, -1, 32], ("N", "2*T", 32)),
    (["T", 3, 4], [-1], ("12*T",)),
    (["T", 3], [-1, 2], (None, 2)),  # No whole number of times.
    (["N", "T", 4], [-1, 4], (None, 4)),
    (["N", None, 4], [0, -1, 2], ("N", None, 2)),
    (["N", "a*b", 4], [0, -1, 2], ("N", None, 2)),
    ([2, 3, 4], [-1, 4], (6, 4)),
])
def test_a_size_that_reshape_finds_has_a_name(shape, sizes, expected):
    assert op.Reshape(variable("x", "float32", shape), sizes).shape == expected
