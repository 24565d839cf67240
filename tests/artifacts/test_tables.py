"""FlatBuffers: fields, vectors, texts and tables are read, and every offset is checked."""

import struct

import pytest

from ortpartial.artifacts.tables import Budget, Table, read_root
from ortpartial.exceptions import CheckpointError

NAME = b"ODTC"


def pack(text=b"weight", offset=20):
    """A table with a number (field 0), a string (2) and nothing at 1; its list of fields stands before it."""
    fields = struct.pack("<HHHHH", 10, 16, 4, 0, 8)  # 10 bytes of list, 16 of table, then three places
    head = struct.pack("<I", offset) + NAME + b"\0\0" + fields
    table = struct.pack("<iiII", 20 - 10, -7, 8, 0)  # back to the list; the number; where the text is
    return head + table + struct.pack("<I", len(text)) + text


def test_fields():
    root = read_root(pack(), NAME)
    assert root.number(0, "i") == -7
    assert root.text(2) == "weight"


def test_a_field_that_the_file_leaves_out_has_its_default():
    root = read_root(pack(), NAME)
    assert root.number(1, "i", 5) == 5
    assert (root.text(1), root.table(7), root.tables(1), root.vector(1, "f4")) == ("", None, [], None)


def test_a_vector_is_a_view():
    vector = read_root(pack(), NAME).vector(2, "u1")
    assert vector.tobytes() == b"weight"
    assert not vector.flags.owndata


@pytest.mark.parametrize(("data", "message"), [
    (b"", "it does not begin as one does"),
    (pack()[:4] + b"XXXX" + pack()[8:], "it does not begin as one does"),
    (pack(offset=4000), "it refers to what lies outside of it"),
    (pack()[:10] + b"\x03" + pack()[11:], "it has a table whose list of fields is malformed"),
])
def test_malformed_files(data, message):
    with pytest.raises(CheckpointError, match=message):
        read_root(data, NAME)


def test_malformed_content():
    with pytest.raises(CheckpointError, match="it refers to what lies outside of it"):
        read_root(pack()[:-3], NAME).text(2)
    with pytest.raises(CheckpointError, match="it has a name that is no UTF-8"):
        read_root(pack(b"\xff"), NAME).text(2)


def test_tables_that_overlap_spend_more_than_there_is():
    data, budget = pack(), Budget(40)
    Table(data, 20, budget)
    assert budget.left == 24
    Table(data, 20, budget)
    with pytest.raises(CheckpointError, match="its tables overlap"):
        Table(data, 20, budget)
