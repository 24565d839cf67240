"""The model of a kit with the weights of a state, and its predictions for rows."""

import numpy as np
import onnx
import pytest
from kits import make_data, write_kit_and_data, write_kit_of_two_inputs
from models import linear

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingKit
from ortpartial.exceptions import DataError, ModelError
from ortpartial.model import read_tensors


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return write_kit_and_data(tmp_path_factory.mktemp("kits") / "kit", "linear", "sgd")


def test_a_model_reads_what_no_step_does_and_has_several_outputs(tmp_path, rng):
    kit = TrainingKit(write_kit_of_two_inputs(tmp_path / "kit", rng))
    data, _ = read_tensors(kit.folder / "data.safetensors")
    outputs = kit.predict(data)
    assert list(outputs) == ["y", "both"]
    assert [t.name for t in kit.manifest.inputs] == ["x", "y_target"]
    np.testing.assert_allclose(outputs["y"], data["x"] @ kit.state["w"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(outputs["both"], np.hstack([outputs["y"], data["z"]]))
    with pytest.raises(DataError, match=r"Input 'z' has the shape \[7, 3\], where \[N, 2\] is expected"):
        kit.predict({**data, "z": data["x"]})


@pytest.mark.parametrize(("change", "message"), [
    (lambda d: d.pop("x"), r"The data lack the input 'x'\."),
    (lambda d: d.update(x=d["x"][:, :63]), r"Input 'x' has the shape \[300, 63\], where \[N, 64\] is expected\."),
    (lambda d: d.update(z=d["x"]), "Unknown input: 'z'"),
])
def test_rows_that_a_model_does_not_take(kit, change, message):
    data = make_data("linear")
    change(data)
    with pytest.raises(DataError, match=message):
        kit.predict(data)


def test_a_model_of_a_fixed_number_of_rows(tmp_path):
    OrtGradientForwardBackwardOptimizer(linear(3, rows=4)).export_step(tmp_path / "kit", targets=())
    kit = TrainingKit(tmp_path / "kit")
    assert kit.predict({"x": np.ones((4, 3))})["y"].shape == (4, 1)
    with pytest.raises(DataError, match=r"Input 'x' has 5 rows, and the model takes 4 alone"):
        kit.predict({"x": np.ones((5, 3))})


def test_a_model_that_is_not_that_of_the_kit(tmp_path):
    kit = write_kit_and_data(tmp_path / "kit", "linear", "sgd")
    onnx.save(linear(64, 9), kit.folder / "model.onnx")
    with pytest.raises(ModelError, match=r"model\.onnx is not that of kit\.json: export the kit again"):
        kit.predict(make_data("linear"))
    (kit.folder / "model.onnx").write_bytes(b"damaged")
    with pytest.raises(ModelError, match=r"model\.onnx is damaged: export the kit again"):
        kit.save_model(tmp_path / "trained.onnx")
    assert not (tmp_path / "trained.onnx").exists()
