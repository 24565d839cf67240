"""Gradients of quantization: of dequantization by its scale, and straight through rounding."""

from ortpartial.graph import cast, stop_gradient
from ortpartial.model import dequantize, to_real

from ..grad import composed
from ..registry import vjp


@vjp("StraightThrough", domain="ortpartial")
def _(y, x, *, dy):
    return None, cast(dy, x)


@composed("DequantizeLinear")
def _(x, scale, zero=None, *, y, axis, block_size):
    x, zero = (v if v is None else stop_gradient(to_real(v)) for v in (x, zero))
    return cast(dequantize(x, to_real(scale), zero, axis, block_size), y)
