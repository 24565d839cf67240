"""Gradients replaced: StopGradient, and StraightThrough, which has the gradient of another value.

A built graph holds a StopGradient as an Identity with a mark, and the computed value of a StraightThrough.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from onnx import NodeProto, defs
from onnx.shape_inference import InferenceContext

from ortpartial.annotations import Inputs

from .ops import Operators, make_node
from .rewriter import rewrite
from .schemas import accepted_types, register_schema, schema_of
from .values import Node, Value, topological

__all__ = ["drop_straight_through", "gradient_reads", "is_gradient_stop", "mark_gradient_stop", "replace_gradient",
           "stop_gradient", "write_gradient_change"]

#: The domain of operators that every runtime knows by another name.
DOMAIN = "ortpartial"

#: The key of the metadata that tells a StopGradient from an Identity in a file.
_MARK = "ortpartial.stop_gradient"


def _register(op_type: str, inputs: str) -> None:
    """Declare an operator whose output has the type and the shape of its first input."""
    formal = defs.OpSchema.FormalParameter
    tensors = sorted(t for t in accepted_types(defs.get_schema("Identity"), 0) if t.startswith("tensor"))
    schema = defs.OpSchema(
        op_type, DOMAIN, 1, inputs=[formal(n, "T") for n in inputs], outputs=[formal("Y", "T")],
        type_constraints=[("T", tensors, "")],
    )
    register_schema(schema, _infer)


def _infer(context: InferenceContext) -> None:
    context.set_output_type(0, context.get_input_type(0))


for _name, _inputs in (("StopGradient", "X"), ("StraightThrough", "XG")):
    if not defs.has(_name, DOMAIN):
        _register(_name, _inputs)

_op: Any = Operators(DOMAIN)


def stop_gradient(x: Value) -> Value:
    """x itself, as a constant of every derivative: its gradient is zero.

    A built graph computes it by an Identity that any runtime runs. The node has the metadata
    ``ortpartial.stop_gradient``, by which `load` restores it; a tool that drops metadata lets the gradient through.

    Parameters
    ----------
    x : Value
        Any tensor.

    Returns
    -------
    Value
        Of the type and shape of x.

    Examples
    --------
    >>> from ortpartial.autodiff import grad
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float32", ["N"])
    >>> stop_gradient(x)
    <Value StopGradient float32[N]>
    >>> (dx,) = grad(x * stop_gradient(x), [x])  # x and not 2 x
    """
    return _op.StopGradient(x)


def replace_gradient(y: Value, x: Value) -> Value:
    """y with the gradient of x, which is computed only as far as the gradient reads it.

    Parameters
    ----------
    y, x : Value
        Tensors of the same type and shape.

    Returns
    -------
    Value
        Of the type and shape of y.

    Examples
    --------
    >>> from ortpartial.autodiff import grad
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", ["N"])
    >>> (dx,) = grad(replace_gradient(op.Round(x), x), [x])  # ones and not zeros
    """
    return make_node(schema_of("StraightThrough", DOMAIN, 1), [y, x], {}, hints=[y.hint]).outputs[0]


def gradient_reads(node: Node) -> tuple[Value, ...]:
    """Inputs of a node that its gradient goes to: all, and of some operators the first or the last alone."""
    if node.op_type == "StraightThrough":
        return node.reads[1:]
    return node.reads[:1] if node.op_type == "CastLike" else node.reads  # of the other input, the type alone is read


def drop_straight_through(values: Sequence[Value], cut: Collection[Value] = ()) -> list[Value]:
    """Expressions without StraightThrough, which compute the same.

    Those in bodies remain, as a gradient may read from there the way to the second input.
    """
    passing = {node for node in topological(values, cut) if node.op_type == "StraightThrough"}
    if not passing:
        return list(values)

    def drop(node: Node, inputs: Inputs) -> list[Value] | None:
        return [inputs[0]] if node in passing else None

    return rewrite(values, {}, drop, list(cut))


def write_gradient_change(proto: NodeProto) -> None:
    """Turn a StopGradient of a graph being built into a marked Identity, a StraightThrough into an Identity."""
    if proto.op_type == "StopGradient":
        mark_gradient_stop(proto)
    proto.op_type, proto.domain = "Identity", ""
    del proto.input[1:]


def mark_gradient_stop(proto: NodeProto) -> None:
    """Let an Identity of a stored graph stop the gradient."""
    proto.metadata_props.add(key=_MARK, value="1")


def is_gradient_stop(proto: NodeProto) -> bool:
    """Whether a node of a stored graph is an Identity that stops the gradient."""
    return proto.op_type == "Identity" and any(p.key == _MARK for p in proto.metadata_props)
