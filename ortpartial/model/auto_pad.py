"""Padding by auto_pad SAME, and by ceil_mode where a window may begin behind the input, written out as pads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto

from ortpartial.annotations import Attributes, Inputs, Settings
from ortpartial.graph import Value, attribute_value, constant, op

from .walk import walk_graphs

__all__ = ["is_misread", "is_missized", "write_pads"]

#: By operator, behind its domain and a dot where that is not ONNX's own: the input that is its kernel.
_KERNELS = {"AveragePool": None, "Conv": 1, "ConvInteger": 1, "LpPool": None, "MaxPool": None, "QLinearConv": 3,
            "com.microsoft.FusedConv": 1}

#: Of operators on whole numbers, the input that stands for 0.
_ZEROS = {"ConvInteger": 2, "QLinearConv": 2}

_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})

#: From the outputs of a padded node to the outputs of the node.
Finish = Callable[[Sequence[Value]], "list[Value]"]


@dataclass(frozen=True)
class _Windows:
    """The windows of a node: the sizes of the kernel, None where they are not known, strides and dilations."""

    kernel: Sequence[int | None]
    strides: Sequence[int]
    dilations: Sequence[int]
    upper: bool

    @property
    def extent(self) -> list[int | None]:
        """How many elements a window spans along each axis."""
        return [None if k is None else (k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    @property
    def always_fit(self) -> bool:
        """Whether every runtime pads them right, whatever the sizes: no element lies between two windows."""
        return set(self.dilations) == {1} and all(s == 1 or (e is not None and e >= s)
                                                  for e, s in zip(self.extent, self.strides, strict=True))

    def split(self, total: Any) -> tuple[Any, Any]:
        """Totals of padding, before and after: an odd element comes after if `upper`."""
        less = total // 2 if isinstance(total, int) else total / constant(2, np.int64)
        return (less, total - less) if self.upper else (total - less, less)


def _read_windows(op_type: str, kernel: Sequence[object], attributes: Attributes) -> _Windows | None:
    """The windows of a node of this operator; None where it has no auto_pad SAME, or its numbers do not fit."""
    automatic = attributes.get("auto_pad") or ""
    if op_type not in _KERNELS or automatic not in ("SAME_UPPER", "SAME_LOWER"):
        return None
    ones = [1] * len(kernel)
    strides, dilations = (list(attributes.get(n) or ones) for n in ("strides", "dilations"))
    sizes = [k if isinstance(k, int) else None for k in kernel]
    if not ones or not len(strides) == len(dilations) == len(ones) or min(
            *strides, *dilations, *(k for k in sizes if k is not None)) < 1:
        return None  # The checks of the runtime report the error.
    return _Windows(sizes, strides, dilations, automatic == "SAME_UPPER")


def is_misread(model: ModelProto) -> bool:
    """Whether a model has an auto_pad SAME that some runtime reads otherwise than ONNX defines it.

    onnxruntime 1.19 to 1.32 removes elements where the last window ends before the image does, or refuses to run; and
    it refuses dilations, or ignores them. ConvTranspose is right.

    Parameters
    ----------
    model : onnx.ModelProto
        The model.

    Returns
    -------
    bool
    """
    return any(_is_misread(node, graph) for graph in walk_graphs(model.graph) for node in graph.node
               if any(a.name == "auto_pad" and a.s.startswith(b"SAME") for a in node.attribute))


def is_missized(node: NodeProto) -> bool:
    """Whether the shape inference of onnx 1.23.2 gives a pool windows that begin behind its input.

    Parameters
    ----------
    node : onnx.NodeProto
        The node.

    Returns
    -------
    bool
        True where a window may begin there.
    """
    if node.op_type not in _POOLS or node.domain not in ("", "ai.onnx"):
        return False
    return _read_rounded(node.op_type, {a.name: attribute_value(a) for a in node.attribute}) is not None


def _is_misread(node: NodeProto, graph: GraphProto) -> bool:
    attributes = {a.name: attribute_value(a) for a in node.attribute}
    op_type = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
    at, kernel = _KERNELS.get(op_type), attributes.get("kernel_shape")
    if not kernel and at is not None and at < len(node.input):
        stored = [list(t.dims) for t in graph.initializer if t.name == node.input[at]]
        count = max(len(attributes.get(n) or [1]) for n in ("strides", "dilations"))
        kernel = stored[0][2:] if stored else [None] * count
    windows = _read_windows(op_type, kernel or (), attributes)
    return windows is not None and not windows.always_fit


def write_pads(op_type: str, inputs: Sequence[Value | None],
               attributes: Attributes) -> tuple[Inputs, Settings, Finish] | None:
    """A node with auto_pad SAME, or a pool with ceil_mode, as a node with pads, or behind a Pad.

    A Pad it is where pads depend on sizes that are not known, or are larger than a pool may have.

    Parameters
    ----------
    op_type : str
        Its operator, behind its domain and a dot where that is not ONNX's own.
    inputs : sequence of Value or None
        Its inputs.
    attributes : mapping of str to object
        Its attributes.

    Returns
    -------
    tuple of list of Value or None, dict of str to object and callable, or None
        Its inputs and attributes, and the function from its outputs to the outputs of the node. None for a node without
        either, where no window of a pool begins behind its input, and where every runtime pads right whatever the sizes
        are.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x, same = variable("x", "float32", ["N", 3, 7]), {"auto_pad": "SAME_UPPER", "kernel_shape": [3]}
    >>> write_pads("MaxPool", [x], {**same, "strides": [2]})[1]
    {'kernel_shape': [3], 'strides': [2], 'pads': [1, 1]}
    """
    if not inputs or inputs[0] is None:
        return None
    if (rounded := _read_rounded(op_type, attributes)) is not None:
        return _write_rounded(op_type, inputs, attributes, rounded)
    at = _KERNELS.get(op_type)
    w = inputs[at] if at is not None and at < len(inputs) else None
    kernel = attributes.get("kernel_shape") or (() if w is None or w.shape is None else w.shape[2:])
    windows, x = _read_windows(op_type, kernel, attributes), inputs[0]
    if windows is None:
        return None
    # With auto_pad there is a window for each stride that begins, in either mode of rounding.
    rest = {n: 0 if n == "ceil_mode" else a for n, a in attributes.items() if n not in ("auto_pad", "pads")}
    totals = _find_totals(x, windows)
    if totals is None and windows.always_fit:
        return None
    if totals is not None:
        before, after = zip(*map(windows.split, totals), strict=True)
        if op_type not in _POOLS or _are_smaller([*before, *after], windows.kernel):
            return list(inputs), {**rest, "pads": [*before, *after]}, list
    total = _compute_totals(x, w, windows) if totals is None else constant(totals, np.int64)
    return _write_behind_pad(op_type, inputs, rest, *windows.split(total))


def _are_smaller(pads: Sequence[int], kernel: Sequence[int | None]) -> bool:
    """Whether pads are smaller than the kernel, as a pool requires; dilations may ask for others."""
    return all(p < (k or 0) for p, k in zip(pads, [*kernel, *kernel], strict=True))


@dataclass(frozen=True)
class _Rounded:
    """The windows of a pool with ceil_mode, of which the last may begin behind the input: its numbers along each axis.

    onnxruntime 1.19.2 keeps such a window, which its inference of shapes leaves out; 1.32.0 does the contrary.
    """

    strides: Sequence[int]
    extents: Sequence[int]
    before: Sequence[int]
    after: Sequence[int]

    def begin_behind(self, sizes: Sequence[int]) -> bool:
        """Whether a window of this many elements along each axis begins behind them, when they are rounded up."""
        rows = zip(sizes, self.strides, self.extents, self.before, self.after, strict=True)
        return any(-((e - n - b - a) // s) * s >= n + b for n, s, e, b, a in rows)

    def find_end(self, sizes: Sequence[int]) -> list[int]:
        """The padding behind each axis that the windows see which begin before its end."""
        ends = []
        for n, s, e, b, a in zip(sizes, self.strides, self.extents, self.before, self.after, strict=True):
            count = min(-((e - n - b - a) // s) + 1, -(-(n + b) // s))
            ends.append(max(0, (count - 1) * s + e - n - b))
        return ends

    def compute_end(self, sizes: Value) -> Value:
        """The same, computed when the node runs."""
        s, e, b, a = (constant(v, np.int64) for v in (self.strides, self.extents, self.before, self.after))
        count = op.Min(op.Div(sizes + b + a - e + s - 1, s) + 1, op.Div(sizes + b + s - 1, s))
        return op.Max((count - 1) * s + e - sizes - b, 0)


def _read_rounded(op_type: str, attributes: Attributes) -> _Rounded | None:
    """The windows of a pool with ceil_mode, if any may begin behind its input."""
    kernel = attributes.get("kernel_shape") or ()
    if op_type not in _POOLS or not attributes.get("ceil_mode") or attributes.get("auto_pad") not in (None, "NOTSET"):
        return None
    r = len(kernel)
    strides, dilations = (list(attributes.get(n) or [1] * r) for n in ("strides", "dilations"))
    pads = list(attributes.get("pads") or [0] * 2 * r)
    if not r or not len(strides) == len(dilations) == r or len(pads) != 2 * r or min(*kernel, *strides, *dilations) < 1:
        return None  # The checks of the runtime report the error.
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    may_begin_behind = any(s + a > e for s, a, e in zip(strides, pads[r:], extents, strict=True))
    return _Rounded(strides, extents, pads[:r], pads[r:]) if may_begin_behind else None


def _write_rounded(op_type: str, inputs: Sequence[Value | None], attributes: Attributes,
                   windows: _Rounded) -> tuple[Inputs, Settings, Finish] | None:
    """A pool that has as many windows as begin in its input, or in the padding before it."""
    x, r = inputs[0], len(windows.strides)
    assert x is not None
    rest: dict[str, object] = {n: v for n, v in attributes.items() if n not in ("auto_pad", "pads")} | {"ceil_mode": 0}
    sizes = [n for n in (x.shape or ())[2:] if isinstance(n, int)]
    if len(sizes) == r and not windows.begin_behind(sizes):
        return None
    ends = windows.find_end(sizes) if len(sizes) == r else None
    before, around = list(windows.before), [0] * r
    if attributes.get("count_include_pad"):  # Padding counts, and not elements that rounding up adds behind it.
        padded = op.Pad(x, [0, 0, *before, 0, 0, *windows.after])
        before, around, rest["count_include_pad"] = [0] * r, list(windows.after), 0
    else:
        padded = x
    if ends is None:
        after = op.Max(windows.compute_end(op.Shape(x, start=2)) - constant(around, np.int64), 0)
        return _write_behind_pad(op_type, [padded], rest, constant(before, np.int64), after)
    ends = [max(0, end - a) for end, a in zip(ends, around, strict=True)]
    if all(p < k for p, k in zip([*before, *ends], [*attributes["kernel_shape"]] * 2, strict=True)):
        return [padded], {**rest, "pads": [*before, *ends]}, list
    return _write_behind_pad(op_type, [padded], rest, constant(before, np.int64), constant(ends, np.int64))


def _find_totals(x: Value, windows: _Windows) -> list[int] | None:
    """How much is padded along each axis; None where that is not known."""
    sizes = (x.shape or ())[2:] or [None] * len(windows.kernel)
    totals = []
    for n, e, s in zip(sizes, windows.extent, windows.strides, strict=False):
        if e is None or (s > 1 and not isinstance(n, int)):
            return None
        totals.append(max(0, e - s + (-n % s if isinstance(n, int) else 0)))
    return totals if len(totals) == len(windows.kernel) else None


def _compute_totals(x: Value, w: Value | None, windows: _Windows) -> Value:
    """The same, computed when the node runs."""
    strides, one = constant(windows.strides, np.int64), constant(1, np.int64)
    kernel = op.Shape(w, start=2) if None in windows.kernel else constant(windows.kernel, np.int64)
    extent = (kernel - one) * constant(windows.dilations, np.int64) + one
    return op.Max(extent - strides + op.Mod(-op.Shape(x, start=2), strides), constant(0, np.int64))


def _write_behind_pad(op_type: str, inputs: Inputs, rest: dict[str, object], before: Value,
                      after: Value) -> tuple[Inputs, Settings, Finish]:
    """A node of which a Pad computes the first input."""
    x = inputs[0]
    none = constant([0, 0])
    parts = [none, before, none, after]
    arrays = [v.array for v in parts if v.array is not None]
    pads = constant(np.concatenate(arrays)) if len(arrays) == len(parts) else op.Concat(*parts, axis=0)
    zero = inputs[_ZEROS[op_type]] if op_type in _ZEROS and _ZEROS[op_type] < len(inputs) else None
    if op_type == "MaxPool":
        zero = constant(np.array(-np.inf if x.is_float else np.iinfo(x.dtype).min, x.dtype))
    padded = op.Pad(x, pads, zero)

    def finish(outputs: Sequence[Value]) -> list[Value]:
        if op_type == "AveragePool" and not rest.get("count_include_pad"):
            ones = op.Expand(constant(np.ones((), x.dtype)), op.Concat(constant([1, 1]), op.Shape(x, start=2), axis=0))
            return [outputs[0] / op.AveragePool(op.Pad(ones, pads), **rest)]
        if op_type == "MaxPool" and len(outputs) > 1:
            return [outputs[0], _renumber(outputs[1], x, padded, before, bool(rest.get("storage_order")))]
        return list(outputs)

    return [padded, *inputs[1:]], rest, finish


def _renumber(places: Value, x: Value, padded: Value, before: Value, by_columns: bool) -> Value:
    """Places of elements in x, from their places in x with padding."""
    rest, parts = places, []
    (old, new), r = (op.Shape(v, start=2) for v in (padded, x)), len(x.shape or ()) - 2
    order = list(range(r)) if by_columns else list(range(r))[::-1]
    for i in order:
        size = op.Gather(old, constant(i))
        parts.append(op.Mod(rest, size) - op.Gather(before, constant(i)))
        rest = op.Div(rest, size)
    for i in order[::-1]:
        rest = rest * op.Gather(new, constant(i)) + parts.pop()
    return rest
