"""Rows of .npz and .csv files become arrays of the inputs of a step, or errors that name the place."""

import re
from pathlib import Path

import numpy as np
import pytest
from models import data, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingSession
from ortpartial.exceptions import DataError
from ortpartial.training_info.rows import count_rows, read_rows, select_rows, split_rows


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return TrainingSession(OrtGradientForwardBackwardOptimizer(mlp(features=2)).get_training_onnx())


def test_columns(session):
    """Those named like an input feed it, all others the one that is left; integers stay integers."""
    Path("data.CSV").write_text('\ufeffa,y_target,"b"\r\n1,2,3.5\r\n\r\n4,5,-1e3\r\n', encoding="utf-8")
    rows = read_rows("data.CSV", session)
    np.testing.assert_array_equal(rows["x"], [[1, 3.5], [4, -1000]])
    np.testing.assert_array_equal(rows["y_target"], [[2], [5]])
    assert rows["y_target"].dtype == np.int64
    assert session.step(rows)["loss"].shape == ()


def test_labels_of_rank_one(tmp_path):
    """A column feeds an input of shape (rows,)."""
    model = OrtGradientForwardBackwardOptimizer(mlp(features=2, outputs=3), learning_loss="softmax_cross_entropy")
    session = TrainingSession(model.get_training_onnx())
    (tmp_path / "data.csv").write_text("a,b,y_target\n1,2,0\n3,4,2\n")
    assert read_rows(tmp_path / "data.csv", session)["y_target"].tolist() == [0, 2]
    session.step(read_rows(tmp_path / "data.csv", session))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "The first line of 'data.csv' does not name the columns."),
        ("1,2,3\n4,5,6\n", "The first line of 'data.csv' does not name the columns."),
        ("a,a,y_target\n1,2,3\n", "'data.csv' has two columns of the name 'a'."),
        ("a,b,y_target\n1,2,3\n1,2\n", "Line 3 of 'data.csv' has 2 values, and there are 3 columns."),
        ("a,b,y_target\n1,2,3\n1,Paris,2\n",
         "Line 3 of 'data.csv' has 'Paris' in the column 'b', which is no number."),
        ("a,b,y_target\n1,,3\n", "Line 2 of 'data.csv' has '' in the column 'b', which is no number."),
        ("a,b,c\n1,2,3\n", "'data.csv' lacks 'x'; a step reads 'x', 'y_target'."),
        ("y_target\n3\n", "'data.csv' lacks 'x'; a step reads 'x', 'y_target'."),
        ("a,b,y_target\n", "'data.csv': There are no rows."),
    ],
)
def test_errors_of_columns(session, text, message):
    Path("data.csv").write_text(text)
    with pytest.raises(DataError, match=re.escape(message)):
        read_rows("data.csv", session)


def test_binary_columns(session):
    Path("data.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"'data.csv' is no text of comma-separated values: "):
        read_rows("data.csv", session)


def test_errors_of_arrays(session):
    X, y, _ = data(20, features=2)
    np.savez("data.npz", x=X, y_target=y)
    np.savez("uneven.npz", x=X, y_target=y[:3])
    np.savez("short.npz", x=X)
    np.save("array.npy", X)
    Path("cut.npz").write_bytes(Path("data.npz").read_bytes()[:300])
    Path("empty.npz").touch()
    for name in ("array.npy", "cut.npz", "empty.npz"):
        with pytest.raises(DataError, match=rf"'{name}' is no .npz file of arrays of numbers, and no .csv file."):
            read_rows(name, session)
    with pytest.raises(DataError, match=r"'uneven.npz': The arrays have different numbers of rows: 'x' 20, 'y_target'"):
        read_rows("uneven.npz", session)
    with pytest.raises(DataError, match=r"'short.npz' lacks 'y_target'"):
        read_rows("short.npz", session)


def test_select_and_split():
    rows = {"x": np.arange(10), "scale": np.array(0.5)}
    assert count_rows(rows) == 10
    assert select_rows(rows, np.array([2, 0]))["x"].tolist() == [2, 0]
    rest, apart = split_rows(rows, 0.3, np.random.default_rng(0))
    assert sorted([*rest["x"], *apart["x"]]) == list(range(10))
    assert (len(rest["x"]), len(apart["x"]), apart["scale"]) == (7, 3, 0.5)
    assert split_rows(rows, 0.3)[1]["x"].tolist() == [7, 8, 9]
    assert [len(part["x"]) for part in split_rows({"x": np.arange(2)}, 0.01)] == [1, 1]
    with pytest.raises(DataError, match=r"There is only one row"):
        split_rows({"x": np.arange(1)}, 0.5)
