"""The training spec: which weights of a model are trained, by which losses and optimizer, in which mode and where."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ortpartial.autodiff import Gradient, find_named
from ortpartial.exceptions import SettingError
from ortpartial.execution import DataParallel
from ortpartial.graph import Value, topological
from ortpartial.learning import (
    BaseLearningLoss,
    BaseLearningPenalty,
    BaseLearningRate,
    GradientClipping,
    LearningRateSGD,
    NoLearningPenalty,
    WeightAverage,
)
from ortpartial.model import ComputedInputs, Model, find_computed_inputs, specialize
from ortpartial.rewrites import Precision, rewrite_model
from ortpartial.runtime import Device, choose_threads

from .loss_output import LossOutput
from .names import Names
from .text_codes import find_vocabulary, read_codes

__all__ = ["ACCUMULATED", "AVERAGE", "TrainingSpec", "forward_bytes", "known_shape", "list_states",
           "program_bytes"]

#: The states of a weight that are not its optimizer's.
ACCUMULATED, AVERAGE = "accumulated", "average"


@dataclass(frozen=True)
class TrainingSpec:
    """The specification of a training, the same for every engine.

    Parameters
    ----------
    model : Model
        The model, with static or symbolic sizes.
    weights : tuple of str
        The initializers that are trained.
    losses : dict of str to BaseLearningLoss
        The loss of every trained output.
    penalty : BaseLearningPenalty
        The penalty of the weights.
    rate : BaseLearningRate
        The optimizer.
    device : str
        Where it runs.
    train_mode : bool
        Whether Dropout and BatchNormalization are in training mode.
    statistics : tuple of str
        The initializers that are running statistics, which a step in training mode updates.
    gradient : callable, optional
        Replaces `grad`, for example by a gradient with checkpointing: see `checkpoint_gradient`.
    precision : Precision, optional
        The dtype of products, and the scale of the loss.
    batches : int
        Number of batches of the whole training, for schedules that last as long; 0 as long as it is not known.
    rate_starts : dict of str to int
        By weight, the number of the update after which its states were zero, where that is not the start of the
        training: it was not trained, or the optimizer replaced another.
    rate_factors : dict of str to float
        By weight, the factor of its step size, where it is not 1.
    rescaled : bool
        Whether a step multiplies all step sizes by a number that changes between two batches without another program.
    sizes : dict of str to int
        Typical sizes in place of symbolic sizes, from which the number of threads follows.
    gradient_clipping : GradientClipping, optional
        How gradients are limited before an update.
    accumulate : int
        Number of batches of an update, which takes the mean of their gradients.
    averaging : WeightAverage, optional
        The average of the weights that is kept beside them.
    average_start : int
        Number of the update after which averaging began.
    branches : bool
        Whether a step may have branches, where its device shares memory with the host: they stop other devices.
    parallel : DataParallel
        How the gradients of several processes are sent, where they train together.
    """

    model: Model
    weights: tuple[str, ...]
    losses: Mapping[str, BaseLearningLoss]
    penalty: BaseLearningPenalty = field(default_factory=NoLearningPenalty)
    rate: BaseLearningRate = field(default_factory=LearningRateSGD)
    device: str = "cpu"
    train_mode: bool = False
    statistics: tuple[str, ...] = ()
    gradient: Gradient | None = None
    precision: Precision | None = None
    batches: int = 0
    rate_starts: Mapping[str, int] = field(default_factory=dict)
    rate_factors: Mapping[str, float] = field(default_factory=dict)
    rescaled: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    gradient_clipping: GradientClipping | None = None
    accumulate: int = 1
    averaging: WeightAverage | None = None
    average_start: int = 0
    branches: bool = True
    parallel: DataParallel = field(default_factory=DataParallel)

    def for_batch(self, sizes: int | Mapping[str, Sequence[int]]) -> TrainingSpec:
        """The same training with the sizes of batches: the number of rows, or the shapes of the inputs by name.

        Inputs of a language model that have none are computed from the others.
        """
        if isinstance(sizes, int):
            return replace(self, model=specialize(self.model, batch=sizes, variables=self.moving))
        model = specialize(self.model, batch={**self.computed.measure(sizes), **sizes}, variables=self.moving)
        return replace(self, model=self.computed.compute(model, sizes))

    def for_inputs(self, given: Collection[str]) -> TrainingSpec:
        """The same training for data that have these inputs; a language model computes inputs that follow from them."""
        model = self.computed.compute(self.model, given)
        return self if model is self.model else replace(self, model=model)

    def without_ignored_labels(self) -> TrainingSpec:
        """The same training for labels that all count, among which no `ignore_index` is looked for."""
        return replace(self, losses={output: loss.without_ignored_labels() for output, loss in self.losses.items()})

    @cached_property
    def computed(self) -> ComputedInputs:
        """The inputs of a language model that data may leave out."""
        return find_computed_inputs(self.model)

    @cached_property
    def rewritten(self) -> Model:
        """The model as a step runs it, before training mode and mixed precision."""
        return rewrite_model(self.coded, train_mode=self.train_mode)

    @property
    def coded(self) -> Model:
        """The model that reads strings as their places in the vocabulary."""
        return read_codes(self.model, self.vocabulary)

    @cached_property
    def vocabulary(self) -> np.ndarray | None:
        """The strings that the model knows, where an input holds strings: a step reads their places in it."""
        return find_vocabulary(self.model)

    @cached_property
    def names(self) -> Names:
        """Names of the inputs and outputs of a training step."""
        return Names.of(self.model)

    @cached_property
    def weight_names(self) -> dict[str, str]:
        """The names of the weights of elements, by output."""
        return {output: self.names.weight(output) for output in self.losses}

    @cached_property
    def counts_alike(self) -> bool:
        """Whether all elements of a target count the same, unless they have weights."""
        return all(loss.count_array(np.zeros(1, np.int64)) is None for loss in self.losses.values())

    @cached_property
    def own_loss(self) -> LossOutput | None:
        """The loss that the model computes itself, if it does."""
        return next((loss for loss in self.losses.values() if isinstance(loss, LossOutput)), None)

    @property
    def predictions(self) -> tuple[str, ...]:
        """The outputs that are predictions: the trained outputs, or the outputs beside the loss of the model."""
        return tuple(self.losses) if self.own_loss is None else self.own_loss.predictions

    @cached_property
    def moving(self) -> tuple[str, ...]:
        """The initializers that a step changes."""
        return (*self.weights, *self.statistics)

    @cached_property
    def trained(self) -> dict[str, Value]:
        """The weights by name."""
        return {w: self.model.initializers[w] for w in self.weights}

    @cached_property
    def outputs(self) -> dict[str, Value]:
        """The trained outputs by name."""
        return {o: self.model.outputs[o] for o in self.losses}

    @cached_property
    def read(self) -> dict[str, Value]:
        """The value that each loss reads, by trained output: the output, or a value that it is computed from."""
        return {o: loss.find_read(self.model.outputs[o]) for o, loss in self.losses.items()}

    @property
    def penalized(self) -> tuple[str, ...]:
        """The weights that the penalty applies to."""
        return tuple(w for w, v in self.trained.items() if self.penalty.applies_to(known_shape(v)))

    @property
    def dtype(self) -> np.dtype:
        """Element type of the loss: that of the first trained output."""
        return next(iter(self.outputs.values())).dtype

    @property
    def may_branch(self) -> bool:
        """Whether the device can take a step with branches."""
        return self.branches and Device.parse(self.device).is_cpu

    @property
    def planned_rate(self) -> BaseLearningRate:
        """The optimizer, whose schedule has a length; 1 as long as that of the training is not known."""
        return self.rate.over(max(self.batches // self.accumulate, 1))

    @property
    def planned_averaging(self) -> WeightAverage | None:
        """The averaging, in a training of that length."""
        return self.averaging and self.averaging.over(max(self.batches // self.accumulate, 1))

    @cached_property
    def rates(self) -> dict[str, BaseLearningRate]:
        """The optimizer of every weight, as some may be excluded from a part of the update."""
        rate, named = self.planned_rate, {p: find_named(self.model, p) for p in self.rate.patterns}
        return {w: rate.for_weight([p for p in named if w in named[p]], known_shape(v))
                for w, v in self.trained.items()}

    @cached_property
    def states(self) -> dict[str, tuple[str, str]]:
        """Every state of a weight: its name in the graphs, the weight it belongs to and its own name."""
        return {self.names.state(w, s): (w, s) for w in self.weights for s in self.shapes_of_states(w)}

    def shapes_of_states(self, weight: str) -> dict[str, tuple[Any, ...]]:
        """The names and shapes of the states of a weight: its optimizer's, the sum of its gradients, its average."""
        return list_states(self.rates[weight], known_shape(self.trained[weight]), self.accumulate, self.averaging)

    @property
    def scaling(self) -> dict[str, np.ndarray]:
        """The state of the loss scale before the first step, by the names in the graphs."""
        if self.precision is None:
            return {}
        return {self.names.free(n): a for n, a in self.precision.initial_state.items()}

    @property
    def controls(self) -> dict[str, np.ndarray]:
        """Values that the loop sets between two batches, before the first, by the names in the graphs."""
        controls = {self.names.rate_scale: np.ones(())} if self.rescaled or self.rate.plateau else {}
        if self.rate.plateau:
            controls[self.names.plateau] = self.rate.plateau.first_memory
        return controls

    def threads(self) -> int | None:
        """Number of threads of a step, the same in every engine."""
        trained = list(self.trained.values())
        if choose_threads(trained, sizes=self.sizes) is None:  # Large weights decide, without a look at the model.
            return None
        return choose_threads([*(self.rewritten.outputs[o] for o in self.losses), *trained], sizes=self.sizes)

    def with_gradient(self, gradient: Gradient) -> TrainingSpec:
        """The same training with another gradient, for which the model is not rewritten again."""
        spec = replace(self, gradient=gradient)
        vars(spec)["rewritten"] = self.rewritten
        return spec


def list_states(rate: BaseLearningRate, shape: tuple[int | str | None, ...], accumulate: int,
                averaging: WeightAverage | None) -> dict[str, tuple[Any, ...]]:
    """The names and shapes of the states of a weight.

    Parameters
    ----------
    rate : BaseLearningRate
        Its optimizer.
    shape : tuple of int, str or None
        The shape of the weight.
    accumulate : int
        Number of batches of an update.
    averaging : WeightAverage, optional
        The average of the weight.

    Returns
    -------
    dict of str to tuple of int, str or None
        The states of the optimizer, then the sum of gradients and the average, if any.

    Raises
    ------
    SettingError
        The optimizer has a state with a name of these.
    """
    own = [ACCUMULATED] * (accumulate > 1) + [AVERAGE] * (averaging is not None)
    states = rate.state_shapes(shape)
    if clash := states.keys() & own:
        raise SettingError(f"{type(rate).__name__} has a state {min(clash)!r}, which the training itself has; give it "
                           f"another name.")
    return {**states, **dict.fromkeys(own, shape)}


def known_shape(v: Value) -> tuple[int | str | None, ...]:
    """The shape of a value whose rank has to be known."""
    return v.shape or () if v.rank else ()


def forward_bytes(model: Model) -> int:
    """How much all values on the way to the outputs of a model take, as far as their sizes are known.

    Parameters
    ----------
    model : Model
        The model.

    Returns
    -------
    int
    """
    values = [node.outputs[0] for node in topological(list(model.outputs.values()))]
    return sum(prod(sizes) * v.dtype.itemsize for v in values
               if len(sizes := [n for n in v.shape or () if isinstance(n, int)]) == len(v.shape or (None,)))


def program_bytes(model: Model) -> int:
    """How much a program of a model takes: its constants, and the values on the way to its outputs, with gradients.

    Parameters
    ----------
    model : Model
        The model, with the sizes that it runs with.

    Returns
    -------
    int
    """
    constants = sum(v.array.nbytes for v in model.initializers.values() if v.array is not None)
    return constants + 2 * forward_bytes(model)
