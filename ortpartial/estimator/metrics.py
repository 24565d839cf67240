"""Metrics: R² and accuracy, as scikit-learn defines them."""

from __future__ import annotations

import numpy as np

__all__ = ["accuracy", "r2"]


def accuracy(labels: np.ndarray, t: np.ndarray, w: np.ndarray) -> float:
    """Σw[label = t] / Σw, the labels of a row averaged where it has several.

    Parameters
    ----------
    labels, t : numpy.ndarray
        Predictions and targets, of the same number of elements.
    w : numpy.ndarray of shape (rows,)
        Weights of the rows.

    Returns
    -------
    float
    """
    hit = (labels.reshape(t.shape) == t).reshape(len(t), -1).mean(axis=1)
    return float((w * hit).sum() / w.sum())


def r2(y: np.ndarray, t: np.ndarray, w: np.ndarray) -> float:
    """1 - Σw(t - y)² / Σw(t - t̄)², averaged over the columns; a constant column counts 1 if met, else 0.

    Parameters
    ----------
    y, t : numpy.ndarray of shape (rows, ...)
        Predictions and targets.
    w : numpy.ndarray of shape (rows,)
        Weights of the rows.

    Returns
    -------
    float
    """
    y, t, w = y.reshape(len(t), -1).astype(np.float64), t.reshape(len(t), -1).astype(np.float64), w[:, None]
    residual = (w * (t - y) ** 2).sum(axis=0)
    total = (w * (t - (w * t).sum(axis=0) / w.sum()) ** 2).sum(axis=0)
    ratio = np.divide(residual, total, out=np.where(residual == 0, 0.0, 1.0), where=total > 0)
    return float(1 - ratio.mean())
