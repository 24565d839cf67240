"""Names that a user gives: missing and unknown names."""

import pytest

from ortpartial.exceptions import DataError
from ortpartial.model import match_names


@pytest.mark.parametrize(("given", "message"), [
    (["x"], "Missing input: 'y'. Expected 'x', 'y'; got 'x'."),
    ([], "Missing inputs: 'x', 'y'. Expected 'x', 'y'; got none."),
    (["y", "z", "x"], "Unknown input: 'z'. Expected 'x', 'y'; got 'y', 'z', 'x'."),
    (["x", 3], "Missing input: 'y'. Unknown input: 3. Expected 'x', 'y'; got 'x', 3."),
])
def test_error_lists_missing_and_unknown_names(given, message):
    with pytest.raises(DataError) as e:
        match_names(["x", "y"], given)
    assert str(e.value) == message


def test_any_order():
    match_names({"x": 1, "y": 2}, ["y", "x"])
    match_names([], {})
