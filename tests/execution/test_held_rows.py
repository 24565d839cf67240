"""Rows that are bound once: the numbers of a run on arrays, with the weights of then."""

import gc
import weakref

import numpy as np
import pytest

from ortpartial.execution import HeldRows, RunLocal, choose_part
from ortpartial.graph import build, variable
from ortpartial.runtime import Binding, Buffer, FairLock, Session


@pytest.fixture
def session():
    x, w = variable("x", "float32", ["N", 2]), variable("w", "float32", [2, 1])
    return Session(build([x, w], {"y": x @ w}))


def test_runs_follow_the_weights_and_keep_their_results(session):
    x, w = np.float32([[1, 2], [3, 4]]), Buffer(np.float32([[1], [0]]))
    rows = HeldRows({"x": x, "not read": x})
    first = rows.run(session, lambda: {"w": w}, RunLocal())["y"]
    w.fill(np.float32([[0], [1]]))
    assert rows.run(session, lambda: {"w": w}, RunLocal())["y"].tolist() == [[2], [4]]
    assert rows.run(session, lambda: {"w": np.float32([[1], [1]])}, RunLocal())["y"].tolist() == [[3], [7]]
    assert first.tolist() == [[1], [3]]


@pytest.mark.parametrize("are_sized", [False, True])
def test_each_place_of_the_weights_is_bound_once(session, are_sized, monkeypatch):
    bound = []
    bind = Binding.bind_input
    monkeypatch.setattr(Binding, "bind_input", lambda self, n, v: bound.append(n) or bind(self, n, v))
    rows, owner = HeldRows({"x": np.float32([[1, 2]])}), object()
    sides = [Buffer(np.float32([[1], [0]])), Buffer(np.float32([[0], [1]]))]
    for epoch in range(6):
        weights = {"w": sides[epoch % 2]}
        y = rows.run(session, lambda weights=weights: weights, RunLocal(), (owner, epoch % 2), are_sized)["y"]
        assert y.tolist() == [[1], [2], [5], [6], [5], [6]][epoch : epoch + 1]
        sides[epoch % 2].fill(np.float32([[5], [0]] if epoch % 2 == 0 else [[0], [3]]))
    assert sorted(bound) == ["w", "w", "x", "x"]


def test_the_weights_of_a_former_owner_are_let_go(session):
    rows, w, former = HeldRows({"x": np.ones((1, 2), np.float32)}), Buffer(np.ones((2, 1), np.float32)), FairLock()
    rows.run(session, lambda: {"w": w}, RunLocal(), (former, 0), are_sized=True)
    other = Buffer(np.float32([[2], [2]]))
    assert rows.run(session, lambda: {"w": other}, RunLocal(), (rows, 0), are_sized=True)["y"].tolist() == [[4]]
    kept = weakref.ref(former)
    del former
    gc.collect()
    assert kept() is None


def test_sessions_of_former_settings_are_let_go(session):
    x, w = np.ones((1, 2), np.float32), np.ones((2, 1), np.float32)
    rows = HeldRows({"x": x})
    others = [Session(build([a := variable("x", "float32", ["N", 2]), b := variable("w", "float32", [2, 1])],
                            {"y": a @ b})) for _ in range(3)]
    former = weakref.ref(others[0])
    for each in others:
        rows.run(each, lambda: {"w": w}, RunLocal())
    del each, others[0]
    gc.collect()
    assert former() is None


@pytest.mark.parametrize(("array", "is_bindable"), [(np.zeros(2, np.float32), True), (np.array(["a"]), False),
                                                (np.array(["a"], object), False)])
def test_texts_are_not_bound(array, is_bindable):
    assert HeldRows({"x": array}).is_bindable is is_bindable


@pytest.mark.parametrize(("shape", "expected"), [((9, 1), 32768), ((9, 20), 1632), ((9, 3, 224, 224), 32)])
def test_parts_are_several_batches_of_few_numbers(shape, expected):
    assert choose_part({"x": np.empty(shape, np.float32)}, 32) == expected
