"""Gradients of GroupQueryAttention and RotaryEmbedding of com.microsoft are those of torch, written out row by row."""

import numpy as np
import onnxruntime
import pytest
import torch
from once import ON_BOTH
from onnx import helper

from ortpartial import build, constant, grad, gradient_model, op, variable
from ortpartial.autodiff.trainable import find_default_weights
from ortpartial.exceptions import ModelError, NoGradientError
from ortpartial.graph.ops import Operators, make_node
from ortpartial.model import load
from ortpartial.runtime.session import Session

pytestmark = ON_BOTH

ms = Operators("com.microsoft")
IS_OLD = onnxruntime.__version__.startswith("1.19.")

#: Attributes and inputs that onnxruntime 1.19.2 lacks.
LATER = {"softcap", "smooth_softmax", "bias", "sink", "position_ids", "causal"}

# Per case: the last key of each row, the number of queries, heads, heads of keys, the size of a head, and what else.
CASES = {
    "heads of their own": ([3, 3], 4, 2, 2, 8, {}),
    "shared heads": ([3, 3], 4, 4, 2, 8, {"scale": 0.3}),
    "shared by all": ([3, 3], 4, 3, 1, 8, {}),
    "packed": ([3, 3], 4, 4, 2, 8, {"packed": True}),
    "rows of different lengths": ([3, 1], 4, 4, 2, 16, {"packed": True, "turn": 8}),
    "an empty past": ([3, 1], 4, 4, 2, 16, {"packed": True, "turn": 8, "past": 0}),
    "angles": ([3, 3], 4, 2, 1, 16, {"turn": 8}),
    "interleaved angles": ([3, 3], 4, 2, 1, 16, {"turn": 8, "interleaved": 1}),
    "angles of a part": ([3, 2], 4, 2, 1, 32, {"turn": 8, "packed": True}),
    "a token after a past": ([4, 2], 1, 4, 2, 16, {"past": 4, "turn": 8}),
    "a token after a long buffer": ([3, 2], 1, 2, 1, 16, {"past": 6, "turn": 8}),
    "tokens after a past": ([4], 2, 4, 2, 16, {"past": 3, "turn": 8, "packed": True}),
    "a window": ([4, 3], 5, 2, 1, 8, {"window": 2}),
    "a window behind the end of a row": ([5, 1], 6, 2, 1, 8, {"window": 2}),
    "a window of a past": ([6], 1, 2, 1, 8, {"window": 3, "past": 6}),
    "a softcap": ([3, 3], 4, 4, 2, 8, {"softcap": 0.7}),
    "a smooth softmax": ([3, 2], 4, 4, 2, 8, {"smooth_softmax": 1}),
    "sinks": ([3, 2], 4, 4, 2, 8, {"sink": True}),
    "a bias": ([3, 2], 4, 4, 2, 8, {"bias": (2, 4)}),
    "a bias of all heads": ([3, 2], 4, 4, 2, 8, {"bias": (1, 1), "softcap": 2.0}),
    "all keys": ([3, 1], 4, 4, 2, 16, {"causal": 0, "turn": 8, "packed": True}),
    "all keys of a past": ([5], 2, 2, 1, 16, {"causal": 0, "past": 4, "turn": 8}),
    "positions": ([3, 3], 4, 2, 1, 16, {"turn": 8, "position_ids": [[5, 6, 7, 8], [5, 6, 7, 8]]}),
    "positions of a token": ([4, 2], 1, 2, 1, 16, {"turn": 8, "past": 4, "position_ids": [[7], [1]]}),
}


def skip_what_is_missing(case):
    """Skip a case that the installed onnxruntime does not compute."""
    _, s, *_, more = CASES[case]
    if IS_OLD and LATER & set(more):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} has no {sorted(LATER & set(more))[0]} in "
                    f"GroupQueryAttention.")
    if IS_OLD and more.get("past") and s > 1:
        pytest.skip(f"onnxruntime {onnxruntime.__version__} ignores a past before several tokens.")


def draw(case):
    """The inputs of a case by name, and the attributes."""
    last, s, n, m, h, more = CASES[case]
    rng = np.random.default_rng(0)
    b, past = len(last), more.get("past")

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    arrays = {"query": normal(b, s, (n + 2 * m) * h)} if more.get("packed") else {
        "query": normal(b, s, n * h), "key": normal(b, s, m * h), "value": normal(b, s, m * h)}
    if past is not None:
        arrays |= {"past_key": normal(b, m, past, h), "past_value": normal(b, m, past, h)}
    arrays |= {"last": np.asarray(last, np.int32), "total": np.asarray(max(last) + 1, np.int32)}
    if "turn" in more:
        angles = rng.uniform(0, 3, (16, more["turn"]))
        arrays |= {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
    if "position_ids" in more:
        arrays["position_ids"] = np.asarray(more["position_ids"])
    if "bias" in more:
        arrays["bias"] = normal(*more["bias"], s, max(last) + 1)
    if "sink" in more:
        arrays["sink"] = normal(n)
    attributes = {"num_heads": n, "kv_num_heads": m, "local_window_size": more.get("window"),
                  "do_rotary": 1 if "turn" in more else None, "rotary_interleaved": more.get("interleaved"),
                  **{k: more[k] for k in ("scale", "softcap", "smooth_softmax", "causal") if k in more}}
    return arrays, attributes


NAMES = ("query", "key", "value", "past_key", "past_value", "last", "total", "cos", "sin", "position_ids", "bias",
         "sink")
DIFFERENTIABLE = ("query", "key", "value", "past_key", "past_value", "bias", "sink")


def turn(x, places, cos, sin, interleaved):
    """(tokens, heads, size) turned by the angles of their places."""
    r = 2 * cos.shape[1]
    c, s = cos[places][:, None], sin[places][:, None]
    first, second = (x[..., 0:r:2], x[..., 1:r:2]) if interleaved else (x[..., : r // 2], x[..., r // 2 : r])
    one, two = first * c - second * s, first * s + second * c
    both = torch.stack([one, two], -1).flatten(-2) if interleaved else torch.cat([one, two], -1)
    return torch.cat([both, x[..., r:]], -1)


def attend(t, a, cache=()):
    """Attention row by row and query by query, and the keys and values that it returns.

    `cache` has the keys and values that it reads, rounded, where gradients pass straight through.
    """
    n, m, s = a["num_heads"], a["kv_num_heads"], t["query"].shape[1]
    window = a["local_window_size"] or 10**6
    window += IS_OLD  # which counts a window without the query's own key
    ys, keys, values = [], [], []
    for b, last in enumerate(t["last"].tolist()):
        parts = (t["query"][b],) if "key" not in t else (t["query"][b], t["key"][b], t["value"][b])
        tokens = torch.cat(parts, -1).view(s, n + 2 * m, -1)
        q, k, v = tokens.split([n, m, m], 1)
        past = max(last + 1 - s, 0)
        places = t["position_ids"][b] if "position_ids" in t else past + torch.arange(s)
        if "cos" in t:
            q, k = (turn(x, places, t["cos"], t["sin"], a["rotary_interleaved"]) for x in (q, k))
        if "past_key" in t:
            k, v = (torch.cat([t[p][b, :, :past].transpose(0, 1), x]) for p, x in (("past_key", k), ("past_value", v)))
        keys.append(k.transpose(0, 1))
        values.append(v.transpose(0, 1))
        if cache:
            k, v = (x + (c[b, :, : len(x)].transpose(0, 1) - x).detach() for x, c in zip((k, v), cache, strict=True))
        rows = []
        for i in range(s):
            end = min(past + i, last) + 1 if a.get("causal", 1) else last + 1
            seen = slice(max(past + i + 1 - window, 0), end)
            for head in range(n):
                kv = head // (n // m)
                scores = k[seen, kv] @ q[i, head] * (a.get("scale") or q.shape[-1] ** -0.5)
                if a.get("softcap"):
                    scores = a["softcap"] * torch.tanh(scores / a["softcap"])
                if "bias" in t:
                    bias = t["bias"].expand(len(t["last"]), n, -1, -1)
                    scores = scores + bias[b, head, i, seen]
                if "sink" in t or a.get("smooth_softmax"):
                    sink = t["sink"][head : head + 1] if "sink" in t else torch.zeros(1)
                    p = torch.cat([scores, sink]).softmax(0)[:-1]
                else:
                    p = scores.softmax(0)
                rows.append(p @ v[seen, kv])
        ys.append(torch.cat(rows).view(s, -1))
    return torch.stack(ys), keys, values


def graph(arrays, attributes, symbolic):
    """Inputs and outputs of a node; batch, tokens and past are symbolic or known."""
    def shape_of(name, shape):
        names = {"query": "bs", "key": "bs", "value": "bs", "past_key": "b p", "past_value": "b p", "last": "b",
                 "position_ids": "bs"}.get(name, "") if symbolic else ""
        return [c if c.strip() else d for c, d in zip(names.ljust(len(shape)), shape, strict=True)]

    inputs = {k: variable(k, v.dtype, shape_of(k, v.shape)) for k, v in arrays.items() if k not in ("cos", "sin")}
    inputs_and_tables = inputs | {k: constant(arrays[k]) for k in ("cos", "sin") if k in arrays}
    ys = ms.GroupQueryAttention(*map(inputs_and_tables.get, NAMES), n_outputs=3, **attributes)
    return inputs, ys


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_attention(case, symbolic):
    skip_what_is_missing(case)
    arrays, attributes = draw(case)
    inputs, (y, *present) = graph(arrays, attributes, symbolic)
    wrt = [n for n in DIFFERENTIABLE if n in inputs]
    dy = variable("dy", "float32", y.shape)
    outputs = {f"{n}_grad": d for n, d in zip(wrt, grad(y, [inputs[n] for n in wrt], [dy]), strict=True)}
    model = build([*inputs.values(), dy], {"y": y, "k": present[0], "v": present[1], **outputs})
    tensors = {k: torch.tensor(v, requires_grad=k in wrt) for k, v in arrays.items()}
    expected, keys, values = attend(tensors, attributes)
    d = np.random.default_rng(1).normal(size=expected.shape).astype(np.float32)
    counted = np.ones(d.shape[:2], bool)
    if IS_OLD:  # It reads memory that nothing wrote for queries behind the end of a row.
        counted = np.arange(d.shape[1]) <= arrays["last"][:, None]
        d *= counted[..., None]
    found = Session(model).run({k: v for k, v in arrays.items() if k in inputs} | {"dy": d})
    np.testing.assert_allclose(found["y"][counted], expected.detach()[counted], rtol=1e-4, atol=1e-5)
    for name, lists in (("k", keys), ("v", values)):
        for row, rows in zip(found[name], lists, strict=True):
            np.testing.assert_allclose(row[:, : rows.shape[1]], rows.detach(), rtol=1e-4, atol=1e-5)
    grads = torch.autograd.grad(expected, [tensors[n] for n in wrt], torch.tensor(d), allow_unused=True)
    for n, g in zip(wrt, grads, strict=True):
        if tensors[n].numel():
            g = torch.zeros_like(tensors[n]) if g is None else g
            np.testing.assert_allclose(found[f"{n}_grad"], g, atol=1e-5 * max(1, float(g.abs().max())), err_msg=n)


@pytest.mark.skipif(IS_OLD, reason="onnxruntime 1.19.2 computes rows of different lengths from foreign memory.")
@pytest.mark.parametrize("case", ["packed", "an empty past", "a token after a past", "a softcap", "sinks", "a bias"])
def test_half_precision(case):
    arrays, attributes = draw(case)
    grads = []
    for dtype in (np.float32, np.float16):
        some = {n: a.astype(dtype) if a.dtype == np.float32 else a for n, a in arrays.items()}
        inputs, (y, *_) = graph(some, attributes, True)
        wrt = [n for n in DIFFERENTIABLE if n in inputs and inputs[n].shape]
        gradients = grad(op.ReduceSum(op.Sin(op.Cast(y, to=1)), keepdims=0), [inputs[n] for n in wrt])
        model = build(inputs.values(), {f"d_{n}": d for n, d in zip(wrt, gradients, strict=True)})
        grads.append(Session(model).run({n: a for n, a in some.items() if n in inputs}))
    for n, d in grads[0].items():
        assert grads[1][n].dtype == np.float16
        np.testing.assert_allclose(grads[1][n], d, atol=2e-2 * max(1, abs(d).max(initial=0)), err_msg=n)


def test_gradient_through_the_present():
    """Keys and values that the node returns are outputs like the first."""
    arrays, attributes = draw("a token after a past")
    inputs, ys = graph(arrays, attributes, True)
    wrt = ["query", "key", "value", "past_key", "past_value"]
    total = sum((op.ReduceSum(op.Sin(y), keepdims=0) for y in ys[1:]), op.ReduceSum(ys[0], keepdims=0))
    grads = grad(total, [inputs[n] for n in wrt])
    model = build(inputs.values(), {f"{n}_grad": d for n, d in zip(wrt, grads, strict=True)})
    tensors = {k: torch.tensor(v, requires_grad=k in wrt) for k, v in arrays.items()}
    y, keys, values = attend(tensors, attributes)
    expected = torch.autograd.grad(y.sum() + sum(x.sin().sum() for x in keys + values), [tensors[n] for n in wrt])
    found = Session(model).run({k: v for k, v in arrays.items() if k in inputs})
    for n, g in zip(wrt, expected, strict=True):
        np.testing.assert_allclose(found[f"{n}_grad"], g, atol=1e-5, err_msg=n)


@pytest.mark.parametrize("is_file", [False, True], ids=["code", "file"])
def test_layers_share_what_follows_from_lengths(is_file):
    """A second layer adds the products of attention; mask, places and guards of the lengths are those of the first."""
    arrays, attributes = draw("rows of different lengths")
    x = variable("query", "float32", ["b", "s", 128])
    last, total = (variable(n, "int32", arrays[n].shape) for n in ("last", "total"))
    tables = [constant(arrays[n]) for n in ("cos", "sin")]
    weight, counts, y = constant(np.ones((64, 128), np.float32)), [], x
    for _ in range(3):
        inputs = [y, None, None, None, None, last, total, *tables]
        if is_file:  # Without guards, which a file has none of.
            y = make_node(ms.GroupQueryAttention.schema, inputs, attributes, n_outputs=3).outputs[0] @ weight
            loaded = load(build([x, last, total], {"y": y}))
            read, z = loaded.inputs, loaded.outputs["y"]
        else:
            z = y = ms.GroupQueryAttention(*inputs, n_outputs=3, **attributes)[0] @ weight
            read = {"query": x, "last": last, "total": total}
        model = build(read, grad(op.ReduceSum(z), [read["query"]]))
        counts.append([node.op_type for node in model.graph.node])
    more = counts[2].copy()
    for name in counts[1]:
        more.remove(name)
    assert more.count("Softmax") == 1
    assert not {"Range", "Greater", "Less", "Min", "Max"} & set(more)
    assert len(more) <= 50, more
    assert sum(name.startswith("guard: ") for name in [node.name for node in model.graph.node]) == 2


def test_tables_are_no_weights_by_default():
    arrays, attributes = draw("angles")
    w = constant(np.eye(32, dtype=np.float32), hint="w")
    x, key, value = (variable(n, "float32", arrays[n].shape) for n in ("query", "key", "value"))
    last, total = (variable(n, "int32", arrays[n].shape) for n in ("last", "total"))
    tables = [constant(arrays[n], hint=n) for n in ("cos", "sin")]
    y, *_ = ms.GroupQueryAttention(x @ w, key, value, None, None, last, total, *tables, n_outputs=3, **attributes)
    model = load(build([x, key, value, last, total], {"y": y}))
    assert {v.hint for v in find_default_weights(model, ["y"])} == {"w"}
    with pytest.raises(NoGradientError, match="GroupQueryAttention with trained tables of angles has no gradient"):
        grad(y, [tables[0]])


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("heads", "turned"), [(0, 0), (2, 8)])
def test_rotary_embedding(heads, turned, interleaved):
    rng = np.random.default_rng(0)
    width = 2 * 16 if heads else 16
    x, d = rng.normal(size=(2, 2, 3, width)).astype(np.float32)
    angles = rng.uniform(0, 3, (6, turned // 2 or 8))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    places = np.array([[0, 1, 2], [3, 5, 4]])
    v, dy = (variable(n, "float32", ["b", "s", width]) for n in ("x", "dy"))
    y = ms.RotaryEmbedding(v, constant(places), constant(cos), constant(sin), num_heads=heads,
                           rotary_embedding_dim=turned, interleaved=interleaved)
    found = Session(build([v, dy], {"y": y, "dx": grad(y, [v], [dy])[0]})).run({"x": x, "dy": d})
    t = torch.tensor(x, requires_grad=True)
    rows = [turn(row.view(3, heads or 1, 16), torch.tensor(p), torch.tensor(cos), torch.tensor(sin), interleaved)
            for row, p in zip(t, places, strict=True)]
    expected = torch.stack(rows).view(2, 3, width)
    np.testing.assert_allclose(found["y"], expected.detach(), atol=1e-6)
    np.testing.assert_allclose(found["dx"], torch.autograd.grad(expected, t, torch.tensor(d))[0], atol=1e-6)


@pytest.mark.skipif(IS_OLD, reason="onnxruntime 1.19.2 has no MRotaryEmbedding.")
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("layout", [0, 1])
def test_rotary_embedding_of_three_positions(layout, interleaved):
    rng = np.random.default_rng(0)
    x, d = rng.normal(size=(2, 2, 3, 2 * 16)).astype(np.float32)
    angles = rng.uniform(0, 3, (6, 8))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    places, section = rng.integers(0, 6, (3, 2, 3)), [4, 2, 2]
    v, dy = (variable(n, "float32", ["b", "s", 32]) for n in ("x", "dy"))
    y = ms.MRotaryEmbedding(v, constant(places), constant(cos), constant(sin), num_heads=2, rotary_embedding_dim=16,
                            mrope_section=section, mrope_layout=layout, interleaved=interleaved)
    found = Session(build([v, dy], {"y": y, "dx": grad(y, [v], [dy])[0]})).run({"x": x, "dy": d})
    stream = np.repeat([0, 1, 2], section) if layout == 0 else np.array([0, 1, 2, 0, 1, 2, 0, 0])
    t = torch.tensor(x, requires_grad=True)
    rows = []
    for b in range(2):
        of_token = [torch.tensor(table)[places[:, b].T[:, stream], np.arange(8)] for table in (cos, sin)]
        rows.append(turn(t[b].view(3, 2, 16), torch.arange(3), *of_token, interleaved))
    expected = torch.stack(rows).view(2, 3, 32)
    np.testing.assert_allclose(found["y"], expected.detach(), atol=1e-6)
    np.testing.assert_allclose(found["dx"], torch.autograd.grad(expected, t, torch.tensor(d))[0], atol=1e-6)


@pytest.mark.skipif(IS_OLD, reason="onnxruntime 1.19.2 has no cache of 4 or 8 bits.")
@pytest.mark.parametrize("case", ["a token after a past", "an empty past"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("mode", ["PER_TENSOR", "PER_CHANNEL"])
def test_cache_of_few_bits(mode, bits, case):
    """Gradients are those of attention on the rounded keys and values, and pass straight through the rounding."""
    arrays, attributes = draw(case)
    rng = np.random.default_rng(1)
    b, m, past, h = arrays["past_key"].shape
    stored, dtype, unit = (h, np.int8, 1) if bits == 8 else (h // 2, np.uint8, 20)
    scales = {n: unit * rng.uniform(0.01, 0.02, (1,) if mode == "PER_TENSOR" else (1, m, 1, h)).astype(np.float32)
              for n in ("k_scale", "v_scale")}
    arrays |= {n: rng.integers(0, 100, (b, m, past, stored)).astype(dtype) for n in ("past_key", "past_value")} | scales
    inputs = {n: constant(a) if n in ("cos", "sin", *scales) else variable(n, a.dtype, a.shape)
              for n, a in arrays.items()}
    y, *present = ms.GroupQueryAttention(*map(inputs.get, (*NAMES, *scales)), n_outputs=3, **attributes,
                                         k_quant_type=mode, v_quant_type=mode, kv_cache_bit_width=bits)
    assert [v.dtype for v in present] == [dtype] * 2
    wrt = [n for n in ("query", "key", "value") if n in inputs]
    grads = grad(op.ReduceSum(op.Sin(y), keepdims=0), [inputs[n] for n in wrt])
    given = {n: v for n, v in inputs.items() if v.array is None}
    model = build(given.values(), {"y": y, "k": present[0], "v": present[1],
                                   **{f"{n}_grad": d for n, d in zip(wrt, grads, strict=True)}})
    found = Session(model).run({n: arrays[n] for n in given})
    tensors = {k: torch.tensor(v, requires_grad=k in wrt) for k, v in arrays.items()}
    cache = [torch.tensor(unpack(found[n], bits) * scales[f"{n}_scale"]) for n in "kv"]
    pasts = {f"past_{n}": torch.tensor(unpack(arrays[f"past_{n}"], bits) * scales[f"{n[0]}_scale"])
             for n in ("key", "value")}
    expected, *_ = attend(tensors | pasts, attributes, cache)
    np.testing.assert_allclose(found["y"], expected.detach(), atol=1e-5)
    for n, g in zip(wrt, torch.autograd.grad(expected.sin().sum(), [tensors[n] for n in wrt]), strict=True):
        np.testing.assert_allclose(found[f"{n}_grad"], g, atol=1e-5, err_msg=n)


def unpack(stored, bits):
    """The numbers of a cache."""
    if bits == 8:
        return stored.astype(np.float32)
    pairs = np.stack([stored & 15, stored >> 4], -1).astype(np.float32)
    return pairs.reshape(*stored.shape[:3], 2 * stored.shape[3]) - 8


def read_back(arrays, names, **attributes):
    """A model of one node, as it is in a file, with all inputs but tables of angles."""
    values = {n: constant(a, hint=n) if n in ("cos", "sin", "q_norm", "k_norm") else variable(
        n, a.dtype, ["p" if n.startswith("past") and i == 2 else d for i, d in enumerate(a.shape)])
        for n, a in arrays.items()}
    y, *present = ms.GroupQueryAttention(*map(values.get, names), n_outputs=3, **attributes)
    given = [v for v in values.values() if v.array is None]
    return build(given, {"y": y, "k": present[0], "v": present[1]}), {v.hint: arrays[v.hint] for v in given}


@pytest.mark.parametrize(("capacity", "last", "queries"), [
    (3, [3, 3], 4), (3, [9, 6], 1), (5, [5, 3], 1), (6, [9], 3), (3, [12], 5), (8, [3, 3], 4)])
def test_cache_of_a_window(capacity, last, queries):
    """What is read in place of it computes the same, and trains with any past, the empty one included."""
    if IS_OLD:
        pytest.skip("onnxruntime 1.19.2 has no sliding_window_cache.")
    rng = np.random.default_rng(0)
    b, n, m, h, window = len(last), 4, 2, 16, 3
    angles = rng.uniform(0, 3, (16, 8)).astype(np.float32)
    arrays = {"query": rng.normal(size=(b, queries, (n + 2 * m) * h)).astype(np.float32),
              **{k: rng.normal(size=(b, m, capacity, h)).astype(np.float32) for k in ("past_key", "past_value")},
              "last": np.asarray(last, np.int32), "total": np.asarray(max(max(last) + 1, queries), np.int32),
              "cos": np.cos(angles), "sin": np.sin(angles)}
    model, feeds = read_back(arrays, NAMES, num_heads=n, kv_num_heads=m, local_window_size=window, do_rotary=1,
                             sliding_window_cache=1)
    loaded = load(model)
    found, expected = Session(build(loaded.inputs, loaded.outputs)).run(feeds), Session(model).run(feeds)
    np.testing.assert_allclose(found["y"], expected["y"], atol=1e-5)
    step = capacity - window + 1
    for row, t in enumerate(np.add(last, 1)):
        kept = t - step * -(-max(t - capacity, 0) // step)
        for k in "kv":
            np.testing.assert_allclose(found[k][row, :, :kept], expected[k][row, :, :kept], atol=1e-5)


def test_an_empty_cache_of_a_window_trains():
    """A file with a cache of a window trains like one with a plain window."""
    arrays, attributes = draw("an empty past")
    attributes["local_window_size"], grads = 2, []
    for more in ({}, {"sliding_window_cache": 1}):
        model, feeds = read_back(arrays, NAMES, **attributes, **more)
        if more and IS_OLD:
            return
        g = gradient_model(model, ["query"], ["y"], cotangents="ones")
        grads.append(Session(g).run(feeds)["query_grad"])
    np.testing.assert_allclose(*grads, atol=1e-6)


@pytest.mark.parametrize("packed", [False, True])
def test_norms_of_queries_and_keys(packed):
    """onnxruntime computes them on GPUs alone; here they are read as operators of their own."""
    arrays, attributes = draw("rows of different lengths" if packed else "shared heads")
    rng = np.random.default_rng(2)
    size = 16 if packed else 8
    norms = {f"{n}_norm": rng.uniform(0.5, 2, size).astype(np.float32) for n in "qk"}
    model, feeds = read_back(arrays | norms, (*NAMES, "", "", *norms), **attributes, q_norm_epsilon=0.1,
                             qk_norm_epsilon=0.2)
    wrt = ["query", *norms] if packed else ["query", "key", *norms]
    found = Session(gradient_model(model, wrt, ["y"], cotangents="ones")).run(feeds | norms)
    tensors = {k: torch.tensor(v, requires_grad=k in wrt) for k, v in (arrays | norms).items()}
    n, m = attributes["num_heads"], attributes["kv_num_heads"]
    parts = tensors["query"].split([n * size, m * size, m * size], -1) if packed else [tensors[k] for k in (
        "query", "key", "value")]
    q, k = (torch.nn.functional.rms_norm(x.unflatten(-1, (-1, size)), (size,), tensors[f"{name}_norm"], epsilon)
            .flatten(-2) for x, name, epsilon in ((parts[0], "q", 0.1), (parts[1], "k", 0.2)))
    expected, *_ = attend(tensors | {"query": q, "key": k, "value": parts[2]}, attributes)
    counted = torch.tensor(np.arange(4) <= arrays["last"][:, None])[..., None] if IS_OLD else 1
    for name, g in zip(wrt, torch.autograd.grad((expected * counted).sum(), [tensors[k] for k in wrt]), strict=True):
        if not IS_OLD or not packed:
            np.testing.assert_allclose(found[f"{name}_grad"], g, atol=1e-4, err_msg=name)


def test_an_older_runtime_runs_what_newer_builders_write():
    """They write all attributes, those with their defaults as well, which an older runtime does not know."""
    arrays, attributes = draw("packed")
    newer = {"softcap": 0.0, "sliding_window_cache": 0, "causal": 1, "k_quant_type": "NONE"}
    found = []
    for more in ({}, newer):
        model, feeds = read_back(arrays, NAMES, **attributes)
        node = next(n for n in model.graph.node if n.op_type == "GroupQueryAttention")
        node.attribute.extend(helper.make_attribute(*pair) for pair in more.items())
        found.append(Session(gradient_model(model, ["query"], ["y"], cotangents="ones")).run(feeds)["query_grad"])
    np.testing.assert_array_equal(*found)


@pytest.mark.skipif(not IS_OLD, reason="Newer runtimes know them.")
@pytest.mark.parametrize(("case", "message"), [
    ("a softcap", r"^onnxruntime 1.19.2 does not know the attribute 'softcap' of GroupQueryAttention; a newer "
                  r"onnxruntime may\.$"),
    ("sinks", r"^onnxruntime 1.19.2 knows GroupQueryAttention \(node '\S+'\) with other inputs; a newer onnxruntime "
              r"may know these\.$")])
def test_what_an_older_runtime_does_not_know(case, message):
    arrays, attributes = draw(case)
    model, _ = read_back(arrays, NAMES, **attributes)
    with pytest.raises(ModelError, match=message):
        Session(model)


@pytest.mark.parametrize(("attributes", "more", "message"), [
    ({"sliding_window_cache": 1, "local_window_size": 2}, {}, "with sliding_window_cache has no gradient"),
    ({}, {"query_seqlens": np.ones(2, np.int32)}, "with query_seqlens has no gradient"),
])
def test_what_is_refused(attributes, more, message):
    arrays, settings = draw("a token after a past")
    values = {n: variable(n, a.dtype, a.shape) for n, a in (arrays | more).items()}
    y, *_ = ms.GroupQueryAttention(*map(values.get, (*NAMES, "", "", "", "", "query_seqlens")), n_outputs=3,
                                   **settings | attributes)
    with pytest.raises(NoGradientError, match=message):
        grad(y, [values["query"]])
