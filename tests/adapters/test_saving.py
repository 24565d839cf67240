"""Every trainer saves its adapter, in the form that the path says."""

import numpy as np
import onnx
import pytest
from models import data, mlp

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingSession
from ortpartial.adapters import add_ia3, add_lora, load_adapter, save_adapter
from ortpartial.exceptions import ConvergenceError, ModelError, RuntimeMissingError, SettingError
from ortpartial.model import read_adapter
from ortpartial.runtime import runtime_version
from ortpartial.torch import OnnxLayer

X, Y, _ = data(20)


def arrays_of(proto):
    return {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}


@pytest.fixture
def optimizer():
    adapted = add_lora(mlp(), ["W1", "W2"], rank=2, random_state=0)
    return OrtGradientForwardBackwardOptimizer(adapted, "adapter", max_iter=2, random_state=0).fit(X, Y)


@pytest.mark.parametrize("what", ["optimizer", "session", "layer", "path", "bytes", "model"])
def test_what_can_be_saved(tmp_path, optimizer, what):
    proto = optimizer.get_trained_onnx()
    onnx.save(proto, tmp_path / "trained.onnx")
    trained = {"optimizer": lambda: optimizer, "layer": lambda: OnnxLayer(proto, trainable="adapter"),
               "session": lambda: TrainingSession(optimizer.get_training_onnx(init="model")), "model": lambda: proto,
               "path": lambda: tmp_path / "trained.onnx", "bytes": proto.SerializeToString}[what]()
    save_adapter(trained, tmp_path / "my.safetensors")
    loaded = arrays_of(load_adapter(mlp(), tmp_path / "my.safetensors"))
    expected = arrays_of(proto)
    assert loaded.keys() == expected.keys()
    for name, a in expected.items():
        np.testing.assert_allclose(loaded[name], a, rtol=1e-6)


def test_a_loaded_adapter_is_trained_further(tmp_path, optimizer):
    save_adapter(optimizer, tmp_path / "folder")
    assert sorted(p.name for p in (tmp_path / "folder").iterdir()) == ["adapter_config.json",
                                                                       "adapter_model.safetensors"]
    loaded = load_adapter(mlp(), tmp_path / "folder")
    further = OrtGradientForwardBackwardOptimizer(loaded, "adapter", max_iter=3, random_state=0).fit(X, Y)
    assert further.train_losses_[-1] < optimizer.train_losses_[-1]


def test_the_model_of_the_caller_is_not_written_to(tmp_path, optimizer):
    proto = optimizer.get_trained_onnx()
    before = proto.SerializeToString(deterministic=True)
    save_adapter(proto, tmp_path / "my.safetensors", base=tmp_path / "base.onnx")
    load_adapter(proto, tmp_path / "my.safetensors")
    assert proto.SerializeToString(deterministic=True) == before


def test_a_runtime_without_adapter_files(tmp_path, optimizer, monkeypatch):
    monkeypatch.delattr("onnxruntime.AdapterFormat", raising=False)
    message = rf"onnxruntime {runtime_version()} has no AdapterFormat, .* path that ends in \.safetensors"
    with pytest.raises(RuntimeMissingError, match=message):
        save_adapter(optimizer, tmp_path / "my.onnx_adapter", base=tmp_path / "base.onnx")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_saved(tmp_path, optimizer):
    with pytest.raises(ModelError, match=r"The model holds no adapter; add one by add_lora, add_dora or add_ia3"):
        save_adapter(mlp(), tmp_path / "my.safetensors")
    for name in ("my.onnx", "adapter.bin"):
        with pytest.raises(SettingError, match=rf"{name}' is to end in \.onnx_adapter or \.safetensors, or to name"):
            save_adapter(optimizer, tmp_path / name)
    save_adapter(optimizer, tmp_path / "my.safetensors", base=tmp_path / "base.onnx")
    with pytest.raises(SettingError, match=r"path and base are both '.*my.safetensors'; the base is a model, such as"):
        save_adapter(optimizer, str(tmp_path / "my.safetensors"), base=tmp_path / "my.safetensors")
    with pytest.raises(ModelError, match="The model is a base that `save_adapter` has written, whose adapters are inp"):
        save_adapter(tmp_path / "base.onnx", tmp_path / "other.safetensors")
    proto = optimizer.get_trained_onnx()
    broken = next(t for t in proto.graph.initializer if t.name == read_adapter(proto).weights[0])
    broken.CopyFrom(onnx.numpy_helper.from_array(np.full(list(broken.dims), np.nan, np.float32), broken.name))
    with pytest.raises(ConvergenceError, match=f"'{broken.name}' is no longer finite, and nothing is written"):
        save_adapter(proto, tmp_path / "other.safetensors")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["base.onnx", "my.safetensors"]


@pytest.mark.parametrize("add", [add_lora, add_ia3])
def test_a_base_has_no_adapter_to_train(tmp_path, add):
    save_adapter(add(mlp(), "W1"), tmp_path / "my.safetensors", base=tmp_path / "base.onnx")
    with pytest.raises(ModelError, match="whose adapters are inputs; train the model that `load_adapter` makes of it"):
        OrtGradientForwardBackwardOptimizer(tmp_path / "base.onnx", "adapter")
    with pytest.raises(ModelError, match="whose adapters are inputs; give the model that was trained"):
        save_adapter(tmp_path / "base.onnx", tmp_path / "other.safetensors")
