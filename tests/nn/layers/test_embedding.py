"""Embedding: rows of a table, and one that is zero and stays as it is."""

import numpy as np
import pytest

from ortpartial import nn
from ortpartial.exceptions import DataError

IDS = np.array([[0, 3], [4, 3]])


def make(**settings):
    layer = nn.Embedding(5, 2, **settings)
    return layer.compile(nn.placeholder(["N", 2], "int64"), random_state=0)


def test_rows_of_the_table():
    layer = make()
    np.testing.assert_array_equal(layer(IDS), layer.state_dict()["weight"][IDS])


@pytest.mark.parametrize("padding", [3, -2])
def test_the_padding_is_zero(padding):
    layer = make(padding_idx=padding)
    assert not layer.state_dict()["weight"][3].any()
    assert not layer(IDS)[:, 1].any()


def test_an_index_that_is_no_row():
    with pytest.raises(DataError, match="has an index that is not in -5 to 4: 5"):
        make()(np.array([[0, 5]]))
