"""Fingerprints: equal for objects that compute the same, different for others, and unchanged by later changes."""

import collections
import copy
import functools
import threading
import types

import numpy as np
import pytest
import torch

from ortpartial import op
from ortpartial.learning import LearningRateAdam, fingerprint, is_settled, list_attributes, list_held
from ortpartial.learning.class_weights import ClassWeights

FACTOR = 1.0
CONFIGURATION = types.ModuleType("configuration")
CONFIGURATION.factor = 1.0


class Held:
    factor = 1.0

    def __init__(self, content):
        self.content = content

    def cost(self, y, t):
        return self.content * y


class Slotted:
    __slots__ = ("__private", "content")

    def __init__(self, content):
        self.content = self.__private = content


def power(n):
    return lambda x: x**n


def scaled(x):
    return FACTOR * CONFIGURATION.factor * x


EQUAL = {
    "numbers": lambda: [1, 1.5, True, None, "a", b"a", 1j, ...], "nan": lambda: float("nan"),
    "arrays": lambda: np.arange(3.0), "large array": lambda: np.arange(5000), "scalar": lambda: np.float32(1),
    "objects in an array": lambda: np.array([1, "a", None], object), "containers": lambda: {"a": [1, (2, {3})]},
    "closure": lambda: power(2), "partial": lambda: functools.partial(scaled, 1, b=2), "object": lambda: Held([1]),
    "method": lambda: Held([1]).cost, "slots": lambda: Slotted(1), "namespace": lambda: types.SimpleNamespace(a=[1]),
    "class weights": lambda: ClassWeights({0: 1.0}), "deque": lambda: collections.deque([1]),
    "generator": lambda: np.random.default_rng(0), "tensor": lambda: torch.ones(2, requires_grad=True),
    "operator": lambda: op.Relu, "ufunc": lambda: np.exp, "function": lambda: scaled}


@pytest.mark.parametrize("make", EQUAL.values(), ids=EQUAL)
def test_what_holds_the_same_is_equal(make):
    value = make()
    assert fingerprint(value) == fingerprint(value) == fingerprint(make())
    assert hash(fingerprint(value)) == hash(fingerprint(make()))


@pytest.mark.parametrize(("a", "b"), [
    (1, 1.0), (1, True), (0.0, -0.0), (1.0, np.float64(1)), ([1], (1,)), ("a", b"a"), (np.ones(2), np.ones((1, 2))),
    (np.ones(2), np.ones(2, np.float32)), (np.zeros(5000), np.eye(1, 5000)[0]), ({"a": 1}, {"a": 2}),
    (power(2), power(3)), (power(2), lambda x: x**2), (functools.partial(power, 1), functools.partial(power, 2)),
    (Held([1]), Held([2])), (Held([1]).cost, Held([2]).cost), (Slotted(1), Slotted(2)), (torch.ones(2), torch.zeros(2)),
    (torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)), (np.random.default_rng(0), np.random.default_rng(1)),
    (threading.Lock(), threading.Lock()), (object(), object()), (np.array([1], object), np.array([2], object)),
    (Held, Slotted), (int, float), (np.exp, np.log)], ids=lambda v: type(v).__name__)
def test_what_may_differ_is_different(a, b):
    assert fingerprint(a) == fingerprint(a) != fingerprint(b)


def test_what_cannot_be_read_equals_itself():
    for value in (threading.Lock(), Held(threading.Lock()), (i for i in range(3)), open):
        assert fingerprint(value) == fingerprint(value)


def test_a_later_change_does_not_change_it():
    array, held, tensor = np.zeros(2), Held([1]), torch.zeros(2)
    for value, change in ((array, lambda: array.fill(1)), (held, lambda: held.content.append(2)),
                          (Held(held).cost, lambda: setattr(held, "content", 3)), (tensor, lambda: tensor.add_(1))):
        former = fingerprint(value)
        change()
        assert fingerprint(value) != former
    generator = np.random.default_rng(0)
    former = fingerprint(generator)
    generator.normal()
    assert fingerprint(generator) != former


@pytest.mark.parametrize(("owner", "name"), [(globals(), "FACTOR"), (CONFIGURATION, "factor"), (Held, "factor")])
def test_globals_modules_and_classes_are_read(owner, name, monkeypatch):
    value = Held(1) if owner is Held else scaled
    former = fingerprint(value)
    if isinstance(owner, dict):
        monkeypatch.setitem(owner, name, 2.0)
    else:
        monkeypatch.setattr(owner, name, 2.0)
    assert fingerprint(value) != former
    monkeypatch.undo()
    assert fingerprint(value) == former


def test_circles():
    first, second = [1], [1]
    first.append(first)
    second.append(second)
    assert fingerprint(first) == fingerprint(second) != fingerprint([1, [1]])

    def count(n):
        return count(n - 1) if n else 0

    assert fingerprint(count) == fingerprint(count) == fingerprint(copy.copy(count))


def test_attributes_and_what_functions_hold():
    assert list_attributes(Slotted(1)) == {"_Slotted__private": 1, "content": 1}
    assert list_attributes(3) == {}
    assert list_held(power(2)) == [None, None, [2], []]
    assert list_held(scaled) == [None, None, [], [1.0, 1.0]]


def test_pieces_that_never_change():
    assert is_settled(LearningRateAdam(schedule="cosine"))
    assert not is_settled(LearningRateAdam(schedule="cosine").schedule.__class__)
    assert not is_settled([LearningRateAdam()])
