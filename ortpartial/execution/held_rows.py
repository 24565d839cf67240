"""Rows that stay while weights change, as validation data do: bound once to the sessions that read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ortpartial.runtime import Binding, Buffer, Session

from .program import RunLocal

__all__ = ["HeldRows"]

#: The runner that has the weights, and the memory of it that they are in: see `StepRunner.place`.
Place = tuple[object, ...]


class HeldRows:
    """Rows that sessions read again and again, each time with the weights of then.

    There is a binding for each memory that weights are in, such as the two sets of buffers of a runner: nothing is
    bound a second time.

    Parameters
    ----------
    rows : dict of str to numpy.ndarray
        The arrays by the names that sessions have for them; they are not copied.

    Attributes
    ----------
    rows : dict of str to numpy.ndarray
        The arrays.
    is_bindable : bool
        Whether the memory of all of them can be read as it is: sparse rows and texts are handed over at each run.
    """

    def __init__(self, rows: Mapping[str, np.ndarray]):
        self.rows = rows
        self.is_bindable = all(isinstance(a, np.ndarray) and a.dtype.kind not in "OSU" for a in rows.values())
        self._bindings: dict[tuple[Session, Place | None], Binding] = {}
        self._results: dict[Session, dict[str, np.ndarray]] = {}  # the memory that a session writes to at each run

    def run(self, session: Session, find_weights: Callable[[], Mapping[str, Buffer | np.ndarray]], local: RunLocal,
            place: Place | None = None, are_sized: bool = False) -> Mapping[str, np.ndarray]:
        """Run a session on the rows.

        Parameters
        ----------
        session : Session
            The session that reads the rows.
        find_weights : callable
            Returns its other inputs, in the memory where they are.
        local : RunLocal
            The options of the thread.
        place : tuple, optional
            A runner, and further keys that are the same as long as `find_weights` returns the same memory.
        are_sized : bool
            Whether the outputs have the same shapes in every run; then they are in memory that the next run overwrites.

        Returns
        -------
        dict of str to numpy.ndarray
            Its outputs.
        """
        if not session.device.is_cpu:  # Each binding would have a copy of the rows.
            place = None
        binding = self._bindings.get((session, place))
        if binding is None or place is None:
            binding = binding or self._bind(session, place)
            for name, value in find_weights().items():
                binding.bind_input(name, value)
        binding.run(local.options)
        if (results := self._results.get(session)) is not None:
            return results
        arrays = binding.numpy()
        if are_sized and session.device.is_cpu:
            self._results[session] = arrays
            for (each, _), bound in self._bindings.items():
                if each is session:
                    self._bind_outputs(session, bound)
        return arrays

    def _bind(self, session: Session, place: Place | None) -> Binding:
        """A new binding of a session to the rows; those of former settings are let go."""
        owner = place and place[0]
        kept = {key: b for key, b in self._bindings.items() if (key[1] and key[1][0]) is owner}
        if len({session, *(each for each, _ in kept)}) > 2:  # losses, and losses with predictions
            kept = {}
        self._bindings, binding = kept, session.binding()
        self._results = {each: r for each, r in self._results.items() if any(each is s for s, _ in kept)}
        self._bindings[session, place] = binding
        for name in session.inputs:
            if name in self.rows:
                binding.bind_input(name, self.rows[name])
        self._bind_outputs(session, binding)
        return binding

    def _bind_outputs(self, session: Session, binding: Binding) -> None:
        """Bind the outputs to their memory, once it is known."""
        for name, array in self._results.get(session, {}).items():
            binding.bind_output(name, Buffer(array))
