"""The classifier: labels of every kind, class weights, several labels, probabilities."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from scipy.sparse import csr_matrix
from skl2onnx import to_onnx
from sklearn.datasets import load_iris, make_multilabel_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from ortpartial import (
    HingeLearningLoss,
    OnnxClassifier,
    SoftmaxCrossEntropyLearningLoss,
    build,
    constant,
    variable,
)
from ortpartial.exceptions import SettingError

X, Y = load_iris(return_X_y=True)
X = StandardScaler().fit_transform(X)
NAMES = np.array(["virginica", "setosa", "versicolor"])


def classifier(**settings):
    return OnnxClassifier(**{"max_iter": 20, "tol": 0, "n_iter_no_change": np.inf, "random_state": 0, **settings})


def linear(n_scores):
    x = variable("x", "float32", ["N", 4])
    return build([x], {"y": x @ constant(np.zeros((4, n_scores), np.float32), hint="w")})


pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("labels", [NAMES, np.array([5, -1, 3]), np.array([0.0, 1.0, 2.0]), NAMES.astype(object)],
                         ids=["strings", "numbers", "floats", "objects"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_labels_are_predicted_as_they_were_given(labels, n_classes):
    rows = n_classes > Y
    y = labels[Y[rows]]
    model = classifier(learning_rate_init=0.1, max_iter=40).fit(X[rows], y)
    assert model.classes_.tolist() == sorted(set(labels[:n_classes]))
    assert model.score(X[rows], y) > 0.9
    proba, scores = model.predict_proba(X[rows]), model.decision_function(X[rows])
    assert proba.shape == (rows.sum(), n_classes)
    assert scores.shape == ((rows.sum(),) if n_classes == 2 else (rows.sum(), 3))
    assert np.allclose(proba.sum(1), 1)
    assert (model.classes_[proba.argmax(1)] == model.predict(X[rows])).all()
    assert np.allclose(np.exp(model.predict_log_proba(X[rows])), proba)


def test_a_binary_model_may_have_two_scores():
    y = NAMES[np.minimum(Y, 1)]
    model = classifier(model=linear(2), learning_rate_init=0.1).fit(X, y)
    assert model.predict_proba(X).shape == (150, 2)
    assert ((model.decision_function(X) > 0) == (model.predict(X) == model.classes_[1])).all()
    assert model.score(X, y) > 0.9


@pytest.mark.filterwarnings("error::ortpartial.exceptions.ModelWarning")
@pytest.mark.parametrize("liblinear", [False, True])
def test_a_classifier_of_skl2onnx_goes_on(liblinear):
    """Its output is probabilities: of Softmax, or of two columns of Sigmoid, before which it is cut."""
    y = NAMES[np.minimum(Y, 1)] if liblinear else NAMES[Y]
    former = LogisticRegression(solver="liblinear" if liblinear else "lbfgs", max_iter=3).fit(X, y)
    onnx_model = to_onnx(former, X[:1].astype(np.float32), options={"zipmap": False})
    model = classifier(model=onnx_model, learning_rate_init=1e-9, max_iter=1).fit(X, y)
    assert np.allclose(model.predict_proba(X), former.predict_proba(X), atol=1e-5)
    model = classifier(model=onnx_model, learning_rate_init=0.05).fit(X, y)
    assert log_loss(y, model.predict_proba(X)) < 0.7 * log_loss(y, former.predict_proba(X))
    label, probabilities = ReferenceEvaluator(model.to_onnx(zipmap=False)).run(None, {"X": X.astype(np.float32)})
    assert label.tolist() == model.predict(X).tolist()
    assert np.allclose(probabilities, model.predict_proba(X), atol=1e-6)


def test_a_loss_of_probabilities_is_an_error():
    with pytest.raises(SettingError, match="is for probabilities, and a classifier trains raw scores: leave from_log"):
        classifier(model=linear(3), loss=SoftmaxCrossEntropyLearningLoss(from_logits=False)).fit(X, Y)


def test_a_model_of_too_few_scores_is_an_error():
    with pytest.raises(ValueError, match=r"labels|classes"):
        classifier(model=linear(2)).fit(X, Y)


def test_several_labels():
    A, T = make_multilabel_classification(150, n_classes=4, random_state=0)
    A = StandardScaler().fit_transform(A)
    model = classifier(max_iter=60, learning_rate_init=0.1).fit(A, T)
    proba, labels = model.predict_proba(A), model.predict(A)
    assert proba.shape == labels.shape == T.shape
    assert ((proba > 0.5) == labels).all()
    assert (labels == T).mean() > 0.8
    assert (model.fit(A, csr_matrix(T)).predict(A) == labels).all()
    weighted = classifier(class_weight=[{0: 1, 1: 5}] * 4, max_iter=60).fit(A, T)
    assert weighted.predict(A).shape == T.shape


def test_class_weights_are_sample_weights():
    weights = np.array([1.0, 5.0, 0.2])
    by_class = classifier(class_weight=dict(enumerate(weights))).fit(X, Y)
    assert np.allclose(by_class.coefs_[0], classifier().fit(X, Y, weights[Y]).coefs_[0])
    few = np.r_[:50, 50:60]
    balanced = classifier(class_weight="balanced").fit(X[few], Y[few])
    assert np.allclose(balanced.coefs_[0], classifier().fit(X[few], Y[few], np.where(Y[few], 3.0, 0.6)).coefs_[0])


def test_it_converges_to_the_optimum():
    """Without noise, both minimize the same function: the mean of the log loss and ½ alpha Σw² over all rows."""
    y = (Y == 1).astype(int)
    ours = classifier(max_iter=1000, alpha=1.0, learning_rate_init=0.02, n_iter_no_change=np.inf).fit(X, y)
    theirs = LogisticRegression(C=1.0, tol=1e-8).fit(X, y)
    assert np.allclose(ours.coefs_[0].T, theirs.coef_, atol=1e-3)
    assert np.allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-3)


@pytest.mark.parametrize("loss", ["hinge", HingeLearningLoss(), "squared_error", lambda y, t: (y - t) ** 2])
def test_other_losses_have_no_probabilities(loss):
    for rows in (Y < 2, Y < 3):
        model = classifier(loss=loss, learning_rate_init=0.05, max_iter=40).fit(X[rows], NAMES[Y[rows]])
        assert model.score(X[rows], NAMES[Y[rows]]) > 0.75
        assert not hasattr(model, "predict_proba")
        if rows.sum() == 100:
            assert ((model.decision_function(X) > 0) == (model.predict(X) == model.classes_[1])).all()


def test_partial_fit():
    whole, parts = classifier(max_iter=3), classifier()
    whole.fit(X, NAMES[Y])
    for _ in range(3):
        parts.partial_fit(X, NAMES[Y], classes=NAMES)
    assert np.array_equal(whole.coefs_[0], parts.coefs_[0])
    assert parts.n_iter_ == 1
    assert len(parts.loss_curve_) == 3
    parts.partial_fit(X[:50], NAMES[Y[:50]])  # of one class
    with pytest.raises(ValueError, match="'rose'"):
        parts.partial_fit(X[:2], ["rose", "setosa"])
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        classifier().partial_fit(X, Y)
    with pytest.raises(ValueError, match="partial_fit does not support early_stopping"):
        classifier(early_stopping=True).partial_fit(X, Y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match=r"'balanced' is not supported for partial_fit.*class_weight=dict\(zip\("):
        classifier(class_weight="balanced").partial_fit(X, Y, classes=[0, 1, 2])


def test_rows_that_were_seen():
    model = classifier(max_iter=3, warm_start=True).fit(X, Y)
    assert model.t_ == 450
    assert model.fit(X, Y).t_ == 900
    assert model.partial_fit(X[:10], Y[:10]).t_ == 910
    assert classifier(max_iter=3).fit(X, Y).fit(X[:100], Y[:100]).t_ == 300


def test_early_stopping_with_weights_and_labels():
    weight = np.ones(150)
    settings = {"early_stopping": True, "max_iter": 5}
    weighted, plain = classifier(**settings).fit(X, NAMES[Y], weight), classifier(**settings).fit(X, NAMES[Y])
    assert np.array_equal(weighted.coefs_[0], plain.coefs_[0])
    with pytest.raises(ValueError, match="sample weights for validation set are all zero"):
        classifier(**settings).fit(X, Y, weight * (np.arange(150) == np.argmax(Y)))
    with pytest.raises(ValueError, match=r"only 1 member|'rose'"):
        classifier(**settings).fit(X[:51], ["rose"] + ["setosa"] * 50)


def test_targets_that_are_refused():
    with pytest.raises(ValueError, match="The number of classes has to be greater than one; got 1 class"):
        classifier().fit(X, np.zeros(150))
    with pytest.raises(ValueError, match="MultiOutputClassifier"):
        classifier().fit(X, np.column_stack([Y, Y]))
    with pytest.raises(ValueError, match="Unknown label type"):
        classifier().fit(X, np.linspace(0, 1, 150))
