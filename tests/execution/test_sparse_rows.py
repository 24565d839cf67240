"""Sparse rows, which become dense batch by batch."""

import tracemalloc

import numpy as np
import pytest
from models import mlp
from scipy import sparse

from ortpartial import (
    OnnxClassifier,
    OnnxRegressor,
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    add_lora,
    add_loss_output,
    build,
    constant,
    nn,
    variable,
)
from ortpartial.exceptions import DataError
from ortpartial.execution import SparseRows, wrap_sparse
from ortpartial.native import find_compiler

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


X = np.random.RandomState(0).randn(60, 4).astype(np.float32) * (np.random.RandomState(1).rand(60, 4) < 0.4)
Y = X.sum(1, keepdims=True)
SETTINGS = {"max_iter": 3, "batch_size": 7, "random_state": 0, "learning_rate": 1e-3, "metrics": ["r2", "train_mae"]}


def by_loss(**settings):
    return OrtGradientForwardBackwardOptimizer(mlp(), **SETTINGS, **settings)


def own_loss(**settings):
    return OrtGradientOptimizer(add_loss_output(mlp()), **SETTINGS, **settings)


def adapted(**settings):
    return OrtGradientForwardBackwardOptimizer(add_lora(mlp(), targets="*", rank=2, random_state=0), "adapter",
                                               **SETTINGS, **settings)


def records(o):
    return [{n: v for n, v in record.items() if n != "seconds"} for record in o.history_]


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.coo_array])
@pytest.mark.parametrize("make", [by_loss, own_loss, adapted])
def test_optimizers(make, kind):
    dense, model = (make().fit(f(X), Y, X_val=0.25) for f in (np.asarray, kind))
    for o, f in ((dense, np.asarray), (model, kind)):
        o.partial_fit([(f(X[:20]), Y[:20]), (f(X[20:]), Y[20:])])
        o.train_step((f(X[:5]), Y[:5]))
    assert all(np.array_equal(a, b) for a, b in zip(dense.get_state(), model.get_state(), strict=True))
    assert records(dense) == records(model)
    assert np.array_equal(dense.predict(X), model.predict(kind(X)))
    assert np.array_equal(dense.losses(X, Y), model.losses(kind(X), Y))
    assert dense.evaluate(X, Y) == model.evaluate(kind(X), Y)
    assert dense.score({"x": X}, Y) == model.score({"x": kind(X)}, Y)


@pytest.mark.parametrize("engine", ["step", "epoch", "native"])
def test_engines(engine):
    if engine == "native" and find_compiler() is None:
        pytest.skip("there is no C compiler")
    dense, model = (by_loss(engine=engine).fit(f(X), Y) for f in (np.asarray, sparse.csr_array))
    tolerance = 1e-6 if engine == "native" else 0  # which takes the rows of a single step otherwise
    assert all(np.allclose(a, b, rtol=0, atol=tolerance)
               for a, b in zip(dense.get_state(), model.get_state(), strict=True))


@pytest.mark.parametrize("use_graph", [True, False])
def test_modules(use_graph):
    fitted = []
    for f in (np.asarray, sparse.csc_array):
        module = nn.Linear(4, 1).set_optimizer("adam")
        module.compile(nn.placeholder(["N", 4]), random_state=0, use_graph=use_graph)
        module.fit(f(X), Y, epochs=2, batch_size=7, X_val=0.25, metrics=["r2"])
        module.fit([(f(X[:20]), Y[:20]), (f(X[20:]), Y[20:])], epochs=1)
        module.train_one_batch(f(X[:5]), Y[:5])
        fitted.append(module)
    dense, model = fitted
    assert all(np.array_equal(a, model.state_dict()[n]) for n, a in dense.state_dict().items())
    assert records(dense) == records(model)
    assert np.array_equal(dense.predict(X), model.predict(sparse.csr_matrix(X)))
    assert dense.evaluate(X, Y) == model.evaluate(sparse.csr_matrix(X), Y)


def test_optimizers_and_modules_make_only_parts_dense():
    """Of 64 MB of dense rows; the share that validates stays sparse, too."""
    rows = sparse.random(800, 20000, density=1e-4, format="csr", dtype=np.float32, random_state=0)
    y, x = np.arange(800, dtype=np.float32)[:, None], variable("x", "float32", ["N", 20000])
    model = build([x], {"y": x @ constant(np.zeros((20000, 1), np.float32), hint="w")})
    optimizer = OrtGradientForwardBackwardOptimizer(model, max_iter=1, batch_size=13, learning_rate=1e-6,
                                                    metrics=["r2", "train_mae"], random_state=0)
    module = nn.Linear(20000, 1).set_optimizer("sgd").compile(nn.placeholder(["N", 20000]))
    for fit in (lambda X, y: optimizer.fit(X, y, X_val=0.5).predict(X),
                lambda X, y: module.fit(X, y, epochs=1, batch_size=13, X_val=0.5, metrics=["r2"]).predict(X)):
        fit(rows[:60], y[:60])
        tracemalloc.start()
        fit(rows, y)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1.6e7


def test_wrapping():
    rows = wrap_sparse(sparse.coo_array(X))
    assert isinstance(rows, SparseRows)
    assert wrap_sparse(X) is X
    assert np.array_equal(rows.select([3, 1])[:], X[[3, 1]])
    assert rows.convert(lambda numbers: numbers) is rows
    assert rows.convert(np.float64).dtype == np.float64
    assert SparseRows(sparse.csr_array((1, 2**22))).part == 1
    batch = wrap_sparse({"a": sparse.csr_array(X), "b": Y})
    assert isinstance(batch["a"], SparseRows)
    assert batch["b"] is Y


def test_numbers_are_checked():
    wrong = X.copy()
    wrong[3, 2] = np.nan
    with pytest.raises(DataError, match="Input 'x' contains NaN or infinity"):
        by_loss().fit(sparse.csr_matrix(wrong), Y)
    with pytest.raises(DataError, match=r"Input 'x' has shape \(60, 3\), where \(N, 4\) was expected"):
        by_loss().fit(sparse.csr_matrix(X[:, :3]), Y)
