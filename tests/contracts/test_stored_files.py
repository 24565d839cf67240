"""Files of every released version are read as STABILITY.md promises, and training goes on from them."""

import pickle
import shutil

import numpy as np
import pytest
from once import ON_BOTH
from stored_files import STORED, X, Y, model, module, optimizer

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingKit, TrainingSession, load_adapter, read_c_state
from ortpartial.runtime import Session, has_adapter_files

pytestmark = [ON_BOTH, pytest.mark.parametrize("version", sorted(p.name for p in STORED.iterdir()))]


def expect(version, name):
    """The numbers of a name that were stored beside the files."""
    with np.load(STORED / version / "numbers.npz") as numbers:
        arrays = {n.partition(":")[2]: numbers[n] for n in numbers if n.startswith(f"{name}:")}
    assert arrays
    return arrays


def assert_close(found, expected, tolerance=1e-6):
    assert sorted(found) == sorted(expected)
    for n, a in expected.items():
        np.testing.assert_allclose(np.asarray(found[n]), a, rtol=tolerance, atol=tolerance, err_msg=n)


def assert_goes_on(trained, version):
    """It has the stored weights, and one epoch later those that the training had."""
    assert_close(trained.trained_coef_, expect(version, "weights"), 0)
    assert_close({"y": trained.predict(X)}, expect(version, "predicted"))
    trained.partial_fit(X, Y)
    assert_close(trained.trained_coef_, expect(version, "next_weights"), 1e-5)


def test_a_checkpoint(version):
    trained = optimizer()
    trained.load_checkpoint(STORED / version / "checkpoint.safetensors")
    assert_goes_on(trained, version)


def test_a_pickle(version):
    assert_goes_on(pickle.loads((STORED / version / "optimizer.pickle").read_bytes()), version)


def test_a_training_in_its_model(version):
    session = TrainingSession(STORED / version / "training.onnx")
    assert_close(session.state, expect(version, "state"), 0)
    outputs = session.step({"x": X[:4], "y_target": Y[:4]})
    assert_close({"loss": outputs["loss"]}, expect(version, "next_loss"))
    again = OrtGradientForwardBackwardOptimizer.from_training_info(STORED / version / "training.onnx")
    assert_close({"y": again.predict(X)}, expect(version, "predicted"))


def test_a_trained_model(version):
    path = STORED / version / "trained.onnx"
    assert_close(Session(path.read_bytes()).run({"x": X}), expect(version, "predicted"))
    trained = OrtGradientForwardBackwardOptimizer(path, max_iter=1, batch_size=4)
    assert_close({"y": trained.fit(X, Y).predict(X).shape}, {"y": Y.shape})


def test_a_kit(version, tmp_path):
    shutil.copytree(STORED / version / "kit", tmp_path / "kit")
    kit = TrainingKit(tmp_path / "kit")
    loss = kit.step({"x": X[:4], "y_target": Y[:4]})["loss"]
    assert_close({"loss": loss}, expect(version, "next_loss"))
    kit.save()
    again = TrainingKit(tmp_path / "kit").step({"x": X[4:], "y_target": Y[4:]})["loss"]
    assert again == kit.step({"x": X[4:], "y_target": Y[4:]})["loss"]


def test_a_state_of_c(version):
    folder = STORED / version / "c"
    assert_close(read_c_state(folder, (folder / "state.bin").read_bytes()), expect(version, "state"), 0)


def test_a_module(version):
    expected = expect(version, "module")
    states, saved = module(), module()
    assert states.load_states(STORED / version / "states.safetensors") == {"epoch": 3}
    assert saved.load(STORED / version / "module.onnx", include_state=True) == {"epoch": 3}
    for m in (states, saved):
        assert_close({"y": m(X)}, expected)
    losses = [m.fit(X, Y, epochs=1).history_[-1]["loss"] for m in (states, saved)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", ["adapter", "adapter.safetensors", "adapter.onnx_adapter"])
def test_an_adapter(version, name):
    if name.endswith(".onnx_adapter") and not has_adapter_files():
        pytest.skip("onnxruntime 1.20 or later reads .onnx_adapter")
    adapted = load_adapter(model(), STORED / version / name)
    assert_close(Session(adapted.SerializeToString()).run({"x": X}), expect(version, "adapter"))
