"""onnxcustom's names: its optimizers, learning rates and helpers, so that a change of the import is enough."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import Data, Formula, Json, Settings
from ortpartial.autodiff import resolve_weights
from ortpartial.estimator import OrtGradientForwardBackwardOptimizer as _ForwardBackwardOptimizer
from ortpartial.estimator import OrtGradientOptimizer as _Optimizer
from ortpartial.estimator import add_loss_output as _add_loss_output
from ortpartial.exceptions import ConvergenceError, ConvergenceWarning, SettingError
from ortpartial.learning import (
    AbsoluteLearningLoss,
    BaseLearningLoss,
    BaseLearningPenalty,
    BaseLearningRate,
    ElasticLearningLoss,
    ElasticLearningPenalty,
    InvScalingSchedule,
    NoLearningPenalty,
    OptimalSchedule,
    SoftmaxCrossEntropyLearningLoss,
    SquareLearningLoss,
    resolve_loss,
    resolve_penalty,
)
from ortpartial.learning import LearningRateSGD as _SGD
from ortpartial.learning import LearningRateSGDNesterov as _Nesterov
from ortpartial.learning import NegLogLearningLoss as _NegLog
from ortpartial.model import load, replace_weights, walk_graphs
from ortpartial.training import OrtGradientForwardBackward as _ForwardBackward

__all__ = ["AbsoluteLearningLoss", "BaseLearningLoss", "BaseLearningPenalty", "BaseLearningRate", "ConvergenceError",
           "ConvergenceWarning", "ElasticLearningLoss", "ElasticLearningPenalty", "LearningRateSGD",
           "LearningRateSGDNesterov", "LearningRateSGDRegressor", "NegLogLearningLoss", "NoLearningPenalty",
           "OrtGradientForwardBackward", "OrtGradientForwardBackwardFunction", "OrtGradientForwardBackwardOptimizer",
           "OrtGradientOptimizer", "SquareLearningLoss", "add_loss_output", "get_train_initializer",
           "onnx_rename_weights", "replace_initializers_into_onnx", "select_loss", "select_penalty", "select_rate"]

if TYPE_CHECKING:
    from typing_extensions import Self

_LOGGER = logging.getLogger("onnxcustom")

_SCHEDULES = ("invscaling", "optimal", "constant")


@dataclass(frozen=True)
class _Scheduled(BaseLearningRate):
    """The fields of onnxcustom's learning rates, and the schedule that they name, in front of a class of today."""

    eta0: float = 0.01
    alpha: float = 0.0001
    power_t: float = 0.25
    learning_rate: str = "invscaling"

    def __post_init__(self) -> None:
        if self.learning_rate not in _SCHEDULES:
            names = ", ".join(map(repr, _SCHEDULES))
            raise SettingError(f"learning_rate is {self.learning_rate!r}; {names} are known.")
        schedules = {"invscaling": InvScalingSchedule(self.power_t), "constant": "constant",
                     "optimal": _OptimalSchedule(self.alpha)}
        object.__setattr__(self, "schedule", schedules[self.learning_rate])
        super().__post_init__()

    def loop(self, n: int = 1000) -> Iterator[float]:
        """The first step sizes.

        Parameters
        ----------
        n : int
            Their number.

        Yields
        ------
        float
        """
        t0 = _OptimalSchedule(self.alpha).t0
        for k in range(1, n + 1):
            yield self.eta0 * {"invscaling": k**-self.power_t, "constant": 1.0,
                               "optimal": (t0 + 1) / (t0 + k)}[self.learning_rate]


@dataclass(frozen=True)
class LearningRateSGD(_Scheduled, _SGD):
    """η as in onnxcustom: η₀ / k^power_t, η₀ (t₀ + 1) / (t₀ + k), or η₀; k counts batches.

    Parameters
    ----------
    eta0 : float
        η₀, the first step size.
    alpha : float
        Of the optimal schedule, as in `OptimalSchedule`.
    power_t : float
        Of the schedule "invscaling".
    learning_rate : str
        ``"invscaling"``, ``"optimal"`` or ``"constant"``.
    schedule, weight_decay, no_decay
        As in `ortpartial.LearningRateSGD`; the schedule follows from `learning_rate`.

    Raises
    ------
    SettingError
        There is no such schedule.

    Examples
    --------
    >>> list(LearningRateSGD(0.01, learning_rate="constant").loop(2))
    [0.01, 0.01]
    """

    @staticmethod
    def select(class_name: object, **settings: object) -> BaseLearningRate:
        """`select_rate`."""
        return select_rate(class_name, **settings)


@dataclass(frozen=True)
class LearningRateSGDNesterov(_Scheduled, _Nesterov):
    """Momentum, with the schedules of `LearningRateSGD`.

    Parameters
    ----------
    eta0, alpha, power_t, learning_rate, schedule, weight_decay, no_decay, momentum, nesterov
        As for `LearningRateSGD`, and as in `ortpartial.LearningRateSGDNesterov`.

    Examples
    --------
    >>> LearningRateSGDNesterov(1e-2, momentum=0.5).momentum
    0.5
    """


LearningRateSGDRegressor = LearningRateSGD


@dataclass(frozen=True)
class _OptimalSchedule(OptimalSchedule):
    """η₀ (t₀ + 1) / (t₀ + k) with t₀ = 2 (1 + ω) / (ω α) and ω = α^(-1/4)."""

    from_eta0: bool = True

    @property
    def t0(self) -> float:
        """The number of batches after which the step size has halved."""
        typical = self.alpha**-0.25
        return 2 * (1 + typical) / (typical * self.alpha)


def select_rate(class_name: object, **settings: object) -> BaseLearningRate:
    """The learning rate of a name, of a number, or the object itself: ``BaseLearningRate.select``.

    Parameters
    ----------
    class_name : str, float or BaseLearningRate
        ``"SGD"``, ``"SGDNesterov"`` or ``"Nesterov"``, a step size, or an object.
    **settings : object
        Those of the class of a name.

    Returns
    -------
    BaseLearningRate

    Raises
    ------
    SettingError
        There is no such name.

    Examples
    --------
    >>> select_rate("Nesterov", momentum=0.8).momentum
    0.8
    """
    if isinstance(class_name, BaseLearningRate):
        return class_name
    if isinstance(class_name, float):
        return LearningRateSGD(class_name)
    kinds: dict[object, Formula] = {"SGD": LearningRateSGD, "LearningRateSGD": LearningRateSGD,
                                      **dict.fromkeys(("SGDNesterov", "Nesterov", "LearningRateSGDNesterov"),
                                                      LearningRateSGDNesterov)}
    if class_name not in kinds:
        raise SettingError(f"class_name is {class_name!r}; a number, an object or one of "
                           f"{', '.join(map(repr, kinds))} was expected.")
    rate: BaseLearningRate = kinds[class_name](**settings)
    return rate


#: ``BaseLearningLoss.select`` and ``BaseLearningPenalty.select``.
select_loss, select_penalty = resolve_loss, resolve_penalty


@dataclass(frozen=True)
class NegLogLearningLoss(_NegLog):
    """The log loss of two classes from scores.

    Parameters
    ----------
    eps : float
        Is kept, and nothing is clipped: the loss of every score is finite.
    probability_function : str
        ``"sigmoid"``.
    ignore_index, label_smoothing, class_weight, pos_weight, from_logits
        As in `ortpartial.NegLogLearningLoss`.

    Raises
    ------
    SettingError
        The function is another one.

    Examples
    --------
    >>> NegLogLearningLoss().eps
    1e-05
    """

    eps: float = 1e-5
    probability_function: str = "sigmoid"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.probability_function != "sigmoid":
            raise SettingError(f"probability_function is {self.probability_function!r}; 'sigmoid' was expected, and "
                               f"the softmax belongs to SoftmaxCrossEntropyLearningLoss.")


def _convert(former: Settings) -> Settings:
    """The settings of today, in place of positional ones of onnxcustom."""
    settings = {n: v for n, v in former.items() if v is not None and n != "enable_logging"}
    settings["raise_on_divergence"] = settings.pop("exc", True)
    if "learning_rate" in settings:
        settings["learning_rate"] = select_rate(settings["learning_rate"])
    return settings


class _Former:
    """Methods of onnxcustom's optimizers, as a base class in front of one of today."""

    _logs = False

    def __new__(cls, *args: object, **settings: object) -> Self:
        """An object, whose constructor takes settings by position, too."""
        return object.__new__(cls)

    def fit(self, X: Data, y: Data = None, sample_weight: Data = None, X_val: Data = None, y_val: Data = None,
            use_numpy: bool = True, **settings: object) -> Self:
        """Train; `use_numpy` is taken for granted.

        Returns
        -------
        object
            The object itself.
        """
        weight = sample_weight.reshape(-1) if isinstance(sample_weight, np.ndarray) else sample_weight
        super().fit(X, y, weight, X_val, y_val, **settings)  # type: ignore[misc]
        if self._logs:
            name = type(self).__name__
            _LOGGER.info("[%s.fit] weights_to_train=%r", name, self.weights_to_train)  # type: ignore[attr-defined]
            for i, loss in enumerate(self.train_losses_):  # type: ignore[attr-defined]
                _LOGGER.debug("[%s._iteration] iteration=%d loss=%r", name, i, loss)
        return self

    def get_state(self, kind: str = "weight") -> list[np.ndarray]:
        """The trained arrays, in the order of `weights_to_train`.

        Raises
        ------
        AttributeError
            There was no `fit`.
        """
        if not self.n_iter_:  # type: ignore[attr-defined]
            raise AttributeError("Method fit must be called before.")
        today = "optimizer" if kind == "grad" else kind
        return super().get_state(today)  # type: ignore[misc]

    def get_trained_onnx(self, model: ModelProto | None = None) -> ModelProto:
        """The model, or another one with weights of the same names, with the trained weights."""
        trained: ModelProto = super().get_trained_onnx()  # type: ignore[misc]
        weights = self.trained_coef_  # type: ignore[attr-defined]
        return trained if model is None else replace_initializers_into_onnx(model, weights)

    def save_onnx_graph(self, folder: Data, prefix: str | None = None, suffix: str | None = None) -> Json:
        """The graphs in use; `prefix` and `suffix` name a folder in the folder."""
        inner = f"{prefix or ''}{suffix or ''}"
        if inner and folder is not bytes:
            folder = os.path.join(folder, inner)
            os.makedirs(folder, exist_ok=True)
        return super().save_onnx_graph(folder)  # type: ignore[misc]

    def __repr__(self) -> str:
        params = self.get_params(deep=False)  # type: ignore[attr-defined]
        shown = {n: params[n] for n in ("weights_to_train", "max_iter", "batch_size") if n in params}
        shown["learning_rate"] = self.learning_rate  # type: ignore[attr-defined]
        texts = ["model_onnx='...'", *(f"{n}={v!r}" for n, v in shown.items())]
        return f"{type(self).__name__}({', '.join(texts)})"


class OrtGradientForwardBackwardOptimizer(_Former, _ForwardBackwardOptimizer):  # type: ignore[misc]
    """`ortpartial.OrtGradientForwardBackwardOptimizer` with the arguments of onnxcustom, by position, too.

    Examples
    --------
    >>> from onnx.parser import parse_model
    >>> model = parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ...     line (float[N, 1] x) => (float[N, 1] y) <float[1, 1] w = {0}> { y = MatMul(x, w) }''')
    >>> x = np.ones((20, 1), np.float32)
    >>> optimizer = OrtGradientForwardBackwardOptimizer(model, ["w"], learning_rate=0.25, max_iter=30)
    >>> optimizer.fit(x, 2 * x, use_numpy=True).get_state()[0].round(1)
    array([[2.]], dtype=float32)
    """

    @functools.wraps(_ForwardBackwardOptimizer.__init__)  # type: ignore[misc]
    def __init__(self, model_onnx: object = None, weights_to_train: object = None, loss_output_name: str = "loss",
                 max_iter: int = 100, training_optimizer_name: str = "SGDOptimizer", batch_size: int = 10,
                 learning_rate: object = "SGD", device: object = "cpu", warm_start: bool = False, verbose: int = 0,
                 validation_every: float = 0.1, learning_loss: object = "square_error", enable_logging: bool = False,
                 weight_name: str | None = None, learning_penalty: object = None, exc: bool = True, **today: object):
        former = {n: v for n, v in locals().items() if n not in ("self", "today", "model_onnx", "__class__")}
        self._logs = enable_logging
        super().__init__(**{"model": model_onnx, **_convert(former), **today})


class OrtGradientOptimizer(_Former, _Optimizer):  # type: ignore[misc]
    """`ortpartial.OrtGradientOptimizer` with the arguments of onnxcustom, by position, too."""

    @functools.wraps(_Optimizer.__init__)  # type: ignore[misc]
    def __init__(self, model_onnx: object = None, weights_to_train: object = None, loss_output_name: str = "loss",
                 max_iter: int = 100, training_optimizer_name: str = "SGDOptimizer", batch_size: int = 10,
                 learning_rate: object = "SGD", device: object = "cpu", warm_start: bool = False, verbose: int = 0,
                 validation_every: float = 0.1, saved_gradient: str | None = None,
                 sample_weight_name: str | None = None, **today: object):
        former = {n: v for n, v in locals().items() if n not in ("self", "today", "model_onnx", "__class__")}
        super().__init__(**{"model": model_onnx, **_convert(former), **today})


class OrtGradientForwardBackward(_ForwardBackward):
    """`ortpartial.OrtGradientForwardBackward`, whose passes are also those of a function, as in onnxcustom.

    Examples
    --------
    >>> from onnx.parser import parse_model
    >>> model = parse_model('''<ir_version: 8, opset_import: ["": 18]>
    ...     line (float[N, 1] x) => (float[N, 1] y) <float[1, 1] w = {3}> { y = MatMul(x, w) }''')
    >>> function = OrtGradientForwardBackward(model, ["w"]).new_instance()
    >>> function.forward([np.ones((2, 1), np.float32)], training=True)
    [array([[3.],
           [3.]], dtype=float32)]
    >>> [gradient.tolist() for gradient in function.backward([np.ones((2, 1), np.float32)])]
    [[[3.0], [3.0]], [[2.0]]]
    """

    def new_instance(self) -> OrtGradientForwardBackwardFunction:
        """A function with a state of its own."""
        return OrtGradientForwardBackwardFunction(self)


class OrtGradientForwardBackwardFunction:
    """A forward pass, and the backward pass that follows it.

    Parameters
    ----------
    layer : OrtGradientForwardBackward
        The graph.
    """

    def __init__(self, layer: _ForwardBackward):
        self._layer = layer
        self._states: list[object] = []

    def forward(self, inputs: Sequence[Data], training: bool = False) -> list[np.ndarray]:
        """The outputs, for arrays or OrtValues of the inputs; in training, `backward` may follow."""
        arrays = [x if isinstance(x, np.ndarray) or not hasattr(x, "numpy") else x.numpy() for x in inputs]
        outputs, state = self._layer.forward(arrays, training)
        if training:
            self._states.append(state)
        return outputs

    def backward(self, output_gradients: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The gradients by the inputs, then by the weights, of the last forward pass that has none yet.

        Raises
        ------
        SettingError
            There was no forward pass in training.
        """
        if not self._states:
            raise SettingError("There is no forward pass to go back from; call forward(inputs, training=True).")
        weights, inputs = self._layer.backward(output_gradients, self._states.pop())
        return [*inputs.values(), *weights.values()]


_LOSSES = {"squared_error": "square_error", "l2": "square_error", "absolute_error": "absolute_error",
           "l1": "absolute_error", "log": "log_loss", "squared_loss": "square_error"}


def add_loss_output(
    onx: ModelProto, score_name: str = "squared_error", loss_name: str = "loss", label_name: str = "label",
    weight_name: str | None = None, penalty: object = None, output_index: int | str | None = None, **settings: float,
) -> ModelProto:
    """Write a loss into a model, as onnxcustom's `add_loss_output`: the mean over the rows.

    Parameters
    ----------
    onx : onnx.ModelProto
        The model.
    score_name : str
        ``"squared_error"``, ``"absolute_error"``, ``"elastic"``, or ``"log"``: of a score, and of the probabilities of
        two or more classes, whose labels are one column.
    loss_name : str
        The name of the loss.
    label_name : str
        Is not kept: the input of the labels is called as the output, with ``"_target"``.
    weight_name : str, optional
        The name of the input of the weights, of which there is none without it.
    penalty : dict, optional
        None: the penalty is a setting of the optimizer.
    output_index : int or str, optional
        The output that is trained, the first one if left out.
    **settings : float
        ``l1_weight`` and ``l2_weight`` of ``"elastic"``.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    SettingError
        There is a penalty.
    """
    if penalty is not None:
        raise SettingError("The penalty is a setting of the optimizer: "
                           "learning_penalty=ElasticLearningPenalty(l1, l2).")
    loss: Data = ElasticLearningLoss(**settings) if score_name == "elastic" else _LOSSES.get(score_name, score_name)
    outputs = {o.name: o.type.tensor_type.shape.dim for o in onx.graph.output}
    name = output_index if isinstance(output_index, str) else [*outputs][output_index or 0]
    if score_name == "log" and len(sizes := outputs.get(name, ())) == 2 and sizes[1].dim_value > 1:
        loss = SoftmaxCrossEntropyLearningLoss(from_logits=False)
    if output_index is not None:
        loss = {name: loss}
    model = _add_loss_output(onx, loss, weighted=weight_name is not None, loss_output_name=loss_name)
    return model if weight_name is None else _rename(model, {"sample_weight": weight_name})


def get_train_initializer(onx: ModelProto) -> dict[str, np.ndarray]:
    """The weights that an optimizer trains without names, with their content."""
    model = load(onx)
    return {n: model.arrays[n] for n in resolve_weights(model, None, list(model.outputs))}


def onnx_rename_weights(onx: ModelProto) -> ModelProto:
    """A copy of a model whose initializers are numbered in their order, as in ``"I0_coef"``."""
    return _rename(onx, {t.name: f"I{i}_{t.name}" for i, t in enumerate(onx.graph.initializer)})


def _rename(model: ModelProto, names: Mapping[str, str]) -> ModelProto:
    """A copy of a model with other names of initializers and inputs."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for held in (*copy.graph.initializer, *copy.graph.input):
        held.name = names.get(held.name, held.name)
    for node in (node for graph in walk_graphs(copy.graph) for node in graph.node):
        for i, name in enumerate(node.input):
            node.input[i] = names.get(name, name)
    return copy


def replace_initializers_into_onnx(model_onnx: ModelProto, results: Mapping[str, np.ndarray]) -> ModelProto:
    """A copy of a model with other initializers, by name."""
    copy = ModelProto()
    copy.CopyFrom(model_onnx)
    held = {t.name for t in copy.graph.initializer}
    return replace_weights(copy, {n: np.asarray(a) for n, a in results.items() if n in held})
