"""A context in which runs end at a timeout; an inner one changes nothing."""

from types import SimpleNamespace

import pytest

from ortpartial.execution.interruption import interruptible


@pytest.fixture
def part():
    return SimpleNamespace(engine=SimpleNamespace(local=SimpleNamespace(options=None)))


def test_options_are_those_of_the_outer_context(part):
    with interruptible(part, 5):
        outer = part.engine.local.options
        assert outer is not None
        with interruptible(part, 1):
            assert part.engine.local.options is outer
        assert part.engine.local.options is outer
    assert part.engine.local.options is None


def test_without_a_timeout_nothing_is_watched_unless_asked_for(part):
    with interruptible(part, None):
        assert part.engine.local.options is None
    with interruptible(part, None, always=True):
        assert part.engine.local.options is not None
