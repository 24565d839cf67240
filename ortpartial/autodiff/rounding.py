"""Gradients that the rounding of a quantization ends: an error, in place of zeros that nobody asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from onnx import TensorProto

from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Node, Value, gradient_reads
from ortpartial.model import QUANTIZERS, can_pass_straight_through

from .registry import is_constant

__all__ = ["check_rounding", "explain_rounding", "find_roundings", "is_quantized_number", "rounds"]

#: Element types of sizes, indices and conditions, which are no numbers of a quantization.
_DISCRETE = frozenset({TensorProto.BOOL, TensorProto.INT64})

#: Element types of quantizations alone; opaque operators compute indices in 32 and 64 bits.
_QUANTIZED = frozenset({TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.INT4,
                        TensorProto.UINT4})

#: Operators that round the product of two inputs, whose scales are their second and fifth input.
_PRODUCTS = frozenset({"QLinearConv", "QLinearMatMul"})


def check_rounding(order: Sequence[Node], outputs: Sequence[Value], targets: Collection[Value],
                   cut: Collection[Value]) -> None:
    """Raise an error where a quantization on a path from the targets to the outputs rounds.

    `order` has the nodes that depend on the targets differentiably.
    """
    nodes, targets = set(order), set(targets)
    for node in order:
        scales = (node.inputs[1], node.inputs[4]) if node.op_type in _PRODUCTS and not node.domain else ()
        if any(x in targets or (x is not None and x.node in nodes) for x in scales):
            raise NoGradientError(explain_rounding(node, node))
    if not any(map(rounds, order)):
        return
    for node, reader in find_roundings(outputs, cut):
        x = node.inputs[0]
        if node in nodes and x is not None and (x in targets or x.node in nodes):
            raise NoGradientError(explain_rounding(node, reader))


def find_roundings(outputs: Iterable[Value], cut: Collection[Value] = ()) -> list[tuple[Node, Node]]:
    """Nodes that round to numbers of a quantization, which outputs depend on, and a node that reads each."""
    roundings: dict[Node, Node] = {}
    seen: set[int] = set()
    stack: list[tuple[Value, Node | None]] = [(y, None) for y in outputs]
    while stack:
        v, reader = stack.pop()
        if v.node is None or v in cut or v.type.tensor_type.elem_type in _DISCRETE:
            continue
        exact = v.is_float and (v.node.is_opaque or v.node.op_type == "DynamicQuantizeLinear")
        if rounds(v.node) and not exact:
            roundings.setdefault(v.node, reader or v.node)
        if id(v.node) not in seen and not is_constant(v.node):
            seen.add(id(v.node))
            # The walk goes on inside of bodies, and from there to captured values.
            inside = [y for body in v.node.bodies for y in body.outputs]
            reads = [x for x in v.node.inputs if x is not None] if inside else gradient_reads(v.node)
            stack.extend((x, v.node) for x in (*reads, *inside))
    return list(roundings.items())


def rounds(node: Node) -> bool:
    """Whether a node rounds real numbers to a quantization; an opaque node does if its types say so."""
    return node.op_type in QUANTIZERS or (node.is_opaque and any(map(is_quantized_number, node.outputs)))


def is_quantized_number(v: Value) -> bool:
    """Whether a value has the type of the numbers of a quantization."""
    return v.type.tensor_type.elem_type in _QUANTIZED


def explain_rounding(node: Node, reader: Node) -> str:
    """The reason why no gradient passes through a node that rounds, with advice."""
    of = f" (output {node.outputs[0].hint!r})" if node.outputs[0].hint else ""
    problem = f"{node!r}{of} rounds, and no gradient passes through it."
    if can_pass_straight_through(reader):
        return (f"{problem} Give load(model, straight_through=True) in place of the model to pass gradients through "
                f"rounding unchanged, or leave out what is before this node.")
    return (f"{problem} How one would pass straight through {reader!r}, which reads the result, is not known; leave "
            f"out what is before it.")
