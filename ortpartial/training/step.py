"""What does one training step compute? Model, loss, penalty, gradient and update, composed into one ONNX model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from onnx import ModelProto

from ortpartial.autodiff import Gradient, grad
from ortpartial.graph import Value, build, cast, constant, find_inputs, op, variable
from ortpartial.learning import BaseLearningLoss, BaseLearningPenalty, BaseLearningRate, row_losses, weighted_mean
from ortpartial.model import Model
from ortpartial.rewrites import (
    Precision,
    TrainingModel,
    all_finite,
    apply_peepholes,
    to_mixed_precision,
    to_training_mode,
)

from .counter_rng import draw_mask

__all__ = [
    "Names",
    "append_update",
    "gradient_graph",
    "known_rank",
    "make_targets",
    "mean_loss",
    "row_losses_of",
    "step_graph",
    "step_values",
    "sum_values",
]


class Rate(Protocol):
    """What a step needs of a rate."""

    @property
    def state(self) -> tuple[str, ...]:
        """What is remembered of each weight."""

    def apply(self, w: Value, g: Value, k: Value, *state: Value) -> tuple[Value, ...]:
        """The weight and its state after batch k."""


@dataclass(frozen=True)
class Names:
    """What the values that training adds to a model are called: the plain word, underscored until it is free.

    Parameters
    ----------
    taken : frozenset of str
        Names that the model uses itself.

    Examples
    --------
    >>> Names(frozenset({"loss"})).loss
    'loss_'
    """

    taken: frozenset[str]

    @classmethod
    def of(cls, model: Model) -> Names:
        """Names free of clashes with every tensor of a model."""
        return cls(frozenset(model.values))

    def free(self, name: str) -> str:
        """The name itself, or with underscores behind it where the model uses it."""
        while name in self.taken:
            name += "_"
        return name

    @property
    def loss(self) -> str:
        """The loss of a batch."""
        return self.free("loss")

    @property
    def iteration(self) -> str:
        """The batch counter, from 1."""
        return self.free("iteration")

    @property
    def seed(self) -> str:
        """Where random numbers come from."""
        return self.free("seed")

    @property
    def sample_weight(self) -> str:
        """The weights of the rows."""
        return self.free("sample_weight")

    def target(self, output: str) -> str:
        """The target of an output."""
        return self.free(f"{output}_target")

    def new(self, weight: str) -> str:
        """A weight after the step."""
        return self.free(f"{weight}_new")

    def grad(self, name: str) -> str:
        """The gradient of the loss by a weight or an output."""
        return self.free(f"{name}_grad")

    def penalty_grad(self, weight: str) -> str:
        """The gradient of the penalty by a weight."""
        return self.free(f"{weight}_grad_penalty")

    def scaling(self, precision: Precision | None) -> dict[str, np.ndarray]:
        """What a step carries of the scale of its loss, before the first step."""
        return {self.free(n): a for n, a in precision.initial_state.items()} if precision is not None else {}

    def state(self, weight: str, state: str) -> str:
        """An optimizer state of a weight."""
        return self.free(f"{weight}_{state}")


def make_targets(model: Model, losses: Mapping[str, BaseLearningLoss], names: Names) -> dict[str, Value]:
    """A variable for the target of every trained output."""
    found = {}
    for output, loss in losses.items():
        y = model.outputs[output]
        dtype = y.dtype if loss.target_dtype is None else np.dtype(loss.target_dtype)
        found[names.target(output)] = variable(names.target(output), dtype, loss.target_shape(known_rank(y)))
    return found


def known_rank(v: Value) -> tuple[int | str | None, ...]:
    """The shape of a value whose rank has to be known."""
    return v.shape or () if v.rank else ()


def _rows(model: Model) -> int | str | None:
    """The size of the first axis of the inputs."""
    return next((v.shape[0] for v in model.inputs.values() if v.shape), None)


def row_losses_of(model: Model, losses: Mapping[str, BaseLearningLoss], targets: Mapping[str, Value]) -> Value:
    """The loss of every row: the sum over the trained outputs."""
    pairs = zip(losses.items(), targets.values(), strict=True)
    return sum_values([row_losses(loss, model.outputs[output], t) for (output, loss), t in pairs])


def mean_loss(
    model: Model, losses: Mapping[str, BaseLearningLoss], targets: Mapping[str, Value], w: Value | None
) -> Value:
    """The loss of a batch: the sum over the trained outputs of their weighted means."""
    found = []
    for (output, loss), t in zip(losses.items(), targets.values(), strict=True):
        elements = loss(model.outputs[output], t)
        found.append(weighted_mean(elements, None if w is None else cast(w, elements)))
    return sum_values(found)


def sum_values(values: Sequence[Value]) -> Value:
    """The sum of values, which may differ in dtype, in that of the first."""
    return values[0] if len(values) == 1 else op.Sum(*(cast(v, values[0]) for v in values))


def step_graph(
    model: Model,
    weights: Sequence[str],
    losses: Mapping[str, BaseLearningLoss],
    penalty: BaseLearningPenalty,
    rate: BaseLearningRate,
    *,
    weighted: bool = False,
    train_mode: bool = False,
    precision: Precision | None = None,
) -> ModelProto:
    """A whole training step as one model, on any runtime.

    Parameters
    ----------
    model : Model
        The model that is trained.
    weights : sequence of str
        The initializers that change.
    losses : dict of str to BaseLearningLoss
        The loss of every trained output.
    penalty, rate : BaseLearningPenalty, BaseLearningRate
        The other two pieces.
    weighted : bool
        Whether the rows have weights.
    train_mode : bool
        Whether Dropout and BatchNormalization train.
    precision : Precision, optional
        In what dtype products are computed, and how the loss is scaled.

    Returns
    -------
    onnx.ModelProto
        Inputs: the model's, the targets, the row weights where there are any, the seed where there is a Dropout that
        trains, every running statistic, the iteration, then every weight and every state, and the state of the scale of
        the loss. Outputs: the loss of the batch before the step, without the penalty, then statistics, weights, states
        and scale after it. The names are those of `Names`.
    """
    return build(*step_values(model, weights, losses, penalty, rate, weighted=weighted, train_mode=train_mode,
                              precision=precision), name="step")


def step_values(
    model: Model,
    weights: Sequence[str],
    losses: Mapping[str, BaseLearningLoss],
    penalty: BaseLearningPenalty,
    rate: Rate,
    *,
    weighted: bool = False,
    train_mode: bool = False,
    precision: Precision | None = None,
    fast: bool = True,
    gradient: Gradient = grad,
    k: Value | None = None,
) -> tuple[dict[str, Value], dict[str, Value]]:
    """A whole training step as an expression: what `step_graph` builds.

    Parameters
    ----------
    model, weights, losses, penalty, rate, weighted, train_mode, precision : object
        As for `step_graph`.
    fast : bool
        Whether it is in operators that take less time than those of the formulas.
    gradient : callable
        From the objective and the weights to the gradients.
    k : Value, optional
        The number of the batch, where it is no input.

    Returns
    -------
    inputs, outputs : dict of str to Value

    Raises
    ------
    NoGradientError
        An operator between a weight and a loss has no gradient.
    """
    names = Names.of(model)
    number = variable(names.iteration, np.int64, []) if k is None else k
    scaling = {n: variable(n, a.dtype, []) for n, a in names.scaling(precision).items()}
    if precision is not None:
        scale = next(iter(scaling.values())) if scaling else constant(precision.loss_scale, np.float32)
        gradient = _scaled(gradient, scale)
    inputs, outputs, trained, gradients = _gradients(
        model, weights, losses, penalty, weighted=weighted, train_mode=train_mode, precision=precision,
        gradient=gradient, k=number)
    if k is None:
        inputs[names.iteration] = number
    counted = number - [*scaling.values()][-1] if scaling else number  # steps that were skipped do not count
    append_update(rate, trained, gradients, counted, names, inputs, outputs)
    if precision is not None and scaling:
        finite = all_finite(gradients)
        for n in [n for n in inputs if names.new(n) in outputs]:
            outputs[names.new(n)] = op.Where(finite, outputs[names.new(n)], inputs[n])
        inputs.update(scaling)
        outputs.update(zip(map(names.new, scaling), precision.update(finite, *scaling.values()), strict=True))
    if not fast:
        return inputs, outputs
    return inputs, dict(zip(outputs, apply_peepholes(list(outputs.values())), strict=True))


def _gradients(
    model: Model, weights: Sequence[str], losses: Mapping[str, BaseLearningLoss], penalty: BaseLearningPenalty,
    *, weighted: bool, train_mode: bool, gradient: Gradient, k: Value, precision: Precision | None = None,
) -> tuple[dict[str, Value], dict[str, Value], dict[str, Value], Sequence[Value]]:
    """Inputs; the loss of a batch, and new running statistics; the weights; the gradients of the objective by them."""
    names = Names.of(model)
    targets = make_targets(model, losses, names)
    seed = variable(names.seed, np.int32, [2])
    trained_as = _in_training(model, losses, seed, k) if train_mode else TrainingModel(model)
    if precision is not None:
        trained_as = to_mixed_precision(trained_as, precision.dtype)
    model = trained_as.model
    trained = {w: model.initializers[w] for w in weights}
    dtype = model.outputs[next(iter(losses))].dtype
    w = variable(names.sample_weight, dtype, [_rows(model)]) if weighted else None
    loss = mean_loss(model, losses, targets, w)
    costs = [penalty(v) for v in trained.values() if penalty.applies_to(known_rank(v))]
    gradients = gradient(sum_values([loss, *costs]), list(trained.values()))
    inputs = {**find_inputs([loss], model.inputs), **targets, **({names.sample_weight: w} if w is not None else {}),
              **find_inputs([loss], {names.seed: seed})}
    outputs = {names.loss: loss}
    for s in trained_as.statistics:  # Two nodes may move one, in turn.
        inputs[s.name] = model.initializers[s.name]
        outputs[names.new(s.name)] = s.update(outputs.get(names.new(s.name), inputs[s.name]))
    return inputs, outputs, trained, gradients


def _scaled(gradient: Gradient, scale: Value) -> Gradient:
    """The gradient of a multiple, divided by the factor."""
    def found(objective: Value, weights: Sequence[Value]) -> Sequence[Value]:
        return [g / cast(scale, g) for g in gradient(objective * cast(scale, objective), weights)]

    return found


def _in_training(model: Model, losses: Mapping[str, BaseLearningLoss], seed: Value, k: Value) -> TrainingModel:
    """What leads to the trained outputs, in training mode, with the random numbers of step k."""
    model = replace(model, outputs={o: model.outputs[o] for o in losses})
    return to_training_mode(model, lambda x, keep, i: draw_mask(x, keep, seed, k, i))


def gradient_graph(
    model: Model,
    weights: Sequence[str],
    losses: Mapping[str, BaseLearningLoss],
    penalty: BaseLearningPenalty,
    *,
    weighted: bool = False,
    train_mode: bool = False,
    gradient: Gradient = grad,
) -> ModelProto:
    """The first half of a step as one model, of which `update_graph` is the second.

    Parameters
    ----------
    model, weights, losses, penalty, weighted, train_mode, gradient : object
        As for `step_values`.

    Returns
    -------
    onnx.ModelProto
        Inputs: the model's, the targets, the row weights where there are any, the seed and the iteration where random
        numbers follow from them, then every running statistic and every weight. Outputs: the loss of the batch, without
        the penalty, new statistics, then the gradient of the objective by every weight.
    """
    names = Names.of(model)
    k = variable(names.iteration, np.int64, [])
    inputs, outputs, trained, gradients = _gradients(
        model, weights, losses, penalty, weighted=weighted, train_mode=train_mode, gradient=gradient, k=k)
    outputs.update(zip(map(names.grad, trained), gradients, strict=True))
    inputs.update(find_inputs([outputs[names.loss]], {names.iteration: k}))
    found = dict(zip(outputs, apply_peepholes(list(outputs.values())), strict=True))
    return build({**inputs, **trained}, found, name="gradient")


def append_update(
    rate: Rate,
    weights: Mapping[str, Value],
    gradients: Iterable[Value],
    k: Value,
    names: Names,
    inputs: dict[str, Value],
    outputs: dict[str, Value],
) -> None:
    """Append weights and states before the step to the inputs, and after it to the outputs."""
    states = {n: {names.state(n, s): variable(names.state(n, s), v.dtype, v.shape) for s in rate.state}
              for n, v in weights.items()}
    # What is written first is computed first, and a gradient whose weight has been updated is no longer kept.
    ready = sorted(zip(weights, gradients, strict=True), key=lambda pair: pair[1].node.serial if pair[1].node else -1)
    after = {n: rate.apply(weights[n], g, k, *states[n].values()) for n, g in ready}
    for n, v in weights.items():
        inputs.update({n: v, **states[n]})
        outputs.update(zip(map(names.new, [n, *states[n]]), after[n], strict=True))
