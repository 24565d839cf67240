"""The rule that ends a training, and early stopping."""

import warnings

import numpy as np
import pytest
from models import data, mlp
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from ortpartial import (
    Checkpoint,
    ElasticLearningLoss,
    LearningRateSGD,
    OnnxClassifier,
    OnnxRegressor,
    ReduceOnPlateauSchedule,
)
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.callbacks import ReduceOnPlateau
from ortpartial.estimator.sklearn.stopping import StoppingRule

X, Y = load_breast_cancer(return_X_y=True)
X = StandardScaler().fit_transform(X)


@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_training_ends_as_those_of_scikit_learn_do(early_stopping):
    settings = {"hidden_layer_sizes": (10,), "learning_rate_init": 0.01, "tol": 1e-3, "random_state": 0,
                "early_stopping": early_stopping, "n_iter_no_change": 5}
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        ours, theirs = OnnxClassifier(**settings).fit(X, Y), MLPClassifier(**settings).fit(X, Y)
    assert abs(ours.n_iter_ - theirs.n_iter_) <= max(3, 0.1 * theirs.n_iter_)
    assert len(ours.loss_curve_) == ours.n_iter_
    assert ours.loss_ == ours.loss_curve_[-1]
    if early_stopping:
        assert len(ours.validation_scores_) == ours.n_iter_
        assert ours.best_validation_score_ == max(ours.validation_scores_) == theirs.best_validation_score_
        assert ours.best_loss_ is None
    else:
        assert ours.best_loss_ == min(ours.loss_curve_)
        assert ours.validation_scores_ is ours.best_validation_score_ is None


def test_early_stopping_keeps_the_best_weights():
    """The validation data are those of scikit-learn, whose random numbers are drawn in the same order."""
    seen = []
    model = OnnxRegressor(loss=ElasticLearningLoss(0, 0.5), hidden_layer_sizes=(5,), early_stopping=True,
                          learning_rate_init=0.3, max_iter=30, tol=0, n_iter_no_change=40, random_state=0,
                          callbacks=[lambda o: seen.append(o.get_state())])
    with pytest.warns(ConvergenceWarning):
        model.fit(X, Y)
    best = int(np.argmax(model.validation_scores_))
    assert best < len(seen) - 1
    assert all(np.array_equal(a, b) for a, b in zip(model.optimizer_.get_state(), seen[best], strict=True))
    assert model.best_validation_score_ == model.validation_scores_[best]


def test_a_training_that_does_not_converge_warns():
    with pytest.warns(ConvergenceWarning, match="reached max_iter=2 epochs"):
        OnnxClassifier(max_iter=2, tol=0).fit(X, Y)


def test_too_few_rows_to_validate_on():
    with pytest.raises(ValueError, match="The validation set is too small"):
        OnnxRegressor(early_stopping=True, validation_fraction=0.05).fit(X[:10], Y[:10])


def test_the_averages_of_the_best_epoch_come_back():
    """With its weights, as the score is that of the averages."""
    rows, targets, _ = data(50)
    seen = []

    def score(o):
        seen.append(o.predict(rows))
        return -o.n_iter_

    rule = StoppingRule(0.0, 2, score)
    o = Optimizer(mlp(), learning_rate="Adam", averaging="ema", use_average=True, random_state=0, callbacks=[rule])
    o.fit(rows, targets)
    assert o.n_iter_ == 4
    assert not np.array_equal(o.predict(rows), seen[0])
    rule.restore(o)
    np.testing.assert_array_equal(o.predict(rows), seen[0])


@pytest.mark.parametrize("settings", [{"early_stopping": True, "n_iter_no_change": 5, "tol": 0.01}, {}])
def test_a_fit_that_was_cut_off_goes_on(tmp_path, settings):
    settings = {"hidden_layer_sizes": (4,), "max_iter": 12, "random_state": 0, "learning_rate_init": 0.01, **settings}

    def cut(optimizer):
        if optimizer.n_iter_ == 7:
            raise KeyboardInterrupt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        whole = OnnxClassifier(**settings).fit(X, Y)
        with pytest.raises(KeyboardInterrupt):
            OnnxClassifier(**settings, callbacks=[cut, Checkpoint(tmp_path)]).fit(X, Y, resume=tmp_path)
        resumed = OnnxClassifier(**settings, callbacks=[Checkpoint(tmp_path)]).fit(X, Y, resume=tmp_path)
    assert resumed.loss_curve_ == whole.loss_curve_
    assert resumed.n_iter_ == whole.n_iter_ > 7
    assert resumed.validation_scores_ == whole.validation_scores_
    assert (resumed.best_loss_, resumed.best_validation_score_) == (whole.best_loss_, whole.best_validation_score_)
    assert all(map(np.array_equal, resumed.coefs_, whole.coefs_))


def test_rows_held_out_are_the_same_after_a_resume(tmp_path):
    with pytest.raises(ValueError, match=r"^resume and early_stopping=True need a random_state, as the rows"):
        OnnxClassifier(early_stopping=True).fit(X, Y, resume=tmp_path)


def test_a_step_size_that_is_reduced_is_given_its_epochs():
    """As scikit-learn's "adaptive": a training ends where no smaller step helps, and not before the first reduction."""
    rows, targets, _ = data(50)
    plateau = ReduceOnPlateauSchedule(factor=0.2, patience=3)
    callback = ReduceOnPlateau("loss", factor=0.2, patience=3, threshold_mode="abs")
    fits = [OnnxRegressor(mlp(), learning_rate=LearningRateSGD(0.1, schedule=schedule), batch_size=10, max_iter=500,
                          n_iter_no_change=3, random_state=0, callbacks=callbacks).fit(rows, np.ravel(targets))
            for schedule, callbacks in (("constant", ()), (plateau, ()), ("constant", [callback]))]
    constant, adaptive, by_callback = (m.n_iter_ for m in fits)
    assert constant < by_callback < 500
    assert len(callback.reductions_) > 3
    assert constant < adaptive < 500
    rates = [record["learning_rate"] for record in fits[1].history_]
    assert len({*rates}) > 3
    assert rates[-1] < 1e-6
    assert len(set(rates[-4:])) == 1, "the last step size is given n_iter_no_change epochs"
    assert fits[1].loss_ < fits[0].loss_
