"""Function: a session of the graph of a module's code, without a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ortpartial.annotations import ArrayLike
from ortpartial.graph import Value, build
from ortpartial.model import Range, check_empty
from ortpartial.runtime import DeviceName, Session, choose_threads

from .placeholders import convert
from .tracing import Writing

__all__ = ["Function", "compile_function"]


def compile_function(writing: Writing, outputs: Mapping[str, Value], *, device: DeviceName, sequential: bool
                     ) -> Function:
    """Compile a graph.

    Parameters
    ----------
    writing : Writing
        The graph of the code.
    outputs : dict of str to Value
        The results of the function.
    device : str or tuple
        Where it runs.
    sequential : bool
        Whether a single thread computes.

    Returns
    -------
    Function
    """
    graph = build({**writing.inputs, **writing.trace.before}, outputs, name=type(writing.trace.module).__name__)
    threads = 1 if sequential else choose_threads(list(outputs.values()))
    session = Session(graph, device=device, threads=threads)
    return Function(writing, list(outputs.values()), session, writing.find_ranges(outputs))


@dataclass(frozen=True)
class Function:
    """A session of a graph, and the ranges of the indices that it reads."""

    writing: Writing
    outputs: Sequence[Value]
    session: Session
    ranges: Mapping[str, Range]

    def __call__(self, arrays: Sequence[ArrayLike], get: Callable[[str], np.ndarray]) -> dict[str, np.ndarray]:
        """Run it on the inputs, and on the state that `get` gives by name."""
        feeds = convert(arrays, self.writing.inputs, self.ranges)
        check_empty(self.outputs, feeds)
        feeds |= {n: get(n) for n in self.writing.trace.before}
        return self.session.run({n: feeds[n] for n in self.session.inputs})
