"""Gradients of linear attention of com.microsoft are those of torch, written out token by token."""

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

from ortpartial import build, grad, op, variable
from ortpartial.exceptions import NoGradientError
from ortpartial.graph.ops import Operators
from ortpartial.runtime.session import Session

ms = Operators("com.microsoft")

pytestmark = pytest.mark.skipif(onnxruntime.__version__.startswith("1.19."),
                                reason="onnxruntime 1.19.2 has no linear attention.")


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def compare(node, reference, arrays, atol=1e-5, symbolic=(), wrt=None):
    """Outputs and gradients of a node against those of torch, with cotangents for each output."""
    inputs = {n: variable(n, a.dtype, [f"{n}{i}" if i in symbolic else d for i, d in enumerate(a.shape)])
              for n, a in arrays.items()}
    ys = node(inputs)
    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in arrays.items()}
    expected = reference(tensors)
    dys = [normal(*e.shape, seed=i + 1) for i, e in enumerate(expected)]
    seeds = [variable(f"dy{i}", "float32", d.shape) for i, d in enumerate(dys)]
    wrt = wrt or list(arrays)
    grads = grad(list(ys), [inputs[n] for n in wrt], seeds)
    model = build([*inputs.values(), *seeds], {**{f"y{i}": y for i, y in enumerate(ys)},
                                               **{f"d_{n}": d for n, d in zip(wrt, grads, strict=True)}})
    found = Session(model).run({**arrays, **{f"dy{i}": d for i, d in enumerate(dys)}})
    for i, e in enumerate(expected):
        np.testing.assert_allclose(found[f"y{i}"], e.detach(), atol=atol)
    for n, g in zip(wrt, torch.autograd.grad(expected, [tensors[n] for n in wrt], [torch.tensor(d) for d in dys]),
                    strict=True):
        np.testing.assert_allclose(found[f"d_{n}"], g, atol=atol * max(1, float(g.abs().max())), err_msg=n)


# The recurrence.

B, T, K, V = 2, 5, 4, 3


def draw(n, m, rule, by_key, one_beta, has_state, keys=None):
    key = normal(B, T, keys or m, K, seed=1)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    arrays = {"query": normal(B, T, n * K), "key": key.reshape(B, T, -1), "value": normal(B, T, m * V, seed=2)}
    if has_state:
        arrays["state"] = normal(B, m, K, V)
    if "gated" in rule:
        arrays["decay"] = -abs(normal(B, T, m * (K if by_key else 1)))
    if "delta" in rule:
        arrays["beta"] = 1 / (1 + np.exp(normal(B, T, 1 if one_beta else m)))
    return arrays


def recur(t, n, m, rule, scale):
    """One state after the other; heads of queries and of keys may be shared."""
    each, heads = max(n // m, 1), max(m // n, 1)
    q, k, v = (t[x].unflatten(2, (h, -1)) for x, h in (("query", n), ("key", t["key"].shape[2] // K), ("value", m)))
    q, k = q.repeat_interleave(heads, 2), k.repeat_interleave(m // k.shape[2], 2)
    s = t["state"] if "state" in t else torch.zeros(B, m, K, V)
    ys = []
    for i in range(T):
        if "gated" in rule:
            s = s * t["decay"][:, i].unflatten(1, (m, -1)).exp()[..., None]
        new = v[:, i]
        if "delta" in rule:
            new = t["beta"][:, i, :, None] * (new - torch.einsum("bhkv,bhk->bhv", s, k[:, i]))
        s = s + k[:, i][..., None] * new[..., None, :]
        ys.append(scale * torch.einsum("bhkv,bhk->bhv", s.repeat_interleave(each, 1), q[:, i]))
    return torch.stack(ys, 1).flatten(2), s


@pytest.mark.parametrize(("n", "m", "rule", "by_key", "one_beta", "has_state", "scale"), [
    (2, 2, "linear", False, False, True, 0.0), (4, 2, "gated", False, False, False, 0.5),
    (2, 4, "delta", False, True, True, 0.0), (2, 2, "gated_delta", False, False, True, 0.0),
    (4, 2, "gated_delta", True, False, False, 0.0), (1, 2, "gated", True, False, True, 1.0),
    (4, 2, "delta", False, False, False, 0.0)])
@pytest.mark.parametrize("symbolic", [(), (0, 1)])
def test_recurrence(n, m, rule, by_key, one_beta, has_state, scale, symbolic):
    arrays = draw(n, m, rule, by_key, one_beta, has_state)
    names = ("query", "key", "value", "state", "decay", "beta")
    compare(lambda x: ms.LinearAttention(*map(x.get, names), q_num_heads=n, kv_num_heads=m, update_rule=rule,
                                         scale=scale, n_outputs=2),
            lambda t: recur(t, n, m, rule, scale or K**-0.5), arrays, symbolic=symbolic if not has_state else ())


@pytest.mark.parametrize("has_state", [False, True])
def test_heads_of_values_share_keys(has_state):
    """As in Qwen 3.5, of which the builder writes as many heads of keys as of queries."""
    arrays = draw(2, 4, "gated_delta", False, False, has_state, keys=2)
    names = ("query", "key", "value", "state", "decay", "beta")
    compare(lambda x: ms.LinearAttention(*map(x.get, names), q_num_heads=2, kv_num_heads=4, n_outputs=2),
            lambda t: recur(t, 2, 4, "gated_delta", K**-0.5), arrays)


def test_recurrence_in_half_precision():
    arrays, grads = draw(2, 2, "gated_delta", False, False, True), []
    for dtype in (np.float32, np.float16):
        inputs = {n: variable(n, dtype, a.shape) for n, a in arrays.items()}
        y, state = ms.LinearAttention(*inputs.values(), q_num_heads=2, kv_num_heads=2, n_outputs=2)
        assert state.dtype == dtype
        gradients = grad(y, list(inputs.values()))
        model = build(inputs.values(), {f"d_{n}": d for n, d in zip(inputs, gradients, strict=True)})
        grads.append(Session(model).run({n: a.astype(dtype) for n, a in arrays.items()}))
    for n, d in grads[0].items():
        np.testing.assert_allclose(grads[1][n], d, atol=1e-2 * abs(d).max(), err_msg=n)


def recur_packed(t, settings, shared, heads):
    """GatedDeltaNet by the other operator's reference: tokens first, states of values by keys."""
    if "key" in t:
        q, k, v = (t[n].reshape(B, T, -1) for n in ("query", "key", "value"))
    else:
        q, k, v = (x.reshape(B, T, -1) for x in t["query"].split([shared * K, shared * K, heads * V], 1))
    q, k = (x.unflatten(2, (shared, K)) for x in (q, k))
    if settings.get("qk_l2_norm"):
        q, k = (F.normalize(x, dim=-1) for x in (q, k))
    q, k = (x.repeat_interleave(heads // shared, 2).flatten(2) for x in (q, k))
    decay, beta = t["decay"].reshape(B, T, heads, -1), t["beta"].reshape(B, T, heads)
    if "a_log" in t:
        rate, z = t["a_log"].exp()[:, None], decay + t["bias"].reshape(heads, -1)
        decay = -rate * F.softplus(z) if settings["gate_activation"] == "softplus" else -5 * torch.sigmoid(rate * z)
    beta = beta.sigmoid() if settings.get("beta_activation") == "sigmoid" else beta
    y, s = recur({"query": q, "key": k, "value": v, "state": t["state"].mT, "decay": decay.flatten(2), "beta": beta},
                 heads, heads, "gated_delta", K**-0.5)
    return y.reshape(*t["decay"].shape[: t["query"].dim() - 2 or 1], heads, V), s.mT


@pytest.mark.parametrize(("shared", "heads", "rank", "by_key", "settings"), [
    (2, 2, 3, False, {}), (1, 2, 4, True, {}), (2, 4, 3, False, {"qk_l2_norm": 1, "beta_activation": "sigmoid"}),
    (2, 2, 2, False, {"gate_activation": "softplus"}),
    (1, 2, 4, True, {"gate_activation": "sigmoid", "qk_l2_norm": 1})])
def test_packed_recurrence(shared, heads, rank, by_key, settings):
    tokens = (B, T) if rank == 4 else (B * T,)
    key = normal(*tokens, shared, K, seed=1)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    arrays = {"query": normal(*tokens, shared, K), "key": key, "value": normal(*tokens, heads, V)}
    if rank == 2:
        arrays = {"query": np.concatenate([a.reshape(B * T, -1) for a in arrays.values()], 1)}
    arrays |= {"decay": -abs(normal(*tokens, heads, *[K] * by_key)), "beta": abs(normal(*tokens, heads)) % 1,
               "state": normal(B, heads, V, K)}
    if "gate_activation" in settings:
        arrays |= {"a_log": normal(heads), "bias": normal(heads, *[K] * by_key)}
    names = ("query", "key", "value", "lengths", "decay", "beta", "state", "a_log", "bias")
    compare(lambda x: ms.GatedDeltaNet(*map(x.get, names), n_outputs=2, **settings),
            lambda t: recur_packed(t, settings, shared, heads), arrays)


# Gates.


def test_gates():
    arrays = {"a": normal(2, 3, 4), "bias": normal(4), "scale": -abs(normal(4)), "b": normal(2, 3, 4, seed=1)}
    compare(lambda x: ms.LinearAttentionGate(*x.values(), n_outputs=2),
            lambda t: (t["scale"] * F.softplus(t["a"] + t["bias"]), t["b"].sigmoid()), arrays, symbolic=())
    del arrays["b"]
    compare(lambda x: ms.LinearAttentionGate(*x.values(), n_outputs=1),
            lambda t: [t["scale"] * F.softplus(t["a"] + t["bias"])], arrays)


@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
def test_gated_norm(activation):
    arrays = {"x": normal(2, 3, 8), "scale": normal(4), "gate": normal(2, 3, 8, seed=1)}
    gate = torch.sigmoid if activation == "sigmoid" else F.silu
    compare(lambda x: [ms.GatedRMSNorm(*x.values(), activation=activation, epsilon=0.1)],
            lambda t: [F.rms_norm(t["x"].unflatten(2, (2, 4)), (4,), t["scale"], 0.1).flatten(2) * gate(t["gate"])],
            arrays)


def test_gated_sum():
    arrays = {"x": normal(2, 3, 8), "y": normal(2, 3, 8, seed=1), "gate": normal(2, 3, 1)}
    compare(lambda x: [ms.GatedAdd(*x.values())], lambda t: [t["x"] + t["y"] * t["gate"]], arrays)


# The convolution.


@pytest.mark.parametrize(("last", "dilation", "kernel", "activation", "has_bias", "has_past", "tokens"), [
    (0, 1, 4, "silu", True, True, 5), (0, 2, 3, "none", False, False, 6), (1, 1, 4, "swish", True, True, 2),
    (1, 2, 3, "silu", False, False, 6), (0, 1, 1, "none", True, False, 3), (2, 1, 3, "silu", True, True, 4)])
def test_convolution(last, dilation, kernel, activation, has_bias, has_past, tokens):
    """`last` is the number of axes of channels, 0 for channels first."""
    channels, length = [(6,), (6,), (3, 2)][last], (kernel - 1) * dilation
    arrays = {"x": normal(2, tokens, *channels) if last else normal(2, 6, tokens), "weight": normal(6, 1, kernel)}
    if has_bias:
        arrays["bias"] = normal(6)
    if has_past:
        arrays["past"] = normal(2, length, *channels) if last else normal(2, 6, length)

    def reference(t):
        rows, past = t["x"], t.get("past")
        if last:
            rows, past = (v if v is None else v.flatten(2).mT for v in (rows, past))
        padded = torch.cat([torch.zeros(2, 6, length) if past is None else past, rows], 2)
        y = F.conv1d(padded, t["weight"], t.get("bias"), dilation=dilation, groups=6)
        y, state = F.silu(y) if activation != "none" else y, padded[..., padded.shape[2] - length :]
        return [v.mT.unflatten(2, channels) if last else v for v in (y, state)]

    def node(x):
        return ms.CausalConvWithState(*map(x.get, ("x", "weight", "bias", "past")), n_outputs=2, dilation=dilation,
                                      activation=activation, channels_last=int(last > 0))

    compare(node, reference, arrays)


def test_what_is_refused():
    x = {n: variable(n, "float32", a.shape) for n, a in draw(2, 2, "gated_delta", False, False, True).items()}
    y, _ = ms.LinearAttention(*x.values(), q_num_heads=2, kv_num_heads=2, state_window=2, n_outputs=2)
    with pytest.raises(NoGradientError, match="LinearAttention with state_window has no gradient"):
        grad(op.ReduceSum(y), [x["query"]])
