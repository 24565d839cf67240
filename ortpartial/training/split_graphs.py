"""The parts of a step as graphs of their own: forward, loss, backward, penalty and update."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from onnx import ModelProto

from ortpartial.autodiff import grad
from ortpartial.graph import Value, build, find_inputs, rewrite, variable
from ortpartial.model import Model

from .row_weights import make_weights
from .spec import TrainingSpec
from .step import make_row_losses, make_targets, mean_loss, sum_values
from .update import append_update

__all__ = ["forward_graph", "loss_graph", "penalty_graph", "row_loss_graph", "update_graph", "update_values"]


def update_graph(
    spec: TrainingSpec, *, penalized: Collection[str] = (), due: bool | None = None
) -> ModelProto:
    """The update of all weights as a model; see `update_values`.

    Parameters
    ----------
    spec, penalized, due : object
        As for `update_values`.

    Returns
    -------
    onnx.ModelProto
    """
    return build(*update_values(spec, penalized=penalized, due=due), name="learning_rate")


def update_values(spec: TrainingSpec, *, penalized: Collection[str] = (), due: bool | None = None
                  ) -> tuple[dict[str, Value], dict[str, Value]]:
    """The update of all weights: (gradients, gradients of the penalty, iteration, weights, states) -> the new.

    Parameters
    ----------
    spec : TrainingSpec
        The weights and the optimizer.
    penalized : collection of str
        Weights whose penalty has a gradient of its own, which is added.
    due : bool, optional
        As for `append_update`.

    Returns
    -------
    inputs, outputs : dict of str to Value
    """
    names, k = spec.names, variable(spec.names.iteration, np.int64, [])
    inputs: dict[str, Value] = {}
    gradients = []
    for name, v in spec.trained.items():
        terms = [names.grad(name)] + [names.penalty_grad(name)] * (name in penalized)
        inputs.update({n: variable(n, v.dtype, v.shape) for n in terms})
        gradients.append(sum_values([inputs[n] for n in terms]))
    inputs[names.iteration] = k
    outputs: dict[str, Value] = {}
    append_update(spec, spec.trained, gradients, k, inputs, outputs, due)
    return inputs, outputs


def penalty_graph(spec: TrainingSpec) -> ModelProto | None:
    """The penalty of all weights and its gradients as a model; None if it applies to no weight.

    Parameters
    ----------
    spec : TrainingSpec
        The weights and the penalty.

    Returns
    -------
    onnx.ModelProto or None
    """
    weights = {w: spec.model.initializers[w] for w in spec.penalized}
    if not weights:
        return None
    cost = sum_values([spec.penalty(v) for v in weights.values()])
    gradients = dict(zip(map(spec.names.penalty_grad, weights), grad(cost, list(weights.values())), strict=True))
    return build(weights, {spec.names.free("penalty"): cost, **gradients}, name="learning_penalty")


def loss_graph(spec: TrainingSpec, *, weighted: bool | str = False) -> ModelProto:
    """Loss and its gradient by its inputs as a model: (inputs, targets, weights) -> (loss, gradients).

    Parameters
    ----------
    spec : TrainingSpec
        The model and the losses.
    weighted : bool or "elements"
        Whether the rows have weights, or the elements of the targets.

    Returns
    -------
    onnx.ModelProto
    """
    names, ys = spec.names, {o: variable(o, y.dtype, y.shape) for o, y in spec.read.items()}
    outputs = rewrite(list(spec.outputs.values()), dict(zip(spec.read.values(), ys.values(), strict=True)))
    spec = replace(spec, model=replace(spec.model, outputs=dict(zip(ys, outputs, strict=True))))
    targets = make_targets(spec)
    first = next(iter(ys.values()))
    weights = make_weights(spec, targets, weighted, (first.shape or (None,))[0])
    loss = mean_loss(spec, targets, weights)
    gradients = dict(zip(map(names.grad, ys), grad(loss, list(ys.values())), strict=True))
    return build({**ys, **targets, **weights}, {names.loss: loss, **gradients}, name="learning_loss")


def row_loss_graph(spec: TrainingSpec, *, weighted: bool | str = False,
                   apart: dict[str, np.ndarray] | None = None, predictions: Sequence[str] = ()) -> ModelProto:
    """The loss of every row as a model: (inputs, targets, weights of elements, weights and statistics) -> loss.

    Parameters
    ----------
    spec : TrainingSpec
        The model and the losses.
    weighted : bool or "elements"
        Whether the elements of the targets have weights; weights of rows change nothing.
    apart : dict of str to numpy.ndarray, optional
        Receives the big constants: see `build`.
    predictions : sequence of str
        Outputs of the model that are computed, too.

    Returns
    -------
    onnx.ModelProto
        Its output is the sum over the trained outputs; if there are several, the loss of each follows, and then the
        predictions.
    """
    names, targets = spec.names, make_targets(spec)
    weights = make_weights(spec, targets, "elements", None) if weighted == "elements" else {}
    each = make_row_losses(spec, targets, weights)
    losses = {names.loss: sum_values(each)}
    if len(each) > 1:
        losses.update(zip(map(names.loss_of, spec.losses), each, strict=True))
    losses.update({output: spec.model.outputs[output] for output in predictions})
    moving = {w: spec.model.initializers[w] for w in spec.moving}
    inputs = {**find_inputs(losses.values(), spec.model.inputs), **targets, **weights, **moving}
    return build(inputs, losses, name="losses", apart=apart)


def forward_graph(
    model: Model, weights: Sequence[str], outputs: Sequence[str] | None = None, *, used_only: bool = False,
    apart: dict[str, np.ndarray] | None = None
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
    apart : dict of str to numpy.ndarray, optional
        Receives the big constants: see `build`.

    Returns
    -------
    onnx.ModelProto
    """
    wanted = {o: model.outputs[o] for o in (model.outputs if outputs is None else outputs)}
    inputs = find_inputs(wanted.values(), model.inputs) if used_only else model.inputs
    return build({**inputs, **{w: model.initializers[w] for w in weights}}, wanted, name="forward", apart=apart)
