"""The regressor."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto
from sklearn.base import RegressorMixin, _fit_context
from sklearn.metrics import r2_score
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_is_fitted

from ortpartial.annotations import Data, DataLike, Settings
from ortpartial.docstrings import document
from ortpartial.exceptions import ModelWarning
from ortpartial.learning import (
    BaseLearningLoss,
    ElasticLearningLoss,
    check_keywords,
    explain_classes,
    resolve_loss,
)

from .base import BaseOnnxEstimator
from .compat import with_callbacks
from .onnx_export import export

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["OnnxRegressor"]


@document(BaseOnnxEstimator)
class OnnxRegressor(RegressorMixin, BaseOnnxEstimator):
    """Train an ONNX graph, by default a linear model, to predict numbers, as scikit-learn's regressors do.

    It composes an `OrtGradientForwardBackwardOptimizer`, which is its attribute `optimizer_`. Settings of the names of
    `sklearn.neural_network.MLPRegressor` have the meaning and the default that they have there.

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

    @check_keywords()
    @with_callbacks
    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: DataLike, y: DataLike | None = None, sample_weight: DataLike | None = None,
            X_val: DataLike | None = None, y_val: DataLike | None = None, *,
            resume: str | os.PathLike[str] | None = None) -> Self:
        """Train for `max_iter` epochs, or until the rule of `tol` and `n_iter_no_change` ends the training.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n_samples, n_features)
            The rows; for a `model` of more axes, the rows that it reads. Rows of a sparse matrix become dense batch by
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
            newest, and ends with the weights of an uninterrupted fit. Where the folder holds none, it begins.

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
    def partial_fit(self, X: DataLike, y: DataLike, sample_weight: DataLike | None = None) -> Self:
        """Train for an epoch on these rows, from the current weights and optimizer states.

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

    def predict(self, X: DataLike) -> np.ndarray:
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
        """Return an ONNX model that predicts the same as `predict`.

        The output "variable", of shape ``(N, n_outputs_)``, is named as by skl2onnx. skl2onnx itself converts the
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
        is_first = reset or not hasattr(self, "optimizer_")
        if is_first and self.loss == "squared_error" and (text := explain_classes(
                y, "y", type(self).__name__, "give loss=ElasticLearningLoss(0, 0.5)", ("take OnnxClassifier",) * 2)):
            warnings.warn(text, ModelWarning, stacklevel=2)
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
