"""Expressions: views are the same elements at other places, compared with strides of numpy."""

import numpy as np
import pytest

from ortpartial.native.expressions import Affine, Array, Call, Literal, Load, leaves, move

DTYPE = np.dtype(np.float32)
MEMORY = np.arange(24)


def read(at):
    """The elements at these places."""
    return np.lib.stride_tricks.as_strided(MEMORY[at.offset:], at.shape, [8 * s for s in at.strides])


AT = Affine.contiguous((2, 3, 4))
A = MEMORY.reshape(2, 3, 4)


@pytest.mark.parametrize(("view", "expected"), [
    (AT.permuted((2, 0, 1)), A.transpose(2, 0, 1)),
    (AT.sliced((0, 1, 3), (1, 1, -2), (2, 2, 2)), A[:, 1:, 3::-2]),
    (Affine.contiguous((3, 1)).broadcast((2, 3, 4)), np.broadcast_to(MEMORY[:3, None], (2, 3, 4))),
    (Affine.contiguous((1, 3, 1)).squeezed(), MEMORY[:3]),
    (AT.reshaped((6, 4)), A.reshape(6, 4)), (AT.reshaped((2, 12)), A.reshape(2, 12)),
    (AT.permuted((1, 0, 2)).reshaped((3, 2, 2, 2)), A.transpose(1, 0, 2).reshape(3, 2, 2, 2)),
])
def test_views(view, expected):
    np.testing.assert_array_equal(read(view), expected)


def test_a_reshape_that_no_strides_say():
    assert AT.permuted((1, 0, 2)).reshaped((6, 4)) is None
    assert AT.reshaped((5, 5)) is None


def test_what_lies_one_behind_the_other():
    assert AT.is_contiguous
    assert not AT.permuted((1, 0, 2)).is_contiguous
    load = Load(DTYPE, (2, 3, 4), Array(DTYPE, 24), AT)
    assert load.is_plain
    assert not Load(DTYPE, (2, 3), Array(DTYPE, 24), Affine.contiguous((2, 3))).is_plain


def test_equal_places_have_equal_keys():
    array = Array(DTYPE, 24)
    new = Array(DTYPE, 24, former=array)
    assert new.memory is array
    one, other = Load(DTYPE, AT.shape, array, AT), Load(DTYPE, AT.shape, new, AT)
    assert one.key == other.key != Load(DTYPE, AT.shape, array, AT.permuted((0, 1, 2)).sliced(
        (0, 0, 1), (1, 1, 1), (2, 3, 3))).key


def test_leaves_and_what_they_cost():
    a, b = (Load(DTYPE, (3,), Array(DTYPE, 3), Affine.contiguous((3,))) for _ in range(2))
    total = Call(DTYPE, (3,), "{0} + {1}", (Call(DTYPE, (3,), "exp({0})", (a,), 10), b))
    assert list(leaves(total)) == [a, b]
    assert total.cost == 11


def test_moving_a_whole_expression():
    a = Load(DTYPE, (2, 3), Array(DTYPE, 6), Affine.contiguous((2, 3)))
    total = Call(DTYPE, (2, 3), "{0} + {1}", (a, Literal(DTYPE, (2, 3), 1.0)))
    turned = move(total, lambda at: at.permuted((1, 0)))
    assert turned.shape == (3, 2)
    assert next(leaves(turned)).at.strides == (1, 3)
    assert move(total, lambda at: None) is None
