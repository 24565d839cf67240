"""The checks of scikit-learn for estimators, which ours pass as its own perceptrons do."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from ortpartial import OnnxClassifier, OnnxRegressor

# None is expected to fail, neither here nor for MLPClassifier and MLPRegressor.
ESTIMATORS = [
    OnnxClassifier(max_iter=60),
    OnnxClassifier(hidden_layer_sizes=(20,), learning_rate_init=0.01, max_iter=30),
    OnnxRegressor(max_iter=60),
    OnnxRegressor(hidden_layer_sizes=(20,), learning_rate_init=0.01, max_iter=30),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore:.*:UserWarning",
                            "ignore::FutureWarning")
@parametrize_with_checks(ESTIMATORS)
def test_an_estimator_is_one_of_scikit_learn(estimator, check):
    check(estimator)
