"""Gradient checkpointing: the same gradients in less memory."""

import subprocess
import sys

import numpy as np
import pytest
from models import data, mlp
from numbered_cases import check_case

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.autodiff.grad import grad
from ortpartial.exceptions import SettingError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.limits import Limits, limits
from ortpartial.rewrites.checkpointing import checkpoint_gradient, recompute_cheap, resolve_checkpointing
from ortpartial.runtime import device
from ortpartial.runtime.session import Session
from ortpartial.runtime.session_options import session_options

RNG = np.random.default_rng(0)


def weight(name, *shape):
    return constant((RNG.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32), hint=name)


def deep(layers=12):
    """Layers with a residual, one that is read again at the end, and a GELU in cheap operators."""
    x = h = variable("x", "float32", [6, 5])
    weights = [weight(f"w{i}", 5, 5) for i in range(layers)]
    for i, w in enumerate(weights):
        a = h @ w
        h = h + 0.5 * a * (1 + op.Erf(a / np.float32(2**0.5))) if i % 2 else op.Softmax(a, axis=-1)
        if i == 1:
            skipped = h
    return x, weights, op.ReduceMean(h * skipped, keepdims=0)


def convolutions():
    x = h = variable("x", "float32", [2, 3, 8, 8])
    weights = [weight(f"w{i}", 3, 3, 3, 3) for i in range(6)]
    for w in weights:
        h = op.Relu(op.Conv(h, w, pads=[1, 1, 1, 1]))
    return x, weights, op.ReduceMean(op.MaxPool(h, kernel_shape=[2, 2]) ** 2.0, keepdims=0)


def gradients(make, gradient):
    x, weights, loss = make
    graph = build([x, *weights], {f"{w.hint}_grad": g for w, g in zip(weights, gradient(loss, weights), strict=True)})
    feeds = {"x": np.random.default_rng(1).normal(size=x.shape).astype(np.float32)}
    session = Session(graph, options=session_options(1, low_memory=True))
    return graph, session.run({**feeds, **{w.hint: w.array for w in weights}})


NUMBERED = {"recompute_values 1": lambda: gradients(deep(), checkpoint_gradient(recompute_cheap))}


@pytest.mark.parametrize("case", NUMBERED)
def test_numbered_case(case):
    check_case(case, NUMBERED[case])


@pytest.mark.parametrize("make", [deep, convolutions])
@pytest.mark.parametrize("kind", ["auto", "list", "cheap"])
def test_same_numbers(make, kind):
    expressions = make()
    if kind == "cheap":
        gradient = checkpoint_gradient(recompute_cheap)
    elif kind == "auto":
        gradient = resolve_checkpointing("auto")
    else:  # every fifth value, wherever it stands
        gradient = checkpoint_gradient(lambda nodes, read: [y for node in nodes[::5] for y in node.outputs])
    plain, expected = gradients(expressions, grad)
    graph, actual = gradients(expressions, gradient)
    if kind != "cheap" or make is deep:  # Nothing but Relu reads what Conv gives, so that is not kept either way.
        assert len(graph.graph.node) > len(plain.graph.node)
    for name, g in expected.items():
        # A Conv that is recomputed reads an image of sizes that onnxruntime cannot know, so it is not done in blocks.
        atol = 0 if limits() == Limits() else 1e-6 * abs(g).max()
        np.testing.assert_allclose(actual[name], g, rtol=0, atol=atol)


def test_random_values_are_kept():
    x, w = variable("x", "float32", [64]), weight("w", 64)
    dropped = op.Exp(op.Dropout(op.Exp(x * w), 0.5, True))
    loss = op.ReduceSum(op.Exp(dropped), keepdims=0)
    exp = loss.node.inputs[0]
    graph = build([x, w], {"g": checkpoint_gradient(lambda nodes, read: [exp])(loss, [w])[0]})
    kinds = [node.op_type for node in graph.graph.node]
    assert kinds.count("Dropout") == 1
    assert kinds.count("Exp") > 3


@pytest.mark.parametrize("checkpointing", ["auto", True, ["W1"], []])
def test_same_training(checkpointing):
    X, y, w = data(40)
    settings = {"learning_rate": 0.01, "max_iter": 3, "random_state": 0, "batch_size": 16}
    plain = Optimizer(mlp(), engine="step", **settings).fit(X, y, w)
    o = Optimizer(mlp(), checkpointing=checkpointing, **settings).fit(X, y, w)
    assert o.engine_ == "step"
    assert "memory" in o.engine_reason_
    for a, b in zip(o.get_state(), plain.get_state(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("settings", "message"), [
    ({"checkpointing": "some"}, "checkpointing is None, 'auto' or a list of tensors to keep, not 'some'"),
    ({"checkpointing": 3}, "list of tensors to keep, not 3"),
    ({"checkpointing": ["nothing"]}, "names 'nothing', which is no tensor of the model"),
    ({"checkpointing": "auto", "engine": "epoch"}, r"^checkpointing trains with engine='step', not 'epoch'\.$"),
    ({"checkpointing": "auto", "precision": "float16"},
     "^checkpointing trains in the dtype of the model, not with precision='float16'"),
])
def test_errors(settings, message):
    with pytest.raises(SettingError, match=message):
        Optimizer(mlp(), **settings)


def test_device_memory(monkeypatch):
    monkeypatch.setitem(device._PROVIDERS, "cuda", "CPUExecutionProvider")
    with pytest.raises(SettingError, match=r"^checkpointing trains on the CPU, not on 'cuda'\.$"):
        Optimizer(mlp(), checkpointing="auto", device="cuda")


PEAK = """
import sys
from pathlib import Path
import numpy as np
from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable

def status(name):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if name in line)

kind, layers, rows = sys.argv[1], 36, 4096
rng = np.random.default_rng(0)
h = x = variable("x", "float32", ["N", 256])
for i in range(layers):
    h = op.Tanh(h @ constant(rng.normal(size=(256, 256)).astype(np.float32) / 16, hint=f"w{i}"))
X = np.ones((rows, 256), np.float32)
o = OrtGradientForwardBackwardOptimizer(build([x], {"y": h}), batch_size=rows, max_iter=1,
                                        engine="step", checkpointing=None if kind == "none" else kind)
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
o.fit(X, X)
print(status("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says what a process took at the most")
def test_memory_shrinks():
    # 36 layers of 4 MB each are kept; 6 segments of 6 keep 6 + 6 of them at a time.
    none, auto = (int(subprocess.run([sys.executable, "-c", PEAK, kind], check=True, capture_output=True).stdout)
                  for kind in ("none", "auto"))
    assert none > 36 * 4000
    assert auto < 0.6 * none
