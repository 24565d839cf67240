"""Roles of columns: by name, by pattern, all others; labels as texts; roles in a model."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import linear

from ortpartial import NegLogLearningLoss, SoftmaxCrossEntropyLearningLoss, SquareLearningLoss, variable
from ortpartial.cli.roles import Roles, load_roles, read_columns, store_roles
from ortpartial.exceptions import DataError, SettingError

PATH = Path("data.csv")
COLUMNS = {"a": np.arange(3.0), "b": np.arange(3), "city": np.array(["x", "y", "z"]), "y": np.arange(3),
           "kind": np.array(["dog", "cat", "dog"])}
X = {"x": variable("x", "float32", ["N", 2])}
OUT = {"out": variable("out", "float32", ["N", 2])}


def test_features():
    roles, texts = Roles(target=["y"]).with_features(COLUMNS, X, None, PATH)
    assert (roles.features, texts) == ({"x": ["a", "b"]}, ["city", "kind"])
    roles, texts = Roles().with_features(COLUMNS, X, ["b", "[a]"], PATH)
    assert (roles.features, texts) == ({"x": ["b", "a"]}, [])
    assert np.asarray(roles.select_inputs(COLUMNS, X)["x"]).tolist() == [[0, 0], [1, 1], [2, 2]]
    two = {"a": variable("a", "float32", ["N"]), "x": variable("x", "float32", ["N", 1])}
    roles, _ = Roles(target=["y"]).with_features(COLUMNS, two, None, PATH)
    assert roles.features == {"a": ["a"], "x": ["b"]}
    inputs = roles.select_inputs(COLUMNS, two)
    assert (np.shape(inputs["a"]), np.shape(inputs["x"])) == ((3,), (3, 1))


def test_arrays():
    """An array of images feeds the input that is left."""
    arrays = {"images": np.zeros((3, 1, 8, 8)), "y": np.zeros(3), "scale": np.array(2.0)}
    v = {"x": variable("x", "float32", ["N", 1, 8, 8])}
    roles, _ = Roles(target=["y"]).with_features(arrays, v, None, PATH)
    assert roles.select_inputs(arrays, v)["x"] is arrays["images"]


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (lambda r: r.with_features(COLUMNS, X, None, PATH),
         "The input 'x' has 2 columns, and 'data.csv' has 3 for it: 'a', 'b', 'y', beside texts: 'city', 'kind'; name "
         "them by --features"),
        (lambda r: r.with_features({"a": COLUMNS["a"]}, X, None, PATH),
         "The input 'x' has 2 columns, and 'data.csv' has 1 for it: 'a'; name them by --features"),
        (lambda r: r.with_features(COLUMNS, X, ["Kind"], PATH), "'data.csv' has no column 'Kind'; did you mean 'kin"),
        (lambda r: r.with_features(COLUMNS, {**X, "z": X["x"]}, None, PATH),
         "The model has the inputs 'x', 'z', and 'data.csv' has no column 'x'; it has 'a', 'b'"),
        (lambda r: r.with_features({"kind": COLUMNS["kind"]}, X, None, PATH),
         "'data.csv' has no column for the input 'x'"),
        (lambda r: Roles(outputs=["out"]).with_target({"a": COLUMNS["a"]}, None, PATH),
         "Say which column is the target, by --target; 'data.csv' has 'a'."),
        (lambda r: Roles(outputs=["p", "q"]).with_target(COLUMNS, ["y", "a"], PATH),
         "The trained outputs are 'p', 'q'; the columns of their targets are to have the same names"),
        (lambda r: Roles(outputs=["out"], target=["kind"]).with_labels(COLUMNS, {"out": SquareLearningLoss()}, OUT),
         "The target 'kind' is of texts, such as 'dog', and SquareLearningLoss is for numbers"),
        (lambda r: Roles(target=["kind"], labels={"kind": ["cat", "cow"]}).select_target(COLUMNS, PATH),
         "The column 'kind' of 'data.csv' has the label 'dog' in row 1, where 'cat', 'cow' were expected."),
    ],
    ids=range(9),
)
def test_errors(find, message):
    with pytest.raises(DataError, match=re.escape(message)):
        find(Roles())


@pytest.mark.parametrize(
    ("values", "classes", "labels", "numbers"),
    [([1, 3, 2], 3, [1, 2, 3], [0, 2, 1]), ([0, 2, 5], 6, None, [0, 2, 5]), ([-1, 1, 1], 2, [-1, 1], [0, 1, 1]),
     ([7, 8, 9], 2, None, [7, 8, 9])],
)
def test_labels_that_are_numbers(values, classes, labels, numbers):
    """They are numbered where they are no classes, as 1 to 3; too many are left to the error of the training."""
    columns, y = {"y": np.array(values)}, {"out": variable("out", "float32", ["N", classes])}
    roles = Roles(outputs=["out"], target=["y"]).with_labels(columns, {"out": SoftmaxCrossEntropyLearningLoss()}, y)
    assert roles.labels.get("y") == labels
    assert roles.select_target(columns, PATH).tolist() == numbers


@pytest.mark.parametrize("loss", [NegLogLearningLoss(), SoftmaxCrossEntropyLearningLoss()])
def test_labels(loss):
    roles = Roles(outputs=["out"]).with_target(COLUMNS, ["kind"], PATH).with_labels(COLUMNS, {"out": loss}, OUT)
    assert roles.labels == {"kind": ["cat", "dog"]}
    assert roles.select_target(COLUMNS, PATH).tolist() == [1, 0, 1]


def test_labels_of_a_former_training_stay():
    roles = Roles(target=["kind"], outputs=["out"], labels={"kind": ["bird", "cat", "dog"]})
    roles = roles.with_labels(COLUMNS, {"out": SoftmaxCrossEntropyLearningLoss()}, OUT)
    assert roles.select_target(COLUMNS, PATH).tolist() == [2, 1, 2]


def test_roles_in_a_model():
    model, roles = linear(), Roles({"x": ["a", "b"]}, ["kind"], ["y"], "w", {"kind": ["ä", "b"]}, ["square"])
    assert load_roles(model) == Roles()
    store_roles(model, Roles())
    store_roles(model, roles)
    assert load_roles(onnx.ModelProto.FromString(model.SerializeToString())) == roles
    for text in ("{", "[]", '{"a": 1}', '{"features": []}', '{"features": {"x": []}}', '{"target": "y"}',
                 '{"labels": {"y": [1, "a"]}}', '{"weight": 1}'):
        model.metadata_props[0].value = text
        with pytest.raises(SettingError, match="metadata, which is not as ortpartial writes it"):
            load_roles(model)


class Evil:
    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.parametrize("name", ["y", "unused"])
def test_nothing_is_unpickled(tmp_path, name):
    path = tmp_path / "evil.npz"
    np.savez(path, x=np.zeros((3, 2)), **{name: np.array([Evil()] * 3, object)})
    with pytest.raises(DataError, match=f"The array '{name}' of .*evil.npz' cannot be read: it holds Python objects."):
        read_columns(path)


def test_files(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.zeros((2, 3)), kind=np.array(["a", "b"]), other=np.array([b"a", b"\xc3\xa4"]))
    columns = read_columns(tmp_path / "d.npz")
    assert columns["kind"].tolist() == ["a", "b"]
    assert columns["other"].tolist() == ["a", "ä"]
    np.savez(tmp_path / "e.npz", x=np.zeros((2, 3)), y=np.zeros(3))
    with pytest.raises(DataError, match="different numbers of rows"):
        read_columns(tmp_path / "e.npz")
    with pytest.raises(DataError, match=r"There is no file .*; give an .npz, .csv, .parquet or .arrow file of rows."):
        read_columns(tmp_path / "none.csv")
