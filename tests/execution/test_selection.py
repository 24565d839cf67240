"""The choice of an engine: by its name, by the device, and by the number of steps."""

import pytest
from trainings import linear_engine

from ortpartial.exceptions import SettingError
from ortpartial.execution.selection import select_for_device, select_for_fit, select_for_length


def test_names():
    assert [select_for_fit(n)[0].name for n in ("auto", "epoch", "step")] == ["epoch", "epoch", "step"]
    assert select_for_fit("step")[1] == "asked for"
    with pytest.raises(SettingError, match="engine='fast' is not known; leave it at 'auto', which takes the fastest"):
        select_for_fit("fast")


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr("ortpartial.native.find_compiler", lambda: None)
    engine, reason = select_for_fit("native")
    assert engine.name == "epoch"
    assert reason == "there is no C compiler that works, which engine='native' needs"


def test_devices():
    assert select_for_device("auto", "cpu")[0].name == "epoch"
    with pytest.raises(SettingError, match="engine='fast' is not known"):
        select_for_device("fast", "cpu")


def test_an_engine_that_was_asked_for_stays():
    engine = linear_engine()
    engine.reason = "asked for"
    assert select_for_length(engine, 10, 10**9) == (type(engine), "asked for")
