"""Execution providers by name: options, precision, placement of nodes, and nodes that fall back to the CPU."""

import pickle
import subprocess
import sys
import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto
from paths import environment
from providers import OPENVINO, RNG, X, azure, distance, network, openvino

from ortpartial.exceptions import DeviceError, DeviceWarning, RuntimeMissingError
from ortpartial.graph import build, op, variable
from ortpartial.runtime import Buffer, Device, NodePlacement, Session, TrainingAgent, execution_providers, has_training
from ortpartial.runtime.execution_providers import add_provider, find_faults


def products(dtype="float32"):
    x = variable("x", dtype, [64, 64])
    return build([x], {"y": op.Relu(x @ x) @ x})


@azure
def test_a_provider_that_takes_nothing():
    with pytest.warns(DeviceWarning, match="^The graph 'ortpartial': the CPU runs all nodes, as AzureExecutionProvider "
                                           "takes none of them.$"):
        session = Session(products(), device="AzureExecutionProvider")
    assert [o for _, o in session.placement.nodes["CPUExecutionProvider"]] == ["MatMul", "Relu", "MatMul"]
    x = RNG.normal(size=(64, 64)).astype(np.float32)
    assert (session.run({"x": x})["y"] == Session(products()).run({"x": x})["y"]).all()


@azure
def test_a_dtype_that_a_provider_computes_in_fewer_bits_runs_on_the_cpu(monkeypatch):
    x, k = variable("x", "float32", [2]), variable("k", "int64", [])
    b = op.Cast(0.9 ** op.Cast(k, to=TensorProto.DOUBLE), to=TensorProto.FLOAT)
    graph = build([x, k], {"y": op.Relu(x) / b, "next": k + 1, "b": b})
    monkeypatch.setattr("ortpartial.runtime.session.find_faults",
                        lambda device, dtypes: {TensorProto.DOUBLE: "computes float64 in fewer bits"})
    with pytest.warns(DeviceWarning):
        session = Session(graph, device="AzureExecutionProvider")
    assert session.inputs == ["x", "k"]
    assert session.outputs == ["y", "next", "b"]
    feeds = {"x": np.float32([1, -1]), "k": np.array(2)}
    expected = Session(graph).run(feeds)
    assert all((session.run(feeds)[n] == v).all() for n, v in expected.items())
    binding, k, new = session.binding(), Buffer(np.array(2)), Buffer(np.array(0))
    binding.bind_input("x", feeds["x"])
    binding.bind_input("k", k)
    binding.bind_output("next", new)
    for count in (2, 5):
        k.array[...] = count
        binding.run()
        assert new.array == count + 1
        assert binding.numpy()["b"] == np.float32(0.9**count)
    with pytest.warns(DeviceWarning, match="the CPU runs all nodes, as AzureExecutionProvider computes float64 in"):
        assert Session(products("float64"), device="AzureExecutionProvider").device.is_cpu


def test_what_a_placement_says():
    placement = NodePlacement("A", {"A": (("a", "MatMul"),), "B": (("b", "Pow"), ("c", "Pow"), ("d", "Cast"))})
    assert str(placement) == "A runs 1 of 4 nodes, B 2 Pow and Cast"
    assert str(pickle.loads(pickle.dumps(placement))) == str(placement)
    assert str(NodePlacement("A", {"A": (("a", "MatMul"),)})) == "A runs 1 of 1 nodes"
    assert str(NodePlacement("A")).endswith("does not say which nodes A runs")
    assert not NodePlacement("A").is_unused


def test_lower_precision_is_found(monkeypatch):
    """A provider that rounds products like bfloat16, and one that was asked to."""
    def compute(device, dtype, nodes, x, constants):
        return (x @ x).astype(np.float16) if x.ndim == 2 else x

    monkeypatch.setattr(execution_providers, "_compute", compute)
    execution_providers._run_probe.cache_clear()
    faults = find_faults(Device("AProvider"), [TensorProto.FLOAT, TensorProto.INT64])
    assert [*faults] == [TensorProto.FLOAT]
    assert faults[TensorProto.FLOAT].startswith("computes float32 less precisely: a product has a relative error of ")
    assert not find_faults(Device("AProvider", options=(("trt_fp16_enable", "1"),)), [TensorProto.FLOAT])
    assert len(find_faults(Device("AProvider"), [TensorProto.UINT32, TensorProto.UINT64, TensorProto.DOUBLE])) == 3
    execution_providers._run_probe.cache_clear()


class Options:
    """Session options of onnxruntime that keep what they are told."""

    def add_session_config_entry(self, key, value):
        pass

    def add_provider_for_devices(self, devices, options):
        self.added = devices[0].device.type.name, options


def plug_in(*kinds):
    return [SimpleNamespace(ep_metadata={"ov_device": k}, device=SimpleNamespace(type=SimpleNamespace(name=k)))
            for k in kinds]


def test_options_of_openvino(monkeypatch):
    """Those that users know from the provider that is compiled in; its plug-in ignores them without a word."""
    def configure(threads=2, **wanted):
        options = Options()
        add_provider(options, Device.parse(Device(OPENVINO, options=tuple(wanted.items()))), threads)
        return options.added

    monkeypatch.setattr(execution_providers, "plug_in_devices", lambda name: plug_in("GPU", "CPU"))
    kind, options = configure()
    assert kind == "CPU"
    assert options == {"load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY", '
                                      '"INFERENCE_NUM_THREADS": "2", "NUM_STREAMS": "1", "ENABLE_CPU_PINNING": "NO"}}'}
    kind, options = configure(device_type="gpu", precision="FP16", CACHE_MODE="OPTIMIZE_SPEED", reshape_input="x[1]")
    assert kind == "GPU"
    assert options == {"reshape_input": "x[1]", "load_config": '{"GPU": {"INFERENCE_PRECISION_HINT": "f16", '
                       '"EXECUTION_MODE_HINT": "ACCURACY", "CACHE_MODE": "OPTIMIZE_SPEED"}}'}
    _, options = configure(num_of_threads="1", load_config='{"CPU": {"NUM_STREAMS": "2"}}')
    assert '"INFERENCE_NUM_THREADS": "1", "NUM_STREAMS": "2"' in options["load_config"]
    with pytest.raises(DeviceError, match=r"OpenVINOExecutionProvider has no option 'workers'; it has device_type, "):
        configure(workers="1")
    with pytest.raises(DeviceError, match=r"has device_type='NPU'; this machine has 'GPU', 'CPU'\."):
        configure(device_type="NPU")
    monkeypatch.setattr(execution_providers, "plug_in_devices", lambda name: [])
    (name, options), _ = add_provider(Options(), Device(OPENVINO, options=(("precision", "ACCURACY"),)), 3)
    assert (name, options) == (OPENVINO, {"precision": "ACCURACY", "num_of_threads": "3"})


def test_the_agent_refuses_providers():
    with pytest.raises(DeviceError if has_training() else RuntimeMissingError,
                       match=r"not on 'AProvider'; use engine='step'|needs onnxruntime-training"):
        TrainingAgent(network(), ["W1"], device=Device("AProvider"))


# -- with onnxruntime-ep-openvino


@openvino
def test_openvino_computes_in_float32():
    """By default it computes in bfloat16 where the processor has it, with an error of 3e-3."""
    x = RNG.normal(size=(64, 64)).astype(np.float32)
    exact = np.maximum(x.astype(np.float64) @ x, 0) @ x
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = Session(products(), device=OPENVINO)
    assert str(session.placement) == f"{OPENVINO} runs 3 of 3 nodes"
    assert abs(session.run({"x": x})["y"] - exact).max() < 1e-5 * abs(exact).max()


@openvino
def test_openvino_does_not_compute_float64():
    x = RNG.normal(size=(64, 64))
    with pytest.warns(DeviceWarning, match="computes float64 less precisely: a product has a relative error of "):
        y = Session(products("float64"), device=OPENVINO).run({"x": x})["y"]
    assert abs(y - np.maximum(x @ x, 0) @ x).max() < 1e-13 * abs(y).max()


@openvino
def test_a_node_that_openvino_does_not_take_runs_on_the_cpu():
    x = variable("x", "float32", ["N", 12, 9])
    fold = build([x], {"y": op.Relu(op.Col2Im(x, [4, 4], [2, 2]))})
    session = Session(fold, device=OPENVINO)
    assert session.placement.nodes["CPUExecutionProvider"] == (("Col2Im_node_0", "Col2Im"),)
    a = RNG.normal(size=(2, 12, 9)).astype(np.float32)
    assert (session.run({"x": a})["y"] == Session(fold).run({"x": a})["y"]).all()


@openvino
def test_openvino_in_several_threads():
    session, expected = Session(network(), device=OPENVINO), Session(network())
    errors = []

    def run(n):
        for _ in range(20):
            errors.append(distance([session.run({"X": X[:n]})["y"]], [expected.run({"X": X[:n]})["y"]]))

    threads = [threading.Thread(target=run, args=(n,)) for n in (1, 5, 9)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(errors) == 60
    assert max(errors) < 1e-5


@openvino
def test_number_of_threads_of_openvino():
    """One is not more than one, by the time of the processor, and none is pinned to a core."""
    code = ("import os, sys, time, warnings, numpy as np\n"
            "from ortpartial.runtime import Session\n"
            "from ortpartial.graph import build, op, variable\n"
            "x = variable('x', 'float32', [512, 512])\n"
            "session = Session(build([x], {'y': op.Relu(x @ x) @ x}), device='OpenVINOExecutionProvider', threads=1)\n"
            "feeds = {'x': np.ones((512, 512), np.float32)}\n"
            "session.run(feeds)\n"
            "main, all_ = time.thread_time(), time.process_time()\n"
            "for _ in range(20): session.run(feeds)\n"
            "print((time.process_time() - all_) / (time.thread_time() - main))\n"
            "print({frozenset(os.sched_getaffinity(int(t))) for t in os.listdir('/proc/self/task')} \n"
            "      == {frozenset(os.sched_getaffinity(0))})\n")
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    ratio, is_free = done.stdout.split()
    assert float(ratio) < 1.2
    assert is_free == "True"
