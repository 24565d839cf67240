"""Gradients of recurrent operators."""

import numpy as np
import onnx
import pytest
import torch
from table import cotangent, real, rows
from torch import nn

from ortpartial import OrtGradientForwardBackward, OrtGradientForwardBackwardOptimizer, gradient_model
from ortpartial.autodiff.grad import grad
from ortpartial.exceptions import DataError, NoGradientError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.graph.walk import topological
from ortpartial.model.prepare import walk_graphs
from ortpartial.runtime.session import Session
from ortpartial.testing import _gradient, check_gradient, evaluate

# Operator, and the number of its gates.
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, BATCH, WIDTH, HIDDEN = 3, 3, 3, 2
LENS = np.array([3, 1, 2], np.int32)


def arguments(op_type, given, directions=1):
    """Inputs in the order of the specification, None for those that are not given."""
    n = GATES[op_type]
    state = (directions, BATCH, HIDDEN)
    found = {
        "x": real(STEPS, BATCH, WIDTH), "w": real(directions, n * HIDDEN, WIDTH),
        "r": real(directions, n * HIDDEN, HIDDEN), "b": real(directions, 2 * n * HIDDEN), "lens": LENS,
        "h": real(*state), "c": real(*state, seed=1), "p": real(directions, 3 * HIDDEN),
    }
    names = list(found)[: 8 if op_type == "LSTM" else 6]
    return [found[n] if n in ("x", "w", "r") or n in given.split() else None for n in names]


def outputs(op_type, args, **settings):
    """All outputs as a function of the arguments that are numbers."""

    def f(*x):
        free = iter(x)
        inputs = [a if a is None or a.dtype.kind == "i" else next(free) for a in args]
        inputs = [constant(a) if isinstance(a, np.ndarray) else a for a in inputs]
        return list(getattr(op, op_type)(*inputs, hidden_size=HIDDEN, **settings))

    return f, [a for a in args if a is not None and a.dtype.kind == "f"]


CASES = rows(
    ("no bias", "RNN GRU LSTM", "", {}),
    ("bias", "RNN GRU LSTM", "b", {}),
    ("bias and states", "RNN GRU LSTM", "b h c", {}),
    ("state alone", "RNN GRU LSTM", "h", {}),
    ("lengths", "RNN GRU LSTM", "b lens h c", {}),
    ("clip", "RNN GRU LSTM", "b h", {"clip": 0.7}),
    ("linear before reset", "GRU", "b h", {"linear_before_reset": 1}),
    ("linear before reset, no bias, lengths", "GRU", "lens", {"linear_before_reset": 1}),
    ("peepholes", "LSTM", "b h c p", {}),
    ("peepholes, lengths, clip", "LSTM", "b lens h c p", {"clip": 0.9}),
    ("input and forget as one", "LSTM", "b p", {"input_forget": 1}),
)
EACH = [
    pytest.param(op_type, *case.values[1:], id=f"{op_type}-{case.id}")
    for case in CASES
    for op_type in case.values[0].split()
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op_type", "given", "settings"), EACH)
def test_recurrent(op_type, given, settings, direction):
    args = arguments(op_type, given, directions=1 + (direction == "bidirectional"))
    f, x = outputs(op_type, args, direction=direction, **settings)
    check_gradient(f, x, order=1, directions=1, symbolic=direction == "reverse", skip_kinks="clip" in settings)


@pytest.mark.parametrize(("op_type", "symbolic"), [
    ("LSTM", False), *(pytest.param(op_type, True, marks=pytest.mark.slow) for op_type in GATES)
])
def test_the_second_order(op_type, symbolic):
    f, x = outputs(op_type, arguments(op_type, "b lens h c p", 2), direction="bidirectional")
    check_gradient(f, x, directions=1, symbolic=symbolic)


@pytest.mark.parametrize("op_type", GATES)
def test_the_second_order_of_one_step(op_type):
    # Before the first step there is nothing, of which onnxruntime 1.19.2 makes one element now and then.
    x, *others = arguments(op_type, "b h c")
    f, args = outputs(op_type, [x[:1], *others])
    cotangents = [cotangent(s) for s in ((1, 1, BATCH, HIDDEN), *[(1, BATCH, HIDDEN)] * (1 + (op_type == "LSTM")))]
    g = _gradient(f, range(len(args)), len(args))
    check_gradient(g, [*args, *cotangents], order=1, directions=1)


def test_sizes_of_the_batch_take_no_sums_over_axes_found_at_run_time():
    x, w = variable("x", "float32", ["T", "N", WIDTH]), variable("w", "float32", [1, 4 * HIDDEN, WIDTH])
    y = op.LSTM(x, w, constant(real(1, 4 * HIDDEN, HIDDEN).astype(np.float32)), hidden_size=HIDDEN)[0]
    (dx,) = grad(op.ReduceSum(y, keepdims=0), [x])
    assert "NonZero" not in {node.op_type for node in topological([dx])}


def test_inputs_that_are_made_of_each_other():
    def f(x, w):
        return [op.RNN(x, w, r, hidden_size=WIDTH, n_outputs=2)[0] for r in (w, w * w)]

    check_gradient(f, [real(STEPS, BATCH, WIDTH), real(1, WIDTH, WIDTH)], order=1, directions=1)


@pytest.mark.parametrize(("op_type", "given", "settings"), EACH)
def test_the_kernel_computes_the_same(op_type, given, settings):
    """onnxruntime has a kernel of float32 alone; float64 goes through a Scan."""
    f, x = outputs(op_type, arguments(op_type, given, 2), direction="bidirectional", **settings)
    single, double = ([variable(f"x{i}", dtype, a.shape) for i, a in enumerate(x)] for dtype in ("float32", "float64"))
    names = [f"y{i}" for i in range(len(f(*single)))]
    expected = Session(build(single, dict(zip(names, f(*single), strict=True)))).run(
        {f"x{i}": a.astype(np.float32) for i, a in enumerate(x)})
    found = Session(build(double, dict(zip(names, f(*double), strict=True)))).run({f"x{i}": a for i, a in enumerate(x)})
    for n in names:
        np.testing.assert_allclose(found[n], expected[n], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op_type", GATES)
def test_batch_first(op_type):
    # No runtime has it: it is the same as the transpose of what they have.
    args, batched = arguments(op_type, "b h c", 2), ("x", "h", "c")
    names = [n for n, a in zip(("x", "w", "r", "b", "lens", "h", "c", "p"), args, strict=False) if a is not None]
    state = (2, BATCH, HIDDEN)
    dys = [cotangent(s) for s in ((STEPS, *state), *[state] * (1 + (op_type == "LSTM")))]

    def values(args, dys, layout):
        f, x = outputs(op_type, args, direction="bidirectional", layout=layout)
        v = [variable(n, a.dtype, a.shape) for n, a in zip(names, x, strict=True)]
        y = f(*v)
        found = dict(zip((f"d{n}" for n in names), grad(y, v, [constant(dy) for dy in dys]), strict=True))
        return evaluate(build(v, found | {f"y{i}": a for i, a in enumerate(y)}), dict(zip(names, x, strict=True)))

    def turned(a, first=True):
        return a.transpose((2, 0, 1, 3) if a.ndim == 4 else (1, 0, 2)) if first else a

    expected = values(args, dys, 0)
    every = ("x", "w", "r", "b", "lens", "h", "c", "p")
    found = values([turned(a, n in batched) for n, a in zip(every, args, strict=False)], [turned(d) for d in dys], 1)
    for n, a in expected.items():
        np.testing.assert_allclose(found[n], turned(a, n[0] == "y" or n[1:] in batched), rtol=1e-9, atol=1e-12)


# What torch calls its gates, in its order, by their places here.
ORDER = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}


def of_torch(op_type, x, w, r, b, h, c=None):
    """The output of torch's layer with weights in the order of ONNX."""

    def gates(v):
        return torch.cat([v.chunk(GATES[op_type])[i] for i in ORDER[op_type]])

    weights = []
    for d in range(len(w)):
        bw, br = b[d].chunk(2)
        weights += [gates(w[d]), gates(r[d]), gates(bw), gates(br)]
    layer = {"RNN": torch.rnn_tanh, "GRU": torch.gru, "LSTM": torch.lstm}[op_type]
    state = h if c is None else (h, c)
    return layer(x, state, weights, True, 1, 0.0, True, len(w) == 2, False)[0]


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("op_type", GATES)
def test_as_torch(op_type, directions):
    settings = {"linear_before_reset": 1} if op_type == "GRU" else {}
    direction = ["forward", "bidirectional"][directions - 1]
    f, x = outputs(op_type, arguments(op_type, "b h c", directions), direction=direction, **settings)
    dy = cotangent((STEPS, directions, BATCH, HIDDEN))
    # Of any number of steps and rows.
    v = [variable(f"x{i}", a.dtype, [f"x{i}_{k}" for k in range(a.ndim)]) for i, a in enumerate(x)]
    y = f(*v)[0]
    wanted = {"y": y, **{f"d{i}": d for i, d in enumerate(grad(y, v, [constant(dy)]))}}
    found = evaluate(build(v, wanted), {f"x{i}": a for i, a in enumerate(x)})
    t = [torch.tensor(a, requires_grad=True) for a in x]
    y = of_torch(op_type, *t)
    # There the directions stand side by side.
    y = y.reshape(STEPS, BATCH, directions, HIDDEN).transpose(1, 2)
    for a, b in zip(found.values(), [y, *torch.autograd.grad(y, t, torch.tensor(dy))], strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-9, atol=1e-12)


class First(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)[0]


LAYERS = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}


# The dynamo exporter of torch 2.13.0 unrolls nn.RNN, so that the number of its steps is fixed.
@pytest.mark.parametrize(("op_type", "dynamo"), [
    ("RNN", False), ("GRU", False), ("LSTM", False), ("GRU", True), pytest.param("LSTM", True, marks=pytest.mark.slow)
])
@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning", "ignore::FutureWarning",
                            "ignore::UserWarning")
def test_exported_with_any_number_of_steps(op_type, dynamo, tmp_path):
    """One gradient, for sequences of several lengths, as torch has it."""
    torch.manual_seed(0)
    net = First(LAYERS[op_type](WIDTH, HIDDEN, num_layers=2, bidirectional=True, batch_first=True))
    dynamic = ({"dynamic_shapes": {"x": {1: torch.export.Dim("time")}}, "optimize": False} if dynamo else
               {"dynamic_axes": {"x": {1: "time"}}})
    torch.onnx.export(net, (torch.randn(BATCH, 5, WIDTH),), f"{tmp_path}/net.onnx", dynamo=dynamo, opset_version=18,
                      input_names=["x"], output_names=["y"], verbose=False, **dynamic)
    gradient = Session(gradient_model(onnx.load(f"{tmp_path}/net.onnx"), ["x"], ["y"]))
    for n in (5, 1, 12):
        x = torch.randn(BATCH, n, WIDTH, requires_grad=True)
        dy = torch.randn(BATCH, n, 2 * HIDDEN)
        (expected,) = torch.autograd.grad(net(x), x, dy)
        found = gradient.run({"x": x.detach().numpy(), "y_grad": dy.numpy()})["x_grad"]
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-6)


def test_trained_with_two_lengths():
    """As torch trains it: weights after batches of three steps and of eight."""
    x = variable("x", "float64", ["N", "T", WIDTH])
    args = dict(zip("wrb", (a for a in arguments("LSTM", "b")[1:4]), strict=True))
    w = {n: constant(a, hint=n) for n, a in args.items()}
    _, _, last = op.LSTM(op.Transpose(x, perm=[1, 0, 2]), *w.values(), hidden_size=HIDDEN)[0].node.outputs
    model = build([x], {"y": op.Squeeze(last, [0])})
    o = OrtGradientForwardBackwardOptimizer(model, list(w), learning_rate=0.1, shuffle=False, batch_size=4)
    t = {n: torch.tensor(a, requires_grad=True) for n, a in args.items()}
    for n in (3, 8, 3):
        rows, target = real(4, n, WIDTH), real(4, HIDDEN)
        o.partial_fit(rows, target)
        weights = [torch.cat([v.chunk(4)[i] for i in ORDER["LSTM"]])
                   for v in (t["w"][0], t["r"][0], *t["b"][0].chunk(2))]
        nothing = torch.zeros(1, 4, HIDDEN, dtype=torch.float64)
        c = torch.lstm(torch.tensor(rows), (nothing, nothing), weights, True, 1, 0.0, True, False, True)[2]
        loss = ((c[0] - torch.tensor(target)) ** 2).mean()
        for v, d in zip(t.values(), torch.autograd.grad(loss, list(t.values())), strict=True):
            v.data -= 0.1 * d
    for n, found in zip(w, o.get_state(), strict=True):
        np.testing.assert_allclose(found, t[n].detach().numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("op_type", GATES)
def test_the_graph_does_not_grow_with_the_steps(op_type):
    def nodes(steps):
        f, x = outputs(op_type, arguments(op_type, "b"))
        v = [variable(f"x{i}", "float32", a.shape if i else [steps, *a.shape[1:]]) for i, a in enumerate(x)]
        model = build(v, dict(zip("abcd", grad(f(*v)[0], v), strict=False)))
        return sum(len(g.node) for g in walk_graphs(model.graph))

    assert nodes(3) == nodes(100_000) < 100


ACTIVATIONS = rows(
    ("Affine", "RNN", {"activations": ["Affine"], "activation_alpha": [0.3], "activation_beta": [0.6]}),
    ("Elu", "RNN", {"activations": ["Elu"], "activation_alpha": [0.7]}),
    ("HardSigmoid", "RNN", {"activations": ["HardSigmoid"], "activation_alpha": [0.1], "activation_beta": [0.6]}),
    ("LeakyRelu", "RNN", {"activations": ["LeakyRelu"], "activation_alpha": [0.3]}),
    ("Relu", "RNN", {"activations": ["Relu"]}),
    ("ScaledTanh", "RNN", {"activations": ["ScaledTanh"], "activation_alpha": [0.3], "activation_beta": [0.6]}),
    ("Sigmoid", "RNN", {"activations": ["Sigmoid"]}),
    ("Softplus", "RNN", {"activations": ["Softplus"]}),
    ("Softsign", "RNN", {"activations": ["Softsign"]}),
    ("ThresholdedRelu", "RNN", {"activations": ["ThresholdedRelu"], "activation_alpha": [0.3]}),
    ("defaults", "GRU", {"activations": ["HardSigmoid", "LeakyRelu"]}),
    ("more defaults", "LSTM", {"activations": ["HardSigmoid", "Elu", "Softsign"]}),
    ("numbers one after another", "LSTM", {"activations": ["HardSigmoid", "Tanh", "LeakyRelu"],
                                           "activation_alpha": [0.1, 0.3], "activation_beta": [0.4]}),
)


@pytest.mark.parametrize(("op_type", "settings"), ACTIVATIONS)
def test_activations(op_type, settings):
    f, x = outputs(op_type, arguments(op_type, "b"), **settings)
    check_gradient(f, x, order=1, directions=1, symbolic=False, skip_kinks=True)


def refused(match, **settings):
    x = variable("x", "float32", [STEPS, "N", WIDTH])
    w, r = (variable(n, "float32", [1, HIDDEN, k]) for n, k in (("w", WIDTH), ("r", HIDDEN)))
    y, _ = op.RNN(x, w, r, hidden_size=HIDDEN, n_outputs=2, **settings)
    with pytest.raises(NoGradientError, match=match):
        grad(y, [w])


def test_activations_without_a_gradient_are_refused():
    refused(r"RNN> has the activation Sine; those that are known are affine, elu", activations=["Sine"])
    refused(r"RNN> has the activation LeakyRelu without its alpha .* Set activation_alpha", activations=["LeakyRelu"])


@pytest.mark.parametrize("op_type", GATES)
def test_a_sequence_without_steps_is_refused(op_type):
    """onnxruntime ends the process where there are no rows, and runs no Scan where there are no steps."""
    x = variable("x", "float32", ["T", "N", WIDTH])
    _, w, r = (None if a is None else constant(a.astype(np.float32)) for a in arguments(op_type, "")[:3])
    y, *_ = getattr(op, op_type)(x, w, r, hidden_size=HIDDEN)
    layer = OrtGradientForwardBackward(build([x], {"y": y}), engine="step")
    for shape in ((0, 2, WIDTH), (2, 0, WIDTH)):
        with pytest.raises(DataError, match=f"Input 'x' has no elements, which crashes <Node .*: {op_type}>"):
            layer.forward({"x": np.zeros(shape, np.float32)})
