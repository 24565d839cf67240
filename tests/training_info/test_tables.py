"""Columns of .csv, .parquet and .arrow files."""

import sys
from pathlib import Path

import numpy as np
import pytest

from ortpartial.exceptions import DataError, RuntimeMissingError
from ortpartial.training_info import read_table, write_table

COLUMNS = {"a": np.array([1, 2, 3]), "b": np.array([0.5, 1e-3, 2.0]), "kind": np.array(["cat", "dog, big", "ä"])}
FILES = ["t.csv", "t.parquet", "t.arrow", "t.feather"]


@pytest.mark.parametrize("name", FILES)
def test_round_trip(tmp_path, name):
    path = tmp_path / name
    with path.open("wb") as file:
        write_table(COLUMNS, file, path)
    columns = read_table(path, texts=True)
    assert list(columns) == list(COLUMNS)
    for n, a in COLUMNS.items():
        assert columns[n].dtype.kind == a.dtype.kind
        assert (columns[n] == a).all()
    with pytest.raises(DataError, match="no number"):
        read_table(path)


def test_missing_numbers(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,\n,NA\n3,0.5\n")
    columns = read_table(path, texts=True)
    np.testing.assert_array_equal(columns["a"], [1, np.nan, 3])
    np.testing.assert_array_equal(columns["b"], [np.nan, np.nan, 0.5])
    with pytest.raises(DataError, match=r"Line 3 of .* has '' in the column 'a', which is no number"):
        read_table(path)


def test_types_of_arrow(tmp_path):
    """Categories, lists of one length, truth values, decimals, missing numbers."""
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    table = pa.table({"kind": pa.array(["b", "a"]).dictionary_encode(), "pixels": pa.array([[1.0, 2], [3, 4]]),
                      "is_new": [True, False], "n": pa.array([1, None]), "time": pa.array([0, 1], pa.timestamp("s"))})
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    for name in ("t.parquet", "t.arrow"):
        columns = read_table(tmp_path / name, texts=True)
        assert columns["kind"].tolist() == ["b", "a"]
        assert columns["pixels"].tolist() == [[1, 2], [3, 4]]
        assert columns["is_new"].dtype == bool
        np.testing.assert_array_equal(columns["n"], [1, np.nan])
        assert columns["time"].dtype.kind == "U"


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
def test_damaged_files(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"PAR1 or so")
    with pytest.raises(DataError, match=f"{name}' is no .* file, or one that was cut short"):
        read_table(path)


def test_without_pyarrow(tmp_path, monkeypatch):
    for module in ("pyarrow", "pyarrow.feather", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RuntimeMissingError, match=r"pyarrow, .*'t.parquet', is not installed: .*or use .csv or .npz"):
        read_table(Path("t.parquet"))
