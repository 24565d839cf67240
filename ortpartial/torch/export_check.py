"""The check of an export: the graph computes the same as the module, at the example's size and at another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from onnx import ModelProto, TensorProto

from ortpartial.exceptions import OrtPartialError
from ortpartial.model import load, walk_graphs
from ortpartial.runtime import Session

from .module_call import Axes, ModuleCall, list_tensors
from .module_state import as_array

__all__ = ["find_difference", "list_unkept"]

_REAL = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)

#: How far outputs may be apart, relative to the largest of them, by dtype.
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}


def find_difference(module: torch.nn.Module, proto: ModelProto, call: ModuleCall, axes: Axes) -> str | None:
    """Compare a graph with the module that it was exported from, in evaluation mode.

    Parameters
    ----------
    module : torch.nn.Module
        A copy of the module, whose mode is changed.
    proto : onnx.ModelProto
        The graph.
    call : ModuleCall
        The example.
    axes : dict of str to dict of int to str
        The axes of any size.

    Returns
    -------
    str or None
        The difference. None where there is none, or there is nothing to compare: the module draws random numbers, the
        runtime lacks a kernel, or the module takes no other size.
    """
    module.eval()
    load(proto)
    kinds = {i.name: i.type.tensor_type.elem_type for i in proto.graph.input}
    try:
        session = Session(proto)
    except OrtPartialError:
        return None
    for size, now in (("", call), (" at another size", call.lengthen(axes))):
        try:
            expected, repeated = _run(module, now), _run(module, now)
        except Exception:  # Whatever the module raises, it does not take this size.
            return None
        if not all(map(torch.equal, expected, repeated)):
            return None
        try:
            outputs = session.run({n: as_array(now.inputs[n], kinds[n]) for n in session.inputs})
        except OrtPartialError as e:
            return f"the graph fails{size}: {e}" if size else None
        for (name, y), t in zip(outputs.items(), expected, strict=False):
            if problem := _compare(y, t):
                return f"the output {name!r}{size} {problem}"
    return None


def list_unkept(proto: ModelProto, written: Sequence[str]) -> list[str]:
    """The buffers that a module writes to in training mode, and a training of its graph does not.

    Parameters
    ----------
    proto : onnx.ModelProto
        The graph.
    written : sequence of str
        All buffers that the module writes to.

    Returns
    -------
    list of str
        Real buffers that the graph reads; running statistics of BatchNormalization are kept.
    """
    statistics = {n for g in walk_graphs(proto.graph) for node in g.node if node.op_type == "BatchNormalization"
                  for n in node.input[3:]}
    real = {t.name for t in proto.graph.initializer if t.data_type in _REAL}
    return [n for n in written if n in real - statistics]


def _run(module: torch.nn.Module, call: ModuleCall) -> list[torch.Tensor]:
    """Run a module without the fast ways of attention, which put 0 where a mask hides."""
    is_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            return list(list_tensors(call.run(module)))
    finally:
        torch.backends.mha.set_fastpath_enabled(is_fast)


def _compare(y: np.ndarray, t: torch.Tensor) -> str:
    """How an output of the graph differs from that of the module; "" where it does not."""
    if y.shape != tuple(t.shape):
        return f"has the shape {list(y.shape)}, and the module's has {list(t.shape)}"
    if not t.dtype.is_floating_point:
        return "" if np.array_equal(y, t.numpy(force=True)) else "has other numbers than the module's"
    a, b = (np.asarray(v, np.float64) for v in (y, t.double().numpy(force=True)))
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        return "is not finite where the module's is, or the other way round"
    difference, scale = np.abs(a - b)[finite].max(initial=0), np.abs(b)[finite].max(initial=0)
    is_near = difference <= _TOLERANCES.get(t.dtype, 5e-2) * max(scale, 1e-3)
    return "" if is_near else f"differs from the module's by {difference:.2g}, where its numbers go up to {scale:.2g}"
