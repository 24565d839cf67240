"""Every kernel of onnxruntime's training in standard operators, against the kernel of 1.19.2."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortpartial.artifacts.kernels import KERNELS
from ortpartial.exceptions import ModelError
from ortpartial.graph import build
from ortpartial.model import load
from ortpartial.runtime import Session

RNG = np.random.default_rng(0)


def real(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values):
    return np.asarray(values, np.int64)


def simplex(*shape):
    e = np.exp(real(*shape))
    return e / e.sum(-1, keepdims=True)


def log_softmax(x, axis):
    return (x - np.log(np.exp(x).sum(axis, keepdims=True))).astype(np.float32)


X, SCALE = real(3, 4, 6), real(6)
MEAN, R = X.mean(-1, keepdims=True), 1 / np.sqrt(X.var(-1, keepdims=True) + 1e-5)
IMAGE, CHANNELS = real(2, 3, 8, 8), real(3)
LOG_PROB, LABELS = log_softmax(real(5, 4), 1), ints(0, 3, 1, 1, 2)
DEEP, DEEP_LABELS = log_softmax(real(2, 4, 3), 1), RNG.integers(0, 4, (2, 3))

# The kernel, its inputs, its attributes, its number of outputs.
CASES = {
    "ReluGrad": ([real(3, 4), real(3, 4)], {}, 1),
    "LeakyReluGrad": ([real(3, 4), real(3, 4)], {"alpha": 0.2}, 1),
    "SigmoidGrad": ([real(3, 4), np.abs(real(3, 4))], {}, 1),
    "TanhGrad": ([real(3, 4), real(3, 4)], {}, 1),
    "GeluGrad": ([real(3, 4), real(3, 4)], {}, 1),
    "FastGeluGrad": ([real(3, 4), real(3, 4)], {}, 1),
    "BiasGeluGrad_dX": ([real(3, 4), real(3, 4), real(4)], {}, 1),
    "BiasFastGeluGrad_dX": ([real(3, 4), real(3, 4), real(4)], {}, 1),
    "QuickGeluGrad": ([real(3, 4), real(3, 4)], {"alpha": 1.5}, 1),
    "DivGrad": ([real(3, 4), real(3, 4), 2 + np.abs(real(4))], {}, 2),
    "Scale": ([real(3, 4), np.float32([4])], {}, 1),
    "Scale down": ([real(3, 4), ints(4)], {"scale_down": 1}, 1),
    "SoftmaxGrad": ([real(3, 2, 4), simplex(3, 2, 4)], {"axis": 1}, 1),
    "SoftmaxGrad_13": ([real(3, 2, 4), simplex(3, 2, 4)], {"axis": 1}, 1),
    "LogSoftmaxGrad": ([real(3, 2, 4), log_softmax(real(3, 2, 4), -1)], {"axis": 2}, 1),
    "LogSoftmaxGrad_13": ([real(3, 2, 4), log_softmax(real(3, 2, 4), 1)], {"axis": 1}, 1),
    "SoftmaxCrossEntropyLossGrad": ([np.float32(2), LOG_PROB, LABELS], {"reduction": "mean"}, 1),
    "SoftmaxCrossEntropyLossGrad ignored": (
        [np.float32(2), LOG_PROB, LABELS, np.abs(real(4))], {"reduction": "mean", "ignore_index": 1}, 1),
    "SoftmaxCrossEntropyLossGrad sum": ([np.float32(2), DEEP, DEEP_LABELS], {"reduction": "sum"}, 1),
    "SoftmaxCrossEntropyLossGrad none": ([real(2, 3), DEEP, DEEP_LABELS], {"reduction": "none"}, 1),
    "SoftmaxCrossEntropyLossInternal": ([real(5, 4), LABELS, np.abs(real(4)), np.int64(1)], {"reduction": "mean"}, 2),
    "SoftmaxCrossEntropyLossInternalGrad": ([np.float32(2), LOG_PROB, LABELS], {"reduction": "mean"}, 1),
    "SoftmaxCrossEntropyLossInternalGrad ignored": (
        [np.float32(2), LOG_PROB, LABELS, np.abs(real(4)), np.int64(1), real(5, 4)], {"reduction": "mean"}, 1),
    "LayerNormalizationGrad": ([real(3, 4, 6), X, SCALE, MEAN, R], {"axis": -1}, 3),
    "SimplifiedLayerNormalizationGrad": ([real(3, 4, 6), X, SCALE, R], {"axis": -1}, 2),
    "BatchNormInternal": ([IMAGE, CHANNELS, real(3), real(3), np.abs(real(3))],
                          {"epsilon": 1e-3, "momentum": 0.8, "training_mode": 1}, 5),
    "BatchNormalizationGrad": ([real(2, 3, 8, 8), IMAGE, CHANNELS, IMAGE.mean((0, 2, 3)),
                                1 / np.sqrt(IMAGE.var((0, 2, 3)) + 1e-5)], {"epsilon": 1e-5}, 3),
    "DropoutGrad": ([real(3, 4), real(3, 4) > 0, np.float32(0.3), np.bool_(True)], {}, 1),
    "GatherGrad": ([ints(5, 4), ints(0, 2, 2), real(3, 4)], {"axis": 0}, 1),
    "GatherGrad of an axis": ([ints(3, 5), RNG.integers(0, 5, (2, 2)), real(3, 2, 2)], {"axis": 1}, 1),
    "GatherElementsGrad": ([real(3, 2), ints(3, 5), RNG.integers(0, 5, (3, 2))], {"axis": 1}, 1),
    "GatherNDGrad": ([ints(3, 5), ints(1, 2, 1).reshape(3, 1), real(3, 5)], {"batch_dims": 0}, 1),
    "SliceGrad": ([real(2, 3), ints(4, 5), ints(1, 0), ints(3, 5), ints(0, 1), ints(1, 2)], {}, 1),
    "ConcatTraining": ([real(2, 3), real(2, 4)], {"axis": 1}, 2),
    "SplitTraining": ([real(2, 7), ints(3, 4)], {"axis": 1}, 2),
    "ReduceSumTraining": ([real(2, 3, 4), ints(0, 2)], {"keepdims": 0}, 1),
    "ReduceSumTraining of no axis": ([real(2, 3), ints()], {"noop_with_empty_axes": 1}, 1),
    "ConvGrad": ([real(2, 4, 4, 4), IMAGE, real(4, 3, 3, 3)],
                 {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "group": 1}, 3),
    "ConvGrad of each channel": ([real(2, 3, 8, 8), IMAGE, real(3, 1, 3, 3)],
                                 {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "group": 3}, 3),
    "ConvTransposeGrad": None, "PassThrough": None, "ResizeGrad": None, "ZeroGradient": None,
    "LSTMTraining": None, "LSTMGrad": None, "GRUTraining": None, "GRUGrad": None, "MaxPoolGrad": None,
    "AveragePoolGrad": None, "BroadcastGradientArgs": None,
}


def info(name, a):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.asarray(a).dtype), np.shape(a))


def make_model(nodes, feeds, outputs, constants=()):
    inputs = [info(n, a) for n, a in feeds.items() if n not in constants]
    stored = [numpy_helper.from_array(np.asarray(feeds[n]), n) for n in constants]
    results = [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()]
    graph = helper.make_graph(nodes, "g", inputs, results, stored)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def make_case(name):
    inputs, attributes, count = CASES[name]
    feeds = {f"i{i}": np.asarray(a) for i, a in enumerate(inputs)}
    kernel = name.split()[0]
    node = helper.make_node(kernel, list(feeds), [f"o{i}" for i in range(count)], domain="com.microsoft", **attributes)
    types = dict.fromkeys(node.output, TensorProto.FLOAT)
    if name == "ConcatTraining":
        types["o1"] = TensorProto.INT64
    # What these read of a graph is a constant or follows from shapes.
    constants = {"DropoutGrad": ["i2", "i3"], "SliceGrad": ["i1", "i2", "i3", "i4", "i5"]}.get(kernel, [])
    if kernel.startswith("SoftmaxCrossEntropyLossInternal") and len(inputs) > 3:
        constants = ["i4"] if kernel.endswith("Grad") else ["i3"]
    return make_model([node], feeds, types, constants), {n: a for n, a in feeds.items() if n not in constants}


def run_file(model, feeds):
    import onnxruntime as ort

    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def run_lowered(model, feeds):
    loaded = load(model)
    session = Session(build(loaded.inputs, loaded.outputs))
    assert not [n.op_type for n in build(loaded.inputs, loaded.outputs).graph.node if n.op_type in KERNELS]
    return list(session.run({n: feeds[n] for n in session.inputs}).values())


def assert_close(model, feeds):
    for ours, theirs in zip(run_lowered(model, feeds), run_file(model, feeds), strict=True):
        theirs = np.asarray(theirs)
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6 * np.abs(theirs).max(initial=1))


def test_every_kernel_has_a_case():
    assert {name.split()[0] for name in CASES} == KERNELS


@pytest.mark.agent
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case])
def test_kernels(name):
    assert_close(*make_case(name))


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case])
def test_kernels_run_on_this_runtime(name):
    model, feeds = make_case(name)
    assert all(np.isfinite(a).all() for a in run_lowered(model, feeds))


@pytest.mark.agent
@pytest.mark.parametrize("name", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("settings", [{"kernel_shape": [2, 2], "strides": [2, 2]},
                                      {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}])
def test_pools(name, settings):
    """The sizes of the input of a pool are known from the pool itself."""
    from ortpartial.artifacts.graphs import _add_forward_inputs

    x = real(2, 3, 8, 8)
    y = ["y", "y_mask"] if name == "MaxPool" else ["y"]
    read = ["y_grad", "y_mask"] if name == "MaxPool" else ["y_grad"]
    nodes = [helper.make_node(name, ["x"], y, **settings),
             helper.make_node(f"{name}Grad", read, ["x_grad"], **settings)]
    feeds = {"x": x, "y_grad": real(2, 3, 4, 4)}
    model = make_model(nodes, feeds, {"y": TensorProto.FLOAT})
    model.graph.output.append(info("x_grad", x))
    theirs = run_file(model, feeds)
    _add_forward_inputs(model.graph.node)
    for one, other in zip(run_lowered(model, feeds), theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.agent
@pytest.mark.parametrize("sizes", [((2, 3, 4), (3, 1)), ((4,), (2, 3, 4)), ((1, 4), (3, 4)), ((2, 3), (2, 3))])
@pytest.mark.parametrize("is_constant", [True, False])
def test_axes_of_broadcasting(sizes, is_constant):
    feeds = {"a": ints(*sizes[0]), "b": ints(*sizes[1])}
    node = helper.make_node("BroadcastGradientArgs", ["a", "b"], ["p", "q"], domain="com.microsoft")
    model = make_model([node], feeds, {"p": TensorProto.INT64, "q": TensorProto.INT64}, ["a", "b"] * is_constant)
    feeds = {} if is_constant else feeds
    loaded = load(model)
    session = Session(build(loaded.inputs, loaded.outputs))
    ours = session.run({n: feeds[n] for n in session.inputs}).values()
    for one, other in zip(ours, run_file(model, feeds), strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.agent
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrence(kind):
    steps, batch, size, hidden, gates = 3, 2, 4, 5, 4 if kind == "LSTM" else 3
    feeds = {"X": real(steps, batch, size), "W": real(1, gates * hidden, size), "R": real(1, gates * hidden, hidden),
             "B": real(1, 2 * gates * hidden), "dY": real(steps, 1, batch, hidden)}
    extra = ["C", "all", "gates"] if kind == "LSTM" else ["gates"]
    attributes = {"hidden_size": hidden, **({} if kind == "LSTM" else {"linear_before_reset": 1})}
    forward = helper.make_node(f"{kind}Training", ["X", "W", "R", "B"], ["Y", "H", *extra], domain="com.microsoft",
                               **attributes)
    read = ["X", "W", "R", "", "", "", "Y", "all", "gates"] if kind == "LSTM" else [
        "X", "W", "R", "B", "", "", "Y", "gates"]
    back = helper.make_node(f"{kind}Grad", [*read, "dY"], ["dX", "dW", "dR", "dB"], domain="com.microsoft",
                            **attributes)
    outputs = dict.fromkeys(("Y", "dX", "dW", "dR", "dB"), TensorProto.FLOAT)
    assert_close(make_model([forward, back], feeds, outputs), feeds)


def test_rest_of_the_kernels(rng):
    """Those of which 1.19.2 has no kernel on a CPU, or which do nothing."""
    x = rng.standard_normal((1, 2, 3, 3)).astype(np.float32)
    feeds = {"dy": np.ones((1, 2, 6, 6), np.float32), "x": x, "scales": np.float32([1, 1, 2, 2])}
    node = helper.make_node("ResizeGrad", ["dy", "x", "", "scales"], ["dx"], domain="com.microsoft", mode="linear")
    model = make_model([node], feeds, {"dx": TensorProto.FLOAT}, ["scales"])
    (dx,) = run_lowered(model, feeds)
    assert dx.shape == x.shape
    assert dx.sum() == pytest.approx(72)
    check_transposed_convolution()
    # Outside of training mode 1.19.2 applies the mask all the same; a Dropout does nothing there.
    feeds = {"dy": real(3, 4), "mask": real(3, 4) > 0, "ratio": np.float32(0.3), "mode": np.bool_(False)}
    node = helper.make_node("DropoutGrad", list(feeds), ["dx"], domain="com.microsoft")
    (dx,) = run_lowered(make_model([node], feeds, {"dx": TensorProto.FLOAT}, ["mode"]), feeds)
    np.testing.assert_array_equal(dx, feeds["dy"])
    nodes = [helper.make_node("PassThrough", ["x"], ["y"], domain="com.microsoft"),
             helper.make_node("ZeroGradient", ["x", "r"], ["z"], domain="com.microsoft")]
    feeds = {"x": x, "r": np.zeros(1, np.bool_)}
    y, z = run_lowered(make_model(nodes, feeds, {"y": TensorProto.FLOAT, "z": TensorProto.FLOAT}), feeds)
    assert np.array_equal(y, x)
    assert not z.any()


def check_transposed_convolution():
    import torch

    feeds = {"dy": real(2, 4, 17, 17), "x": IMAGE, "w": real(3, 4, 3, 3)}
    node = helper.make_node("ConvTransposeGrad", list(feeds), ["dx", "dw", "db"], domain="com.microsoft",
                            kernel_shape=[3, 3], strides=[2, 2], group=1)
    model = make_model([node], feeds, dict.fromkeys(("dx", "dw", "db"), TensorProto.FLOAT))
    x, w, b = (torch.tensor(a, requires_grad=True) for a in (feeds["x"], feeds["w"], np.zeros(4, np.float32)))
    torch.conv_transpose2d(x, w, b, stride=2).backward(torch.tensor(feeds["dy"]))
    for ours, theirs in zip(run_lowered(model, feeds), (x, w, b), strict=True):
        np.testing.assert_allclose(ours, theirs.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "feeds", "attributes", "message"),
    [
        ("ReluGrad", [real(2), real(2)], {"slope": 1.0}, "has the attribute 'slope', which is not known"),
        ("MaxPoolGrad", [real(1, 1, 2, 2), np.zeros((1, 1, 2, 2), np.int64)], {"kernel_shape": [2, 2]},
         "its indices are not those of a MaxPool"),
        ("AveragePoolGrad", [real(1, 1, 2, 2)], {"kernel_shape": [2, 2]}, "that it belongs to is not in the graph"),
        ("LSTMGrad", [real(2)] * 9, {}, "the node that it belongs to is not in the graph"),
        ("SoftmaxCrossEntropyLossInternalGrad", [real(), LOG_PROB, LABELS, real(4), np.int64(1)], {},
         "the label that is ignored is computed"),
        ("ReluGrad", [real(2)], {}, "missing"),
    ],
)
def test_errors_name_the_kernel(kernel, feeds, attributes, message):
    named = {f"i{i}": a for i, a in enumerate(feeds)}
    node = helper.make_node(kernel, list(named), ["y"], domain="com.microsoft", **attributes)
    with pytest.raises(ModelError, match=f"{kernel}.*{message}"):
        load(make_model([node], named, {"y": TensorProto.FLOAT}))
