"""Gradients of recurrent operators: a step is written as an expression, and a Scan goes back from step to step.

The operator returns the states of all steps, so that only the cotangents of the states are computed step by step. The
rest is computed for all steps at once: the contribution of x to the gates, the derivatives of activations, the
cotangents of weights.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ortpartial.annotations import Inputs
from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Node, Value, cast, constant, op, rewrite, zeros_like

from ..grad import backpropagate, grad
from ..masks import scale
from ..registry import vjp
from .shape import concat_sizes, slice_shape
from .time import find_dependent, find_edge, flatten_steps, has_rows, like, like_cotangent, scan_steps, state_step

#: From the contribution of x to the gates, and the states, to the next states, the first of which is the output.
Step = Callable[..., Sequence[Value]]

#: Activations by their names in small letters, with the defaults of alpha and beta. None: onnxruntime 1.19.2 and 1.31.1
#: do not take the specification's defaults, if it has any. In an RNN they take 0 always.
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


def rnn(node: Node, r: Value, b: Value | None, p: None, f: Callable[[Value], Value]) -> Step:
    """h = f(s + h rᵀ + b)."""
    return lambda s, h: [f(s + op.Gemm(h, r, b, transB=1))]


def gru(node: Node, r: Value, b: Value | None, p: None, f: Callable[[Value], Value],
        g: Callable[[Value], Value]) -> Step:
    """h = (1 - z) n + z h, where the gate q scales h before or after the product that n reads."""
    linear_before_reset = node.attribute("linear_before_reset")
    *zq, to_n = zip(split_parts(r, 3), [None] * 3 if b is None else split_parts(b, 3), strict=True)
    to_zq = [None if None in v else op.Concat(*v, axis=0) for v in zip(*zq, strict=True)]

    def step(s: Value, h: Value) -> list[Value]:
        z, q, n = split_parts(s, 3, axis=1)
        if linear_before_reset:
            hz, hq, hn = split_parts(op.Gemm(h, r, b, transB=1), 3, axis=1)
        else:
            hz, hq = split_parts(op.Gemm(h, *to_zq, transB=1), 2, axis=1)
        z, q = f(z + hz), f(q + hq)
        n = g(n + (q * hn if linear_before_reset else op.Gemm(q * h, *to_n, transB=1)))
        return [(1 - z) * n + z * h]

    return step


def lstm(node: Node, r: Value, b: Value | None, p: Value | None, f: Callable[[Value], Value],
         g: Callable[[Value], Value], h: Callable[[Value], Value]) -> Step:
    """c = forget c + i g(n) and y = o h(c), where gates read c through peepholes, if any."""
    p_i, p_o, p_f = [None] * 3 if p is None else split_parts(p, 3)

    def gate(v: Value, p: Value | None, c: Value) -> Value:
        return f(v if p is None else v + p * c)

    def step(s: Value, y: Value, c: Value) -> list[Value]:
        i, o, forget, n = split_parts(s + op.Gemm(y, r, b, transB=1), 4, axis=1)
        i = gate(i, p_i, c)
        forget = 1 - i if node.attribute("input_forget") else gate(forget, p_f, c)
        c = forget * c + i * g(n)
        return [gate(o, p_o, c) * h(c), c]

    return step


#: By operator: its step, its numbers of gates and of states, and its default activations.
CELLS: dict[str, tuple[Callable[..., Step], int, int, Sequence[str]]] = {
    "RNN": (rnn, 1, 1, ["Tanh"]),
    "GRU": (gru, 3, 1, ["Sigmoid", "Tanh"]),
    "LSTM": (lstm, 4, 2, ["Sigmoid", "Tanh", "Tanh"]),
}

#: Whether each direction goes backwards.
DIRECTIONS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


@dataclass(frozen=True)
class Direction:
    """A direction of a recurrent operator: its step as an expression, and the sequences that all steps read.

    `states` are variables for the states before a step, `new` the states after it. `read` maps variables for the
    rows of a step to the rows of all steps, (T·N, ...): the contribution of x to the gates and, where sequences
    have lengths, a mask of 1 up to the length. `weights` are the weights of a step, `first` the initial states
    (N, H). `turn` reverses sequences (T, N, ...) of the reverse direction.
    """

    states: Sequence[Value]
    new: Sequence[Value]
    read: Mapping[Value, Value]
    weights: Sequence[Value]
    first: Sequence[Value]
    turn: Callable[[Value], Value]

    def shown(self, y: Value) -> Value:
        """The output y of a step: zero after the end of its sequence."""
        _, *going = self.read
        return scale(y, going[0]) if going else y


def make_directions(
    node: Node, x: Value, w: Value, r: Value, b: Value | None = None, lens: Value | None = None,
    h: Value | None = None, c: Value | None = None, p: Value | None = None,
) -> Iterator[Direction]:
    """The directions of a recurrent operator whose input is x, (T, N, ...)."""
    cell, n_gates, n_states, defaults = CELLS[node.op_type]
    directions, hidden = DIRECTIONS[node.attribute("direction")], node.attribute("hidden_size")
    functions = iter(activations(node, defaults, len(directions)))
    time, batch = slice_shape(x, 0, 1), slice_shape(x, 1, 2)
    nothing = op.Expand(constant(np.zeros((1, 1), x.dtype)), concat_sizes(batch, constant([hidden])))
    nothing = nothing.stated([None, hidden])
    ends = op.Expand(time, batch) if lens is None else op.Cast(lens, to=7)
    # The mask of the steps of each sequence up to its length.
    on = [] if lens is None else [op.Unsqueeze(op.Range(0, op.Squeeze(time, [0]), 1), [1]) < ends]
    on = [flatten_steps(cast(v, x), 1) for v in on]

    def turned(v: Value) -> Value:
        return op.ReverseSequence(v, ends, batch_axis=1, time_axis=0)

    for d, backwards in enumerate(directions):
        one = partial(direction_part, d=d, n=len(directions))
        w_d, r_d = one(w, n_gates * hidden, -1), one(r, n_gates * hidden, hidden)
        b_d, p_d = one(b, 2 * n_gates * hidden), one(p, 3 * hidden)
        wb, rb = (None, None) if b is None else split_parts(b_d, 2)
        turn = turned if backwards else lambda v: v
        read = {like(v, "s"): v for v in (op.Gemm(flatten_steps(turn(x)), w_d, wb, transB=1), *on)}
        first = [state_step(nothing if v is None else one(v, -1, hidden), x) for v in (h, c)[:n_states]]
        states = [like(v, "h") for v in first]
        s, *going = read
        new = cell(node, r_d, rb, p_d, *(next(functions) for _ in defaults))(s, *states)
        # After the end of a sequence, its states stay.
        new = [m * v + (1 - m) * old for m in going for v, old in zip(new, states, strict=True)] or new
        yield Direction(states, new, read, [v for v in (r_d, rb, p_d) if v is not None], first, turn)


def expand_recurrent(*inputs: Value | None, node: Node) -> list[Value]:
    """The outputs of a recurrent operator by a Scan: all steps (T, D, N, H) and the final states (D, N, H)."""
    x, *others = to_time_major(node, inputs)
    sequences, ends = [], []
    for way in make_directions(node, x, *others):
        states = dict(zip(way.states, way.first, strict=True))
        *last, y = scan_steps(x, states, way.new, [way.shown(way.new[0])], way.read)
        sequences.append(op.Unsqueeze(way.turn(y), [1]))
        ends.append(last)
    y, last = op.Concat(*sequences, axis=1), [stack_directions(v) for v in zip(*ends, strict=True)]
    if node.attribute("layout"):
        y, last = op.Transpose(y, perm=[2, 0, 1, 3]), [swap_first_axes(v) for v in last]
    return [y, *last]


def recurrent_vjp(*inputs, node, ys, dys):
    """Cotangents of the inputs of a recurrent operator."""
    x, *others = to_time_major(node, inputs)
    n, hidden = len(DIRECTIONS[node.attribute("direction")]), node.attribute("hidden_size")
    y, dy, dlast = ys[0], dys[0], [*dys[1:], None, None]
    if node.attribute("layout"):
        y, dy = (v if v is None else op.Transpose(v, perm=[1, 2, 0, 3]) for v in (y, dy))
        dlast = [v if v is None else swap_first_axes(v) for v in dlast]
    dfirst, ends, seeds = [], [], []
    for d, way in enumerate(make_directions(node, x, *others)):
        y_d, dy_d = (v if v is None else way.turn(op.Squeeze(split_parts(v, n, 1)[d], [1])) for v in (y, dy))
        last = [zeros_like(f) if v is None else state_step(direction_part(v, -1, hidden, d=d, n=n), x)
                for v, f in zip(dlast, way.first, strict=False)]
        first, across = direction_vjp(way, x, y_d, dy_d, last)
        dfirst.append(first)
        ends += [*list(way.read.values())[:1], *way.weights]
        seeds += across
    floats = [v for v in dict.fromkeys(inputs) if v is not None and v.is_float]
    gradients = backpropagate(ends, seeds, floats, {v for v in inputs if v is not None})
    gradient_of = dict(zip(floats, gradients, strict=True))
    cotangents = [gradient_of.pop(v, None) for v in inputs]
    for i, v in enumerate(map(stack_directions, zip(*dfirst, strict=True)), 5):
        if i < len(inputs):
            cotangents[i] = swap_first_axes(v) if node.attribute("layout") else v
    return cotangents


def direction_vjp(way, x, y, dy, last):
    """Cotangents of the initial states, the contribution of x and the weights, from the cotangents of all outputs.

    A Scan from the last step to the first carries e, the cotangents of the states. Its outputs at each step are the
    factors of the other cotangents, which are then a product over all steps.
    """
    read, e = dict(way.read), [like_cotangent(v, "e", *last, *([] if dy is None else [dy])) for v in way.states]
    s, *_ = read
    h, *cell = way.states
    hidden = h.shape[1]
    # The first state of all steps is an output of the operator. The second state, of LSTM, takes another Scan.
    read[h] = flatten_steps(op.Concat(op.Unsqueeze(way.first[0], [0]), op.Slice(y, [0], [-1], [0]), axis=0), hidden)
    for c in cell:
        read[c] = flatten_steps(scan_steps(x, {c: way.first[1]}, way.new[1:], [c], read)[1], hidden)
    total = list(e)
    if dy is not None:
        read[dh := like_cotangent(h, "dy", dy)] = flatten_steps(dy, hidden)
        total[0] = e[0] + way.shown(dh)
    gradients = grad(way.new, [*way.states, s, *way.weights], total)
    before, across = gradients[: len(e)], gradients[len(e) :]
    moving = find_dependent(across, e)
    shown = find_edge(across, moving, lambda v: v.node in moving and has_rows(v))
    outputs = scan_steps(x, dict(zip(e, last, strict=True)), before, shown, read, reverse=True)
    sequences = dict(zip(shown, map(flatten_steps, outputs[len(e) :]), strict=True))
    return outputs[: len(e)], rewrite(across, read | sequences)


for op_type in CELLS:
    vjp(op_type)(recurrent_vjp)


def split_parts(v: Value, n: int, axis: int = 0) -> tuple[Value, ...]:
    """v split into n equal parts along an axis."""
    return (v,) if n == 1 else op.Split(v, axis=axis, num_outputs=n)


def direction_part(v: Value | None, *shape: int, d: int, n: int) -> Any:
    """The part of v that belongs to direction d of n, reshaped to a known shape."""
    return v if v is None else op.Reshape(split_parts(v, n)[d], constant(shape, np.int64))


def stack_directions(v: Sequence[Value]) -> Value:
    """The values of all directions, stacked along a new first axis."""
    return op.Concat(*(op.Unsqueeze(u, [0]) for u in v), axis=0)


def swap_first_axes(v: Value) -> Value:
    """v with its first two axes swapped."""
    return op.Transpose(v, perm=[1, 0, 2])


def to_time_major(node: Node, inputs: Inputs) -> list[Any]:
    """The inputs, with x of (T, N, ...) and states of (D, N, H) whatever the layout."""
    return [swap_first_axes(v) if v is not None and node.attribute("layout") and i in (0, 5, 6) else v
            for i, v in enumerate(inputs)]


def activations(node: Node, defaults: Sequence[str], n: int) -> list[Callable[[Value], Value]]:
    """The activations of n directions; each takes as many of the alphas and betas as it has parameters."""
    names = node.attribute("activations") or [*defaults] * n
    alphas, betas = (iter(node.attribute(f"activation_{k}") or ()) for k in ("alpha", "beta"))
    # The input of a gate is clipped. The last activation of three belongs to the cell, which is no gate.
    return [activation(node, name, alphas, betas, gate=i % len(defaults) < 2) for i, name in enumerate(names)]


def activation(
    node: Node, name: str, alphas: Iterator[float], betas: Iterator[float], gate: bool
) -> Callable[[Value], Value]:
    """An activation; it clips its input first where the node says so."""
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
