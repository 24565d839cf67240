"""Which models must not be read? Those that end or hang onnx or onnxruntime, although they pass onnx's checker."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, numpy_helper

from ortpartial.exceptions import ModelError
from ortpartial.graph import Value

from .walk import walk_protos

__all__ = ["check_proto", "check_size"]

#: Whole numbers in attributes that are data, or "to the end"; any other beyond 32 bits overflows inside of onnx 1.23.2.
_ANY_NUMBER = frozenset({"ends", "ignore_index", "starts", "value_int", "value_ints"})

#: Attributes that are sizes, steps or numbers of groups, which onnx and onnxruntime divide by or count with.
_POSITIVE = frozenset({"blocksize", "dilations", "group", "hidden_size", "kernel_shape", "num_groups", "num_outputs",
                       "offset_group", "output_height", "output_width", "pooled_shape", "sample_size",
                       "strides"})

#: No window is larger than this along an axis, nor is its padding; larger ones overflow, or take hours.
_WINDOW = frozenset({"dilations", "kernel_shape", "output_padding", "pads", "sampling_ratio", "strides"})
LARGEST_WINDOW = 2**20

_LARGEST = 2**31 - 1
_FUNCTION_DEPTH, _FUNCTION_NODES = 100, 1_000_000


# -- before onnx itself reads the model


def check_proto(model: ModelProto) -> None:
    """Refuse what ends onnx's own inference and inlining, or makes them endless.

    Parameters
    ----------
    model : onnx.ModelProto
        The model as it was given.

    Raises
    ------
    ModelError
        Functions that call themselves or grow without measure, attributes out of range, a Loop without end.
    """
    functions = {(f.domain, f.name): f for f in model.functions}
    _Expansion(functions).count(model.graph.node, ())
    for container in (model.graph, *model.functions):
        for node in walk_protos(container):
            for a in node.attribute:
                _check_attribute(node, a)
            if node.op_type == "Einsum":
                _check_equation(node)
            if node.op_type == "Loop":
                _check_loop(node, container)


@dataclass(frozen=True)
class _Expansion:
    """Counts the nodes that inlining gives, without inlining."""

    functions: Mapping[tuple[str, str], FunctionProto]
    known: dict[tuple[str, str], int] = field(default_factory=dict)

    def count(self, nodes: Sequence[NodeProto], calls: tuple[tuple[str, str], ...]) -> int:
        """How many nodes these become; an error for a function that calls itself."""
        total = 0
        for node in nodes:
            total += 1
            key = node.domain, node.op_type
            if key in self.functions:
                total += self._function(key, calls)
            for a in node.attribute:
                for graph in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs):
                    total += self.count(graph.node, calls)
        if total > _FUNCTION_NODES:
            raise ModelError(f"The functions of the model would be inlined into {total} nodes; {_FUNCTION_NODES} are "
                             f"the most that is taken.")
        return total

    def _function(self, key: tuple[str, str], calls: tuple[tuple[str, str], ...]) -> int:
        name = ".".join(key)
        if key in calls:
            raise ModelError(f"The function {name!r} calls itself, which ONNX does not allow; write it as a Loop.")
        if len(calls) >= _FUNCTION_DEPTH:
            raise ModelError(f"The function {name!r} is called at a depth of more than {_FUNCTION_DEPTH} functions; "
                             f"inline some of them.")
        if key not in self.known:
            self.known[key] = self.count(self.functions[key].node, (*calls, key))
        return self.known[key]


def _named(node: NodeProto) -> str:
    """A node as errors call it."""
    return f"Node {node.name or '(unnamed)'} ({node.op_type}, output {node.output[0] if node.output else ''!r})"


def _check_attribute(node: NodeProto, a: AttributeProto) -> None:
    """Sizes and steps are positive, and nothing is beyond 32 bits."""
    numbers = [a.i] if a.type == AttributeProto.INT else list(a.ints)
    if node.domain not in ("", "ai.onnx") or not numbers or a.name in _ANY_NUMBER:
        return
    largest = LARGEST_WINDOW if a.name in _WINDOW else _LARGEST
    least = 1 if a.name in _POSITIVE or (node.op_type, a.name) in {("LRN", "size"), ("LpPool", "p")} else -largest
    if wrong := [n for n in numbers if not least <= n <= largest]:
        raise ModelError(f"{_named(node)} has {a.name} of {wrong[0]}, where {least} to {largest} were expected.")
    if a.name == "kernel_shape" and (size := math.prod(numbers)) > 64 * LARGEST_WINDOW:
        raise ModelError(f"{_named(node)} has a kernel of {size} elements, where {64 * LARGEST_WINDOW} are the most.")


def _check_equation(node: NodeProto) -> None:
    """A term of Einsum has one ellipsis at most: with several, inference takes time without end."""
    for a in node.attribute:
        for term in a.s.decode("utf-8", "replace").replace("->", ",").split(","):
            if term.count(".") not in (0, 3) or (term.count(".") and "..." not in term.replace(" ", "")):
                raise ModelError(f"{_named(node)} has the equation {a.s.decode('utf-8', 'replace')!r}, a term of which "
                                 f"has {term.count('.')} dots, where one ellipsis of three was expected.")


def _check_loop(node: NodeProto, container: GraphProto | FunctionProto) -> None:
    """A Loop must be able to end: with a count, or with a condition that its body computes."""
    stored = {t.name: numpy_helper.to_array(t) for t in getattr(container, "initializer", ()) if not any(
        d > 1 for d in t.dims)}
    for other in container.node:
        if other.op_type == "Constant" and other.attribute and other.attribute[0].name == "value":
            stored[other.output[0]] = numpy_helper.to_array(other.attribute[0].t)
    most, first = (*node.input, "", "")[:2]
    if most and not (most in stored and stored[most].size and stored[most].flat[0] > 2**40):
        return
    if first and not (first in stored and stored[first].all()):
        return
    body = next(a.g for a in node.attribute if a.name == "body")
    makers = {o: n for n in body.node for o in n.output}
    stored_inside = {t.name: numpy_helper.to_array(t) for t in body.initializer}
    name = body.output[0].name
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    inside = makers.get(name)
    if inside is not None and inside.op_type == "Constant" and inside.attribute[0].name == "value":
        stored_inside[name] = numpy_helper.to_array(inside.attribute[0].t)
    handed_on = len(body.input) > 1 and name == body.input[1].name
    if handed_on or name in stored or (name in stored_inside and stored_inside[name].all()):
        raise ModelError(f"{_named(node)} can never end: it has no trip count, and its condition is always true. Give "
                         f"it a trip count.")


# -- before a tensor becomes part of a graph


def check_size(value: Value, what: str) -> None:
    """Refuse a tensor that has negative sizes or is larger than the memory of the machine.

    Parameters
    ----------
    value : Value
        The tensor; sizes that are not known count as 1.
    what : str
        What to call it.

    Raises
    ------
    ModelError
    """
    sizes = [d for d in value.shape or () if isinstance(d, int)]
    if any(d < 0 for d in sizes):
        raise ModelError(f"{what} has the shape {value.shape}, a size of which is negative.")
    if math.prod(sizes) < 2**20 or not value.type.tensor_type.elem_type:
        return
    if (needed := math.prod(sizes) * value.dtype.itemsize) > (memory := _memory()):
        raise ModelError(f"{what} has the shape {value.shape} and needs {needed / 2**30:.1f} GiB, where "
                         f"{memory / 2**30:.1f} GiB are all that there is.")


def _memory() -> int:
    """Memory of the machine, or what a limit leaves this process of it, in bytes."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        import resource  # not on Windows

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        return found if limit == resource.RLIM_INFINITY else min(found, limit)
    except (ImportError, AttributeError, ValueError):
        return 2**40
