"""Sparse rows, which become dense batch by batch."""

import tracemalloc

import numpy as np
import pytest
from scipy import sparse

from ortpartial import OnnxClassifier, OnnxRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_array, sparse.coo_array])
@pytest.mark.parametrize("settings", [{}, {"batch_size": 7}, {"early_stopping": True}, {"shuffle": False}])
def test_sparse_rows_are_trained_to_the_bits_of_dense_ones(kind, settings):
    X = np.random.RandomState(0).randn(60, 5) * (np.random.RandomState(1).rand(60, 5) < 0.4)
    y = (X.sum(1) > 0).astype(int)
    settings = {"hidden_layer_sizes": (4,), "max_iter": 3, "random_state": 0, **settings}
    dense, model = OnnxClassifier(**settings).fit(X, y), OnnxClassifier(**settings).fit(kind(X), y)
    assert all(np.array_equal(a, b) for a, b in zip(dense.coefs_, model.coefs_, strict=True))
    assert np.array_equal(dense.predict_proba(X), model.predict_proba(kind(X)))
    if not settings.get("early_stopping"):
        assert np.array_equal(dense.partial_fit(X, y).coefs_[0], model.partial_fit(kind(X), y).coefs_[0])


def test_only_a_batch_is_dense_at_a_time():
    """Of 160 MB of dense rows, training takes some batches of 1 MB, and prediction some parts of 4 MB."""
    X = sparse.random(2000, 20000, density=1e-4, format="csr", dtype=np.float32, random_state=0)
    y = np.arange(2000.0)
    model = OnnxRegressor(batch_size=13, max_iter=1, random_state=0).fit(X[:30], y[:30])
    tracemalloc.start()
    model.fit(X, y).predict(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e7
