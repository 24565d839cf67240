"""Devices and their names, and the errors for a missing device or runtime."""

import pickle
import subprocess
import sys

import pytest
from paths import environment

from ortpartial.exceptions import DeviceError, RuntimeMissingError
from ortpartial.runtime.device import Device, has_training, runtime_version
from ortpartial.runtime.session import Session


def test_device():
    assert str(Device.parse("cpu")) == "cpu"
    assert Device.parse(Device.parse("cpu")) is not None
    for text in ("tpu", "cpu:1", "cuda:", "cuda:-1", 3):
        with pytest.raises(DeviceError, match=r"expected 'cpu', 'cuda' or 'cuda:<number>'"):
            Device.parse(text)


def test_device_without_a_provider(monkeypatch):
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(DeviceError, match=r"'cuda:1' needs CUDAExecutionProvider, onnxruntime \S+ has CPUExec"):
        Session(b"", device="cuda:1")


def test_device_number_reaches_the_provider(monkeypatch):
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
    device = Device.parse("cuda:1")
    assert str(device) == "cuda:1"
    assert device.providers[0] == ("CUDAExecutionProvider", {"device_id": "1"})


def test_runtime_missing():
    code = ("import sys; sys.modules['onnxruntime'] = None\n"
            "from ortpartial.runtime import Interrupt; Interrupt()")
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert "RuntimeMissingError: No onnxruntime" in done.stderr
    assert "`pip install ortpartial[cpu]`" in done.stderr
    assert issubclass(RuntimeMissingError, ImportError)


def test_version_and_training():
    assert runtime_version()[0] in "12"
    assert isinstance(has_training(), bool)


def test_a_pickle_holds_no_object_of_onnxruntime():
    device = Device.parse("cpu")
    assert device.ort is not None
    assert pickle.loads(pickle.dumps(device)) == device
