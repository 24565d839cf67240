"""Histograms of weights and gradients, a row for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ortpartial.arguments import checked
from ortpartial.checks import check_count
from ortpartial.exceptions import DataError
from ortpartial.texts import printable

from .figure import Axes, drawing

__all__ = ["plot_histograms"]


@checked
def plot_histograms(source: object, names: str | Sequence[str] = "*", *, log: bool = False, bins: int = 50,
                    title: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw a histogram of every weight, or of other arrays such as gradients, in rows.

    Each is as high as the others. On the right of it stand its mean and standard deviation.

    Parameters
    ----------
    source : object or dict of str to numpy.ndarray
        An optimizer, an estimator that was fitted or a `TrainingView`, for the trained weights; or arrays by name, such
        as gradients.
    names : str or sequence of str
        Which of them: names, or patterns such as ``"encoder.*"``.
    log : bool
        Whether to draw the magnitudes on a logarithmic axis, on which gradients of layers far apart can be compared;
        zeros are left out, and their share is written.
    bins : int
        Number of bins.
    title : str, optional
        By default "Weights" for an optimizer's.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default on axes of a new figure, of a height that follows from the number of arrays.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    DataError
        There is no array of such a name.
    RuntimeMissingError
        matplotlib is not installed.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> ax = plot_histograms({"fc.weight": rng.normal(size=(10, 5)), "fc.bias": rng.normal(size=5)})
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['fc.weight', 'fc.bias']
    """
    check_count("bins", bins, 1, 10**6)
    arrays = _select(source, [names] if isinstance(names, str) else names)
    numbers = {n: np.asarray(a, float).ravel() for n, a in arrays.items()}
    if title is None:
        title = "" if isinstance(source, Mapping) else "Weights"
    with drawing(ax, (7.0, 1.2 + 0.5 * len(numbers))) as ax:
        _draw(ax, numbers, log, bins)
        ax.set(title=title, xlabel="magnitude" if log else "value")
    return ax


def _draw(ax: Axes, numbers: Mapping[str, np.ndarray], log: bool, bins: int) -> None:
    """Draw the rows from the top down, over a common axis of values."""
    shown = {n: np.log10(np.abs(a[a != 0])) if log else a for n, a in numbers.items()}
    shown = {n: a[np.isfinite(a)] for n, a in shown.items()}
    edges = np.histogram_bin_edges(np.concatenate(list(shown.values())), bins)
    for row, (name, a) in enumerate(shown.items()):
        _draw_row(ax, -row, np.histogram(a, edges)[0], edges, _summarize(numbers[name], log))
    ax.set_yticks(-np.arange(len(shown)), list(map(printable, shown)), fontsize=9, parse_math=False)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False)
    ax.set_ylim(-len(shown) + 0.9, 0.95)
    ax.set_xlim(edges[0], edges[-1])
    if log:
        ax.locator_params(axis="x", integer=True)
        ax.xaxis.set_major_formatter(lambda x, _: f"$10^{{{x:g}}}$")


def _select(source: object, patterns: Sequence[str]) -> dict[str, Any]:
    """The arrays whose names match, as they are called in the program that was exported."""
    if isinstance(source, Mapping):
        arrays = {str(n): a for n, a in source.items()}
    else:
        optimizer = getattr(source, "optimizer_", getattr(source, "optimizer", source))
        if not hasattr(optimizer, "trained_coef_"):
            raise DataError(f"Histograms are those of an optimizer, an estimator or a dict of arrays, not of "
                            f"{type(source).__name__}.")
        weights = optimizer.trained_coef_
        names = {initializer: alias for alias, initializer in getattr(weights, "aliases", {}).items()}
        arrays = {names.get(n, n): a for n, a in weights.items()}
    chosen = {n: a for n, a in arrays.items() if np.size(a) and any(fnmatchcase(n, p) for p in patterns)}
    if not chosen:
        some = ", ".join(map(repr, list(arrays)[:10])) or "none"
        raise DataError(f"No array has a name that matches {', '.join(map(repr, patterns))}; there are {some}.")
    return chosen


def _draw_row(ax: Axes, base: int, counts: np.ndarray, edges: np.ndarray, summary: str) -> None:
    """Draw a histogram above its base line, and write a summary beside it."""
    heights = base + 0.85 * counts / max(counts.max(), 1)
    ax.stairs(heights, edges, baseline=base, fill=True, alpha=0.75, color="#1d6fa5", linewidth=0)
    ax.axhline(base, color="0.6", linewidth=0.6)
    ax.annotate(summary, (1.01, base), xycoords=("axes fraction", "data"), va="bottom", fontsize=8, color="0.3",
                annotation_clip=False)


def _summarize(a: np.ndarray, log: bool) -> str:
    """Mean and standard deviation, or the median magnitude, and the numbers that are not ordinary."""
    finite = a[np.isfinite(a)]
    if not finite.size:
        return "not finite"
    parts = [f"median {np.median(np.abs(finite)):.3g}" if log else f"{finite.mean():.3g} ± {finite.std():.3g}"]
    if zeros := np.count_nonzero(finite == 0):
        parts.append(f"{zeros / finite.size:.0%} zero")
    if finite.size < a.size:
        parts.append(f"{a.size - finite.size} not finite")
    return ", ".join(parts)
