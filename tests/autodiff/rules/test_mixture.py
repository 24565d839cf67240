"""Gradients of mixtures of experts of com.microsoft are those of torch, written out token by token."""

import numpy as np
import onnxruntime
import pytest
import torch

from ortpartial import build, constant, grad, variable
from ortpartial.exceptions import NoGradientError
from ortpartial.graph.ops import Operators
from ortpartial.runtime.session import Session

ms = Operators("com.microsoft")
E, H, I = 4, 32, 16  # experts, and the widths of tokens and inside of an expert

pytestmark = pytest.mark.skipif(onnxruntime.__version__.startswith("1.19."),
                                reason="onnxruntime 1.19.2 has no MoE on CPU.")

SWIGLU = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0}

CASES = {
    "relu": {"k": 2},
    "gelu": {"k": 1, "activation_type": "gelu", "normalize_routing_weights": 1},
    "silu": {"k": 3, "activation_type": "silu", "normalize_routing_weights": 1},
    "identity": {"k": 2, "activation_type": "identity"},
    "swiglu": {"k": 2, **SWIGLU, "normalize_routing_weights": 1},
    "swiglu with a limit": {"k": 2, **SWIGLU, "swiglu_limit": 1.0},
}

# Bits, columns of a block, zero points.
PACKED = {"4 bits": (4, None, False), "4 bits in blocks": (4, 16, False), "zero points": (4, None, True),
          "zero points of blocks": (4, 16, True), "8 bits": (8, None, False), "2 bits in blocks": (2, 16, True)}


def draw(attributes, bias=True):
    rng = np.random.default_rng(0)
    inside = 2 * I if attributes.get("activation_type") == "swiglu" else I
    shapes = {"x": (2, 3, H), "router": (6, E), "w1": (E, inside, H), "b1": (E, inside), "w2": (E, H, I), "b2": (E, H)}
    arrays = {n: rng.normal(size=s).astype(np.float32) * (0.3 if n[0] == "w" else 1) for n, s in shapes.items()}
    return arrays if bias else {n: a for n, a in arrays.items() if n[0] != "b"}


def activate(a, settings):
    name = settings.get("activation_type", "relu")
    if name != "swiglu":
        return {"relu": torch.relu, "silu": torch.nn.functional.silu, "identity": lambda v: v,
                "gelu": lambda v: torch.nn.functional.gelu(v, approximate="tanh")}[name](a)
    gate, x = a[0::2], a[1::2]
    if "swiglu_limit" in settings:
        limit = settings["swiglu_limit"]
        gate, x = gate.clamp(max=limit), x.clamp(-limit, limit)
    return gate * torch.sigmoid(settings["activation_alpha"] * gate) * (x + settings["activation_beta"])


def mix(t, settings):
    """The experts of each token, token by token."""
    rows = []
    for i, x in enumerate(t["x"].flatten(0, 1)):
        p, chosen = t["router"][i].softmax(0).topk(settings["k"])
        if "weights" in t:
            p = t["weights"][i][chosen]
        if settings.get("normalize_routing_weights"):
            p = p / p.sum()
        rows.append(sum(w * (t["w2"][e] @ activate(t["w1"][e] @ x + (t["b1"][e] if "b1" in t else 0), settings)
                             + (t["b2"][e] if "b2" in t else 0)) for w, e in zip(p, chosen.tolist(), strict=True)))
    return torch.stack(rows).view(t["x"].shape)


def check(y, inputs, feeds, tensors, settings, wrt):
    """The node computes what torch does, and so does its gradient."""
    dy = variable("dy", "float32", y.shape)
    model = build([*inputs, dy], {"y": y, **{f"d_{n}": d for n, d in zip(wrt, grad(y, list(wrt.values()), [dy]),
                                                                         strict=True)}})
    expected = mix(tensors, settings)
    d = np.random.default_rng(1).normal(size=expected.shape).astype(np.float32)
    found = Session(model).run({**feeds, "dy": d})
    np.testing.assert_allclose(found["y"], expected.detach(), atol=1e-5 * max(1, float(expected.detach().abs().max())))
    grads = torch.autograd.grad(expected, [tensors[n] for n in wrt], torch.tensor(d))
    for n, g in zip(wrt, grads, strict=True):
        np.testing.assert_allclose(found[f"d_{n}"], g, atol=1e-5 * max(1, float(g.abs().max())), err_msg=n)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_experts(case, bias):
    arrays, settings = draw(CASES[case], bias), CASES[case]
    inputs = {n: variable(n, "float32", ["b", "s", H] if n == "x" else a.shape) for n, a in arrays.items()}
    y = ms.MoE(*map(inputs.get, ("x", "router", "w1", "b1", "w2", "b2")), **settings)
    check(y, inputs.values(), arrays, {n: torch.tensor(a, requires_grad=True) for n, a in arrays.items()}, settings,
          inputs)


def pack(numbers, bits):
    """Whole numbers as bytes along the last axis, the first number in the lowest bits."""
    each = 8 // bits
    padded = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, -numbers.shape[-1] % each)])
    parts = padded.reshape(*padded.shape[:-1], -1, each)
    return (parts << np.arange(0, 8, bits)).sum(-1).astype(np.uint8)


def quantize(shape, bits, size, has_zero, rng):
    """Packed experts with scales and zero points, and a function from scales to the matrices."""
    blocks = shape[2] // (size or shape[2])
    numbers = rng.integers(0, 2**bits, shape)
    scales = rng.uniform(0.01, 0.05, (*shape[:2], blocks)).astype(np.float32)
    zero = rng.integers(0, 2**bits, scales.shape) if has_zero else np.full(scales.shape, 2 ** (bits - 1))
    centered = torch.tensor((numbers - np.repeat(zero, shape[2] // blocks, 2)).astype(np.float32))
    stored = None if not has_zero else pack(zero if size else zero[..., 0], bits)
    return pack(numbers, bits), scales if size else scales[..., 0], stored, lambda s: centered * s.reshape(
        scales.shape).repeat_interleave(shape[2] // blocks, 2)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("case", PACKED)
def test_packed_experts(case, apart):
    """Weights of a few bits, which stay packed; `apart`, what is chosen and what counts are two inputs."""
    bits, size, has_zero = PACKED[case]
    settings = CASES["swiglu"]
    arrays, rng = draw(settings), np.random.default_rng(3)
    if apart:
        arrays["weights"] = rng.uniform(0.1, 1, (6, E)).astype(np.float32)
    inputs = {n: variable(n, "float32", a.shape) for n, a in arrays.items() if n not in ("w1", "w2")}
    packed = {n: quantize(arrays[n].shape, bits, size, has_zero, rng) for n in ("w1", "w2")}
    scales = {n: constant(p[1], hint=f"{n} scales") for n, p in packed.items()}
    order = []
    for i in "12":
        numbers, _, zero, _ = packed[f"w{i}"]
        order.append((constant(numbers), scales[f"w{i}"], inputs[f"b{i}"], None if zero is None else constant(zero)))
    y = ms.QMoE(inputs["x"], inputs["router"], *order[0][:3], *order[1][:3], None, None, None, order[0][3], order[1][3],
                None, inputs.get("weights"), expert_weight_bits=bits, block_size=size, **settings)
    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in arrays.items()}
    for n, (_, s, _, to_real) in packed.items():
        tensors[f"{n} scales"] = torch.tensor(s, requires_grad=True)
        tensors[n] = to_real(tensors[f"{n} scales"])
    wrt = {n: v for n, v in inputs.items() if n != "router" or not apart}
    wrt |= {f"{n} scales": v for n, v in scales.items()}
    check(y, inputs.values(), {n: arrays[n] for n in inputs}, tensors, settings, wrt)


def test_half_precision():
    arrays, settings = draw(CASES["silu"]), CASES["silu"]
    grads = []
    for dtype in (np.float32, np.float16):
        inputs = {n: variable(n, dtype, a.shape) for n, a in arrays.items()}
        y = ms.MoE(*map(inputs.get, ("x", "router", "w1", "b1", "w2", "b2")), **settings)
        gradients = grad(y, list(inputs.values()))
        model = build(inputs.values(), {f"d_{n}": d for n, d in zip(inputs, gradients, strict=True)})
        grads.append(Session(model).run({n: a.astype(dtype) for n, a in arrays.items()}))
    for n, d in grads[0].items():
        np.testing.assert_allclose(grads[1][n], d, atol=3e-2 * abs(d).max(), err_msg=n)


@pytest.mark.parametrize(("settings", "message"), [
    ({"use_sparse_mixer": 1}, "MoE with use_sparse_mixer has no gradient"),
    ({"activation_type": "geglu"}, "MoE with the activation 'geglu' has no gradient; relu, gelu,"),
    ({"activation_type": "swiglu"}, "MoE with swiglu_fusion other than 1 has no gradient"),
])
def test_what_is_refused(settings, message):
    inputs = {n: variable(n, "float32", a.shape) for n, a in draw(settings).items()}
    y = ms.MoE(*map(inputs.get, ("x", "router", "w1", "b1", "w2", "b2")), **settings)
    with pytest.raises(NoGradientError, match=message):
        grad(y, [inputs["x"]])
