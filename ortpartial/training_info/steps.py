"""Training steps that a model stores: each entry as a part of a step, in the operators that it is run with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from onnx import ModelProto

from ortpartial.execution import GraphPart, StepNames
from ortpartial.graph import Value

from .graphs import build_step, list_computed, pairs

__all__ = ["compose_step", "read_part"]


def read_part(model: ModelProto, entry: int = 0, returned: Collection[str] | None = None) -> GraphPart:
    """Read an entry of the training that a model stores.

    Parameters
    ----------
    model : onnx.ModelProto
        A model with training information.
    entry : int
        The index of the entry.
    returned : collection of str, optional
        The outputs to compute among the unbound, as for `list_computed`.

    Returns
    -------
    GraphPart
        Without outputs where the entry computes nothing.
    """
    step, info = build_step(model, entry), model.training_info[entry]
    inputs, outputs = list_computed(step, info, returned)
    return GraphPart(replace(step, inputs=inputs, outputs=outputs), pairs(info.update_binding) if outputs else {})


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
        The outputs to compute among the unbound, as for `list_computed`.

    Returns
    -------
    inputs, outputs : dict of str to Value
        No outputs where the entry computes nothing.
    new : dict of str to str
        By output, the initializer whose next value it is.
    """
    part = read_part(model, entry, returned)
    if not part.model.outputs:
        return dict(part.model.inputs), {}, {}
    names = StepNames.beside(part.model.values)
    if sizes is not None:
        part = part.for_shapes(sizes)
    step = part.compose(names)
    return dict(part.model.inputs), dict(step.outputs), {new: key for key, new in step.state.items()}
