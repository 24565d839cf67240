"""Writing a graph: the inputs, state and results of a call of a module's code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortpartial.annotations import Settings
from ortpartial.exceptions import GraphError
from ortpartial.graph import Arithmetic, Value
from ortpartial.model import Range, index_ranges

from .data_parallel import average_statistics
from .nested import Nested, flatten, rebuild
from .parts import Part
from .trace import Trace, to_range

__all__ = ["Writing", "write", "write_step"]


@dataclass(frozen=True)
class Writing:
    """The graph that a call of a module's code has written.

    Parameters
    ----------
    trace : Trace
        The state that it reads and leaves.
    inputs : dict of str to Value
        The inputs, and the targets, by name.
    result : object
        The result of the code: values, or tuples, lists and dicts of them.
    parts : sequence of (str, object)
        The result in parts, each of which gives its values names that begin alike.
    """

    trace: Trace
    inputs: Mapping[str, Value]
    result: Nested
    parts: Sequence[tuple[str, Nested]]

    @property
    def outputs(self) -> dict[str, Value]:
        """The values that the code has returned, by name."""
        return {n: v for prefix, tree in self.parts for n, v in flatten(tree, prefix).items()}

    def rebuild(self, outputs: Mapping[str, Nested]) -> Nested:
        """The nested result of the code, with other leaves, by name, in place of values."""
        parts = [rebuild(tree, prefix, outputs) for prefix, tree in self.parts]
        return parts[0] if len(parts) == 1 else tuple(parts)

    @property
    def labels(self) -> dict[str, tuple[int, int | None]]:
        """The inputs that are labels, with the number of classes and the label that does not count."""
        return {n: self.trace.labels[v] for n, v in self.inputs.items() if v in self.trace.labels}

    def find_ranges(self, outputs: Mapping[str, Value]) -> dict[str, Range]:
        """The ranges of the inputs that these outputs read as indices or labels."""
        return index_ranges(self.inputs, list(outputs.values())) | {
            n: to_range(n, classes, ignored) for n, (classes, ignored) in self.labels.items()}


def write(module: Part, code: Callable[..., Nested], inputs: Mapping[str, Value], **settings: Any) -> Writing:
    """Call code of a module with values.

    Parameters
    ----------
    module : Module
        The module.
    code : callable
        Takes the inputs.
    inputs : dict of str to Value
        Placeholders by name.
    **settings : object
        As for the trace.

    Returns
    -------
    Writing

    Raises
    ------
    GraphError
        The code returns something other than values, or tuples, lists and dicts of them.
    """
    trace, result = _call(module, code, inputs, settings)
    return Writing(trace, inputs, result, _name_parts(module, inputs, {"output": result}))


def write_step(module: Part, inputs: Mapping[str, Value], **settings: Any) -> Writing:
    """Call `train_one_batch` of a module with values; of a pair, the first is called output and the second loss.

    Parameters
    ----------
    module, inputs, **settings
        As for `write`.

    Returns
    -------
    Writing

    Raises
    ------
    GraphError
        As for `write`.
    """
    trace, result = _call(module, module.train_one_batch, inputs, settings)
    is_pair = isinstance(result, tuple) and len(result) == 2
    parts = {"step_output": result[0], "loss": result[1]} if is_pair else {"loss": result}
    return Writing(trace, inputs, result, _name_parts(module, inputs, parts))


def _call(module: Part, code: Callable[..., Nested], inputs: Mapping[str, Value], settings: Settings
          ) -> tuple[Trace, Nested]:
    """The trace of a call, and the values that it returns."""
    trace = Trace(module, **settings)
    with trace.writing():
        result = code(*inputs.values())
    leaves = flatten(result, "")
    if wrong := [v for v in leaves.values() if not isinstance(v, Arithmetic)]:
        raise GraphError(f"{type(module).__name__} returns {wrong[0]!r}, of type {type(wrong[0]).__name__}, where "
                         f"values, or tuples, lists and dicts of them are expected.")
    with trace.writing():
        values = [v if isinstance(v, Value) else v.value for v in leaves.values()]
        result = rebuild(result, "", dict(zip(leaves, trace.lower(values), strict=True)))
        trace.lower_buffers()
        trace.adapt_scale()
        if trace.exchanges:
            result = average_statistics(trace, inputs, result)
    return trace, result


def _name_parts(module: Part, inputs: Collection[str], parts: Mapping[str, Nested]) -> list[tuple[str, Nested]]:
    """Parts of a result, and the prefixes of their values' names, which no input and no parameter has."""
    taken, named = {*inputs, *(n for n, _ in module.named_parameters(buffers=True))}, []
    for prefix, tree in parts.items():
        while not taken.isdisjoint(flatten(tree, prefix)):
            prefix += "_"
        named.append((prefix, tree))
    return named
