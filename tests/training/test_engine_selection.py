"""Which engine a training takes, with the reason, and settings that an engine does not support."""

import re

import pytest
from models import mlp, net

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import SettingError
from ortpartial.runtime import has_training
from ortpartial.training.engine_selection import select_for_backward


@pytest.mark.parametrize(("settings", "name"), [
    ({}, "epoch"), ({"engine": "step"}, "step"), ({"checkpointing": "auto"}, "step"),
    ({"precision": "float16"}, "epoch")])
def test_engines(settings, name):
    optimizer = Optimizer(mlp(), **settings)
    assert optimizer.engine_ == name
    assert optimizer.engine_reason_


def test_memory_counts():
    reason = Optimizer(mlp(), checkpointing="auto").engine_reason_
    assert reason == "memory counts, so weights are overwritten where they are"


@pytest.mark.parametrize(("settings", "message"), [
    ({"engine": "native", "precision": "float16"}, "precision='float16' trains with engine='step' or 'epoch', not"),
    ({"engine": "agent", "train_mode": True}, "train_mode=True trains with engine='step' or 'epoch', in one process"),
    ({"engine": "epoch", "checkpointing": "auto"}, "checkpointing trains with engine='step', not 'epoch'."),
    ({"checkpointing": "auto", "precision": "float16"}, "checkpointing trains in the dtype of the model, not with"),
    ({"engine": "fast"}, "engine='fast' is not known")])
def test_settings_that_do_not_go_together(settings, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        Optimizer(net(), **settings)


def test_forward_and_backward_apart():
    model = mlp()
    assert select_for_backward("epoch", model) == ("step", "forward and backward apart know no epoch")
    assert select_for_backward("step", model) == ("step", "asked for")
    name, reason = select_for_backward("auto", model)
    assert name == ("agent" if has_training() else "step")
    assert "onnxruntime-training is" in reason
