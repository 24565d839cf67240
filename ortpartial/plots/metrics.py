"""The metrics of a training, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortpartial.arguments import checked
from ortpartial.exceptions import DataError
from ortpartial.learning import Metric, resolve_metric

from .figure import Axes, drawing
from .history import read_history
from .losses import mark, select

__all__ = ["plot_metrics"]

#: How the columns of validation data begin.
_PREFIX = "val_"


@checked
def plot_metrics(source: object, *names: str, ax: Axes | None = None) -> Axes:
    """Draw metrics by epoch, of the training and, dashed, of validation data, and the best epoch of each.

    Parameters
    ----------
    source : object
        An optimizer, an estimator or a module that was fitted, or its `history_`.
    *names : str
        The metrics, such as "accuracy"; by default all of validation data.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default on axes of a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    DataError
        There is no epoch, or none with such a metric.
    RuntimeMissingError
        matplotlib is not installed.

    Examples
    --------
    >>> history = [{"epoch": 1, "loss": 2.0, "val_accuracy": 0.5}, {"epoch": 2, "loss": 1.0, "val_accuracy": 0.75}]
    >>> [text.get_text() for text in plot_metrics(history).get_legend().get_texts()]
    ['validation accuracy', 'best: 0.75 in epoch 2']
    """
    history = read_history(source)
    columns = list(dict.fromkeys(n for record in history for n in record))
    chosen = [n.removeprefix(_PREFIX) for n in names or columns if names or n.startswith(_PREFIX)]
    if missing := [n for n in chosen if n not in columns and _PREFIX + n not in columns]:
        raise DataError(f"No epoch has the metric {missing[0]!r}; name it in the setting metrics of the training.")
    if not chosen:
        raise DataError("No epoch has a metric of validation data; name those of the training, as "
                        "plot_metrics(optimizer, 'accuracy').")
    with drawing(ax) as ax:
        for i, name in enumerate(chosen):
            _draw(ax, history, name, f"C{i}")
        ax.set(title="Metrics", xlabel="epoch", ylabel=chosen[0] if len(chosen) == 1 else "metric")
        ax.locator_params(axis="x", integer=True, min_n_ticks=1)
        ax.legend()
    return ax


def _draw(ax: Axes, history: Sequence[Mapping[str, object]], name: str, color: str) -> None:
    """Draw a metric: of the training and of validation data, of which the best epoch is marked."""
    train, validation = select(history, name), select(history, _PREFIX + name)
    if len(train[0]):
        ax.plot(*train, label=f"training {name}", marker=mark(train), color=color)
    if len(validation[0]):
        ax.plot(*validation, label=f"validation {name}", linestyle="--", marker=mark(validation) and "s", color=color)
    epochs, numbers = validation if len(validation[0]) else train
    if len(numbers):
        best = int((numbers if _is_score(name) else -numbers).argmax())
        ax.plot(epochs[best], numbers[best], marker="*", markersize=13, linestyle="", color="black", zorder=3,
                label=f"best: {numbers[best]:.4g} in epoch {epochs[best]:.0f}")


def _is_score(name: str) -> bool:
    """Whether more is better of a metric, by its name; that of an output may stand before it."""
    for i in range(name.count("_") + 1):
        try:
            return bool(resolve_metric(name.split("_", i)[-1]).larger_is_better)
        except ValueError:
            continue
    return bool(Metric(max, name).larger_is_better)
