"""The losses of a command: by default those that labels call for, and of probabilities where an output is some."""

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
    (SCORES, "y", "square"), (SCORES, "kind", "cross_entropy"), (ONE, "kind", "square")])
def test_defaults(y, target, expected):
    assert choose(y, target) == [expected]


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
