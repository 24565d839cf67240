"""The training step: model, loss, penalty, gradient and update, composed into a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from onnx import ModelProto

from ortpartial.autodiff import Gradient, grad, gradient_support, nodes_between
from ortpartial.graph import Node, Value, build, cast, constant, find_inputs, op, rewrite, stop_gradient, variable
from ortpartial.learning import RowCosts, mean_rows, weighted_mean
from ortpartial.model import Model
from ortpartial.rewrites import RowHead, all_finite, find_row_head, prepare_training, rewrite_step

from .counter_rng import draw_mask
from .flat_weights import FlatGroup
from .row_weights import make_weights, weigh_elements
from .spec import TrainingSpec, known_shape
from .update import append_update

__all__ = ["check_gradient", "gradient_graph", "gradient_values", "make_row_losses", "make_targets", "mean_loss",
           "scale_gradient", "step_graph", "step_values", "sum_values"]


def make_targets(spec: TrainingSpec) -> dict[str, Value]:
    """A variable for the target of every trained output; none where the model computes its loss itself."""
    targets: dict[str, Value] = {}
    if spec.own_loss is not None:
        return targets
    for output, loss in spec.losses.items():
        y, name = spec.model.outputs[output], spec.names.target(output)
        dtype = y.dtype if loss.target_dtype is None else np.dtype(loss.target_dtype)
        targets[name] = variable(name, dtype, loss.target_shape(known_shape(y)))
    return targets


def make_row_losses(spec: TrainingSpec, targets: Mapping[str, Value], weights: Mapping[str, Value]) -> list[Value]:
    """The loss of every row, for each trained output; the loss of a model's own counts as the loss of a single row."""
    if spec.own_loss is not None:
        return [op.Unsqueeze(mean_loss(spec, targets, weights), [0])]
    return [mean_rows(*weighed) for weighed in weigh_elements(spec, targets, weights)]


def mean_loss(spec: TrainingSpec, targets: Mapping[str, Value], weights: Mapping[str, Value],
              costs: Mapping[str, Value] | None = None) -> Value:
    """The loss of a batch: the sum over the trained outputs of their weighted means, or the model's own loss."""
    if spec.own_loss is not None:
        return spec.own_loss(next(iter(spec.outputs.values())))
    return sum_values([weighted_mean(*weighed) for weighed in weigh_elements(spec, targets, weights, costs)])


def sum_values(values: Sequence[Value]) -> Value:
    """The sum of values, which may differ in dtype, in that of the first."""
    return values[0] if len(values) == 1 else op.Sum(*(cast(v, values[0]) for v in values))


def step_graph(spec: TrainingSpec, *, weighted: bool | str = False, apart: dict[str, np.ndarray] | None = None,
               groups: Sequence[FlatGroup] = ()) -> ModelProto:
    """A whole training step as a model, on any runtime.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    weighted : bool or "elements"
        Whether the rows have weights, or the elements of the targets.
    apart : dict of str to numpy.ndarray, optional
        Receives the big constants: see `build`.
    groups : sequence of FlatGroup
        As for `step_values`.

    Returns
    -------
    onnx.ModelProto
        Inputs: the model's, the targets, the weights if any, the seed if a Dropout is in training mode, every running
        statistic, the iteration, then every weight with its states, and the state of the loss scale. Outputs: the loss
        of the batch before the step, without the penalty, then statistics, weights, states and scale after the step.
        The names are given by `Names`.
    """
    return build(*step_values(spec, weighted=weighted, groups=groups), name="step", apart=apart)


def step_values(
    spec: TrainingSpec, *, weighted: bool | str = False, k: Value | None = None, simplified: bool = True,
    groups: Sequence[FlatGroup] = (),
) -> tuple[dict[str, Value], dict[str, Value]]:
    """A whole training step as an expression, from which `step_graph` builds its model.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    weighted : bool or "elements"
        Whether the rows have weights, or the elements of the targets.
    k : Value, optional
        The number of the batch, if it is not an input.
    simplified : bool
        Whether the model is simplified first; a step that starts from the tensors of the model as it is cannot have it.
    groups : sequence of FlatGroup
        Weights that are vectors of the step, and so their states, by the name of the group.

    Returns
    -------
    inputs, outputs : dict of str to Value

    Raises
    ------
    NoGradientError
        An operator between a weight and a loss has no gradient.
    """
    names, precision = spec.names, spec.precision
    number = variable(names.iteration, np.int64, []) if k is None else k
    scaling = {n: variable(n, a.dtype, []) for n, a in spec.scaling.items()}
    gradient = spec.gradient or grad
    if precision is not None:
        scale = next(iter(scaling.values())) if scaling else constant(precision.loss_scale, np.float32)
        gradient = scale_gradient(gradient, scale)
    model = spec.rewritten if simplified else spec.model
    inputs, outputs, trained, gradients = _make_gradients(spec, model, gradient, number, weighted=weighted)
    if k is None:
        inputs[names.iteration] = number
    counted = number - [*scaling.values()][-1] if scaling else number  # steps that were skipped do not count
    append_update(spec, trained, gradients, counted, inputs, outputs, groups=groups)
    if precision is not None and scaling:
        finite = all_finite(gradients)
        for n in [n for n in inputs if names.new(n) in outputs]:
            outputs[names.new(n)] = op.Where(finite, outputs[names.new(n)], inputs[n])
        inputs.update(scaling)
        outputs.update(zip(map(names.new, scaling), precision.update(finite, *scaling.values()), strict=True))
    parts = {trained[n]: part for group in groups for n, part in group.vector.split(inputs[group.name]).items()}
    outputs = dict(zip(outputs, rewrite(list(outputs.values()), parts), strict=True))
    return inputs, rewrite_step(outputs)


#: Operators whose rules refuse some attributes.
_PARTLY_DIFFERENTIABLE = frozenset({"GRU", "LSTM", "RNN", "Resize"})


def check_gradient(spec: TrainingSpec) -> None:
    """Check that all operators between the weights and the loss have a gradient.

    If each of them has a rule that refuses nothing, and losses, penalty and optimizer are the library's, nothing is
    differentiated. Otherwise the gradient is written, of pieces of others the whole step, and discarded.

    Parameters
    ----------
    spec : TrainingSpec
        The training.

    Raises
    ------
    NoGradientError
        An operator has no gradient.
    """
    loss = mean_loss(spec, make_targets(spec), {})
    nodes = nodes_between([loss], set(spec.trained.values()), ())
    read = {v for node in nodes for v in node.reads}
    pieces = [*spec.losses.values(), spec.penalty, spec.rate, spec.rate.schedule, spec.averaging or spec.penalty]
    is_plain = not spec.train_mode and spec.precision is None and spec.gradient is None
    if not is_plain or not all(type(piece).__module__.startswith("ortpartial.") for piece in pieces):
        step_values(spec, simplified=False)
    elif not all(_is_differentiable(node, read) for node in nodes):
        grad(loss, list(spec.trained.values()))


def _is_differentiable(node: Node, read: Collection[Value]) -> bool:
    """Whether it is certain that a node has a gradient: by a rule that refuses nothing, from its first output."""
    if node.bodies or node.domain or node.op_type in _PARTLY_DIFFERENTIABLE:
        return False
    if any(not y.type.tensor_type.elem_type or (y.index and y.is_float) for y in node.outputs if y in read):
        return False
    return gradient_support(node) in ("rule", "zero")


def _make_gradients(
    spec: TrainingSpec, model: Model, gradient: Gradient, k: Value, *, weighted: bool | str
) -> tuple[dict[str, Value], dict[str, Value], dict[str, Value], Sequence[Value]]:
    """Inputs; the loss of a batch, and new running statistics; the weights; the gradients of the objective by them."""
    names, targets = spec.names, make_targets(spec)
    seed = variable(names.seed, np.int32, [2])
    model = replace(model, outputs={o: model.outputs[o] for o in spec.losses})
    forward = prepare_training(model, train_mode=spec.train_mode, precision=spec.precision,
                               mask=lambda x, keep, i: draw_mask(x, keep, seed, k, i))
    spec = replace(spec, model=forward.model)
    model, trained = spec.model, spec.trained
    weights = make_weights(spec, targets, weighted, _rows(model))
    loss, of_chunks = _differentiate_chunks(spec, targets, weights)
    costs = [spec.penalty(trained[n]) for n in spec.penalized]
    gradients = gradient(sum_values([loss, *of_chunks, *costs]), list(trained.values()))
    if spec.precision is not None:
        gradients = spec.precision.finish(gradients)
    inputs = {**find_inputs([loss], model.inputs), **targets, **weights, **find_inputs([loss], {names.seed: seed})}
    outputs = {names.loss: loss}
    for s in forward.statistics:  # Two nodes may update the same statistic, in turn.
        inputs[s.name] = model.initializers[s.name]
        outputs[names.new(s.name)] = s.update(outputs.get(names.new(s.name), inputs[s.name]))
    return inputs, outputs, trained, gradients


def _differentiate_chunks(
    spec: TrainingSpec, targets: Mapping[str, Value], weights: Mapping[str, Value]
) -> tuple[Value, list[Value]]:
    """The loss of a batch, and terms whose gradient is that of the part of it that is computed in chunks.

    Such a part is a constant of the loss; its gradient is computed together with it.
    """
    heads: dict[str, tuple[RowHead, RowCosts]] = {}
    for (output, loss), t in zip(spec.losses.items(), targets.values(), strict=False):
        y, rows = spec.model.outputs[output], loss.by_row(t)
        head = None
        if rows is not None and spec.precision is None and spec.may_branch:
            head = find_row_head(y, set(spec.trained.values()), spec.sizes)
        if head is not None and rows is not None:
            heads[output] = head, rows
    columns = {o: variable("", h.logits.dtype, rows.labels.shape) for o, (h, rows) in heads.items()}
    objective = mean_loss(spec, targets, weights, {o: heads[o][1].arrange(c) for o, c in columns.items()})
    if not heads:
        return objective, []
    terms, constants = [], {}
    for (output, c), share in zip(columns.items(), grad(objective, list(columns.values())), strict=True):
        head, rows = heads[output]
        costs, gradients = head.run(rows.cost, rows.labels, share)
        constants[c] = stop_gradient(costs)
        terms += [op.ReduceSum(v * stop_gradient(d), keepdims=0) for v, d in zip(head.sources, gradients, strict=True)]
    return rewrite([objective], constants)[0], terms


def _rows(model: Model) -> int | str | None:
    """The size of the first axis of the inputs; the sizes of an unread input may be left open."""
    read = find_inputs(model.outputs.values(), model.inputs) or model.inputs
    return next((v.shape[0] for v in read.values() if v.shape), None)


def scale_gradient(gradient: Gradient, scale: Value) -> Gradient:
    """The gradient of a multiple, divided by the factor.

    Parameters
    ----------
    gradient : callable
        From an objective and values to the gradients.
    scale : Value
        The factor, a scalar.

    Returns
    -------
    callable
    """
    def scaled(objective: Value, weights: Sequence[Value]) -> Sequence[Value]:
        return [g / cast(scale, g) for g in gradient(objective * cast(scale, objective), weights)]

    return scaled


def gradient_graph(spec: TrainingSpec, *, weighted: bool | str = False, is_rewritten: bool = True) -> ModelProto:
    """The first half of a step as a model, of which `update_graph` is the second; see `gradient_values`.

    Parameters
    ----------
    spec, weighted, is_rewritten : object
        As for `gradient_values`.

    Returns
    -------
    onnx.ModelProto
    """
    return build(*gradient_values(spec, weighted=weighted, is_rewritten=is_rewritten), name="gradient")


def gradient_values(spec: TrainingSpec, *, weighted: bool | str = False, is_rewritten: bool = True
                    ) -> tuple[dict[str, Value], dict[str, Value]]:
    """The first half of a step as an expression.

    Parameters
    ----------
    spec : TrainingSpec
        The training.
    weighted : bool or "elements"
        Whether the rows have weights, or the elements of the targets.
    is_rewritten : bool
        Whether it is in the operators of a step; otherwise in the operators of the model and of the rules of its
        gradient.

    Returns
    -------
    inputs, outputs : dict of str to Value
        Inputs: the model's, the targets, the weights if any, the seed and the iteration if random numbers follow
        from them, then every running statistic and every weight. Outputs: the loss of the batch, without the penalty,
        new statistics, then the gradient of the objective by every weight.
    """
    names = spec.names
    k = variable(names.iteration, np.int64, [])
    model, gradient = (spec.rewritten, spec.gradient or grad) if is_rewritten else (spec.coded, grad)
    inputs, outputs, trained, gradients = _make_gradients(spec, model, gradient, k, weighted=weighted)
    outputs.update(zip(map(names.grad, trained), gradients, strict=True))
    inputs.update(find_inputs([outputs[names.loss]], {names.iteration: k}))
    return {**inputs, **trained}, rewrite_step(outputs) if is_rewritten else outputs
