"""The checks of scikit-learn for estimators, which ours pass as its own perceptrons do."""

import pytest
from once import ON_BOTH
from sklearn.utils.estimator_checks import parametrize_with_checks

from ortpartial import OnnxClassifier, OnnxRegressor

pytestmark = ON_BOTH

# None is expected to fail, neither here nor for MLPClassifier and MLPRegressor.
ESTIMATORS = [
    OnnxClassifier(),
    OnnxClassifier(hidden_layer_sizes=(20,), learning_rate_init=0.01, max_iter=30),
    OnnxRegressor(),
    OnnxRegressor(hidden_layer_sizes=(20,), learning_rate_init=0.01, max_iter=30),
]
# scikit-learn before 1.6 makes a generator of them, which pytest 9 deprecates.
CHECKS = parametrize_with_checks(ESTIMATORS)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore:.*:UserWarning",
                            "ignore::FutureWarning")
@pytest.mark.parametrize(("estimator", "check"), list(CHECKS.args[1]), **CHECKS.kwargs)
def test_an_estimator_is_one_of_scikit_learn(estimator, check):
    check(estimator)
