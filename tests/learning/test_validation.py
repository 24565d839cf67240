"""Validation of settings, and names of losses, penalties, optimizers and schedules."""

import numpy as np
import pytest

from ortpartial.exceptions import SettingError
from ortpartial.learning import CosineRestartsSchedule, LearningRateSGD
from ortpartial.learning.schedules import ConstantSchedule, Schedule
from ortpartial.learning.validation import check_number, resolve_piece


@pytest.mark.parametrize(
    ("bounds", "number", "expected"),
    [
        ({}, float("nan"), "a finite number was expected."),
        ({"above": 0}, 0.0, "a finite number more than 0 was expected."),
        ({"low": 0}, -1e-9, "a finite number at least 0 was expected."),
        ({"low": 0, "below": 1}, 1, "a finite number at least 0 and less than 1 was expected."),
    ],
)
def test_number_out_of_range(bounds, number, expected):
    class Piece:
        value = number

    with pytest.raises(SettingError) as e:
        check_number(Piece(), "value", **bounds)
    assert str(e.value) == f"Piece: value is {number!r}, {expected}"


def test_number_in_range():
    class Piece:
        value = np.float32(0.5)

    piece = Piece()
    check_number(piece, "value", low=0.5, below=1)
    assert type(piece.value) is float


def test_resolve_guesses():
    with pytest.raises(SettingError) as e:
        resolve_piece(Schedule, "konstant", {"constant": ConstantSchedule})
    assert str(e.value) == ("schedule: 'konstant' is not known. Did you mean 'constant'? Known are constant, "
                            "or an object of a subclass of Schedule.")
    with pytest.raises(SettingError) as e:
        resolve_piece(Schedule, 1, {"constant": ConstantSchedule})
    assert str(e.value) == ("schedule: 1 is a int; a name (constant) or an object of a subclass of Schedule was "
                            "expected.")


def test_numbers_beyond_64_bits():
    with pytest.raises(SettingError, match=r"eta0 is 10+, a finite number more than 0 was expected"):
        LearningRateSGD(10**400)
    with pytest.raises(SettingError, match="cycles is beyond 64 bits; a whole number of at most"):
        CosineRestartsSchedule(cycles=2**70)
    # Cycles are not counted beyond the batches.
    assert CosineRestartsSchedule(cycles=2**62).over(9).n == 1
    assert CosineRestartsSchedule(cycles=2**62, factor=2).over(9).n == 1
    assert CosineRestartsSchedule(cycles=3, factor=2).over(70).n == 10
