"""Curves of losses as small SVG, for HTML, without matplotlib."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["draw_curve"]

#: Width and height, and the margin around the curves, in pixels.
_WIDTH, _HEIGHT, _MARGIN = 240, 60, 4

#: Points up to which a curve is drawn as it is; of a longer one, the mean of each part.
_POINTS = 240


def draw_curve(*curves: Sequence[float]) -> str:
    """Draw lists of losses as an SVG element, the first solid and the others dashed.

    Parameters
    ----------
    *curves : sequence of float
        The losses, from the first epoch to the last; each spans the whole width. Infinite losses are left out.

    Returns
    -------
    str
        The element; empty where there is nothing to draw.

    Examples
    --------
    >>> draw_curve([2.0, 1.0, 1.5]).count("<polyline")
    1
    >>> draw_curve([2.0])
    ''
    """
    lines = [_thin(a[np.isfinite(a)]) for a in (np.asarray(c, float) for c in curves)]
    lines = [a for a in lines if a.size > 1]
    if not lines:
        return ""
    low, high = min(a.min() for a in lines), max(a.max() for a in lines)
    styles = ['stroke="#1d6fa5"', *['stroke="#d1495b" stroke-dasharray="4 2"'] * len(lines)]
    drawn = "".join(_draw_line(a, low, high, style) for a, style in zip(lines, styles, strict=False))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="losses by epoch" width="{_WIDTH}" '
            f'height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}">{drawn}</svg>')


def _thin(losses: np.ndarray) -> np.ndarray:
    """Losses, or the means of parts of them where they are many."""
    if losses.size <= _POINTS:
        return losses
    return np.array([part.mean() for part in np.array_split(losses, _POINTS)])


def _draw_line(losses: np.ndarray, low: float, high: float, style: str) -> str:
    """A line; a constant line is drawn in the middle."""
    x = np.linspace(_MARGIN, _WIDTH - _MARGIN, losses.size)
    share = (losses - low) / (high - low) if high > low else np.full(losses.size, 0.5)
    y = _HEIGHT - _MARGIN - share * (_HEIGHT - 2 * _MARGIN)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return f'<polyline points="{points}" fill="none" {style} stroke-width="1.6"/>'
