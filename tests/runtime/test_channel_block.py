"""The number of channels in a block: that of the processor, or None where such convolutions are missing or wrong."""

import numpy as np
import pytest

from ortpartial.runtime import channel_block as module


def test_a_block_is_a_power_of_two_of_channels():
    assert module.channel_block() in (8, 16, None)


@pytest.mark.parametrize("numbers", [[np.zeros((1, 1, 1, 1))], [np.zeros((1, 16, 1, 1)), np.zeros(3), np.ones(3)]])
def test_convolutions_that_are_missing_or_wrong_are_not_used(monkeypatch, numbers):
    results = iter(numbers)
    monkeypatch.setattr(module, "_run", lambda *_: next(results))
    assert module.channel_block.__wrapped__() is None


def test_a_runtime_that_knows_no_blocks(monkeypatch):
    def fail(*_):
        raise RuntimeError("ReorderInput is not a registered function/op")

    monkeypatch.setattr(module, "_run", fail)
    assert module.channel_block.__wrapped__() is None
