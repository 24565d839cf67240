"""The losses of a learning rate finder, by learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ortpartial.arguments import checked
from ortpartial.exceptions import DataError

from .figure import drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_learning_rate_finder"]


@checked
def plot_learning_rate_finder(result: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the losses of steps whose learning rate grows, and the rate that is suggested.

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
    raw = np.asarray(getattr(result, "raw_losses", np.full(losses.shape, np.nan)), float)[is_finite]
    rates, losses = rates[is_finite], losses[is_finite]
    with drawing(ax) as ax:
        if np.isfinite(raw).any():
            ax.plot(rates, raw, color="0.8", linewidth=1, label="of each batch")
        ax.plot(rates, losses, label="smoothed" if np.isfinite(raw).any() else "")
        ax.set(title="Learning rate finder", xlabel="learning rate", ylabel="loss", xscale="log")
        low, start = losses.min(), losses[0]
        # Losses that diverge would flatten all the others.
        top = start + 0.5 * (start - low or abs(start) or 1.0)
        if losses.max() > top:
            ax.set_ylim(low - 0.1 * (top - low), top)
        if result.suggestion is not None:
            ax.axvline(result.suggestion, color="black", linestyle="--", linewidth=1.2,
                       label=f"suggestion: {result.suggestion:.3g}")
        if ax.get_legend_handles_labels()[0]:
            ax.legend()
    return ax
