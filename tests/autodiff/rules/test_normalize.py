"""Gradients of normalization and Dropout."""

import numpy as np
import pytest
import torch
from table import NOTHING, OLD, REPEATED, assert_as_torch, real, rows

from ortpartial.autodiff.grad import grad
from ortpartial.exceptions import NoGradientError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.testing import check_gradient, evaluate


@pytest.mark.parametrize(
    ("shape", "axis"),
    rows(
        ("last axis", (2, 3), -1),
        ("first axis", (2, 3), 0),
        ("middle axis", (2, 3, 2), 1),
        ("vector", (4,), 0),
        ("empty", (0, 3), 1, NOTHING),
    ),
)
@pytest.mark.parametrize(
    ("f", "torch_f"), rows(("Softmax", op.Softmax, torch.softmax), ("LogSoftmax", op.LogSoftmax, torch.log_softmax))
)
def test_softmax(f, torch_f, shape, axis):
    check_gradient(lambda x: f(x, axis=axis), [2 * real(*shape)])
    assert_as_torch(lambda x: f(x, axis=axis), lambda x: torch_f(x, axis), [2 * real(*shape)])


@pytest.mark.parametrize("f", [op.Softmax, op.LogSoftmax])
def test_softmax_of_large_numbers(f):
    torch_f = torch.softmax if f is op.Softmax else torch.log_softmax
    assert_as_torch(f, lambda x: torch_f(x, -1), [np.array([[1e3, -1e3, 0.0], [1e3, 1e3, -1e3]])])


LAYERS = rows(
    ("last axis", (3, 5), -1, (5,), (5,)),
    ("without bias", (3, 5), -1, (5,), None),
    ("two axes", (2, 3, 4), 1, (3, 4), (3, 4)),
    ("all axes", (2, 3), 0, (2, 3), (2, 3)),
    ("scale and bias repeated", (2, 3, 4), 1, (4,), (3, 1), REPEATED),
    ("one number as scale", (2, 4), -1, (1,), (4,), REPEATED),
    ("empty batch", (0, 5), -1, (5,), (5,), NOTHING),
)


@pytest.mark.parametrize(("shape", "axis", "scale", "bias"), LAYERS)
def test_layer_normalization(shape, axis, scale, bias):
    args = [real(*shape), real(*scale, seed=1), *([] if bias is None else [real(*bias, seed=2)])]

    def torch_f(x, scale, bias=None):
        dims = list(range(axis % x.ndim, x.ndim))
        xn = (x - x.mean(dims, keepdim=True)) / torch.sqrt(x.var(dims, correction=0, keepdim=True) + 1e-3)
        return xn * scale + (0 if bias is None else bias)

    def f(*x):
        return op.LayerNormalization(*x, axis=axis, epsilon=1e-3)

    check_gradient(f, args, directions=1)
    if np.all(shape):
        assert_as_torch(f, torch_f, args)


def layer_outputs(x, scale):
    return op.LayerNormalization(x, scale, axis=1, n_outputs=3)


@pytest.mark.parametrize("outputs", [[1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]], ids=str)
def test_all_outputs_of_layer_normalization(outputs):
    # These outputs are float32 whatever the input, so differences would be noise.
    def f(x, scale):
        return [op.CastLike(layer_outputs(x, scale)[i], x) for i in outputs]

    def torch_f(x, scale):
        mean, r = x.mean(1, keepdim=True), 1 / torch.sqrt(x.var(1, correction=0, keepdim=True) + 1e-5)
        return [((x - mean) * r * scale, mean, r)[i] for i in outputs]

    assert_as_torch(f, torch_f, [real(3, 5), real(5, seed=1)])


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lp_normalization(p, axis):
    def f(x):
        return op.LpNormalization(x, axis=axis, p=p)

    check_gradient(f, [real(2, 3, 4)], directions=1)
    assert_as_torch(f, lambda x: torch.nn.functional.normalize(x, p, axis), [real(2, 3, 4)])


@pytest.mark.parametrize("p", [1, 2])
def test_a_norm_of_zero_has_no_gradient(p):
    x = variable("x", "float32", [2, 2])
    (dx,) = grad(op.LpNormalization(x, p=p) * [[1.0, 2.0], [3.0, -4.0]], [x])
    (found,) = evaluate(build([x], [dx]), {"x": np.array([[0, 0], [3, 4]], np.float32)}).values()
    assert np.array_equal(found[0], [0, 0])
    assert np.isfinite(found[1]).all()
    assert found[1].any()


@NOTHING
@pytest.mark.parametrize(
    ("f", "shape"),
    rows(
        ("LpNormalization", op.LpNormalization, (0, 3)),
        ("LRN", lambda x: op.LRN(x, size=3), (0, 3, 2, 2)),
    ),
)
def test_of_nothing(f, shape):
    check_gradient(f, [np.zeros(shape)], order=1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
def test_local_response_normalization(size):
    def f(x, **settings):
        return op.LRN(x, size=size, **settings)

    check_gradient(lambda x: f(x, alpha=0.3, beta=0.6, bias=1.5), [real(2, 6, 2, 3)], directions=1)
    if size % 2:  # of an even size, torch has one more before
        torch_f = torch.nn.LocalResponseNorm(size, 0.3, 0.6, 1.5)
        assert_as_torch(lambda x: f(x, alpha=0.3, beta=0.6, bias=1.5), torch_f, [real(2, 6, 2, 3)])


def test_dropout_at_inference_passes_on():
    x, dy = variable("x", "float32", ["N", 3]), variable("dy", "float32", ["N", 3])
    for y in (op.Dropout(x), op.Dropout(x, 0.3), op.Dropout(x, 0.3, constant(False))):
        assert grad(y, [x], [dy]) == [dy]


@pytest.mark.parametrize("ratio", [0.25, None])
@pytest.mark.parametrize("training", [constant(True), None], ids=["constant", "at run time"])
def test_dropout_in_training_scales_by_its_own_mask(training, ratio):
    x, mode = variable("x", "float32", [1000]), variable("mode", "bool", [])
    y = op.Dropout(x, ratio, mode if training is None else training)
    model = build([x, mode], {"y": y, "dx": grad(y, [x])[0]})
    found = evaluate(model, {"x": np.ones(1000, np.float32), "mode": np.array(True)})
    np.testing.assert_allclose(found["dx"], found["y"])
    assert 0 < (found["y"] == 0).sum() < 600
    if training is None:
        found = evaluate(model, {"x": np.ones(1000, np.float32), "mode": np.array(False)})
        assert found["dx"].tolist() == [1] * 1000


def test_the_ratio_of_dropout_is_refused():
    """A number that is drawn lies on one side of it: that a larger one drops more is no slope."""
    x, ratio = variable("x", "float32", [3]), variable("ratio", "float32", [])
    with pytest.raises(NoGradientError, match="Dropout> has no gradient by its ratio, which decides what is dropped;"):
        grad(op.Dropout(x, ratio, constant(True)), [ratio])
    assert grad(op.Dropout(x, ratio), [ratio])[0].array == 0


RMS = rows(
    ("last axis", (3, 5), -1, (5,)),
    ("two axes", (2, 3, 4), 1, (3, 4)),
    ("all axes", (2, 3), 0, (2, 3)),
    ("scale repeated", (2, 3, 4), 1, (4,)),
    ("empty batch", (0, 5), -1, (5,)),
)


@pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 has no RMSNormalization, which is of opset 23")
@pytest.mark.parametrize(("shape", "axis", "scale"), RMS)
def test_rms_normalization(shape, axis, scale):
    args = [real(*shape), real(*scale, seed=1)]

    def torch_f(x, scale):
        return x / torch.sqrt((x * x).mean(list(range(axis % x.ndim, x.ndim)), keepdim=True) + 1e-3) * scale

    check_gradient(lambda *x: op.RMSNormalization(*x, axis=axis, epsilon=1e-3), args, directions=1)
    assert_as_torch(lambda *x: op.RMSNormalization(*x, axis=axis, epsilon=1e-3), torch_f, args)


@pytest.mark.parametrize("axes", [[0, 2, 3], [1], [-1, 0]], ids=str)
def test_mean_variance_normalization(axes):
    def f(x):
        return op.MeanVarianceNormalization(x, axes=axes)

    # The operator is there in float32 alone, its gradient in float64, too.
    x, dy = real(2, 3, 2, 2), real(2, 3, 2, 2, seed=1)
    check_gradient(f, [x], dtype=np.float32, step=1e-2, rtol=5e-3, order=1)
    check_gradient(lambda x, dy: grad(f(x), [x], [dy]), [x, dy], directions=1, order=1)


def test_mean_variance_normalization_of_small_numbers():
    # What is added to the deviation counts where that is small.
    def torch_f(x):
        mean = x.mean(1, keepdim=True)
        return (x - mean) / (torch.sqrt((x * x).mean(1, keepdim=True) - mean * mean) + 1e-9)

    given = {"x": 1e-6 * real(2, 5), "dy": real(2, 5, seed=1)}
    x, dy = (variable(n, "float64", a.shape) for n, a in given.items())
    found = evaluate(build([x, dy], {"dx": grad(op.MeanVarianceNormalization(x, axes=[1]), [x], [dy])[0]}), given)
    t = torch.tensor(given["x"], requires_grad=True)
    torch_f(t).backward(torch.tensor(given["dy"]))
    np.testing.assert_allclose(found["dx"], t.grad.numpy(), rtol=1e-7)
