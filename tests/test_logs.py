"""The logger of the package: silent unless logging is configured, it reports compilations."""

import gc
import logging
import threading
from types import SimpleNamespace

import pytest

from ortpartial import logs
from ortpartial.logs import compiling, logger, seconds_compiling


def test_nothing_is_shown_by_itself():
    assert [type(h) for h in logger.handlers] == [logging.NullHandler]
    assert (logger.name, logger.level) == ("ortpartial", logging.NOTSET)


def test_long_compilations_are_news(caplog, monkeypatch):
    caplog.set_level(logging.DEBUG, "ortpartial")
    clock = iter([0.0, 0.25, 10.0, 13.5])
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    for _ in range(2):
        with compiling("the step for 3 rows"):
            pass
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ("DEBUG", "compiled the step for 3 rows in 0.25 s"), ("INFO", "compiled the step for 3 rows in 3.50 s")]


def test_a_thread_compiles_until_the_outermost_context_ends():
    me = threading.get_ident()
    with compiling("outside"):
        with compiling("inside"):
            pass
        assert seconds_compiling(me) > 0 == seconds_compiling(me + 1)
    assert seconds_compiling(me) == 0


def test_a_compilation_that_fails_has_ended(caplog):
    caplog.set_level(logging.DEBUG, "ortpartial")
    with pytest.raises(ValueError), compiling("a broken graph"):
        raise ValueError
    assert seconds_compiling(threading.get_ident()) == 0
    assert not caplog.records


def test_garbage_is_collected_after_a_compilation():
    """Also after one that fails, and only where it was before."""
    with compiling("a step"):
        with compiling("a session"):
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), compiling("a step"):
        _ = 1 / 0
    assert gc.isenabled()
    gc.disable()
    try:
        with compiling("a step"):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
