"""Are the gradients of recurrent operators right?"""

import numpy as np
import pytest
import torch
from table import cotangent, real, rows

from ortpartial.builder import build
from ortpartial.exceptions import NoGradientError
from ortpartial.gradient import grad
from ortpartial.graph import constant, op, variable
from ortpartial.testing import check_gradient, evaluate

# Operator, and the number of its gates.
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, BATCH, WIDTH, HIDDEN = 3, 2, 3, 2
LENS = np.array([3, 1], np.int32)


def arguments(op_type, given, directions=1):
    """Inputs in the order of the specification, None for those that are not given."""
    n = GATES[op_type]
    state = (directions, BATCH, HIDDEN)
    found = {
        "x": real(STEPS, BATCH, WIDTH), "w": real(directions, n * HIDDEN, WIDTH),
        "r": real(directions, n * HIDDEN, HIDDEN), "b": real(directions, 2 * n * HIDDEN), "lens": LENS,
        "h": real(*state), "c": real(*state, seed=1), "p": real(directions, 3 * HIDDEN),
    }  # fmt: skip
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


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("op_type", "given", "settings"), EACH)
def test_recurrent(op_type, given, settings, direction):
    args = arguments(op_type, given, directions=1 + (direction == "bidirectional"))
    f, x = outputs(op_type, args, direction=direction, **settings)
    # onnxruntime has them in float32 alone. A clipped gate has kinks, which a long step would cross.
    precision = {"step": 1e-3, "skip_kinks": True} if "clip" in settings else {"step": 1e-2}
    check_gradient(f, x, dtype=np.float32, rtol=1e-2, order=1, symbolic=False, directions=1, **precision)


@pytest.mark.parametrize("op_type", GATES)
def test_the_second_order(op_type):
    f, x = outputs(op_type, arguments(op_type, "b lens h c p", 2), direction="bidirectional")

    def g(*values):
        # Its gradient needs no kernel of the operator, so that float64 will do.
        return grad(f(*values[:-1])[0], values[: len(x)], [values[-1]])

    dy = real(STEPS, 2, BATCH, HIDDEN)
    check_gradient(g, [*x, dy], order=1, symbolic=False, directions=1)


@pytest.mark.parametrize("op_type", GATES)
def test_batch_first(op_type):
    # No runtime has it: it is the same as the transpose of what they have.
    args, batched = arguments(op_type, "b h c"), ("x", "h", "c")
    names = [n for n, a in zip(("x", "w", "r", "b", "lens", "h", "c", "p"), args, strict=False) if a is not None]
    dy = cotangent((STEPS, 1, BATCH, HIDDEN))

    def gradients(args, dy, layout):
        f, x = outputs(op_type, args, layout=layout)
        v = [variable(n, a.dtype, a.shape) for n, a in zip(names, x, strict=True)]
        found = dict(zip((f"d{n}" for n in names), grad(f(*v)[0], v, [constant(dy)]), strict=True))
        return evaluate(build(v, found), dict(zip(names, x, strict=True)))

    def turned(n, a):
        return a.swapaxes(0, 1) if n in batched else a

    expected = gradients(args, dy, 0)
    free = iter(names)
    found = gradients([None if a is None else turned(next(free), a) for a in args], dy.transpose(2, 0, 1, 3), 1)
    for n in names:
        np.testing.assert_allclose(turned(n, found[f"d{n}"]), expected[f"d{n}"], rtol=1e-9, atol=1e-12)


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
    # Steps and batch of any number of rows: the sizes but the first are symbolic.
    v = [variable(f"x{i}", a.dtype, [a.shape[0], *(f"x{i}_{k}" for k in range(1, a.ndim))]) for i, a in enumerate(x)]
    found = evaluate(build(v, grad(f(*v)[0], v, [constant(dy)])), {f"x{i}": a for i, a in enumerate(x)})
    t = [torch.tensor(a, requires_grad=True) for a in x]
    y = of_torch(op_type, *t)
    # There the directions stand side by side.
    y = y.reshape(STEPS, BATCH, directions, HIDDEN).transpose(1, 2)
    for a, b in zip(found.values(), torch.autograd.grad(y, t, torch.tensor(dy)), strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-6, atol=1e-9)


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
)  # fmt: skip


@pytest.mark.parametrize(("op_type", "settings"), ACTIVATIONS)
def test_activations(op_type, settings):
    f, x = outputs(op_type, arguments(op_type, "b"), **settings)
    check_gradient(f, x, dtype=np.float32, step=1e-2, rtol=1e-2, order=1, symbolic=False, skip_kinks=True)


def refused(match, steps=STEPS, **settings):
    x = variable("x", "float32", [steps, "N", WIDTH])
    w, r = (variable(n, "float32", [1, HIDDEN, k]) for n, k in (("w", WIDTH), ("r", HIDDEN)))
    y, _ = op.RNN(x, w, r, hidden_size=HIDDEN, n_outputs=2, **settings)
    with pytest.raises(NoGradientError, match=match):
        grad(y, [w])


def test_what_cannot_be_unrolled_is_refused():
    refused(r"RNN> has no gradient here: the length .* is not known .* Give its input a fixed number", steps="T")
    refused(r"RNN> .* length of its sequences is 1000, and at most 256 are unrolled", steps=1000)
    refused(r"RNN> has the activation Sine; those that are known are affine, elu", activations=["Sine"])
    refused(r"RNN> has the activation LeakyRelu without its alpha .* Set activation_alpha", activations=["LeakyRelu"])
