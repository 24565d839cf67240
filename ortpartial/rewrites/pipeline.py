"""The pipeline: which rewrites a model goes through before and after it is differentiated, and in which order.

Every engine, layer and session goes through the same three stages: `rewrite_model`, `prepare_training`, then the
gradient, then `rewrite_step`. Only the lowering to the operators of an installed runtime comes later, in its session.
Each rewrite that changes something logs a line at level DEBUG: see `protocol`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from ortpartial.annotations import DTypeLike
from ortpartial.graph import Value
from ortpartial.model import Model

from .mixed_precision import Precision, to_dtype, to_mixed_precision
from .peephole import apply_peepholes
from .simplify import simplify
from .train_mode import TrainingModel, to_training_mode

__all__ = ["prepare_training", "rewrite_model", "rewrite_step"]


def rewrite_model(model: Model, *, train_mode: bool = False, dtype: DTypeLike | None = None,
                  inputs: Mapping[str, Value] = MappingProxyType({})) -> Model:
    """The model in another dtype and in fewer nodes, which its gradient inherits.

    Parameters
    ----------
    model : Model
        The model, with the sizes that it will run with.
    train_mode : bool
        Whether Dropout is kept, because `prepare_training` turns it on.
    dtype : numpy dtype, optional
        The dtype of all real numbers; by default that of each tensor.
    inputs : dict of str to Value
        Variables in place of inputs, as for `simplify`.

    Returns
    -------
    Model
    """
    model = model if dtype is None else to_dtype(model, dtype)
    return simplify(model, dropout=train_mode, inputs=inputs)


def prepare_training(
    model: Model,
    *,
    train_mode: bool = False,
    mask: Callable[[Value, float, int], Value] | None = None,
    precision: Precision | None = None,
) -> TrainingModel:
    """The model that is differentiated: in training mode, then in mixed precision.

    Parameters
    ----------
    model : Model
        The result of `rewrite_model`.
    train_mode : bool
        Whether Dropout and BatchNormalization are in training mode.
    mask : callable, optional
        Draws the masks of Dropout; by default they are inputs: see `to_training_mode`.
    precision : Precision, optional
        The dtype of products; by default that of the model.

    Returns
    -------
    TrainingModel
    """
    training = to_training_mode(model, mask) if train_mode else TrainingModel(model)
    return training if precision is None else to_mixed_precision(training, precision.dtype, precision.rounds)


def rewrite_step(outputs: Mapping[str, Value], sources: Sequence[Value] = ()) -> dict[str, Value]:
    """The outputs of a step in faster operators; they are run, and not differentiated again.

    Parameters
    ----------
    outputs : dict of str to Value
        Forward, backward and update, by name.
    sources : sequence of Value
        Where the expressions start, if not at variables.

    Returns
    -------
    dict of str to Value
    """
    return dict(zip(outputs, apply_peepholes(list(outputs.values()), list(sources)), strict=True))
