"""
Time of a fit of OnnxClassifier and OnnxRegressor beside scikit-learn's MLPClassifier and MLPRegressor.

    OMP_NUM_THREADS=1 python bench/estimators.py [rounds, 5] [rows, 2048]

Both have the same settings, data and first weights, and take turns in one process; a fit is everything
between the constructor and the last weight: validation of the data, the graph and its compilation in the first round,
which later ones share, as the fits of a grid search do. Milliseconds are those of the fastest round after the first,
which is listed apart, as other programs disturb. A ratio above 1 says that ours is faster.

    OMP_NUM_THREADS=1 python bench/estimators.py validation [rounds, 12]

By how much validation after every epoch, on a fifth as many rows, makes an epoch of 320 rows in batches of 32 longer:
in microseconds of CPU time, the least of all rounds in turn, and as a share of an epoch without. "forward" is a single
call of onnxruntime on these rows, which no validation can be faster than; by arithmetic it is a fifteenth of an epoch
of large products, as a step has three times the operations of a forward pass.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from onnx import ModelProto
from onnxruntime import InferenceSession, OrtValue
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor

from ortpartial import EarlyStopping, OnnxClassifier, OnnxRegressor, OrtGradientForwardBackwardOptimizer
from ortpartial.estimator.sklearn.networks import build_network

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


def time_forward(model: ModelProto, rows: np.ndarray) -> float:
    """Microseconds of a call of onnxruntime on rows that are bound."""
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_ortvalue_input(session.get_inputs()[0].name, OrtValue.ortvalue_from_numpy(rows))
    output = np.empty(session.run(None, {session.get_inputs()[0].name: rows})[0].shape, np.float32)
    binding.bind_ortvalue_output(session.get_outputs()[0].name, OrtValue.ortvalue_from_numpy(output))
    times = []
    for _ in range(20):
        start = time.process_time()
        for _ in range(100):
            session.run_with_iobinding(binding)
        times.append(time.process_time() - start)
    return min(times) / 100 * 1e6


def list_validations(hidden: tuple[int, ...], engine: str, epochs: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Fits of a network without validation, and with it in several forms."""
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(384, FEATURES)).astype(np.float32), rng.integers(0, 3, 384)
    model = build_network([FEATURES, *hidden, 3], np.random.RandomState(0))
    settings = {"learning_loss": "softmax_cross_entropy", "learning_rate": 1e-4, "max_iter": epochs, "batch_size": 32}
    held_out = {"X_val": X[320:], "y_val": labels[320:]}
    for name, further, validation in (
            ("none", {}, {}), ("X_val", {}, held_out), ("metrics", {"metrics": ["accuracy"]}, held_out),
            ("EarlyStopping", {"callbacks": [EarlyStopping(patience=epochs)]}, held_out)):
        optimizer = OrtGradientForwardBackwardOptimizer(model, engine=engine, random_state=0, **settings, **further)
        yield name, partial(optimizer.fit, X[:320], labels[:320], **validation)
    yield "forward", lambda: time_forward(optimizer.get_trained_onnx(), X[320:])
    stopping = {"early_stopping": True, "validation_fraction": 64 / 384, "n_iter_no_change": epochs}
    for name, further, rows in (("classifier", {"n_iter_no_change": epochs}, 320), ("early_stopping", stopping, 384)):
        classifier = OnnxClassifier(hidden_layer_sizes=hidden, engine=engine, max_iter=epochs, batch_size=32, tol=0,
                                    random_state=0, **further)
        yield name, partial(classifier.fit, X[:rows], labels[:rows])


def measure_validation(rounds: int = 12, epochs: int = 200) -> None:
    """Print what validation costs in several forms."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    for hidden in ((), (100,), (512, 512)):
        for engine in ("auto", "epoch", "step", "native"):
            count = epochs if len(hidden) < 2 else 5
            fits, times = dict(list_validations(hidden, engine, count)), {}
            forward = fits.pop("forward")
            for _ in range(rounds + 1):
                for name, fit in fits.items():
                    start = time.process_time()
                    fit()
                    times.setdefault(name, []).append((time.process_time() - start) / count * 1e6)
            least = {name: min(each[1:]) for name, each in times.items()}
            bases = {name: "classifier" if name == "early_stopping" else "none" for name in least}
            text = [f"{name} +{us - least[bases[name]]:.0f} ({us / least[bases[name]] - 1:.1%})"
                    for name, us in least.items() if name not in ("none", "classifier")]
            layers = "-".join(map(str, (FEATURES, *hidden, 3)))
            print(f"{layers:14} {engine:7} epoch {least['none']:.0f}  forward {forward():.0f}  {'  '.join(text)}",
                  flush=True)


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
    if sys.argv[1:2] == ["validation"]:
        measure_validation(*map(int, sys.argv[2:]))
    else:
        main(*map(int, sys.argv[1:]))
