"""Convolutions in blocks of channels and as products: the same numbers, and which are written so."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numbered_cases import check_case
from table import rows

from ortpartial.autodiff.grad import grad
from ortpartial.execution.epoch_engine import EpochEngine
from ortpartial.execution.step_engine import StepEngine
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.learning.losses import resolve_loss
from ortpartial.learning.optimizers import resolve_rate
from ortpartial.learning.penalties import resolve_penalty
from ortpartial.limits import Limits, limits
from ortpartial.model.load import load
from ortpartial.rewrites.convolutions import write_convolutions
from ortpartial.runtime.channel_block import channel_block
from ortpartial.runtime.session import Session
from ortpartial.training import SpecSource, TrainingSpec

needs_blocks = pytest.mark.skipif(channel_block() is None, reason="onnxruntime convolves no blocks of channels here")


def real(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def gradients(x, w, settings):
    """A convolution with its gradients: the model, which has them as y, dx, dw and db, and the inputs."""
    arrays = {"x": real(*x), "w": real(*w, seed=1), "b": real(w[0], seed=2)}
    values = [variable(n, "float32", a.shape) for n, a in arrays.items()]
    y = op.Conv(*values, **settings)
    arrays["dy"] = real(*y.shape, seed=3)
    dy = variable("dy", "float32", y.shape)
    return build([*values, dy], [y, *grad(y, values, [dy])]), arrays


def expected(arrays, settings):
    """The same by torch in float64."""
    x, w, b, dy = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays.values())
    pads = settings.get("pads", [0] * 4)
    padded = F.pad(x, [pads[1], pads[3], pads[0], pads[2]])
    y = F.conv2d(padded, w, b, settings.get("strides", 1), 0, settings.get("dilations", 1))
    return [v.detach().numpy() for v in (y, *torch.autograd.grad(y, [x, w, b], dy))]


def op_types(model):
    return [f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in model.graph.node]


# Images, kernels, attributes, and how many of the three convolutions are written in blocks of 8 or 16 channels.
LAYERS = rows(
    ("whole blocks", (32, 16, 12, 12), (32, 16, 3, 3), {"pads": [1] * 4}, 3),
    ("several blocks of each", (32, 32, 8, 8), (48, 32, 3, 3), {}, 3),
    ("blocks that are not full", (28, 30, 11, 9), (45, 30, 3, 3), {"pads": [1, 0, 2, 1]}, 3),
    ("fewer channels than a block", (32, 3, 24, 24), (16, 3, 5, 5), {"pads": [2] * 4}, 2),
    ("strides and dilations", (16, 16, 23, 21), (16, 16, 3, 3), {"strides": [2, 1], "dilations": [1, 2]}, 2),
    ("gray images", (28, 1, 20, 20), (5, 1, 5, 5), {"pads": [2, 1, 0, 2]}, 1),
    ("a kernel of one row", (32, 32, 9, 30), (16, 32, 1, 4), {}, 3),
)


@needs_blocks
@pytest.mark.parametrize(("x", "w", "settings", "count"), LAYERS)
def test_blocks_of_channels_compute_the_same(x, w, settings, count):
    model, arrays = gradients(x, w, settings)
    written = write_convolutions(model, channel_block())
    assert op_types(written).count("com.microsoft.nchwc.Conv") == count or limits() != Limits()
    for actual, right in zip(Session(written).run(arrays).values(), expected(arrays, settings), strict=True):
        np.testing.assert_allclose(actual, right, rtol=1e-5, atol=1e-5 * abs(right).max())


def test_images_and_kernels_of_a_gradient_are_laid_out_once():
    model, _ = gradients((32, 16, 12, 12), (32, 16, 3, 3), {})
    turned = [list(a.ints) for n in write_convolutions(model, 16).graph.node if n.op_type == "Transpose"
              for a in n.attribute]
    assert turned.count([1, 0, 2, 3]) == 1  # of the gradient itself


@pytest.mark.usual_limits
def test_without_blocks_the_gradient_of_small_kernels_is_one_product_for_all_images():
    model, arrays = gradients((6, 4, 9, 9), (5, 4, 3, 3), {"pads": [1] * 4})
    written = write_convolutions(model)
    assert op_types(written).count("Slice") == 9
    assert [op_types(written).count(n) for n in ("Conv", "ConvTranspose", "Gemm")] == [1, 1, 1]
    for actual, right in zip(Session(written).run(arrays).values(), expected(arrays, {"pads": [1] * 4}), strict=True):
        np.testing.assert_allclose(actual, right, rtol=1e-5, atol=1e-5)


def test_columns_are_those_of_the_image_however_many_kernels_there_are():
    model, _ = gradients((8, 1, 64, 64), (32, 1, 2, 2), {})
    assert op_types(write_convolutions(model)).count("Slice") == 4


X, W = variable("x", "float32", [4, 32, 18, 18]), variable("w", "float32", [32, 32, 3, 3])
OTHERS = rows(
    ("constant weights", op.Conv(X, constant(real(32, 32, 3, 3)))),
    ("groups", op.Conv(X, variable("w", "float32", [32, 16, 3, 3]), group=2)),
    ("few multiplications", op.Conv(variable("x", "float32", [1, 32, 5, 5]), W)),
    ("few channels of the output", op.Conv(X, variable("w", "float32", [5, 32, 3, 3]))),
    ("float64", op.Conv(variable("x", "float64", [4, 32, 18, 18]), variable("w", "float64", [32, 32, 3, 3]))),
    ("sizes that are not known", op.Conv(variable("x", "float32", ["N", 32, 18, 18]), W)),
    ("one axis", op.Conv(variable("x", "float32", [4, 32, 999]), variable("w", "float32", [32, 32, 3]))),
    ("strides of a gradient", op.ConvTranspose(X, W, strides=[2, 2])),
    ("pads beyond the kernel", op.ConvTranspose(X, W, pads=[3, 3, 3, 3])),
)


NUMBERED = {"write_convolutions 1": op.Conv(X, W), "write_convolutions 2": op.ConvTranspose(X, W)}


@pytest.mark.parametrize("case", NUMBERED)
def test_numbered_case(case):
    model = build([X, W], {"y": NUMBERED[case]})
    assert check_case(case, lambda: write_convolutions(model, 16)) is not model


@pytest.mark.usual_limits
@pytest.mark.parametrize("y", OTHERS)
def test_other_convolutions_stay(y):
    model = build([v for v in y.node.inputs if v.array is None], {"y": y})
    assert write_convolutions(model, 16) is model


@needs_blocks
def test_a_training_in_blocks_equals_torch_and_is_the_same_in_all_engines():
    x = variable("X", "float32", ["N", 3, 16, 16])
    shapes = [(16, 3, 5, 5), (32, 16, 3, 3), (128, 3)]
    w = [constant(0.1 * real(*s, seed=i), hint=f"w{i}") for i, s in enumerate(shapes)]
    y = op.MaxPool(op.Relu(op.Conv(x, w[0])), kernel_shape=[2, 2], strides=[2, 2])
    y = op.MaxPool(op.Relu(op.Conv(y, w[1])), kernel_shape=[2, 2], strides=[2, 2])
    model = load(build([x], {"y": op.Flatten(y) @ w[2]}), variables=["w0", "w1", "w2"])
    images, t = real(32, 3, 16, 16, seed=20), real(32, 3, seed=21)
    spec = TrainingSpec(model, ("w0", "w1", "w2"), {"y": resolve_loss("square_error")}, resolve_penalty(None),
                        resolve_rate("SGD"))
    trained = []
    for kind in (StepEngine, EpochEngine):
        engine = kind(SpecSource(spec))
        engine.start({"X": images, "y_target": t})
        for _ in range(3):
            engine.epoch(np.arange(32), 16)
        trained.append([engine.get(n) for n in spec.weights])
    ws = [torch.tensor(v.array, dtype=torch.float64, requires_grad=True) for v in w]
    rate = torch.optim.SGD(ws, lr=resolve_rate("SGD").eta0)
    for i in [0, 16] * 3:
        h = F.max_pool2d(F.relu(F.conv2d(torch.tensor(images[i : i + 16], dtype=torch.float64), ws[0])), 2)
        h = F.max_pool2d(F.relu(F.conv2d(h, ws[1])), 2)
        rate.zero_grad()
        F.mse_loss(h.flatten(1) @ ws[2], torch.tensor(t[i : i + 16], dtype=torch.float64)).backward()
        rate.step()
    for step, epoch, right in zip(*trained, ws, strict=True):
        np.testing.assert_array_equal(step, epoch)
        np.testing.assert_allclose(step, right.detach(), rtol=1e-5, atol=1e-6)
