"""Batches from an iterable train as the same rows of an array do; arrays are read in place."""

import re
import threading
import time

import numpy as np
import pandas
import pytest
import torch
from models import data, linear, mlp, two_in_two_out
from torch.utils.data import DataLoader, TensorDataset

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import ConvergenceError, DataError
from ortpartial.execution import prefetch

ENGINES = ["step", "epoch", pytest.param("agent", marks=pytest.mark.agent)]
X, Y, W = data(53)


def optimizer(model=None, **settings):
    usual = {"learning_rate": "Adam", "batch_size": 10, "shuffle": False, "max_iter": 4, "random_state": 0}
    return Optimizer(mlp() if model is None else model, **{**usual, **settings})


def batches(*arrays, size=10):
    return [tuple(a[i : i + size] for a in arrays) for i in range(0, len(arrays[0]), size)]


def same(a, b):
    pairs = [p for kind in ("weight", "optimizer") for p in zip(a.get_state(kind), b.get_state(kind), strict=True)]
    return all((u == v).all() for u, v in pairs) and np.allclose(a.train_losses_, b.train_losses_, rtol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_memory_map_is_read_where_it_is(tmp_path, engine):
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    o = optimizer(engine=engine).fit(mapped, Y)
    assert np.shares_memory(o._engine._data["x"], mapped)
    assert same(o, optimizer(engine=engine).fit(X, Y))


def test_a_tensor_of_torch_is_read_where_it_is():
    x, y = torch.tensor(X), torch.tensor(Y)
    o = optimizer().fit(x, y)
    assert np.shares_memory(o._engine._data["x"], x.numpy())
    assert same(o, optimizer().fit(X, Y))


def test_tables_are_arrays():
    o = optimizer().fit(pandas.DataFrame(X), pandas.Series(Y[:, 0]), pandas.Series(W))
    assert same(o, optimizer().fit(X, Y, W))
    assert (o.predict(pandas.DataFrame(X)) == o.predict(X)).all()


class Again:
    """A generator of batches that can be started again."""

    def __init__(self, made):
        self.made = made

    def __iter__(self):
        yield from self.made


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_batches_are_rows(engine, weighted):
    arrays = (X, Y, W) if weighted else (X, Y)
    whole = optimizer(engine=engine).fit(*arrays)
    assert same(optimizer(engine=engine).fit(Again(batches(*arrays))), whole)


def test_a_data_loader():
    loader = DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)), batch_size=10)
    assert same(optimizer().fit(loader, X_val=X, y_val=Y), optimizer().fit(X, Y))


def test_one_iterator_for_one_epoch():
    assert same(optimizer(max_iter=1).fit(iter(batches(X, Y))), optimizer(max_iter=1).fit(X, Y))


def test_several_inputs():
    y = {"price": Y, "kind": (Y[:, 0] > 0).astype(int)}
    losses = {"price": "square_error", "kind": "softmax_cross_entropy"}
    parted = [({"a": x[:, :3], "b": x[:, 1:]}, {"price": p, "kind": k}) for x, p, k in batches(X, *y.values())]
    a, b = (optimizer(two_in_two_out(), learning_loss=losses) for _ in range(2))
    assert same(a.fit(parted), b.fit({"a": X[:, :3], "b": X[:, 1:]}, y))
    c = optimizer(two_in_two_out(), learning_loss=losses)
    assert same(c.fit({"a": X[:, :3], "b": X[:, 1:]}, pandas.DataFrame({n: t.ravel() for n, t in y.items()})), b)


@pytest.mark.parametrize("engine", ENGINES)
def test_divergence(engine):
    """The weights are those before the batch that was too much."""
    o = optimizer(linear(), learning_rate=0.01, engine=engine)
    good = batches(X, Y)[:2]
    bad = [(1e20 * X[:10], Y[:10])]
    with pytest.raises(ConvergenceError, match=r"at iteration 3 \(epoch 1\) .* the weights are those of iteration 2"):
        o.fit(good + bad)
    assert all((a == b).all() for a, b in zip(
        o.get_state(), optimizer(linear(), learning_rate=0.01, engine=engine, max_iter=1).fit(good).get_state(),
        strict=True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (X, "y is missing; without it, X is to give batches (X, y), one after the other, as Padded"),
        ({"x": X}, "y is missing"),
        (3, "y is missing"),
        (iter(batches(X, Y)), "X gives its batches once, and max_iter is 4: give what can be iterated over again"),
        ([X[:10]], "A batch is (X, y) or (X, y, sample_weight), or a dict with the target as 'labels', not a ndarray"),
        ([(X[:10],)], "or a dict with the target as 'labels', not a tuple of 1; give y where X is all "),
        ([(X[:10], Y[:9])], "y has 9 rows and X has 10."),
        ([(X[:10, :3], Y[:10])], "Input 'x' has shape (10, 3), where (N, 4) was expected."),
        ([], "There are no batches in X."),
    ],
    ids=range(9),
)
def test_errors(given, message):
    with pytest.raises(DataError, match=re.escape(message)):
        optimizer().fit(given)


def test_an_error_of_the_generator_is_raised():
    def broken():
        yield X[:10], Y[:10]
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        optimizer(max_iter=1).fit(broken())
    assert not [t for t in threading.enumerate() if t.name.startswith("ortpartial prefetch")]


def test_the_next_batch_is_fetched_meanwhile():
    events = []

    def slow():
        for i in range(4):
            events.append(f"fetched {i}")
            yield i

    for i in prefetch(slow()):
        assert [t for t in threading.enumerate() if t.name.startswith("ortpartial prefetch")]
        time.sleep(0.05)
        events.append(f"used {i}")
    assert events.index("fetched 1") < events.index("used 0")
    assert [e for e in events if e.startswith("used")] == [f"used {i}" for i in range(4)]


def test_fetching_ends_with_its_reader():
    endless = (i for i in iter(int, 1))
    reader = prefetch(endless)
    assert next(reader) == 0
    reader.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("ortpartial prefetch")]


@pytest.mark.parametrize("error", [StopIteration, ValueError])
def test_an_iterator_is_not_asked_again(error):
    """After its end, or an error, one that reads from a queue would wait forever."""

    class Once:
        def __init__(self):
            self.asked = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.asked += 1
            if self.asked > 2:
                raise error
            return self.asked

    once = Once()
    if error is StopIteration:
        assert list(prefetch(once)) == [1, 2]
    else:
        with pytest.raises(ValueError):
            list(prefetch(once))
    assert once.asked == 3
