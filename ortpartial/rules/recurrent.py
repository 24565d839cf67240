"""How do gradients flow through recurrent operators? They are unrolled, one step behind another."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..exceptions import NoGradientError
from ..gradient import cast, composed
from ..graph import Node, Value, constant, op
from .linear import transposed
from .shape import size, vector

#: A GRU of so many steps has 14,000 nodes, which onnxruntime loads in half a minute, and of twice as many in two.
LONGEST = 256

#: From what the inputs add to the gates, and the state, to the next state; the first of a state is what is put out.
Step = Callable[..., Sequence[Value]]

#: Activations by their names in small letters, with the defaults of alpha and beta. None: onnxruntime 1.19.2 and 1.31.1
#: do not take what the specification says, if it says anything. In an RNN they take 0 always.
ACTIVATIONS: dict[str, tuple[Callable[..., Value], tuple[float | None, ...]]] = {
    "affine": (lambda x, alpha, beta: alpha * x + beta, (None, None)),
    "elu": (lambda x, alpha: op.Elu(x, alpha=alpha), (1.0,)),
    "hardsigmoid": (lambda x, alpha, beta: op.HardSigmoid(x, alpha=alpha, beta=beta), (0.2, 0.5)),
    "leakyrelu": (lambda x, alpha: op.LeakyRelu(x, alpha=alpha), (0.01,)),
    "relu": (lambda x: op.Relu(x), ()),
    "scaledtanh": (lambda x, alpha, beta: alpha * op.Tanh(beta * x), (None, None)),
    "sigmoid": (lambda x: op.Sigmoid(x), ()),
    "softplus": (lambda x: op.Softplus(x), ()),
    "softsign": (lambda x: op.Softsign(x), ()),
    "tanh": (lambda x: op.Tanh(x), ()),
    "thresholdedrelu": (lambda x, alpha: op.ThresholdedRelu(x, alpha=alpha), (None,)),
}


@composed("RNN")
def _(x, w, r, b=None, lens=None, h=None, *, node):
    def cell(r, b, p, f):
        return lambda s, h: [f(s + op.Gemm(h, r, b, transB=1))]

    return unrolled(node, x, w, r, b, None, lens, [h], cell, ["Tanh"])


@composed("GRU")
def _(x, w, r, b=None, lens=None, h=None, *, node, linear_before_reset):
    def cell(r, b, p, f, g):
        weights, biases = parts(r, 3), [None] * 3 if b is None else parts(b, 3)
        to_z, to_r, to_n = (
            partial(lambda h, w, b: op.Gemm(h, w, b, transB=1), w=w, b=b) for w, b in zip(weights, biases, strict=True)
        )

        def step(s, h):
            z, r, n = parts(s, 3, axis=1)
            z, r = f(z + to_z(h)), f(r + to_r(h))
            n = g(n + (r * to_n(h) if linear_before_reset else to_n(r * h)))
            return [(1 - z) * n + z * h]

        return step

    return unrolled(node, x, w, r, b, None, lens, [h], cell, ["Sigmoid", "Tanh"])


@composed("LSTM")
def _(x, w, r, b=None, lens=None, h=None, c=None, p=None, *, node, input_forget):
    def cell(r, b, p, f, g, h):
        # Weights of a look at the cell; 0 is not added.
        pi, po, pf = [0] * 3 if p is None else parts(p, 3)

        def step(s, y, c):
            i, o, forget, n = parts(s + op.Gemm(y, r, b, transB=1), 4, axis=1)
            i = f(seeing(i, pi, c))
            forget = 1 - i if input_forget else f(seeing(forget, pf, c))
            c = forget * c + i * g(n)
            return [f(seeing(o, po, c)) * h(c), c]

        return step

    return unrolled(node, x, w, r, b, p, lens, [h, c], cell, ["Sigmoid", "Tanh", "Tanh"])


def seeing(gate: Value, p: Value | int, c: Value) -> Value:
    """A gate that sees the cell c through peepholes p, if it has them."""
    return gate + p * c if isinstance(p, Value) else gate


def parts(v: Value, n: int, axis: int = 0) -> tuple[Value, ...]:
    """v, which holds what belongs to n gates, one by one."""
    return op.Split(v, axis=axis, num_outputs=n)


def unrolled(
    node: Node, x: Value, w: Value, r: Value, b: Value | None, p: Value | None, lens: Value | None,
    states: Sequence[Value | None], cell: Callable[..., Step], defaults: Sequence[str],
) -> list[Value]:  # fmt: skip
    """The outputs of a recurrent operator: all steps (T, D, N, H), and for each state the last one (D, N, H)."""
    layout = node.attribute("layout")
    if layout:
        x, states = batch_second(x), [None if v is None else batch_second(v) for v in states]
    n_steps = length(node, x)
    whole, last = [], []
    for d, backward in enumerate(directions(node)):
        def one(v, d=d):
            return None if v is None else op.Gather(v, d, axis=0)

        wb, rb = (None, None) if b is None else parts(one(b), 2)
        step = cell(one(r), rb, one(p), *activations(node, defaults)[d * len(defaults) : (d + 1) * len(defaults)])
        nothing = op.Expand(constant(np.zeros((1, 1), x.dtype)), vector(size(x, 1, 2), size(r, 2, 3)))
        state = [nothing if v is None else one(v) for v in states]
        added = turned(x, lens, backward) @ transposed(one(w))
        added = op.Split(added if wb is None else added + wb, axis=0, num_outputs=n_steps)
        y, state = run(step, added[::-1] if backward and lens is None else added, state, lens)
        y = op.Concat(*(y[::-1] if backward and lens is None else y), axis=0)
        whole.append(op.Unsqueeze(turned(y, lens, backward), [1]))
        last.append([op.Unsqueeze(v, [0]) for v in state])
    outputs = [op.Concat(*whole, axis=1), *(op.Concat(*v, axis=0) for v in zip(*last, strict=True))]
    if layout:
        return [op.Transpose(outputs[0], perm=[2, 0, 1, 3]), *map(batch_second, outputs[1:])]
    return outputs


def batch_second(v: Value) -> Value:
    """v with its first two axes exchanged."""
    return op.Transpose(v, perm=[1, 0, 2])


def run(step: Step, added: Sequence[Value], state: list[Value], lens: Value | None) -> tuple[list[Value], list[Value]]:
    """What is put out at each step, (1, N, H), and the state at the end; behind its end a sequence stands still."""
    y = []
    for t, s in enumerate(added):
        new = step(op.Squeeze(s, [0]), *state)
        if lens is None:
            state = list(new)
            y.append(op.Unsqueeze(new[0], [0]))
        else:
            m = cast(op.Unsqueeze(lens > t, [1]), new[0])
            state = [m * v + (1 - m) * old for v, old in zip(new, state, strict=True)]
            y.append(op.Unsqueeze(m * new[0], [0]))
    return y, state


def turned(v: Value, lens: Value | None, backward: bool) -> Value:
    """v with sequences of their own lengths read from their ends, if there are lengths and this is asked for."""
    if not backward or lens is None:
        return v
    return op.ReverseSequence(v, op.Cast(lens, to=7), batch_axis=1, time_axis=0)


def length(node: Node, x: Value) -> int:
    """The number of steps, which has to be known."""
    n = None if x.shape is None else x.shape[0]
    if isinstance(n, int) and n <= LONGEST:
        return n
    known = f"is {n}, and at most {LONGEST} are unrolled" if isinstance(n, int) else "is not known before it runs"
    raise NoGradientError(
        f"{node!r} has no gradient here: the length of its sequences {known}. Give its input a fixed number of steps, "
        f"at most {LONGEST} (sequence_lens may tell shorter ones apart), or leave its weights and those before it out "
        f"of weights_to_train."
    )


def directions(node: Node) -> list[bool]:
    """Of each direction, whether it goes backwards."""
    return {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[node.attribute("direction")]


def activations(node: Node, defaults: Sequence[str]) -> list[Callable[[Value], Value]]:
    """The activations of all directions; alpha and beta are given to those that have them, one after another."""
    names = node.attribute("activations") or [*defaults] * len(directions(node))
    alphas, betas = (iter(node.attribute(f"activation_{k}") or ()) for k in ("alpha", "beta"))
    # What goes into a gate is clipped. The last activation of three is that of the cell, which is none.
    return [activation(node, name, alphas, betas, gate=i % len(defaults) < 2) for i, name in enumerate(names)]


def activation(
    node: Node, name: str, alphas: Iterator[float], betas: Iterator[float], gate: bool
) -> Callable[[Value], Value]:
    """One activation, of what is clipped first where the node says so."""
    if name.lower() not in ACTIVATIONS:
        raise NoGradientError(f"{node!r} has the activation {name}; those that are known are {', '.join(ACTIVATIONS)}.")
    f, defaults = ACTIVATIONS[name.lower()]
    defaults = tuple(None if node.op_type == "RNN" else number for number in defaults)
    numbers = [next(k, number) for k, number in zip((alphas, betas), defaults, strict=False)]
    if None in numbers:
        raise NoGradientError(
            f"{node!r} has the activation {name} without its alpha or beta, which runtimes choose in ways of their "
            f"own. Set activation_alpha and activation_beta."
        )
    clip: Any = node.attribute("clip")
    return lambda v: f(op.Clip(v, -clip, clip) if gate and clip is not None else v, *numbers)
