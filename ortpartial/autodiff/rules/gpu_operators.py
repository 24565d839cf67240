"""Operators of com.microsoft that onnxruntime computes on GPUs alone, read as expressions in standard operators.

`onnxruntime.transformers` writes them into models that are optimized for a GPU: so they run, and train, anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from ortpartial.annotations import Attributes, Inputs
from ortpartial.graph import Value, cast, constant, op
from ortpartial.model import register_expansion

from .shape import sizes_of

Formula = Callable[..., Any]


def reads_as(name: str) -> Callable[[Formula], Formula]:
    """Let an operator be read as a formula of its inputs and, by keywords, of its attributes."""

    def register(formula: Formula) -> Formula:
        def expand(inputs: Inputs, attributes: Attributes, _: Sequence[bool]) -> list[Value | None]:
            ys = formula(*inputs, **attributes)
            return [ys] if isinstance(ys, Value) else list(ys)

        register_expansion(name, "com.microsoft", expand)
        return formula

    return register


@reads_as("BiasAdd")
def _(x, bias, skip):
    return x + bias + skip


@reads_as("BiasSplitGelu")
def _(x, bias):
    a, b = op.Split(x + bias, axis=-1, num_outputs=2, n_outputs=2)
    return a * op.Gelu(b)


@reads_as("GemmFastGelu")
def _(x, w, bias=None):
    y = x @ w
    return op.Gelu(y if bias is None else y + bias, approximate="tanh")


@reads_as("GemmaRotaryEmbedding")
def _(angles, q, turned_q, k, turned_k):
    cos, sin = (op.Unsqueeze(cast(f(angles), q), [1]) for f in (op.Cos, op.Sin))
    return q * cos + turned_q * sin, k * cos + turned_k * sin


@reads_as("GroupNorm")
def _(x, gamma, beta, **attributes):
    return normalize_groups(x, gamma, beta, **attributes)


@reads_as("SkipGroupNorm")
def _(x, gamma, beta, skip, bias=None, *, channels_last=1, **attributes):
    if skip.rank == 2:
        skip = op.Unsqueeze(skip, [1, 2] if channels_last else [2, 3])
    total = x + skip
    if bias is not None:
        total = total + (bias if channels_last else op.Reshape(bias, [-1, 1, 1]))
    return normalize_groups(total, gamma, beta, channels_last=channels_last, **attributes), total


def normalize_groups(x: Value, gamma: Value, beta: Value, *, groups: int, activation: int = 0, channels_last: int = 1,
                     epsilon: float = 1e-5) -> Value:
    """Groups of channels, each with mean 0 and variance 1, times γ plus β; then perhaps x σ(x)."""
    wide = cast(op.Transpose(x, perm=[0, 3, 1, 2]) if channels_last else x, gamma)
    y = op.GroupNormalization(wide, gamma, beta, num_groups=groups, epsilon=epsilon)
    y = cast(y * op.Sigmoid(y) if activation else y, x)
    return op.Transpose(y, perm=[0, 2, 3, 1]) if channels_last else y


@reads_as("NhwcConv")
def _(x, w, b=None, **attributes):
    x, w = (op.Transpose(v, perm=[0, 3, 1, 2]) for v in (x, w))
    return op.Transpose(op.Conv(x, w, b, **attributes), perm=[0, 2, 3, 1])


@reads_as("RelativePositionBias")
def _(table, queries, keys, *, max_distance, is_bidirectional=0):
    # onnxruntime reads the table by columns, and its shape as (buckets, heads).
    buckets, heads = sizes_of(table)
    table = op.Reshape(table, [heads, buckets])
    ahead = op.Unsqueeze(count(keys), [0]) - op.Unsqueeze(count(queries), [1])
    each = buckets // 2 if is_bidirectional else buckets
    first = op.Cast(ahead > 0, to=TensorProto.INT64) * each if is_bidirectional else 0 * ahead
    distance = op.Abs(ahead) if is_bidirectional else op.Max(-ahead, 0)
    exact = each // 2
    # Farther keys share buckets, the longer the farther they are.
    ratio = op.Log(op.Cast(op.Max(distance, 1), to=TensorProto.FLOAT) / exact) / math.log(max_distance / exact)
    far = op.Min(exact + op.Cast(ratio * (each - exact), to=TensorProto.INT64), each - 1)
    return op.Unsqueeze(op.Gather(table, first + op.Where(distance < exact, distance, far), axis=1), [0])


def count(n: Value) -> Value:
    """The numbers below n, which has a single element."""
    if n.array is not None:
        return constant(np.arange(int(n.array.reshape(-1)[0])))
    return op.Range(0, op.Cast(op.Reshape(n, constant([], np.int64)), to=TensorProto.INT64), 1)
