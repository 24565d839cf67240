"""A training step that a model stores, in the operators and for the shapes that it is run with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnx import ModelProto

from ortpartial.graph import Node, Value, rewrite
from ortpartial.learning import descend
from ortpartial.rewrites import rewrite_model, rewrite_step
from ortpartial.training import Names

from .graphs import build_step, list_computed, pairs

__all__ = ["compose_step"]


def compose_step(
    model: ModelProto, entry: int = 0, sizes: Mapping[str, Sequence[int]] | None = None,
    returned: Collection[str] | None = None,
) -> tuple[dict[str, Value], dict[str, Value], dict[str, str]]:
    """Simplify a training step that a model stores, as its engine runs it.

    Parameters
    ----------
    model : onnx.ModelProto
        A model with training information.
    entry : int
        The index of the entry.
    sizes : dict of str to sequence of int, optional
        The shapes of all inputs, if the step is for these alone.
    returned : collection of str, optional
        Of the outputs that are not bound, those to compute, as for `list_computed`.

    Returns
    -------
    inputs, outputs : dict of str to Value
        No outputs where the entry computes nothing.
    new : dict of str to str
        By output, the initializer whose next value it is.
    """
    step, update = build_step(model, entry, sizes), pairs(model.training_info[entry].update_binding)
    inputs, computed = list_computed(step, model.training_info[entry], returned)
    if not computed:
        return inputs, {}, {}
    names = Names.of(step)
    outputs = {n: v for n, v in computed.items() if n not in update.values()}
    outputs |= {names.new(key): computed[value] for key, value in update.items()}
    outputs = rewrite_step(_write_descent(rewrite_model(replace(step, outputs=outputs)).outputs))
    return inputs, outputs, {names.new(key): key for key in update}


def _write_descent(outputs: Mapping[str, Value]) -> dict[str, Value]:
    """Outputs with w - η · step written as `descend` writes it, as in `fit`."""

    def change(node: Node, inputs: Sequence[Any]) -> list[Value] | None:
        if node.op_type != "Sub" or (scaled := inputs[1].node) is None or scaled.op_type != "Mul":
            return None
        eta, step = scaled.inputs
        like = inputs[0].shape is not None and inputs[0].shape == step.shape and inputs[0].is_static
        return [descend(inputs[0], eta, step)] if like and eta.array is not None and not eta.rank else None

    return dict(zip(outputs, rewrite(list(outputs.values()), {}, change), strict=True))
