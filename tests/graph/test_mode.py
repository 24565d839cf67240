"""The mode of a thread: switched for a context, in this thread alone, and back after an error."""

import threading

import pytest

from ortpartial.graph.mode import MODE, deferring, switched


def test_switched_and_back():
    assert (MODE.is_on, MODE.is_deferred) == (False, False)
    with switched(is_on=True):
        with deferring():
            assert (MODE.is_on, MODE.is_deferred) == (True, True)
        assert (MODE.is_on, MODE.is_deferred) == (True, False)
    assert not MODE.is_on


def test_after_an_error():
    with pytest.raises(RuntimeError), switched(is_on=True):
        raise RuntimeError
    assert not MODE.is_on


def test_other_threads_are_not_switched():
    seen = []
    with switched(is_on=True):
        thread = threading.Thread(target=lambda: seen.append(MODE.is_on))
        thread.start()
        thread.join()
    assert seen == [False]
