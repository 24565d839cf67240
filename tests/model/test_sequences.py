"""Sequences of known tensors, and the error where their gradient would be lost."""

import io

import numpy as np
import pytest
import torch
from models import assert_close
from onnx import parser

from ortpartial import gradient_model
from ortpartial.autodiff.grad import grad
from ortpartial.exceptions import NoGradientError
from ortpartial.graph import build, cond, constant, loop, op, scan, variable
from ortpartial.model.load import load
from ortpartial.runtime.session import Session
from ortpartial.torch import OnnxLayer

HEAD = '<ir_version: 9, opset_import: ["" : 18]> agraph (double[N, 5] x) => (double[a, b] y) '

# The graph, and the derivative of the sum of y by x.
CASES = {
    "sizes": ("""{ n = Constant<value_ints = [2, 3]>() i = Constant<value_int = -1>()
        s = SplitToSequence<axis = 1>(x, n) a = SequenceAt(s, i) y = Mul(a, a) }""", lambda x: 2 * x * [0, 0, 1, 1, 1]),
    "one size": ("""{ n = Constant<value_int = 2>() i = Constant<value_int = 2>()
        s = SplitToSequence<axis = -1>(x, n) a = SequenceAt(s, i) y = Mul(a, a) }""",
                 lambda x: 2 * x * [0, 0, 0, 0, 1]),
    "no sizes": ("""{ i = Constant<value_int = 3>() k = Constant<value_ints = [1]>()
        s = SplitToSequence<axis = 1, keepdims = 0>(x) a = SequenceAt(s, i) b = Unsqueeze(a, k) y = Mul(b, b) }""",
                 lambda x: 2 * x * [0, 0, 0, 1, 0]),
    "construct": ("""{ e = Exp(x) s = SequenceConstruct(x, e) n = SequenceLength(s) c = Cast<to = 11>(n)
        a = ConcatFromSequence<axis = 1>(s) y = Mul(a, c) }""", lambda x: 2 * (1 + np.exp(x))),
    "stack": ("""{ e = Exp(x) s = SequenceConstruct(x, e) a = ConcatFromSequence<axis = 0, new_axis = 1>(s)
        k = Constant<value_ints = [0]>() y = ReduceSumSquare<keepdims = 0>(a, k) }""",
              lambda x: 2 * (x + np.exp(2 * x))),
    "optional": ("""{ e = Exp(x) o = Optional(e) a = OptionalGetElement(o) h = OptionalHasElement(o)
        c = Cast<to = 11>(h) y = Mul(a, c) }""", np.exp),
    "a tensor as an optional": ("""{ e = Exp(x) a = OptionalGetElement(e) h = OptionalHasElement(e) c = Cast<to = 11>(h)
        y = Mul(a, c) }""", np.exp),
    "an optional sequence": ("""{ e = Exp(x) s = SequenceConstruct(x, e) o = Optional(s) t = OptionalGetElement(o)
        y = ConcatFromSequence<axis = 1>(t) }""", lambda x: 1 + np.exp(x)),
    "insert": ("""{ c = SequenceEmpty<dtype = 11>() d = SequenceInsert(c, x) e = Exp(x) s = SequenceInsert(d, e)
        y = ConcatFromSequence<axis = 1>(s) }""", lambda x: 1 + np.exp(x)),
    "rows": ("""{ i = Constant<value_int = -1>() s = SplitToSequence<axis = 0, keepdims = 0>(x) a = SequenceAt(s, i)
        b = ConcatFromSequence<axis = 1, new_axis = 1>(s) z = Mul(a, a) w = Transpose(b) y = Add(z, w) }""",
             lambda x: 1 + [[0], [0], [6]] * x),
    "rows as matrices": ("""{ n = Constant<value_int = 1>() s = SplitToSequence<axis = 0>(x, n) l = SequenceLength(s)
        c = Cast<to = 11>(l) b = ConcatFromSequence<axis = -1>(s) z = Mul(b, b) y = Mul(z, c) }""", lambda x: 6 * x),
    "rows by a split of one": ("""{ n = Constant<value_int = 1>() k = Constant<value_ints = [0]>() i = Identity(n)
        s = SplitToSequence<axis = 0, keepdims = 0>(x, n) a = SequenceAt(s, i) b = Mul(a, a) y = Unsqueeze(b, k) }""",
                               lambda x: [[0], [2], [0]] * x),
    "an optional in a loop": ("""{ o = Optional(x) n = Constant<value_int = 3>()
        y = Loop(n, , x) <body = b (int64 i, bool c, double[N, 5] u) => (bool d, double[N, 5] v) {
            d = Identity(c) t = OptionalGetElement(o) v = Add(u, t) }> }""", lambda x: np.full_like(x, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_known_tensors(name):
    body, expected = CASES[name]
    found = gradient_model(parser.parse_model(HEAD + body), ["x"], cotangents="ones")
    assert not any("Sequence" in node.op_type or "Optional" in node.op_type for node in found.graph.node)
    X = np.random.default_rng(0).normal(size=(3, 5))
    assert_close(Session(found).run({"x": X}), {"x_grad": expected(X)}, 1e-12)


@pytest.mark.parametrize(
    "body",
    [
        # As many as there are pairs of rows.
        "{ n = Constant<value_int = 2>() s = SplitToSequence<axis = 0>(x, n) y = ConcatFromSequence<axis = 0>(s) }",
        "{ s = SequenceConstruct(x, x) n = SequenceLength(s) t = SequenceInsert(s, x, n) "
        "y = ConcatFromSequence<axis = 0>(t) }",
    ],
    ids=["split", "insert"],
)
def test_nothing_is_lost(body):
    # Such a gradient used to be zero.
    with pytest.raises(NoGradientError, match=r"ConcatFromSequence.* a sequence .* Write it with tensors"):
        gradient_model(parser.parse_model(HEAD + body), ["x"])


KINDS = {
    "If": lambda x, give: cond(op.ReduceSum(x, keepdims=0) > 0, lambda: give(constant(0)), lambda: give(constant(1))),
    "Loop": lambda x, give: loop(lambda i, going, v: (None, v + give(i)), 2, x[0]),
    "Scan": lambda x, give: scan(lambda v, i: (v + give(i), v), x[0], constant(np.arange(2)))[0],
}

#: What a gradient cannot go through, made of x, and the row of it that is read.
CAPTURED = {
    "a sequence": (lambda x: op.SplitToSequence(x, axis=0, keepdims=0), op.SequenceAt),
    "an optional": (op.Optional, lambda o, i: op.Gather(op.OptionalGetElement(o), i)),
    "an optional sequence": (lambda x: op.Optional(op.SplitToSequence(x, axis=0, keepdims=0)),
                             lambda o, i: op.SequenceAt(op.OptionalGetElement(o), i)),
}


@pytest.mark.parametrize("what", CAPTURED)
@pytest.mark.parametrize("inner", [None, *KINDS])
@pytest.mark.parametrize("outer", KINDS)
def test_nothing_is_lost_in_a_body(outer, inner, what):
    """Neither where a body reads what stands around it, nor where it does so two deep."""
    x = variable("x", "float64", ["N", 5])
    make, read = CAPTURED[what]
    whole = make(x)

    def give(i):
        return read(whole, i) if inner is None else KINDS[inner](x, lambda j: read(whole, j))

    with pytest.raises(NoGradientError, match=r"reads .* a sequence .* Write it with tensors"):
        grad(KINDS[outer](x, give), [x])


class Rows(torch.nn.Module):
    """A loop that appends to a list, as `torch.jit.script` keeps it."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.linspace(0.5, 1, 4))

    def forward(self, x):
        rows = []
        for i in range(x.shape[0]):
            rows.append(torch.tanh(x[i] * self.w))
        return torch.stack(rows)


class Slices(Rows):
    """The same with tensors whose first size is not known, along another axis."""

    def forward(self, x):
        rows = []
        for i in range(x.shape[0]):
            rows.append(torch.tanh(x[i : i + 1] * self.w))
        return torch.cat(rows, 1)


class Recurrent(Rows):
    """A state and the list of all states."""

    def forward(self, x):
        h, states = torch.zeros(x.shape[1]), [x[0]]
        for i in range(x.shape[0]):
            h = torch.tanh(x[i] * self.w + h)
            states.append(h)
        return torch.stack(states, 1) + h.sum()


class Read(Rows):
    """Lists that loops read: rows of x, and what another loop has appended."""

    def forward(self, x):
        rows, states = x.unbind(0), []
        h = torch.zeros(4)
        for i in range(len(rows)):
            h = torch.tanh(h + rows[i] * self.w)
            states.append(h)
        total = states[0] * len(states)
        for h in states:
            total = total * self.w + h
        return total + states[-1]


def export(module):
    """The model of a scripted module."""
    file, x = io.BytesIO(), torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    torch.onnx.export(torch.jit.script(module), (x,), file, dynamo=False, input_names=["x"],
                      dynamic_axes={"x": {0: "N"}})
    return file.getvalue()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [Rows, Slices, Recurrent, Read])
def test_scripted_loops_with_lists(kind):
    module = kind()
    layer = OnnxLayer(export(module))
    for n in (3, 5):
        xs = [torch.randn(n, 4, generator=torch.Generator().manual_seed(n)).requires_grad_() for _ in range(2)]
        ys = [f(x) for f, x in zip((layer, module), xs, strict=True)]
        torch.testing.assert_close(*ys)
        for f, y in zip((layer, module), ys, strict=True):
            f.zero_grad()
            (y * y).sum().backward()
        torch.testing.assert_close(xs[0].grad, xs[1].grad)
        torch.testing.assert_close(layer.get_parameter("w").grad, module.w.grad)


class Last(Rows):
    """A list that its own loop reads."""

    def forward(self, x):
        rows = [x[0]]
        for i in range(x.shape[0]):
            rows.append(torch.tanh(rows[-1] * self.w + x[i]))
        return torch.stack(rows)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_list_that_its_loop_reads():
    """It computes what the file computes, and its gradient is an error."""
    model, x = load(export(module := Last())), torch.randn(5, 4)
    (found,) = Session(build(model.inputs, model.outputs)).run({"x": x.numpy()}).values()
    np.testing.assert_allclose(found, module(x).detach().numpy(), rtol=1e-5)
    with pytest.raises(NoGradientError, match=r"ConcatFromSequence> reads .* a sequence"):
        grad(list(model.outputs.values()), [model.initializers["w"]])


def test_a_list_that_is_read_as_it_is():
    """Where the list itself is asked for, the loop that carries it remains, and gives the same tensors."""
    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[N, 2] x, int64 n) => (seq(float[N, 2]) t, float[a, b] y) {
            s = SequenceConstruct(x)
            h, t = Loop(n, , x, s) <body = b (int64 i, bool c, float[N, 2] u, seq(float[N, 2]) r)
                                     => (bool d, float[N, 2] v, seq(float[N, 2]) q) {
                d = Identity(c) v = Add(u, x) q = SequenceInsert(r, v) }>
            z = ConcatFromSequence<axis = 0>(t) y = Mul(z, z) }""")
    loaded, x = load(model), np.array([[1, 2]], np.float32)
    outputs = Session(build(loaded.inputs, loaded.outputs)).run({"x": x, "n": np.array(2)})
    assert [v.tolist() for v in outputs["t"]] == [(k * x).tolist() for k in (1, 2, 3)]
    assert outputs["y"].tolist() == np.square(np.concatenate([x, 2 * x, 3 * x])).tolist()
    gradient = gradient_model(model, ["x"], ["y"], cotangents="ones")
    assert Session(gradient).run({"x": x, "n": np.array(2)})["x_grad"].tolist() == (28 * x).tolist()
