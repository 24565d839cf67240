"""Writing a kit: its files, the sizes that there are steps for, and refusals."""

import re

import numpy as np
import onnx
import pytest
from models import mlp, weights_of

from ortpartial import OrtGradientForwardBackwardOptimizer, write_kit
from ortpartial.exceptions import ModelError, SettingError
from ortpartial.kits.manifest import read_manifest


@pytest.fixture(scope="module")
def model():
    return OrtGradientForwardBackwardOptimizer(mlp(), random_state=0).get_training_onnx("lowered", init="model")


def test_the_files(model, tmp_path):
    files = write_kit(model, tmp_path / "kit", (), batch_size=8)
    assert sorted(files) == ["README.md", "kit.json", "model.onnx", "state.safetensors", "step.onnx"]
    assert all(path.is_file() for path in files.values())
    manifest = read_manifest(tmp_path / "kit")
    assert (manifest.batch_size, [t.name for t in manifest.inputs]) == (8, ["x", "y_target"])


def test_weights_are_where_the_manifest_says(model, tmp_path):
    """A runner writes them into the file of the model."""
    write_kit(model, tmp_path / "kit", ())
    data = (tmp_path / "kit" / "model.onnx").read_bytes()
    weights = weights_of(onnx.load_model_from_string(data))
    for name, offset in read_manifest(tmp_path / "kit").weights.items():
        stored = np.frombuffer(data, np.float32, weights[name].size, offset)
        np.testing.assert_array_equal(stored, weights[name].ravel())


def test_steps_of_former_sizes_are_removed(model, tmp_path):
    write_kit(model, tmp_path / "kit", (), batch_sizes=[4, 8])
    assert {p.name for p in (tmp_path / "kit").glob("step*")} == {"step-4.onnx", "step-8.onnx"}
    write_kit(model, tmp_path / "kit", (), batch_sizes=[8])
    assert {p.name for p in (tmp_path / "kit").glob("step*")} == {"step-8.onnx"}


@pytest.mark.parametrize(("sizes", "message"), [
    ([], "batch_sizes is empty; leave it out for batches of any size."),
    (8, "batch_sizes is a list, not 8."),
    ([0], "batch_sizes is a whole number of at least 1, not 0."),
])
def test_sizes_that_are_refused(model, tmp_path, sizes, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        write_kit(model, tmp_path / "kit", (), batch_sizes=sizes)
    assert not (tmp_path / "kit").exists()


def test_a_model_without_a_training(tmp_path):
    with pytest.raises(ModelError, match=r"A kit holds one training step, and the model has 0 entries of"):
        write_kit(mlp(), tmp_path / "kit", ())
