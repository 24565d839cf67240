"""The optimizers of a module: called with a loss, they update its weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ortpartial.annotations import DTypeLike
from ortpartial.autodiff import nodes_between
from ortpartial.checks import check_count, check_flag
from ortpartial.exceptions import ArgumentError, GraphError, ModelError, SettingError
from ortpartial.execution import DataParallel, resolve_distributed
from ortpartial.graph import Value, op, stop_gradient
from ortpartial.learning import (
    UPDATE_HABITS,
    AnsweredAttributes,
    BaseLearningPenalty,
    GradientClipping,
    NamedSettings,
    RateLike,
    WeightAverage,
    check_average,
    expand_chain,
    is_settled,
    resolve_averaging,
    resolve_clipping,
    resolve_penalty,
    resolve_rate,
)
from ortpartial.training import Update, list_states

from .changes import note_change
from .data_parallel import average
from .parameter import Parameter
from .trace import Trace, TracedModule, Weight, current_trace

__all__ = ["Optimizer"]

#: What an optimizer trains; None for all of the module.
Trained: TypeAlias = "TracedModule | Weight | Iterable[TracedModule | Weight] | None"


#: Settings that a chain has under other names.
_NAMES = {"learning_rate": "rate", "learning_penalty": "penalty"}


class Optimizer(AnsweredAttributes, NamedSettings):
    """An optimizer of some weights of a module. Called with a loss in `train_one_batch`, it updates them.

    The gradient of the loss by each weight, that of the penalty and the update become a part of the step. Weights have
    their new values from then on. Weights that the loss does not depend on stay as they are.

    Parameters
    ----------
    rate : BaseLearningRate, str, float or Chain
        The algorithm and its step size, such as ``"adam"`` or ``LearningRateAdamW(1e-3)``; a number is that of SGD. A
        `chain` is the whole update: it stands for the settings of its parts.
    parameters : Module, Parameter, or sequence of them, optional
        The parameters that it trains; by default all trained ones of the module.
    penalty : BaseLearningPenalty or str, optional
        The penalty of the weights.
    gradient_clipping : GradientClipping or float, optional
        How gradients are limited.
    accumulate : int
        Number of calls of an update, which takes the mean of their gradients: with a call a batch, a step on batches of
        ``accumulate * batch_size`` rows, in the memory of `batch_size` rows. The rest of an epoch is carried into the
        next. Schedules and Adam count updates.
    averaging : str or WeightAverage, optional
        A running average of the weights that is kept beside them: ``"ema"``, an `ExponentialAverage`, ``"swa"``, a
        `StochasticWeightAverage`, or an object.
    use_average : bool
        Whether the averages take the place of the weights in evaluation mode: in `predict`, the validation of `fit`
        and `to_onnx`. It can be changed at any time; `state_dict` has the weights, and `save` and `save_states` have
        both.
    distributed : bool or DataParallel
        Whether several processes take the steps together, or how: see the notes.
    gradient_dtype, top_k : optional
        As for ``distributed=DataParallel(gradient_dtype, top_k)``.

    Raises
    ------
    SettingError
        A setting is not known, or the step size follows the validation loss.

    Notes
    -----
    With `distributed`, the script calls ``torch.distributed.init_process_group("gloo")`` and is started by
    ``torchrun``. Every process is given all rows of a batch, by `train_one_batch` or `fit`, and reads its share.
    Gradients are averaged by the rows of each process, so that the weights, the same on all of them, are as in a single
    process if the loss is a mean over the rows, and no layer mixes rows: a row counts by its `sample_weight`, and by
    its labels that count, where the step has labels once. All begin with the state of the first, at the first batch and
    in every `fit`, which compares models, settings and rows: a DataError names the difference.

    Scalars that `train_one_batch` returns are averaged as well, and other outputs belong to the process' rows. Batch
    statistics are taken of the process' rows, and running statistics are averaged. Dropout masks differ between the
    processes. Validation and `predict` read all that they are given, in every process. Callbacks are called in every
    process; the first decides whether `fit` ends.

    Gradients that a process has not sent yet, by `top_k`, are a part of its state: a file holds the residual of the
    process that writes it.

    Examples
    --------
    >>> from ortpartial import nn
    >>> class Line(nn.Module):
    ...     def __init__(self):
    ...         self.linear, self.loss = nn.Linear(1, 1), nn.Loss("square_error")
    ...         self.optimizer = nn.Optimizer(0.1)
    ...     def forward(self, x):
    ...         return self.linear(x)
    ...     def train_one_batch(self, x, y):
    ...         output = self.forward(x)
    ...         loss = self.loss(output, y)
    ...         self.optimizer(loss)
    ...         return output, loss
    >>> model, x = Line().compile(nn.placeholder(["N", 1]), random_state=0), np.float32([[0], [1]])
    >>> losses = [model.train_one_batch(x, 2 * x)[1] for _ in range(200)]
    >>> bool(losses[-1] < 1e-3 * losses[0])
    True
    """

    _habits = UPDATE_HABITS

    @classmethod
    def _check_arguments(cls, args: Sequence[object], settings: Mapping[str, object]) -> None:
        try:
            super()._check_arguments(args, settings)
        except TypeError as e:
            text = str(e).partition("; its settings are")[0].rstrip(".")
            raise ArgumentError(f"{text}; what belongs to the algorithm, such as its step size, is given to it, as in "
                            f"rate=LearningRateAdam(0.01).") from None

    def __init__(
        self, rate: RateLike = "SGD", parameters: Trained = None, *, penalty: BaseLearningPenalty | str | None = None,
        gradient_clipping: GradientClipping | float | None = None, accumulate: int = 1,
        averaging: str | WeightAverage | None = None, use_average: bool = False,
        distributed: bool | DataParallel = False, gradient_dtype: DTypeLike | None = None, top_k: float | None = None
    ):
        update = {"rate": rate, "penalty": penalty, "gradient_clipping": gradient_clipping, "accumulate": accumulate,
                  "averaging": averaging}
        plain, penalty, gradient_clipping, accumulate, averaging, *others = expand_chain(update, _NAMES).values()
        if others:
            raise SettingError(f"chain: a module's optimizer takes no factors of rates, such as {others[0]!r}; give "
                               f"parts of the module optimizers of their own.")
        self.accumulate = check_count("accumulate", accumulate)
        self.averaging = self.planned_averaging = resolve_averaging(averaging)
        self.use_average = use_average
        self.rate = resolve_rate(plain)
        self.planned_batches: int | None = None
        self.penalty = resolve_penalty(penalty)
        self.gradient_clipping = resolve_clipping(gradient_clipping)
        self.parameters = list(parameters) if isinstance(parameters, Iterator) else parameters
        if isinstance(distributed := resolve_distributed(distributed), DataParallel):
            gradient_dtype, top_k = gradient_dtype or distributed.gradient_dtype, top_k or distributed.top_k
        self.distributed, self.parallel = bool(distributed), DataParallel(gradient_dtype, top_k)
        self.gradient_dtype, self.top_k = self.parallel.gradient_dtype, self.parallel.top_k
        if not (distributed or self.parallel.is_whole):
            raise SettingError("gradient_dtype and top_k say how several processes send gradients; set "
                               "distributed=True as well.")
        if self.rate.plateau is not None:
            raise SettingError(f"{self.rate.schedule!r} reduces the step size by the losses of whole epochs, which a "
                               f"module's optimizer does not see; take a schedule of the number of batches.")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "rate":
            value = self.planned_rate = resolve_rate(value)
        elif name in ("accumulate", "averaging") and name in vars(self):
            raise SettingError(f"{name} says which sums and averages an optimizer holds, and cannot be changed; make "
                               f"another optimizer, as in set_optimizer(rate, {name}={value!r}).")
        elif name == "use_average":
            check_average(check_flag(name, value), self.averaging)
        super().__setattr__(name, value)
        if not name.startswith("planned_"):  # Whoever plans asks whether that changes anything.
            note_change()

    def plan(self, batches: int) -> bool:
        """Plan a training of so many batches, for schedules that last as long; whether this changes anything."""
        former = self.planned_rate, self.planned_averaging
        self.planned_batches = batches
        self._plan()
        return (self.planned_rate, self.planned_averaging) != former

    def plan_again(self) -> None:
        """Plan as before where the rate may have changed in itself."""
        if not is_settled(self.rate) or (self.averaging is not None and not is_settled(self.averaging)):
            self._plan()

    def _plan(self) -> None:
        """Give the rate and the average the number of updates, if it is known."""
        self.planned_rate, self.planned_averaging = self.rate, self.averaging
        if self.planned_batches is not None:
            updates = max(self.planned_batches // self.accumulate, 1)
            self.planned_rate = self.rate.over(updates)
            self.planned_averaging = self.averaging and self.averaging.over(updates)

    def name_state(self, own: str, weight: str, state: str) -> str:
        """The name of a state of a weight, of the optimizer that is this attribute."""
        return f"{own}.{weight}.{state}"

    def __call__(self, loss: Value, parameters: Trained = None) -> None:
        """Update the weights by the gradient of a loss.

        Parameters
        ----------
        loss : Value
            A scalar.
        parameters : Module, Parameter, or sequence of them, optional
            The parameters trained by this loss, in place of all that the optimizer trains.

        Raises
        ------
        GraphError
            The loss is no scalar.
        ModelError
            The loss depends on none of the weights, or it is not called in `train_one_batch`.
        """
        trace = current_trace()
        if trace is None:
            raise ModelError("An optimizer is called with a loss in train_one_batch, as a part of the step; outside of "
                             "it call train_one_batch itself, or fit.")
        if not isinstance(loss, Value) or loss.shape is None or any(n != 1 for n in loss.shape):
            raise GraphError(f"An optimizer takes a scalar loss, not {loss!r}; take its mean, as nn.Loss does.")
        if trace.updates:
            self._update(trace, loss.reshape(()) if loss.rank else loss, parameters)

    def _update(self, trace: Trace, loss: Value, parameters: Trained) -> None:
        """Write the update of the weights that the loss depends on."""
        weights = {trace.name_of(p): trace.read(p) for p in self._choose(trace, parameters)}
        between = nodes_between([loss], set(weights.values()), ())
        reached = {v for node in between for v in node.reads}
        weights = {n: v for n, v in weights.items() if v in reached}
        if not weights:
            raise ModelError(f"The loss {loss!r} depends on none of the weights that {self!r} trains.")
        penalized = [v for v in weights.values() if self.penalty.applies_to(v.shape or ())]
        objective = op.Sum(loss, *(self.penalty(v).astype(loss.dtype) for v in penalized)) if penalized else loss
        gradients = self.reduce(trace, list(weights.values()), trace.differentiate(objective, list(weights.values())))
        self._apply(trace, weights, gradients)

    def reduce(self, trace: Trace, weights: list[Value], gradients: Sequence[Value]) -> Sequence[Value]:
        """The gradients as they are applied: of several processes, their mean."""
        if not self.distributed:
            if trace.is_distributed:
                raise SettingError(f"{self!r} trains in one process, and another optimizer of the module in several; "
                                   f"set distributed=True in both, so that all processes have the same weights.")
            return gradients
        static = [g.reshape(list(w.shape or ())) for w, g in zip(weights, gradients, strict=True)]
        name = f"{trace.optimizer_name(self)}.gradients"
        return average(trace, static, name, self.parallel)

    def _apply(self, trace: Trace, weights: dict[str, Value], gradients: Sequence[Value]) -> None:
        """Write the new weights and states."""
        own = trace.optimizer_name(self)
        counter = f"{own}.iteration"
        before = trace.read_state(counter, np.int64, (), np.zeros((), np.int64))
        k = before + 1
        rates, states, name_state = {}, {}, partial(self.name_state, own)
        for name, w in weights.items():
            shape = tuple(w.shape or ())
            rate = self.planned_rate.for_weight([p for p in self.rate.patterns if fnmatchcase(name, p)], shape)
            rates[name] = self.penalty.join_rate(rate, shape)
            shapes = list_states(rates[name], shape, self.accumulate, self.averaging)
            states[name] = {s: trace.read_state(name_state(name, s), w.dtype, size, np.zeros(size, w.dtype))
                            for s, size in shapes.items()}
        update = Update(weights, states, rates, name_state, gradient_clipping=self.gradient_clipping,
                        accumulate=self.accumulate, averaging=self.planned_averaging)
        call = trace.update(update, dict(zip(weights, gradients, strict=True)), k)
        for name, value in call.take().items():
            trace.write_state(name, stop_gradient(value) if value.is_float else value)
        trace.write_state(counter, op.Where(call.finite, k, before) if call.is_guarded else k)

    def _choose(self, trace: Trace, parameters: Trained) -> list[Weight]:
        """The parameters that are trained."""
        chosen: Any = self.parameters if parameters is None else parameters
        chosen = trace.module if chosen is None else chosen
        parts = [chosen] if isinstance(chosen, Parameter) or hasattr(chosen, "parameters") else list(chosen)
        each = [p for part in parts for p in ([part] if isinstance(part, Parameter) else part.parameters())]
        return [p for p in each if p.is_trained]

    def __repr__(self) -> str:
        return f"Optimizer({self.rate!r})"
