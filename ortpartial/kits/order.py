"""The order of the rows of an epoch, which every runner draws alike, in whatever language it is written."""

from __future__ import annotations

import numpy as np

__all__ = ["draw_order"]


def draw_order(seed: int, epoch: int, rows: int) -> np.ndarray:
    """Shuffle rows by Fisher and Yates, with 32-bit random numbers that need nothing but whole numbers.

    Parameters
    ----------
    seed : int
        From 0 to 2³² - 1.
    epoch : int
        The number of the epoch, from 0.
    rows : int
        The number of rows.

    Returns
    -------
    numpy.ndarray of int64

    References
    ----------
    .. [1] G. L. Steele, D. Lea, C. H. Flood, Fast splittable pseudorandom number generators, OOPSLA 2014; the constants
       of its 32-bit form are by T. Ettinger and C. Wellons, 2018.

    Examples
    --------
    >>> draw_order(0, 0, 8).tolist()
    [4, 3, 6, 1, 5, 0, 7, 2]
    """
    start = seed ^ (epoch * 0x85EBCA6B)
    z = (np.arange(1, rows, dtype=np.uint64) * np.uint64(0x9E3779B9) + np.uint64(start & 0xFFFFFFFF)).astype(np.uint32)
    z = (z ^ (z >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    z = (z ^ (z >> np.uint32(15))) * np.uint32(0x735A2D97)
    z ^= z >> np.uint32(15)
    order = np.arange(rows)
    for i, drawn in zip(range(rows - 1, 0, -1), z.tolist(), strict=True):
        j = drawn % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order
