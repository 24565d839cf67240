"""Gradients of com.microsoft operators: a model that onnxruntime has optimized has the gradient of the original."""

import re
from tempfile import TemporaryDirectory

import numpy as np
import onnx.parser
import onnxruntime
import pytest
import torch
from exports import assert_gradients, exported
from models import assert_close, weights_of
from once import ON_BOTH
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions
from onnxruntime.capi import _pybind_state
from table import cotangent
from torch import nn

from ortpartial import build, constant, grad, gradient_model, load, op, variable
from ortpartial.autodiff.registry import RULES
from ortpartial.autodiff.rules import microsoft
from ortpartial.exceptions import ModelError, NoGradientError
from ortpartial.graph.ops import Operators, make_node
from ortpartial.runtime.agent_support import find_active, find_untrusted
from ortpartial.runtime.session import Session
from ortpartial.testing import _gradient, check_gradient

pytestmark = ON_BOTH

DOMAIN = "com.microsoft"
NAMES = sorted(name for domain, name in RULES if domain == DOMAIN and hasattr(microsoft, name))

ms = Operators(DOMAIN)
IS_OLD = onnxruntime.__version__.startswith("1.19.")


def mask(*rows):
    return np.asarray(rows, np.int32)


QKV, BIAS, PAST = [(2, 3, 8), (2, 4, 8), (2, 4, 8)], (24,), (2, 2, 2, 4)

# Operator, shapes of its inputs (an array where it is whole numbers, None where it is left out), attributes.
CASES = {
    "FusedMatMul": ("FusedMatMul", [(2, 3, 4), (2, 4, 5)], {"alpha": 0.5}),
    "FusedMatMul transA": ("FusedMatMul", [(2, 4, 3), (4, 5)], {"transA": 1, "alpha": -2.0}),
    "FusedMatMul transB": ("FusedMatMul", [(3, 4), (2, 5, 4)], {"transB": 1}),
    "FusedMatMul transBatch": ("FusedMatMul", [(3, 2, 4), (2, 4, 5)], {"transBatchA": 1}),
    "FusedMatMul of matrices": ("FusedMatMul", [(4, 3), (5, 4)], {"transA": 1, "transB": 1, "alpha": 2.0}),
    "FusedMatMul all": ("FusedMatMul", [(4, 2, 3), (5, 2, 4)],
                        {"transA": 1, "transB": 1, "transBatchA": 1, "transBatchB": 1}),
    "FusedGemm": ("FusedGemm", [(3, 4), (4, 5), (5,)], {"activation": "Relu", "alpha": 0.5, "beta": 2.0}),
    "FusedGemm leaky": ("FusedGemm", [(4, 3), (5, 4)],
                        {"activation": "LeakyRelu", "activation_alpha": 0.2, "transA": 1, "transB": 1}),
    "FusedGemm sigmoid": ("FusedGemm", [(3, 4), (4, 5)], {"activation": "Sigmoid"}),
    "FusedGemm hard": ("FusedGemm", [(3, 4), (4, 5)],
                       {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.4}),
    "FusedConv clip": ("FusedConv", [(2, 3, 6, 6), (4, 3, 3, 3)],
                       {"activation": "Clip", "activation_params": [-7.0, 6.0]}),
    "FusedConv": ("FusedConv", [(2, 3, 6, 6), (4, 3, 3, 3), (4,)], {"activation": "Relu", "pads": [1, 1, 1, 1]}),
    "FusedConv sum": ("FusedConv", [(1, 4, 5, 5), (4, 2, 3, 3), (4,), (1, 4, 3, 3)],
                      {"activation": "LeakyRelu", "activation_params": [0.25], "group": 2}),
    "Gelu": ("Gelu", [(3, 4)], {}),
    "BiasGelu": ("BiasGelu", [(2, 3, 4), (4,)], {}),
    "FastGelu": ("FastGelu", [(2, 3, 4)], {}),
    "FastGelu bias": ("FastGelu", [(2, 3, 4), (4,)], {}),
    "QuickGelu": ("QuickGelu", [(3, 4)], {"alpha": 1.5}),
    "SkipLayerNormalization": ("SkipLayerNormalization", [(2, 3, 8), (2, 3, 8), (8,), (8,), (8,)], {"epsilon": 1e-5}),
    "SkipLayerNormalization plain": ("SkipLayerNormalization", [(2, 3, 8), (2, 3, 8), (8,)], {}),
    # onnxruntime 1.19.2 leaves out the bias that it may have.
    "SkipSimplifiedLayerNormalization": ("SkipSimplifiedLayerNormalization", [(2, 3, 8), (2, 3, 8), (8,)], {}),
    "EmbedLayerNormalization": ("EmbedLayerNormalization", [
        mask([1, 0, 1], [3, 2, 0]), mask([0, 1, 0], [1, 1, 0]), (5, 8), (4, 8), (2, 8), (8,), (8,)], {"epsilon": 1e-5}),
    "EmbedLayerNormalization places": ("EmbedLayerNormalization", [
        mask([1, 0, 1], [3, 2, 0]), None, (5, 8), (4, 8), None, (8,), (8,), None, mask([0, 2, 3], [1, 2, 0])],
        {"mask_index_type": 0}),
    "MultiHeadAttention": ("MultiHeadAttention", QKV, {"num_heads": 2}),
    # onnxruntime 1.19.2 computes another batch wrongly where the bias has one, and masks of longer keys.
    "MultiHeadAttention bias": ("MultiHeadAttention", [*QKV, BIAS, None, (2, 2, 3, 4)], {"num_heads": 2, "scale": 0.3}),
    "MultiHeadAttention mask": ("MultiHeadAttention", [(2, 4, 8)] * 3 + [None, mask([1, 1, 1, 0], [1, 0, 0, 0])],
                                {"num_heads": 4}),
    "MultiHeadAttention of heads": ("MultiHeadAttention", [(2, 3, 8), (2, 2, 4, 4), (2, 2, 4, 4)], {"num_heads": 2}),
    "MultiHeadAttention past": ("MultiHeadAttention", [(2, 3, 8)] * 3 + [None] * 3 + [PAST, PAST], {"num_heads": 2}),
    "Attention": ("Attention", [(2, 3, 6), (6, 24), (24,)], {"num_heads": 2}),
    "Attention lengths": ("Attention", [(2, 3, 6), (6, 24), (24,), mask(3, 2).reshape(-1)], {"num_heads": 2}),
    "Attention no length": ("Attention", [(2, 3, 6), (6, 24), (24,), mask(3, 0).reshape(-1)], {"num_heads": 2}),
    "Attention starts": ("Attention", [(2, 3, 6), (6, 24), (24,), mask(3, 3, 0, 1).reshape(-1)], {"num_heads": 2}),
    "Attention mask": ("Attention", [(2, 3, 6), (6, 24), (24,), mask([1, 1, 0], [1, 1, 1])], {"num_heads": 2}),
    "Attention mask of queries": ("Attention", [(2, 3, 6), (6, 24), (24,), mask(
        [[1, 1, 0], [1, 0, 1], [1, 1, 1]], [[1, 0, 0], [1, 1, 0], [0, 1, 1]])], {"num_heads": 2}),
    "Attention later": ("Attention", [(2, 3, 6), (6, 24), (24,)], {"num_heads": 2, "unidirectional": 1}),
    "Attention past": ("Attention", [(2, 3, 6), (6, 24), (24,), None, (2, 2, 2, 5, 4)],
                       {"num_heads": 2, "unidirectional": 1}),
    "Attention sizes": ("Attention", [(2, 3, 6), (6, 20), (20,)], {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}),
}


def made(name):
    """Variables, arrays and attributes of a case."""
    operator, shapes, attributes = CASES[name]
    rng = np.random.default_rng(0)
    arrays = [s if s is None or isinstance(s, np.ndarray) else rng.normal(size=s).astype(np.float32) for s in shapes]
    values = [None if a is None else variable(f"x{i}", a.dtype, a.shape) for i, a in enumerate(arrays)]
    feeds = {f"x{i}": a for i, a in enumerate(arrays) if a is not None}
    return operator, values, feeds, attributes


def outputs(operator, values, attributes):
    """All outputs of an operator, as its kernel alone computes them, without guards."""
    return make_node(getattr(ms, operator).schema, values, attributes).outputs


def test_every_operator_is_tested():
    assert sorted({operator for operator, *_ in CASES.values()}) == NAMES


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_operator(name):
    """What the kernel of onnxruntime computes is what the formula says, and its differences are the gradient."""
    operator, values, feeds, attributes = made(name)
    given = [v for v in values if v is not None]
    ys = outputs(operator, values, attributes)
    settings = {k: ys[0].node.attribute(k) for k in RULES[DOMAIN, operator].keywords}
    expected = getattr(microsoft, operator)(*values, **settings)
    # Without a past, the kernel is not asked for the next one.
    n = len(ys) if "past" in name else 1
    found, expected = ({f"y{i}": v for i, v in enumerate(vs[:n])}
                       for vs in (ys, expected if isinstance(expected, tuple) else [expected]))
    assert {k: v.shape for k, v in found.items()} == {k: v.shape for k, v in expected.items()}
    one, two = build(given, found), build(given, expected)
    assert {n.domain for n in one.graph.node} == {DOMAIN}
    assert {n.domain for n in two.graph.node} == {""}
    kernel, before = Session(one), Session(two)
    assert_close(kernel.run(feeds), before.run(feeds), 1e-5)
    wrt = [v.hint for v in given if v.is_float]
    grads = Session(gradient_model(one, wrt, list(found), cotangents="ones")).run(feeds)
    # onnxruntime has to know the sizes of an embedding.
    for unknown in ([["x0", "x1"]] if "Embed" in operator else (feeds, ["x0", "x1", "x2"], ["x3"])):
        some = [None if v is None else variable(v.hint, v.dtype, [f"{v.hint}_{i}" if v.hint in unknown else n
                                                 for i, n in enumerate(v.shape)]) for v in values]
        two = build([v for v in some if v is not None],
                    dict(zip(found, outputs(operator, some, attributes), strict=False)))
        assert_close(Session(gradient_model(two, wrt, list(found), cotangents="ones")).run(feeds), grads, 1e-6)
    rng = np.random.default_rng(1)

    def total(**moved):
        return sum(v.sum(dtype=float) for v in kernel.run({**feeds, **moved}).values())

    for n in wrt:
        d, h = rng.normal(size=feeds[n].shape).astype(np.float32), np.float32(1e-2)
        up, down = (total(**{n: feeds[n] + s * d}) for s in (h, -h))
        slope = (grads[f"{n}_grad"].astype(float) * d).sum()
        assert abs((up - down) / (2 * h) - slope) < 2e-2 * max(1, np.abs(grads[f"{n}_grad"]).max() * d.size**0.5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_the_second_order(name):
    """The gradient, which is of standard operators, against its differences."""
    operator, values, feeds, attributes = made(name)
    given = [v for v in values if v is not None]

    def f(*x):
        known = dict(zip(given, x, strict=True))
        ys = outputs(operator, [None if v is None else known[v] for v in values], attributes)
        return ys if "past" in name else ys[:1]

    arrays = [feeds[v.hint] for v in given]
    g = _gradient(f, [i for i, v in enumerate(given) if v.is_float], len(given))
    cotangents = [cotangent(y.shape) for y in f(*given)]
    symbolic = name in ("FusedConv", "Attention", "MultiHeadAttention past")
    check_gradient(g, [*arrays, *cotangents], order=1, directions=1, skip_kinks=True, symbolic=symbolic,
                   rtol_float32=1e-3)


@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8), (3, 8)])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("name", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_all_outputs_of_a_norm(name, has_bias, skip):
    """The mean, the inverse deviation and the sum are outputs like the first; what is added may have fewer rows."""
    is_simple = "Simplified" in name
    if IS_OLD and (skip != (2, 3, 8) or (is_simple and has_bias)):
        pytest.skip("onnxruntime 1.19.2 leaves out the bias, and refuses fewer rows.")
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 3, 8), "skip": skip, "gamma": (8,), **({} if is_simple else {"beta": (8,)}),
              **({"bias": (8,)} if has_bias else {})}
    arrays = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    values = {n: variable(n, "float32", a.shape) for n, a in arrays.items()}
    names = ("x", "skip", "gamma", *([] if is_simple else ["beta"]), "bias")
    ys = getattr(ms, name)(*map(values.get, names), epsilon=1e-2, n_outputs=4)
    kept = [0, 3] if IS_OLD else [0, 2, 3] if is_simple else range(4)
    t = {n: torch.tensor(a, requires_grad=True) for n, a in arrays.items()}
    total = t["x"] + t["skip"] + t.get("bias", 0)
    mean = 0 if is_simple else total.mean(-1, keepdim=True)
    r = ((total - mean).square().mean(-1, keepdim=True) + 1e-2).rsqrt()
    expected = [(total - mean) * r * t["gamma"] + t.get("beta", 0), mean, r, total]
    dys = {i: rng.normal(size=expected[i].shape).astype(np.float32) for i in kept}
    seeds = {i: variable(f"dy{i}", "float32", d.shape) for i, d in dys.items()}
    grads = grad([ys[i] for i in kept], list(values.values()), list(seeds.values()))
    found = Session(build([*values.values(), *seeds.values()], {
        **{f"y{i}": ys[i] for i in kept}, **{f"d_{n}": d for n, d in zip(values, grads, strict=True)}})).run(
            {**arrays, **{f"dy{i}": d for i, d in dys.items()}})
    for i in kept:
        np.testing.assert_allclose(found[f"y{i}"], expected[i].detach(), atol=1e-5)
    theirs = torch.autograd.grad([expected[i] for i in kept], list(t.values()), [torch.tensor(dys[i]) for i in kept])
    for n, g in zip(t, theirs, strict=True):
        np.testing.assert_allclose(found[f"d_{n}"], g, atol=1e-4, err_msg=n)


#: Operators whose kernel for processors has float16.
HALF = ["FusedMatMul", "Gelu", "BiasGelu", "FastGelu bias", "QuickGelu", "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization", "EmbedLayerNormalization", "MultiHeadAttention", "Attention mask"]


@pytest.mark.parametrize("name", HALF)
def test_half_precision(name):
    operator, values, feeds, attributes = made(name)
    wrt, grads = [v.hint for v in values if v is not None and v.is_float], []
    for dtype in (np.float16, np.float32):
        x = [None if v is None else variable(v.hint, dtype if v.is_float else v.dtype, v.shape) for v in values]
        model = build([v for v in x if v is not None], {"y": outputs(operator, x, attributes)[0]})
        g = Session(gradient_model(model, wrt, cotangents="ones"))
        grads.append(g.run({n: a.astype(dtype) if n in wrt else a for n, a in feeds.items()}))
    for n, d in grads[1].items():
        np.testing.assert_allclose(grads[0][n], d, atol=2e-2 * max(1, abs(d).max()), err_msg=n)


def test_attention_without_a_bias():
    # onnxruntime 1.31.1 dies of it, so that the one of zeros is what it is compared with.
    x, w, b = (variable(n, "float32", s) for n, s in (("x", (2, 3, 6)), ("w", (6, 24)), ("b", (24,))))
    rng, grads = np.random.default_rng(0), []
    feeds = {v.hint: rng.normal(size=v.shape).astype(np.float32) for v in (x, w)}
    for given, also in (([x, w], {}), ([x, w, b], {"b": np.zeros(24, np.float32)})):
        model = build(given, {"y": outputs("Attention", given, {"num_heads": 2})[0]})
        grads.append(Session(gradient_model(model, ["x", "w"], cotangents="ones")).run({**feeds, **also}))
    assert_close(*grads, 1e-6)


def test_attention_in_half_precision():
    # What hides later keys is a number that float16 has: 0 times an infinite one would be none.
    operator, values, feeds, attributes = made("Attention later")
    grads = []
    for dtype in (np.float16, np.float32):
        x = [variable(v.hint, dtype, v.shape) for v in values]
        model = build(x, {"y": outputs(operator, x, attributes)[0]})
        g = Session(gradient_model(model, list(feeds), cotangents="ones"))
        grads.append(g.run({n: a.astype(dtype) for n, a in feeds.items()}))
    assert_close(*grads, 1e-2)


@pytest.mark.parametrize("name", NAMES)
def test_schema_is_that_of_onnxruntime(name):
    mine = onnx.defs.get_schema(name, DOMAIN)
    if not hasattr(_pybind_state, "get_all_operator_schema"):
        pytest.skip("onnxruntime-training 1.19.2 does not hand out its schemas")
    (theirs,) = [s for s in _pybind_state.get_all_operator_schema() if (s.name, s.domain) == (name, DOMAIN)]
    assert [i.name for i in mine.inputs] == [i.name for i in theirs.inputs]
    shared = min(len(mine.outputs), len(theirs.outputs))
    assert [o.name for o in mine.outputs][:shared] == [o.name for o in theirs.outputs][:shared]
    assert set(theirs.attributes) == set(mine.attributes)
    for n, a in theirs.attributes.items():
        default = mine.attributes[n].default_value
        raw = onnx.AttributeProto.FromString(a._default_value)
        assert (raw.f, raw.i, raw.s) == (default.f, default.i, default.s), n


class Net(nn.Module):
    """Layers whose operators onnxruntime fuses."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, activation="gelu", batch_first=True)
        self.a, self.b, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        x = self.layer(x)
        x = self.norm(self.a(x) + x)
        x = x + nn.functional.gelu(self.b(x), approximate="tanh")
        x = x * torch.sigmoid(1.702 * x)
        return (x @ x.transpose(1, 2)) * 0.25


def conv():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.LeakyReLU(0.1), nn.Flatten(),
                         nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 2))


# onnxruntime writes layouts of its own for Conv at its last level.
OPTIMIZED = {
    "encoder": (Net, (2, 5, 8), GraphOptimizationLevel.ORT_ENABLE_ALL, {"FusedMatMul"}),
    "conv": (conv, (2, 3, 6, 6), GraphOptimizationLevel.ORT_ENABLE_EXTENDED, {"FusedConv", "FusedGemm"}),
}


def optimized(model, level):
    """The model as onnxruntime stores it after its own optimizations."""
    with TemporaryDirectory() as folder:
        options = SessionOptions()
        options.graph_optimization_level, options.optimized_model_filepath = level, f"{folder}/net.onnx"
        options.log_severity_level = 3  # that the result depends on the machine is what a warning says
        InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(f"{folder}/net.onnx")


@pytest.mark.parametrize("name", OPTIMIZED)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_optimized_models(name):
    make, shape, level, fused = OPTIMIZED[name]
    torch.manual_seed(0)
    net, x = make().eval(), torch.randn(shape)
    with TemporaryDirectory() as folder:
        torch.onnx.export(net, (x,), f"{folder}/net.onnx", dynamo=False, input_names=["x"], output_names=["y"],
                          opset_version=18)
        model = onnx.load(f"{folder}/net.onnx")
    found = optimized(model, level)
    assert fused <= {n.op_type for n in found.graph.node if n.domain == DOMAIN}
    before, after = weights_of(model), weights_of(found)
    shared = [n for n in after if n in before and after[n].dtype == np.float32 and after[n].ndim]
    assert len(shared) >= len([n for n in before if before[n].ndim]) // 2
    wrt = ["x", *shared]
    grads = []
    for m, weights in ((model, before), (found, after)):
        # Fusions hide which of the weights that the exporter has merged are several.
        g = gradient_model(load(m, ties="file"), wrt, cotangents="ones")
        grads.append(Session(g).run({"x": x.numpy(), **{n: weights[n] for n in shared}}))
    same = [n for n in shared if before[n].shape == after[n].shape and (before[n] == after[n]).all()]
    assert_close(grads[1], {f"{n}_grad": grads[0][f"{n}_grad"] for n in ["x", *same]}, 1e-4)


def test_layouts_of_a_machine():
    """What onnxruntime writes at its last level predicts, and a gradient says how to save the model."""
    x, w = variable("x", "float32", ["N", 3, 8, 8]), constant(np.ones((16, 3, 3, 3), np.float32), hint="w")
    model = build([x], {"y": op.Conv(x, w, pads=[1, 1, 1, 1])})
    found = optimized(model, GraphOptimizationLevel.ORT_ENABLE_ALL)
    if not any(n.domain == "com.microsoft.nchwc" for n in found.graph.node):
        pytest.skip("onnxruntime has no other layout on this machine")
    feeds, loaded = {"x": np.ones((2, 3, 8, 8), np.float32)}, load(found)
    assert_close(Session(build(loaded.inputs, loaded.outputs)).run(feeds), Session(model).run(feeds), 1e-6)
    with pytest.raises(NoGradientError, match="save the optimized model at ORT_ENABLE_EXTENDED instead, or"):
        gradient_model(found, ["x"])


def test_the_agent_refuses():
    x = variable("x", "float32", ["N", 4])
    model = build([x], {"y": ms.Gelu(x)})
    assert find_untrusted(model)[0].startswith("Gelu (node 'Gelu_node_0'): it is an operator of com.microsoft")
    with pytest.raises(ModelError, match=r"The agent cannot differentiate Gelu .* of com.microsoft"):
        find_active(model, ["x"])


@pytest.mark.parametrize(
    ("operator", "shapes", "attributes", "message"),
    [
        ("FusedGemm", [(2, 3), (3, 4)], {"activation": "Affine"}, "The activation 'Affine' is fused into an operator"),
        ("MultiHeadAttention", [(2, 3, 2, 3, 4)], {"num_heads": 2}, "key and value packed with other inputs"),
        ("MultiHeadAttention", [*QKV, *[None] * 5, np.zeros(1, np.int32)], {"num_heads": 2}, "with a shared buffer"),
        ("Attention", [(2, 3, 6), (6, 24), (24,)], {"num_heads": 2, "do_rotary": 1}, "Attention with do_rotary"),
        ("Attention", [(2, 3, 6), (6, 24), (24,), np.zeros((2, 1, 4, 4), np.int32)], {"num_heads": 2},
         "A mask of 4 axes has no gradient; give one of (batch, keys)."),
        ("Attention", [(2, 3, 6), (6, 24), (24,), np.zeros(8, np.int32)], {"num_heads": 2}, "A mask of shape (8,)"),
    ],
)
def test_forms_without_a_gradient(operator, shapes, attributes, message):
    inputs = [variable(f"x{i}", *(("float32", s) if isinstance(s, tuple) else (s.dtype, s.shape))) if s is not None
              else None for i, s in enumerate(shapes)]
    model = build([x for x in inputs if x is not None], {"y": outputs(operator, inputs, attributes)[0]})
    with pytest.raises(NoGradientError, match=re.escape(message)):
        gradient_model(model, ["x0"], cotangents="ones")


def test_attention_without_a_bias_does_not_end_the_process():
    """As a file of opset 17, which is compared with what is read from it, and in a session."""
    rng = np.random.default_rng(0)
    weights = ", ".join(map(str, rng.normal(size=48)))
    without, zeros = (onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[N, S, 4] x) => (float[N, S, 4] y) <float[4, 12] w = {{{weights}}}, float[12] b = {{{'0, ' * 11} 0}}> {{
      y = com.microsoft.Attention <num_heads = 2> (x, w{bias})
    }}""") for bias in ("", ", b"))
    feeds = {"x": rng.normal(size=(2, 3, 4)), "w": weights_of(without)["w"], "y_grad": rng.normal(size=(2, 3, 4))}
    feeds = {n: a.astype(np.float32) for n, a in feeds.items()}
    assert_close(*(Session(gradient_model(m, ["x", "w"])).run(feeds) for m in (without, zeros)), 1e-6)
    loaded = load(without)
    predicted = Session(build(loaded.inputs, loaded.outputs)).run({"x": feeds["x"]})
    assert_close(predicted, Session(zeros).run({"x": feeds["x"]}), 1e-6)


def by_session(model, _):
    """As onnxruntime stores it after its own optimizations."""
    return optimized(model, GraphOptimizationLevel.ORT_ENABLE_EXTENDED)


def by_transformers(model, kind):
    """As `onnxruntime.transformers` optimizes it."""
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    with TemporaryDirectory() as folder:
        onnx.save(model, f"{folder}/net.onnx")
        found = optimizer.optimize_model(f"{folder}/net.onnx", kind.split()[0], 2, 16, opt_level=0)
        found.save_model_to_file(f"{folder}/optimized.onnx")
        return onnx.load(f"{folder}/optimized.onnx")


@pytest.mark.parametrize(("name", "opset", "optimize"), [
    ("t5 encoder", 14, by_session), ("t5 encoder", 14, by_transformers), *(
        pytest.param(name, opset, optimize, marks=pytest.mark.slow) for name, opset, optimize in (
            ("t5 encoder", 17, by_session), ("t5 encoder", 17, by_transformers), ("bert", 14, by_session),
            ("bert", 14, by_transformers), ("bert", 17, by_session), ("bert", 17, by_transformers),
            ("gpt2", 14, by_session), ("gpt2", 14, by_transformers), ("gpt2", 17, by_session),
            ("gpt2", 17, by_transformers), ("vit", 18, by_session), ("whisper encoder", 18, by_session)))])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_optimized_transformers(name, opset, optimize):
    """Predictions are those of the file, and gradients those of the model before the optimization."""
    _, x, model = exported(name, dynamo=False, opset=opset)
    found = optimize(model, name)
    assert {n.op_type for n in found.graph.node} & {"SkipLayerNormalization", "SimplifiedLayerNormalization"}
    feeds, loaded = {"x": x.numpy()}, load(found)
    predicted = Session(build(loaded.inputs, loaded.outputs)).run(feeds)
    assert_close(predicted, Session(found.SerializeToString()).run(feeds), 1e-6)
    before, after = weights_of(model), weights_of(found)
    same = [n for n, a in after.items() if a.dtype == np.float32 and a.ndim and np.array_equal(a, before.get(n))]
    assert len(same) > 5
    grads = []
    for m in (model, found):
        g = gradient_model(m, same, ["y"], cotangents="ones")
        grads.append(Session(g).run({**feeds, **{n: after[n] for n in same}}))
    assert_gradients(grads[1], grads[0], 1e-4)
