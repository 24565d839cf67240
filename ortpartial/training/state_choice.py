"""The state of a graph that becomes a module: which initializers are parameters, and which buffers."""

from __future__ import annotations

from collections.abc import Sequence

from ortpartial.autodiff import WeightSelection, find_default_weights, find_trainable, resolve_weights, warn_of_rounding
from ortpartial.checks import check_names
from ortpartial.model import Model, TorchRecord, read_torch
from ortpartial.rewrites import find_statistics

__all__ = ["choose_state"]


def choose_state(model: Model, names: WeightSelection | None) -> tuple[list[str], list[str]]:
    """Choose the initializers that become parameters, and the initializers that become buffers.

    Parameters
    ----------
    model : Model
        The graph.
    names : str, sequence of str, or callable, optional
        The parameters, as for `resolve_weights`, or none of them if it is empty; by default the initializers on a
        differentiable path to an output, and in a model of `ortpartial.torch.export` the parameters of the module with
        ``requires_grad``, which has its buffers and its other parameters for buffers, too.

    Returns
    -------
    tuple of list of str and list of str
    """
    outputs, record = [n for n, v in model.outputs.items() if v.is_float], read_torch(model.proto)
    if names is not None and not callable(names):
        names = check_names("trainable", names)
    parameters = _choose_default(model, outputs, record) if names is None else (
        resolve_weights(model, names, outputs) if names else [])
    reached, state = find_trainable(model.outputs[o] for o in outputs), find_statistics(model)
    constants: Sequence[str] = ()
    if record is not None:
        constants = record.constants
        state += [n for n in (*record.parameters, *record.frozen, *record.buffers) if n in model.initializers]
    left = {n: v for n, v in model.initializers.items() if v.is_float and n not in parameters and n not in constants}
    return parameters, [n for n, v in left.items() if v in reached or n in state]


def _choose_default(model: Model, outputs: Sequence[str], record: TorchRecord | None) -> list[str]:
    """The weights that are trained by default, or by torch's module."""
    default, trained = find_default_weights(model, outputs), () if record is None else record.parameters
    warn_of_rounding(model, outputs, default)
    return [n for n, v in model.initializers.items() if v in default or (n in trained and v.is_float)]
