"""Modules of PEFT: its orientation of weights, and modules that several products compute."""

import numpy as np
import pytest
from models import stack_layers

from ortpartial.adapters.peft_modules import PeftModule, distribute
from ortpartial.adapters.products import Part, find_products
from ortpartial.exceptions import ModelError

RNG = np.random.default_rng(0)
Q, K = find_products(stack_layers("q", "k").graph)
A, B = RNG.normal(size=(2, 4)), RNG.normal(size=(8, 2))
PLACES = [(Q, Part("q", 0, 4)), (K, Part("k", 0, 4))]


def test_rank_and_what_the_parts_share():
    module = PeftModule("fc", arrays={"lora_A": A, "lora_B": B})
    assert module.rank == 2
    assert module.is_shared("lora_A")
    assert not module.is_shared("lora_B")
    assert PeftModule("fc", feedforward=True).is_shared("ia3_l")
    assert PeftModule("fc").rank == 0


def test_a_fused_module_is_distributed():
    """A is that of each part, transposed; of B each has its rows."""
    (_, _, first), (_, _, second) = distribute(PeftModule("qk", arrays={"lora_A": A, "lora_B": B}), PLACES)
    np.testing.assert_array_equal(first["lora_A"], A.T)
    np.testing.assert_array_equal(second["lora_A"], A.T)
    np.testing.assert_array_equal(np.concatenate([first["lora_B"], second["lora_B"]], axis=1), B.T)


def test_shapes_of_another_base():
    module = PeftModule("qk", arrays={"lora_A": A, "lora_B": B[:7]})
    with pytest.raises(ModelError, match=r"lora_B of 'qk' has shape \(7, 2\), and the model's 'q' takes shape"):
        list(distribute(module, PLACES))
