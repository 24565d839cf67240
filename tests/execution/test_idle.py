"""An idle runner: it counts as its door does, and has nothing to run."""

from ortpartial.execution.idle import IdleRunner
from ortpartial.execution.program import RunLocal
from ortpartial.runtime import FairLock


def test_it_counts_what_its_door_counts():
    seen = [3]
    runner = IdleRunner("step", "its door takes the steps", lambda: seen[0], FairLock(), RunLocal())
    assert runner.iteration == 3
    seen[0] = 4
    assert (runner.iteration, runner.name) == (4, "step")
    assert runner.is_finite()
    assert runner.broadcast("value") == "value"
    runner.start({"x": 1})
    runner.synchronize()
    assert (runner.mean.value, runner.controls, runner.is_distributed) == (0, {}, False)
