"""
A classification beside scikit-learn's MLPClassifier
====================================================

The digits, a network 64-100-10, Adam with the same settings and initial weights: time and score of
both, in turn on one core. A first `fit` of ortpartial compiles its graph, in some tenths of a second that do not grow
with the data; a further one, by `warm_start`, only trains. The least seconds of two seeds, and the mean score. ::

    python examples/plot_benchmark_classification.py [folder for the figure] [device]
"""

import sys
import time
import warnings
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable

EPOCHS, BATCHES, DEVICE = 10, [16, 64, 256], [*sys.argv[2:], "cpu"][0]
threadpool_limits(1)
warnings.simplefilter("ignore", ConvergenceWarning)  # scikit-learn stops after the same number of epochs
X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split((X / 16).astype(np.float32), y, random_state=0)


def with_ortpartial(batch, seed):
    def layer(x, i, m, n):  # initial weights as in scikit-learn
        W, b = (np.random.default_rng([seed, i]).uniform(-1, 1, s) * (6 / (m + n)) ** 0.5 for s in ((m, n), n))
        return x @ constant(W.astype(np.float32), hint=f"W{i}") + constant(b.astype(np.float32), hint=f"b{i}")

    x = variable("x", "float32", ["N", 64])
    model = build([x], {"scores": layer(op.Relu(layer(x, 1, 64, 100)), 2, 100, 10)})
    return OrtGradientForwardBackwardOptimizer(
        model, learning_loss="softmax_cross_entropy", learning_rate="Adam", max_iter=EPOCHS,
        batch_size=batch, random_state=seed, device=DEVICE, warm_start=True)


def with_sklearn(batch, seed):
    return MLPClassifier(hidden_layer_sizes=[100], learning_rate_init=1e-3, alpha=0, max_iter=EPOCHS,
                         n_iter_no_change=EPOCHS, batch_size=batch, random_state=seed, warm_start=True)


libraries, measured = {"ortpartial": with_ortpartial, "scikit-learn": with_sklearn}, {}
print("batch  library       first fit  further fit  accuracy on test rows")
for batch in BATCHES:
    runs = {name: [] for name in libraries}
    for seed, name in product(range(2), libraries):  # in turn, so that a busy machine is one for both
        model, start = libraries[name](batch, seed), time.perf_counter()
        score, middle = model.fit(X_train, y_train).score(X_test, y_test), time.perf_counter()
        model.fit(X_train, y_train)
        runs[name].append([middle - start, time.perf_counter() - middle, score])
    for name, rows in runs.items():
        measured[name, batch] = [*np.min(rows, axis=0)[:2], np.mean(rows, axis=0)[2]]
        print("{:5}  {:12}  {:9.3f}  {:11.3f}  {:.3f}".format(batch, name, *measured[name, batch]))

if len(sys.argv) > 1 and find_spec("matplotlib"):
    import matplotlib.pyplot as plt
    plt.switch_backend("Agg")
    plt.style.use("ortpartial.figure")
    fig, axes = plt.subplots(1, 3, figsize=(10, 3.5))
    axes[1].sharey(axes[0])
    titles = (f"Seconds of a first fit, {EPOCHS} epochs", "Seconds of a further fit", "Test accuracy")
    for k, (ax, title) in enumerate(zip(axes, titles, strict=True)):
        for i, lib in enumerate(libraries):
            bars = ax.bar(np.arange(3) + 0.4 * i, [measured[lib, b][k] for b in BATCHES], 0.4, label=lib)
            ax.bar_label(bars, fmt="{:.2f}")
        ax.set(xticks=np.arange(3) + 0.2, xticklabels=BATCHES, xlabel="rows of a batch", title=title)
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    fig.savefig(Path(sys.argv[1]) / "benchmark_classification.png")
