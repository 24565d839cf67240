"""Sessions that equal trainings share."""

import os

import pytest

from ortpartial.execution import shared_sessions
from ortpartial.execution.shared_sessions import SharedSessions


def test_the_sessions_that_were_asked_for_last_are_kept():
    made, sessions = [], SharedSessions(most=2)

    def get(identity, key):
        return sessions.get(identity, key, lambda: made.append((identity, key)) or object())

    first = get("a", 1)
    assert get("a", 1) is first
    get("a", 2), get("a", 1), get("b", 1)
    assert made == [("a", 1), ("a", 2), ("b", 1)]
    assert get("a", 1) is first
    get("a", 2)
    assert made[3:] == [("a", 2)]
    assert get(None, 1) is not get(None, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_process_has_none():
    shared_sessions.get("here", 1, lambda: "here")
    if not (child := os.fork()):
        os._exit(shared_sessions.get("here", 1, lambda: "child") != "child")
    assert os.waitpid(child, 0)[1] == 0
    assert shared_sessions.get("here", 1, lambda: "new") == "here"
    shared_sessions.clear()
