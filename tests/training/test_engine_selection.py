"""Which engine a training takes, with the reason, and settings that an engine does not support."""

import re

import pytest
from models import data, mlp, net

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import nn
from ortpartial.exceptions import SettingError
from ortpartial.native import StepCost, find_compiler
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
    ({"engine": "agent", "precision": "bfloat16"},
     "precision='bfloat16' trains with engine='native', 'step' or 'epoch', in one process, not engine='agent'."),
    ({"engine": "agent", "train_mode": True}, "train_mode=True trains with engine='step' or 'epoch', in one process"),
    ({"engine": "epoch", "checkpointing": "auto"}, "checkpointing trains with engine='step', not 'epoch'."),
    ({"checkpointing": "auto", "precision": "float16"}, "checkpointing trains in the dtype of the model, not with"),
    ({"engine": "fast"}, "engine='fast' is not known")])
def test_settings_that_do_not_go_together(settings, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        Optimizer(net(), **settings)


REFUSED = "precision='bfloat16' would only be slower than float32 here, as {}; leave it out, or ask for"


@pytest.mark.parametrize(("lacking", "reason"), [
    (("multiplies_bfloat16", lambda: False), "the processor has no AVX512-BF16"),
    (("find_compiler", lambda: None), "there is no C compiler that works")])
def test_bfloat16_is_refused_where_it_would_be_slower(lacking, reason, monkeypatch):
    monkeypatch.setattr(f"ortpartial.native.{lacking[0]}", lacking[1])
    with pytest.raises(SettingError, match=re.escape(REFUSED.format(reason))):
        Optimizer(mlp(), precision="bfloat16")
    with pytest.raises(SettingError, match=re.escape(REFUSED.format(reason))):
        nn.Linear(4, 1).compile(nn.placeholder(["N", 4]), precision="bfloat16")
    assert Optimizer(mlp(), precision="bfloat16", engine="epoch").engine_ == "epoch"


def test_many_steps_in_bfloat16_are_machine_code(monkeypatch):
    """Far fewer than of float32, as products take half the time."""
    monkeypatch.setattr("ortpartial.native.multiplies_bfloat16", lambda: True)
    source = Optimizer(mlp(), precision="bfloat16", batch_size=10)._engine.source
    cost = StepCost(nodes=300, flops=8 * 10**9, numbers=10**7, rows=8, length=300, products=60)
    assert source.rounds
    assert source.is_translatable
    assert cost.pays_off(1000, in_bfloat16=True)
    assert not cost.pays_off(1000)
    assert not cost.pays_off(10, in_bfloat16=True)
    optimizer = Optimizer(mlp(), precision="bfloat16", batch_size=10, max_iter=2)
    monkeypatch.setattr(StepCost, "pays_off", lambda self, steps, cores, in_bfloat16: in_bfloat16)
    assert optimizer.fit(*data(40)[:2]).engine_ == ("native" if find_compiler() else "epoch")
    assert "8 steps with products in bfloat16 take less time in machine code" in optimizer.engine_reason_


def test_forward_and_backward_apart():
    model = mlp()
    assert select_for_backward("epoch", model) == ("step", "forward and backward apart know no epoch")
    assert select_for_backward("step", model) == ("step", "asked for")
    name, reason = select_for_backward("auto", model)
    assert name == ("agent" if has_training() else "step")
    assert "onnxruntime-training is" in reason
