"""Modules run without a graph: their Python code computes every batch, operator by operator, to be debugged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ortpartial.annotations import Data
from ortpartial.exceptions import NotComputedError
from ortpartial.graph import Value, evaluating, with_numbers
from ortpartial.learning import Meter
from ortpartial.runtime import Buffer

from .compilation import Program, in_turn
from .measuring import list_measured, read_predictions
from .nested import Nested
from .parameter import hold
from .placeholders import convert
from .trace import Trace
from .tracing import Writing, write, write_step

__all__ = ["EagerProgram"]


class EagerProgram(Program):
    """A compiled module whose code is called with the numbers of every batch.

    The code is also called on placeholders, by `compile` and for the graph of a model that is saved. Code that reads
    numbers, which a placeholder does not have, is checked with the first batch instead.

    Parameters
    ----------
    module, inputs, targets, use_graph, sequential, random_state, device, engine
        As for `Program`.
    checkpointing, precision, loss_scale
        As for `Program`.
    """

    #: Operators are run one by one.
    engine_name, engine_reason = "eager", "use_graph is False"
    #: The error of code that reads numbers, of which there is no graph.
    _reading: NotComputedError | None = None
    #: The targets of the last step, whose graph is written where it is asked for.
    _targets: Sequence[np.ndarray] | None = None
    #: The state before the last run, as far as it was changed.
    _former: Mapping[str, np.ndarray]
    #: Of several processes, which one this is, and the rows that it has.
    _place: Mapping[str, np.ndarray] = MappingProxyType({})

    # -- state

    def find(self, name: str) -> np.ndarray | None:
        """A part of the state; that of a parameter which the code has just made is drawn."""
        if name in self._place:
            return self._place[name]
        if not self.holds(name):
            new = {n: p for n, p in self.module.named_parameters(buffers=True) if n == name}
            self._aside.update(self._draw(new))
            for n, p in new.items():
                hold(p, n, self)
        return self.get(name) if self.holds(name) else None

    def find_used(self, name: str) -> np.ndarray | None:
        """A part of the state as it is used in evaluation."""
        return None if self.find(name) is None else self.get_used(name)

    def undo(self) -> None:
        """Back to before the last step."""
        self.set(self._former)

    # -- writing

    def _write_inference(self) -> Writing:
        try:
            return super()._write_inference()
        except NotComputedError as e:
            self._reading = e
            values = tuple(self.inputs.values())
            return Writing(Trace(self.module, training=False), self.inputs, values, [("output", values)])

    def _prepare_step(self, targets: Sequence[Value | np.ndarray], inputs: Sequence[np.ndarray] = ()) -> None:
        """Check the step on placeholders."""
        try:
            write_step(self.module, self.signature.name_batch(targets, inputs, self._shapes), training=True)
        except NotComputedError as e:
            self._reading = e

    def check(self, batch: Sequence[Data]) -> None:
        """Refuse arrays that no step reads."""
        arrays, n = self.signature.split_batch(batch), len(self.inputs)
        convert(arrays, self.signature.name_batch(arrays[n:], arrays[:n], self._shapes))

    def complete(self) -> None:
        """Write the graph of the last step, with all that it has left."""
        self.follow()
        if self._reading is not None:
            raise NotComputedError(f"{type(self.module).__name__} has no graph, as its code reads numbers that a graph "
                                   f"does not have before it is run: {self._reading}")
        if self._targets is not None:
            super()._prepare_step(self._targets)

    # -- running

    def _add_up(self, name: str, kept: int | None, numbers: np.ndarray) -> np.ndarray:
        """The sum of the numbers of all processes."""
        buffer = Buffer(numbers.copy())
        self._exchange({name: (buffer, kept)})
        return buffer.numpy()

    @in_turn
    def step(self, batch: Sequence[Data]) -> Nested:
        """Run a step on arrays."""
        arrays = self.signature.split_batch(batch)
        self._targets = arrays[len(self.inputs):]
        if not self._is_told:
            self._tell_of_labels(self._targets)
        inputs = self.signature.name_batch(self._targets, arrays[:len(self.inputs)], self._shapes)
        if not self._is_together:
            self.synchronize()
        if self._processes is not None:
            taken, self._place = self._processes.take_rows(inputs, dict(zip(inputs, arrays, strict=True)), {})
            arrays = list(taken.values())
        return self._run(self.module.train_one_batch, inputs, arrays, training=True)

    @in_turn
    def evaluate(self, batch: Sequence[Data], meter: Meter | None = None) -> Nested:
        """The results of a step in evaluation mode and without an update; a meter is given the predictions."""
        arrays = self.signature.split_batch(batch)
        inputs = self.signature.name_batch(arrays[len(self.inputs):], arrays[:len(self.inputs)], self._shapes)
        return self._run(self.module.train_one_batch, inputs, arrays, training=False, updates=False, meter=meter)

    @in_turn
    def forward(self, inputs: Sequence[Data], *, training: bool) -> Nested:
        """Run the module on arrays."""
        self.signature.check_count(inputs)
        return self._run(lambda *values: self.module(*values), self.inputs, inputs, training=training)

    def _run(self, code: Callable[..., Nested], inputs: Mapping[str, Value], arrays: Sequence[Data], *, training: bool,
             updates: bool = True, meter: Meter | None = None) -> Nested:
        """Call code of the module with numbers; the state that it leaves is kept, but for that of an evaluation."""
        self.follow()
        numbers = convert(arrays, inputs)
        values = {n: with_numbers(v, numbers[n]) for n, v in inputs.items()}
        with evaluating([*self.seed.view(np.uint32).tolist(), self.iteration]):
            writing = write(self.module, code, values, training=training, updates=updates,
                            find=self.find if training else self.find_used, add_up=self._add_up)
            if training:
                writing.trace.count_batch()
        trace = writing.trace
        if updates:
            self._former = {n: trace.before[n].numpy() for n in trace.changed}
            self.set({n: v.numpy() for n, v in trace.changed.items()})
        if meter is not None:
            measured = {n: v.numpy() for n, v in list_measured(writing, [*self.inputs]).items()}
            for output, prediction in read_predictions(writing, [*self.inputs], measured).items():
                meter.add(output, prediction)
        return writing.rebuild({n: v.numpy() for n, v in writing.outputs.items()})
