"""The base of both estimators: settings by name, validation of data, the fit around an optimizer."""

from __future__ import annotations

import copy
import inspect
import os
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from onnx import ModelProto
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, Options, StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from ortpartial.annotations import ArrayLike, CallbackLike, Context, Data, DataLike, MetricLike, Record, Settings, State
from ortpartial.autodiff import WeightSelection
from ortpartial.checks import check_path
from ortpartial.exceptions import ModelError, SettingError
from ortpartial.execution import TrainingView, find_checkpoint, refuse_batches, refuse_foreign, wrap_sparse
from ortpartial.learning import (
    ESTIMATOR_HABITS,
    AnsweredAttributes,
    BaseLearningLoss,
    BaseLearningPenalty,
    BaseLearningRate,
    Chain,
    ElasticLearningPenalty,
    Metric,
    NamedSettings,
    RateLike,
    accept_former_names,
    fingerprint,
    rename_settings,
    replace_settings,
    resolve_loss,
    resolve_penalty,
    resolve_rate,
)
from ortpartial.model import Model, load
from ortpartial.runtime import DeviceName

from ..forms import Loss, ModelLike
from ..optimizer import OrtGradientForwardBackwardOptimizer
from ..params import check_names, list_fields, replace_nested
from ..tasks import make_tasks
from .compat import CallbackSupportMixin, validate_data
from .frozen import FrozenOptimizer
from .networks import ACTIVATIONS, build_network, list_layers
from .stopping import StoppingRule

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["BaseOnnxEstimator"]


#: The step size of scikit-learn's perceptrons, and that of a linear model, whose loss is convex.
_STEP, _LINEAR_STEP = 1e-3, 2e-2

#: The metric of early stopping, and its column of `history_`.
_SCORE, _SCORE_COLUMN = "score", "val_score"

#: Numbers in a layer for a batch up to which sessions are shared; they keep memory for these.
_MOST_SHARED = 2**22

#: Settings that a network is made by, and those of its training that may change where it goes on.
_NETWORK = ("model", "hidden_layer_sizes", "activation", "dropout", "dtype")
#: Settings that nothing reads where another one is given.
_UNREAD = {"model": _NETWORK[1:], "penalty": ("alpha",)}
_TRAINING = ("loss", "penalty", "alpha", "learning_rate", "learning_rate_init", "weights_to_train", "device", "engine",
             "settings", "random_state")


class BaseOnnxEstimator(AnsweredAttributes, NamedSettings, CallbackSupportMixin, BaseEstimator, metaclass=ABCMeta):
    """A scikit-learn estimator that trains an ONNX graph.

    A subclass defines the targets: `_prepare_target`, `_resolve_loss`, `_encode`, `_decode` and `_measure`.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, path, `Model` or callable, optional
        The model to train, from rows of X to scores; its weights are where the training starts. A function is called
        with the shape of a row, such as ``(20,)``, and the number of outputs, and returns a model. By default a
        network, which the next four settings describe.
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
    learning_rate : str, float, BaseLearningRate or Chain
        The optimizer: ``"Adam"``, ``"SGD"``, ``"SGDNesterov"`` and others by name, an object with its step size and
        schedule, a `chain` of the whole update, or a number, the step size of Adam. Settings of objects are settings of
        the estimator, such as ``learning_rate__eta0`` in a grid search.
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
        data, was not better by `tol` than the best.
    early_stopping : bool
        Whether to hold out a share of the rows, the `validation_fraction`, and to keep the weights of the epoch with
        the best score on it, which is the column ``"val_score"`` of `history_`.
    validation_fraction : float
        The share of the rows that early stopping holds out.
    warm_start : bool
        Whether `fit` goes on from the last fit, with its weights and optimizer states.
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
        Metrics computed after every epoch of predictions for validation data, or, without any, for the rows that are
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
    t_ : int
        Number of rows that the training has seen, those of every epoch anew.
    loss_, best_loss_ : float
        The last loss, without the penalty, and without early stopping the least.
    loss_curve_ : list of float
        The loss of each epoch.
    validation_scores_, best_validation_score_ : list of float, float
        With early stopping, the score of each epoch on the validation data, and the best; otherwise None.
    coefs_, intercepts_ : list of numpy.ndarray
        The weights of each layer of a network.
    optimizer_ : OrtGradientForwardBackwardOptimizer
        Holds the model, the weights and the state of the training.
    """

    _parameter_constraints: Settings = {  # noqa: RUF012 - as scikit-learn has it
        "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left"), None],
        "activation": [StrOptions(set(ACTIVATIONS))],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "learning_rate_init": [Interval(Real, 0, None, closed="neither"), None],
        "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "shuffle": ["boolean"],
        "random_state": ["random_state"],
        "tol": [Interval(Real, 0, None, closed="left")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left"), Options(Real, {np.inf})],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "warm_start": ["boolean"],
        "verbose": ["verbose"],
        "dtype": [StrOptions({"auto", "float32", "float64"})],
        "callbacks": [list, tuple],
        "metrics": [list, tuple],
        "settings": [dict, None],
    }

    _habits = ESTIMATOR_HABITS
    #: The name of the output of a network, and whether targets are quantities.
    _output, _is_numeric = "variable", True

    optimizer_: Any

    #: For pickles of versions that had no such setting.
    metrics: Sequence[MetricLike] = ()

    @accept_former_names
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
        learning_rate: RateLike = "Adam",
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

    # -- what a subclass knows of its targets

    @abstractmethod
    def _prepare_target(self, y: Data, reset: bool) -> tuple[np.ndarray, int]:
        """The targets, with labels as numbers, and how many scores they need; sets `classes_` of a classifier."""

    @abstractmethod
    def _resolve_loss(self, n_outputs: int) -> BaseLearningLoss:
        """The loss of so many scores."""

    @abstractmethod
    def _encode(self, y: np.ndarray, loss: BaseLearningLoss) -> np.ndarray:
        """The targets of the loss."""

    @abstractmethod
    def _decode(self, scores: np.ndarray) -> np.ndarray:
        """The prediction for scores."""

    @abstractmethod
    def _measure(self, y: np.ndarray, prediction: np.ndarray, sample_weight: Data) -> float:
        """How good a prediction is, for early stopping."""

    def _weigh(self, y: np.ndarray, sample_weight: Data) -> Data:
        """The weights of the rows."""
        return sample_weight

    # -- training

    def _fit(self, X: Data, y: Data, sample_weight: Data, X_val: Data, y_val: Data,
             resume: str | os.PathLike[str] | None) -> Self:
        """Train for `max_iter` epochs, or until the stopping rule ends them; go on with a fit that was cut off."""
        if resume is not None:
            with warnings.catch_warnings():  # before the former training is given up; then it is read again
                warnings.simplefilter("ignore")
                find_checkpoint(check_path("resume", resume))
        if resume is not None and self.early_stopping and X_val is None and self.random_state is None:
            raise ValueError("resume and early_stopping=True need a random_state, as the rows that are held out have "
                             "to be the same.")
        first = not (self.warm_start and hasattr(self, "optimizer_"))
        X, y, y_numbers, n_outputs, sample_weight = self._check_data(X, y, sample_weight, first, first)
        rng = check_random_state(self.random_state)
        model = self._make_model(X, n_outputs, rng) if first else None
        given = self._check_validation(X_val, y_val)
        rows, held_out = self._split(y, y_numbers, rng) if given is None else (None, None)
        train = _take(rows, X, y, y_numbers, sample_weight)
        validation = given if held_out is None else _take(held_out, X, y, y_numbers, sample_weight)
        if validation is not None and validation[3] is not None and not validation[3].any():
            raise ValueError("The sample weights for validation set are all zero, consider using a different random "
                             "state.")
        weight, batch_size = self._weigh(*train[2:]), self._find_batch_size(train[0].shape[0])
        if model is not None:
            self._make_optimizer(model, batch_size, weight, rng)
        else:
            self._follow_settings(batch_size, weight)
        target = self._encode(train[2], self.optimizer_.learning_loss)
        rule = StoppingRule(self.tol, self.n_iter_no_change, _read_score if self.early_stopping else None)
        self._run(train, target, weight, batch_size, rule, validation, resume)
        return self

    def _run(self, train: tuple[Data, ...], target: np.ndarray, weight: Data, batch_size: int, rule: StoppingRule,
             validation: tuple[Data, ...] | None, resume: str | os.PathLike[str] | None) -> None:
        """The epochs of a fit, and the attributes set by them."""
        optimizer, n_before = self.optimizer_, self.optimizer_.n_iter_
        X, y, _, sample_weight = train
        seen = getattr(self, "t_", 0)  # Estimators that were pickled before have none.
        told = {"X": X, "y": y, "metadata": None if sample_weight is None else {"sample_weight": sample_weight}}
        context = self._begin_fit(told)
        tasks = make_tasks(optimizer, X, y, sample_weight, estimator=self, context=context, reconstruct=self._freeze)

        def record(optimizer: OrtGradientForwardBackwardOptimizer) -> None:
            self._record(optimizer.n_iter_ - n_before, rule, seen, X.shape[0])

        # The rule comes last: a callback may reduce the step size in place of the end.
        self._set_loop(batch_size, (record, *self.callbacks, rule))
        batches = None
        if validation is not None:
            batches = [(validation[0], self._encode(validation[2], optimizer.learning_loss), validation[3])]
            if self.early_stopping:
                optimizer.set_params(metrics=(*self.metrics, self._make_score(validation)), validation_every=1)
        try:
            optimizer.training.fit(wrap_sparse(X), target, weight, batches, None, tasks, resume)
        finally:
            optimizer.set_params(callbacks=(), metrics=self.metrics)
        rule.restore(optimizer)
        self._record(optimizer.n_iter_ - n_before, rule, seen, X.shape[0])
        if context is not None:
            context.call_on_fit_task_end(estimator=self, reconstruction_attributes=self._freeze, **told)
        if self.n_iter_ == self.max_iter and not optimizer.training.loop.place.is_stopped:
            warnings.warn(f"The training reached max_iter={self.max_iter} epochs and still improved by more than "
                          f"tol={self.tol}.", ConvergenceWarning, stacklevel=2)

    def _begin_fit(self, told: Settings) -> Context:
        """The context for callbacks of scikit-learn, where this estimator or a meta-estimator around it has any."""
        if not (hasattr(self, "_skl_callbacks") or hasattr(self, "_parent_callback_ctx")):
            return None
        context = self._init_callback_context(max_subtasks=self.max_iter)
        return context.call_on_fit_task_begin(estimator=self, **told)

    def _freeze(self) -> State:
        """The attributes that make a copy of the estimator as if its fit had stopped here."""
        return {"optimizer_": FrozenOptimizer(self.optimizer_), "loss_curve_": [*self.optimizer_.train_losses_]}

    def _partial_fit(self, X: Data, y: Data, sample_weight: Data) -> Self:
        """Train for an epoch."""
        self._refuse_early_stopping()
        first = not hasattr(self, "optimizer_")
        X, _, y_numbers, n_outputs, sample_weight = self._check_data(X, y, sample_weight, first, False)
        rng = check_random_state(self.random_state)
        weight, batch_size = self._weigh(y_numbers, sample_weight), self._find_batch_size(X.shape[0])
        if first:
            self._make_optimizer(self._make_model(X, n_outputs, rng), batch_size, weight, rng)
        else:
            self._follow_settings(batch_size, weight)
        self._set_loop(batch_size, ())
        target = self._encode(y_numbers, self.optimizer_.learning_loss)
        self.optimizer_.partial_fit(X, target, weight)
        self._record(1, None, getattr(self, "t_", 0), X.shape[0])
        return self

    def _refuse_early_stopping(self) -> None:
        """Refuse to hold out a share of the rows of a `partial_fit`."""
        if self.early_stopping:
            raise ValueError("partial_fit does not support early_stopping=True, as it does not see all rows: "
                             "early_stopping should be False with partial_fit.")

    def _record(self, n_iter: int, rule: StoppingRule | None, seen: int, rows: int) -> None:
        """The fitted attributes that tell how the training went, after a number of rows that were seen before."""
        self.n_iter_, self.loss_curve_, self.t_ = n_iter, self.optimizer_.train_losses_, seen + n_iter * rows
        self.loss_ = self.loss_curve_[-1] if self.loss_curve_ else np.nan
        if rule is not None:
            self.best_loss_, self.best_validation_score_ = rule.best_loss, rule.best_score
            self.validation_scores_ = rule.scores if self.early_stopping else None

    # -- data

    def _check_data(self, X: Data, y: Data, sample_weight: Data, reset: bool, has_new_labels: bool
                    ) -> tuple[Data, Data, np.ndarray, int, Data]:
        """X, y as given and in numbers, how many scores y needs, and the weights of the rows, all checked."""
        if y is None:
            refuse_batches(X, type(self).__name__)
        refuse_foreign(X)
        refuse_foreign(y, "y")
        X, y = validate_data(self, X, y, reset=reset, multi_output=True, y_numeric=self._is_numeric,
                             **self._data_settings())
        y_numbers, n_outputs = self._prepare_target(y, has_new_labels)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64)
        return X, y, y_numbers, n_outputs, sample_weight

    def _data_settings(self) -> Settings:
        """How X is checked: a network reads rows of numbers, a user's model its declared inputs."""
        if self.model is not None:
            return {"accept_sparse": "csr", "dtype": "numeric", "allow_nd": True}
        dtypes = [np.float64, np.float32] if self.dtype == "auto" else np.dtype(self.dtype)
        return {"accept_sparse": "csr", "dtype": dtypes}

    def _split(self, y: Data, y_numbers: np.ndarray, rng: np.random.RandomState
               ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """The rows to train on and to validate on; None for all and for none."""
        if not self.early_stopping:
            return None, None
        stratify = y if getattr(self, "classes_", None) is not None and y_numbers.ndim == 1 else None
        rows, held_out = train_test_split(np.arange(len(y_numbers)), random_state=rng, stratify=stratify,
                                          test_size=self.validation_fraction)
        if len(held_out) < 2:
            raise ValueError("The validation set is too small. Increase 'validation_fraction' or the size of your "
                             "dataset.")
        return rows, held_out

    def _check_validation(self, X_val: Data, y_val: Data) -> tuple[Data, ...] | None:
        """Validation data like the training's: X, y as given and in numbers, and no weights; None without any."""
        if X_val is None and y_val is None:
            return None
        if X_val is None or y_val is None or isinstance(X_val, Real):
            raise ValueError("X_val and y_val are rows and their targets, and belong together; early_stopping=True "
                             "holds out a share of the rows of X, the validation_fraction.")
        X_val, y_val, numbers, _, _ = self._check_data(X_val, y_val, None, False, False)
        return X_val, y_val, numbers, None

    def _make_score(self, validation: tuple[Data, ...]) -> Metric:
        """The metric that early stopping follows: how good predictions for validation data are."""
        _, y, _, sample_weight = validation

        def score(t: np.ndarray, scores: np.ndarray) -> float:
            # NaN of a training that has diverged, so that the error is the one of its loss, which says what to do.
            with np.errstate(over="ignore"):
                return self._measure(y, self._decode(scores), sample_weight) if np.isfinite(scores).all() else np.nan

        return Metric(score, _SCORE, "output")

    def _find_batch_size(self, rows: int) -> int:
        return min(200 if self.batch_size == "auto" else int(self.batch_size), rows)

    # -- the optimizer

    @property
    def _hidden(self) -> list[int]:
        """The sizes of the hidden layers."""
        sizes = () if self.hidden_layer_sizes is None else self.hidden_layer_sizes
        hidden = list(sizes) if isinstance(sizes, Iterable) else [sizes]
        if not all(isinstance(n, Integral) and int(n) > 0 for n in hidden):
            raise ValueError(f"hidden_layer_sizes must be whole numbers > 0, got {hidden}.")
        return np.array(hidden, int).tolist()

    def _make_model(self, X: Data, n_outputs: int, rng: np.random.RandomState) -> ModelLike:
        """The model to train: a network, the result of a function of the shape of the data, or the given model."""
        self._refuse_unread()
        if self.model is None:
            return build_network([X.shape[1], *self._hidden, n_outputs], rng, activation=self.activation,
                                 dropout=self.dropout, dtype=X.dtype.name, output=self._output)
        if isinstance(self.model, (Model, ModelProto, bytes, str, os.PathLike)):
            return self.model
        return self.model(tuple(X.shape[1:]), n_outputs)

    def _refuse_unread(self) -> None:
        """Refuse settings that nothing reads beside others, which would be ignored."""
        defaults = inspect.signature(type(self)).parameters
        for name, unread in _UNREAD.items():
            others = [n for n in unread if fingerprint(getattr(self, n)) != fingerprint(defaults[n].default)]
            others = [n for n in others if n != "hidden_layer_sizes" or self._hidden]
            if getattr(self, name) is not None and others:
                raise SettingError(f"{others[0]}={getattr(self, others[0])!r} is not read beside {name}=...; leave one "
                                   f"of the two out.")
        if self.learning_rate_init is not None and not isinstance(self.learning_rate, str):
            raise SettingError(f"learning_rate={self.learning_rate!r} has a step size of its own, and "
                               f"learning_rate_init={self.learning_rate_init!r} is not read; leave it out.")

    def _read_scores(self, model: Model) -> Model:
        """The model whose output the loss reads."""
        return model

    def _make_optimizer(self, model: ModelLike, batch_size: int, weight: Data, rng: np.random.RandomState) -> None:
        """The optimizer of a new training."""
        loaded = self._read_scores(load(model))
        scores = [v for v in loaded.outputs.values() if v.is_float]
        shape = (scores[0].shape if len(scores) == 1 else None) or ()
        self.n_outputs_ = shape[1] if len(shape) == 2 and isinstance(shape[1], int) else 1
        if self.n_outputs_ == 0:
            raise ModelError(f"The output of the model, {scores[0]!r}, has no columns, so that nothing can be trained.")
        loss = self._resolve_loss(self.n_outputs_)
        penalty = self._make_penalty(loss, batch_size, weight)
        self.optimizer_ = OrtGradientForwardBackwardOptimizer(
            loaded, self.weights_to_train, learning_loss=loss, learning_rate=self._rate, learning_penalty=penalty,
            batch_size=batch_size, random_state=rng.randint(2**31 - 1), device=self.device, engine=self.engine,
            warm_start=True, **{"validation_every": 1, "metrics": self.metrics, **self._more_settings})
        if self.model is None:
            self._share_sessions(loaded, batch_size)
        self._composed = {n: getattr(self, n) for n in (*_NETWORK, *_TRAINING)}
        self.t_ = 0

    @property
    def _more_settings(self) -> Settings:
        """Settings of the optimizer that the estimator does not have; Dropout of a network needs the training mode."""
        is_dropping = self.model is None and bool(self.dropout and self._hidden)
        given = rename_settings(type(self).__name__, self.settings or {})
        return {**({"train_mode": True} if is_dropping else {}), **given}

    def _follow_settings(self, batch_size: int, weight: Data) -> None:
        """Let a training that goes on have the settings that have changed since it began."""
        now = {n: getattr(self, n) for n in (*_NETWORK, *_TRAINING)}
        former = getattr(self, "_composed", now)
        changed = {n for n, v in now.items() if v is not former[n] and fingerprint(v) != fingerprint(former[n])}
        if fixed := changed.intersection(_NETWORK):
            raise ValueError(f"{min(fixed)} has changed, and this training goes on with the network that it began "
                             f"with; give back the former one, or fit a clone of the estimator.")
        if changed:
            self._refuse_unread()
        optimizer = self.optimizer_
        new = {n: now[n] for n in changed & {"weights_to_train", "device", "engine"}}
        if "settings" in changed:
            defaults = inspect.signature(type(optimizer)).parameters
            others = rename_settings(type(self).__name__, former["settings"] or {})
            new.update({n: defaults[n].default for n in others}, **self._more_settings)
        if "random_state" in changed:
            new["random_state"] = check_random_state(self.random_state).randint(2**31 - 1)
        if "loss" in changed:
            new["learning_loss"] = self._resolve_loss(self.n_outputs_)
        if changed & {"learning_rate", "learning_rate_init"}:
            if isinstance(chain := former["learning_rate"], Chain):  # What it asked for ends with it.
                new |= {**chain.neutral, **{n: v for n, v in self._more_settings.items() if n in chain.neutral}}
                changed.add("penalty")
            new["learning_rate"] = self._rate
        if changed & {"penalty", "alpha"}:
            loss = new.get("learning_loss", optimizer.learning_loss)
            new["learning_penalty"] = self._make_penalty(loss, batch_size, weight)
        if new:
            optimizer.set_params(**new)
        self._composed = now

    def _share_sessions(self, network: Model, batch_size: int) -> None:
        """Let networks of equal shape and settings share compiled sessions, as in the folds of a cross-validation."""
        optimizer = self.optimizer_
        sizes = tuple([w.shape for w in network.arrays.values()])
        if batch_size * max(n for shape in sizes for n in shape) > _MOST_SHARED:
            return
        trained = optimizer.training.spec.weights
        frozen = {n: w for n, w in network.arrays.items() if n not in trained}  # They are constants of the sessions.
        optimizer.training.engine.identity = fingerprint([
            sizes, trained, frozen, self.activation, self.dropout, self._output, str(optimizer.training.spec.dtype),
            self.device, optimizer.engine_, optimizer.learning_loss, optimizer.learning_rate,
            optimizer.learning_penalty, self.settings or {}, self._rate])

    @property
    def _rate(self) -> BaseLearningRate | Chain:
        """The optimizer with its step size: `learning_rate_init` belongs to an optimizer given by name.

        A number is the step size of the default optimizer.
        """
        if isinstance(self.learning_rate, Chain):
            return self.learning_rate
        rate, setting = resolve_rate(self.learning_rate), cast(object, self.learning_rate)
        if isinstance(setting, Real):
            default = inspect.signature(type(self)).parameters["learning_rate"].default
            return replace_settings(resolve_rate(default), eta0=rate.eta0)
        if not isinstance(self.learning_rate, str):
            return rate
        is_linear = self.model is None and not self._hidden
        return replace_settings(rate, eta0=self.learning_rate_init or (_LINEAR_STEP if is_linear else _STEP))

    def _make_penalty(self, loss: BaseLearningLoss, batch_size: int, weight: Data) -> BaseLearningPenalty | None:
        """½ alpha Σw² over the weight of a batch, as scikit-learn has it, unless another penalty is given."""
        if self.penalty is None and isinstance(self._rate, Chain) and "learning_penalty" in self._rate.settings:
            return None
        if self.penalty is not None:
            return resolve_penalty(self.penalty)
        # scikit-learn adds up the losses of several outputs, which are averaged here.
        averaged = 1 if loss.target_dtype is not None else self.n_outputs_
        # Rounded, so that folds with balanced classes have equal penalties, and share what is compiled.
        rows = batch_size if weight is None else batch_size * (round(float(np.mean(weight)), 9) or 1)
        return ElasticLearningPenalty(l2=self.alpha / (rows * averaged))

    def _set_loop(self, batch_size: int, callbacks: Sequence[CallbackLike]) -> None:
        """Settings that may have changed since the optimizer was made."""
        self.optimizer_.set_params(max_iter=self.max_iter, batch_size=batch_size, shuffle=self.shuffle,
                                   verbose=int(self.verbose), callbacks=callbacks, metrics=self.metrics)

    def evaluate(self, X: DataLike, y: DataLike, sample_weight: DataLike | None = None, *,
                 metrics: Sequence[MetricLike] | None = None) -> dict[str, float]:
        """Compute the loss, without the penalty, and metrics.

        Parameters
        ----------
        X, y, sample_weight : array_like
            As in `fit`.
        metrics : sequence of str, callable or Metric, optional
            The metrics; by default the metrics of the setting.

        Returns
        -------
        dict of str to float
            The mean loss as "loss", and the metrics by name.
        """
        check_is_fitted(self)
        X, _, y_numbers, _, sample_weight = self._check_data(X, y, sample_weight, False, False)
        target = self._encode(y_numbers, self.optimizer_.learning_loss)
        return self.optimizer_.evaluate(X, target, sample_weight, metrics=self.metrics if metrics is None else metrics)

    # -- prediction

    def _forward(self, X: Data) -> np.ndarray:
        """The scores of rows that were checked."""
        return self.optimizer_.predict(X)

    def _compute_scores(self, X: Data) -> np.ndarray:
        """The scores of rows of the user's."""
        check_is_fitted(self)
        return self._forward(validate_data(self, X, reset=False, **self._data_settings()))

    @property
    def coefs_(self) -> list[np.ndarray]:
        """The matrix of each layer of a network, inputs by outputs."""
        return self._list_weights(0)

    @property
    def intercepts_(self) -> list[np.ndarray]:
        """The intercept of each layer of a network."""
        return self._list_weights(1)

    def _list_weights(self, place: int) -> list[np.ndarray]:
        if self.model is not None or not hasattr(self, "optimizer_"):
            raise AttributeError(f"{type(self).__name__} has the weights of layers once it has trained a network of "
                                 f"its own; those of a model are optimizer_.trained_coef_.")
        weights = self.optimizer_.trained_coef_
        return [weights[names[place]] for names in list_layers(len(self._hidden))]

    @property
    def history_(self) -> list[Record]:
        """A record of every epoch, as of `OrtGradientForwardBackwardOptimizer`."""
        return self.optimizer_.history_

    def training_view(self) -> TrainingView:
        """Return the present state of the training, for callbacks.

        Returns
        -------
        TrainingView
        """
        return self.optimizer_.training_view()

    def _get_params_html(self, deep: bool = True, **links: object) -> object:
        """The settings in a notebook, which marks changed settings: pieces of others have none."""
        return super()._get_params_html(deep=False, **links)

    # -- settings

    def _resolve_pieces(self) -> Settings:
        """Loss, penalty and optimizer as objects, where the settings allow it."""
        pieces: Settings = {}
        for name, resolve in {"loss": lambda: resolve_loss(self.loss), "penalty": lambda: resolve_penalty(self.penalty),
                              "learning_rate": lambda: self._rate}.items():
            try:
                pieces[name] = resolve()
            except (ArithmeticError, TypeError, ValueError):  # `fit` says what is wrong.
                pieces[name] = getattr(self, name)
        return pieces

    def get_params(self, deep: bool = True) -> Settings:
        """Return the settings by name.

        Parameters
        ----------
        deep : bool
            Whether to include the settings of loss, penalty and optimizer, as ``learning_rate__eta0``.

        Returns
        -------
        dict of str to object
        """
        params = super().get_params(deep=False)
        if deep:
            for name, piece in self._resolve_pieces().items():
                params.update(list_fields(name, piece))
        return params

    def set_params(self, **params: object) -> Self:
        """Change settings by name; they apply to the next training.

        Parameters
        ----------
        **params : object
            Any that `get_params` returns.

        Returns
        -------
        object
            The estimator itself.

        Raises
        ------
        ValueError
            A name is unknown.
        """
        params = rename_settings(type(self).__name__, params)
        check_names(self, [n for n in params if "__" not in n])
        super().set_params(**{n: v for n, v in params.items() if "__" not in n})
        if nested := {n: v for n, v in params.items() if "__" in n}:
            resolved = copy.copy(self)
            resolved.__dict__.update(self._resolve_pieces())
            self.__dict__.update(replace_nested(resolved, nested))
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "optimizer_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.three_d_array = self.model is not None
        return tags


def _read_score(optimizer: OrtGradientForwardBackwardOptimizer) -> float:
    """The score of the last epoch."""
    return optimizer.training.loop.last_metrics[_SCORE_COLUMN]


def _take(rows: Data, *arrays: Data) -> tuple[Data, ...]:
    """Some rows of arrays; all where it is None."""
    if rows is None:
        return arrays
    return tuple(None if a is None else a[rows] for a in arrays)
