"""Operators that onnxruntime computes on GPUs alone run and train on a processor, as torch computes them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

from ortpartial import build, gradient_model, load
from ortpartial.runtime.session import Session


def normal(*shape, dtype=np.float32):
    return np.random.default_rng(shape).normal(size=shape).astype(dtype)


def group_norm(x, gamma, beta, last=True, activation=1):
    y = F.group_norm(x.permute(0, 3, 1, 2) if last else x, 2, gamma, beta, 1e-3)
    y = F.silu(y) if activation else y
    return y.permute(0, 2, 3, 1) if last else y


def rotate(angles, q, turned_q, k, turned_k):
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return q * cos + turned_q * sin, k * cos + turned_k * sin


NORM = {"groups": 2, "epsilon": 1e-3}

# Operator, inputs, attributes, what torch computes.
CASES = {
    "BiasAdd": ("BiasAdd", [normal(2, 3, 4), normal(4), normal(2, 3, 4)], {}, lambda x, b, s: x + b + s),
    "BiasSplitGelu": ("BiasSplitGelu", [normal(2, 3, 8), normal(8)], {},
                      lambda x, b: (x + b)[..., :4] * F.gelu((x + b)[..., 4:])),
    "GemmFastGelu": ("GemmFastGelu", [normal(2, 3, 4), normal(4, 5), normal(5)], {},
                     lambda x, w, b: F.gelu(x @ w + b, approximate="tanh")),
    "GemmaRotaryEmbedding": ("GemmaRotaryEmbedding", [normal(2, 3, 4), *(normal(2, 2, 3, 4) for _ in range(4))], {},
                             rotate),
    "GroupNorm": ("GroupNorm", [normal(2, 3, 3, 4), normal(4), normal(4)], {**NORM, "activation": 1}, group_norm),
    "GroupNorm, channels first": (
        "GroupNorm", [normal(2, 4, 3, 3), normal(4), normal(4)], {**NORM, "activation": 0, "channels_last": 0},
        lambda x, g, b: group_norm(x, g, b, False, 0)),
    "SkipGroupNorm": (
        "SkipGroupNorm", [normal(2, 3, 3, 4), normal(4), normal(4), normal(2, 4), normal(4)], {**NORM, "activation": 1},
        lambda x, g, b, s, c: (group_norm(t := x + s[:, None, None] + c, g, b), t)),
    "NhwcConv": ("NhwcConv", [normal(2, 5, 5, 3), normal(4, 3, 3, 3), normal(4)], {"pads": [1, 1, 1, 1]},
                 lambda x, w, b: F.conv2d(*(v.permute(0, 3, 1, 2) for v in (x, w)), b, padding=1).permute(0, 2, 3, 1)),
}


def write(operator, arrays, attributes, n_outputs, domain="com.microsoft"):
    names = [f"x{i}" for i in range(len(arrays))]
    node = helper.make_node(operator, names, [f"y{i}" for i in range(n_outputs)], domain=domain, **attributes)
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), ["N", *a.shape[1:]] if i == 0
                                            else a.shape) for i, (n, a) in enumerate(zip(names, arrays, strict=True))]
    outputs = [helper.make_tensor_value_info(o, 1, None) for o in node.output]
    return helper.make_model(helper.make_graph([node], "g", inputs, outputs), ir_version=10, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])


@pytest.mark.parametrize("case", CASES)
def test_operator(case):
    operator, arrays, attributes, reference = CASES[case]
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = reference(*tensors)
    expected = expected if isinstance(expected, tuple) else (expected,)
    model = load(write(operator, arrays, attributes, len(expected)))
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    found = Session(build(model.inputs, model.outputs)).run(feeds)
    for i, e in enumerate(expected):
        np.testing.assert_allclose(found[f"y{i}"], e.detach(), atol=1e-5)
    grads = Session(gradient_model(model, list(feeds), list(found), cotangents="ones")).run(feeds)
    for n, g in zip(feeds, torch.autograd.grad(sum(e.sum() for e in expected), tensors), strict=True):
        np.testing.assert_allclose(grads[f"{n}_grad"], g, atol=1e-4, err_msg=n)


@pytest.mark.parametrize("is_bidirectional", [0, 1])
def test_relative_positions(is_bidirectional):
    """The buckets of T5, as transformers writes them; the table is stored by columns."""
    heads, buckets, n, m = 3, 8, 9, 12
    table = normal(buckets, heads)
    model = write("RelativePositionBias", [np.ascontiguousarray(table.T).reshape(buckets, heads)],
                  {"max_distance": 10, "is_bidirectional": is_bidirectional}, 1)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = buckets
    model.graph.node[0].input.extend(["n", "m"])
    model.graph.initializer.extend(numpy_helper.from_array(np.array([k]), s) for k, s in ((n, "n"), (m, "m")))
    ahead = torch.arange(m)[None] - torch.arange(n)[:, None]
    each = buckets // (1 + is_bidirectional)
    first = (ahead > 0).long() * each * is_bidirectional
    distance = ahead.abs() if is_bidirectional else (-ahead).clamp(min=0)
    exact = each // 2
    far = exact + (torch.log(distance.float() / exact) / np.log(10 / exact) * (each - exact)).long()
    bucket = first + torch.where(distance < exact, distance, far.clamp(max=each - 1))
    expected = torch.tensor(table)[bucket].permute(2, 0, 1)[None]
    loaded = load(model)
    feeds = {"x0": np.ascontiguousarray(table.T).reshape(buckets, heads)}
    found = Session(build(loaded.inputs, loaded.outputs)).run(feeds)["y0"]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    gradient = Session(gradient_model(loaded, ["x0"], cotangents="ones")).run(feeds)["x0_grad"]
    counts = np.bincount(bucket.flatten().numpy(), minlength=buckets)
    np.testing.assert_allclose(gradient.reshape(heads, buckets), np.tile(counts, (heads, 1)), atol=1e-5)


def test_half_precision():
    """GemmaRotaryEmbedding is of float16, with angles of float32."""
    angles, *heads = (normal(*s) for s in [(2, 3, 4), *[(2, 2, 3, 4)] * 4])
    arrays = [angles, *(a.astype(np.float16) for a in heads)]
    model = load(write("GemmaRotaryEmbedding", arrays, {}, 2))
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    found = Session(build(model.inputs, model.outputs)).run(feeds)
    expected = rotate(*(torch.tensor(a) for a in (angles, *heads)))
    for i, e in enumerate(expected):
        assert found[f"y{i}"].dtype == np.float16
        np.testing.assert_allclose(found[f"y{i}"], e, atol=1e-2)
