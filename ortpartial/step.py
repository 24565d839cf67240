"""What does one training step compute? Model, loss, penalty, gradient and update, composed into one ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from onnx import ModelProto

from .builder import build
from .chance import mask
from .exceptions import ModelError
from .gradient import cast, grad
from .graph import Value, constant, op, topological, variable
from .learning import row_losses, weighted_mean
from .learning_loss import BaseLearningLoss
from .learning_penalty import BaseLearningPenalty
from .learning_rate import BaseLearningRate
from .model import Model
from .modes import Training, in_training
from .precision import Precision, all_finite, in_precision
from .products import as_products
from .rewrite import rewritten
from .subgraph import scan

__all__ = ["Gradient", "Names", "backward_graph", "boundary", "by_rows", "epoch_graph", "forward_graph",
           "gradient_graph", "loss_graph", "penalty_graph", "read_by", "row_loss_graph", "row_losses_of", "step_graph",
           "step_values", "targets_of", "total", "update_graph", "updated"]  # fmt: skip


#: From the objective and the weights to the gradients.
Gradient = Callable[[Value, Sequence[Value]], Sequence[Value]]


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
        return {self.free(n): a for n, a in precision.state.items()} if precision is not None else {}

    def state(self, weight: str, state: str) -> str:
        """An optimizer state of a weight."""
        return self.free(f"{weight}_{state}")


def targets_of(model: Model, losses: Mapping[str, BaseLearningLoss], names: Names) -> dict[str, Value]:
    """A variable for the target of every trained output."""
    found = {}
    for output, loss in losses.items():
        y = model.outputs[output]
        dtype = y.dtype if loss.target_dtype is None else np.dtype(loss.target_dtype)
        found[names.target(output)] = variable(names.target(output), dtype, loss.target_shape(_sizes(y)))
    return found


def _sizes(v: Value) -> tuple[int | str | None, ...]:
    """The shape of a value whose rank has to be known."""
    return v.shape or () if v.rank else ()


def _rows(model: Model) -> int | str | None:
    """The size of the first axis of the inputs."""
    return next((v.shape[0] for v in model.inputs.values() if v.shape), None)


def row_losses_of(model: Model, losses: Mapping[str, BaseLearningLoss], targets: Mapping[str, Value]) -> Value:
    """The loss of every row: the sum over the trained outputs."""
    pairs = zip(losses.items(), targets.values(), strict=True)
    return total([row_losses(loss, model.outputs[output], t) for (output, loss), t in pairs])


def _mean_loss(
    model: Model, losses: Mapping[str, BaseLearningLoss], targets: Mapping[str, Value], w: Value | None
) -> Value:
    """The loss of a batch: the sum over the trained outputs of their weighted means."""
    found = []
    for (output, loss), t in zip(losses.items(), targets.values(), strict=True):
        elements = loss(model.outputs[output], t)
        found.append(weighted_mean(elements, None if w is None else cast(w, elements)))
    return total(found)


def total(values: Sequence[Value]) -> Value:
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
                              precision=precision), name="step")  # fmt: skip


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
    gradient: Gradient = grad,
    k: Value | None = None,
) -> tuple[dict[str, Value], dict[str, Value]]:
    """A whole training step as an expression: what `step_graph` builds.

    Parameters
    ----------
    model, weights, losses, penalty, rate, weighted, train_mode, precision : object
        As for `step_graph`.
    gradient : callable
        From the objective and the weights to the gradients.
    k : Value, optional
        The number of the batch, where it is no input.

    Returns
    -------
    inputs, outputs : dict of str to Value
    """
    names = Names.of(model)
    number = variable(names.iteration, np.int64, []) if k is None else k
    scaling = {n: variable(n, a.dtype, []) for n, a in names.scaling(precision).items()}
    if precision is not None:
        scale = next(iter(scaling.values())) if scaling else constant(precision.loss_scale, np.float32)
        gradient = _scaled(gradient, scale)
    inputs, outputs, trained, gradients = _gradients(
        model, weights, losses, penalty, weighted=weighted, train_mode=train_mode, precision=precision,
        gradient=gradient, k=number)  # fmt: skip
    if k is None:
        inputs[names.iteration] = number
    counted = number - [*scaling.values()][-1] if scaling else number  # steps that were skipped do not count
    updated(rate, trained, gradients, counted, names, inputs, outputs)
    if precision is not None and scaling:
        finite = all_finite(gradients)
        for n in [n for n in inputs if names.new(n) in outputs]:
            outputs[names.new(n)] = op.Where(finite, outputs[names.new(n)], inputs[n])
        inputs.update(scaling)
        outputs.update(zip(map(names.new, scaling), precision.moved(finite, *scaling.values()), strict=True))
    return inputs, dict(zip(outputs, as_products(list(outputs.values())), strict=True))


def _gradients(
    model: Model, weights: Sequence[str], losses: Mapping[str, BaseLearningLoss], penalty: BaseLearningPenalty,
    *, weighted: bool, train_mode: bool, gradient: Gradient, k: Value, precision: Precision | None = None,
) -> tuple[dict[str, Value], dict[str, Value], dict[str, Value], Sequence[Value]]:  # fmt: skip
    """Inputs; the loss of a batch, and new running statistics; the weights; the gradients of the objective by them."""
    names = Names.of(model)
    targets = targets_of(model, losses, names)
    seed = variable(names.seed, np.int32, [2])
    trained_as = _in_training(model, losses, seed, k) if train_mode else Training(model)
    if precision is not None:
        trained_as = in_precision(trained_as, precision.dtype)
    model = trained_as.model
    trained = {w: model.initializers[w] for w in weights}
    dtype = model.outputs[next(iter(losses))].dtype
    w = variable(names.sample_weight, dtype, [_rows(model)]) if weighted else None
    loss = _mean_loss(model, losses, targets, w)
    costs = [penalty(v) for v in trained.values() if penalty.applies_to(_sizes(v))]
    gradients = gradient(total([loss, *costs]), list(trained.values()))
    inputs = {**read_by([loss], model.inputs), **targets, **({names.sample_weight: w} if w is not None else {}),
              **read_by([loss], {names.seed: seed})}  # fmt: skip
    outputs = {names.loss: loss}
    for s in trained_as.statistics:  # Two nodes may move one, in turn.
        inputs[s.name] = model.initializers[s.name]
        outputs[names.new(s.name)] = s.moved(outputs.get(names.new(s.name), inputs[s.name]))
    return inputs, outputs, trained, gradients


def _scaled(gradient: Gradient, scale: Value) -> Gradient:
    """The gradient of a multiple, divided by the factor."""
    def found(objective: Value, weights: Sequence[Value]) -> Sequence[Value]:
        return [g / cast(scale, g) for g in gradient(objective * cast(scale, objective), weights)]

    return found


def _in_training(model: Model, losses: Mapping[str, BaseLearningLoss], seed: Value, k: Value) -> Training:
    """What leads to the trained outputs, in training mode, with the random numbers of step k."""
    model = replace(model, outputs={o: model.outputs[o] for o in losses})
    return in_training(model, lambda x, keep, i: mask(x, keep, seed, k, i))


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
    inputs.update(read_by([outputs[names.loss]], {names.iteration: k}))
    found = dict(zip(outputs, as_products(list(outputs.values())), strict=True))
    return build({**inputs, **trained}, found, name="gradient")


def epoch_graph(
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
    """Step after step in one run: a Scan over batches, whose rows are gathered inside.

    Parameters
    ----------
    model : Model
        The model that is trained, with the sizes of one batch.
    weights, losses, penalty, rate, weighted, train_mode, precision : object
        As for `step_graph`.

    Returns
    -------
    onnx.ModelProto
        Inputs: those of the step, the model's, the targets and the row weights with all the rows, the iteration as the
        number of batches seen; and ``order``, (steps, rows of a batch), which rows make which batch. Outputs: those of
        the step, with one loss a batch.
    """
    names = Names.of(model)
    inputs, outputs = step_values(model, weights, losses, penalty, rate, weighted=weighted, train_mode=train_mode,
                                  precision=precision)  # fmt: skip
    carried, rows, batch = by_rows(inputs, outputs, names)
    k, fixed = inputs[names.iteration], {n: v for n, v in inputs.items() if n == names.seed}
    order = variable(names.free("order"), np.int64, ["steps", batch])

    def step(k_before: Value, *values: Value) -> list[Value]:
        *state, taken = values
        batches = {inputs[n]: op.Gather(v, taken, axis=0) for n, v in rows.items()}
        given = {**batches, k: k_before + 1, **{inputs[n]: v for n, v in zip(carried, state, strict=True)}}
        loss, *new = rewritten(list(outputs.values()), given)
        return [k_before + 1, *new, loss]

    _, *new, each = scan(step, [k, *(inputs[n] for n in carried)], [order])
    named = {**rows, names.free("order"): order, **fixed, names.iteration: k, **{n: inputs[n] for n in carried}}
    found = {names.loss: each, **dict(zip(map(names.new, carried), new, strict=True))}
    return build(named, found, name="epoch")


def by_rows(
    inputs: Mapping[str, Value], outputs: Mapping[str, Value], names: Names
) -> tuple[list[str], dict[str, Value], int | str | None]:
    """How a step is fed that gathers its rows itself.

    Parameters
    ----------
    inputs, outputs : dict of str to Value
        Those of a step, as of `step_values`.
    names : Names
        How the values are called.

    Returns
    -------
    carried : list of str
        Inputs that the step gives anew.
    rows : dict of str to Value
        For each input that is a batch, a variable for all the rows.
    batch : int, str or None
        The rows of a batch.
    """
    carried = [n for n in inputs if names.new(n) in outputs]
    rows = {n: variable(n, v.dtype, ["rows", *(v.shape or ())[1:]])
            for n, v in inputs.items() if n not in {*carried, names.iteration, names.seed}}  # fmt: skip
    return carried, rows, (inputs[next(iter(rows))].shape or (None,))[0]


def updated(
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
              for n, v in weights.items()}  # fmt: skip
    # What is written first is computed first, and a gradient whose weight has been updated is no longer kept.
    ready = sorted(zip(weights, gradients, strict=True), key=lambda pair: pair[1].node.serial if pair[1].node else -1)
    after = {n: rate.apply(weights[n], g, k, *states[n].values()) for n, g in ready}
    for n, v in weights.items():
        inputs.update({n: v, **states[n]})
        outputs.update(zip(map(names.new, [n, *states[n]]), after[n], strict=True))


def read_by(values: Iterable[Value], inputs: Mapping[str, Value]) -> dict[str, Value]:
    """Those inputs that some values depend on.

    Parameters
    ----------
    values : iterable of Value
        What is computed.
    inputs : dict of str to Value
        From what it may be computed.

    Returns
    -------
    dict of str to Value
    """
    seen: set[Value] = set()
    stack = list(values)
    while stack:
        v = stack.pop()
        if v not in seen:
            seen.add(v)
            stack.extend(x for x in (v.node.reads if v.node else ()) if x not in seen)
    return {n: v for n, v in inputs.items() if v in seen}


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
        gradients.append(total([inputs[p] for p in parts]))
    inputs[names.iteration] = k
    outputs: dict[str, Value] = {}
    updated(rate, weights, gradients, k, names, inputs, outputs)
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
    chosen = {n: v for n, v in weights.items() if penalty.applies_to(_sizes(v))}
    if not chosen:
        return None, []
    cost = total([penalty(v) for v in chosen.values()])
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
    targets = targets_of(bare, losses, names)
    first = next(iter(ys.values()))
    w = variable(names.sample_weight, first.dtype, (first.shape or [None])[:1]) if weighted else None
    loss = _mean_loss(bare, losses, targets, w)
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
    targets = targets_of(model, losses, names)
    rows = row_losses_of(model, losses, targets)
    trained = {w: model.initializers[w] for w in weights}
    return build({**read_by([rows], model.inputs), **targets, **trained}, {names.loss: rows}, name="losses")


def forward_graph(
    model: Model,
    weights: Sequence[str],
    outputs: Sequence[str] | None = None,
    saved: Sequence[Value] = (),
    *,
    used_only: bool = False,
) -> ModelProto:
    """The model with its weights as inputs, giving its outputs and the values that the backward graph reads.

    Parameters
    ----------
    model : Model
        The model.
    weights : sequence of str
        Initializers that become inputs.
    outputs : sequence of str, optional
        The outputs wanted; all where left out.
    saved : sequence of Value
        Further values; they are called ``saved_0``, ``saved_1`` ...
    used_only : bool
        Whether inputs that the outputs do not depend on are left out.

    Returns
    -------
    onnx.ModelProto
    """
    names = Names.of(model)
    wanted = {o: model.outputs[o] for o in (model.outputs if outputs is None else outputs)}
    extra = {names.free(f"saved_{i}"): v for i, v in enumerate(saved)}
    inputs = read_by(wanted.values(), model.inputs) if used_only else model.inputs
    return build({**inputs, **{w: model.initializers[w] for w in weights}}, {**wanted, **extra}, name="forward")


def boundary(gradients: Iterable[Value], outputs: Sequence[Value], leaves: Collection[Value]) -> list[Value]:
    """What gradients read of the forward expression: its leaves, and values that lead to its outputs.

    Parameters
    ----------
    gradients : iterable of Value
        What the backward half computes.
    outputs : sequence of Value
        What the forward half computes.
    leaves : collection of Value
        Where the forward half starts.

    Returns
    -------
    list of Value
        In the order in which the gradients read them.
    """
    forward = {id(node) for node in topological(outputs)}
    read: dict[Value, None] = {}
    stack, seen = list(gradients), set()
    while stack:
        v = stack.pop()
        if v in leaves or (v.node is not None and id(v.node) in forward):
            read.setdefault(v)
        elif v.node is not None and id(v.node) not in seen:
            seen.add(id(v.node))
            stack.extend(v.node.reads)
    return list(read)


def backward_graph(
    model: Model, weights: Sequence[str], outputs: Sequence[str], inputs: Sequence[str] = ()
) -> tuple[ModelProto, list[Value], list[str]]:
    """The backward half of the gradient, cut so that it starts from what the forward half computed.

    Parameters
    ----------
    model : Model
        The model.
    weights : sequence of str
        Initializers that are differentiated by.
    outputs : sequence of str
        What is differentiated.
    inputs : sequence of str
        Inputs that are differentiated by.

    Returns
    -------
    model : onnx.ModelProto
        Inputs: ``saved_0``, ``saved_1`` ..., then inputs and weights that it reads again under their own names, then
        ``<output>_grad``. Outputs: ``<name>_grad`` of weights, then inputs.
    saved : list of Value
        What the forward half has to hand on.
    again : list of str
        Inputs and weights that are read again.
    """
    names = Names.of(model)
    ys = [model.outputs[o] for o in outputs]
    wrt = {**{w: model.initializers[w] for w in weights}, **{i: model.inputs[i] for i in inputs}}
    if integer := [n for n, v in wrt.items() if not v.is_float]:
        raise ModelError(f"{integer[0]!r} holds {wrt[integer[0]].dtype}, and only real numbers have a gradient.")
    dys = {names.grad(o): variable(names.grad(o), y.dtype, y.shape) for o, y in zip(outputs, ys, strict=True)}
    gradients = grad(ys, list(wrt.values()), list(dys.values()))
    leaves = {**model.inputs, **{w: model.initializers[w] for w in weights}}
    leaf = {v: n for n, v in leaves.items()}
    read = boundary(gradients, list(model.outputs.values()), leaf)
    saved = [v for v in read if v not in leaf]
    again = [leaf[v] for v in read if v in leaf]
    cut = {names.free(f"saved_{i}"): v for i, v in enumerate(saved)}
    found = {names.free(f"{n}_grad_out") if names.grad(n) in dys else names.grad(n): g
             for n, g in zip(wrt, gradients, strict=True)}  # fmt: skip
    return build({**cut, **{n: leaves[n] for n in again}, **dys}, found, name="backward"), saved, again
