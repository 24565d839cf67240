"""Turns: one thread at a time, nothing shared with copies, and new locks in a child process."""

import copy
import os
import pickle
import threading

import pytest

from ortpartial.runtime.fair_lock import FairLock


def hold(turn, held, end):
    """A thread that has its turn until the end."""

    def run():
        with turn.lock:
            held.set()
            end.wait(10)

    thread = threading.Thread(target=run)
    thread.start()
    assert held.wait(10)
    return thread


@pytest.fixture
def taken():
    """A turn that another thread has."""
    turn, end = FairLock(), threading.Event()
    thread = hold(turn, threading.Event(), end)
    yield turn
    end.set()
    thread.join()


def test_one_thread_has_it_and_may_enter_again(taken):
    assert not taken.lock.acquire(blocking=False)
    turn = FairLock()
    with turn.lock, turn.lock:
        pass


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_a_copy_has_a_turn_of_its_own(taken, copied):
    other = copied(taken)
    assert other.lock.acquire(blocking=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_does_not_wait_for_threads_that_it_lacks(taken):
    pid = os.fork()
    if not pid:
        os._exit(0 if taken.lock.acquire(timeout=5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not taken.lock.acquire(blocking=False)
