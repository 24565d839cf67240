"""Dropout and LayerNorm as far as attention and recurrent layers need them."""

from __future__ import annotations

from typing import Any

from ortpartial.exceptions import GraphError
from ortpartial.graph import Arithmetic, Value, op

from ..module import Module
from ..parameter import Parameter
from ..trace import current_trace

__all__: list[str] = []


class Dropout(Module):
    """In training mode, each element is 0 with the probability p, and else divided by 1 - p."""

    def __init__(self, p: float = 0.5):
        self.p = p

    def forward(self, x: Value) -> Value:
        trace = current_trace()
        return x * trace.draw_mask(x, 1 - self.p) if trace and self.training and self.p else x


class LayerNorm(Module):
    """Normalization over the last axis: (x - mean) / √(variance + eps) · weight + bias."""

    def __init__(self, size: int, eps: float = 1e-5, *, bias: bool = True, dtype: Any = "float32"):
        self.weight = Parameter([size], 1.0, dtype=dtype)
        self.bias = Parameter([size], 0.0, dtype=dtype) if bias else None
        self.eps = eps

    def forward(self, x: Value) -> Value:
        return op.LayerNormalization(x, self.weight, self.bias, axis=-1, epsilon=self.eps)


def check_size(x: Arithmetic, axis: int, size: int | None, what: str, name: str = "x") -> None:
    """Check the size of an axis, as far as it is known."""
    n = (x.shape or ())[axis]
    if isinstance(n, int) and n != size:
        kind = f"{x.dtype}[{'x'.join(map(str, x.shape or ()))}]"
        raise GraphError(f"{name} has {n} {what}, {kind}, where {size} were expected.")
