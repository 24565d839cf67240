"""The weight that an adapter turns a frozen one into, by its formulas."""

from types import SimpleNamespace

import numpy as np
import pytest
from models import stack_layers

from ortpartial.adapters.changes import make_bias_change, make_change
from ortpartial.adapters.products import find_products

ALL, RNG = slice(0, 4), np.random.default_rng(0)
W, A, B, M = RNG.normal(size=(4, 4)), RNG.normal(size=(4, 2)), RNG.normal(size=(2, 4)), RNG.uniform(1, 2, 4)
(PRODUCT,) = find_products(stack_layers("fc").graph)


def change(rows=ALL, feedforward=False, start=0, **arrays):
    """Rows of `W` beside an adapter of these weights."""
    target = SimpleNamespace(weights={role: role for role in arrays}, start=start, stop=4, scale=0.5,
                             feedforward=feedforward)
    return make_change(PRODUCT, [target], arrays)(W[rows], rows)


def test_lora():
    np.testing.assert_allclose(change(lora_A=A, lora_B=B), W + 0.5 * (A @ B).T)


def test_dora_gives_each_row_its_length():
    rows = change(lora_A=A, lora_B=B, magnitude=M)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), M)
    np.testing.assert_allclose(rows * (np.linalg.norm(W + 0.5 * (A @ B).T, axis=1) / M)[:, None],
                               W + 0.5 * (A @ B).T)


@pytest.mark.parametrize("feedforward", [False, True])
def test_ia3_scales_outputs_or_in_feedforward_layers_inputs(feedforward):
    expected = W * M if feedforward else W * M[:, None]
    np.testing.assert_allclose(change(feedforward=feedforward, ia3_l=M), expected)


def test_rows_at_a_time_and_rows_of_another_target():
    """The same as all at once; rows before the target stay as they are."""
    whole = change(start=1, lora_A=A, lora_B=B[:, 1:])
    np.testing.assert_array_equal(whole[0], W[0])
    np.testing.assert_allclose(np.concatenate([change(slice(i, i + 2), start=1, lora_A=A, lora_B=B[:, 1:])
                                               for i in (0, 2)]), whole)


def test_ia3_alone_changes_a_bias():
    target = SimpleNamespace(weights={"ia3_l": "l"}, start=1, stop=3, feedforward=False)
    np.testing.assert_array_equal(make_bias_change([target], {"l": np.array([2.0, 3])}, 4), [1, 2, 3, 1])
    assert make_bias_change([target], {"l": np.ones(2)}, 4) is None
    target.weights = {"lora_A": "a"}
    assert make_bias_change([target], {"a": A}, 4) is None
