"""Metrics: R² and accuracy, as scikit-learn defines them."""

from __future__ import annotations

import numpy as np

__all__ = ["accuracy", "r2"]


def accuracy(labels: np.ndarray, t: np.ndarray, w: np.ndarray) -> float:
    """Σw[label = t] / Σw over all labels.

    Parameters
    ----------
    labels, t : numpy.ndarray
        Predictions and targets, of the same number of elements.
    w : numpy.ndarray
        Weights of the rows, (rows,), or of the elements, of the shape of t.

    Returns
    -------
    float
    """
    hit = (labels.reshape(t.shape) == t).reshape(len(t), -1)
    w = np.broadcast_to(w.reshape(len(t), -1), hit.shape)
    return float((w * hit).sum() / w.sum(dtype=np.float64))


def r2(y: np.ndarray, t: np.ndarray, w: np.ndarray) -> float:
    """1 - Σw(t - y)² / Σw(t - t̄)², averaged over the columns that count; a constant one counts 1 if met, else 0.

    Parameters
    ----------
    y, t : numpy.ndarray of shape (rows, ...)
        Predictions and targets.
    w : numpy.ndarray
        Weights of the rows, (rows,), or of the elements, of the shape of t.

    Returns
    -------
    float
    """
    y, t = y.reshape(len(t), -1).astype(np.float64), t.reshape(len(t), -1).astype(np.float64)
    w = np.broadcast_to(w.reshape(len(t), -1), t.shape)
    counted = w.any(axis=0)
    y, t, w = y[:, counted], t[:, counted], w[:, counted]
    residual = (w * (t - y) ** 2).sum(axis=0)
    total = (w * (t - (w * t).sum(axis=0) / w.sum(axis=0)) ** 2).sum(axis=0)
    ratio = np.divide(residual, total, out=np.where(residual == 0, 0.0, 1.0), where=total > 0)
    return float(1 - ratio.mean())
