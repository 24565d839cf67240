"""Targets that look like classes are told from quantities, in arrays and in batches of a graph with the square loss."""

import re

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from ortpartial.exceptions import ModelWarning
from ortpartial.graph import constant, op, variable
from ortpartial.learning import ClassWatch, explain_classes, is_one_hot


@pytest.mark.parametrize(("target", "expected"), [
    (np.eye(3), "y is one-hot rows of labels, .* give learning_loss='softmax_cross_entropy' and y.argmax"),
    (np.eye(3, dtype=np.int64), "one-hot"), (np.array([0, 1, 1]), "y is labels, 0 and 1, .* learning_loss='log_loss'"),
    (np.array([[True], [False]]), "'log_loss'"), (np.array([0.0, 1.0]), None), (np.array([0, 1, 2]), None),
    (np.tile([0.0, 1.0], 16), "y is labels, 0 and 1, .* for the square loss give SquareLearningLoss"),
    (np.tile([[1.0], [0.0]], (16, 1)), "'log_loss'"), (np.tile([0.0, 1.0], 15), None),
    (np.tile([0.0, 1.0, 2.0], 16), None),
    (np.tile([[0.0, 1.0, 1.0]], (32, 1)), None), (np.zeros(64), None),
    (np.random.default_rng(0).poisson(0.8, 64) * 1.0, None), (load_diabetes().target, None),
    (np.array([1, 1]), None), (np.ones((3, 2)), None), (np.array(["a", "b"]), None), (np.empty(0, np.int64), None)])
def test_the_loss_that_targets_call_for(target, expected):
    text = explain_classes(target, "y", "fit", "give SquareLearningLoss()")
    assert re.search(expected, text) if expected else text == ""


@pytest.mark.parametrize(("target", "expected"), [
    (np.eye(3)[[0, 2, 1, 1]], True), (np.eye(2, dtype=np.int64), True), (np.eye(3)[:, :1], False),
    (np.eye(3)[0], False), (np.array(1.0), False), (np.eye(3) * 0.5, False), (np.ones((4, 2)), False),
    (np.zeros((4, 2)), False), (np.empty((0, 3)), False), (np.array([["a", "b"]]), False)])
def test_one_hot_rows(target, expected):
    assert is_one_hot(target) is expected


X, T, W = (variable(n, "float32", ["N", 1]) for n in "xtw")
E = X * 2 - T


@pytest.mark.parametrize(("loss", "watched"), [
    ((X * 2 - T) ** 2, ["t"]), ((T - X * 2) ** 2, ["t"]), (op.ReduceSumSquare(X * 2 - T), ["t"]),
    (op.Mul(E, E), ["t"]), ((X * 2 - op.Reshape(T, [-1, 1])) ** 2, ["t"]),
    (W * (X * 2 - T) ** 2, ["t"]), (op.Abs(X * 2 - T), []), ((X * 2 - T) ** 3, []),
    ((X * 2 - T) ** 2 + T, []),  # read otherwise, too
    ((X - constant(np.float32(2))) ** 2, []), ((X - op.ReduceMean(X)) ** 2, []),  # features that are standardized
    ((op.Sigmoid(X * 2) - T) ** 2, []), ((op.Reshape(op.Softmax(X * 2), [-1, 1]) - T) ** 2, []),  # Brier scores
    ((X - T) ** 2, [])])  # two inputs, of which neither is a prediction
def test_targets_of_the_square_loss_are_found_in_a_graph(loss, watched):
    assert ClassWatch([op.ReduceMean(loss)], {"x": X, "t": T, "w": W}, "the training").watched == watched


@pytest.mark.parametrize(("batches", "is_told"), [
    ([np.array([[0], [1]])], True), ([np.array([[True], [False]])], True),
    ([np.tile([[0.0], [1.0]], (4, 1))] * 4, True), ([np.tile([[0.0], [1.0]], (4, 1))] * 3, False),
    ([np.tile([[0.0], [1.0]], (4, 1))] * 3 + [np.full((8, 1), 0.5)], False), ([np.zeros((8, 1))] * 9, False)])
def test_batches_are_watched_until_they_tell(batches, is_told):
    watch = ClassWatch([op.ReduceMean((X * 2 - T) ** 2)], {"x": X, "t": T}, "the training")
    for batch in batches[:-1]:
        watch.look({"t": batch})
    if is_told:
        with pytest.warns(ModelWarning, match="The input 't' is labels, 0 and 1, of which the training takes the squ"):
            watch.look({"t": batches[-1]})
        assert watch.watched == []
    watch.look({"t": batches[-1]})  # Warnings are errors: once.
