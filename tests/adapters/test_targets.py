"""Patterns and the products that they stand for."""

import re

import pytest
from models import stack_layers

from ortpartial.adapters.products import find_products
from ortpartial.adapters.targets import choose_parts, list_patterns
from ortpartial.exceptions import SettingError

PRODUCTS = find_products(stack_layers("h.0.attn.q_proj", "h.0.mlp.up", "h.1.attn.q_proj").graph)


@pytest.mark.parametrize(("targets", "expected"), [
    ("linear", [0, 1, 2]), ("attention", [0, 2]), ("q_proj", [0, 2]), ("h.1.*", [2]), ("*up*", [1]),
    (["h.0.mlp.up", "h.1.attn.q_proj"], [1, 2]), ("h.0.mlp.up.weight", [1])])
def test_patterns(targets, expected):
    assert [product.name for product, _ in choose_parts(PRODUCTS, targets)] == [PRODUCTS[i].name for i in expected]


def test_one_or_several():
    assert list_patterns("linear") == ["linear"]
    assert list_patterns(("a", "b")) == ["a", "b"]


@pytest.mark.parametrize(("targets", "message"), [
    ("*q_prj*", "The target '*q_prj*' matches nothing; did you mean '*q_proj*'"),
    ("xyz", "The target 'xyz' matches none of 'h.0.attn.q_proj', 'h.0.mlp.up', 'h.1.attn.q_proj'."),
    ([], "targets is empty; name at least one pattern"),
    ([3], "targets has 3, where a name, a string, was expected."),
])
def test_errors(targets, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        choose_parts(PRODUCTS, targets)


def test_a_model_without_products():
    with pytest.raises(SettingError, match=r"The model has no product for an adapter to be added to: no MatMul, Gemm,"):
        choose_parts([], "linear")
