"""The manifest of a kit: written and read again, refused where damaged, and arrays that do not fit."""

import json
import re

import numpy as np
import pytest

from ortpartial.exceptions import DataError, ModelError
from ortpartial.kits.manifest import Manifest, Tensor, read_manifest

INPUTS = Tensor("x", "float32", ("N", 3)), Tensor("t", "int64", ("N",), 0, 2, -100)
MANIFEST = Manifest(4, {None: "step.onnx"}, INPUTS, (Tensor("loss", "float32", ()),), (Tensor("w", "float32", (3, 1)),),
                    {"w": 120})


def write(folder, text):
    (folder / Manifest.NAME).write_text(text)
    return folder


def test_written_and_read(tmp_path):
    assert read_manifest(write(tmp_path, MANIFEST.to_json())) == MANIFEST


@pytest.mark.parametrize("change", [
    {"batch_size": 0}, {"batch_size": "4"}, {"steps": []}, {"inputs": {}}, {"format": "another"}, {"version": 1.0},
    {"steps": [{"file": "../step.onnx", "batch_size": None}]}, {"state": {"file": "other", "tensors": []}}])
def test_a_damaged_one(tmp_path, change):
    text = json.dumps({**json.loads(MANIFEST.to_json()), **change})
    with pytest.raises(ModelError, match=r"kit\.json is no manifest of a training kit\."):
        read_manifest(write(tmp_path, text))


def test_a_newer_one(tmp_path):
    with pytest.raises(ModelError, match=r"kit\.json is of version 2, and this runner reads version 1: take"):
        read_manifest(write(tmp_path, MANIFEST.to_json().replace('"version": 1', '"version": 2')))


def test_the_step_of_a_batch():
    fixed = Manifest(4, {4: "step-4.onnx", 8: "step-8.onnx"}, (), (), (), {})
    assert fixed.find_step(8) == "step-8.onnx"
    assert MANIFEST.find_step(5) == "step.onnx"
    with pytest.raises(DataError, match=r"The kit has steps for batches of 4 or 8 rows, not of 5\."):
        fixed.find_step(5)


@pytest.mark.parametrize(("index", "array", "message"), [
    (0, np.zeros((5, 3)), "Input 'x' is float64, where float32 is expected."),
    (0, np.zeros((5, 2), np.float32), "Input 'x' has the shape [5, 2], where [N, 3] is expected."),
    (0, np.zeros(5, np.float32), "where [N, 3] is expected; where these are labels of classes, export the kit with"),
    (1, np.array([0, 3]), "Input 't' has values from 0 to 3, where 0 to 2 are expected, or -100 for what does not"),
])
def test_arrays_that_do_not_fit(index, array, message):
    with pytest.raises(DataError, match=re.escape(message)):
        MANIFEST.inputs[index].check(array)


def test_arrays_that_fit():
    MANIFEST.inputs[0].check(np.zeros((5, 3), np.float32))
    MANIFEST.inputs[1].check(np.array([2, -100, 0]))
