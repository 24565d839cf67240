"""A model as the function that a layer computes: in training or inference mode, in a dtype, for some sizes or all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ortpartial.annotations import DTypeLike
from ortpartial.graph import Value, find_reached
from ortpartial.model import Model, specialize
from ortpartial.rewrites import DropoutMask, RunningStatistic, prepare_training, rewrite_model, to_dtype
from ortpartial.texts import free_name
from ortpartial.training import GraphFunction

__all__ = ["LayerFunction", "make_layer_function"]


@dataclass(frozen=True)
class LayerFunction:
    """A model as a function, with the masks and statistics of training mode.

    Parameters
    ----------
    function : GraphFunction
        Its leaves are the inputs of the model, then `initializers`, then `masks`.
    initializers : list of str
        The initializers that are passed in and read.
    masks : dict of str to DropoutMask
        The masks of Dropout, drawn for each run.
    statistics : list of RunningStatistic
        The running statistics; the batch's are the last outputs of the function.
    """

    function: GraphFunction
    initializers: list[str]
    masks: dict[str, DropoutMask]
    statistics: list[RunningStatistic]


def make_layer_function(
    model: Model, initializers: Sequence[str], *, training: bool = False, dtype: DTypeLike | None = None,
    sizes: Mapping[str, Sequence[int]] | None = None, is_rewritten: bool = True,
) -> LayerFunction:
    """Make the function of a model.

    Parameters
    ----------
    model : Model
        The model.
    initializers : sequence of str
        Initializers that are passed in at each run.
    training : bool
        Whether Dropout and BatchNormalization train.
    dtype : numpy dtype, optional
        The dtype of all real numbers; their own if left out.
    sizes : dict of str to sequence of int, optional
        The shapes of the inputs, if the function is for these alone.
    is_rewritten : bool
        Whether the model is simplified first.

    Returns
    -------
    LayerFunction
    """
    model = specialize(model, variables=initializers, batch=sizes)
    if is_rewritten:
        model = rewrite_model(model, train_mode=training, dtype=dtype)
    elif dtype is not None:
        model = to_dtype(model, dtype)
    trained = prepare_training(model, train_mode=training)
    model = trained.model
    statistics: dict[str, Value] = {}
    for i, s in enumerate(trained.statistics):
        statistics[free_name(f"statistic_{i}", model.values)] = s.batch
    outputs = {**model.outputs, **statistics}
    read = find_reached(outputs.values(), model.initializers.values())
    weights = {n: model.initializers[n] for n in initializers if model.initializers[n] in read}
    leaves = {**model.inputs, **weights}
    leaves.update({n: leaves.pop(n) for n in trained.masks})  # Masks come last, after the inputs of the model.
    function = GraphFunction(leaves, outputs, nondifferentiable=frozenset(statistics))
    return LayerFunction(function, list(weights), trained.masks, trained.statistics)
