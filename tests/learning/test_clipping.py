"""Gradient clipping, beside that of torch, and where numbers are extreme."""

import numpy as np
import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from ortpartial.exceptions import SettingError
from ortpartial.graph import build, variable
from ortpartial.learning.clipping import GradientClipping, resolve_clipping
from ortpartial.testing import evaluate


def clip(clipping, *gradients):
    """The clipped gradients."""
    inputs = [variable(f"g{i}", g.dtype, g.shape) for i, g in enumerate(gradients)]
    outputs = {f"clipped{i}": g for i, g in enumerate(clipping(inputs))}
    found = evaluate(build(inputs, outputs), {f"g{i}": g for i, g in enumerate(gradients)})
    assert [a.dtype for a in found.values()] == [g.dtype for g in gradients]
    return list(found.values())


def clip_torch(function, limit, *gradients):
    parameters = [torch.nn.Parameter(torch.zeros(g.shape, dtype=torch.float64)) for g in gradients]
    for p, g in zip(parameters, gradients, strict=True):
        p.grad = torch.tensor(g, dtype=torch.float64)
    function(parameters, limit)
    return [p.grad.numpy() for p in parameters]


def gradients(dtype, scale=1.0):
    rng = np.random.default_rng(0)
    return [(scale * rng.normal(size=shape)).astype(dtype) for shape in [(3, 4), (4,), ()]]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
def test_as_in_torch(dtype, scale):
    given, tol = gradients(dtype, scale), np.finfo(dtype).eps
    for found, function, limit in ((GradientClipping(norm=0.7), clip_grad_norm_, 0.7),
                                   (GradientClipping(value=0.7), clip_grad_value_, 0.7)):
        for a, b in zip(clip(found, *given), clip_torch(function, limit, *given), strict=True):
            np.testing.assert_allclose(a, b, rtol=4 * tol)
    for a, g in zip(clip(GradientClipping(norm=0.7, per="weight"), *given), given, strict=True):
        np.testing.assert_allclose(a, clip_torch(clip_grad_norm_, 0.7, g)[0], rtol=4 * tol)


def test_values_before_the_norm():
    (found,) = clip(GradientClipping(norm=1.0, value=1.0), np.array([30.0, 1.0], np.float32))
    np.testing.assert_allclose(found, np.sqrt([0.5, 0.5]), rtol=1e-6)


@pytest.mark.parametrize("per", ["global", "weight"])
def test_the_norm_of_float16_does_not_overflow(per):
    given = np.full(10_000, 60_000, np.float16)  # a norm of six millions
    (found,) = clip(GradientClipping(norm=1.0, per=per), given)
    np.testing.assert_allclose(np.linalg.norm(found.astype(float)), 1, rtol=1e-3)


def test_weights_of_several_dtypes_have_one_norm():
    given = [np.array([3.0], np.float16), np.array([4.0], np.float64), np.array([0.0], np.float32)]
    assert [a.item() for a in clip(GradientClipping(norm=1.0), *given)] == pytest.approx([0.6, 0.8, 0.0], rel=1e-3)


@pytest.mark.parametrize("clipping", [GradientClipping(norm=1.0), GradientClipping(norm=1.0, per="weight"),
                                      GradientClipping(value=1.0)], ids=["global", "weight", "value"])
def test_zero_and_no_number(clipping):
    (zero,) = clip(clipping, np.zeros(3, np.float32))
    assert (zero == 0).all()
    # So that the training notices.
    (found,) = clip(clipping, np.array([np.nan, 1], np.float32))
    assert np.isnan(found[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "GradientClipping limits nothing; give it a norm or a value, as in GradientClipping"),
        ({"norm": 0}, "GradientClipping: norm is 0, a finite number more than 0 was expected"),
        ({"value": -1.0}, "GradientClipping: value is -1.0, a finite number more than 0"),
        ({"norm": 1.0, "per": "layer"}, "GradientClipping: per is 'global' or 'weight', not 'layer'"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(SettingError, match=message):
        GradientClipping(**settings)


def test_short_forms():
    assert resolve_clipping(None) is None
    assert resolve_clipping(2) == resolve_clipping(np.float32(2)) == GradientClipping(norm=2.0)
    for wrong in (0, True, "norm", float("nan"), GradientClipping):
        with pytest.raises(SettingError, match="gradient_clipping is None, a norm above 0 or a GradientClipping"):
            resolve_clipping(wrong)
