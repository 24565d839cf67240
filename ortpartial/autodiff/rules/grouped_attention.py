"""Gradients of attention of language models in com.microsoft: GroupQueryAttention and RotaryEmbedding.

The fused node remains in the forward pass. The backward pass reads the keys and values that the node returns, and
computes the probabilities again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from onnx import TensorProto, TypeProto, helper
from onnx.shape_inference import InferenceContext

from ortpartial.annotations import Attributes, Inputs
from ortpartial.exceptions import NoGradientError
from ortpartial.graph import Node, Operators, Value, cast, constant, defaults, op, schema_of, zeros_like
from ortpartial.model import declare_schema, register_expansion

from ..grad import backpropagate
from ..masks import gate
from ..registry import vjp
from .linear import swap_last_axes
from .microsoft import normalize_by_squares, refuse
from .shape import concat_sizes, slice_shape

DOMAIN = "com.microsoft"

ms = Operators(DOMAIN)


# Rotary embedding.


def infer_like_first(context: InferenceContext) -> None:
    """The output is of the type of the first input."""
    context.set_output_type(0, context.get_input_type(0))


declare_schema("RotaryEmbedding", "input position_ids cos_cache sin_cache", "output", infer_like_first, num_heads=0,
               rotary_embedding_dim=0, interleaved=0, is_packed_batching=0, scale=1.0)


declare_schema("MRotaryEmbedding", "input position_ids cos_cache sin_cache", "output", infer_like_first,
               mrope_section=list, mrope_layout=0, num_heads=0, rotary_embedding_dim=0, interleaved=0,
               is_packed_batching=0, scale=1.0)


@vjp("RotaryEmbedding", DOMAIN)
@vjp("MRotaryEmbedding", DOMAIN)
def _(x, places, cos, sin, *, dy, wanted, node):
    name = node.key[1]
    if any(wanted[2:]):
        raise NoGradientError(f"com.microsoft.{name} has no gradient by its tables of angles; leave them out of "
                              f"weights_to_train.")
    # A rotation back.
    return getattr(ms, name)(dy, places, cos, -sin, **node.attributes)


# Attention.


def _infer_attention(context: InferenceContext) -> None:
    """Types: keys and values as heads, behind the heads of the past, in the type of the cache."""
    query = context.get_input_type(0).tensor_type
    past = context.get_input_type(3).tensor_type if context.get_num_inputs() > 3 and context.has_input(3) else query
    n, m = (context.get_attribute(name) for name in ("num_heads", "kv_num_heads"))
    kinds = [query.elem_type, past.elem_type, past.elem_type]
    types = [TypeProto(tensor_type=TypeProto.Tensor(elem_type=kind)) for kind in kinds]
    sizes = Value(TypeProto(tensor_type=query)).shape
    if sizes is not None and len(sizes) == 3 and n is not None and m is not None and n.i > 0:
        is_packed = context.get_num_inputs() < 2 or not context.has_input(1)
        heads = n.i + 2 * m.i if is_packed else n.i
        width = sizes[2] // heads if isinstance(sizes[2], int) else None
        stored = width if width is None or past.elem_type != TensorProto.UINT8 else width // 2
        shapes = [[*sizes[:2], None if width is None else n.i * width], *[[sizes[0], m.i, None, stored]] * 2]
        types = [helper.make_tensor_type_proto(*pair) for pair in zip(kinds, shapes, strict=True)]
    for i, kind in enumerate(types[: context.get_num_outputs()]):
        if context.has_output(i):
            context.set_output_type(i, kind)


declare_schema("GroupQueryAttention", "query key? value? past_key? past_value? seqlens_k total_sequence_length "
               "cos_cache? sin_cache? position_ids? attention_bias? head_sink? k_scale? v_scale? q_norm_weight? "
               "k_norm_weight? query_seqlens?", "output present_key? present_value?",
               _infer_attention, num_heads=int, kv_num_heads=int, scale=float, softcap=0.0, local_window_size=-1,
               do_rotary=0, rotary_interleaved=0, smooth_softmax=-1, sliding_window_cache=0, causal=1,
               k_quant_type="NONE", v_quant_type="NONE", kv_cache_bit_width=int, qk_norm_epsilon=1e-6,
               q_norm_epsilon=float, k_norm_epsilon=float)


@vjp("GroupQueryAttention", DOMAIN)
def _(query, key=None, value=None, past_key=None, past_value=None, last=None, total=None, cos=None, sin=None,
      position_ids=None, bias=None, sink=None, k_scale=None, v_scale=None, q_norm=None, k_norm=None, counts=None, *,
      ys, dys, wanted, node):
    refuse("GroupQueryAttention", {
        "sliding_window_cache": node.attribute("sliding_window_cache"), "trained tables of angles": any(wanted[7:9]),
        "norms of its own": q_norm is not None or k_norm is not None, "query_seqlens": counts is not None,
        "trained scales of its cache": any(wanted[12:14])})
    heads, rows = Heads(node, ys[1]), Rows(query, last, total, past_key)
    # From these back to the inputs, the cotangents follow from the rules of the operators that compute them.
    q, k, v = heads.split(query, key, value)
    q, k = (heads.turn(x, n, rows.turns(position_ids), cos, sin)
            for x, n in ((q, heads.shared * heads.each), (k, heads.shared)))
    dy = zeros_like(ys[0]) if dys[0] is None else dys[0]
    keys, values = (heads.read(x, scale, q) for x, scale in zip(ys[1:], (k_scale, v_scale), strict=True))
    dq, dk, dv, d_bias, d_sink = attend_vjp(heads, rows, q, keys, values, dy, bias, sink)
    dk, dv = (d if other is None else d + other for d, other in zip((dk, dv), dys[1:], strict=True))
    d_past = [rows.take_old(d) if w else None for d, w in zip((dk, dv), [*wanted, False, False][3:5], strict=True)]
    inputs = [query, key, value]
    wrt = [x for x in dict.fromkeys(inputs) if x is not None]
    seeds = [heads.ungroup(dq, q), rows.take_new(dk, k), rows.take_new(dv, v)]
    ds = dict(zip(wrt, backpropagate([q, k, v], seeds, wrt, set(wrt)), strict=True))
    return *(None if x is None else ds.pop(x, None) for x in inputs), *d_past, *[None] * 5, d_bias, d_sink


def read_attention(inputs: Inputs, attributes: Attributes, wanted: Sequence[bool]) -> list[Any] | None:
    """GroupQueryAttention with a cache of a window, or with norms of its own, which no processor computes."""
    windowed = attributes["sliding_window_cache"]
    inputs = [*inputs, *[None] * (17 - len(inputs))]
    q_norm, k_norm = inputs[14:16]
    bias, counts = inputs[10], inputs[16]
    is_plain = not windowed and q_norm is None and k_norm is None
    if is_plain or (windowed and (bias is not None or counts is not None)):
        return None  # Of a bias or query_seqlens beside a window there is no gradient.
    usual = defaults(schema_of("GroupQueryAttention", DOMAIN, 1))
    more = {n: a for n, a in attributes.items()
            if a != usual.get(n) and n != "sliding_window_cache" and not n.endswith("epsilon")}
    if q_norm is not None and k_norm is not None:
        inputs[:3], inputs[14:16] = norm_heads(inputs, attributes), [None, None]
    rows = Rows(inputs[0], inputs[5], inputs[6], inputs[3])
    if not windowed or not rows.has_past:
        return list(ms.GroupQueryAttention(*inputs, n_outputs=3, **more))[: len(wanted)]
    cache = WindowCache(rows, attributes["local_window_size"])
    inputs[3:5] = [op.Slice(x, [0], cache.held, [2]) for x in inputs[3:5]]
    inputs[5], inputs[6] = cache.last, cache.total
    if attributes["do_rotary"] and inputs[9] is None:
        inputs[9] = rows.places
    y, *present = ms.GroupQueryAttention(*inputs, n_outputs=3, **more)
    return [y, *map(cache.keep, present)][: len(wanted)]


register_expansion("GroupQueryAttention", DOMAIN, read_attention)


def norm_heads(inputs: Inputs, attributes: Attributes) -> list[Value]:
    """Queries and keys, each head divided by its root mean square, and values."""
    query, key, value, *_ = inputs
    n, m = attributes["num_heads"], attributes["kv_num_heads"]
    size = inputs[14].shape[0]
    if key is None:
        query, key, value = op.Split(query, [n * size, m * size, m * size], axis=2, n_outputs=3)
    normed = []
    for x, heads, scale, name in ((query, n, inputs[14], "q"), (key, m, inputs[15], "k")):
        epsilon = attributes.get(f"{name}_norm_epsilon", attributes["qk_norm_epsilon"])
        y, _ = normalize_by_squares(op.Reshape(x, [0, 0, heads, size]), scale, epsilon)
        normed.append(op.Reshape(y, [0, 0, heads * size]).stated(x.shape))
    return [*normed, value]


class WindowCache:
    """A cache of a window: keys are counted from the first that it holds.

    As onnxruntime 1.32.0 says: of T keys of a row, a cache of C for a window of W holds the last T - G ⌈(T - C) / G⌉,
    where G = C - W + 1, and all where T ≤ C.

    Parameters
    ----------
    rows : Rows
        The rows of a batch, counted from their first key, which the cache may not hold.
    window : int
        The size of the window.
    """

    def __init__(self, rows: Rows, window: int) -> None:
        self.rows, self.size = rows, rows.past
        self.step = op.Max(self.size - window + 1, 1)
        dropped = self.drop(rows.first)
        self.last = op.Cast(op.Squeeze(rows.last - dropped, [1]), to=TensorProto.INT32)
        longest = op.Max(op.ReduceMax(rows.last - dropped, keepdims=0) + 1, rows.queries)
        self.total = op.Cast(op.Squeeze(longest, [0]), to=TensorProto.INT32)
        self.held = longest - rows.queries  # how many rows of the past there are

    def drop(self, keys: Value) -> Value:
        """How many of so many keys the cache holds no more."""
        return op.Div(op.Max(keys - self.size, 0) + self.step - 1, self.step) * self.step

    def keep(self, x: Value) -> Value:
        """The keys or values that the cache holds, from its first row on; the rows behind them are undefined."""
        first = self.drop(self.rows.last + 1) - self.drop(self.rows.first)
        rows = op.Min(first + count(self.size), slice_shape(x, 2, 3) - 1)
        kept = op.GatherND(op.Transpose(x, perm=[0, 2, 1, 3]), op.Unsqueeze(rows, [2]), batch_dims=1)
        return op.Transpose(kept, perm=[0, 2, 1, 3])


def attend_vjp(heads: Heads, rows: Rows, q: Value, k: Value, v: Value, dy: Value, bias: Value | None,
               sink: Value | None) -> tuple[Value, Value, Value, Value | None, Value | None]:
    """The cotangents of queries, and of the keys and values that the node returns, all as heads; bias and sinks."""
    q, dy = heads.group(q) * heads.factor, heads.group(dy)
    scores, slope = heads.cap(q @ swap_last_axes(k))
    if bias is not None:
        scores = scores + heads.repeat_bias(bias)
    is_hidden = rows.hide(heads, scores)
    p, missed = heads.normalize_scores(scores + is_hidden * least_number(scores), sink)
    if heads.window >= 0:  # A query behind the end of its row may see nothing, and is 0 then.
        p = p * (1 - is_hidden)
    dp = dy @ swap_last_axes(v)
    mean = op.ReduceSum(p * dp, [-1])
    ds = p * (dp - mean)
    d_bias = None if bias is None else heads.split_queries(ds)
    d_sink = None if sink is None or missed is None else heads.sum_queries(-(missed * mean))
    ds = ds if slope is None else ds * slope
    return (ds @ k) * heads.factor, swap_last_axes(ds) @ q, swap_last_axes(p) @ dy, d_bias, d_sink


class Heads:
    """Heads of queries, of which several share a head of keys and values, as (batch, shared, each times query, size).

    Parameters
    ----------
    node : Node
        The node.
    k : Value
        The keys that it returns.
    """

    def __init__(self, node: Node, k: Value) -> None:
        self.node = node
        self.shared = node.attribute("kv_num_heads")
        self.each = node.attribute("num_heads") // self.shared
        size = None if k.shape is None else k.shape[-1]
        if not isinstance(size, int):
            raise NoGradientError(f"{node!r} has no gradient: the size of its heads is not known.")
        self.size = size * (2 if k.type.tensor_type.elem_type == TensorProto.UINT8 else 1)
        self.factor = node.attribute("scale") or self.size**-0.5
        self.window = node.attribute("local_window_size")
        self.is_causal = node.attribute("causal")

    def split(self, query: Value, key: Value | None, value: Value | None) -> Sequence[Value]:
        """Queries, keys and values, which may be packed."""
        if key is not None and value is not None:
            return query, key, value
        widths = [n * self.size for n in (self.shared * self.each, self.shared, self.shared)]
        return op.Split(query, widths, axis=2, n_outputs=3)

    def read(self, x: Value, scale: Value | None, like: Value) -> Value:
        """Keys or values from the cache, where they may be rounded to numbers of 4 or 8 bits."""
        if x.is_float or scale is None:
            return x
        if x.type.tensor_type.elem_type == TensorProto.UINT8:
            parts = [op.BitwiseAnd(x, np.uint8(15)), op.BitShift(x, np.uint8(4), direction="RIGHT")]
            pairs = op.Concat(*(op.Unsqueeze(part, [4]) for part in parts), axis=4)
            x = op.Cast(op.Reshape(pairs, [0, 0, 0, -1]), to=TensorProto.INT32) - 8
        by_channel = scale if scale.rank < 4 else op.Reshape(scale, [1, self.shared, 1, self.size])
        return cast(x, like) * cast(by_channel, like)

    def turn(self, x: Value, heads: int, places: Value, cos: Value | None, sin: Value | None) -> Value:
        """Some heads turned by the angles of their places."""
        if not self.node.attribute("do_rotary"):
            return x
        table: Any = cos
        return ms.RotaryEmbedding(x, places, cos, sin, num_heads=heads, rotary_embedding_dim=2 * table.shape[1],
                                  interleaved=self.node.attribute("rotary_interleaved"))

    def group(self, x: Value) -> Value:
        """Queries with the heads that share keys in a row."""
        if self.each == 1:
            return op.Transpose(op.Reshape(x, [0, 0, self.shared, self.size]), perm=[0, 2, 1, 3])
        apart = op.Reshape(x, [0, 0, self.shared, self.each, self.size])
        return op.Reshape(op.Transpose(apart, perm=[0, 2, 3, 1, 4]), [0, self.shared, -1, self.size])

    def ungroup(self, d: Value, x: Value) -> Value:
        """The inverse of `group`, of the shape of x."""
        width = self.shared * self.each * self.size
        if self.each == 1:
            return op.Reshape(op.Transpose(d, perm=[0, 2, 1, 3]), [0, 0, width]).stated(x.shape)
        apart = op.Reshape(d, [0, self.shared, self.each, -1, self.size])
        return op.Reshape(op.Transpose(apart, perm=[0, 3, 1, 2, 4]), [0, 0, width]).stated(x.shape)

    def cap(self, scores: Value) -> tuple[Value, Value | None]:
        """Scores within a bound, and their slope."""
        bound = self.node.attribute("softcap")
        if not bound:
            return scores, None
        t = op.Tanh(scores / bound)
        return bound * t, 1 - t * t

    def repeat_bias(self, bias: Value) -> Value:
        """A bias, which may be the same for all heads, beside the scores."""
        if bias.shape is not None and bias.shape[1] == 1:
            return op.Tile(bias, [1, 1, self.each, 1])
        queries, keys = slice_shape(bias, 2, 3), slice_shape(bias, 3, 4)
        return op.Reshape(bias, concat_sizes(slice_shape(bias, 0, 1), constant([self.shared]), self.each * queries,
                                             keys), allowzero=1).stated([None] * 4)

    def split_queries(self, d: Value) -> Value:
        """The cotangent of scores as (batch, heads, queries, keys)."""
        queries = op.Div(op.Shape(d, start=2, end=3), self.each)
        return op.Reshape(d, op.Concat(op.Shape(d, end=1), [self.shared * self.each], queries, op.Shape(d, start=3),
                                       axis=0), allowzero=1).stated([None] * 4)

    def sum_queries(self, d: Value) -> Value:
        """A number of each query, summed for each head."""
        apart = op.Reshape(d, [0, self.shared, self.each, -1])
        return op.Reshape(op.ReduceSum(apart, [0, 3], keepdims=0), [-1])

    def normalize_scores(self, scores: Value, sink: Value | None) -> tuple[Value, Value | None]:
        """Probabilities, and the share of a sink, if any."""
        p = op.Softmax(scores, axis=-1)
        if sink is None and self.node.attribute("smooth_softmax") != 1:
            return p, None
        total = op.ReduceLogSumExp(scores, [-1])
        if sink is not None:
            apart = op.Reshape(total, [0, self.shared, self.each, -1])
            total = op.Reshape(apart - op.Reshape(sink, [self.shared, self.each, 1]), [0, self.shared, -1, 1])
        share = op.Sigmoid(total)
        return p * share, 1 - share


class Rows:
    """The rows of a batch: the keys that each query sees, and the keys of the past.

    All that follows from lengths alone is written alike for every layer, so that it is computed once.

    Parameters
    ----------
    query : Value
        The queries, of (batch, queries, width).
    last : Value
        The place of the last key of each row.
    total : Value
        The largest number of keys of a row.
    past : Value or None
        Keys of the past.
    """

    def __init__(self, query: Value, last: Value, total: Value, past: Value | None) -> None:
        self.last = op.Reshape(op.Cast(last, to=TensorProto.INT64), [-1, 1])
        self.total = op.Reshape(op.Cast(total, to=TensorProto.INT64), [1])
        self.past = constant([0]) if past is None else slice_shape(past, 2, 3)
        self.has_past = self.past.array is None or bool(self.past.array[0])
        self.queries = slice_shape(query, 1, 2) if self.has_past else self.total

    @cached_property
    def first(self) -> Value:
        """The place of the first query of each row, (batch, 1); a prompt may be longer than its row."""
        return op.Max(self.last + 1 - self.queries, 0) if self.has_past else constant([[0]])

    @cached_property
    def places(self) -> Value:
        """The places of all queries."""
        return self.first + count(self.queries)

    def turns(self, position_ids: Value | None) -> Value:
        """The places whose angles queries and new keys have; without a past, the first of them.

        Of a prompt, onnxruntime 1.32.0 reads the first position alone, and counts from there.
        """
        if position_ids is None:
            return self.places if self.has_past else constant([0])
        first = op.Slice(op.Reshape(position_ids, [-1]), [0], [1])
        if not self.has_past:
            return first
        counted = first + op.Unsqueeze(count(self.queries), [0])
        return op.Where(op.Equal(self.queries, self.total), counted, position_ids)

    def hide(self, heads: Heads, scores: Value) -> Value:
        """1 where a query does not see a key, else 0, beside the scores of heads."""
        keys = count(op.Max(self.past, self.total) if self.has_past else self.total)
        end = op.Unsqueeze(op.Min(self.places, self.last) if heads.is_causal else self.last, [1, 3])
        hidden = keys > end
        if heads.window >= 0:
            hidden = op.Or(hidden, op.Not(keys > op.Unsqueeze(self.places, [1, 3]) - find_window(heads.window)))
        mask = cast(hidden, scores)
        return op.Tile(mask, [1, 1, heads.each, 1]) if heads.each > 1 and heads.is_causal else mask

    def take_new(self, d: Value, x: Value) -> Value:
        """The cotangents of the new keys or values, of the shape of x."""
        d = op.Transpose(d, perm=[0, 2, 1, 3])
        if self.has_past:
            d = op.GatherND(d, op.Unsqueeze(self.places, [2]), batch_dims=1)
        return op.Reshape(d, [0, 0, -1] if x.shape is None else [0, 0, x.shape[2]]).stated(x.shape)

    def take_old(self, d: Value) -> Value:
        """The cotangents of the keys or values of the past."""
        is_old = op.Unsqueeze(count(self.past) < self.first, [1, 3])
        return gate(op.Slice(d, [0], self.past, [2]), is_old)


def least_number(x: Value) -> float:
    """A number that hides scores like x from Softmax."""
    return float(np.finfo(np.float16 if x.dtype == np.float16 else np.float32).min)


def count(n: Value) -> Value:
    """The numbers below n, which is of shape (1,)."""
    if n.array is not None:
        return constant(np.arange(int(n.array[0])))
    return op.Range(0, op.Squeeze(n, [0]), 1)


def find_window(size: int) -> Value:
    """How many keys a query of a window sees, its own included.

    onnxruntime 1.19.2 counts its own beside the size of the window. The second of two queries tells: in a window of 1,
    the mean of the values that it sees is 1 or 0.5.
    """
    nothing = constant(np.zeros((1, 2, 16), np.float32))
    values = constant(np.stack([np.zeros((1, 16), np.float32), np.ones((1, 16), np.float32)], axis=1))
    y, *_ = ms.GroupQueryAttention(nothing, nothing, values, None, None, constant(np.array([1], np.int32)),
                                   constant(np.array(2, np.int32)), num_heads=1, kv_num_heads=1, local_window_size=1,
                                   n_outputs=3)
    return size + op.Cast(op.ReduceMax(y, keepdims=0) < 0.75, to=TensorProto.INT64)
