"""Hooks of callbacks: objects that have all of them, functions of the optimizer, and the arguments of a hook."""

import re

import pytest

from ortpartial.exceptions import SettingError
from ortpartial.execution.hooks import call_hook, check_callbacks, has_hooks


class Hooked:
    def setup(self, estimator, context):
        self.seen = []

    on_fit_task_begin = teardown = setup

    def on_fit_task_end(self, estimator, context, *, X, y):
        self.seen.append((estimator, context, X, y))
        return estimator == "stop"


class Half:
    def setup(self, estimator, context):
        pass


class Asking(Hooked):
    def on_fit_task_begin(self, estimator, context, *, Z):
        pass


class Often(Hooked):
    batches_between_calls = 0


def test_what_a_callback_is():
    assert has_hooks(Hooked())
    assert not has_hooks(print)
    check_callbacks([Hooked(), Hooked(), lambda optimizer: None, print])


@pytest.mark.parametrize(("callbacks", "message"), [
    ([3], "callbacks are functions of the optimizer, or objects with the hooks setup, on_fit_task_begin"),
    ([lambda: None], "does not take one argument."),
    ([Hooked], "callbacks are objects, and Hooked is a class; give Hooked()."),
    ([Half()], "The callback Half has setup and lacks on_fit_task_begin, on_fit_task_end and teardown"),
    ([Asking()], "on_fit_task_begin of the callback Asking asks for 'Z'"),
    ([Often()], "batches_between_calls of the callback Often is None or a whole number of at least 1, not 0.")])
def test_what_is_none(callbacks, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        check_callbacks(callbacks)


def test_one_twice():
    hooked = Hooked()
    with pytest.raises(SettingError, match="callbacks has the same Hooked twice; give it once"):
        check_callbacks([hooked, hooked])


def test_a_hook_gets_what_it_asks_for_and_nothing_else_is_made():
    hooked = Hooked()
    hooked.setup(None, None)
    arguments = {"X": lambda: 1, "y": lambda: 2, "metadata": lambda: 1 / 0}
    assert not call_hook(hooked.on_fit_task_end, "go", "task", arguments)
    assert call_hook(hooked.on_fit_task_end, "stop", "task", arguments)
    assert hooked.seen[0] == ("go", "task", 1, 2)
