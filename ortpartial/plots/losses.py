"""The losses of a training, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortpartial.arguments import checked

from .figure import Axes, drawing
from .history import read_history

__all__ = ["mark", "plot_losses", "select"]

#: Losses that span more than this factor are drawn on a logarithmic axis.
_WIDE = 50


@checked
def plot_losses(source: object, *, log: bool | None = None, ax: Axes | None = None) -> Axes:
    """Draw the losses of training and validation by epoch, the best epoch, and the learning rate where it changes.

    The best epoch is that of the smallest loss, or with `early_stopping` of an estimator that of the best score.

    Parameters
    ----------
    source : object
        An optimizer or an estimator that was fitted, its `history_`, or a list of losses.
    log : bool, optional
        Whether the axis of the losses is logarithmic; by default if they are positive and the largest is more than 50
        times the smallest.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default on axes of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes of the losses; the learning rate has its own, on the right.

    Raises
    ------
    DataError
        There is no epoch to draw.
    RuntimeMissingError
        matplotlib is not installed.

    Examples
    --------
    >>> history = [{"epoch": 1, "loss": 2.0, "validation_loss": 2.5}, {"epoch": 2, "loss": 1.0, "validation_loss": 3.0}]
    >>> [text.get_text() for text in plot_losses(history).get_legend().get_texts()]
    ['training', 'validation', 'best: 2.5 in epoch 1']
    """
    history = read_history(source)
    with drawing(ax) as ax:
        _draw(ax, history, log)
    return ax


def _draw(ax: Axes, history: Sequence[Mapping[str, object]], log: bool | None) -> None:
    train, validation = select(history, "loss"), select(history, "validation_loss")
    ax.plot(*train, label="training", marker=mark(train))
    if len(validation[0]):
        # Dashes and squares tell the lines apart without their colors.
        ax.plot(*validation, label="validation", linestyle="--", marker=mark(validation) and "s")
    _mark_best(ax, select(history, "val_score"), *(validation if len(validation[0]) else train))
    y = np.concatenate([train[1], validation[1]])
    if log or (log is None and y.size and y.min() > 0 and y.max() > _WIDE * y.min()):
        ax.set_yscale("log")
    ax.set(title="Losses", xlabel="epoch", ylabel="loss")
    ax.locator_params(axis="x", integer=True, min_n_ticks=1)  # a single epoch has no ticks beside it
    handles, labels = ax.get_legend_handles_labels()
    rates = select(history, "learning_rate")
    if len(set(rates[1])) > 1:
        handles.append(_draw_rates(ax, *rates))
        labels.append("learning rate")
    ax.legend(handles, labels)


def select(history: Sequence[Mapping[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Select the epochs that have a finite number of this name, and these numbers.

    Parameters
    ----------
    history : sequence of dict
        The records of epochs.
    key : str
        The column.

    Returns
    -------
    tuple of numpy.ndarray
    """
    pairs = [(e["epoch"], e[key]) for e in history if e.get(key) is not None and np.isfinite(e[key])]
    epochs, numbers = np.array(pairs or np.empty((0, 2)), float).T
    return epochs, numbers


def mark(curve: tuple[np.ndarray, np.ndarray]) -> str:
    """The marker of the points of a curve, unless they are many.

    Parameters
    ----------
    curve : tuple of numpy.ndarray
        The result of `select`.

    Returns
    -------
    str
    """
    return "o" if len(curve[0]) <= 30 else ""


def _mark_best(ax: Axes, scores: tuple[np.ndarray, np.ndarray], epochs: np.ndarray, losses: np.ndarray) -> None:
    """Mark the smallest loss, or the loss of the epoch that early stopping has found the best by its score."""
    if not len(losses):
        return
    best, text = int(losses.argmin()), ""
    if len(scores[0]) == len(epochs):
        best = int(scores[1].argmax())
        text = f"score {scores[1][best]:.4g}"
    ax.plot(epochs[best], losses[best], marker="*", markersize=13, linestyle="", color="black", zorder=3,
            label=f"best: {text or f'{losses[best]:.4g}'} in epoch {epochs[best]:.0f}")


def _draw_rates(ax: Axes, epochs: np.ndarray, rates: np.ndarray) -> Any:
    """Draw learning rates on an axis of their own, behind the losses, and return their line."""
    right = ax.twinx()
    right.grid(visible=False)
    right.spines["right"].set_visible(True)
    right.set_ylabel("learning rate", color="0.4")
    right.tick_params(axis="y", colors="0.4")
    right.set_ylim(0, 1.05 * rates.max())
    right.ticklabel_format(axis="y", scilimits=(-2, 3))
    (line,) = right.plot(epochs, rates, color="0.6", linestyle=":", drawstyle="steps-mid")
    ax.set_zorder(right.get_zorder() + 1)
    ax.patch.set_visible(False)
    return line
