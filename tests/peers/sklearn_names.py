"""OnnxClassifier and OnnxRegressor under the names and settings of scikit-learn's MLP and SGD estimators.

A constructor translates settings as somebody who moves to this library would: nothing else is added, so that what the
suites of scikit-learn stumble over stays visible. As a plugin of pytest, `-p sklearn_names`, it puts these names where
the suites look for them.
"""

import json
import os
from functools import partial

import numpy as np
from sklearn import linear_model, neural_network
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if

from ortpartial import (
    ElasticLearningLoss,
    ElasticLearningPenalty,
    FunctionLearningLoss,
    HuberLearningLoss,
    InvScalingSchedule,
    LearningRateAdam,
    LearningRateSGD,
    LearningRateSGDNesterov,
    NegLogLearningLoss,
    OnnxClassifier,
    OnnxRegressor,
    OptimalSchedule,
    ReduceOnPlateauSchedule,
    StochasticWeightAverage,
    build,
    constant,
    op,
    variable,
)


def make_schedule(learning_rate, power_t, n_iter_no_change, alpha=None):
    """The schedule of scikit-learn's name."""
    if learning_rate == "adaptive":
        return ReduceOnPlateauSchedule(factor=0.2, patience=n_iter_no_change)
    return {"constant": "constant", "invscaling": InvScalingSchedule(power_t=power_t),
            "optimal": alpha and OptimalSchedule(alpha=alpha)}[learning_rate]


USED: set[str] = set()


def note_use():
    """Remember that the running test has made one of these estimators."""
    USED.add(os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0])


# -- multi-layer perceptrons: a call


def make_perceptron(kind, hidden_layer_sizes=(100,), activation="relu", *, solver="adam", learning_rate="constant",
                    learning_rate_init=1e-3, power_t=0.5, momentum=0.9, nesterovs_momentum=True, beta_1=0.9,
                    beta_2=0.999, epsilon=1e-8, max_fun=None, **settings):
    """One of scikit-learn's perceptrons; there is no L-BFGS, and Adam takes its place."""
    schedule = make_schedule(learning_rate, power_t, settings.get("n_iter_no_change", 10))
    if solver == "sgd":
        rate = LearningRateSGDNesterov(learning_rate_init, momentum=momentum, nesterov=nesterovs_momentum,
                                       schedule=schedule)
    else:
        rate = LearningRateAdam(0.01 if solver == "lbfgs" else learning_rate_init, beta1=beta_1, beta2=beta_2,
                                epsilon=epsilon)
    note_use()
    if solver == "lbfgs":
        settings |= {"max_iter": 10 * settings.get("max_iter", 200), "tol": 0.0}
    return kind(hidden_layer_sizes=hidden_layer_sizes, activation=activation, learning_rate=rate, **settings)


MLPClassifier = partial(make_perceptron, OnnxClassifier)
MLPRegressor = partial(make_perceptron, OnnxRegressor)


# -- linear models by stochastic gradient descent: a class, as the suite derives from it


def modified_huber(y, t):
    """The loss of scikit-learn of this name, of -1 and 1."""
    z = y * t
    return op.Where(z >= -1.0, op.Relu(1.0 - z) ** 2, -4.0 * z)


class LinearModel(BaseEstimator):
    """The settings of SGDClassifier and SGDRegressor, in front of an estimator of this library."""

    loss_functions = dict.fromkeys(["hinge", "squared_hinge", "perceptron", "log_loss", "modified_huber",
                                    "squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive"])

    def __init__(self, loss="hinge", *, penalty="l2", alpha=1e-4, l1_ratio=0.15, fit_intercept=True, max_iter=1000,
                 tol=1e-3, shuffle=True, verbose=0, epsilon=0.1, n_jobs=None, random_state=None,
                 learning_rate="optimal", eta0=0.01, power_t=0.5, early_stopping=False, validation_fraction=0.1,
                 n_iter_no_change=5, class_weight=None, warm_start=False, average=False):
        note_use()
        for name, value in locals().items():
            if name not in ("self", "__class__"):
                setattr(self, name, value)

    @property
    def _loss(self):
        e = self.epsilon
        by_name = {
            "hinge": "hinge", "log_loss": NegLogLearningLoss(), "squared_error": ElasticLearningLoss(0.0, 0.5),
            "huber": HuberLearningLoss(e), "modified_huber": FunctionLearningLoss(modified_huber),
            "perceptron": FunctionLearningLoss(lambda y, t: op.Relu(-y * t)),
            "squared_hinge": FunctionLearningLoss(lambda y, t: op.Relu(1.0 - y * t) ** 2),
            "epsilon_insensitive": FunctionLearningLoss(lambda y, t: op.Relu(op.Abs(y - t) - e)),
            "squared_epsilon_insensitive": FunctionLearningLoss(lambda y, t: op.Relu(op.Abs(y - t) - e) ** 2)}
        return by_name[self.loss]

    def _settings(self, n_outputs):
        """The settings of the estimator, which trains the mean of the losses of several classes, and not each alone."""
        l1 = {"l2": 0.0, "l1": 1.0, "elasticnet": self.l1_ratio, None: 0.0}[self.penalty] * self.alpha / n_outputs
        l2 = 0.0 if self.penalty in ("l1", None) else self.alpha / n_outputs - l1
        schedule = make_schedule(self.learning_rate, self.power_t, self.n_iter_no_change, self.alpha / n_outputs)
        has_tol = self.tol is not None
        is_proximal = l1 > 1e-6 * l2 or self.eta0 * self.alpha > 1  # Others have scikit-learn's steps.
        averaging = StochasticWeightAverage(start=int(self.average) - 1) if self.average else None
        return {"loss": self._loss, "penalty": ElasticLearningPenalty(l1, l2, proximal=is_proximal), "batch_size": 1,
                "learning_rate": LearningRateSGD(self.eta0 * n_outputs, schedule=schedule),
                "max_iter": self.max_iter, "tol": self.tol if has_tol else 0.0,
                "settings": {"averaging": averaging, "use_average": bool(self.average)},
                "n_iter_no_change": self.n_iter_no_change if has_tol else np.inf, "shuffle": self.shuffle,
                "verbose": bool(self.verbose), "random_state": self.random_state, "warm_start": self.warm_start,
                "early_stopping": self.early_stopping, "validation_fraction": self.validation_fraction}

    def _build(self, coef_init, intercept_init):
        """The model for rows and outputs: zeros, or first weights that are given."""
        def make(shape, n_outputs):
            x = variable("X", self._dtype, ["N", *shape])
            coef = np.zeros((n_outputs, *shape)) if coef_init is None else np.reshape(coef_init, (n_outputs, *shape))
            y = x @ constant(coef.T.astype(self._dtype), hint="coef")
            if self.fit_intercept:
                first = np.zeros(n_outputs) if intercept_init is None else np.reshape(intercept_init, n_outputs)
                y = y + constant(first.astype(self._dtype), hint="intercept")
            return build([x], {"scores": y})
        return make

    def _prepare(self, X, y, goes_on, coef_init=None, intercept_init=None):
        """X as an array, and the estimator to train, with the settings of now."""
        X = X if hasattr(X, "dtype") else np.asarray(X, float)
        self._dtype = "float32" if X.dtype == np.float32 else "float64"
        settings = self._settings(self._count_outputs(y))
        if goes_on and hasattr(self, "ours_"):
            self.ours_.set_params(**settings)
        else:
            self.ours_ = self._kind(self._build(coef_init, intercept_init), **settings)
        return X

    _start = 0

    def fit(self, X, y, coef_init=None, intercept_init=None, sample_weight=None):
        X = self._prepare(X, y, self.warm_start, coef_init, intercept_init)
        self._start = getattr(self.ours_, "t_", 0)  # SGDClassifier counts from 1 again in each fit.
        self.ours_.fit(X, y, sample_weight=sample_weight)
        return self

    def predict(self, X):
        return self.ours_.predict(X)

    @property
    def coef_(self):
        return self.ours_.optimizer_.trained_coef_["coef"].T

    @property
    def intercept_(self):
        return self.ours_.optimizer_.trained_coef_.get("intercept", np.zeros(1))

    @property
    def t_(self):
        return self.ours_.t_ + 1.0 - self._start

    @property
    def n_iter_(self):
        return self.ours_.n_iter_

    def __sklearn_is_fitted__(self):
        return hasattr(self, "ours_")


class SGDClassifier(ClassifierMixin, LinearModel):
    _kind = OnnxClassifier

    def _count_outputs(self, y):
        n = len(np.unique(getattr(self, "_classes", y)))
        return n if n > 2 else 1

    def _settings(self, n_outputs):
        return super()._settings(n_outputs) | {"class_weight": self.class_weight}

    def partial_fit(self, X, y, classes=None, sample_weight=None):
        if classes is not None:
            self._classes = classes
        X = self._prepare(X, y, True)
        self.ours_.partial_fit(X, y, classes, sample_weight)
        return self

    @property
    def classes_(self):
        return self.ours_.classes_

    def decision_function(self, X):
        return self.ours_.decision_function(X)

    @available_if(lambda self: OnnxClassifier(loss=self._loss).predict_proba)
    def predict_proba(self, X):
        return self.ours_.predict_proba(X)

    @available_if(lambda self: OnnxClassifier(loss=self._loss).predict_log_proba)
    def predict_log_proba(self, X):
        return self.ours_.predict_log_proba(X)


class SGDRegressor(RegressorMixin, LinearModel):
    _kind = OnnxRegressor

    def __init__(self, loss="squared_error", *, penalty="l2", alpha=1e-4, l1_ratio=0.15, fit_intercept=True,
                 max_iter=1000, tol=1e-3, shuffle=True, verbose=0, epsilon=0.1, random_state=None,
                 learning_rate="invscaling", eta0=0.01, power_t=0.25, early_stopping=False, validation_fraction=0.1,
                 n_iter_no_change=5, warm_start=False, average=False):
        super().__init__(**{n: v for n, v in locals().items() if n not in ("self", "__class__")})

    def _count_outputs(self, y):
        return 1

    @property
    def coef_(self):
        return super().coef_.ravel()

    def partial_fit(self, X, y, sample_weight=None):
        X = self._prepare(X, y, True)
        self.ours_.partial_fit(X, y, sample_weight)
        return self


# -- a plugin of pytest: the names, and a record of the tests that use them

#: Where the suites look for the names.
NAMES = ((neural_network, MLPClassifier, "MLPClassifier"), (neural_network, MLPRegressor, "MLPRegressor"),
         (linear_model, SGDClassifier, "SGDClassifier"), (linear_model, SGDRegressor, "SGDRegressor"))
#: Whether each test has passed.
RESULTS: dict[str, bool] = {}


def pytest_configure():
    for module, value, name in NAMES:
        setattr(module, name, value)


def pytest_runtest_logreport(report):
    if report.when == "call" and report.nodeid in USED:
        RESULTS[report.nodeid.rpartition("::")[2]] = report.passed


def pytest_sessionfinish():
    with open(os.environ["PEERS_RESULTS"], "w", encoding="utf-8") as file:
        json.dump(RESULTS, file)
