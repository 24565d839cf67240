"""Quantized ONNX files run by torch, to compare gradients that pass straight through rounding with autograd's.

Integers are tensors of floats. Every result takes the numbers that onnxruntime computes, so that both round alike, and
keeps the gradient of the formula here.
"""

import numpy as np
import onnx
import torch
from models import weights_of
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from torch.nn import functional

#: The operators, as functions of tensors and of their attributes.
FORMULAS = {}


def formula(name):
    def register(function):
        FORMULAS[name] = function
        return function

    return register


def spread(v, x, axis):
    """A scale or zero point of each slice of x, beside x."""
    return v if v is None or v.ndim == 0 or v.numel() == 1 else v.reshape([-1 if i == axis % x.ndim else 1
                                                                            for i in range(x.ndim)])


def dequantize(q, scale, zero=None, axis=1):
    zero = 0 if zero is None else spread(zero, q, axis)
    return (q - zero) * spread(scale, q, axis)


def quantize(x, scale, zero, kind):
    """Round x / scale + zero; the gradient passes where nothing is clipped."""
    real = x / scale + zero
    rounded = torch.round(x / scale) + zero
    info = np.iinfo(kind)
    inside = (rounded >= info.min) & (rounded <= info.max)
    return torch.where(inside, real - real.detach(), 0.0) + rounded.clamp(info.min, info.max).detach()


@formula("QuantizeLinear")
def _(x, scale, zero, *, kind):
    return quantize(x, scale, zero, kind)


@formula("DequantizeLinear")
def _(q, scale, zero=None, *, axis=1):
    return dequantize(q, scale, zero, axis)


@formula("DynamicQuantizeLinear")
def _(x, *, kind):
    low, high = x.detach().min().clamp(max=0.0), x.detach().max().clamp(min=0.0)
    scale = (high - low) / 255
    zero = torch.round(-low / scale)
    return quantize(x, scale, zero, kind), scale, zero


@formula("MatMulInteger")
def _(a, b, a_zero=0.0, b_zero=0.0):
    return (a - a_zero) @ (b - b_zero)


@formula("ConvInteger")
def _(x, w, x_zero=0.0, w_zero=0.0, *, strides=1, **_):
    return functional.conv2d(x - x_zero, w - w_zero, stride=tuple(strides))


@formula("QLinearMatMul")
def _(a, a_scale, a_zero, b, b_scale, b_zero, scale, zero, *, kind):
    return quantize(dequantize(a, a_scale, a_zero) @ dequantize(b, b_scale, b_zero), scale, zero, kind)


@formula("QLinearConv")
def _(x, x_scale, x_zero, w, w_scale, w_zero, scale, zero, b=None, *, kind, strides=1, **_):
    bias = None if b is None else b * x_scale * w_scale
    y = functional.conv2d(dequantize(x, x_scale, x_zero), dequantize(w, w_scale, w_zero, 0), bias, tuple(strides))
    return quantize(y, scale, zero, kind)


@formula("QGemm")
def _(a, a_scale, a_zero, b, b_scale, b_zero, c, scale=None, zero=None, *, kind, transB=0, **_):
    w = dequantize(b, b_scale, b_zero, 0 if transB else 1)
    y = dequantize(a, a_scale, a_zero) @ (w.T if transB else w) + c * a_scale * b_scale
    return y if scale is None else quantize(y, scale, zero, kind)


@formula("QAttention")
def _(x, w, b, x_scale, w_scale, lengths=None, x_zero=0.0, w_zero=None, past=None, *, num_heads, **_):
    return attend(dequantize(x, x_scale, x_zero), dequantize(w, w_scale, w_zero), b, lengths, num_heads=num_heads)


@formula("Attention")
def attend(x, w, b, lengths=None, *, num_heads, **_):
    q, k, v = (t.reshape(*t.shape[:2], num_heads, -1).transpose(1, 2) for t in (x @ w + b).chunk(3, -1))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if lengths is not None:
        padding = torch.arange(scores.shape[-1]) >= lengths[: x.shape[0], None]
        scores = scores - 10000.0 * padding[:, None, None, :]
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)


@formula("LayerNormalization")
def normalize(x, scale, bias=None, *, axis=-1, epsilon=1e-5, **_):
    return functional.layer_norm(x, x.shape[axis:], scale, bias, epsilon)


@formula("SkipLayerNormalization")
def _(x, skip, scale, beta=None, bias=None, *, epsilon=1e-12):
    total = x + skip + (0.0 if bias is None else bias)
    return normalize(total, scale, beta, epsilon=epsilon), None, None, total


@formula("SimplifiedLayerNormalization")
def normalize_by_squares(x, scale, *, epsilon=1e-5, **_):
    return functional.rms_norm(x, x.shape[-1:], scale, epsilon)


@formula("SkipSimplifiedLayerNormalization")
def _(x, skip, scale, *, epsilon=1e-12):
    return normalize_by_squares(x + skip, scale, epsilon=epsilon), None, None, x + skip


@formula("Conv")
def _(x, w, b=None, *, strides=1, **_):
    return functional.conv2d(x, w, b, tuple(strides))


@formula("Gemm")
def _(a, b, c, *, transB=0, **_):
    return a @ (b.T if transB else b) + c


@formula("FusedMatMul")
def _(a, b, *, alpha, transA=0, transB=0, **_):
    return alpha * (a.transpose(-1, -2) if transA else a) @ (b.transpose(-1, -2) if transB else b)


@formula("Split")
def _(x, sizes, *, axis=0, **_):
    return x.split(sizes.int().tolist(), axis)


@formula("QLinearAdd")
def _(a, a_scale, a_zero, b, b_scale, b_zero, scale, zero, *, kind):
    return quantize(dequantize(a, a_scale, a_zero) + dequantize(b, b_scale, b_zero), scale, zero, kind)


@formula("QLinearMul")
def _(a, a_scale, a_zero, b, b_scale, b_zero, scale, zero, *, kind):
    return quantize(dequantize(a, a_scale, a_zero) * dequantize(b, b_scale, b_zero), scale, zero, kind)


@formula("QLinearSoftmax")
def _(x, x_scale, x_zero, scale, zero, *, kind, axis, **_):
    return quantize(torch.softmax(dequantize(x, x_scale, x_zero), axis), scale, zero, kind)


@formula("QLinearConcat")
def _(scale, zero, *inputs, kind, axis):
    triples = zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True)
    return quantize(torch.cat([dequantize(*triple) for triple in triples], axis), scale, zero, kind)


@formula("DynamicQuantizeMatMul")
def _(a, b, scale, zero=None, bias=None):
    q, a_scale, a_zero = FORMULAS["DynamicQuantizeLinear"](a, kind=np.uint8)
    return ((q - a_zero) * a_scale) @ dequantize(b, scale, zero) + (0.0 if bias is None else bias)


@formula("MatMulIntegerToFloat")
def _(a, b, a_scale, b_scale, a_zero=None, b_zero=None, bias=None):
    return dequantize(a, a_scale, a_zero) @ dequantize(b, b_scale, b_zero) + (0.0 if bias is None else bias)


#: Operators that round to numbers of a quantization, of a type that their formulas take.
QUANTIZERS = {"DynamicQuantizeLinear", "QGemm", "QuantizeLinear", *(n for n in FORMULAS if n.startswith("QLinear"))}

FORMULAS |= {
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div, "Pow": torch.pow, "MatMul": torch.matmul,
    "Sqrt": torch.sqrt, "Erf": torch.erf, "Tanh": torch.tanh, "Relu": torch.relu, "Gelu": functional.gelu,
    "BiasGelu": lambda x, b: functional.gelu(x + b),
    "FastGelu": lambda x, b=0.0: functional.gelu(x + b, approximate="tanh"),
    "Softmax": lambda x, *, axis=-1: torch.softmax(x, axis),
    "Transpose": lambda x, *, perm: x.permute(tuple(perm)),
    "Concat": lambda *xs, axis: torch.cat(xs, axis),
    "Cast": lambda x, **_: x,
    "Reshape": None, "Expand": None, "Unsqueeze": None, "Squeeze": None,  # by the shape of the result
    "Gather": None, "ReduceMean": lambda x, *, axes=(-1,), **_: x.mean(tuple(axes), keepdim=True),
}


def run_straight_through(model, feeds, names):
    """The first output of a file as a function of the tensors `names` of its initializers and inputs, and these."""
    numbers = compute_all(model, feeds)
    leaves = {n: torch.tensor(numbers[n], requires_grad=True) for n in names}
    tensors = {n: torch.tensor(a.astype(np.float32)) for n, a in numbers.items()} | leaves
    depends = set(names)
    for node in model.graph.node:
        if node.op_type == "Shape" or not depends & set(node.input):
            continue
        settings = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        inputs = [tensors[n] if n else None for n in node.input]
        ys = apply(node, inputs, settings, numbers[node.output[0]])
        for n, y in zip(node.output, ys, strict=False):
            if n and y is not None and y.requires_grad:
                tensors[n] = y + (torch.tensor(numbers[n].astype(np.float32)) - y).detach()
                assert np.abs(numbers[n] - y.detach().numpy()).max() <= (
                    1.0 if numbers[n].dtype.kind in "iu" else 1e-3), (node.op_type, n)
                depends.add(n)
    return tensors[model.graph.output[0].name], leaves


def apply(node, inputs, settings, result):
    """The outputs of a node."""
    if node.op_type in ("Reshape", "Expand", "Unsqueeze", "Squeeze"):
        x = inputs[0]
        return [x.expand(result.shape) if node.op_type == "Expand" else x.reshape(result.shape)]
    if node.op_type == "Gather":
        axis = settings.get("axis", 0)
        return [torch.index_select(inputs[0], axis, inputs[1].long().reshape(-1)).reshape(result.shape)]
    if node.op_type in QUANTIZERS:
        settings["kind"] = result.dtype
    ys = FORMULAS[node.op_type](*inputs, **settings)
    return ys if isinstance(ys, (tuple, list)) else [ys]


def compute_all(model, feeds):
    """Every tensor of a model, as onnxruntime computes it without fusing operators."""
    every = onnx.ModelProto()
    every.CopyFrom(model)
    listed = {o.name for o in model.graph.output}
    every.graph.output.extend(onnx.ValueInfoProto(name=n) for node in model.graph.node for n in node.output
                              if n and n not in listed)
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    session = InferenceSession(every.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in every.graph.output]
    return weights_of(model) | feeds | dict(zip(names, session.run(names, feeds), strict=True))
