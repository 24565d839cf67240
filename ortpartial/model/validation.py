"""Validation of models: refusals of models that crash or hang onnx or onnxruntime, but pass onnx's checker."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, numpy_helper

from ortpartial.exceptions import ModelError
from ortpartial.graph import Value

from .walk import walk_protos

__all__ = ["available_memory", "check_equation", "check_numbers", "check_proto", "check_size"]

#: Attributes whose whole numbers may be of any size; in others, a number beyond 32 bits overflows inside onnx 1.23.2.
_ANY_NUMBER = frozenset({"ends", "ignore_index", "starts", "value_int", "value_ints"})

#: Attributes that must be positive: onnx and onnxruntime divide by them or count with them.
_POSITIVE = frozenset({"blocksize", "dilations", "group", "hidden_size", "kernel_shape", "num_groups", "num_outputs",
                       "offset_group", "output_height", "output_width", "pooled_shape", "sample_size",
                       "strides"})

#: Attributes of windows, and their largest size along an axis: larger windows overflow, or take hours.
_WINDOW = frozenset({"dilations", "kernel_shape", "output_padding", "pads", "sampling_ratio", "strides"})
LARGEST_WINDOW = 2**20

LARGEST_INT32 = 2**31 - 1
_FUNCTION_DEPTH, _FUNCTION_NODES = 100, 1_000_000


# -- checks before onnx reads the model


def check_proto(model: ModelProto) -> None:
    """Refuse a model that crashes or hangs onnx's own inference and inlining.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, not validated yet.

    Raises
    ------
    ModelError
        A function that calls itself or grows too large, an attribute out of range, or a Loop without end.
    """
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    _InlinedSize(functions).count(model.graph.node, ())
    for container in (model.graph, *model.functions):
        for node in walk_protos(container):
            if node.domain not in ("", "ai.onnx"):
                continue
            numbers = {a.name: [a.i] if a.type == AttributeProto.INT else a.ints for a in node.attribute}
            check_numbers(node.op_type, numbers, _describe(node))
            for a in node.attribute:
                if node.op_type == "Einsum":
                    check_equation(a.s.decode("utf-8", "replace"), _describe(node))
            if node.op_type == "Loop":
                _check_loop(node, container)


@dataclass(frozen=True)
class _InlinedSize:
    """Counts the nodes that inlining would give, without inlining."""

    functions: Mapping[tuple[str, str, str], FunctionProto]
    sizes: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def count(self, nodes: Sequence[NodeProto], calls: tuple[tuple[str, str, str], ...]) -> int:
        """The number of nodes that these become; an error for a function that calls itself."""
        total = 0
        for node in nodes:
            total += 1
            key = node.domain, node.op_type, node.overload
            if key in self.functions:
                total += self._function(key, calls)
            for a in node.attribute:
                for graph in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs):
                    total += self.count(graph.node, calls)
        if total > _FUNCTION_NODES:
            raise ModelError(f"The functions of the model would be inlined into {total} nodes; {_FUNCTION_NODES} are "
                             f"the most that are accepted.")
        return total

    def _function(self, key: tuple[str, str, str], calls: tuple[tuple[str, str, str], ...]) -> int:
        name = ".".join(filter(None, key))
        if key in calls:
            raise ModelError(f"The function {name!r} calls itself, which ONNX does not allow; write it as a Loop.")
        if len(calls) >= _FUNCTION_DEPTH:
            raise ModelError(f"Calls are nested more than {_FUNCTION_DEPTH} deep at the function {name!r}; inline some "
                             f"of them.")
        if key not in self.sizes:
            self.sizes[key] = self.count(self.functions[key].node, (*calls, key))
        return self.sizes[key]


def _describe(node: NodeProto) -> str:
    """The node as errors name it."""
    return f"Node {node.name or '(unnamed)'} ({node.op_type}, output {node.output[0] if node.output else ''!r})"


def check_numbers(op_type: str, attributes: Mapping[str, Sequence[int]], where: str) -> None:
    """Refuse sizes and steps that are not positive, and numbers beyond 32 bits.

    Parameters
    ----------
    op_type : str
        An operator of the default domain.
    attributes : dict of str to sequence of int
        Its attributes, as far as they are whole numbers.
    where : str
        The node as the error names it.

    Raises
    ------
    ModelError
    """
    for name, numbers in attributes.items():
        if name in _ANY_NUMBER:
            continue
        largest = LARGEST_WINDOW if name in _WINDOW else LARGEST_INT32
        least = 1 if name in _POSITIVE or (op_type, name) in {("LRN", "size"), ("LpPool", "p")} else -largest
        if wrong := [n for n in numbers if not least <= n <= largest]:
            raise ModelError(f"{where} has {name} of {wrong[0]}, where {least} to {largest} were expected.")
        if name == "kernel_shape" and (size := math.prod(numbers)) > 64 * LARGEST_WINDOW:
            raise ModelError(f"{where} has a kernel of {size} elements; {64 * LARGEST_WINDOW} are the most.")


def check_equation(equation: str, where: str) -> None:
    """Refuse several ellipses in a term of Einsum, with which inference never ends.

    Parameters
    ----------
    equation, where : str
        The equation, and the node as the error names it.

    Raises
    ------
    ModelError
    """
    for term in equation.replace("->", ",").split(","):
        if term.count(".") not in (0, 3) or (term.count(".") and "..." not in term.replace(" ", "")):
            raise ModelError(f"{where} has the equation {equation!r}, with a term of {term.count('.')} dots, where one "
                             f"ellipsis of three was expected.")


def _check_loop(node: NodeProto, container: GraphProto | FunctionProto) -> None:
    """Refuse a Loop without end: it has neither a trip count nor a condition that its body computes."""
    trips, condition = (*node.input, "", "")[:2]
    count = _find_constant(container, trips) if trips else None
    if trips and (count is None or not count.size or count.flat[0] <= LARGEST_INT32):
        return
    if condition and ((first := _find_constant(container, condition)) is None or not first.all()):
        return
    body = next((a.g for a in node.attribute if a.name == "body"), None)
    if body is not None and _keeps_condition(body, container):  # Where there is none, the reader says so.
        raise ModelError(f"{_describe(node)} can never end: it has no trip count, and its condition is always true. "
                         f"Give it a trip count up to {LARGEST_INT32}.")


def _keeps_condition(body: GraphProto, container: GraphProto | FunctionProto) -> bool:
    """Whether the body of a Loop hands on the condition that it reads, or a condition that is always true."""
    makers = {o: n for n in body.node for o in n.output}
    name = body.output[0].name
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    if len(body.input) > 1 and name == body.input[1].name:
        return True
    following = [c for g in (body, container) if (c := _find_constant(g, name)) is not None]
    return bool(following and following[0].all())


def _find_constant(container: GraphProto | FunctionProto, name: str) -> np.ndarray | None:
    """The content of an initializer or of a Constant node; None where the tensor is computed."""
    for t in getattr(container, "initializer", ()):
        if t.name == name:
            return numpy_helper.to_array(t)
    for node in container.node:
        if name in node.output and node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            return numpy_helper.to_array(node.attribute[0].t)
    return None


# -- checks of single tensors


#: Where the kernel tells the memory that a container may use, by the version of its control groups.
_CONTAINER = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_size(value: Value, what: str) -> None:
    """Refuse a tensor of negative sizes, or larger than the memory of the machine.

    Parameters
    ----------
    value : Value
        The tensor; unknown sizes count as 1.
    what : str
        The tensor or its node as the error names it.

    Raises
    ------
    ModelError
    """
    sizes = [d for d in value.shape or () if isinstance(d, int)]
    if any(d < 0 for d in sizes):
        raise ModelError(f"{what} has the shape {value.shape} with a negative size.")
    if math.prod(sizes) < 2**20 or not value.type.tensor_type.elem_type:
        return
    if (needed := math.prod(sizes) * value.dtype.itemsize) > (memory := available_memory()):
        raise ModelError(f"{what} has the shape {value.shape} and needs {needed / 2**30:.1f} GiB, where "
                         f"{memory / 2**30:.1f} GiB are available.")


def available_memory() -> int:
    """The memory that this process may use, in bytes.

    Returns
    -------
    int
    """
    limits = []
    with suppress(AttributeError, ImportError, ValueError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        import resource  # not on Windows

        limits += [n for n in resource.getrlimit(resource.RLIMIT_AS)[:1] if n != resource.RLIM_INFINITY]
    for path in _CONTAINER:
        with suppress(OSError, ValueError):  # ValueError: there is no limit, "max".
            limits.append(int(Path(path).read_text()))
    return min(limits, default=2**40)
