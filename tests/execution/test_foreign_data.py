"""Data given by habit: each is refused in a sentence with advice."""

from pathlib import Path

import numpy as np
import pytest

from ortpartial.exceptions import DataError
from ortpartial.execution import refuse_foreign


class Rows:
    """A Dataset as those of torch are."""

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return np.ones(2), 1.0


class Column(Rows):
    def __getitem__(self, i):
        return float(range(3)[i])


@pytest.mark.parametrize(("data", "message"), [
    ("data.csv", r"X is 'data\.csv', where an array was expected; read the file first, as with numpy"),
    (Path("a/b"), r"read the file first"),
    (Rows, r"X is the class Rows; give an object of it\."),
    (print, r"X is a function; give the batches themselves"),
    (Rows(), r"X is a Rows of single rows; give a DataLoader of it, as DataLoader\(dataset, batch_size=32\), or a"),
], ids=["text", "path", "class", "function", "Dataset"])
def test_what_is_refused(data, message):
    with pytest.raises(DataError, match=message):
        refuse_foreign(data)


@pytest.mark.parametrize("data", [None, np.ones(2), [[1.0]], {"x": [1.0]}, iter([]), (b for b in ()), Column(),
                                  np.float32(1)])
def test_what_is_taken(data):
    refuse_foreign(data)
