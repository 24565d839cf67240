"""Gradients that pass straight through quantized operators, beside those of torch's fake quantization."""

import numpy as np
import pytest
import torch
from models import assert_close
from onnx import parser
from torch.nn import functional

from ortpartial import gradient_model, load
from ortpartial.exceptions import NoGradientError
from ortpartial.runtime.session import Session

SCALES = {"x": 0.02, "w": 0.01, "y": 0.03}
ZEROS = {"x": 120, "w": 0, "y": 130}


def graph(nodes, shape, weight=()):
    """y = DequantizeLinear(q), where nodes compute q from p = QuantizeLinear(x)."""
    rng = np.random.default_rng(1)
    kinds = {"x": "uint8", "w": "int8", "y": "uint8"}
    constants = [f"float s{n} = {{{SCALES[n]}}}, {kind} z{n} = {{{ZEROS[n]}}}" for n, kind in kinds.items()]
    if weight:
        numbers = rng.integers(-100, 100, np.prod(weight))
        constants.append(f"int8{list(weight)} w = {{{', '.join(map(str, numbers))}}}")
    return parser.parse_model(f"""<ir_version: 9, opset_import: ["": 19, "com.microsoft": 1]>
    g (float{list(shape)} x) => (float y) <{', '.join(constants)}> {{
      p = QuantizeLinear (x, sx, zx)
      {nodes}
      y = DequantizeLinear (q, sy, zy)
    }}""")


def quantize(v, name):
    return torch.fake_quantize_per_tensor_affine(v, SCALES[name], ZEROS[name], 0, 255)


def weight_of(model):
    (t,) = [t for t in model.graph.initializer if t.name == "w"]
    return torch.tensor(np.array(t.int32_data, np.float32).reshape(list(t.dims)) * SCALES["w"])


MATRIX, IMAGE = (5, 4), (2, 3, 6, 6)
CASES = {
    "QLinearMatMul": ("q = QLinearMatMul (p, sx, zx, w, sw, zw, sy, zy)", MATRIX, (4, 3), lambda x, w: x @ w),
    "QLinearConv": ("q = QLinearConv <pads = [1, 1, 1, 1], strides = [2, 2]> (p, sx, zx, w, sw, zw, sy, zy)", IMAGE,
                    (2, 3, 3, 3), lambda x, w: functional.conv2d(x, w, padding=1, stride=2)),
    "QGemm": ("q = com.microsoft.QGemm <transB = 1> (p, sx, zx, w, sw, zw, , sy, zy)", MATRIX, (3, 4),
              lambda x, w: x @ w.T),
    "QLinearAdd": ("q = com.microsoft.QLinearAdd (p, sx, zx, p, sx, zx, sy, zy)", MATRIX, (), lambda x: x + x),
    "QLinearMul": ("q = com.microsoft.QLinearMul (p, sx, zx, p, sx, zx, sy, zy)", MATRIX, (), lambda x: x * x),
    "QLinearSigmoid": ("q = com.microsoft.QLinearSigmoid (p, sx, zx, sy, zy)", MATRIX, (), torch.sigmoid),
    "QLinearLeakyRelu": ("q = com.microsoft.QLinearLeakyRelu <alpha = 0.2> (p, sx, zx, sy, zy)", MATRIX, (),
                         lambda x: functional.leaky_relu(x, 0.2)),
    "QLinearSoftmax": ("q = com.microsoft.QLinearSoftmax <axis = -1, opset = 13> (p, sx, zx, sy, zy)", MATRIX, (),
                       lambda x: torch.softmax(x, -1)),
    "QLinearAveragePool": ("q = com.microsoft.QLinearAveragePool <kernel_shape = [2, 2]> (p, sx, zx, sy, zy)", IMAGE,
                           (), lambda x: functional.avg_pool2d(x, 2, 1)),
    "QLinearGlobalAveragePool": ("q = com.microsoft.QLinearGlobalAveragePool (p, sx, zx, sy, zy)", IMAGE, (),
                                 lambda x: x.mean((2, 3), keepdim=True)),
    "QLinearWhere": ("r = DequantizeLinear (p, sx, zx)  b = Greater (r, sy)  "
                     "l = com.microsoft.QLinearLeakyRelu <alpha = 0.2> (p, sx, zx, sy, zy)  "
                     "q = com.microsoft.QLinearWhere (b, p, sx, zx, l, sy, zy, sy, zy)", MATRIX, (),
                     lambda x: torch.where(x > SCALES["y"], x, quantize(functional.leaky_relu(x, 0.2), "y"))),
    "QLinearConcat": ("q = com.microsoft.QLinearConcat <axis = 1> (sy, zy, p, sx, zx, p, sx, zx)", MATRIX, (),
                      lambda x: torch.cat([x, x], 1)),
    # Operators of integers that stand for the same of real numbers.
    "MaxPool, Transpose": ("m = MaxPool <kernel_shape = [3, 3], strides = [3, 3]> (p)  t = Transpose (m)  "
                           "r = DequantizeLinear (t, sx, zx)  q = QuantizeLinear (r, sy, zy)", IMAGE, (),
                           lambda x: functional.max_pool2d(x, 3).permute(3, 2, 1, 0)),
    "contributed": ("r = com.microsoft.DequantizeLinear (p, sx, zx)  "
                    "q = com.microsoft.QuantizeLinear (r, sy, zy)", MATRIX, (), lambda x: x),
}


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_that_of_fake_quantization(name):
    nodes, shape, weight, formula = CASES[name]
    model = graph(nodes, shape, weight)
    # Some numbers are beyond the range of x, -2.4 to 2.7.
    x = np.random.default_rng(0).normal(size=shape, scale=1.2).astype(np.float32)
    t = torch.tensor(x, requires_grad=True)
    y = quantize(formula(*[quantize(t, "x"), *([weight_of(model)] if weight else [])]), "y")
    dy = np.random.default_rng(2).normal(size=y.shape).astype(np.float32)
    y.backward(torch.tensor(dy))
    loaded = load(model, straight_through=True)
    results = Session(gradient_model(loaded, ["x"])).run({"x": x, "y_grad": dy})
    assert_close(results, {"x_grad": t.grad.numpy()}, 1e-5)
    # One unit of the result is what the rounding of a product may differ by.
    np.testing.assert_allclose(Session(model).run({"x": x})["y"], y.detach().numpy(), atol=1.01 * SCALES["y"])


def test_scales_and_zero_points_of_channels():
    """QLinearConv with a bias and a scale for each output channel, ConvInteger with zero points."""
    model = parser.parse_model("""<ir_version: 9, opset_import: ["": 19]>
    g (float[2, 2, 4, 4] x) => (float[2, 3, 4, 4] y, int32[2, 3, 4, 4] c)
    <float s = {0.02}, uint8 z = {120}, float[3] t = {0.01, 0.02, 0.005}, int8[3] u = {0, 0, 0},
     int32[3] b = {900, -4000, 70}, int8[3, 2, 1, 1] w = {10, -20, 30, 40, 50, -60}, uint8 v = {7},
     uint8[3, 2, 1, 1] k = {10, 20, 30, 40, 50, 60}> {
      p = QuantizeLinear (x, s, z)
      q = QLinearConv (p, s, z, w, t, u, s, z, b)
      d = DequantizeLinear (q, s, z)
      c = ConvInteger (p, k, z, v)
      f = Cast <to = 1> (c)
      e = Mul (f, s)
      y = Add (d, e)
    }""")
    x = np.random.default_rng(0).normal(size=(2, 2, 4, 4)).astype(np.float32)
    t = torch.tensor(x, requires_grad=True)
    fake = torch.fake_quantize_per_tensor_affine(t, 0.02, 120, 0, 255)
    scale, w = torch.tensor([0.01, 0.02, 0.005]), torch.tensor([[10.0, -20], [30, 40], [50, -60]])
    bias = torch.tensor([900.0, -4000, 70]) * scale * 0.02
    y = functional.conv2d(fake, (w * scale[:, None])[..., None, None], bias)
    k = torch.arange(10.0, 70, 10).reshape(3, 2, 1, 1) - 7
    y = torch.fake_quantize_per_tensor_affine(y, 0.02, 120, 0, 255) + functional.conv2d(fake, k)
    y.sum().backward()
    loaded = load(model, straight_through=True)
    results = Session(gradient_model(loaded, ["x"], ["y"], cotangents="ones")).run({"x": x})
    assert_close(results, {"x_grad": t.grad.numpy()}, 1e-5)


def test_products_that_quantize_their_input():
    """Fused by onnxruntime's optimizers, or written by quantize_dynamic for an LSTM: one node from floats to floats."""
    rng = np.random.default_rng(0)
    w, b = rng.integers(-90, 90, (4, 3)), rng.normal(size=3).astype(np.float32)
    gates = rng.integers(-90, 90, (2, 12))
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["": 19, "com.microsoft": 1]>
    g (float[5, 4] x) => (float y)
    <float s = {{0.01}}, int8 z = {{0}}, int8[4, 3] w = {{{', '.join(map(str, w.ravel()))}}},
     float[3] b = {{{', '.join(map(str, b))}}}, float[1] u = {{0.01}}, int8[1] v = {{0}},
     int8[1, 2, 12] g = {{{', '.join(map(str, gates.ravel()))}}},
     int8[1, 3, 12] r = {{{', '.join(['5', '-9', '3'] * 12)}}},
     int64[3] shape = {{5, 2, 2}}> {{
      m = com.microsoft.DynamicQuantizeMatMul (x, w, s, z, b)
      p, o, i = DynamicQuantizeLinear (x)
      n = com.microsoft.MatMulIntegerToFloat (p, w, o, s, i, z, b)
      h = Reshape (x, shape)
      l = com.microsoft.DynamicQuantizeLSTM <hidden_size = 3> (h, g, r, , , , , , u, v, u, v)
      k = Squeeze (l)
      a = Mul (m, n)  c = ReduceSum (a)  d = ReduceSum (k)  y = Add (c, d)
    }}""")
    x = rng.normal(size=(5, 4)).astype(np.float32)
    t = torch.tensor(x, requires_grad=True)
    lstm = torch.nn.LSTM(2, 3, bias=False)
    with torch.no_grad():  # the gates of ONNX are i, o, f, c, those of torch i, f, c, o
        order = [0, 1, 2, 6, 7, 8, 9, 10, 11, 3, 4, 5]
        lstm.weight_ih_l0.copy_(torch.tensor(gates.T[order] * 0.01))
        lstm.weight_hh_l0.copy_(torch.tensor(np.array([5, -9, 3] * 12).reshape(3, 12).T[order] * 0.01))
    product = t @ torch.tensor(w * 0.01, dtype=torch.float32) + torch.tensor(b)
    y = (product * product).sum() + lstm(t.reshape(5, 2, 2))[0].sum()
    y.backward()
    loaded = load(model, straight_through=True)
    results = Session(gradient_model(loaded, ["x"], cotangents="ones")).run({"x": x})
    assert_close(results, {"x_grad": t.grad.numpy()}, 2e-2)  # dynamic ranges are rounded to 8 bits


QKV = """<ir_version: 9, opset_import: ["": 19, "com.microsoft": 1]>
g (float[2, 3, 4] x) => (float[2, 3, 4] y)
<float s = {{0.02}}, int8 z = {{0}}, int8[4, 12] k = {{{}}}, float[12] b = {{{}}}> {{ {} }}"""


@pytest.mark.parametrize("attributes", ["num_heads = 2", "num_heads = 2, unidirectional = 1"])
def test_attention(attributes):
    """QAttention, of which quantize_dynamic makes the Attention that onnxruntime.transformers fuses."""
    rng = np.random.default_rng(0)
    k, b = (", ".join(map(str, v)) for v in (rng.integers(-99, 99, 48), rng.normal(size=12)))
    nodes = (f"p, o, i = DynamicQuantizeLinear (x)  "
             f"y = com.microsoft.QAttention <{attributes}> (p, k, b, o, s, , i, z)",
             f"w = DequantizeLinear (k, s, z)  y = com.microsoft.Attention <{attributes}> (x, w, b)")
    quantized, floats = (parser.parse_model(QKV.format(k, b, n)) for n in nodes)
    feeds = {n: rng.normal(size=(2, 3, 4)).astype(np.float32) for n in ("x", "y_grad")}
    results, expected = (Session(gradient_model(m, ["x"])).run(feeds)
                         for m in (load(quantized, straight_through=True), floats))
    assert_close(results, expected, 3e-2)


LOST = {
    "DynamicQuantizeMatMul": "y = com.microsoft.DynamicQuantizeMatMul (x, w, s, z)",
    # An operator that ONNX does not know.
    "MulInteger": "p = QuantizeLinear (x, s, z)  m = com.microsoft.MulInteger (p, z, p, z)  y = Cast <to = 1> (m)",
}


@pytest.mark.parametrize("name", LOST)
def test_what_is_lost_is_named(name):
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["": 19, "com.microsoft": 1]>
    g (float[2, 4] x) => (float[2, 4] y)
    <float s = {{0.01}}, int8 z = {{0}}, int8[4, 4] w = {{{', '.join('1' * 16)}}}> {{ {LOST[name]} }}""")
    is_known = name == "DynamicQuantizeMatMul"
    with pytest.raises(NoGradientError, match=rf"{name if is_known else 'QuantizeLinear'}>.* rounds"):
        gradient_model(model, ["x"])
    if not is_known:
        with pytest.raises(NoGradientError, match=f"{name}>, which reads the result, is not known"):
            gradient_model(load(model, straight_through=True), ["x"])
