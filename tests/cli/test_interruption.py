"""Ctrl-C ends a training once, and never the work after it."""

import signal
import threading

import pytest

from ortpartial.cli.interruption import Interruption

pytestmark = pytest.mark.usefixtures("ctrl_c")


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_it_is_raised_once():
    with Interruption() as interruption:
        with pytest.raises(KeyboardInterrupt):
            interrupt()
        assert (interruption.is_requested, interruption.is_raised) == (True, False)
        interrupt()  # what comes after it goes on


def test_it_is_noted_where_it_is_not_raised():
    with Interruption() as interruption:
        interruption.is_raised = False
        interrupt()
        assert interruption.is_requested


def test_the_former_handler_is_back():
    former = signal.getsignal(signal.SIGINT)
    with Interruption():
        assert signal.getsignal(signal.SIGINT) is not former
    assert signal.getsignal(signal.SIGINT) is former


def test_an_ignored_signal_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interruption() as interruption:
        interrupt()
        assert not interruption.is_requested


def test_another_thread_leaves_the_handler_alone():
    former, seen = signal.getsignal(signal.SIGINT), []

    def run():
        with Interruption():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [former]
