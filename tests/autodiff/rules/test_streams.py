"""Hyper-connections, the gate of Engram and the router of experts: beside kernels, central differences and torch."""

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from table import OLD, apart, assert_as_torch, real, rows

from ortpartial import load
from ortpartial.autodiff.registry import REASONS
from ortpartial.graph import build, variable
from ortpartial.model.reader import EXPANSIONS
from ortpartial.runtime import Session
from ortpartial.testing import check_gradient

X, FLAT = real(2, 3, 2, 4), real(2, 3, 8)
KEYS = [real(1, 2, 2, 4, seed=i) for i in range(2)]
ENGRAM = [*KEYS, real(1, 2, 4, seed=2), *(1 + real(2, 4, seed=i) / 4 for i in (3, 4, 5))]
ROUTES = {"top_k": 2, "n_group": 2, "topk_group": 1}


def rms(x, eps=1e-5):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def norm(x, s):
    return rms(x) * s


def norm_flat(x, s):
    return (rms(x.unflatten(-1, (2, 4))) * s.reshape(2, 4)).flatten(-2)


def pre_mix(x, m):
    return 0.5 * (x * m[..., None]).sum(-2)


def post_mix(x, b, m, mix):
    return torch.einsum("...ck,...ch->...kh", mix, x) + m[..., None] * b[..., None, :]


def gate(k, q, v, ks, qs, _=None):
    dot = (rms(k) * ks * rms(q) * qs).sum(-1, keepdim=True) / 2
    return torch.sigmoid(dot.sign() * dot.abs().clamp(min=1e-6).sqrt()) * v[:, :, None]


def gate_normed(*x):
    return rms(gate(*x)) * x[5]


def route(logits, bias):
    s = logits.sigmoid()
    scores = (s + bias).detach().reshape(-1, 2, 3)
    group = scores.topk(2)[0].sum(-1).argmax(-1)
    held = torch.where(torch.arange(2)[None, :, None] == group[:, None, None], scores, -torch.inf).reshape(-1, 6)
    chosen = torch.zeros(held.shape).scatter(1, held.topk(2)[1], 1) > 0
    return torch.where(chosen, s.clamp(min=1e-20).log(), -1e4)


#: The operator, its inputs and attributes, the output, and what torch computes.
CASES = rows(
    ("a norm", "BranchwiseRMSNorm", [X, real(4)], {}, 0, norm),
    ("a norm of branches", "BranchwiseRMSNorm", [FLAT, real(8)], {"num_branches": 2}, 0, norm_flat),
    ("a norm of grouped branches", "BranchwiseRMSNorm", [X, real(8)], {}, 0, lambda x, s: norm(x, s.reshape(2, 4))),
    ("a norm without a scale", "BranchwiseRMSNorm", [X], {}, 0, rms),
    ("streams to one", "HyperConnectionPreMix", [X, real(2, 3, 2)], {"reduction_scale": 0.5}, 0, pre_mix),
    ("flat streams to one", "HyperConnectionPreMix", [FLAT, FLAT + 1], {"num_branches": 2}, 0,
     lambda x, m: (x * m).unflatten(-1, (2, 4)).sum(-2)),
    ("one to streams", "HyperConnectionPostMix", [X, real(2, 3, 4), real(2, 3, 2), real(2, 3, 2, 2)], {}, 0, post_mix),
    ("one to flat streams", "HyperConnectionPostMix", [FLAT, real(2, 3, 4), real(2, 3, 2, 1)], {"num_branches": 2}, 0,
     lambda x, b, m: (x.unflatten(-1, (2, 4)) + m * b[..., None, :]).flatten(-2)),
    ("a gate", "EngramGate", ENGRAM[:5], {}, 0, gate),
    ("a gate and a norm", "EngramGate", ENGRAM, {}, 1, gate_normed),
    ("a router", "MoEGroupRouter", [apart(3, 6), apart(6, seed=1) / 10], ROUTES, 0, route),
    ("the scores of a router", "MoEGroupRouter", [apart(3, 6), real(6)], {"top_k": 2}, 2, lambda x, b: x.sigmoid()),
)


@pytest.mark.parametrize(("name", "arrays", "attributes", "i", "torch_f"), CASES)
def test_gradients(name, arrays, attributes, i, torch_f):
    def f(*x):
        return EXPANSIONS["com.microsoft", name](x, attributes, [True] * 3)[i]

    # A bias alone chooses experts.
    wrt = [0] if name == "MoEGroupRouter" else None
    check_gradient(f, arrays, order=1, wrt=wrt)
    if wrt is None:
        assert_as_torch(f, torch_f, arrays)
    values = [variable(f"x{k}", "float32", a.shape) for k, a in enumerate(arrays)]
    found = Session(build(values, {"y": f(*values)})).run({f"x{k}": a.astype(np.float32) for k, a in enumerate(arrays)})
    np.testing.assert_allclose(found["y"], torch_f(*map(torch.tensor, arrays)), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 does not know the operators")
@pytest.mark.parametrize(("name", "arrays", "attributes", "i", "torch_f"), CASES)
def test_kernels(name, arrays, attributes, i, torch_f):
    """What is read computes what the kernel does."""
    outputs = ["" if k < i and (name, k) != ("EngramGate", 0) else f"y{k}" for k in range(i + 1)]
    if name == "MoEGroupRouter" and i:
        outputs[1:] = ["y1", "y2"]
    node = helper.make_node(name, [f"x{k}" for k in range(len(arrays))], outputs, domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(f"x{k}", TensorProto.FLOAT, a.shape) for k, a in enumerate(arrays)],
        [helper.make_tensor_value_info(outputs[i], TensorProto.FLOAT, None)])
    model = helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])
    feeds = {f"x{k}": a.astype(np.float32) for k, a in enumerate(arrays)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    loaded = load(model)
    assert loaded.outputs[outputs[i]].node.domain == ""
    found = Session(build(loaded.inputs, loaded.outputs)).run(feeds)[outputs[i]]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_router_with_a_product_of_its_own():
    """It is run as it is, on GPUs, and has no gradient."""
    x = variable("x", "float32", [2, 4])
    assert EXPANSIONS["com.microsoft", "MoEGroupRouter"]([x, x, x], {"top_k": 1}, [True]) is None
    assert "projection_weight" in REASONS["com.microsoft", "MoEGroupRouter"]
