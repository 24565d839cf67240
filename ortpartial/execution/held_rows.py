"""Rows that stay while weights change, as validation data do: bound once to the sessions that read them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ortpartial.runtime import Binding, Buffer, Session

from .program import RunLocal

__all__ = ["HeldRows"]


class HeldRows:
    """Rows that sessions read again and again, each time with the weights of then.

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
        self._bindings: dict[Session, Binding] = {}

    def run(self, session: Session, weights: Mapping[str, Buffer | np.ndarray], local: RunLocal
            ) -> dict[str, np.ndarray]:
        """Run a session on the rows.

        Parameters
        ----------
        session : Session
            The session that reads the rows.
        weights : dict of str to Buffer or numpy.ndarray
            Its other inputs, in the memory where they are.
        local : RunLocal
            The options of the thread.

        Returns
        -------
        dict of str to numpy.ndarray
            Its outputs.
        """
        if (binding := self._bindings.get(session)) is None:
            if len(self._bindings) == 2:  # losses, and losses with predictions: others belong to former settings
                self._bindings.clear()
            binding = self._bindings[session] = session.binding()
            for name in session.inputs:
                if name in self.rows:
                    binding.bind_input(name, self.rows[name])
        for name, value in weights.items():
            binding.bind_input(name, value)
        binding.run(local.options)
        return binding.numpy()
