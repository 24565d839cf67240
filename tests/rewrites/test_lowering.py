"""Lowering of operators without a kernel, beside torch."""

import math
from functools import partial

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numbered_cases import check_case
from onnx import TensorProto, helper, parser
from table import rows
from tiny_decoders import make_decoder, past_of
from torch.nn import functional as F

from ortpartial import OrtGradientForwardBackwardOptimizer, load
from ortpartial.adapters import add_ia3
from ortpartial.exceptions import ModelError
from ortpartial.graph.build import build
from ortpartial.graph.control_flow import cond, loop
from ortpartial.graph.ops import constant, make_node, op, variable
from ortpartial.graph.schemas import schema_of
from ortpartial.rewrites import lowering
from ortpartial.rewrites.float64 import LOWERINGS
from ortpartial.rewrites.lowering import clear_padding, lower, lower_quantized, make_portable, multiply_bytes
from ortpartial.runtime.session import Session
from ortpartial.testing import check_gradient

X = np.random.default_rng(0).normal(scale=3, size=(2, 3, 4, 5))


def kernel(*shape):
    return np.random.default_rng(1).normal(size=shape)


def in_dtype(x, *arrays):
    return [a.astype(x.dtype) for a in arrays]


def conv(shape, **settings):
    """Conv by a kernel of a shape, and a bias."""
    return lambda x: op.Conv(x, *in_dtype(x, kernel(*shape), kernel(shape[0])), **settings)


def transposed(shape, **settings):
    bias = kernel(shape[1] * settings.get("group", 1))
    return lambda x: op.ConvTranspose(x, *in_dtype(x, kernel(*shape), bias), **settings)


def in_torch(f, shape, outputs=None, **settings):
    return lambda x: f(x, torch.tensor(kernel(*shape)), torch.tensor(kernel(outputs or shape[0])), **settings)


#: Places of the elements of X in images of 8 x 10, no two of which are equal.
PLACES = np.random.default_rng(2).permutation(2 * 3 * 80)[:120].reshape(2, 3, 4, 5)


def unpool(sizes):
    def torch_f(x):
        y = x.new_zeros(2 * 3 * sizes[0] * sizes[1])
        y[torch.tensor(PLACES).flatten()] = x.flatten()
        return y.reshape(2, 3, *sizes)

    return torch_f


CASES = rows(
    ("AveragePool", lambda x: op.AveragePool(x, kernel_shape=[3, 2], strides=[1, 2], pads=[1, 0, 1, 0]),
     lambda x: F.avg_pool2d(x, (3, 2), (1, 2), (1, 0), count_include_pad=False)),
    ("AveragePool with its padding",
     lambda x: op.AveragePool(x, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
     lambda x: F.avg_pool2d(x, 3, 1, 1)),
    ("AveragePool with a last window", lambda x: op.AveragePool(x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
     lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True, count_include_pad=False)),
    ("Col2Im", lambda x: op.Col2Im(op.Reshape(x, [0, 12, 5]), [2, 6], [2, 2]),
     lambda x: F.fold(x.reshape(-1, 12, 5), (2, 6), 2)),
    ("Col2Im with all settings", lambda x: op.Col2Im(op.Reshape(x, [0, 12, 5]), [3, 12], [2, 3], strides=[2, 3],
                                                     pads=[1, 2, 0, 2], dilations=[2, 1]),
     lambda x: F.fold(x.reshape(-1, 12, 5), (4, 16), (2, 3), (2, 1), 0, (2, 3))[..., 1:, 2:14]),
    ("Conv", conv((4, 3, 3, 2)), in_torch(F.conv2d, (4, 3, 3, 2))),
    ("Conv with strides, pads and dilations", conv((4, 3, 2, 2), strides=[2, 1], pads=[1, 2, 1, 2], dilations=[2, 3]),
     in_torch(F.conv2d, (4, 3, 2, 2), stride=(2, 1), padding=(1, 2), dilation=(2, 3))),
    ("Conv of groups", conv((6, 1, 2, 2), group=3), in_torch(F.conv2d, (6, 1, 2, 2), groups=3)),
    ("Conv, as large before as behind", conv((4, 3, 3, 3), auto_pad="SAME_UPPER"),
     in_torch(F.conv2d, (4, 3, 3, 3), padding="same")),
    ("ConvTranspose", transposed((3, 4, 3, 2)), in_torch(F.conv_transpose2d, (3, 4, 3, 2), 4)),
    ("ConvTranspose with all settings", transposed((3, 2, 2, 3), strides=[2, 3], pads=[1, 2, 1, 2], dilations=[2, 1],
                                                   output_padding=[1, 0], group=3),
     in_torch(F.conv_transpose2d, (3, 2, 2, 3), 6, stride=(2, 3), padding=(1, 2), dilation=(2, 1),
              output_padding=(1, 0), groups=3)),
    ("Cos", op.Cos, torch.cos),
    ("Cosh", op.Cosh, torch.cosh),
    ("Elu", lambda x: op.Elu(x, alpha=0.5), lambda x: F.elu(x, 0.5)),
    ("Erf", op.Erf, torch.erf),
    ("Gelu", op.Gelu, F.gelu),
    ("Gelu by Tanh", lambda x: op.Gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh")),
    ("DeformConv", lambda x: op.DeformConv(x, np.ones((1, 3, 1, 1)), np.full((2, 2, 4, 5), 0.5)),
     lambda x: F.avg_pool2d(F.pad(x.sum(1, keepdim=True), (0, 1, 0, 1)), 2, 1)),
    ("GlobalAveragePool", op.GlobalAveragePool, lambda x: x.mean((2, 3), keepdim=True)),
    ("GlobalLpPool", lambda x: op.GlobalLpPool(x, p=3), lambda x: x.abs().pow(3).sum((2, 3), keepdim=True) ** (1 / 3)),
    ("GlobalMaxPool", op.GlobalMaxPool, lambda x: x.amax((2, 3), keepdim=True)),
    ("HardSigmoid", lambda x: op.HardSigmoid(x, alpha=0.25), lambda x: torch.clip(0.25 * x + 0.5, 0, 1)),
    ("HardSwish", op.HardSwish, F.hardswish),
    ("Hardmax", lambda x: op.Hardmax(x, axis=1), lambda x: F.one_hot(x.argmax(1), 3).movedim(-1, 1).to(x)),
    ("InstanceNormalization", lambda x: op.InstanceNormalization(x, [1.0, 2.0, 3.0], [0.5, 0.0, 1.5], epsilon=0.125),
     lambda x: F.instance_norm(x, weight=x.new_tensor([1, 2, 3]), bias=x.new_tensor([0.5, 0, 1.5]), eps=0.125)),
    ("LRN", lambda x: op.LRN(x, size=3, alpha=0.5, beta=0.75, bias=2.0),
     lambda x: F.local_response_norm(x, 3, 0.5, 0.75, 2.0)),
    ("LeakyRelu", lambda x: op.LeakyRelu(x, alpha=0.125), lambda x: F.leaky_relu(x, 0.125)),
    ("LpPool", lambda x: op.LpPool(x, kernel_shape=[3, 2], strides=[1, 2], pads=[1, 0, 1, 0]),
     lambda x: F.lp_pool2d(F.pad(x, (0, 0, 1, 1)), 2, (3, 2), (1, 2))),
    ("MaxUnpool", lambda x: op.MaxUnpool(x, PLACES, kernel_shape=[2, 2], strides=[2, 2]), unpool((8, 10))),
    ("MaxUnpool to a size of its own", lambda x: op.MaxUnpool(x, PLACES, [2, 3, 9, 11], kernel_shape=[2, 2],
                                                              strides=[2, 2]), unpool((9, 11))),
    ("Mean", lambda x: op.Mean(x, op.Exp(x), 1.0), lambda x: (x + x.exp() + 1) / 3),
    ("Mish", op.Mish, F.mish),
    ("NonZero", lambda x: op.NonZero(op.Max(x, 0)), lambda x: x.clip(0).nonzero().T),
    ("OneHot", lambda x: op.OneHot(3 * x, 4, [0.5, 2.5]),
     lambda x: 0.5 + 2 * F.one_hot((i := (3 * x).long()) % 4, 4) * ((i >= -4) & (i < 4)).unsqueeze(-1)),
    ("PRelu", lambda x: op.PRelu(x, 0.25), lambda x: F.prelu(x, x.new_tensor(0.25))),
    ("ReduceL1", lambda x: op.ReduceL1(x, [-1], keepdims=0), lambda x: x.abs().sum(-1)),
    ("ReduceL2", lambda x: op.ReduceL2(x, [1, 2]), lambda x: x.pow(2).sum((1, 2), keepdim=True).sqrt()),
    ("ReduceProd", lambda x: op.ReduceProd(x, [2], keepdims=0), lambda x: x.prod(2)),
    ("ReduceLogSum", lambda x: op.ReduceLogSum(x * x), lambda x: x.pow(2).sum().log().reshape(1, 1, 1, 1)),
    ("Selu", lambda x: op.Selu(x, alpha=2.0, gamma=0.5), lambda x: 0.5 * (x.clip(0) + 2 * (x.clip(max=0).exp() - 1))),
    ("Sinh", op.Sinh, torch.sinh),
    ("Softplus", op.Softplus, F.softplus),
    ("Softsign", op.Softsign, F.softsign),
    ("Tan", op.Tan, torch.tan),
    ("ThresholdedRelu", lambda x: op.ThresholdedRelu(x, alpha=0.5), lambda x: torch.where(x > 0.5, x, 0)),
)


def model(f, dtype="float64"):
    x = variable("x", dtype, ["N", 3, 4, 5])
    return build([x], {"y": f(x) * 2})


@pytest.mark.parametrize(("f", "in_torch"), CASES)
def test_float64(f, in_torch):
    actual = Session(model(f)).run({"x": X})["y"]
    np.testing.assert_allclose(actual, 2 * in_torch(torch.tensor(X)).numpy(), rtol=1e-12, atol=1e-15)


def test_every_lowering_is_tested():
    # tests/autodiff/rules/test_recurrent.py tries these.
    assert {row.id.split()[0].strip(",") for row in CASES} | {"GRU", "LSTM", "RNN"} == set(LOWERINGS)


STRIDED = {"strides": [2, 3], "auto_pad": "SAME_LOWER"}
OPEN = rows(
    ("Conv", conv((4, 3, 3, 2), **STRIDED)),
    ("AveragePool", lambda x: op.AveragePool(x, kernel_shape=[3, 2], **STRIDED)),
    ("AveragePool with its padding", lambda x: op.AveragePool(x, kernel_shape=[3, 2], count_include_pad=1, **STRIDED)),
    ("ConvTranspose", transposed((3, 4, 3, 2), strides=[2, 3], output_shape=[7, 13])),
    ("ConvTranspose to more than it adds up", transposed((3, 4, 3, 2), strides=[2, 3], output_shape=[10, 13])),
)


@pytest.mark.parametrize("f", OPEN)
@pytest.mark.parametrize("sizes", [("N", 3, 4, 5), ("N", 3, "H", "W")])
def test_padding_of_symbolic_sizes(f, sizes):
    actual = Session(build([x := variable("x", "float64", sizes)], {"y": f(x)})).run({"x": X})["y"]
    expected = Session(build([x := variable("x", "float32", X.shape)], {"y": f(x)})).run({"x": X.astype(np.float32)})
    np.testing.assert_allclose(actual, expected["y"], rtol=1e-4, atol=1e-4)


def test_erf_is_exact():
    x = np.concatenate([np.logspace(-300, 1, 2000), np.linspace(0, 8, 8001), [np.inf]])
    x = np.concatenate([x, -x])
    v = variable("x", "float64", ["N"])
    actual = Session(build([v], {"y": op.Erf(v)})).run({"x": x})["y"]
    np.testing.assert_allclose(actual, [math.erf(a) for a in x], rtol=1e-15)


@pytest.mark.parametrize("f", [F.conv1d, F.conv3d, F.conv_transpose1d, F.conv_transpose3d])
def test_images_of_any_rank(f):
    """Symbolic sizes, which are computed at run time."""
    r, operator = int(f.__name__[-2]), op.ConvTranspose if "transpose" in f.__name__ else op.Conv
    x, w = kernel(2, 4, *range(5, 5 + r)), kernel(4, 4, *range(2, 2 + r))
    v = variable("x", "float64", ["N", 4, *"dhw"[:r]])
    settings = {"strides": [2] * r, "pads": [1] * 2 * r}
    actual = Session(build([v], {"y": operator(v, w, **settings)})).run({"x": x})["y"]
    np.testing.assert_allclose(actual, f(torch.tensor(x), torch.tensor(w), stride=2, padding=1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("f", "shapes"), rows(
    ("Conv", lambda x, w: op.Conv(x, w, strides=[2, 1], pads=[1, 0, 1, 0], dilations=[1, 2]),
     [(2, 3, 5, 6), (4, 3, 3, 2)]),
    ("Conv of groups", lambda x, w: op.Conv(x, w, group=2), [(2, 4, 5, 4), (6, 2, 2, 2)]),
    ("ConvTranspose", lambda x, w: op.ConvTranspose(x, w, strides=[2, 1], group=2), [(2, 4, 3, 4), (4, 2, 2, 2)]),
    ("AveragePool", lambda x: op.AveragePool(x, kernel_shape=[2, 2], strides=[2, 2], pads=[1] * 4), [(2, 3, 5, 6)]),
    ("AveragePool of windows that overlap", lambda x: op.AveragePool(x, kernel_shape=[3, 2]), [(2, 3, 5, 6)]),
    ("MaxPool", lambda x: op.MaxPool(x, kernel_shape=[2, 2], strides=[2, 1]), [(2, 3, 5, 6)]),
    ("Erf", op.Erf, [(2, 7)]),
))
def test_gradients_in_float64_on_the_runtime(f, shapes):
    """First and second order, in onnxruntime alone, with static and symbolic sizes."""
    check_gradient(f, [kernel(*shape) for shape in shapes], directions=1)


def test_softplus_does_not_overflow():
    x = np.array([-800.0, -40, 0, 40, 800]).reshape(5, 1, 1, 1) * np.ones((1, 3, 4, 5))
    assert np.isfinite(Session(model(op.Softplus)).run({"x": x})["y"]).all()


def test_float32_is_not_lowered():
    proto = model(op.Softplus, "float32")
    assert lower(proto) is proto


def test_names_and_initializers_are_kept():
    w = constant(np.ones((1, 3, 1, 1)), hint="w")
    lowered = lower(model(lambda x: op.Softplus(x * w)))
    assert [i.name for i in lowered.graph.input] == ["x"]
    assert [o.name for o in lowered.graph.output] == ["y"]
    assert "w" in {t.name for t in lowered.graph.initializer}


def test_error_of_an_operator_without_lowering():
    message = r"no kernel for Atan .*node 'Atan_node_0'\) with inputs of float64; use another"
    with pytest.raises(ModelError, match=message):
        Session(model(op.Atan))


def test_bodies_are_lowered():
    def f(x):
        def step(i, going, v):
            return None, cond(op.ReduceSum(v, keepdims=0) > 0, lambda: op.Elu(v), lambda: -v)

        h = op.Softplus(x)
        return loop(step, 2, h) + op.Mean(h, x)

    actual = Session(model(f)).run({"x": X})["y"]
    h = F.softplus(torch.tensor(X))
    np.testing.assert_allclose(actual, 2 * (h + (h + torch.tensor(X)) / 2), rtol=1e-12, atol=1e-14)
    proto = model(lambda x: loop(lambda i, going, v: (None, op.Softplus(v)), 2, x), "float32")
    assert lower(proto) is proto


def test_error_of_an_operator_without_lowering_in_a_body():
    message = r"no kernel for Atan .*node 'Atan_node_0'\) with inputs of float64; use another"
    with pytest.raises(ModelError, match=message):
        Session(model(lambda x: cond(op.ReduceSum(x, keepdims=0) > 0, lambda: op.Atan(x), lambda: x)))


def fast_gelu():
    """An operator of onnxruntime in float64."""
    x = constant(X[0], hint="x")
    return build([x], {"y": make_node(schema_of("FastGelu", "com.microsoft", 1), [x], {}).outputs[0]})


def batch_first():
    """A recurrence of layout 1."""
    w, r = (constant(np.ones((1, 5, n), np.float32)) for n in (3, 5))
    x = variable("x", "float32", [2, 4, 3])
    return build([x], {"y": op.RNN(x, w, r, hidden_size=5, layout=1, n_outputs=2)[0]})


def same_pads():
    """A convolution with pads that a runtime works out."""
    x, w = variable("x", "float32", [1, 1, 6, 6]), np.ones((1, 1, 3, 3), np.float32)
    return build([x], {"y": op.Conv(x, w, auto_pad="SAME_UPPER", dilations=[2, 2])})


def product_of_bytes():
    """A product of quantized matrices."""
    a, zero = variable("a", "int8", [2, 2]), constant(0, np.int8)
    return build([a], {"y": op.QLinearMatMul(a, 0.5, zero, a, 0.5, zero, 0.5, zero)})


def pooled_bytes():
    """A dequantization that a pool and a Slice read."""
    x, zero = variable("x", "float32", [1, 1, 4, 4]), constant(np.int8(3), hint="zero")

    def round_to_int8(v):
        return op.DequantizeLinear(op.QuantizeLinear(v, 0.05, zero), 0.05, zero)

    h = round_to_int8(op.Relu(round_to_int8(x)))
    return build([x], {"y": round_to_int8(op.MaxPool(h, kernel_shape=[2, 2])), "first": op.Slice(h, [0], [2], [2])})


NUMBERED = {
    "lower 1": lambda: lower(model(op.Elu)),
    "lower 2": lambda: lower(model(op.Elu, "float32"), ["Elu"]),
    "lower 3": lambda: lower(batch_first()),
    "lower 4": lambda: lower(fast_gelu()),
    "lower 5": lambda: lower(same_pads()),
    "lower_quantized 1": lambda: lower_quantized(product_of_bytes()),
    "clear_padding 1": lambda: clear_padding(make_decoder()),
    "make_portable 1": lambda: make_portable(pooled_bytes()),
}


@pytest.mark.parametrize("case", NUMBERED)
def test_numbered_case(case):
    check_case(case, NUMBERED[case])


def test_portable():
    """Plain onnxruntime runs what is portable, and what cannot be is refused by name."""
    proto = model(lambda x: op.Elu(op.Cos(x)) + op.ReduceL2(x))
    expected = 2 * (F.elu(torch.cos(torch.tensor(X))) + np.sqrt((X * X).sum())).numpy()
    session = onnxruntime.InferenceSession(make_portable(proto).SerializeToString())
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=1e-12)
    assert make_portable(single := model(op.Elu, "float32")) is single
    with pytest.raises(ModelError, match=r"<Node .*: Atan> is of float64, and no onnxruntime .* for Atan; "
                       r"make the model one of float32"):
        make_portable(model(op.Atan))
    with pytest.raises(ModelError, match=r"kernel for LpPool of these attributes and sizes; .*, or its sizes static"):
        make_portable(model(lambda x: op.LpPool(x, kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1)))


def test_compositions_of_onnxruntime():
    """What com.microsoft computes in float32 alone becomes what it is composed of."""
    session = onnxruntime.InferenceSession(make_portable(fast_gelu()).SerializeToString())
    expected = F.gelu(torch.tensor(X[0]), approximate="tanh")
    # 1 + tanh(...) cancels where it is near 0: its last bits, of numbers near 1, depend on the CPU.
    np.testing.assert_allclose(session.run(None, {"x": X[0]})[0], expected, rtol=1e-12, atol=1e-15)


def test_dequantized_elements_are_kept():
    """onnxruntime 1.32.0 would quantize the slices, and fail on the attribute of the nodes that it writes."""
    proto = make_portable(pooled_bytes())
    assert [n.op_type for n in proto.graph.node].count("Max") == 1
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    a = np.random.default_rng(0).normal(size=(1, 1, 4, 4)).astype(np.float32)
    first = session.run(["first"], {"x": a})[0]
    np.testing.assert_allclose(first, (np.maximum(a, 0) / 0.05).round()[:, :, :2] * 0.05, atol=1e-6)


def test_log_loss_in_float64():
    x, w = variable("x", "float64", ["N", 2]), constant(np.zeros((2, 1)), hint="w")
    rows = np.random.default_rng(0).normal(size=(50, 2))
    labels = (rows[:, 0] > rows[:, 1]).astype(int)
    o = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ w}), learning_loss="log_loss", learning_rate=1.0)
    assert o.fit(rows, labels).score(rows, labels) > 0.95
    assert o.get_state()[0].dtype == np.float64


def test_models_without_float64_are_not_read():
    """The model is returned as it is, with its declared shapes."""
    x, d = variable("x", "float32", ["N"]), variable("d", "float64", ["N"])
    model = build([x, d], {"y": op.HardSigmoid(x), "z": d + 1})
    assert lower(model) is model


def test_float64_in_a_corner_reads_no_model(monkeypatch):
    """A step that counts in float64 beside operators of float32, alone and in the body of an epoch."""
    x, w = variable("x", "float32", ["N", 4]), constant(np.eye(4, dtype=np.float32), hint="w")
    optimizer = OrtGradientForwardBackwardOptimizer(build([x], {"y": op.Erf(x @ w)}), learning_rate="AdamW", max_iter=2)
    graphs = [onnx.load_model_from_string(optimizer.save_onnx_graph(bytes)[n]) for n in ("epoch", "step")]
    assert all(lowering._has_float64(graph) for graph in graphs)
    monkeypatch.setattr(lowering, "load", None)
    assert all(lower(graph) is graph for graph in graphs)


def swap(x):
    """A loop whose first state is of float64 from the second iteration on, where it takes the place of another."""
    one = op.Cast(op.ReduceSum(x, keepdims=0), to=TensorProto.FLOAT)
    return loop(lambda i, _, a, b: (None, op.Erf(op.Cast(b, to=TensorProto.FLOAT)), b), 2, one, x)[1]


@pytest.mark.parametrize(("f", "is_lowered"), [
    (op.Erf, True),
    (lambda x: op.Cast(op.Erf(op.Cast(x, to=TensorProto.FLOAT)), to=TensorProto.DOUBLE), False),
    (lambda x: op.Erf(op.CastLike(constant(np.float32(1)), x)), True),
    (lambda x: cond(op.ReduceSum(x, keepdims=0) > 0, lambda: op.Erf(x), lambda: x), True),
    (lambda x: op.Erf(cond(op.ReduceSum(op.Cast(x, to=TensorProto.FLOAT), keepdims=0) > 0, lambda: constant(
        np.ones(1)), lambda: constant(np.zeros(1)))), True),
    (lambda x: loop(lambda i, _, v: (None, op.Erf(v)), 2, x), True),
    (swap, False),
    (lambda x: op.Erf(op.EyeLike(op.Cast(x[0, 0], to=TensorProto.FLOAT), dtype=TensorProto.DOUBLE)), True),
    (lambda x: op.Erf(op.ConstantOfShape(op.Shape(x), value=np.zeros(1))), True),
])
def test_a_model_is_read_where_float64_may_reach_an_operator(f, is_lowered, monkeypatch):
    proto = model(f)
    lowered = lower(proto)
    assert (lowered is not proto) == is_lowered
    monkeypatch.setattr(lowering, "needs_lowering", lambda proto: True)
    assert (lower(proto) is not proto) == is_lowered, "the same as where every model is read"


@pytest.mark.parametrize("rows", [1, 7])
def test_quantized_product_is_that_of_the_kernel_of_opset_20(rows):
    """In integers; onnxruntime 1.19.2 has no kernel for opset 21, which a model is upgraded to."""
    text = f"""<ir_version: 9, opset_import: ["": 20]>
    g (uint8[N, 50] a) => (uint8[N, 4] y) <int8[50, 4] b = {{{', '.join(str(i * 7 % 201 - 100) for i in range(200))}}},
     float s = {{0.02}}, float[4] t = {{0.01, 0.02, 0.03, 0.013}}, float u = {{1.7}}, uint8 z = {{100}},
     int8[4] v = {{0, 0, 0, 0}}, uint8 w = {{128}}> {{ y = QLinearMatMul (a, s, z, b, t, v, u, w) }}"""
    model = parser.parse_model(text)
    a = np.random.default_rng(rows).integers(0, 256, (rows, 50)).astype(np.uint8)
    expected = Session(model).run({"a": a})["y"]
    upgraded = build((loaded := load(model)).inputs, loaded.outputs)
    assert upgraded.opset_import[0].version == 21
    for graph in (upgraded, lower_quantized(upgraded)):
        np.testing.assert_array_equal(Session(graph).run({"a": a})["y"], expected)


@pytest.mark.parametrize("op_type", ["GRU", "LSTM", "RNN"])
def test_recurrence_with_the_batch_first(op_type):
    """Layout 1, for which onnxruntime has no kernel in any dtype."""
    rng, gates = np.random.default_rng(0), {"GRU": 3, "LSTM": 4, "RNN": 1}[op_type]
    a = rng.normal(size=(2, 4, 3)).astype(np.float32)
    w, r = (constant(rng.normal(size=(1, gates * 5, n)).astype(np.float32)) for n in (3, 5))
    x = variable("x", "float32", a.shape)
    recurrence = partial(getattr(op, op_type), hidden_size=5)
    first, _ = recurrence(x, w, r, layout=1, n_outputs=2)
    steps, _ = recurrence(op.Transpose(x, perm=[1, 0, 2]), w, r, n_outputs=2)
    model = build([x], {"y": op.Squeeze(first, [2]), "z": op.Transpose(op.Squeeze(steps, [1]), perm=[1, 0, 2])})
    y, z = Session(model).run({"x": a}).values()
    np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-6)


def test_padding_is_no_memory_that_nothing_has_written():
    """NaN of a former run, which onnxruntime 1.19.2 reads behind the last token of a row, reaches no result."""
    ids, mask = np.array([[6, 3, *[0] * 6], [3, 4, 5, 6] * 2]), np.array([[1, 1, *[0] * 6], [1] * 8])
    for name in ("q_proj", "v_proj", "up_proj"):
        model = add_ia3(make_decoder(is_packed=name == "q_proj"), name)
        factors = model.graph.initializer.pop()
        model.graph.input.append(helper.make_tensor_value_info(factors.name, factors.data_type, factors.dims))
        feeds = {"input_ids": ids, "attention_mask": mask, **past_of(model, 2)}
        session, before = Session(model), {**feeds, factors.name: np.ones(factors.dims, np.float32)}
        expected = session.run(before)["logits"]
        session.run({**feeds, factors.name: np.full(factors.dims, np.nan, np.float32)})
        np.testing.assert_array_equal(session.run(before)["logits"], expected)


@pytest.mark.parametrize("amount", [0, 4, 6, 7])
def test_bytes_that_are_shifted(amount):
    """Products modulo 256 are shifts, also by an amount from outside of a body, and no other model is touched."""
    x = variable("x", "uint8", [256])
    shifted = build([x], {"y": op.BitShift(x, np.uint8(amount), direction="LEFT")})
    multiplied = multiply_bytes(shifted)
    assert [node.op_type for node in multiplied.graph.node] == ["Mul"]
    assert [node.op_type for node in shifted.graph.node] == ["BitShift"]
    onnx.checker.check_model(multiplied, full_check=True)
    every = np.arange(256).astype(np.uint8)
    np.testing.assert_array_equal(Session(shifted).run({"x": every})["y"], every << np.uint8(amount))
    for node in (op.BitShift(x, np.uint8(amount), direction="RIGHT"), op.BitShift(x, x, direction="LEFT")):
        other = build([x], {"y": node})
        assert multiply_bytes(other) is other
