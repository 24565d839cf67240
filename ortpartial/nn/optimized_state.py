"""State of optimizers: the steps that they plan and have taken, and averages that stand for weights in evaluation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ortpartial.graph import build, variable
from ortpartial.learning import ConstantSchedule, fingerprint
from ortpartial.runtime import DeviceName, Session
from ortpartial.training import AVERAGE

from .changes import count_changes
from .held_state import HeldState
from .optimizer import Optimizer
from .parts import Part
from .signature import Signature

__all__ = ["OptimizedState"]


class OptimizedState(HeldState):
    """The state of a compiled module that optimizers change.

    Parameters
    ----------
    module : Part
        The module.
    device : str or tuple
        Where first numbers are drawn.
    random_state : int, optional
        The seed of random numbers.
    """

    #: The arguments of the module's code.
    signature: Signature

    def __init__(self, module: Part, device: DeviceName, random_state: int | None):
        super().__init__(module, device, random_state)
        self._listed: tuple[int, Mapping[str, Optimizer]] = -1, {}
        self._rate_key: object = None  # the fingerprint of the rate whose schedule has a session

    @property
    def optimizers(self) -> Mapping[str, Optimizer]:
        """The optimizers of the module by name, which are looked for where something has changed."""
        if self._listed[0] != (changes := count_changes()):
            self._listed = changes, dict(self.module.named_optimizers())
        return self._listed[1]

    def forget_steps(self, *, keep_states: bool = False) -> None:
        """Let the step be written anew; with the states of optimizers, unless they are to begin again."""
        raise NotImplementedError

    def plan(self, lengths: Mapping[str, int]) -> None:
        """Plan how many batches each optimizer takes in all, for schedules that last as long."""
        changes = [optimizer.plan(lengths[n]) for n, optimizer in self.optimizers.items() if n in lengths]
        if True in changes:
            self.forget_steps(keep_states=True)

    def plan_further(self, batches: int) -> None:
        """Plan so many batches beyond the batches that each optimizer has taken."""
        counters = {n: f"{n}.iteration" for n in self.optimizers}
        taken = {n: self.get(c) if self.holds(c) else 0 for n, c in counters.items()}
        self.plan({n: int(k) + batches for n, k in taken.items()})

    def find_rate(self) -> float | None:
        """The step size of the last batch, where there is a single optimizer."""
        if len(self.optimizers) != 1:
            return None
        ((name, optimizer),) = self.optimizers.items()
        if type(optimizer.planned_rate.schedule) is ConstantSchedule:
            return float(optimizer.planned_rate.eta0)
        if (key := fingerprint(optimizer.planned_rate)) != self._rate_key:
            k = variable("k", np.int64, [])
            eta = optimizer.planned_rate.step_size(k, self.signature.dtype or np.dtype(np.float32))
            self._rate_key, self._rate = key, Session(build([k], {"eta": eta}))
        taken = max(self.count_updates(name), 1)
        return float(self._rate.run({"k": np.array(taken, np.int64)})["eta"])

    def count_updates(self, optimizer: str) -> int:
        """The number of updates that an optimizer has made."""
        counter = f"{optimizer}.iteration"
        return int(self.get(counter)) // self.optimizers[optimizer].accumulate if self.holds(counter) else 0

    def get_used(self, name: str) -> np.ndarray:
        """A copy of a part of the state as it is used in evaluation: of the average of a weight with `use_average`."""
        return self.get(self._name_used(name))

    def _name_used(self, name: str) -> str:
        """The part of the state that is used in its place."""
        for own, optimizer in self.optimizers.items():
            average = optimizer.name_state(own, name, AVERAGE)
            # The average of no update is the weight itself.
            if optimizer.use_average and self.holds(average) and self.count_updates(own):
                return average
        return name

    @property
    def averages(self) -> dict[str, str]:
        """By the state that is an average, its weight."""
        return {average: n for own, o in self.optimizers.items() if o.averaging is not None for n in self._shapes
                if self.holds(average := o.name_state(own, n, AVERAGE))}
