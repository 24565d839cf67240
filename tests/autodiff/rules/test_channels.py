"""Gradients of normalization by channel, and of activations with a body."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from table import NOTHING, assert_as_torch, real, rows, within

from ortpartial.autodiff.grad import grad
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.testing import check_gradient, evaluate

SHAPES = [(2, 4), (2, 4, 3), (2, 4, 3, 2), (1, 4, 2, 1, 3)]


def parameters(n):
    return [real(n, seed=1), real(n, seed=2)]


def batch_normalization(*args, **settings):
    return op.BatchNormalization(*args, n_outputs=1, **settings)[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_normalization(shape):
    def torch_f(x, scale, b, mean, var):
        scale, b, mean, var = (v.reshape(-1, *[1] * (x.ndim - 2)) for v in (scale, b, mean, var))
        return (x - mean) / torch.sqrt(var + 1e-3) * scale + b

    def f(*args):
        return batch_normalization(*args, epsilon=1e-3)

    args = [real(*shape), *parameters(4), real(4, seed=3), within(0.5, 2, 4)]
    check_gradient(f, args, directions=1, order=2 if len(shape) == 3 else 1)
    assert_as_torch(f, torch_f, args)


def trained(*args, outputs=(0, 1, 2)):
    y = op.BatchNormalization(*args, training_mode=1, momentum=0.7, epsilon=1e-2)
    return [y.node.outputs[i] for i in outputs]


@pytest.mark.parametrize("outputs", [(0,), (1,), (2,), (0, 1), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4), (2, 3, 2, 2)], ids=str)
def test_batch_normalization_by_the_statistics_of_the_batch(shape, outputs):
    args = [real(*shape), *parameters(3), real(3, seed=3), within(0.5, 2, 3)]
    order = 2 if len(shape) == 3 else 1
    check_gradient(lambda *x: trained(*x, outputs=outputs), args, directions=1, order=order)


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 2, 2)], ids=str)
def test_batch_normalization_in_training_as_torch(shape):
    # The running variance of torch is unbiased, that of ONNX is not; a variance has no gradient in torch, anyway.
    args = [real(*shape), *parameters(3)]
    mean, var = np.zeros(3), np.ones(3)
    assert_as_torch(lambda *x: trained(*x, constant(mean), constant(var), outputs=(0,)),
                    lambda x, scale, b: F.batch_norm(x, None, None, scale, b, True, 0.3, 1e-2), args)


@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_instance_normalization(shape):
    def f(*args):
        return op.InstanceNormalization(*args, epsilon=1e-2)

    args = [real(*shape), *parameters(4)]
    check_gradient(f, args, directions=1, order=2 if len(shape) == 3 else 1)
    assert_as_torch(f, lambda x, scale, b: F.instance_norm(x, weight=scale, bias=b, eps=1e-2), args)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_group_normalization(shape, groups):
    def f(*args):
        return op.GroupNormalization(*args, num_groups=groups, epsilon=1e-2)

    def g(x, scale, bias, dy):
        return grad(f(x, scale, bias), [x, scale, bias], [dy])

    args = [real(*shape), *parameters(4)]
    assert_as_torch(f, lambda x, scale, b: F.group_norm(x, groups, scale, b, 1e-2), args)
    # The operator itself is computed in float32 whatever its input, its gradient is not.
    check_gradient(g, [*args, real(*shape, seed=5)], directions=1, order=1)


@NOTHING
def test_group_normalization_of_no_images():
    shape = (0, 4, 3)
    given = [variable(n, "float32", s) for n, s in (("x", shape), ("scale", (4,)), ("bias", (4,)), ("dy", shape))]
    model = build(given, grad(op.GroupNormalization(*given[:3], num_groups=2), given[:3], given[3:]))
    found = evaluate(model, {v.hint: np.ones(v.shape, np.float32) for v in given}).values()
    assert [d.tolist() for d in found] == [[], [0] * 4, [0] * 4]


NEAR_ZERO = real(2, 3, 4)
ACTIVATIONS = rows(
    ("HardSwish", op.HardSwish, None, 3 * NEAR_ZERO),
    ("Mish", op.Mish, F.mish, NEAR_ZERO),
    ("Selu", op.Selu, None, NEAR_ZERO),
    ("Selu, other numbers", lambda x: op.Selu(x, alpha=1.5, gamma=2.0), None, NEAR_ZERO),
    ("ThresholdedRelu", lambda x: op.ThresholdedRelu(x, alpha=0.5), lambda x: F.threshold(x, 0.5, 0), NEAR_ZERO + 0.01),
)


@pytest.mark.parametrize(("f", "torch_f", "x"), ACTIVATIONS)
def test_activations(f, torch_f, x):
    check_gradient(f, [x], directions=1)
    if torch_f is not None:
        assert_as_torch(f, torch_f, [x])


@pytest.mark.parametrize("slope", [(1,), (4,), (3, 1), (2, 3, 4)], ids=str)
def test_prelu(slope):
    args = [real(2, 3, 4), real(*slope, seed=1)]
    check_gradient(op.PRelu, args, directions=1)
    assert_as_torch(op.PRelu, lambda x, s: torch.where(x > 0, x, x * s), args)


@pytest.mark.parametrize(("f", "torch_f"), rows(
    ("HardSwish", op.HardSwish, F.hardswish),
    ("Mish", op.Mish, F.mish),
    ("Selu", op.Selu, F.selu),
    ("PRelu", lambda x: op.PRelu(x, 0.25), lambda x: F.prelu(x, torch.tensor(0.25))),
))
def test_activations_far_from_zero_and_at_zero(f, torch_f):
    assert_as_torch(f, torch_f, [np.float32([-100, 0, 100])])


# Their numbers are float32 in the specification, so that float64 is no better.
SINGLE = rows(
    ("HardSwish", op.HardSwish, F.hardswish),
    ("Selu", op.Selu, F.selu),
)


@pytest.mark.parametrize(("f", "torch_f"), SINGLE)
def test_activations_in_float32(f, torch_f):
    x, dy = (real(3, 5, seed=i).astype(np.float32) for i in range(2))
    v = variable("x", "float32", x.shape)
    (dx,) = evaluate(build([v], grad(f(v), [v], [constant(dy)])), {"x": x}).values()
    t = torch.tensor(x, requires_grad=True)
    torch_f(t).backward(torch.tensor(dy))
    np.testing.assert_allclose(dx, t.grad.numpy(), rtol=1e-5, atol=1e-6)
