"""
A demonstration in a few seconds: four trainings on real data, each beside scikit-learn on the same split.

    make demo        or        python examples/demo.py [folder, by default demo_output]

The trained models (ONNX) and a figure of the losses (PNG) are written into the folder.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from skl2onnx import to_onnx
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import MaxAbsScaler, StandardScaler

from ortpartial import OrtGradientForwardBackwardOptimizer, __version__, build, constant, op, variable
from ortpartial.learning_loss import SoftmaxCrossEntropyLearningLoss
from ortpartial.learning_penalty import ElasticLearningPenalty
from ortpartial.learning_rate import LearningRateAdam, LearningRateSGDNesterov
from ortpartial.runtime import has_training, runtime_version


@dataclass
class Result:
    """One training: the model, its scores before and after, and the score of scikit-learn."""

    name: str
    origin: str
    metric: str
    optimizer: OrtGradientForwardBackwardOptimizer
    before: float
    after: float
    sklearn: float | None
    sklearn_loss: float | None
    seconds: float
    note: str = ""


def trained(name, origin, metric, optimizer, train, test, sklearn=None, sklearn_loss=None):
    """Fit an optimizer and score it on unseen rows."""
    before, start = optimizer.score(*test), time.perf_counter()
    optimizer.fit(*train, X_val=test[0], y_val=test[1])
    seconds = time.perf_counter() - start
    return Result(name, origin, metric, optimizer, before, optimizer.score(*test), sklearn, sklearn_loss, seconds)


def split(load, scaler):
    """Training and test rows of a data set, scaled by the mean and deviation of the training rows."""
    X_train, X_test, y_train, y_test = train_test_split(*load(return_X_y=True), test_size=0.25, random_state=0)
    X_train, X_test = scaler.fit_transform(X_train), scaler.transform(X_test)
    return (X_train.astype(np.float32), y_train), (X_test.astype(np.float32), y_test)


def started_anew(model, rng):
    """A converted model with small random weights in place of those of scikit-learn."""
    fresh = onnx.ModelProto()
    fresh.CopyFrom(model)
    for tensor in fresh.graph.initializer:
        if tensor.name in ("coef", "intercept"):
            noise = rng.normal(scale=0.01, size=tuple(tensor.dims)).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(noise, tensor.name))
    return fresh


def linear_regression(rng):
    """A LinearRegression converted by skl2onnx; `black_op` makes it MatMul and Add, whose weights are initializers."""
    train, test = split(load_diabetes, StandardScaler())
    sklearn = LinearRegression().fit(*train)
    model = started_anew(to_onnx(sklearn, train[0][:1], black_op={"LinearRegressor"}), rng)
    # The agent where onnxruntime-training is installed; the step engine computes the same numbers.
    optimizer = OrtGradientForwardBackwardOptimizer(
        model, ["coef", "intercept"], learning_rate=LearningRateSGDNesterov(0.02, schedule="invscaling"),
        max_iter=40, validation_every=1, engine="agent" if has_training() else "step", random_state=0)
    predicted = sklearn.predict(test[0])
    score, loss = sklearn.score(*test), mean_squared_error(test[1], predicted)
    result = trained("diabetes: linear", "skl2onnx", "R²", optimizer, train, test, score, loss)
    gap = np.abs(optimizer.predict(test[0])[:, 0] - predicted).mean() / test[1].std()
    result.note = f"predictions are {gap:.1%} of the target's standard deviation away from scikit-learn's"
    return result


def logistic_regression(rng):
    """A LogisticRegression converted by skl2onnx, with raw scores, as the loss includes the softmax."""
    train, test = split(load_breast_cancer, StandardScaler())
    sklearn = LogisticRegression().fit(*train)
    model = to_onnx(sklearn, train[0][:1], black_op={"LinearClassifier"}, options={"zipmap": False, "raw_scores": True})
    # The model has two outputs, labels and scores; the scores are trained.
    optimizer = OrtGradientForwardBackwardOptimizer(
        started_anew(model, rng), ["coef", "intercept"],
        learning_loss={"probabilities": SoftmaxCrossEntropyLearningLoss()},
        learning_rate=0.05, learning_penalty=ElasticLearningPenalty(l2=1e-3),
        max_iter=40, validation_every=1, random_state=0)
    score, loss = sklearn.score(*test), log_loss(test[1], sklearn.predict_proba(test[0]))
    train, test = ((X, {"probabilities": y}) for X, y in (train, test))
    result = trained("breast cancer: logistic", "skl2onnx", "accuracy", optimizer, train, test, score, loss)
    result.note = "one of two outputs is trained, with an l2 penalty as scikit-learn has one"
    return result


def network(rng):
    """64 pixels - 64 Relu - 10 scores, written as a formula and trained with Adam."""
    train, test = split(load_digits, MaxAbsScaler())

    def weight(name, *shape):
        return constant(rng.normal(scale=shape[0] ** -0.5, size=shape).astype(np.float32), hint=name)

    x = variable("pixels", "float32", ["N", 64])
    hidden = op.Relu(x @ weight("W1", 64, 64) + weight("b1", 64))
    model = build([x], {"scores": hidden @ weight("W2", 64, 10) + weight("b2", 10)})
    optimizer = OrtGradientForwardBackwardOptimizer(
        model, learning_loss="softmax_cross_entropy", learning_rate=LearningRateAdam(3e-3),
        max_iter=25, batch_size=32, validation_every=1, random_state=0)
    sklearn = MLPClassifier([64], learning_rate_init=3e-3, batch_size=32, tol=1e-3, n_iter_no_change=5, random_state=0)
    score, loss = sklearn.fit(*train).score(*test), log_loss(test[1], sklearn.predict_proba(test[0]))
    result = trained("digits: 64-64-10", "notation", "accuracy", optimizer, train, test, score, loss)
    result.note = f"scikit-learn's MLPClassifier took {sklearn.n_iter_} epochs"
    return result


def part_of_a_network(model):
    """On negatives of the images the network only guesses; training its first layer alone repairs it."""
    train, test = (((1 - X), y) for X, y in split(load_digits, MaxAbsScaler()))
    optimizer = OrtGradientForwardBackwardOptimizer(
        model, ["W1", "b1"], learning_loss="softmax_cross_entropy", learning_rate=LearningRateAdam(3e-3),
        max_iter=60, batch_size=32, validation_every=1, random_state=0)
    result = trained("negatives: layer 1 only", "saved ONNX", "accuracy", optimizer, train, test)
    old, new = ({t.name: t.raw_data for t in m.graph.initializer} for m in (model, optimizer.get_trained_onnx()))
    kept = [name for name in old if old[name] == new[name]]
    result.note = f"{' and '.join(kept)} did not change by a bit; scikit-learn trains all weights or none"
    return result


def table(results):
    """The results, one line each."""
    rows = [["", "made by", "engine", "weights", "epochs", "seconds", "score", "before", "after", "scikit-learn"]]
    for r in results:
        o = r.optimizer
        scores = ("-" if s is None else f"{s:.3f}" for s in (r.before, r.after, r.sklearn))
        rows.append([r.name, r.origin, o.engine_, " ".join(o.weights_to_train), str(o.n_iter_), f"{r.seconds:.2f}",
                     r.metric, *scores])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [f"{{:{side}{width}}}" for side, width in zip("<<<<>><>>>", widths, strict=True)]
    lines = ["  ".join(cells).format(*row).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


LOSSES = {"R²": "square error", "accuracy": "cross-entropy"}


def draw(results, path):
    """The loss of every epoch, beginning with what other libraries do not do: a part of a network, repaired."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator

    plt.style.use("ortpartial.figure")
    fig, axes = plt.subplots(2, 2, figsize=(9, 6.5))
    for ax, r in zip(axes.flat, reversed(results), strict=True):
        epochs = np.arange(1, r.optimizer.n_iter_ + 1)
        ax.semilogy(epochs, r.optimizer.train_losses_, color="C1", label="training rows")
        ax.semilogy(epochs, r.optimizer.validation_losses_, color="C0", label="test rows")
        if r.sklearn_loss is not None:
            ax.axhline(r.sklearn_loss, color="C3", linestyle="--", label="test rows, scikit-learn")
        beside = f", scikit-learn {r.sklearn:.3f}" if r.sklearn is not None else ""
        ax.set(title=r.name[0].upper() + r.name[1:], xlabel="epoch", ylabel=LOSSES[r.metric], xlim=(1, None))
        ax.yaxis.set(major_locator=LogLocator(subs=[1, 2, 3, 5, 7]), major_formatter="{x:g}",
                     minor_locator=NullLocator())
        ax.legend(loc="upper right", title=f"{r.metric} {r.before:.3f} → {r.after:.3f}{beside}\n"
                                           f"in {r.seconds:.2f} seconds", alignment="right")
    fig.savefig(path)
    plt.close(fig)


def main(folder="demo_output"):
    rng, start = np.random.default_rng(0), time.perf_counter()
    results = [linear_regression(rng), logistic_regression(rng), network(rng)]
    results.append(part_of_a_network(results[-1].optimizer.get_trained_onnx()))

    build_name = "onnxruntime-training" if has_training() else "onnxruntime"
    print(f"ortpartial {__version__} on {build_name} {runtime_version()}; scores are of test rows\n")
    print(table(results) + "\n")
    for r in results:
        print(f"  {r.name}: {r.note}")

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for r, name in zip(results, ["linear", "logistic", "digits", "digits_negative"], strict=True):
        written.append(folder / f"{name}.onnx")
        onnx.save(r.optimizer.get_trained_onnx(), written[-1])
    written.append(folder / "losses.png")
    draw(results, written[-1])
    print(f"\nWritten to {folder}: {', '.join(p.name for p in written)}")
    print(f"{time.perf_counter() - start:.1f} s in all")


if __name__ == "__main__":
    main(*sys.argv[1:])
