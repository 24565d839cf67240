"""Metrics: accuracy, precision, recall, F1, AUC, R², errors and perplexity, as scikit-learn defines them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np

from ortpartial.annotations import MetricLike
from ortpartial.checks import check_choice, to_tuple
from ortpartial.exceptions import SettingError

from .aliases import suggest

__all__ = ["Metric", "accuracy", "check_metrics", "r2", "resolve_metric"]

#: The predictions that a metric compares with the targets.
_KINDS = ("prediction", "labels", "quantities", "probabilities", "costs", "ranks", "output")

#: Columns of `history_` that a metric cannot have.
_RESERVED = frozenset({"epoch", "iteration", "seconds", "learning_rate", "loss"})


@dataclass(frozen=True)
class Metric:
    """A number that tells how good predictions are: a function of targets and predictions, with its name.

    Parameters
    ----------
    function : callable
        From targets and predictions to a number: ``f(y_true, y_pred)``, or ``f(y_true, y_pred, sample_weight)``, as the
        functions of ``sklearn.metrics`` are.
    name : str, optional
        The column of `history_`, behind ``"val_"`` for validation data; by default the name of the function.
    of : str
        The kind of `y_pred` that the function is given: ``"labels"``; ``"quantities"``, the expected targets;
        ``"probabilities"`` of shape (n, classes), or of the label 1; ``"costs"``, -log p of each target; ``"ranks"``,
        the number of classes with a higher score than that of the target; ``"output"``, the output of the model as
        `predict` returns it; or ``"prediction"``, which is the labels where the loss has labels, else the quantities.
    larger_is_better : bool, optional
        By default False for names that speak of a loss, an error or a deviance, as in scikit-learn.
    rows : str
        ``"validation"``, or ``"training"`` for the rows that are trained, also where there are validation data.

    Notes
    -----
    How scores become labels follows the loss: the class of the largest score for a loss of several classes; for a loss
    of single scores 1 where a raw score is more than 0, or a probability, of ``from_logits=False``, more than 0.5. A
    graph that holds its own loss, and a module that computes its loss itself, have no loss that could be asked: whole
    numbers as targets are labels there, of classes where the output has an axis more, and of single scores where it has
    as many numbers; the scores are probabilities where the graph ends in Softmax or Sigmoid.

    Tokens, pixels and several columns of classes are compared singly; elements of weight 0, such as labels that do not
    count, are left out. Columns of several labels are given as they are, of shape (rows, labels).

    Examples
    --------
    >>> from sklearn.metrics import mean_squared_error
    >>> within = Metric(lambda t, y: np.mean(abs(t - y) < 0.5), "within", of="quantities")
    >>> within.name, within.larger_is_better, Metric(mean_squared_error).larger_is_better
    ('within', True, False)
    """

    function: Callable[..., float]
    name: str = ""
    of: str = "prediction"
    larger_is_better: bool | None = None
    rows: str = "validation"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SettingError(f"Metric: function is {self.function!r}, a function of targets and predictions was "
                               f"expected.")
        if not isinstance(self.name, str):
            raise SettingError(f"Metric: name is a string, not {self.name!r}.")
        name = self.name or getattr(self.function, "__name__", type(self.function).__name__)
        object.__setattr__(self, "name", name)
        check_choice(f"Metric {name!r}: of", self.of, _KINDS)
        check_choice(f"Metric {name!r}: rows", self.rows, ("validation", "training"))
        if self.larger_is_better is None:
            is_cost = any(word in name for word in ("loss", "error", "deviance"))
            object.__setattr__(self, "larger_is_better", not is_cost)

    @cached_property
    def _parameters(self) -> tuple[bool, int]:
        return _read_parameters(self.function)

    def __call__(self, t: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
        """Compute the metric.

        Parameters
        ----------
        t, y, w : numpy.ndarray
            Targets, predictions and weights.

        Returns
        -------
        float

        Raises
        ------
        SettingError
            The function returns no number.
        """
        by_name, count = self._parameters
        number: object
        if by_name:
            number = self.function(t, y, sample_weight=w)
        else:
            number = self.function(t, y, w) if count > 2 else self.function(t, y)
        array = np.asarray(number)
        if array.size != 1 or array.dtype.kind not in "biuf":
            raise SettingError(f"The metric {self.name!r} is {type(number).__name__} of shape {array.shape}, one "
                               f"number was expected.")
        return float(array.item())


def _read_parameters(function: Callable[..., float]) -> tuple[bool, int]:
    """Whether a function has a parameter `sample_weight`, and how many arguments it needs."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # A function in C may have no signature.
        return False, 2
    positional = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return "sample_weight" in parameters, sum(p.default is p.empty for p in positional)


# -- labels


def accuracy(t: np.ndarray, y: np.ndarray, sample_weight: np.ndarray) -> float:
    """Σw[y = t] / Σw over all labels.

    Parameters
    ----------
    t, y : numpy.ndarray of shape (n,) or (n, labels)
        Targets and predicted labels.
    sample_weight : numpy.ndarray of shape (n,)
        Weights.

    Returns
    -------
    float
    """
    hits = y == t
    return float(_mean(hits if hits.ndim == 1 else hits.reshape(len(t), -1).mean(axis=1), sample_weight))


def _mean(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Σwx / Σw along the first axis."""
    w, x = w.astype(np.float64), x.astype(np.float64)
    # `np.tensordot` computes the same product after a longer look at its arguments.
    return np.dot(w[None], x.reshape(len(w), -1))[0].reshape(x.shape[1:]) / np.add.reduce(w)


def _count(t: np.ndarray, y: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The classes, and the weights hit, predicted and true of each; of several columns, of the label 1 in each."""
    if t.ndim > 1:
        hit, predicted, true = ((w[:, None] * a).sum(axis=0, dtype=np.float64) for a in (t * y, y, t))
        return np.arange(t.shape[1]), hit, predicted, true
    classes, index = np.unique(np.concatenate([t, y]), return_inverse=True)
    ti, yi, n = index[: len(t)], index[len(t) :], len(classes)
    return (classes, np.bincount(ti, w * (ti == yi), n), np.bincount(yi, w, n), np.bincount(ti, w, n))


def _average(name: str, average: str, share: Callable[..., np.ndarray], t: np.ndarray, y: np.ndarray,
             w: np.ndarray) -> float:
    """A share of hits: of the label 1, or of all classes, averaged."""
    classes, hit, predicted, true = _count(t, y, w)
    if average == "binary":
        if t.ndim > 1 or not np.isin(classes, (0, 1)).all():
            raise SettingError(f"The metric {name!r} is that of the label 1 beside 0, and there are more labels; say "
                               f"which mean of all is meant, as {f'{name}_macro'!r}, {f'{name}_micro'!r} or "
                               f"{f'{name}_weighted'!r}.")
        hit, predicted, true = (a[classes == 1].sum(keepdims=True) for a in (hit, predicted, true))
    elif average == "micro":
        hit, predicted, true = (a.sum(keepdims=True) for a in (hit, predicted, true))
    each = share(hit, predicted, true)
    if average == "weighted":
        return float((each * true).sum() / true.sum()) if true.any() else 0.0
    return float(each.mean())


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, and 0 where b is 0, as scikit-learn has it."""
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


#: Of the weights that are hit, predicted and true: https://en.wikipedia.org/wiki/Precision_and_recall.
_SHARES: dict[str, Callable[..., np.ndarray]] = {
    "precision": lambda hit, predicted, true: _divide(hit, predicted),
    "recall": lambda hit, predicted, true: _divide(hit, true),
    "f1": lambda hit, predicted, true: _divide(2 * hit, predicted + true),
}


def balanced_accuracy(t: np.ndarray, y: np.ndarray, sample_weight: np.ndarray) -> float:
    """The mean recall of the classes that targets have: ``sklearn.metrics.balanced_accuracy_score``."""
    _, hit, _, true = _count(t, y, sample_weight)
    return float((hit[true > 0] / true[true > 0]).mean())


def _top_accuracy(k: int, t: np.ndarray, ranks: np.ndarray, w: np.ndarray) -> float:
    """The share of targets among the k highest scores: ``sklearn.metrics.top_k_accuracy_score``."""
    return float(_mean(ranks < k, w))


# -- probabilities


def log_loss(t: np.ndarray, costs: np.ndarray, sample_weight: np.ndarray) -> float:
    """-Σw log p / Σw, the cross-entropy of the targets: ``sklearn.metrics.log_loss``."""
    return float(_mean(costs, sample_weight).mean())


def perplexity(t: np.ndarray, costs: np.ndarray, sample_weight: np.ndarray) -> float:
    """exp(-Σw log p / Σw): D. Jurafsky and J. H. Martin, Speech and Language Processing, 3.3."""
    return float(np.exp(log_loss(t, costs, sample_weight)))


def roc_auc(t: np.ndarray, p: np.ndarray, sample_weight: np.ndarray) -> float:
    """The area under the ROC curve, NaN where there is a single label; of classes, the mean of each against all others.

    That is ``sklearn.metrics.roc_auc_score(multi_class="ovr")``, over the classes that targets have.
    """
    if p.ndim == 1:
        return _area(t == 1, p, sample_weight)
    if t.ndim > 1:
        each = [_area(t[:, k] == 1, p[:, k], sample_weight) for k in range(p.shape[1])]
    elif p.shape[1] == 2:
        return _area(t == 1, p[:, 1], sample_weight)
    else:
        each = [_area(t == k, p[:, k], sample_weight) for k in np.unique(t)]
    return float(np.mean(each))


def _area(is_true: np.ndarray, scores: np.ndarray, w: np.ndarray) -> float:
    """Σ w₁w₀ [s₁ > s₀] / Σ w₁w₀ over pairs of a true and a false score, of which equal scores count ½."""
    _, group = np.unique(scores, return_inverse=True)
    true, false = np.bincount(group, w * is_true), np.bincount(group, w * ~is_true)
    pairs = true.sum() * false.sum()
    below = np.cumsum(false) - false
    return float((true * (below + false / 2)).sum() / pairs) if pairs else float("nan")


# -- quantities


def _to_columns(t: np.ndarray, y: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Targets, predictions and weights of the columns that count."""
    t, y, w = t.reshape(len(t), -1).astype(np.float64), y.reshape(len(t), -1).astype(np.float64), w.reshape(len(t), -1)
    if t.shape[1] == w.shape[1] == 1 and w.any():
        return t, y, w.astype(np.float64)
    w = np.broadcast_to(w, t.shape)
    counted = w.any(axis=0)
    return t[:, counted], y[:, counted], w[:, counted].astype(np.float64)


def r2(t: np.ndarray, y: np.ndarray, sample_weight: np.ndarray) -> float:
    """1 - Σw(t - y)² / Σw(t - t̄)², averaged over the columns that count; a constant column counts 1 if met, else 0.

    Parameters
    ----------
    t, y : numpy.ndarray of shape (rows, ...)
        Targets and predictions.
    sample_weight : numpy.ndarray
        Weights of the rows, (rows,), or of the elements, of the shape of t.

    Returns
    -------
    float
    """
    t, y, w = _to_columns(t, y, sample_weight)
    add = np.add.reduce  # along the rows
    residual = add(w * (t - y) ** 2)
    total = add(w * (t - add(w * t) / add(w)) ** 2)
    ratios = [a / b if b > 0 else float(a != 0) for a, b in zip(residual.tolist(), total.tolist(), strict=True)]
    return 1 - (ratios[0] if len(ratios) == 1 else float(np.mean(ratios)))


def _mean_of_columns(f: Callable[[np.ndarray], np.ndarray], t: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Σw f(t - y) / Σw of each column."""
    t, y, w = _to_columns(t, y, w)
    return (w * f(t - y)).sum(axis=0) / w.sum(axis=0)


def mean_squared_error(t: np.ndarray, y: np.ndarray, sample_weight: np.ndarray) -> float:
    """Σw(t - y)² / Σw, averaged over columns: ``sklearn.metrics.mean_squared_error``."""
    return float(_mean_of_columns(np.square, t, y, sample_weight).mean())


def root_mean_squared_error(t: np.ndarray, y: np.ndarray, sample_weight: np.ndarray) -> float:
    """√(Σw(t - y)² / Σw), averaged over columns: ``sklearn.metrics.root_mean_squared_error``."""
    return float(np.sqrt(_mean_of_columns(np.square, t, y, sample_weight)).mean())


def mean_absolute_error(t: np.ndarray, y: np.ndarray, sample_weight: np.ndarray) -> float:
    """Σw|t - y| / Σw, averaged over columns: ``sklearn.metrics.mean_absolute_error``."""
    return float(_mean_of_columns(np.abs, t, y, sample_weight).mean())


# -- names


def _name_all() -> dict[str, Metric]:
    """The metrics by name."""
    metrics = [Metric(accuracy, of="labels"), Metric(balanced_accuracy, of="labels"),
               Metric(log_loss, of="costs"), Metric(perplexity, of="costs", larger_is_better=False),
               Metric(roc_auc, of="probabilities"), Metric(r2, of="quantities")]
    for name, share in _SHARES.items():
        for average in ("binary", "macro", "micro", "weighted"):
            full = name if average == "binary" else f"{name}_{average}"
            metrics.append(Metric(partial(_average, name, average, share), full, "labels"))
    for short, function in {"mse": mean_squared_error, "rmse": root_mean_squared_error,
                            "mae": mean_absolute_error}.items():
        metrics += [Metric(function, name, "quantities", False) for name in (short, function.__name__)]
    return {metric.name: metric for metric in metrics}


_METRICS = _name_all()

#: Names of metrics in other libraries.
_ALIASES = {
    **dict.fromkeys(("acc", "accuracyscore", "categoricalaccuracy", "sparsecategoricalaccuracy", "binaryaccuracy",
                     "validationaccuracy", "valaccuracy"), "'accuracy'"),
    **dict.fromkeys(("auc", "rocaucscore", "rocaucovr", "auroc"), "'roc_auc'"),
    **dict.fromkeys(("r2score", "rsquared", "rsquare"), "'r2'"), **dict.fromkeys(("fscore", "f1score"), "'f1'"),
    **dict.fromkeys(("negmeansquarederror",), "'mse'"), **dict.fromkeys(("negmeanabsoluteerror",), "'mae'"),
    **dict.fromkeys(("negrootmeansquarederror",), "'rmse'"), **dict.fromkeys(("ppl",), "'perplexity'"),
    **dict.fromkeys(("neglogloss", "crossentropy", "ce", "nll"), "'log_loss'"),
    **dict.fromkeys(("topkaccuracy", "topk", "topkcategoricalaccuracy", "top5"), "'top_5_accuracy'"),
}


def resolve_metric(metric: object) -> Metric:
    """The metric for a name, a function, or a `Metric`.

    Parameters
    ----------
    metric : str, callable or Metric
        ``"accuracy"``, ``"balanced_accuracy"``, ``"precision"``, ``"recall"``, ``"f1"``, of the label 1, and with
        "_macro", "_micro" or "_weighted" of all classes, ``"top_5_accuracy"``, also of other numbers, ``"roc_auc"``,
        ``"log_loss"``, ``"perplexity"``, ``"r2"``, ``"mse"``, ``"rmse"``, ``"mae"``. With "train_" before the name, the
        metric is that of the rows that are trained.

    Returns
    -------
    Metric

    Raises
    ------
    SettingError
        There is no such metric.

    Examples
    --------
    >>> resolve_metric("f1_macro").name, resolve_metric("train_mse").rows
    ('f1_macro', 'training')
    """
    if isinstance(metric, Metric):
        return metric
    if callable(metric) and not isinstance(metric, type):
        return Metric(metric)
    if not isinstance(metric, str):
        raise SettingError(f"metrics holds {metric!r}; names, functions of targets and predictions, and Metric objects "
                           f"were expected.")
    return _resolve_name(metric)


@lru_cache
def _resolve_name(metric: str) -> Metric:
    """The metric for a name: the same object each time, which has read the parameters of its function."""
    name = metric.removeprefix("train_")
    rows = "validation" if name == metric else "training"
    if name in _METRICS:
        return replace(_METRICS[name], rows=rows)
    if (top := re.fullmatch(r"top_([1-9]\d*)_accuracy", name)) is not None:
        return Metric(partial(_top_accuracy, int(top[1])), name, "ranks", True, rows)
    guess = suggest(name, _METRICS, _ALIASES)
    raise SettingError(f"metrics: {metric!r} is no metric{f'; did you mean {guess}?' if guess else '.'} There are "
                       f"{', '.join(_METRICS)}, top_5_accuracy, and functions of your own.")


def check_metrics(metrics: object) -> tuple[MetricLike, ...]:
    """Check the setting `metrics`.

    Parameters
    ----------
    metrics : sequence of str, callable or Metric
        The setting, or a single metric.

    Returns
    -------
    tuple of str, callable or Metric

    Raises
    ------
    SettingError
        It holds an object that is no metric, or two of the same name, or the name of another column of `history_`.
    """
    if isinstance(metrics, (str, Metric)) or callable(metrics):
        metrics = (metrics,)
    if (checked := to_tuple(metrics)) is None:
        raise SettingError(f"metrics is {metrics!r}; a list of names and functions was expected, as ['accuracy'].")
    columns = set()
    for metric in map(resolve_metric, checked):
        if (metric.name, metric.rows) in columns:
            raise SettingError(f"metrics has {metric.name!r} twice; give one of them a name, as Metric(f, 'name').")
        if metric.name in _RESERVED:
            raise SettingError(f"metrics: {metric.name!r} is another column of history_; give the metric a name, as "
                               f"Metric(f, 'name').")
        columns.add((metric.name, metric.rows))
    return checked
