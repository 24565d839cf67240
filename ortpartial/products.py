"""Which values of a whole step are found faster in another way? Convolutions to few places, as one product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .graph import Node, Value, op, topological
from .rewrite import rewritten
from .rules.sliding import columns, few, known
from .rules.window import window_of

__all__ = ["as_products"]


def as_products(outputs: Sequence[Value]) -> list[Value]:
    """The same values, in operators that take less time.

    It comes after the gradient: what it writes is run, and not differentiated.

    Parameters
    ----------
    outputs : sequence of Value
        The expressions.

    Returns
    -------
    list of Value

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x, w = variable("x", "float32", [8, 4, 3, 3]), variable("w", "float32", [5, 4, 3, 3])
    >>> (y,) = as_products([op.Conv(x, w)])
    >>> y.node.inputs[0].node.op_type
    'Reshape'
    """
    if not any(_is_flat(node, node.inputs) for node in topological(outputs)):
        return list(outputs)
    return rewritten(outputs, {}, _product)


def _product(node: Node, inputs: Sequence[Any]) -> list[Value] | None:
    """A convolution as the product of its weights and of what the window sees in all images."""
    if not _is_flat(node, inputs):
        return None
    x, w, *b = inputs
    y, window = node.outputs[0], window_of(node, x, w)
    seen = op.Gemm(op.Flatten(w), columns(x, known(y) or (), window), *(op.Unsqueeze(v, [1]) for v in b))
    batch, channels, *m = y.shape or ()
    return [op.Transpose(op.Reshape(seen, [channels, batch, *m]), perm=[1, 0, *window.axes])]


def _is_flat(node: Node, inputs: Sequence[Any]) -> bool:
    """Whether a node is a convolution of several images, each to so few places that a product for each is slow."""
    if node.op_type != "Conv" or node.domain or node.attribute("group") != 1:
        return False
    x, w = inputs[:2]
    several = x.is_static and w.is_static and x.shape[0] > 1
    return several and few(x, known(node.outputs[0]) or (), window_of(node, x, w))
