"""Execution providers that tests run on where they are installed, and a small training for them."""

import importlib.util

import numpy as np
import onnxruntime
import pytest

from ortpartial.graph import build, constant, op, variable

OPENVINO = "OpenVINOExecutionProvider"
openvino = pytest.mark.skipif(
    not importlib.util.find_spec("onnxruntime_ep_openvino")
    or not hasattr(onnxruntime, "register_execution_provider_library"),
    reason="needs onnxruntime-ep-openvino, and onnxruntime 1.23 or newer")
#: It is compiled into onnxruntime, and takes no node of ONNX's own operators.
azure = pytest.mark.skipif("AzureExecutionProvider" not in onnxruntime.get_available_providers()
                           or not hasattr(onnxruntime.InferenceSession, "get_provider_graph_assignment_info"),
                           reason="needs a second execution provider, and onnxruntime 1.24 or newer")

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(64, 20)).astype(np.float32), RNG.normal(size=(64, 1)).astype(np.float32)


def network(dropout=0.0):
    rng, x = np.random.default_rng(1), variable("X", "float32", ["N", 20])
    w = [constant(rng.normal(size=s).astype(np.float32) / 5, hint=n) for n, s in
         {"W1": (20, 30), "b1": (30,), "W2": (30, 1)}.items()]
    h = op.Relu(x @ w[0] + w[1])
    return build([x], {"y": (op.Dropout(h, dropout, True) if dropout else h) @ w[2]})


def distance(arrays, others):
    return max(abs(a - b).max() / abs(b).max() for a, b in zip(arrays, others, strict=True))
