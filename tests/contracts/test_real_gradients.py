"""Gradients of third-party models equal those of torch's autograd, for every parameter and input."""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from exports import LAYERS, TRANSFORMERS, Only, assert_gradients, exported
from models import weights_of
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from skl2onnx import to_onnx
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from ortpartial import OrtGradientForwardBackwardOptimizer, gradient_model, jvp_model
from ortpartial.exceptions import UntranslatableError
from ortpartial.execution import native_engine
from ortpartial.runtime.session import Session


def by_value(model, net):
    """For each parameter of the network, the initializer with its content and the permutation of its axes."""
    stored_as = {}
    stored = [(n, a) for n, a in weights_of(model).items() if a.dtype.kind == "f" and a.size]
    for n, p in net.named_parameters():
        w = p.detach().numpy()
        for name, a in stored:
            if a.size != w.size:
                continue
            for perm in {tuple(range(w.ndim)), tuple(range(w.ndim))[::-1], (*range(w.ndim - 2), w.ndim - 1, w.ndim - 2)
                         if w.ndim > 1 else (0,) * w.ndim}:
                if np.array_equal(w.transpose(perm).reshape(-1), a.reshape(-1)):
                    stored_as[n] = name, perm
    return stored_as


def reference(net, x, dy):
    """Gradients of <dy, net(x)> in float64 by the parameters and the input."""
    net = copy.deepcopy(net).double()
    x = x.detach().clone().double().requires_grad_() if x.is_floating_point() else x
    (net(x) * dy).sum().backward()
    gradients = {n: p.grad.numpy() for n, p in net.named_parameters() if p.grad is not None}
    return gradients | ({"x": x.grad.numpy()} if x.is_floating_point() else {})


def unoptimized(model, feeds):
    """Outputs without optimizations: onnxruntime 1.31.1 fuses a factor into MatMul and rounds it to float32."""
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    session = InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip((o.name for o in model.graph.output), session.run(None, feeds), strict=True))


def check(name, dynamo, record, dtype=torch.float32):
    net, x, model = exported(name, dynamo, dtype)
    with torch.no_grad():
        y = net(x)
    dy = torch.randn(y.shape, dtype=torch.float64)
    expected, names = reference(net, x, dy), by_value(model, net)
    missing = sorted(set(expected) - {"x"} - set(names))
    wrt = [*dict.fromkeys(names[n][0] for n in expected if n in names), *(["x"] if "x" in expected else [])]
    gradient = gradient_model(model, wrt, ["y"])
    weights = {t: a for t, a in weights_of(model).items() if t in wrt}
    feeds = {"x": x.numpy(), "y_grad": dy.numpy().astype(y.numpy().dtype), **weights}
    feeds = {i.name: feeds[i.name] for i in gradient.graph.input}
    raw = Session(gradient).run(feeds) if dtype == torch.float32 else unoptimized(gradient, feeds)
    grads = {"x": raw["x_grad"]} if "x" in expected else {}
    for n, (t, perm) in names.items():
        if n in expected:
            shape = np.asarray(expected[n].shape)[list(perm)]
            grads[n] = raw[f"{t}_grad"].reshape(shape).transpose(np.argsort(perm))
    assert missing == []
    record("error", assert_gradients(grads, expected, 1e-9 if dtype == torch.float64 else 1e-4))
    return net, model, gradient


# torch 2.13.0 does not export it with its TorchScript exporter.
NO_TORCHSCRIPT = {"encoder layer, norm first"}
EXPORTS = [(name, dynamo) for name in [*LAYERS, *TRANSFORMERS] for dynamo in (True, False)
           if dynamo or name not in NO_TORCHSCRIPT]
FAST = {("lstm", False), ("transformer", False), ("t5 encoder", False), ("regnet", False), ("whisper encoder", False),
        ("gpt2", True)}
# Softmax is computed in float32 by many of the others, and Conv and Erf have no kernel of float64.
DOUBLE = {("transformer", False), ("transformer", True), ("mobilebert", False), ("albert", False)}


def cases(wanted):
    """Each export, long ones marked as slow."""
    return [pytest.param(name, dynamo, id=f"{name}-{'dynamo' if dynamo else 'torchscript'}",
                         marks=[] if (name, dynamo) in FAST else [pytest.mark.slow])
            for name, dynamo in EXPORTS if (name, dynamo) in wanted]


@pytest.mark.parametrize(("name", "dynamo"), cases(EXPORTS))
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning", "ignore::FutureWarning",
                            "ignore::UserWarning")
def test_gradients(name, dynamo, record_property):
    check(name, dynamo, record_property)


@pytest.mark.parametrize(("name", "dynamo"), cases(DOUBLE))
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning", "ignore::FutureWarning",
                            "ignore::UserWarning")
def test_gradients_in_float64(name, dynamo, record_property):
    check(name, dynamo, record_property, torch.float64)


ESTIMATORS = {
    "regressor": (MLPRegressor(hidden_layer_sizes=(8, 6), activation="tanh"), nn.Identity()),
    "scaled regressor": (make_pipeline(StandardScaler(), MLPRegressor(
        hidden_layer_sizes=(8,), activation="logistic")), nn.Identity()),
    "classifier": (MLPClassifier((8, 5)), nn.Softmax(1)),
    "scaled classifier": (make_pipeline(StandardScaler(), MLPClassifier((8,), activation="tanh")), nn.Softmax(1)),
}


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sklearn(name, record_property):
    estimator, last = ESTIMATORS[name]
    rng = np.random.default_rng(0)
    X, t = rng.normal(1, 2, (20, 4)).astype(np.float32), rng.integers(0, 3, 20)
    scaler, mlp = (estimator[0], estimator[-1]) if len(getattr(estimator, "steps", ())) else (None, estimator)
    mlp.set_params(max_iter=2, random_state=0)
    estimator.fit(X, t)
    is_classifier = isinstance(mlp, MLPClassifier)
    model = to_onnx(estimator, X[:1], target_opset=18, options={"zipmap": False} if is_classifier else None)
    activation = {"tanh": nn.Tanh, "logistic": nn.Sigmoid, "relu": nn.ReLU}[mlp.activation]
    layers = []
    for w, b in zip(mlp.coefs_, mlp.intercepts_, strict=True):
        layers += [nn.Linear(*w.shape), activation()]
        layers[-2].weight.data, layers[-2].bias.data = torch.tensor(w.T), torch.tensor(b)
    net = nn.Sequential(*layers[:-1], last)
    output = model.graph.output[-1].name
    seen = torch.tensor(X if scaler is None else scaler.transform(X))
    dy = torch.randn(net(seen.float() if net[0].weight.dtype == torch.float32 else seen.double()).shape)
    expected = reference(net, seen, dy.double())
    names = {n: (t, w.ndim == 2) for n, w in net.named_parameters() for t, a in weights_of(model).items()
             if a.size == w.numel() and np.allclose(a.reshape(-1), w.detach().numpy().T.reshape(-1))}
    wrt = [t for t, _ in names.values()] + ([] if scaler else ["X"])
    gradient = gradient_model(model, wrt, [output])
    weights = {t: a for t, a in weights_of(model).items() if t in wrt}
    raw = Session(gradient).run({"X": X, f"{output}_grad": dy.numpy(), **weights})
    grads = {n: raw[f"{t}_grad"].T if turned else raw[f"{t}_grad"].reshape(-1) for n, (t, turned) in names.items()}
    if scaler:  # an operator of ai.onnx.ml, which has no gradient, stands before the weights
        del expected["x"]
    else:
        grads["x"] = raw["X_grad"]
    assert sorted(grads) == sorted(expected)
    record_property("error", assert_gradients(grads, expected, 1e-4))


MEASURED = """
import os, sys, time, onnx
from ortpartial import OrtGradientForwardBackwardOptimizer, gradient_model, jvp_model
from ortpartial.exceptions import UntranslatableError
from ortpartial.execution import native_engine

def memory(what):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))

model = onnx.load(sys.argv[1])
with open("/proc/self/clear_refs", "w") as file:  # the peak so far is that of reading the file
    file.write("5")
size, before, start = os.path.getsize(sys.argv[1]), memory("VmRSS"), time.perf_counter()
found = gradient_model(model)
seconds = time.perf_counter() - start
print(seconds, max(memory("VmHWM") - before, 0) / size, len(found.graph.node) / len(model.graph.node), size / 4)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc, which Linux has")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_gradient_of_bert_base_is_built_quickly(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs transformers 5.23.0, which needs Python 3.11")
    config = transformers.BertConfig()
    config._attn_implementation = "eager"
    net = Only(transformers.BertModel(config, add_pooling_layer=False).eval())
    torch.onnx.export(net, (torch.randint(0, 1000, (2, 64)),), f"{tmp_path}/bert.onnx", dynamo=False,
                      input_names=["x"], output_names=["y"], opset_version=18,
                      dynamic_axes={"x": {0: "N", 1: "S"}})
    command = [sys.executable, "-c", MEASURED, f"{tmp_path}/bert.onnx"]  # its peak is that of a process of its own
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, memory, nodes, parameters = map(float, done.stdout.split())
    assert parameters > 1e8
    assert seconds < 10
    assert memory < 1.5
    assert nodes < 2.5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_nine_of_ten_trainings_are_written_in_c(record_property, monkeypatch):
    """The step of a training by each export; compiling takes longer, and others do that."""
    written = []
    monkeypatch.setattr(native_engine, "compile_library", lambda source, headers: written.append(source) or 1 / 0)
    refused = {}
    for name, dynamo in EXPORTS:
        net, x, model = exported(name, dynamo)
        optimizer = OrtGradientForwardBackwardOptimizer(model, engine="native", batch_size=len(x), max_iter=1)
        with pytest.raises((UntranslatableError, ZeroDivisionError)) as e, torch.no_grad():
            optimizer.fit(x.numpy(), net(x).numpy())
        if e.type is UntranslatableError:
            refused[f"{name}, {'dynamo' if dynamo else 'torchscript'}"] = str(e.value)
    record_property("count", f"{len(written)} of {len(EXPORTS)} exports")
    assert len(refused) < len(EXPORTS) / 10, refused


@pytest.mark.parametrize(("name", "dynamo"), cases(EXPORTS))
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning", "ignore::FutureWarning",
                            "ignore::UserWarning")
def test_tangents(name, dynamo):
    """Forward mode agrees with reverse mode, which agrees with torch: <ȳ, J v> = <Jᵀ ȳ, v>."""
    net, x, model = exported(name, dynamo, torch.float32)
    rng, weights = np.random.default_rng(0), weights_of(model)
    gradient, tangent = gradient_model(model, outputs=["y"]), jvp_model(model, outputs=["y"])
    wrt = [o.name.removesuffix("_grad") for o in gradient.graph.output]
    feeds = {"x": x.numpy(), **{n: weights[n] for n in wrt}}
    with torch.no_grad():
        y_grad = rng.normal(size=net(x).shape).astype(np.float32)
    vectors = {n: rng.normal(size=weights[n].shape).astype(np.float32) for n in wrt}
    forward = Session(tangent).run({**feeds, **{f"{n}_tangent": v for n, v in vectors.items()}})["y_tangent"]
    reverse = Session(gradient).run({**feeds, "y_grad": y_grad})
    terms = [np.float64(reverse[f"{n}_grad"]) * v for n, v in vectors.items()]
    left, right = np.sum(np.float64(forward) * y_grad), sum(t.sum() for t in terms)
    scale = np.linalg.norm(np.float64(forward) * y_grad) + sum(np.linalg.norm(t) for t in terms)
    assert abs(left - right) <= 1e-4 * scale
