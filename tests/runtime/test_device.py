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
    for text in ("tpu", "cuda:", "cuda:-1", 3):
        with pytest.raises(DeviceError, match=r"expected 'cpu', 'cuda', 'cuda:<number>'"):
            Device.parse(text)


def test_device_without_a_provider(monkeypatch):
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(DeviceError, match=r"'cuda:1' needs CUDAExecutionProvider, onnxruntime \S+ has CPUExec"):
        Session(b"", device="cuda:1")


def test_device_number_reaches_the_provider(monkeypatch):
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
    device = Device.parse("cuda:1")
    assert str(device) == "cuda:1"
    assert device.providers[0] == ("CUDAExecutionProvider", {"device_id": "1", "use_tf32": "0"})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("code", [
    "from ortpartial.runtime import Interrupt; Interrupt()",
    "from ortpartial import *; x = variable('x', 'float32', ['N', 1]); w = constant([[0.0]], hint='w'); "
    "OrtGradientForwardBackwardOptimizer(build([x], {'y': x @ w}))",
    "from ortpartial import OnnxRegressor; OnnxRegressor().fit([[0.0], [1.0]], [0.0, 1.0])"],
    ids=["runtime", "optimizer", "estimator"])
def test_runtime_missing(code):
    """The first use says which commands install one."""
    code = f"import sys; sys.modules['onnxruntime'] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert "RuntimeMissingError: No onnxruntime" in done.stderr
    assert "`pip install '.[cpu]'`" in done.stderr
    assert issubclass(RuntimeMissingError, ImportError)


def test_version_and_training():
    assert runtime_version()[0] in "12"
    assert isinstance(has_training(), bool)


def test_a_pickle_holds_no_object_of_onnxruntime():
    device = Device.parse("cpu")
    assert device.ort is not None
    assert pickle.loads(pickle.dumps(device)) == device


def test_import_of_the_bindings_alone():
    """The front end of onnxruntime-training, and torch with it, is imported when something reads it."""
    code = ("import sys\nfrom ortpartial.runtime import Device, has_training\nDevice.parse('cpu')\n"
            "print(sys.modules.keys() & {'torch', 'sympy', 'onnxruntime.training'}, len(sys.meta_path))\n"
            "import onnxruntime as o\nprint(hasattr(o, 'training') == has_training(), hasattr(o, 'any'))\n"
            "if has_training(): from onnxruntime.training import artifacts")
    done = subprocess.run([sys.executable, "-c", f"import sys; print(len(sys.meta_path)); {code}"], env=environment(),
                          capture_output=True, text=True, check=True)
    before, after, attributes = done.stdout.splitlines()
    assert after == f"set() {before}"
    assert attributes == "True False"


@pytest.mark.parametrize(("device", "name"), [
    ("cpu", "cpu"), ("CPUExecutionProvider", "cpu"), (("CPUExecutionProvider", {}), "cpu"),
    ("AProvider", "AProvider"), (["AProvider", {"n": 2, "on": True}], "AProvider:n=2,on=true"),
    ("AProvider:n=2", "AProvider:n=2"), (("AProvider:n=2", {"n": 3}), "AProvider:n=3"),
    (("AProvider", {"config": {"n": [1, 2]}}), 'AProvider:{"config": "{\\"n\\": [1, 2]}"}'),
    ("cuda:1", "cuda:1"), (("CUDAExecutionProvider", {"device_id": 1}), "cuda:1"),
    (("CUDAExecutionProvider", {"device_id": 1, "use_tf32": 1}), "CUDAExecutionProvider:device_id=1,use_tf32=1")])
def test_names_of_execution_providers(monkeypatch, device, name):
    """A name, or a pair of a name and options, as onnxruntime takes them, and a text for the command line."""
    monkeypatch.setattr("onnxruntime.get_available_providers",
                        lambda: ["AProvider", "CUDAExecutionProvider", "CPUExecutionProvider"])
    parsed = Device.parse(device)
    assert str(parsed) == name
    assert Device.parse(str(parsed)) == parsed
    assert pickle.loads(pickle.dumps(parsed)) == parsed
    assert parsed.is_provider == name.startswith("AProvider")


def test_options_reach_the_provider(monkeypatch):
    """On CUDA float32 is not rounded to TF32, unless that is asked for."""
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["AProvider", "CUDAExecutionProvider"])
    assert Device.parse("AProvider:n=2").providers[0] == ("AProvider", {"n": "2"})
    assert Device.parse("cuda").providers[0][1]["use_tf32"] == "0"
    assert Device.parse(("CUDAExecutionProvider", {"use_tf32": 1})).providers[0][1]["use_tf32"] == "1"


@pytest.mark.parametrize(("device", "message"), [
    (("cpu", {"n": 1}), "the CPU has neither a number nor options: write 'cpu'"),
    ("cpu:1", "the CPU has neither a number nor options: write 'cpu'"),
    ("AProvider:n", "options are written 'name=value,name=value' or as a JSON object"),
    (("cpu", 1), "or a pair of this name and a dict of options"),
    ("NoneExecutionProvider", r"does not have; it has \S.*: install a runtime or a plug-in that brings it"),
    ("QNNExecutionProvider", "does not have; it has .*: install onnxruntime-qnn instead of this runtime")])
def test_wrong_execution_providers(device, message):
    with pytest.raises(DeviceError, match=message):
        Device.parse(device)


def test_a_missing_plug_in(monkeypatch):
    monkeypatch.setattr("ortpartial.runtime.device.plug_in_devices", lambda name: [])
    with pytest.raises(DeviceError, match=r"'OpenVINOExecutionProvider' is an execution provider that onnxruntime \S+ "
                                          r"does not have; it has .*: install onnxruntime-ep-openvino, beside"):
        Device.parse("OpenVINOExecutionProvider:num_streams=1")


def test_a_plug_in_that_does_not_load(monkeypatch):
    def fail(name):
        raise OSError("libtbb.so.12: cannot open shared object file")

    monkeypatch.setattr("ortpartial.runtime.device.plug_in_devices", fail)
    with pytest.raises(DeviceError, match=r"The plug-in of the execution provider 'AProvider' cannot be loaded: lib"):
        Device.parse("AProvider")
