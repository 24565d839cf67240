"""Scores become labels and probabilities as the loss says, and metrics of batches equal the metrics of all rows."""


import numpy as np
import pytest
import sklearn.metrics as theirs
from scipy.special import expit, softmax

from ortpartial.exceptions import DataError, SettingError
from ortpartial.learning import (
    HingeLearningLoss,
    Meter,
    Metric,
    NegLogLearningLoss,
    NextTokenLearningLoss,
    PoissonLearningLoss,
    Prediction,
    SoftmaxCrossEntropyLearningLoss,
    SquareLearningLoss,
    guess_loss,
    resolve_metric,
)

N = 40


def measure(names, *predictions, output="y"):
    meter = Meter([resolve_metric(n) for n in names])
    for prediction in predictions:
        meter.add(output, prediction)
    return meter.read()


@pytest.mark.parametrize("from_logits", [True, False])
def test_classes(rng, from_logits):
    z, t, w = rng.normal(size=(N, 5)), rng.integers(0, 5, N), rng.uniform(0.1, 2, N)
    p = softmax(z, axis=1)
    prediction = Prediction(z if from_logits else p, t, w, SoftmaxCrossEntropyLearningLoss(from_logits=from_logits))
    costs = theirs.log_loss(t, p, sample_weight=w)
    expected = {"accuracy": theirs.accuracy_score(t, p.argmax(1), sample_weight=w), "log_loss": costs,
                "perplexity": np.exp(costs), "roc_auc": theirs.roc_auc_score(t, p, multi_class="ovr", sample_weight=w),
                "top_2_accuracy": theirs.top_k_accuracy_score(t, p, k=2, sample_weight=w)}
    numbers = measure(expected, prediction)
    assert numbers.keys() == expected.keys()
    np.testing.assert_allclose([*numbers.values()], [*expected.values()], rtol=1e-10)


def test_equal_scores_are_ranked_as_in_scikit_learn(rng):
    z, t = rng.integers(0, 3, (N, 5)).astype(float), rng.integers(0, 5, N)
    t[:5] = np.arange(5)
    numbers = measure(["top_1_accuracy", "top_3_accuracy"], Prediction(z, t, None, SoftmaxCrossEntropyLearningLoss()))
    assert [*numbers.values()] == [theirs.top_k_accuracy_score(t, z, k=k) for k in (1, 3)]


@pytest.mark.parametrize("shape", [(N,), (N, 1), (N, 3)])
@pytest.mark.parametrize("from_logits", [True, False])
def test_single_scores(rng, shape, from_logits):
    """A threshold of 0 for raw scores, and of ½ for probabilities."""
    z, t, w = rng.normal(size=shape), rng.integers(0, 2, shape), rng.uniform(0.1, 2, N)
    p = expit(z)
    prediction = Prediction(z if from_logits else p, t.astype(np.float32), w,
                            NegLogLearningLoss(from_logits=from_logits))
    flat = t if t.ndim == 2 and t.shape[1] > 1 else t.ravel(), (p > 0.5).reshape(t.shape)
    y = flat[1] if flat[0].ndim == 2 else flat[1].ravel()
    expected = {"f1_macro": theirs.f1_score(flat[0], y, average="macro", sample_weight=w),
                "accuracy": np.average((t == (p > 0.5)).reshape(N, -1).mean(1), weights=w),
                "log_loss": np.average(-np.log(np.where(t, p, 1 - p)).reshape(N, -1).mean(1), weights=w),
                "roc_auc": theirs.roc_auc_score(flat[0], p if flat[0].ndim == 2 else p.ravel(), sample_weight=w)}
    np.testing.assert_allclose([*measure(expected, prediction).values()], [*expected.values()], rtol=1e-7)


def test_batches_are_as_one(rng):
    z, t = rng.normal(size=(N, 4)), rng.integers(0, 4, N)
    names = ["accuracy", "f1_macro", "log_loss", "roc_auc", "top_2_accuracy"]
    loss = SoftmaxCrossEntropyLearningLoss()
    parts = [Prediction(z[i : i + 7], t[i : i + 7], None, loss) for i in range(0, N, 7)]
    whole = measure(names, Prediction(z, t, None, loss))
    np.testing.assert_allclose([*measure(names, *parts).values()], [*whole.values()], rtol=1e-12)


@pytest.mark.parametrize("axis", [1, -1])
def test_labels_that_do_not_count(rng, axis):
    """Tokens or pixels of a weight of 0 are left out, of batches of several lengths as well."""
    z, t = rng.normal(size=(6, 5, 3)), rng.integers(0, 3, (6, 5))
    w = rng.integers(0, 2, (6, 5)).astype(float)
    t[w == 0] = -100
    loss = SoftmaxCrossEntropyLearningLoss(axis)
    y = np.moveaxis(z, -1, axis)
    parts = [Prediction(y[:2], t[:2], w[:2], loss),
             Prediction(y[2:, ..., :4] if axis == 1 else y[2:, :4], t[2:, :4], w[2:, :4], loss)]
    kept = w.astype(bool)
    kept[2:, 4:] = False
    expected = {"accuracy": theirs.accuracy_score(t[kept], z[kept].argmax(-1)),
                "log_loss": theirs.log_loss(t[kept], softmax(z[kept], axis=-1), labels=[0, 1, 2])}
    np.testing.assert_allclose([*measure(expected, *parts).values()], [*expected.values()], rtol=1e-10)


def test_next_tokens(rng):
    """A token is predicted by the logits of the one before it."""
    z, t = rng.normal(size=(3, 6, 4)), rng.integers(0, 4, (3, 6))
    loss = NextTokenLearningLoss()
    w = (~loss.find_ignored(t)).astype(float)
    expected = theirs.log_loss(t[:, 1:].ravel(), softmax(z[:, :-1], axis=-1).reshape(-1, 4), labels=range(4))
    numbers = measure(["perplexity", "accuracy"], Prediction(z, t, w, loss))
    assert np.isclose(numbers["perplexity"], np.exp(expected))
    assert np.isclose(numbers["accuracy"], (z.argmax(-1)[:, :-1] == t[:, 1:]).mean())


def test_quantities(rng):
    """Those of a Poisson loss are the means, exp(y)."""
    y, t = rng.normal(size=(N, 1)), rng.poisson(2.0, (N, 1)).astype(float)
    assert np.isclose(measure(["mae"], Prediction(y, t, None, PoissonLearningLoss()))["mae"],
                      theirs.mean_absolute_error(t, np.exp(y)))


def test_functions(rng):
    """A function is given labels where the loss has some, else quantities, or what its metric says."""
    z, t = rng.normal(size=(N, 3)), rng.integers(0, 3, N)
    prediction = Prediction(z, t, None, SoftmaxCrossEntropyLearningLoss())
    given = {}
    metrics = [Metric(lambda t, y, of=of: given.setdefault(of, y).size, of, of) for of in
               ("prediction", "probabilities", "costs", "ranks", "output")]
    meter = Meter([resolve_metric(theirs.matthews_corrcoef), *metrics])
    meter.add("y", prediction)
    assert meter.read()["matthews_corrcoef"] == theirs.matthews_corrcoef(t, z.argmax(1))
    assert {of: y.shape for of, y in given.items()} == {
        "prediction": (N,), "probabilities": (N, 3), "costs": (N,), "ranks": (N,), "output": (N, 3)}
    assert measure([theirs.max_error], Prediction(z[:, :1], z[:, 1:2], None, SquareLearningLoss()))[
        "max_error"] == theirs.max_error(z[:, 1], z[:, 0])


def test_several_outputs(rng):
    meter = Meter([resolve_metric("mse")])
    for name in "ab":
        meter.add(name, Prediction(np.ones((2, 1)), np.zeros((2, 1)), None, SquareLearningLoss()))
    assert meter.read() == {"a_mse": 1.0, "b_mse": 1.0}


def test_nothing_counts():
    assert np.isnan(measure(["accuracy"], Prediction(np.ones((2, 2)), np.zeros(2, int), np.zeros(2),
                                                     SoftmaxCrossEntropyLearningLoss()))["accuracy"])


@pytest.mark.parametrize(("name", "loss", "message"), [
    ("accuracy", SquareLearningLoss(), "'accuracy' cannot be computed of the output 'y': SquareLearningLoss learns "
                                       "quantities"),
    ("r2", NegLogLearningLoss(), "NegLogLearningLoss learns labels, and the metric compares quantities"),
    ("log_loss", HingeLearningLoss(), "HingeLearningLoss has no probabilities"),
    ("log_loss", SquareLearningLoss(), "SquareLearningLoss has no probabilities"),
    ("top_5_accuracy", NegLogLearningLoss(), "NegLogLearningLoss has no scores of several classes"),
])
def test_unlike_losses(name, loss, message):
    with pytest.raises(SettingError, match=message):
        measure([name], Prediction(np.ones((2, 1)), np.zeros((2, 1)), None, loss))


def test_batches_of_unlike_shapes():
    parts = [Prediction(np.ones((2, n)), np.zeros((2, n)), None, SquareLearningLoss()) for n in (2, 3)]
    with pytest.raises(DataError, match=r"rows of 'y' have the shapes \(2,\) and \(3,\) in different batches"):
        measure(["mse"], *parts)


@pytest.mark.parametrize(("output", "target", "expected"), [
    (np.zeros((4, 3)), np.zeros(4, int), SoftmaxCrossEntropyLearningLoss(1, None)),
    (np.zeros((4, 3, 5)), np.zeros((4, 5), int), SoftmaxCrossEntropyLearningLoss(1, None)),
    (np.zeros((4, 3, 5)), np.zeros((4, 3), int), SoftmaxCrossEntropyLearningLoss(-1, None)),
    (np.zeros((4, 1)), np.zeros(4, int), NegLogLearningLoss()),
    (np.zeros((4, 1)), np.zeros(4), SquareLearningLoss()),
    (np.zeros((4, 3)), np.zeros(4), None),
])
def test_guesses(output, target, expected):
    if output.shape == (4, 1) and target.dtype.kind == "i":
        target = target[:, None]
    assert guess_loss(output, target) == expected
