"""Call: a step on the arrays of a batch, which returns all that it computes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ortpartial.runtime import Binding, Buffer, Device, Session, as_numpy

from .program import RunLocal
from .step import Arrays, Exchanging, Step

__all__ = ["Call", "CallProgram"]


class Call(Protocol):
    """Protocol of a step on the arrays of a batch.

    Attributes
    ----------
    turn : int
        The bits of the groups that it changes, which lead from the set of buffers that it reads to the set that it
        writes.
    """

    @property
    def turn(self) -> int:
        """The bits of the groups that it changes."""

    def __call__(self, side: int, arrays: Arrays) -> dict[str, np.ndarray]:
        """Take a step from this set of buffers to the next; return copies of the results."""


@dataclass(frozen=True)
class _BoundPart:
    """A part from a set of buffers to the other.

    Parameters
    ----------
    binding : Binding
        Its session, bound to the state.
    inputs : list of str
        The data that it reads.
    fixed : dict of str to Buffer
        By result whose shape is known, its buffer.
    free : list of str
        The other results.
    exchanged : dict of str to Buffer
        New state that processes exchange.
    """

    binding: Binding
    inputs: list[str]
    fixed: Mapping[str, Buffer]
    free: list[str]
    exchanged: Mapping[str, Buffer]


class CallProgram:
    """The parts of a step, compiled and bound to both sets of buffers.

    Parameters
    ----------
    parts : sequence of Step
        The parts, which run in turn, each on the state that the part before has left.
    buffers : sequence of dict of str to Buffer
        The sets of buffers of the state.
    fixed_inputs : dict of str to Buffer
        Inputs that no step changes.
    device : str or Device
        Where they run.
    threads : int or None
        Number of threads.
    local : RunLocal
        The options of a run.
    exchanges, exchange : collection of str, callable
        As for `GraphSource`.
    turn : int
        As for `Call`.
    """

    def __init__(self, parts: Sequence[Step], buffers: Sequence[Mapping[str, Buffer]],
                 fixed_inputs: Mapping[str, Buffer], *, device: str | Device, threads: int | None, local: RunLocal,
                 exchanges: Collection[str] = (), exchange: Exchanging | None = None, turn: int = 1):
        self.local, self.exchanges, self.exchange, self.turn = local, exchanges, exchange, turn
        self._parts, self._buffers, self._fixed_inputs = parts, buffers, fixed_inputs
        last = {n: i for i, part in enumerate(parts) for n in part.state}
        #: State that a part renews and a later part renews again.
        self._between = {(n, i): Buffer.empty(buffers[0][n].shape, buffers[0][n].dtype, device)
                         for i, part in enumerate(parts) for n in part.state if last[n] != i}
        self._sessions = [part.open(device, threads) for part in parts]
        self.bindings: list[Binding] = []
        self._runs: dict[int, list[_BoundPart]] = {}
        self._bind_parts(0)

    def _bind_parts(self, side: int) -> list[_BoundPart]:
        """The parts, bound from a set of buffers to the next."""
        runs: list[_BoundPart] = []
        current, write = {**self._fixed_inputs, **self._buffers[side]}, self._buffers[side ^ self.turn]
        for i, (part, session) in enumerate(zip(self._parts, self._sessions, strict=True)):
            new = {n: self._between.get((n, i), write[n]) for n in part.state}
            runs.append(self._bind(part, session, current, new))
            current |= new
        self._runs[side] = runs
        return runs

    def _bind(self, part: Step, session: Session, current: Mapping[str, Buffer], new: Mapping[str, Buffer]
              ) -> _BoundPart:
        """A part from the buffers of now to those of its new state."""
        binding = session.binding()
        self.bindings.append(binding)
        for n in session.inputs:
            if n in current:
                binding.bind_input(n, current[n])
        state = {part.state[n]: buffer for n, buffer in new.items()}
        # onnxruntime binds no strings.
        fixed = {n: Buffer.empty(v.shape, v.dtype) for n, v in part.outputs.items()  # type: ignore[arg-type]
                 if n not in state and v.is_static and v.dtype != object}
        for n, buffer in {**state, **fixed}.items():
            binding.bind_output(n, buffer)
        inputs = [n for n in session.inputs if n not in current]
        free = [n for n in session.outputs if n not in fixed and n not in state]
        return _BoundPart(binding, inputs, fixed, free, {n: new[n] for n in part.state if n in self.exchanges})

    def __call__(self, side: int, arrays: Arrays) -> dict[str, np.ndarray]:
        """Take a step from this set of buffers to the next; return copies of the results."""
        outputs: dict[str, np.ndarray] = {}
        for part in self._runs.get(side) or self._bind_parts(side):
            for name in part.inputs:
                part.binding.bind_input(name, arrays[name])
            part.binding.run(self.local.options)
            if part.exchanged and self.exchange is not None:
                self.exchange(part.exchanged)
            outputs.update({n: b.numpy().copy() for n, b in part.fixed.items()})
            if part.free:
                values = part.binding.ortvalues()
                outputs.update({n: as_numpy(values[n]) for n in part.free})
        return outputs
