"""The losses of a learning rate finder, by learning rate."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ortpartial.arguments import checked
from ortpartial.exceptions import DataError

from .figure import Axes, drawing

__all__ = ["plot_learning_rate_finder"]

#: How many losses on each side count in a mean.
_HALF = 4


@checked
def plot_learning_rate_finder(result: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the losses of steps whose learning rate grows, until they diverge, and the rate that is suggested.

    Parameters
    ----------
    result : object
        The result of `find_learning_rate`: `rates` and `losses` by step, `suggestion`, a rate or None, and, where
        losses are smoothed, `raw_losses`.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default on axes of a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    DataError
        No step has a finite loss.
    RuntimeMissingError
        matplotlib is not installed.

    References
    ----------
    .. [1] L. N. Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> result = SimpleNamespace(rates=[1e-3, 1e-2, 1e-1], losses=[1.0, 0.5, 3.0], suggestion=1e-2)
    >>> plot_learning_rate_finder(result).get_xscale()
    'log'
    """
    result = getattr(result, "result_", result)
    if not hasattr(result, "rates"):
        raise DataError(f"The result is what find_learning_rate returns, or a LearningRateFinder after fit, not "
                        f"{'one before it' if result is None else type(result).__name__}.")
    rates, losses = np.asarray(result.rates, float), np.asarray(result.losses, float)
    if not (is_finite := np.isfinite(losses)).any():
        raise DataError("No step has a finite loss; begin with a lower learning rate.")
    raw = np.asarray(getattr(result, "raw_losses", losses), float)[is_finite]
    rates, losses = rates[is_finite], losses[is_finite]
    has_batches = bool(np.isfinite(raw).all()) and hasattr(result, "raw_losses")
    curve = _average(raw) if has_batches else losses
    end, (low, high) = _find_end(curve)
    with drawing(ax) as ax:
        if has_batches:
            ax.plot(rates, raw, color="0.8", linewidth=1, label="of a batch")
        ax.plot(rates, curve, label="mean of neighbors" if has_batches else "")
        ax.set(title="Learning rate finder", xlabel="learning rate", ylabel="loss", xscale="log",
               xlim=(rates[0], rates[end]), ylim=(low, high))
        if result.suggestion is not None:
            ax.axvline(result.suggestion, color="black", linestyle="--", linewidth=1.2,
                       label=f"suggestion: {result.suggestion:.3g}")
        if ax.get_legend_handles_labels()[0]:
            # The losses fall to the right.
            ax.legend(loc="lower left", frameon=True, facecolor="white", edgecolor="none", framealpha=0.85)
    return ax


def _average(losses: np.ndarray) -> np.ndarray:
    """The mean of the losses around each, without outliers; a mean of the losses before would fall too late."""
    padded = np.pad(losses, _HALF + 2, mode="edge")
    medians = np.median(sliding_window_view(padded, 2 * _HALF + 1), axis=1)
    return sliding_window_view(medians, 5).mean(axis=1)


def _find_end(curve: np.ndarray) -> tuple[int, tuple[float, float]]:
    """The step at which losses have diverged, else the last, and the limits that show the losses before it."""
    bottom = int(curve.argmin())
    low, level = float(curve[bottom]), float(curve[: bottom + 1].max())
    reach = level - low or abs(level) or 1.0
    high = level + 0.4 * reach
    beyond = np.flatnonzero(curve[bottom:] > high)
    return bottom + int(beyond[0]) if beyond.size else len(curve) - 1, (low - 0.15 * reach, high)
