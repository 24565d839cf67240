"""Imports from scikit-learn whose places depend on its version."""

import numpy as np
import pytest
import sklearn
from sklearn.base import BaseEstimator

from ortpartial.estimator.sklearn import compat


class Estimator(compat.CallbackSupportMixin, BaseEstimator):
    @compat.with_callbacks
    def fit(self, X, y=None):
        return self


def test_data_are_checked():
    estimator = Estimator()
    X, y = compat.validate_data(estimator, [[1, 2], [3, 4]], [0, 1])
    assert (X.shape, y.shape, estimator.n_features_in_) == ((2, 2), (2,), 2)
    assert isinstance(compat.validate_data(estimator, np.ones((1, 2)), reset=False), np.ndarray)
    with pytest.raises(ValueError, match="features"):
        compat.validate_data(estimator, np.ones((1, 3)), reset=False)


def test_callbacks_are_those_of_scikit_learn_where_it_has_some():
    has_callbacks = tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 9)
    assert hasattr(Estimator(), "set_callbacks") == has_callbacks
    assert isinstance(Estimator().fit([[1]]), Estimator)
