"""Stopping a gradient: the operator StopGradient, which a built graph holds as an Identity with a mark."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto, defs

from .ops import Operators
from .values import Value

__all__ = ["is_gradient_stop", "mark_gradient_stop", "stop_gradient"]

#: The domain of operators that every runtime knows by another name.
DOMAIN = "ortpartial"

#: The key of the metadata that tells a StopGradient from an Identity in a file.
_MARK = "ortpartial.stop_gradient"


def _register() -> None:
    """Declare the operator; its output has the type and the shape of its input."""
    formal = defs.OpSchema.FormalParameter
    schema = defs.OpSchema(
        "StopGradient", DOMAIN, 1, inputs=[formal("X", "T")], outputs=[formal("Y", "T")],
        type_constraints=[("T", sorted(defs.get_schema("Identity", 1).inputs[0].types), "")],
    )
    schema.set_type_and_shape_inference_function(_infer)
    defs.register_schema(schema)


def _infer(context: Any) -> None:
    context.set_output_type(0, context.get_input_type(0))


if not defs.has("StopGradient", DOMAIN):
    _register()

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


def mark_gradient_stop(proto: NodeProto) -> None:
    """Turn a StopGradient of a graph that is being built into an Identity with a mark."""
    proto.op_type, proto.domain = "Identity", ""
    proto.metadata_props.add(key=_MARK, value="1")


def is_gradient_stop(proto: NodeProto) -> bool:
    """Whether a node of a stored graph is an Identity that stops the gradient."""
    return proto.op_type == "Identity" and any(p.key == _MARK for p in proto.metadata_props)
