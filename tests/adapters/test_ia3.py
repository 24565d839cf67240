"""IA3: factors that begin at 1, of the outputs or the inputs of products."""

import numpy as np
import pytest
from models import stack_layers
from onnx import numpy_helper

from ortpartial import add_ia3
from ortpartial.adapters.ia3 import draw
from ortpartial.adapters.products import Part, find_products
from ortpartial.model import read_adapter
from ortpartial.runtime import Session

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)


@pytest.mark.parametrize(("on_input", "size"), [(False, 2), (True, 4)])
def test_first_factors_are_ones(on_input, size):
    (product,) = find_products(stack_layers("fc").graph)
    (factors,) = draw(product, Part("fc", 1, 3), on_input).values()
    np.testing.assert_array_equal(factors, np.ones(size))


@pytest.mark.parametrize("feedforward", [[], ["fc"]])
def test_the_formula(feedforward):
    """y = l ∘ (W(x) + b), and in a feedforward layer y = W(l ∘ x) + b."""
    base = stack_layers("fc")
    model = add_ia3(base, ["fc"], feedforward=feedforward)
    (name,) = read_adapter(model).weights
    factors = np.float32([1, 2, 3, 4])
    for t in model.graph.initializer:
        if t.name == name:
            t.CopyFrom(numpy_helper.from_array(factors.reshape(t.dims), name))
    w, b = (numpy_helper.to_array(t) for t in base.graph.initializer)
    expected = (X * factors) @ w + b if feedforward else (X @ w + b) * factors
    np.testing.assert_allclose(Session(model).run({"x": X})["y"], expected, rtol=1e-5, atol=1e-6)
