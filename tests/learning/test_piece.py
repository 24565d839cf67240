"""Pieces: compared, shown and replaced by their settings, whether they are dataclasses or ordinary classes."""

from dataclasses import dataclass

import pytest

from ortpartial.learning import LearningRateAdam
from ortpartial.learning.piece import Piece, is_settled, list_settings, replace_settings


@dataclass(frozen=True)
class Frozen(Piece):
    a: float = 1.0
    b: str = "x"


class Ordinary(Piece):
    def __init__(self, a=1.0, b="x"):
        self.a, self.b = a, b


@pytest.mark.parametrize("kind", [Frozen, Ordinary])
def test_by_their_settings(kind):
    assert kind(2.0) == kind(2.0) != kind(3.0)
    assert hash(kind(2.0)) == hash(kind(2.0))
    assert repr(kind(2.0)) == f"{kind.__name__}(a=2.0, b='x')"
    assert list_settings(kind(2.0)) == {"a": 2.0, "b": "x"}


def test_pieces_of_two_classes_differ():
    assert Frozen() != Ordinary()


@pytest.mark.parametrize("kind", [Frozen, Ordinary])
def test_replaced_ones_keep_what_was_set_beside(kind):
    piece = kind(2.0)
    object.__setattr__(piece, "beside", 7)
    new = replace_settings(piece, b="y")
    assert (new.a, new.b, new.beside, piece.b) == (2.0, "y", 7, "x")


def test_what_never_changes():
    assert is_settled(LearningRateAdam())
    assert is_settled((1, "a", None))
    assert not is_settled(Frozen())
    assert not is_settled([1])
