"""Operators of com.microsoft for residual streams side by side and gates of experts, read as what they compute.

onnxruntime 1.32.0 has them: hyper-connections (https://arxiv.org/abs/2409.19606), the gate of Engram, and the router of
DeepSeek-V3 (https://arxiv.org/abs/2412.19437).
"""

from __future__ import annotations

import numpy as np

from ortpartial.graph import Value, cast, constant, op

from .gpu_operators import reads_as
from .linear_attention import widen


def part(x: Value, branches: int) -> Value:
    """x of (..., C · H) as (..., C, H); without a number of branches, it is so already."""
    return op.Reshape(x, [*[0] * (x.rank - 1), branches, -1]) if branches else x


def join(y: Value, x: Value) -> Value:
    """y of (..., C, H) in the shape and the dtype of x."""
    return cast(op.Reshape(y, [*[0] * (x.rank - 1), -1]) if y.rank > x.rank else y, x)


def normalize(x: Value, epsilon: float) -> Value:
    """x / √(mean x² + ε) along the last axis."""
    wide = widen(x)
    return wide / op.Sqrt(op.ReduceMean(wide * wide, [-1]) + epsilon)


def spread(gates: Value, x: Value) -> Value:
    """Gates of (..., C), (..., C, 1), (..., C, H) or (..., C · H) beside x of (..., C, H)."""
    if gates.rank == x.rank:
        return gates
    return op.Reshape(gates, op.Concat(op.Shape(x, end=x.rank - 1), [-1], axis=0)).stated([None] * x.rank)


@reads_as("BranchwiseRMSNorm")
def _(x, scale=None, *, num_branches=0, epsilon=1e-5):
    parts = part(x, num_branches)
    y = normalize(parts, epsilon)
    if scale is not None and scale.rank == 1:
        scale = op.Reshape(scale, op.Concat([-1], op.Shape(parts, start=-1), axis=0)).stated([None] * 2)
    return join(y if scale is None else y * widen(scale), x)


@reads_as("HyperConnectionPreMix")
def _(x, gates, *, reduction_scale=1.0, num_branches=0):
    parts = part(x, num_branches)
    y = op.ReduceSum(widen(parts) * widen(spread(gates, parts)), [-2], keepdims=0)
    return cast(reduction_scale * y, x)


@reads_as("HyperConnectionPostMix")
def _(x, block, gates, mix=None, *, num_branches=0):
    parts = widen(part(x, num_branches))
    y = widen(spread(gates, parts)) * op.Unsqueeze(widen(block), [-2])
    if mix is not None:
        order = [*range(mix.rank - 2), mix.rank - 1, mix.rank - 2]
        parts = op.Transpose(widen(mix), perm=order) @ parts
    return join(parts + y, x)


@reads_as("EngramGate")
def _(key, query, value, key_scale, query_scale, scale=None, *, epsilon=1e-5):
    k, q = (normalize(x, epsilon) * widen(s) for x, s in ((key, key_scale), (query, query_scale)))
    dot = op.ReduceSum(k * q, [-1]) / op.Sqrt(cast(op.Shape(key, start=-1), k))
    gate = op.Sigmoid(op.Sign(dot) * op.Sqrt(op.Max(op.Abs(dot), 1e-6)))
    y = gate * op.Unsqueeze(widen(value), [2])
    return cast(y, key), None if scale is None else cast(normalize(y, epsilon) * widen(scale), key)


@reads_as("MoEGroupRouter")
def _(logits, bias, projection=None, *, top_k, n_group=1, topk_group=1, group_topk=2, router_sentinel=-1e4):
    if projection is not None:
        return None
    s = op.Sigmoid(widen(op.Reshape(logits, op.Concat([-1], op.Shape(logits, start=-1), axis=0)).stated([None] * 2)))
    scores = s + bias
    held = scores
    if n_group > 1:
        groups = op.Reshape(scores, [0, n_group, -1])
        best, _ = op.TopK(groups, op.Min(op.Shape(groups, start=-1), group_topk))
        is_held = op.Unsqueeze(choose(op.ReduceSum(best, [-1], keepdims=0), topk_group), [-1])
        held = op.Reshape(op.Where(is_held, groups, -np.inf), op.Shape(scores))
    probabilities = op.Where(choose(held, top_k), op.Log(op.Max(s, 1e-20)), router_sentinel)
    return cast(probabilities.stated(logits.shape if logits.rank == 2 else [None] * 2), logits), scores, s


def choose(x: Value, n: int) -> Value:
    """Whether a number is one of the n largest of its row."""
    _, places = op.TopK(x, [n])
    none = op.Expand(constant(np.float32(0)), op.Shape(x))
    ones = op.Expand(constant(np.float32(1)), op.Shape(places))
    return op.ScatterElements(none, places, ones, axis=-1) > 0
