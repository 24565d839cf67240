"""The optimizer of graphs that hold their own loss: full training, the sister of partial training."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import CallbackLike, Entries, MetricLike, State
from ortpartial.autodiff import WeightSelection, find_frozen
from ortpartial.exceptions import ModelWarning
from ortpartial.execution import DataParallel, FitSettings
from ortpartial.learning import (
    BaseLearningLoss,
    BaseLearningPenalty,
    BaseLearningRate,
    GradientClipping,
    WeightAverage,
    accept_former_names,
    check_keywords,
)
from ortpartial.model import Model
from ortpartial.rewrites import LossScale
from ortpartial.runtime import DeviceName
from ortpartial.training import RateFactors, TrainingSpec

from .loss_data import LossBatchReader
from .loss_graph import find_loss, list_predictions
from .optimizer import OrtGradientForwardBackwardOptimizer, list_arguments
from .params import ModelSetting
from .training import Training
from .weights import find_loss_weights

__all__ = ["OrtGradientOptimizer"]


class LossTraining(Training):
    """The training of a graph that holds its own loss.

    Attributes
    ----------
    labels : dict of str to str
        The inputs that are labels, by what the data adapter calls them.
    row_weights : str or None
        The input that is the weights of the rows.
    """

    labels: Mapping[str, str]
    row_weights: str | None

    def find_losses(self, model: Model, stacklevel: int) -> dict[str, BaseLearningLoss]:
        """The loss that the model computes."""
        settings = self.settings
        losses, self.labels, self.row_weights = find_loss(
            model, settings["loss_output_name"], settings["label_names"], settings["sample_weight_name"])
        if self.arguments["weights_to_train"] is None:
            self._warn_of_loss_weights(model, losses, stacklevel + 2)
        return losses

    def _warn_of_loss_weights(self, model: Model, losses: Mapping[str, BaseLearningLoss], stacklevel: int) -> None:
        """Warn of weights that are not trained as the loss alone reads them: it might have learned them."""
        frozen = find_frozen(model, self.arguments["freeze"])
        if names := [n for n in find_loss_weights(model, losses) if n not in frozen]:
            warnings.warn(f"The loss {self.settings['loss_output_name']!r} alone reads {', '.join(map(repr, names))}, "
                          f"taken for constants such as class weights and not trained; add to weights_to_train what "
                          f"is a weight, or to freeze what is none.", ModelWarning, stacklevel=stacklevel)

    def compose(self, spec: TrainingSpec, settings: FitSettings) -> None:
        """Compose the parts from a spec and the settings of the loop."""
        super().compose(spec, settings)
        self.predictor.reader = LossBatchReader(self.data, self.labels, self.row_weights)
        roles = [*self.labels, *([self.row_weights] if self.row_weights else [])]
        self.state.outputs = list_predictions(spec.model, self.settings["loss_output_name"], roles) or None

    def pack(self) -> State:
        """The content of a pickle."""
        return {**super().pack(), "_labels": self.labels, "_row_weights": self.row_weights}

    def prepare_unpacked(self, state: State) -> None:
        """Take the labels and the weights of rows from a pickle."""
        self.labels, self.row_weights = state.pop("_labels"), state.pop("_row_weights")


class OrtGradientOptimizer(OrtGradientForwardBackwardOptimizer):
    """Train an ONNX graph that holds its own loss: an output that is a scalar, computed from features and labels.

    At batch k every weight becomes w - η(k) · step(∇J, state), with the objective J = L + Σ penalty(w) and the loss L
    that the graph computes for the batch. `predict` and the trained model are the graph without its loss. All else is
    that of `OrtGradientForwardBackwardOptimizer`, which takes the loss as a setting.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path, or a `Model` returned by `load`
        The model, of any opset, as an exporter or `add_loss_output` has written it; it is never written to.
    weights_to_train : str, sequence of str, or callable, optional
        Initializers to train, as for `OrtGradientForwardBackwardOptimizer`; by default those on a differentiable path
        to the loss that a prediction reads, too: a ModelWarning names the others, such as class weights. All where
        there are no predictions.
    loss_output_name : str
        The output that is the loss: a real number of shape () or (1,).
    label_names : str or sequence of str, optional
        The inputs that are labels; by default those that no other output depends on. Outputs that depend on labels are
        no predictions.
    sample_weight_name : str, optional
        The input that is the weights of the rows; by default ``"sample_weight"``, where the loss alone reads it.
    learning_rate : str, float or BaseLearningRate
        The optimizer, with its learning rate and schedule: ``"SGD"``, ``"SGDNesterov"``, ``"Adam"``, an object, or a
        number for plain SGD.
    learning_penalty : BaseLearningPenalty, optional
        The penalty of the weights.
    max_iter, batch_size, shuffle, init : object
        Epochs, rows of a step, their order and the first weights: as for `OrtGradientForwardBackwardOptimizer`, as all
        that follow.
    train_mode, precision, loss_scale : object
        Training mode and mixed precision.
    random_state, device, engine, warm_start, validation_every, callbacks, metrics, distributed : object
        Where the training runs, who is told of it, and what is measured.
    checkpointing, gradient_clipping, accumulate, averaging, use_average, rate_factors, freeze : object
        Gradients and updates.
    timeout, verbose, exc, check : object
        How a training ends, what is shown, and whether its first step is checked.

    Attributes
    ----------
    train_losses_ : list of float
        The mean loss of every epoch, in which each batch counts by its rows, or by the sum of their weights.

    Raises
    ------
    SettingError
        There is no such output or input, or the loss is no scalar.
    ModelError, DeviceError, NoGradientError, RuntimeMissingError
        As for `OrtGradientForwardBackwardOptimizer`: for example, no gradient leads from the loss to a weight.

    See Also
    --------
    OrtGradientForwardBackwardOptimizer : Partial training: the loss is apart from the model.
    add_loss_output : Write a loss into an inference graph.

    Notes
    -----
    A loss that `add_loss_output` has written, of the library and not changed since, is the same training as partial
    training with this loss, to the last bit, with or without sample weights. Any other loss is taken as it is:

    - ``fit(X, y, sample_weight)`` feeds features, labels and weights of the rows, 1 by default.
    - `losses` runs the graph on each row alone; `score` compares one prediction with one label, by accuracy for whole
      numbers, else by R².
    - The mean over several batches, as of validation data, is over their rows, or the sums of their weights.
    - With ``distributed=True`` the loss of a batch is the mean of those of all processes by their rows, or the sums of
      their weights: that of one process alone, where a loss is such a mean over rows, and not where some labels do not
      count, or rows are compared with one another.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import add_loss_output, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> X = np.arange(8, dtype=np.float32)[:, None] / 8
    >>> model = add_loss_output(build([x], {"y": x @ w}))
    >>> optimizer = OrtGradientOptimizer(model, learning_rate=0.5, random_state=0).fit(X, 3 * X)
    >>> optimizer.trained_coef_["w"].round(3).tolist(), [o.name for o in optimizer.get_trained_onnx().graph.output]
    ([[3.0]], ['y'])
    """

    _caller_level: ClassVar[int] = 6

    @accept_former_names
    def __init__(
        self,
        model: Model | ModelProto | bytes | str | os.PathLike[str],
        weights_to_train: WeightSelection | None = None,
        *,
        loss_output_name: str = "loss",
        label_names: str | Sequence[str] | None = None,
        sample_weight_name: str | None = None,
        learning_rate: str | float | BaseLearningRate = "SGD",
        learning_penalty: BaseLearningPenalty | str | None = None,
        max_iter: int = 100,
        batch_size: int = 10,
        shuffle: bool = True,
        init: str = "model",
        train_mode: bool | None = None,
        precision: str | None = None,
        loss_scale: float | LossScale | None = None,
        random_state: int | np.random.Generator | None = None,
        device: DeviceName = "cpu",
        engine: str = "auto",
        warm_start: bool = False,
        validation_every: float = 1,
        callbacks: Sequence[CallbackLike] = (),
        metrics: Sequence[MetricLike] = (),
        distributed: bool | DataParallel = False,
        checkpointing: bool | str | Sequence[str] | None = None,
        gradient_clipping: float | GradientClipping | None = None,
        accumulate: int = 1,
        averaging: str | WeightAverage | None = None,
        use_average: bool = False,
        rate_factors: RateFactors | None = None,
        freeze: str | Sequence[str] = (),
        timeout: float | None = None,
        verbose: int = 0,
        exc: bool = True,
        check: bool = False,
    ):
        given = {**list_arguments(locals()), "learning_loss": {}}
        self.training = self._training_kind.begin(given, type(self).__name__, 5)

    _training_kind: ClassVar[type[Training]] = LossTraining

    loss_output_name = ModelSetting()
    label_names = ModelSetting()
    sample_weight_name = ModelSetting()

    @check_keywords()
    def get_trained_onnx(self, with_loss: bool = False) -> ModelProto:
        """Return the graph without its loss, or with it, with the trained weights and running statistics.

        Parameters
        ----------
        with_loss : bool
            Whether the graph is the whole one, which is trained further. One that has no output but its loss is always.

        Returns
        -------
        onnx.ModelProto
        """
        return self.training.state.to_model(with_loss)

    @classmethod
    def _from_stored(cls, model: ModelProto, settings: Entries) -> OrtGradientOptimizer:
        # The model that stores a training holds its loss, too.
        return cls(model, **{n: v for n, v in settings.items() if n != "learning_loss"})
