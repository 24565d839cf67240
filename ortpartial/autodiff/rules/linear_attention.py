"""Gradients of linear attention in com.microsoft: the recurrence over tokens, the convolution before it, its gates.

The fused nodes remain in the forward pass. The gradient goes back through the recurrence token by token, by a Scan.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, TypeProto, helper
from onnx.shape_inference import InferenceContext

from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Value, cast, constant, op, reshape_like, scan
from ortpartial.model import declare_schema

from ..grad import composed
from .grouped_attention import infer_like_first
from .microsoft import refuse
from .shape import concat_sizes, sizes_of, slice_shape

DOMAIN = "com.microsoft"


# The recurrence.


def _infer_recurrence(context: InferenceContext) -> None:
    """Types: the output is like the query, the state like the past state, of float32 without a past."""
    query = context.get_input_type(0).tensor_type.elem_type
    has_state = context.get_num_inputs() > 3 and context.has_input(3)
    state = context.get_input_type(3).tensor_type.elem_type if has_state else query
    n, m = (context.get_attribute(name) for name in ("q_num_heads", "kv_num_heads"))
    sizes = [sizes_of(Value(context.get_input_type(i))) for i in range(3)]
    types = [TypeProto(tensor_type=TypeProto.Tensor(elem_type=kind)) for kind in (query, state)]
    if all(len(s) == 3 for s in sizes) and n is not None and m is not None and min(n.i, m.i) > 0:
        each = ((sizes[0][2], n.i), (sizes[2][2], m.i))
        key, value = (d // heads if isinstance(d, int) else None for d, heads in each)
        batch, tokens, _ = sizes[0]
        width = None if value is None else max(n.i, m.i) * value
        types = [helper.make_tensor_type_proto(query, [batch, tokens, width]),
                 helper.make_tensor_type_proto(state, [batch, m.i, key, value])]
    for i, kind in enumerate(types[: context.get_num_outputs()]):
        if context.has_output(i):
            context.set_output_type(i, kind)


declare_schema("LinearAttention", "query key value past_state? decay? beta?", "output present_state",
               _infer_recurrence, q_num_heads=int, kv_num_heads=int, update_rule="gated_delta", scale=0.0,
               chunk_size=64, state_window=0)


@composed("LinearAttention", DOMAIN)
def _(query, key, value, state=None, decay=None, beta=None, *, node, q_num_heads, kv_num_heads, update_rule, scale,
      state_window):
    refuse("LinearAttention", {"state_window": state_window})
    n, m = q_num_heads, kv_num_heads
    size, width = (sizes_of(x)[2] for x in (query, key))
    # Heads of values may share keys as well.
    keys = width * n // size if isinstance(size, int) and isinstance(width, int) else m
    q, k, v = (split_tokens(x, heads) for x, heads in ((query, n), (key, keys), (value, m)))
    decay = None if decay is None or "gated" not in update_rule else split_tokens(decay, m)
    if beta is not None:
        beta = op.Unsqueeze(op.Transpose(widen(beta), perm=[1, 0, 2]), [3])
    q = op.Reshape(q if n >= m else repeat_heads(q, m // n), [0, 0, m, max(n // m, 1), -1])
    k = op.Unsqueeze(repeat_heads(k, m // keys), [3])
    first = empty_state(k, v) if state is None else widen(state)
    last, y = recur(q * find_scale(scale, k), k, op.Unsqueeze(v, [3]), first, decay, beta, update_rule)
    # (tokens, batch, heads, queries of a head, size)
    y = op.Reshape(op.Transpose(y, perm=[1, 0, 2, 3, 4]), [0, 0, -1])
    return cast(y, query), cast(last, node.outputs[1])


def widen(x: Value) -> Value:
    """x in float32, in which the recurrence is computed."""
    return x if x.dtype in (np.float32, np.float64) else op.Cast(x, to=TensorProto.FLOAT)


def split_tokens(x: Value, heads: int) -> Value:
    """(batch, tokens, heads · size) as (tokens, batch, heads, size)."""
    return op.Reshape(op.Transpose(widen(x), perm=[1, 0, 2]), [0, 0, heads, -1])


def repeat_heads(x: Value, times: int) -> Value:
    """(tokens, batch, heads, size) with each head repeated."""
    if times == 1:
        return x
    apart = op.Tile(op.Unsqueeze(x, [3]), [1, 1, 1, times, 1])
    return op.Reshape(apart, [0, 0, sizes_of(x)[2] * times, -1])


def empty_state(k: Value, v: Value) -> Value:
    """A state of zeros, (batch, heads, size of keys, size of values)."""
    sizes = concat_sizes(slice_shape(v, 1, 3), slice_shape(k, 4, 5), slice_shape(v, 3, 4))
    return op.Expand(constant(np.zeros((1, 1, 1, 1), np.float32)), sizes).stated([None] * 4)


def find_scale(scale: float, k: Value) -> Any:
    """A factor, 1 / √(size of keys) by default."""
    return scale or 1 / op.Sqrt(op.Cast(slice_shape(k, k.rank - 1, k.rank), to=TensorProto.FLOAT))


def recur(q: Value, k: Value, v: Value, state: Value, decay: Value | None, beta: Value | None,
          rule: str) -> tuple[Value, Value]:
    """The last state and the outputs of all tokens: S = e^g S + k ⊗ β (v - kᵀ e^g S), y = q S.

    All are (tokens, batch, heads, queries of a head or 1, size), but the state of (batch, heads, keys, values), the
    decays of (tokens, batch, heads, keys or 1) and β of (tokens, batch, heads or 1, 1). The rule "linear" has neither
    decay nor β, "gated" the decay, "delta" β.
    """
    if ("gated" in rule) != (decay is not None) or ("delta" in rule and beta is None):
        raise NoGradientError(f"Linear attention by the rule {rule!r} has no gradient without its decay or beta.")
    gates = [op.Unsqueeze(op.Exp(decay), [4])] if decay is not None else []
    rates = [op.Unsqueeze(beta, [4])] if "delta" in rule and beta is not None else []

    def step(s: Value, q: Value, k: Value, v: Value, *more: Value) -> list[Value]:
        s = s * more[0] if gates else s
        s = s + op.Transpose(k, perm=[0, 1, 3, 2]) @ (more[-1] * (v - k @ s) if rates else v)
        return [s, q @ s]

    last, y = scan(step, state, [q, k, v, *gates, *rates])
    return last, y


def _infer_packed_recurrence(context: InferenceContext) -> None:
    """Types: the output has the tokens of the query and the heads of the state, which is of float32."""
    query = context.get_input_type(0).tensor_type
    sizes = [Value(context.get_input_type(i)).shape if i < context.get_num_inputs() and context.has_input(i) else None
             for i in (0, 6)]
    types = [TypeProto(tensor_type=TypeProto.Tensor(elem_type=kind)) for kind in (query.elem_type, TensorProto.FLOAT)]
    if sizes[0] is not None and sizes[1] is not None and len(sizes[1]) == 4:
        tokens = sizes[0][:1] if len(sizes[0]) == 2 else sizes[0][:-2]
        types = [helper.make_tensor_type_proto(query.elem_type, [*tokens, *sizes[1][1:3]]),
                 helper.make_tensor_type_proto(TensorProto.FLOAT, sizes[1])]
    for i, kind in enumerate([*types, TypeProto()][: context.get_num_outputs()]):
        if context.has_output(i):
            context.set_output_type(i, kind)


declare_schema("GatedDeltaNet", "query key? value? cu_seqlens? decay? beta? initial_state? a_log? dt_bias? "
               "capture_count? state_update_active?", "output final_state?", _infer_packed_recurrence,
               update_rule="gated_delta", scale=0.0, gate_activation="none", beta_activation="none", qk_l2_norm=0,
               gate_lower_bound=-5.0, chunk_size=64, state_update_capacity=0)


@composed("GatedDeltaNet", DOMAIN)
def _(query, key=None, value=None, lengths=None, decay=None, beta=None, state=None, a_log=None, bias=None, *, y,
      update_rule, scale, gate_activation, beta_activation, qk_l2_norm, gate_lower_bound):
    refuse("GatedDeltaNet", {"rows of several lengths (cu_seqlens)": lengths is not None,
                             "a state that begins at zero": state is None})
    batch, heads, values, keys = sizes_of(state)
    shared = heads if key is None else sizes_of(key)[-2]
    tokens = query.rank - (1 if key is None else 2)
    if key is None or value is None:
        shared = (sizes_of(query)[-1] - heads * values) // (2 * keys)
        sizes = [shared * keys, shared * keys, heads * values]
        query, key, value = op.Split(query, sizes, axis=query.rank - 1, n_outputs=3)

    def turn(x: Value, *sizes: int) -> Value:
        """The tokens of rows of equal length first: (tokens, batch, ...)."""
        shape = concat_sizes(slice_shape(state, 0, 1), constant([-1, *sizes]))
        rows = op.Reshape(widen(x), shape).stated([batch, None, *sizes])
        return op.Transpose(rows, perm=[1, 0, *range(2, rows.rank)])

    q, k, v = turn(query, shared, keys), turn(key, shared, keys), turn(value, heads, values)
    if qk_l2_norm:
        q, k = (x / op.Sqrt(op.ReduceSumSquare(x, [-1]) + 1e-6) for x in (q, k))
    q, k = (op.Unsqueeze(repeat_heads(x, heads // shared), [3]) for x in (q, k))
    decay = None if "gated" not in update_rule else turn(decay, heads, keys if decay.rank > tokens + 1 else 1)
    if decay is not None and gate_activation != "none":
        decay = activate_gate(decay, a_log, bias, gate_activation, gate_lower_bound)
    beta = None if "delta" not in update_rule else turn(beta, heads, 1)
    if beta is not None and beta_activation == "sigmoid":
        beta = op.Sigmoid(beta)
    first = op.Transpose(state, perm=[0, 1, 3, 2])
    last, found = recur(q * find_scale(scale, k), k, op.Unsqueeze(v, [3]), first, decay, beta, update_rule)
    found = op.Transpose(op.Squeeze(found, [3]), perm=[1, 0, 2, 3])
    return cast(reshape_like(found, y), y), op.Transpose(last, perm=[0, 1, 3, 2])


def activate_gate(decay: Value, a_log: Value, bias: Value, name: str, bound: float) -> Value:
    """-e^a softplus(decay + bias), or a bound times sigmoid(e^a (decay + bias))."""
    sizes = [sizes_of(decay)[2], -1]
    rate, z = op.Exp(op.Reshape(a_log, [-1, 1])), decay + op.Reshape(bias, sizes)
    return -rate * op.Softplus(z) if name in ("softplus", "qwen") else bound * op.Sigmoid(rate * z)


# Gates.


def _infer_gates(context: InferenceContext) -> None:
    """Both outputs are of the type of the first input."""
    for i in range(context.get_num_outputs()):
        if context.has_output(i):
            context.set_output_type(i, context.get_input_type(0))


declare_schema("LinearAttentionGate", "a dt_bias decay_scale b?", "decay beta?", _infer_gates)


@composed("LinearAttentionGate", DOMAIN)
def _(a, bias, scale, b=None):
    return cast(scale * op.Softplus(widen(a) + bias), a), None if b is None else op.Sigmoid(b)


declare_schema("GatedRMSNorm", "X scale gate", "Y", infer_like_first, activation="silu", epsilon=1e-5)


@composed("GatedRMSNorm", DOMAIN)
def _(x, scale, gate, *, activation, epsilon):
    wide, z = widen(x), widen(gate)
    groups = op.Reshape(wide, [*[0] * (x.rank - 1), -1, sizes_of(scale)[0]])
    normed = groups / op.Sqrt(op.ReduceMean(groups * groups, [-1]) + epsilon) * widen(scale)
    open_ = op.Sigmoid(z) if activation == "sigmoid" else z * op.Sigmoid(z)
    return cast(op.Reshape(normed, [*[0] * (x.rank - 1), -1]) * open_, x)


declare_schema("GatedAdd", "X Y gate gate_weight?", "output", infer_like_first)


@composed("GatedAdd", DOMAIN)
def _(x, y, gate, weight=None):
    refuse("GatedAdd", {"gate_weight": weight is not None})
    return x + y * gate


# The convolution.


def _infer_convolution(context: InferenceContext) -> None:
    """The output is of the type of the input, and so is the state, whose length follows from the kernel."""
    x, w = (context.get_input_type(i).tensor_type for i in range(2))
    context.set_output_type(0, context.get_input_type(0))
    if context.get_num_outputs() > 1 and context.has_output(1):
        if context.get_num_inputs() > 3 and context.has_input(3):
            context.set_output_type(1, context.get_input_type(3))
            return
        sizes, kernel = Value(TypeProto(tensor_type=x)).shape, Value(TypeProto(tensor_type=w)).shape
        kind = TypeProto(tensor_type=TypeProto.Tensor(elem_type=x.elem_type))
        if sizes is not None and kernel is not None:
            dilation, last = (context.get_attribute(n) for n in ("dilation", "channels_last"))
            axis = 1 if last is not None and last.i else len(sizes) - 1
            length = (kernel[-1] - 1) * (dilation.i if dilation else 1) if isinstance(kernel[-1], int) else None
            kind = helper.make_tensor_type_proto(x.elem_type, [*sizes[:axis], length, *sizes[axis + 1 :]])
        context.set_output_type(1, kind)


declare_schema("CausalConvWithState", "input weight bias? past_state?", "output present_state", _infer_convolution,
               ndim=1, activation="none", dilation=1, channels_last=0, state_window=0, state_update_capacity=0,
               state_channels_last=-1, state_length=0, input_channel_offset=0, input_channels=0)


@composed("CausalConvWithState", DOMAIN)
def _(x, weight, bias=None, past=None, *, ndim, activation, dilation, channels_last, state_window,
      state_update_capacity, state_length, input_channels):
    refuse("CausalConvWithState", {
        "several axes": ndim != 1, "state_window": state_window, "state_length": state_length,
        "state_update_capacity": state_update_capacity, "input_channels": input_channels})
    channels, _, kernel = sizes_of(weight)
    length = (kernel - 1) * dilation

    def turn(v: Value) -> Value:
        """(batch, channels, tokens), to and fro."""
        if not channels_last:
            return v
        return op.Transpose(op.Reshape(v, [0, 0, channels]), perm=[0, 2, 1])

    rows = turn(x)
    padded = op.Pad(rows, [0, 0, length, 0, 0, 0]) if past is None else op.Concat(turn(past), rows, axis=2)
    y = op.Conv(padded, weight, bias, group=channels, dilations=[dilation])
    if activation != "none":
        y = y * op.Sigmoid(y)
    state = op.Slice(padded, [-length], [2**31 - 1], [2]) if length else op.Slice(padded, [0], [0], [2])
    if not channels_last:
        return y, state
    y, state = (op.Transpose(v, perm=[0, 2, 1]) for v in (y, state))
    if x.rank > 3:
        y, state = (op.Reshape(v, op.Concat(constant([0, 0]), op.Shape(x, start=2), axis=0)).stated([None] * x.rank)
                    for v in (y, state))
    return y, state
