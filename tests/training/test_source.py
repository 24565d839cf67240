"""The source of a training's steps: its state, its steps for any and for given shapes, and states that start anew."""

import numpy as np
import pytest
from models import mlp

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.training.source import SpecSource, spec_of


@pytest.fixture
def source():
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), learning_rate="Adam", averaging="ema", random_state=0)
    return SpecSource(optimizer.training.spec)


def test_its_state(source):
    assert set(source.first) == {"W1", "b1", "W2", "b2"}
    assert source.zeros["W1_m"] == ((4, 8), np.dtype(np.float32))
    assert source.averages["W1"] == "W1_average"
    assert {"W1", "W1_v", "W1_average"} <= source.names_of_state
    assert source.count_trained() == 49


def test_steps(source):
    assert source.compose().batch_size == "N"
    fixed = source.for_rows(6)
    step = fixed.compose()
    assert step.batch_size == 6
    assert step.state["W1"] == "W1_new"
    assert list(step.rows) == ["x", "y_target"]
    assert "sample_weight" in source.for_shapes({"x": (6, 4)}).compose(True).rows


def test_a_step_of_vectors(source):
    """Small tensors are one input."""
    flat = source.compose(flat=True)
    assert set(source.vectors) <= flat.state.keys()
    assert len(flat.inputs) <= len(source.compose().inputs)


def test_a_new_optimizer_starts_with_zeros(source):
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), learning_rate="Adam", averaging="ema", random_state=0)
    assert list(source.find_stale(SpecSource(optimizer.training.spec))) == []
    assert spec_of(source) is source.spec
