"""The losses of a command: by default as labels call for, and of probabilities where an output is some."""

import numpy as np
import pytest

from ortpartial.cli.losses import choose_losses
from ortpartial.cli.roles import Roles
from ortpartial.graph import build, constant, op, variable
from ortpartial.model import load

COLUMNS = {"y": np.zeros(3), "kind": np.array(["dog", "cat", "dog"])}


def choose(y, target, *words, quiet=False):
    model = load(build([X], {"out": y}))
    return choose_losses(words, Roles(target=[target], outputs=["out"]), model, COLUMNS, quiet)


X = variable("x", "float32", ["N", 2])
SCORES = X @ constant(np.ones((2, 3), np.float32))
ONE = X @ constant(np.ones((2, 1), np.float32))


@pytest.mark.parametrize(("y", "target", "expected"), [
    (SCORES, "kind", "cross_entropy"), (ONE, "kind", "square")])
def test_defaults(y, target, expected):
    assert choose(y, target) == [expected]


@pytest.mark.parametrize(("y", "labels", "expected"), [
    (SCORES, [0, 1, 2], "cross_entropy"), (SCORES, [0.0, 2.0, 2.0], "cross_entropy"), (ONE, [0, 1, 1], "log_loss"),
    (SCORES, [0, 1, 3], "square"), (SCORES, [-1, 1, 0], "square"), (SCORES, [0.5, 1, 2], "square"),
    (ONE, [0, 1, 2], "square"), (ONE, [1, 1, 1], "square"), (ONE, [0, np.nan, 1], "square")])
def test_whole_numbers_are_labels(y, labels, expected, capsys, monkeypatch):
    monkeypatch.setitem(COLUMNS, "label", np.array(labels))
    assert choose(y, "label") == [expected]
    said = capsys.readouterr().err
    assert ("label holds whole numbers from 0 to " in said) == (expected != "square")
    assert (f"the loss is {expected}; --loss square takes them for quantities" in said) == (expected != "square")
    assert choose(y, "label", "square") == ["square"]
    assert choose(y, "label", quiet=True) == [expected]
    assert capsys.readouterr().err == ""


def test_words_are_kept():
    assert choose(SCORES, "y", "huber:delta=0.5") == ["huber:delta=0.5"]


def test_probabilities(capsys):
    assert choose(op.Softmax(SCORES, axis=1), "kind") == ["cross_entropy:from_logits=false"]
    assert "out is of probabilities, so that the loss is cross_entropy:from_logits=false" in capsys.readouterr().err
    assert choose(op.Sigmoid(ONE), "y", "log_loss", quiet=True) == ["log_loss:from_logits=false"]
    assert capsys.readouterr().err == ""


def test_a_setting_that_says_so_is_kept():
    assert choose(op.Softmax(SCORES, axis=1), "kind", "cross_entropy:from_logits=true") == [
        "cross_entropy:from_logits=true"]
