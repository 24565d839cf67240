"""The regressor."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto
from sklearn.base import RegressorMixin, _fit_context
from sklearn.metrics import r2_score
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_is_fitted

from ortpartial.annotations import ArrayLike, CallbackLike, Data, MetricLike, Settings
from ortpartial.autodiff import WeightSelection
from ortpartial.learning import (
    BaseLearningLoss,
    BaseLearningPenalty,
    BaseLearningRate,
    ElasticLearningLoss,
    resolve_loss,
)
from ortpartial.runtime import DeviceName

from ..forms import Loss, ModelLike
from .base import BaseOnnxEstimator
from .compat import with_callbacks
from .onnx_export import export

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["OnnxRegressor"]


class OnnxRegressor(RegressorMixin, BaseOnnxEstimator):
    """Train an ONNX graph, by default a linear model, to predict numbers, as scikit-learn's regressors do.

    It composes an `OrtGradientForwardBackwardOptimizer`, which is its attribute `optimizer_`. Settings of the names of
    `sklearn.neural_network.MLPRegressor` have the meaning and the default that they have there.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path, `Model` or callable, optional
        What to train, from rows of X to scores; its weights are where the training starts. A function is called with
        the shape of a row, such as ``(20,)``, and the number of outputs, and returns one. By default a network, which
        the next four settings describe.
    hidden_layer_sizes : int or array_like of int
        Units of each hidden layer of the network; without hidden layers it is a linear model.
    activation : str
        The function of the hidden layers: ``"identity"``, ``"logistic"``, ``"tanh"``, ``"relu"``, ``"leaky_relu"``,
        ``"elu"``, ``"gelu"`` or ``"swish"``.
    dropout : float
        The share of the hidden units that training drops in each step.
    alpha : float
        ½ alpha Σw² over the matrices of the model, divided by the rows of a batch, is added to the loss.
    loss : str, BaseLearningLoss or callable
        ``"squared_error"``, which is ½e² as in scikit-learn, or any other loss of the library: ``"absolute_error"``,
        ``"huber"``, ``"poisson"``, an object, or a function of prediction and target.
    penalty : BaseLearningPenalty, optional
        The penalty of the weights, in place of `alpha`.
    learning_rate : str, float or BaseLearningRate
        The optimizer: ``"Adam"``, ``"SGD"``, ``"SGDNesterov"`` and others by name, an object with its step size and
        schedule, or a number, the step size of Adam. Settings of objects are settings of the estimator, such as
        ``learning_rate__eta0`` in a grid search.
    learning_rate_init : float, optional
        The step size of an optimizer that is given by name; by default 0.001, and 0.02 for a linear model.
    batch_size : int or "auto"
        Rows of a batch; ``"auto"`` is 200. Never more than there are rows.
    max_iter : int
        Number of epochs at most.
    shuffle : bool
        Whether every epoch takes the rows in a new order.
    random_state : int, RandomState or None
        Source of the first weights, the validation data, the order of the rows and the masks of Dropout.
    tol, n_iter_no_change : float
        The training ends after more than `n_iter_no_change` epochs in a row whose loss, or score on the validation
        data, was not better by `tol` than the best one.
    early_stopping : bool
        Whether to hold out a share of the rows, the `validation_fraction`, and to keep the weights of the epoch with
        the best score on it, which is the column ``"val_score"`` of `history_`.
    validation_fraction : float
        The share of the rows that early stopping holds out.
    warm_start : bool
        Whether `fit` goes on from the last one, with its weights and optimizer states.
    verbose : bool or int
        1 shows a progress bar, 2 a line for each epoch.
    weights_to_train : str, sequence of str, or callable, optional
        The weights of a `model` to train, as for `OrtGradientForwardBackwardOptimizer`; by default all.
    dtype : str
        ``"float32"``, which is faster, or ``"float64"``, in which the network computes; by default that of X.
    device, engine : str
        Where and how to train, as for `OrtGradientForwardBackwardOptimizer`.
    callbacks : sequence of callbacks
        As for `OrtGradientForwardBackwardOptimizer`: functions of `optimizer_`, and objects with hooks, which are given
        the estimator. With scikit-learn 1.9 or later, such objects may also be registered by `set_callbacks`.
    metrics : sequence of str, callable or Metric
        What is computed after every epoch of predictions for validation data, or, without any, for the rows that are
        trained, as for `OrtGradientForwardBackwardOptimizer`: ``"r2"``, ``"mae"``, functions of targets and
        predictions. They are columns of `history_`.
    settings : dict, optional
        Further settings of `OrtGradientForwardBackwardOptimizer`, such as ``{"gradient_clipping": 1.0}``, or
        ``{"train_mode": True}`` for a `model` with Dropout or BatchNormalization.

    Attributes
    ----------
    n_features_in_ : int
        Number of features.
    feature_names_in_ : numpy.ndarray of str
        The names of the features, where X has names.
    n_outputs_ : int
        Number of scores of a row.
    n_iter_ : int
        Number of epochs of the last `fit`.
    loss_, best_loss_ : float
        The last loss, without the penalty, and without early stopping the least one.
    loss_curve_ : list of float
        The loss of each epoch.
    validation_scores_, best_validation_score_ : list of float, float
        With early stopping, the score of each epoch on the validation data, and the best one; otherwise None.
    coefs_, intercepts_ : list of numpy.ndarray
        The weights of each layer of a network.
    optimizer_ : OrtGradientForwardBackwardOptimizer
        Holds the model, the weights and the state of the training.

    See Also
    --------
    OnnxClassifier : The same for labels.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_diabetes(return_X_y=True)
    >>> regressor = OnnxRegressor(learning_rate="SGD", tol=1, random_state=0)
    >>> round(float(make_pipeline(StandardScaler(), regressor).fit(X, y).score(X, y)), 1)
    0.5
    """

    def __init__(
        self,
        model: ModelLike | Callable[[tuple[int, ...], int], ModelLike] | None = None,
        *,
        hidden_layer_sizes: int | ArrayLike | None = (),
        activation: str = "relu",
        dropout: float = 0.0,
        alpha: float = 1e-4,
        loss: Loss = "squared_error",
        penalty: BaseLearningPenalty | str | None = None,
        learning_rate: str | float | BaseLearningRate = "Adam",
        learning_rate_init: float | None = None,
        batch_size: int | str = "auto",
        max_iter: int = 200,
        shuffle: bool = True,
        random_state: int | np.random.RandomState | None = None,
        tol: float = 1e-4,
        n_iter_no_change: float = 10,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        verbose: bool | int = False,
        weights_to_train: WeightSelection | None = None,
        dtype: str = "auto",
        device: DeviceName = "cpu",
        engine: str = "auto",
        callbacks: Sequence[CallbackLike] = (),
        metrics: Sequence[MetricLike] = (),
        settings: Settings | None = None,
    ):
        self.model = model
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.dropout = dropout
        self.alpha = alpha
        self.loss = loss
        self.penalty = penalty
        self.learning_rate = learning_rate
        self.learning_rate_init = learning_rate_init
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.shuffle = shuffle
        self.random_state = random_state
        self.tol = tol
        self.n_iter_no_change = n_iter_no_change
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.verbose = verbose
        self.weights_to_train = weights_to_train
        self.dtype = dtype
        self.device = device
        self.engine = engine
        self.callbacks = callbacks
        self.metrics = metrics
        self.settings = settings

    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Data, y: Data, sample_weight: Data = None, X_val: Data = None, y_val: Data = None, *,
            resume: str | os.PathLike[str] | None = None) -> Self:
        """Train for `max_iter` epochs, or until the rule of `tol` and `n_iter_no_change` ends the training.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n_samples, n_features)
            The rows; for a `model` of more axes, those that it reads. Rows of a sparse matrix become dense batch by
            batch.
        y : array_like of shape (n_samples,) or (n_samples, n_outputs)
            The targets.
        sample_weight : array_like of shape (n_samples,), optional
            Weights of the rows.
        X_val, y_val : array_like, optional
            Validation data, as X and y, whose loss and metrics are computed after every epoch; with `early_stopping`
            they take the place of the rows that it would hold out.
        resume : path, optional
            A checkpoint, or the folder of a `Checkpoint` among the callbacks: a `fit` that was cut off goes on from the
            newest one, and ends with the weights of one that was not. Where the folder holds none, it begins.

        Returns
        -------
        OnnxRegressor
            The estimator itself.

        Raises
        ------
        ValueError
            A setting or the data are not allowed.
        CheckpointError
            The checkpoint is damaged, or that of another training.
        ConvergenceError
            The loss or a weight is NaN or infinite.
        """
        return self._fit(X, y, sample_weight, X_val, y_val, resume)

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Data, y: Data, sample_weight: Data = None) -> Self:
        """Train for one epoch on these rows, from the current weights and optimizer states.

        Parameters
        ----------
        X, y, sample_weight : array_like
            As in `fit`.

        Returns
        -------
        OnnxRegressor
            The estimator itself.

        Raises
        ------
        ValueError
            A setting or the data are not allowed.
        """
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Data) -> np.ndarray:
        """Predict the targets of rows.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n_samples, n_features)
            The rows.

        Returns
        -------
        numpy.ndarray of shape (n_samples,) or (n_samples, n_outputs)
        """
        return self._decode(self._compute_scores(X))

    def to_onnx(self) -> ModelProto:
        """Return an ONNX model that predicts what `predict` does.

        The output "variable", of shape ``(N, n_outputs_)``, is the one that skl2onnx has. skl2onnx itself converts the
        estimator as well, and pipelines with it, by a converter that is registered where it is installed. This library
        trains either model further.

        Returns
        -------
        onnx.ModelProto
            Its input, of the name and dtype that the trained model has, is "X" for a network.

        Examples
        --------
        >>> X = np.arange(8, dtype=np.float32)[:, None] / 8
        >>> model = OnnxRegressor(tol=0.01, random_state=0).fit(X, X.ravel()).to_onnx()
        >>> [output.name for output in model.graph.output]
        ['variable']
        """
        check_is_fitted(self)
        return export(self)

    def _prepare_target(self, y: Data, reset: bool) -> tuple[np.ndarray, int]:
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        return y, 1 if y.ndim == 1 else y.shape[1]

    def _resolve_loss(self, n_outputs: int) -> BaseLearningLoss:
        # ½e², the loss of scikit-learn.
        is_default = isinstance(self.loss, str) and self.loss == "squared_error"
        return ElasticLearningLoss(0.0, 0.5) if is_default else resolve_loss(self.loss)

    def _encode(self, y: np.ndarray, loss: BaseLearningLoss) -> np.ndarray:
        return y

    def _decode(self, scores: np.ndarray) -> np.ndarray:
        mean = self.optimizer_.learning_loss.mean(scores)
        return mean.ravel() if mean.ndim == 2 and mean.shape[1] == 1 else mean

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _more_tags(self) -> Settings:
        """The tags for scikit-learn before 1.6."""
        return {"multioutput": True}

    def _measure(self, y: np.ndarray, prediction: np.ndarray, sample_weight: Data) -> float:
        return r2_score(y, prediction, sample_weight=sample_weight)
