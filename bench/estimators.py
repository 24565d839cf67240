"""
Time of a fit of OnnxClassifier and OnnxRegressor beside scikit-learn's MLPClassifier and MLPRegressor.

    OMP_NUM_THREADS=1 python bench/estimators.py [rounds, 5] [rows, 2048]

Both have the same settings, data and first weights, and take turns in one process; a fit is everything
between the constructor and the last weight: validation of the data, the graph and its compilation in the first round,
which later ones share, as the fits of a grid search do. Milliseconds are those of the fastest round after the first,
which is listed apart, as other programs disturb. A ratio above 1 says that ours is faster.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor

from ortpartial import OnnxClassifier, OnnxRegressor

#: Rows of a batch, and epochs.
BATCHES = {1: 1, 10: 5, 32: 10, 200: 20, 1024: 40}
FEATURES = 20


def make_rows(rows: int, is_class: bool, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and a target that is no linear function of them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, FEATURES))
    y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
    return X.astype(dtype), (y > 0).astype(int) if is_class else y.astype(dtype)


def measure(fit: Callable[[], Any]) -> float:
    """Milliseconds of a call."""
    start = time.perf_counter()
    fit()
    return (time.perf_counter() - start) * 1e3


def compare(ours: type, theirs: type, dtype: str, batch_size: int, rounds: int, rows: int) -> tuple[float, ...]:
    """Milliseconds of theirs and ours, and of our first fit; and the scores of both."""
    X, y = make_rows(rows, ours is OnnxClassifier, dtype)
    settings = {"hidden_layer_sizes": (100,), "batch_size": batch_size, "max_iter": BATCHES[batch_size], "tol": 0,
                "n_iter_no_change": 1000, "learning_rate_init": 1e-3, "random_state": 0}
    times: dict[type, list[float]] = {theirs: [], ours: []}
    for _ in range(rounds + 1):
        for cls, measured in times.items():
            measured.append(measure(lambda cls=cls: cls(**settings).fit(X, y)))
    scores = (cls(**settings).fit(X, y).score(X, y) for cls in times)
    return (*(min(t[1:]) for t in times.values()), times[ours][0], *scores)


def main(rounds: int = 5, rows: int = 2048) -> None:
    warnings.simplefilter("ignore", ConvergenceWarning)
    print(f"{rows} rows of {FEATURES} features, 100 hidden units, Adam; milliseconds of a fit")
    print(f"{'':10} {'dtype':8} {'batch':>6} {'epochs':>6} {'MLP':>9} {'ours':>9} {'first':>9} {'ratio':>6}   scores")
    for ours, theirs in ((OnnxClassifier, MLPClassifier), (OnnxRegressor, MLPRegressor)):
        for dtype in ("float64", "float32"):
            for batch_size, epochs in BATCHES.items():
                their_ms, our_ms, first, their_score, our_score = compare(ours, theirs, dtype, batch_size, rounds, rows)
                print(f"{ours.__name__[4:]:10} {dtype:8} {batch_size:6} {epochs:6} {their_ms:9.1f} {our_ms:9.1f} "
                      f"{first:9.1f} {their_ms / our_ms:6.2f}   {their_score:.3f} {our_score:.3f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
