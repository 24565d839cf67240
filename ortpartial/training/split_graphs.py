"""What do the parts of a step compute when each is run apart? Forward, loss, backward, penalty and update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from onnx import ModelProto

from ortpartial.autodiff import grad
from ortpartial.graph import Value, build, find_inputs, variable
from ortpartial.learning import BaseLearningLoss, BaseLearningPenalty, BaseLearningRate
from ortpartial.model import Model

from .step import Names, append_update, known_rank, make_targets, mean_loss, row_losses_of, sum_values

__all__ = ["forward_graph", "loss_graph", "penalty_graph", "row_loss_graph", "update_graph"]


def update_graph(
    weights: Mapping[str, Value], rate: BaseLearningRate, names: Names, *, penalised: Iterable[str] = ()
) -> ModelProto:
    """The update of all weights as one model: (gradients, those of the penalty, iteration, weights, states) -> the new.

    Parameters
    ----------
    weights : dict of str to Value
        What is updated.
    rate : BaseLearningRate
        How.
    names : Names
        How the values are called.
    penalised : iterable of str
        Weights that have a penalty.

    Returns
    -------
    onnx.ModelProto
    """
    penalised = set(penalised)
    k = variable(names.iteration, np.int64, [])
    inputs: dict[str, Value] = {}
    gradients = []
    for name, v in weights.items():
        parts = [names.grad(name)] + [names.penalty_grad(name)] * (name in penalised)
        inputs.update({p: variable(p, v.dtype, v.shape) for p in parts})
        gradients.append(sum_values([inputs[p] for p in parts]))
    inputs[names.iteration] = k
    outputs: dict[str, Value] = {}
    append_update(rate, weights, gradients, k, names, inputs, outputs)
    return build(inputs, outputs, name="learning_rate")


def penalty_graph(
    weights: Mapping[str, Value], penalty: BaseLearningPenalty, names: Names
) -> tuple[ModelProto | None, list[str]]:
    """The penalty of all weights and its gradients as one model, and the weights it applies to; None where to none.

    Parameters
    ----------
    weights : dict of str to Value
        The weights.
    penalty : BaseLearningPenalty
        What they cost.
    names : Names
        How the values are called.

    Returns
    -------
    tuple of onnx.ModelProto or None, and list of str
    """
    chosen = {n: v for n, v in weights.items() if penalty.applies_to(known_rank(v))}
    if not chosen:
        return None, []
    cost = sum_values([penalty(v) for v in chosen.values()])
    gradients = dict(zip(map(names.penalty_grad, chosen), grad(cost, list(chosen.values())), strict=True))
    return build(chosen, {names.free("penalty"): cost, **gradients}, name="learning_penalty"), list(chosen)


def loss_graph(model: Model, losses: Mapping[str, BaseLearningLoss], *, weighted: bool = False) -> ModelProto:
    """Loss and its gradient by the outputs as one model: (outputs, targets, row weights) -> (loss, gradients).

    Parameters
    ----------
    model : Model
        The model whose outputs are trained.
    losses : dict of str to BaseLearningLoss
        The loss of every trained output.
    weighted : bool
        Whether the rows have weights.

    Returns
    -------
    onnx.ModelProto
    """
    names = Names.of(model)
    ys = {o: variable(o, model.outputs[o].dtype, model.outputs[o].shape) for o in losses}
    bare = replace(model, outputs=ys)
    targets = make_targets(bare, losses, names)
    first = next(iter(ys.values()))
    w = variable(names.sample_weight, first.dtype, (first.shape or [None])[:1]) if weighted else None
    loss = mean_loss(bare, losses, targets, w)
    gradients = dict(zip(map(names.grad, ys), grad(loss, list(ys.values())), strict=True))
    inputs = {**ys, **targets, **({names.sample_weight: w} if w is not None else {})}
    return build(inputs, {names.loss: loss, **gradients}, name="learning_loss")


def row_loss_graph(model: Model, weights: Sequence[str], losses: Mapping[str, BaseLearningLoss]) -> ModelProto:
    """The loss of every row as one model: (inputs, targets, weights) -> loss.

    Parameters
    ----------
    model : Model
        The model that is trained.
    weights : sequence of str
        Initializers that become inputs.
    losses : dict of str to BaseLearningLoss
        The loss of every trained output.

    Returns
    -------
    onnx.ModelProto
    """
    names = Names.of(model)
    targets = make_targets(model, losses, names)
    rows = row_losses_of(model, losses, targets)
    trained = {w: model.initializers[w] for w in weights}
    return build({**find_inputs([rows], model.inputs), **targets, **trained}, {names.loss: rows}, name="losses")


def forward_graph(
    model: Model, weights: Sequence[str], outputs: Sequence[str] | None = None, *, used_only: bool = False
) -> ModelProto:
    """The model with its weights as inputs.

    Parameters
    ----------
    model : Model
        The model.
    weights : sequence of str
        Initializers that become inputs.
    outputs : sequence of str, optional
        The outputs wanted; all where left out.
    used_only : bool
        Whether inputs that the outputs do not depend on are left out.

    Returns
    -------
    onnx.ModelProto
    """
    wanted = {o: model.outputs[o] for o in (model.outputs if outputs is None else outputs)}
    inputs = find_inputs(wanted.values(), model.inputs) if used_only else model.inputs
    return build({**inputs, **{w: model.initializers[w] for w in weights}}, wanted, name="forward")
