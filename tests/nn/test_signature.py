"""Signatures: the arrays that the code of a module takes, and arrays that do not fit."""

import re

import numpy as np
import pytest

from ortpartial import nn
from ortpartial.exceptions import DataError
from ortpartial.nn.signature import Signature
from ortpartial.nn.traced_source import WEIGHTS

X, Y = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)


class Alone(nn.Linear):
    def train_one_batch(self, x):
        return self.forward(x)


@pytest.fixture
def signature():
    return Signature.of(nn.Linear(3, 1), [X])


def test_placeholders_of_inputs_and_targets(signature):
    assert {n: v.shape for n, v in signature.inputs.items()} == {"x": ("N", 3)}
    batch = signature.name_batch([Y, Y[:, 0]], [X], ["target"])
    assert {n: v.shape for n, v in batch.items()} == {"x": ("N", 3), "target_": ("N", 1), WEIGHTS: ("N",)}
    assert signature.name_batch([Y[:2]], [X], [])["target"].shape == ("target_rows", 1)


def test_steps_without_targets(signature):
    assert not signature.takes_no_target()
    assert Signature.of(Alone(3, 1), [X]).takes_no_target()


@pytest.mark.parametrize(("call", "message"), [
    (lambda s: s.check_count([X, Y]), "Linear takes 1 inputs, x, and got 2 arrays; a batch with its targets is for "),
    (lambda s: s.split_batch([]), "A batch has 1 inputs, x, and then what is learned, and 0 arrays were given."),
    (lambda s: s.split_batch([X, None]), "A batch is made of arrays, and None was given"),
    (lambda s: s.name_batch([], [X], []), "Linear.train_one_batch does not take 1 array: it takes x and a target."),
    (lambda s: s.to_batches(X, Y[:3]), "X has 4 rows and y 3; they are to be equally many."),
    (lambda s: s.to_batches(X, Y, Y[:2, 0]), "the 4 rows was expected."),
    (lambda s: s.to_batches([(X, Y)], None, Y), "X gives batches; let each of them hold its weights."),
])
def test_what_does_not_fit(signature, call, message):
    with pytest.raises(DataError, match=re.escape(message)):
        call(signature)


def test_weights_that_no_code_reads():
    with pytest.raises(DataError, match=r"Alone\.train_one_batch takes no sample_weight; make it the last argument"):
        Signature.of(Alone(3, 1), [X]).to_batches(X, Y, Y[:, 0])
