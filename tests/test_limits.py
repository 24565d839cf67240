"""Limits of size: one object, in force for a while, and for the sessions that equal trainings share."""

import threading
from dataclasses import asdict, fields

import pytest

from ortpartial.limits import Limits, limits, use_limits


def test_in_force_for_a_while_in_all_threads():
    outside, seen = limits(), []
    chosen = Limits(column_rows=3)

    def look():
        with use_limits(chosen):
            thread = threading.Thread(target=lambda: seen.append(limits()))
            thread.start()
            thread.join()
            raise KeyError

    with pytest.raises(KeyError):
        look()
    assert seen == [chosen]
    assert limits() == outside


def test_in_force_for_a_while_in_one_thread():
    outside, seen = limits(), []
    chosen = Limits(column_rows=3)
    with use_limits(chosen, everywhere=False):
        thread = threading.Thread(target=lambda: seen.append(limits()))
        thread.start()
        thread.join()
        assert limits() == chosen
    assert seen == [outside] == [limits()]


def test_zero_moves_every_limit():
    """A limit that is added has to say which way it is lifted."""
    usual, lifted = asdict(Limits()), asdict(Limits.zero())
    assert [name for name in usual if usual[name] == lifted[name]] == []
    assert len(usual) == len(fields(Limits)) > 20


def test_sessions_are_shared_under_the_same_limits_only():
    from ortpartial.execution.shared_sessions import SharedSessions

    sessions = SharedSessions(most=4)
    usual = sessions.get("training", "step", object)
    with use_limits(Limits(column_rows=3)):
        assert sessions.get("training", "step", object) is not usual
    assert sessions.get("training", "step", object) is usual
