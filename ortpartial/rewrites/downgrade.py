"""Opset downgrade: operators that are newer than a runtime, in their older form or as their function body."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from onnx import ModelProto, defs

from ortpartial.exceptions import GraphError, ModelError
from ortpartial.graph import Node, Value, build, defaults, make_node, rewrite, schema_of, topological, walk_nodes
from ortpartial.model import expand_body, load

from .protocol import count_case, numbered

__all__ = ["downgrade_opset"]


@numbered("older_form", "body")
def downgrade_opset(model: ModelProto, newest: int) -> ModelProto:
    """The model in operators of an older opset.

    1. `older_form`: An operator that the opset has takes its older form.
    2. `body`: Another operator is expanded into its function body.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which is not changed.
    newest : int
        The opset, 21 or later.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        An operator is newer and has no function body; the message names the node.

    Examples
    --------
    >>> from ortpartial.graph import op, variable
    >>> x = variable("x", "float32", ["N"])
    >>> [node.op_type for node in downgrade_opset(build([x], {"y": op.Swish(x)}), 21).graph.node]
    ['CastLike', 'Mul', 'Sigmoid', 'Mul']
    """
    loaded = load(model)
    outputs = list(loaded.outputs.values())
    while any(_is_newer(node, newest) for node in walk_nodes(topological(outputs))):
        outputs = rewrite(outputs, {}, lambda node, inputs: _downgrade_node(node, inputs, newest))
    return build(loaded.inputs, dict(zip(loaded.outputs, outputs, strict=True)), name=model.graph.name)


def _is_newer(node: Node, newest: int) -> bool:
    """Whether the form of an operator is newer than an opset."""
    return not node.domain and node.schema.since_version > newest


def _downgrade_node(node: Node, inputs: Sequence[Value | None], newest: int) -> list[Value] | None:
    """The outputs of a node in an older form of the operator, or its function body, which may hold newer ones again."""
    if not _is_newer(node, newest):
        return None
    make = partial(make_node, arguments=inputs, n_outputs=len(node.outputs), name=node.name)
    if defs.has(node.op_type, newest, ""):
        old = schema_of(node.op_type, "", newest)
        attributes = {k: v for k, v in node.attributes.items()
                      if k in old.attributes or v != defaults(node.schema).get(k)}
        count_case("older_form")
        try:
            return list(make(old, attributes=attributes).outputs)
        except GraphError as e:
            raise ModelError(f"{node!r} cannot be written for opset {newest}, the runtime's newest: {e}") from None
    body = expand_body(make(node.schema, attributes=node.attributes))
    if body is None:
        raise ModelError(
            f"{node!r} is of opset {node.schema.since_version}, this runtime knows opsets up to {newest}, and ONNX has "
            f"no body for it in older operators; install a newer onnxruntime."
        )
    count_case("body")
    return body
