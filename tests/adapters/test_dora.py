"""DoRA: columns of a trained length, by the formula, and the form for deployment and back."""

import numpy as np
import pytest
from models import linear, stack_layers, weights_of
from onnx import numpy_helper

from ortpartial import add_dora
from ortpartial.adapters import dora
from ortpartial.adapters.products import find_products
from ortpartial.exceptions import SettingError
from ortpartial.graph import build, constant, op, variable
from ortpartial.model import read_adapter
from ortpartial.runtime import Session

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4)).astype(np.float32)


def test_first_lengths_are_those_of_the_frozen_columns():
    model = stack_layers("fc")
    (product,) = find_products(model.graph)
    weights = dora.draw(product, product.parts[0], 2, RNG)
    np.testing.assert_allclose(weights["magnitude"], np.linalg.norm(weights_of(model)["fc.weight"], axis=0), rtol=1e-6)


def test_the_formula():
    """y = m / ‖W + s A B‖ ∘ x (W + s A B) + b."""
    model = add_dora(linear(outputs=3), "*", rank=2, alpha=3, random_state=0)
    (target,) = read_adapter(model).targets
    drawn = {n: RNG.normal(size=weights_of(model)[n].shape).astype(np.float32) for n in target.weights.values()}
    for t in model.graph.initializer:
        if t.name in drawn:
            t.CopyFrom(numpy_helper.from_array(drawn[t.name], t.name))
    arrays = {role: drawn[n].astype(np.float64) for role, n in target.weights.items()}
    w = weights_of(model)["coef"] + 1.5 * arrays["lora_A"] @ arrays["lora_B"]
    expected = X @ (w * (arrays["magnitude"].ravel() / np.linalg.norm(w, axis=0))) + weights_of(model)["intercept"]
    np.testing.assert_allclose(Session(model).run({"x": X})["y"], expected, rtol=2e-5, atol=2e-5)


def test_deployment_and_back():
    model = add_dora(stack_layers("fc"), "fc", rank=2, random_state=0)
    (target,) = read_adapter(model).targets
    product = next(p for p in find_products(model.graph) if p.node_name == target.node)
    arrays = {role: RNG.normal(size=weights_of(model)[n].shape) for role, n in target.weights.items()}
    again = dora.restore(product, target, dora.deploy(product, target, arrays))
    assert again.keys() == arrays.keys()
    np.testing.assert_allclose(again["magnitude"], arrays["magnitude"])
    np.testing.assert_allclose(again["lora_B"], arrays["lora_B"] * target.scale)


def test_products_that_are_refused():
    x = variable("x", "float32", ["N", 4])
    scaled = build([x], [op.Gemm(x, constant(np.ones((4, 2), np.float32), hint="w"), alpha=2.0)])
    (product,) = find_products(scaled.graph)
    with pytest.raises(SettingError, match=r"DoRA is for MatMul, Gemm and MatMulNBits, and .* or has a factor"):
        dora.check(product)
