"""Rows of tokens from files: ids and labels, damaged lines, and texts that are cut off."""

import json
import re

import numpy as np
import pytest

from ortpartial.cli.token_rows import TextReader, read_json, read_texts
from ortpartial.exceptions import DataError


def read(path, *lines, length=8):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return read_texts(path, TextReader(path.parent), length)


def test_token_ids(tmp_path):
    rows, cut, dropped = read(tmp_path / "a.jsonl", [1, 2, 3], "", {"input_ids": [4, 5], "labels": [-100, 5]})
    assert [r.ids.tolist() for r in rows] == [[1, 2, 3], [4, 5]]
    assert [r.labels.tolist() for r in rows] == [[1, 2, 3], [-100, 5]]
    assert (cut, dropped) == (0, 0)


def test_long_rows_are_cut_and_rows_without_a_token_to_learn_are_dropped(tmp_path):
    rows, cut, dropped = read(tmp_path / "a.jsonl", [1] * 9, [7], {"input_ids": [1, 2], "labels": [1, -100]}, length=4)
    assert [len(r.ids) for r in rows] == [4]
    assert (cut, dropped) == (1, 2)


def test_arrays(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6).reshape(2, 3))
    rows, *_ = read_texts(tmp_path / "a.npy", TextReader(tmp_path), 8)
    assert [r.ids.tolist() for r in rows] == [[0, 1, 2], [3, 4, 5]]
    np.save(tmp_path / "b.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"holds float64\[3\], and token ids are whole numbers"):
        read_texts(tmp_path / "b.npy", TextReader(tmp_path), 8)


@pytest.mark.parametrize(("line", "message"), [
    ("{", "line 1 of"), ("3", "line 1 of"), ([0.5, 1], "is no list of token ids, which are whole numbers."),
    ({"input_ids": [1, 2], "labels": [1]}, "has 2 input_ids and 1 labels."),
    ({"other": 1}, "has none of text, prompt with completion, messages and input_ids; it has 'other'"),
    ([1], "has no row with a token to learn"),
    ({"text": "a"}, "for texts; give token ids, as {\"input_ids\": [...]}."),
])
def test_lines_that_are_refused(tmp_path, line, message):
    with pytest.raises((DataError, ImportError), match=re.escape(message)):
        read(tmp_path / "a.jsonl", line)


def test_files_of_another_kind(tmp_path):
    with pytest.raises(DataError, match=r"is to end in \.jsonl, \.txt or \.npy"):
        read(tmp_path / "a.csv", "1")


def test_json_of_any_content(tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1}')
    (tmp_path / "b.json").write_text("[1]")
    assert read_json(tmp_path / "a.json") == {"a": 1}
    assert read_json(tmp_path / "b.json") == read_json(tmp_path / "none.json") == {}
