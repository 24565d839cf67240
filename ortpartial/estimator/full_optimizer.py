"""The optimizer of graphs that hold their own loss: full training, the sister of partial training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from onnx import ModelProto

from ortpartial.annotations import Entries
from ortpartial.autodiff import WeightSelection
from ortpartial.docstrings import document, forward_settings
from ortpartial.learning import accept_former_names

from .forms import ModelLike
from .optimizer import OrtGradientForwardBackwardOptimizer
from .output_loss import OutputLoss
from .settings import OptimizerSettings

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["OrtGradientOptimizer"]


class LossSetting:
    """A field of the `OutputLoss` that an optimizer has, as a setting of its own."""

    def __init__(self, field: str):
        self.field = field

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: OrtGradientOptimizer | None, owner: type | None = None) -> object:
        return self if instance is None else getattr(instance.training.arguments["learning_loss"], self.field)

    def __set__(self, instance: OrtGradientOptimizer, value: object) -> None:
        instance.set_params(**{self.name: value})


@document(OutputLoss, OrtGradientForwardBackwardOptimizer)
class OrtGradientOptimizer(OrtGradientForwardBackwardOptimizer):
    """Train an ONNX graph that holds its own loss: an output that is a scalar, computed from features and labels.

    At batch k every weight becomes w - η(k) · step(∇J, state), with the objective J = L + Σ penalty(w) and the loss L
    that the graph computes for the batch. `predict` and the trained model are the graph without its loss. All else is
    that of `OrtGradientForwardBackwardOptimizer`, which takes an `OutputLoss` of the same parameters as well.

    Parameters
    ----------
    weights_to_train : str, sequence of str, or callable, optional
        Initializers to train, as for `OrtGradientForwardBackwardOptimizer`; by default the initializers on a
        differentiable path to the loss that a prediction reads, too: a ModelWarning names the others, such as class
        weights. All where there are no predictions.
    loss_output_name : str
        The output that is the loss: a real number of shape () or (1,).

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
    - `losses` runs the graph on each row alone; `score` compares a single prediction with a single label, by accuracy
      for whole numbers, else by R².
    - The mean over several batches, as of validation data, is over their rows, or the sums of their weights.
    - With ``distributed=True`` the loss of a batch is the mean over all processes by their rows, or the sums of their
      weights: as in a single process, where a loss is such a mean over rows, and not where some labels do not count, or
      rows are compared with one another.

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

    _caller_level: ClassVar[int] = 7

    @accept_former_names
    @forward_settings(OrtGradientForwardBackwardOptimizer.__init__, without=["learning_loss"])
    def __init__(self, model: ModelLike, weights_to_train: WeightSelection | None = None, *,
                 loss_output_name: str = "loss", label_names: str | Sequence[str] | None = None,
                 sample_weight_name: str | None = None, **settings: Unpack[OptimizerSettings]):
        super().__init__(model, weights_to_train, **settings,
                         learning_loss=OutputLoss(loss_output_name, label_names, sample_weight_name))

    loss_output_name = LossSetting("name")
    label_names = LossSetting("label_names")
    sample_weight_name = LossSetting("sample_weight_name")

    @classmethod
    def _from_stored(cls, model: ModelProto, settings: Entries) -> Self:
        # The model that stores a training holds its loss, too.
        return cls(model, **{n: v for n, v in settings.items() if n != "learning_loss"})
