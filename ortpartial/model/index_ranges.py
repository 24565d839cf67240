"""Ranges of indices and labels, which are checked on the host: onnxruntime reads foreign memory beyond them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from ortpartial.exceptions import DataError
from ortpartial.graph import (
    LABEL_LOSSES,
    Bound,
    Node,
    Value,
    describe_bound,
    find_refused,
    name_node,
    state_refusal,
    topological,
)

from .crash_guards import NEVER_EMPTY, count_classes, find_source

__all__ = ["Range", "check_empty", "check_indices", "find_indices", "index_ranges"]


#: The input that holds indices or labels, by operator.
_INDICES = {**dict.fromkeys((*LABEL_LOSSES, "Gather", "GatherElements"), 1), "RoiAlign": 2}

#: Operators that read elements by indices, their second input where `_INDICES` names no other.
_INDEXED = frozenset({"ArrayFeatureExtractor", "Gather", "GatherElements", "GatherND", "MaxUnpool", "RoiAlign",
                      "ScatterElements", "ScatterND"})


@dataclass(frozen=True)
class Range:
    """The range of an input that holds indices or labels, and the label that is ignored."""

    what: str
    low: int
    high: int
    ignored: int | None
    node: str

    @property
    def bound(self) -> Bound:
        """The range, as that of an operator."""
        return Bound(0, {"labels": "a label", "indices": "an index"}[self.what], ((self.low, self.high),), self.ignored)

    def describe(self, name: str) -> str:
        """The error for a number of an input that is out of it, up to the number."""
        return describe_bound(f"Input {name!r} of {self.node}", self.bound)


def index_ranges(inputs: Mapping[str, Value], outputs: Collection[Value]) -> dict[str, Range]:
    """The ranges of the inputs of whole numbers that are indices or labels, by their names.

    Parameters
    ----------
    inputs : dict of str to Value
        Inputs of a graph.
    outputs : collection of Value
        Values computed from them.

    Returns
    -------
    dict of str to Range
        The narrowest where an input is read several times.
    """
    names = {v: n for n, v in inputs.items() if not v.is_float}
    ranges: dict[str, Range] = {}
    for node in topological(list(outputs)) if names else ():
        indices = node.inputs[_INDICES[node.op_type]] if node.op_type in _INDICES else None
        name = None if indices is None else names.get(find_source(indices))
        new = None if name is None else _find_range(node)
        if name is not None and new is not None and (name not in ranges or new.high < ranges[name].high):
            ranges[name] = new
    return ranges


def _find_range(node: Node) -> Range | None:
    """The range of the indices or labels of a node; None where the size that they index is not known."""
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    called = re.sub("^(Node|An?) ", lambda m: m[0].lower(), name_node(node.name, node.op_type, node.outputs[0].hint))
    if node.op_type in LABEL_LOSSES:
        n = count_classes(x)
        return None if n is None else Range("labels", 0, n - 1, node.attribute("ignore_index"), called)
    counts_rows = node.op_type == "RoiAlign"
    axis = 0 if counts_rows else node.attribute("axis")
    size = x.shape[axis] if -len(x.shape) <= axis < len(x.shape) else None
    return Range("indices", 0 if counts_rows else -size, size - 1, None, called) if isinstance(size, int) else None


def find_indices(inputs: Mapping[str, Value], outputs: Collection[Value]) -> frozenset[str]:
    """The inputs of whole numbers that are indices, of any range, by their names; real numbers are none.

    Parameters
    ----------
    inputs : dict of str to Value
        Inputs of a graph.
    outputs : collection of Value
        Values computed from them.

    Returns
    -------
    frozenset of str
    """
    names = {v: n for n, v in inputs.items() if not v.is_float}
    nodes = [node for node in topological(list(outputs)) if node.op_type in _INDEXED] if names else []
    read = [node.inputs[_INDICES.get(node.op_type, 1)] for node in nodes]
    return frozenset(names[source] for x in read if x is not None and (source := find_source(x)) in names)


def check_indices(ranges: Mapping[str, Range], arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse indices and labels out of range, which would read foreign memory.

    Parameters
    ----------
    ranges : dict of str to Range
        By the names of inputs.
    arrays : dict of str to numpy.ndarray
        The inputs.

    Raises
    ------
    DataError
        An index is out of range.
    """
    for name, r in ranges.items():
        a = arrays[name]
        # The methods of an array are calls of Python, and a small step takes microseconds.
        if (a.size and not r.low <= np.minimum.reduce(a, None) <= np.maximum.reduce(a, None) <= r.high
                and (number := find_refused(r.bound, a)) is not None):
            raise DataError(state_refusal(r.describe(name), number))


def check_empty(outputs: Collection[Value], arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse inputs without elements where an operator crashes on them.

    Parameters
    ----------
    outputs : collection of Value
        The computed values.
    arrays : dict of str to numpy.ndarray
        The inputs.

    Raises
    ------
    DataError
    """
    for name, a in arrays.items():
        if a.size == 0 and (node := next((n for n in topological(list(outputs)) if n.op_type in NEVER_EMPTY), None)):
            raise DataError(f"Input {name!r} has no elements, which crashes {node!r}; leave the batch out.")
