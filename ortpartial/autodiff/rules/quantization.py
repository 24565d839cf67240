"""Gradients of dequantization by its scale; what passes straight through rounding is in `ortpartial.model`."""

from ortpartial.graph import cast
from ortpartial.model import dequantize, to_real

from ..grad import composed


@composed("DequantizeLinear")
def _(x, scale, zero=None, *, y, axis, block_size):
    return cast(dequantize(to_real(x), to_real(scale), None if zero is None else to_real(zero), axis, block_size), y)
