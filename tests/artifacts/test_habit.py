"""A step is expected where it has followed the last calls of the same kind."""

import pytest

from ortpartial.artifacts.habit import StepHabit

#: By name: calls of the first kind (c), of the second (a), steps of the optimizer (s), calls that step themselves (u);
#: and whether a step is then expected after a call of either kind.
LOOPS = {
    "": (False, False), "cs": (False, False), "cscs": (True, False), "cscsc": (True, False), "cscscc": (False, False),
    "cascas": (False, True), "caascaas": (False, False), "cscsu": (True, False), "cscscu": (False, False),
    "cscss": (True, False), "uu": (False, False), "cscsccscs": (True, False),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_steps_that_are_expected(loop):
    habit = StepHabit()
    for event in loop:
        if event == "s":
            habit.note_step()
        else:
            habit.note_call(event == "a", event == "u")
    assert (habit.expects_step(False), habit.expects_step(True)) == LOOPS[loop]
