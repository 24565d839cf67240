"""The classifier."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.metrics import accuracy_score
from sklearn.utils import column_or_1d, compute_sample_weight
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import _check_partial_fit_first_call, check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted

from ortpartial.annotations import ArrayLike, Data, DataLike, Settings
from ortpartial.docstrings import document, forward_settings
from ortpartial.exceptions import SettingError
from ortpartial.graph import build, op
from ortpartial.learning import (
    BaseLearningLoss,
    NegLogLearningLoss,
    SoftmaxCrossEntropyLearningLoss,
    accept_former_names,
    check_keywords,
    find_last_activation,
    resolve_loss,
)
from ortpartial.model import Model, load

from ..forms import Loss, ModelLike
from ..settings import EstimatorSettings
from .base import BaseOnnxEstimator
from .compat import with_callbacks
from .onnx_export import export

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["OnnxClassifier"]


def _has_probabilities(classifier: OnnxClassifier) -> bool:
    """Whether the loss takes scores as logits of probabilities."""
    if not resolve_loss(classifier.loss).activations:
        raise AttributeError(f"probability estimates are not available for loss={classifier.loss!r}; "
                             f"loss='log_loss' has them.")
    return True


@document(BaseOnnxEstimator)
class OnnxClassifier(ClassifierMixin, BaseOnnxEstimator):
    """Train an ONNX graph, by default a linear model, to predict labels, as scikit-learn's classifiers do.

    It composes an `OrtGradientForwardBackwardOptimizer`, which is its attribute `optimizer_`. Settings of the names of
    `sklearn.neural_network.MLPClassifier` have the meaning and the default that they have there. Labels may be numbers
    or strings; a matrix of 0 and 1 is for several labels a row.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path, `Model` or callable, optional
        The model to train, from rows of X to scores, or to their softmax or sigmoid, before which it is cut; its
        weights are where the training starts. A function is called with the shape of a row, such as ``(20,)``, and the
        number of outputs, and returns a model. By default a network, which the next four settings describe.
    loss : str, BaseLearningLoss or callable
        ``"log_loss"`` is the cross entropy of the softmax of the scores for more than two classes, and that of their
        sigmoid otherwise. Or any other loss of the library: ``"hinge"``, an object, or a function of prediction and
        target; a loss of numbers is given 1 for the class, or labels, of a row and 0 for the others, or -1 if
        it is for quantities.
    class_weight : dict, list of dict, "balanced" or None
        By how much each class counts in the loss, beside `sample_weight`; ``"balanced"`` makes all count the same.
        `partial_fit` takes a dict.
    metrics : sequence of str, callable or Metric
        Metrics computed after every epoch of predictions for validation data, or, without any, for the rows that are
        trained, as for `OrtGradientForwardBackwardOptimizer`: ``"accuracy"``, ``"f1_macro"``, functions of labels, as
        numbers, and predictions. They are columns of `history_`.

    Attributes
    ----------
    classes_ : numpy.ndarray of shape (n_classes,)
        The labels, sorted.
    multilabel_ : bool
        Whether a row may have several labels.

    See Also
    --------
    OnnxRegressor : The same for numbers.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = OnnxClassifier(hidden_layer_sizes=(20,), learning_rate_init=0.02, tol=1e-3, random_state=0)
    >>> bool(classifier.fit(X, y).score(X, y) > 0.95)
    True
    >>> classifier.predict_proba(X[:1]).round(1).tolist()
    [[1.0, 0.0, 0.0]]
    """

    _parameter_constraints: Settings = {  # noqa: RUF012 - as scikit-learn has it
        **BaseOnnxEstimator._parameter_constraints, "class_weight": [StrOptions({"balanced"}), dict, list, None]}

    _output, _is_numeric = "scores", False

    @accept_former_names
    @forward_settings(BaseOnnxEstimator.__init__)
    def __init__(self, model: ModelLike | Callable[[tuple[int, ...], int], ModelLike] | None = None, *,
                 loss: Loss = "log_loss",
                 class_weight: Mapping[Any, float] | Sequence[Mapping[Any, float]] | str | None = None,
                 **others: Unpack[EstimatorSettings]):
        super().__init__(model, loss=loss, **others)
        self.class_weight = class_weight

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
        y : array_like of shape (n_samples,) or (n_samples, n_labels)
            Labels, or 0 and 1 for each of several labels.
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
        OnnxClassifier
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
    def partial_fit(self, X: DataLike, y: DataLike, classes: ArrayLike | None = None,
                    sample_weight: DataLike | None = None) -> Self:
        """Train for an epoch on these rows, from the current weights and optimizer states.

        Parameters
        ----------
        X, y : array_like
            As in `fit`.
        classes : array_like of shape (n_classes,), optional
            All labels that any call will have; required in the first call.
        sample_weight : array_like of shape (n_samples,), optional
            Weights of the rows.

        Returns
        -------
        OnnxClassifier
            The estimator itself.

        Raises
        ------
        ValueError
            A setting or the data are not allowed.
        """
        self._refuse_early_stopping()
        if isinstance(self.class_weight, str):
            raise ValueError("class_weight 'balanced' is not supported for partial_fit. In order to use 'balanced' "
                             "weights, use compute_class_weight('balanced', classes=classes, y=y). In place of y you "
                             "can use a large enough sample of the full training set target to properly estimate the "
                             "class frequency distributions. Pass the resulting weights as the class_weight parameter. "
                             "Write class_weight=dict(zip(classes, weights)).")
        if _check_partial_fit_first_call(self, classes):
            self._is_multilabel = type_of_target(y).startswith("multilabel")
        return self._partial_fit(X, y, sample_weight)

    @property
    def multilabel_(self) -> bool:
        """Whether a row may have several labels."""
        return self._is_multilabel

    def predict(self, X: DataLike) -> np.ndarray:
        """Predict the labels of rows.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n_samples, n_features)
            The rows.

        Returns
        -------
        numpy.ndarray of shape (n_samples,) or (n_samples, n_labels)
        """
        return self._decode(self._compute_scores(X))

    def decision_function(self, X: DataLike) -> np.ndarray:
        """Compute the scores of rows, before softmax or sigmoid.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n_samples, n_features)
            The rows.

        Returns
        -------
        numpy.ndarray of shape (n_samples,) or (n_samples, n_classes)
            For two classes the score of ``classes_[1]``, which is predicted where it is more than 0.
        """
        scores = self._compute_scores(X)
        if len(self.classes_) == 2 and not self._is_multilabel and scores.ndim == 2 and scores.shape[1] == 2:
            return scores[:, 1] - scores[:, 0]
        return scores.ravel() if scores.ndim == 2 and scores.shape[1] == 1 else scores

    @available_if(_has_probabilities)
    def predict_proba(self, X: DataLike) -> np.ndarray:
        """Predict the probabilities of the classes.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n_samples, n_features)
            The rows.

        Returns
        -------
        numpy.ndarray of shape (n_samples, n_classes)
            In the order of `classes_`.
        """
        scores = self._compute_scores(X)
        if self._is_multilabel or self.n_outputs_ == 1:
            positive = expit(scores)
            return positive if self._is_multilabel else np.column_stack([1 - positive.ravel(), positive.ravel()])
        return softmax(scores, axis=1)

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: DataLike) -> np.ndarray:
        """Predict the logarithms of the probabilities of the classes.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n_samples, n_features)
            The rows.

        Returns
        -------
        numpy.ndarray of shape (n_samples, n_classes)
            In the order of `classes_`.
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def to_onnx(self, *, zipmap: bool | str = True, raw_scores: bool = False) -> ModelProto:
        """Return an ONNX model that predicts labels and probabilities, in the outputs that skl2onnx has.

        Labels are strings where `classes_` are, else int64. skl2onnx itself converts the estimator as well, and
        pipelines with it, by a converter that is registered where it is installed. This library trains either model
        further.

        Parameters
        ----------
        zipmap : bool or "columns"
            With True, the default of skl2onnx, the outputs are "output_label" and "output_probability", a dict from
            label to probability for each row; with False "label" and "probabilities" of shape (N, n_classes); with
            ``"columns"`` "output_label" and an output of shape (N,) for each label, such as "i0" or "scat".
        raw_scores : bool
            Whether probabilities are the scores before softmax or sigmoid; they are for a loss without probabilities.

        Returns
        -------
        onnx.ModelProto
            Its input, of the name and dtype that the trained model has, is "X" for a network.

        Raises
        ------
        ModelError
            A label is neither an integer nor a string.

        Examples
        --------
        >>> X = np.arange(8, dtype=np.float32)[:, None] / 8
        >>> y = np.repeat(["no", "yes"], 4)
        >>> model = OnnxClassifier(tol=0.01, random_state=0).fit(X, y).to_onnx(zipmap=False)
        >>> [output.name for output in model.graph.output]
        ['label', 'probabilities']
        """
        check_is_fitted(self)
        return export(self, zipmap=zipmap, raw_scores=raw_scores)

    def _prepare_target(self, y: Data, reset: bool) -> tuple[np.ndarray, int]:
        kind = type_of_target(y)
        if kind not in ("binary", "multiclass"):
            check_classification_targets(y)
        if kind == "multiclass-multioutput":
            raise ValueError("y has several columns of more than two labels each, which is not supported; fit a "
                             "sklearn.multioutput.MultiOutputClassifier of this estimator.")
        is_multilabel = kind.startswith("multilabel")
        if not is_multilabel:
            y = column_or_1d(y, warn=True)
        labels = np.arange(y.shape[1]) if is_multilabel else np.unique(y)
        if reset:
            self.classes_, self._is_multilabel = labels, is_multilabel
        if is_multilabel != self._is_multilabel or len(np.setdiff1d(labels, self.classes_)):
            raise ValueError(f"y has the labels {labels}, where those of the first call were expected: "
                             f"{self.classes_}.")
        if len(self.classes_) < 2 and not is_multilabel:
            raise ValueError(f"The number of classes has to be greater than one; got {len(self.classes_)} class.")
        if is_multilabel:
            return (y.toarray() if hasattr(y, "toarray") else y), y.shape[1]
        return np.asarray(np.searchsorted(self.classes_, y)), 1 if len(self.classes_) == 2 else len(self.classes_)

    def _read_scores(self, model: Model) -> Model:
        """The model, cut before the Softmax or Sigmoid that it ends in where the loss applies it."""
        names = [n for n, v in model.outputs.items() if v.is_float]
        last = find_last_activation(model.outputs[names[0]]) if len(names) == 1 else None
        if last is None or last.op_type not in resolve_loss(self.loss).activations:
            return model
        scores, shape = last.logits, last.logits.shape or ()
        if last.op_type == "Sigmoid" and not self._is_multilabel and len(shape) == 2 and shape[1] != 1:
            # Of two columns that sum up to 1 these are the scores with the same softmax, else with that of log p.
            scores = 0.5 * scores if shape[1] == 2 else -op.Softplus(-scores)
        return load(build(model.inputs, {names[0]: scores}))

    def _resolve_loss(self, n_outputs: int) -> BaseLearningLoss:
        if not (isinstance(self.loss, str) and self.loss == "log_loss"):
            loss = resolve_loss(self.loss)
            if not loss.from_logits:
                raise SettingError(f"{loss!r} is for probabilities, and a classifier trains raw scores: leave "
                                   f"from_logits at True, as the model is cut before its last Softmax or Sigmoid.")
            return loss
        if not self._is_multilabel and n_outputs < len(self.classes_) > 2:
            raise ValueError(f"y has {len(self.classes_)} classes, and the model has scores for {max(n_outputs, 2)}.")
        return NegLogLearningLoss() if self._is_multilabel or n_outputs == 1 else SoftmaxCrossEntropyLearningLoss()

    def _encode(self, y: np.ndarray, loss: BaseLearningLoss) -> np.ndarray:
        if loss.target_dtype is not None:
            return y
        target = np.eye(self.n_outputs_, dtype=np.float32)[y] if y.ndim == 1 and self.n_outputs_ > 1 else y
        # A loss of quantities has no labels: -1 and 1 are as far from 0, where the decision changes.
        return target if loss.labels(np.zeros((1, 1))) is not None else 2.0 * target - 1

    def _decode(self, scores: np.ndarray) -> np.ndarray:
        if self._is_multilabel:
            return (scores > 0).astype(np.int64)
        return self.classes_[(scores.ravel() > 0).astype(int) if self.n_outputs_ == 1 else scores.argmax(1)]

    def _measure(self, y: np.ndarray, prediction: np.ndarray, sample_weight: Data) -> float:
        if sample_weight is None and y.ndim == prediction.ndim == 1:  # Early stopping asks after every epoch.
            return float(np.mean(y == prediction))
        return accuracy_score(y, prediction, sample_weight=sample_weight)

    def _weigh(self, y: np.ndarray, sample_weight: Data) -> Data:
        if self.class_weight is None:
            return sample_weight
        weight = compute_sample_weight(self.class_weight, y if self._is_multilabel else self.classes_[y])
        return weight if sample_weight is None else weight * sample_weight

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _more_tags(self) -> Settings:
        """The tags for scikit-learn before 1.6."""
        return {"multilabel": True}
