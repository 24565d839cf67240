"""The state of a graph that becomes a module: which initializers are parameters, and which buffers."""

from __future__ import annotations

from ortpartial.autodiff import WeightSelection, find_default_weights, find_trainable, resolve_weights, warn_of_rounding
from ortpartial.model import Model
from ortpartial.rewrites import find_statistics

__all__ = ["choose_state"]


def choose_state(model: Model, names: WeightSelection | None) -> tuple[list[str], list[str]]:
    """Choose the initializers that become parameters, and those that become buffers.

    Parameters
    ----------
    model : Model
        The graph.
    names : str, sequence of str, or callable, optional
        The parameters, as for `resolve_weights`, or none of them if it is empty; by default the initializers on a
        differentiable path to an output.

    Returns
    -------
    tuple of list of str and list of str
    """
    outputs = [n for n, v in model.outputs.items() if v.is_float]
    if names is None:
        default = find_default_weights(model, outputs)
        warn_of_rounding(model, outputs, default)
        parameters = [n for n, v in model.initializers.items() if v in default]
    else:
        is_empty = not (callable(names) or len(names))
        parameters = [] if is_empty else resolve_weights(model, names, outputs)
    reached, running = find_trainable(model.outputs[o] for o in outputs), find_statistics(model)
    buffers = [n for n, v in model.initializers.items() if (v in reached or n in running) and n not in parameters]
    return parameters, buffers
