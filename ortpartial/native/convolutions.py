"""Calls of convolutions, whose kernels have sizes at run time, and which take the place of columns and products."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Literal

import numpy as np

from .types import literal, suffix

__all__ = ["ConvolutionShape", "write_convolution"]

#: The channels, or outputs, that fill a register; and the multiplications from which on a convolution is worth a call.
_FULL, _WORTH = 16, 2**18

#: As in convolutions.c: OP_PIXELS, OP_PLACES, OP_GATHERED, OP_DEEP, OP_FEW, OP_TILES_SEEN and OP_RAISED.
_PIXELS, _GATHERED, _DEEP, _FEW, _TILES, _RAISED = 128, 4096, 576, 12, 48, 2**17


@dataclass(frozen=True)
class ConvolutionShape:
    """A convolution of images (N, G C, H, W) by kernels (G O, C, K, L) to (N, G O, P, Q), or a gradient of it.

    Parameters
    ----------
    kind : str
        ``"forward"``, ``"images"`` for the gradient by images, or ``"kernels"`` for the gradient by kernels.
    images, groups, channels, outputs : int
        N, G, C and O.
    x, k, y : tuple of int
        H and W; K and L; P and Q.
    strides, dilations, before : tuple of int
        From one place to the next, from one tap to the next, and the margin before, by axis.
    dtype : numpy.dtype
        float32 or float64.
    alpha, beta : float
        Factors of the gradient by kernels, and of its addend.
    """

    kind: Literal["forward", "images", "kernels"]
    images: int
    groups: int
    channels: int
    outputs: int
    x: tuple[int, int]
    k: tuple[int, int]
    y: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[int, int]
    dtype: np.dtype
    alpha: float = 1.0
    beta: float = 0.0

    @property
    def is_worth_a_call(self) -> bool:
        """Whether registers are full enough, and the convolution large enough, to be faster than a product."""
        columns = self.channels if self.kind == "images" else self.outputs
        depth = self.outputs if self.kind == "images" else self.channels
        work = self.images * self.groups * self.channels * self.outputs * prod(self.k) * prod(self.y)
        is_full = columns >= _FULL and (depth >= _FEW or columns >= 2 * _FULL)
        return is_full and depth * prod(self.k) >= 2 * _FULL and work >= _WORTH

    @property
    def scratch(self) -> int:
        """The elements of memory that it needs at most."""
        lanes, taps, all_places = 64 // self.dtype.itemsize, prod(self.k), self.images * prod(self.y)
        width, whole = 2 * lanes, _round_up(self.outputs, 2 * lanes)
        is_columns = self.kind != "images" and self.channels < _FEW
        x_pitch, y_pitch = _find_pitch(self.channels * (taps if is_columns else 1)), _find_pitch(self.outputs)
        if self.kind == "kernels":
            pixels = min(_GATHERED, all_places) if is_columns else self.images * prod(self.x)
            sums = (_DEEP + 16 * taps) * width
            across = (_round_up(self.channels * taps, 4) if is_columns else 16 * _round_up(self.channels, 4)) * whole
            tiles = 0 if is_columns else 16 * _TILES * (x_pitch + y_pitch)
            return pixels * x_pitch + all_places * y_pitch + tiles + across + sums
        depth, pitch = (self.outputs, y_pitch) if self.kind == "images" else (self.channels, x_pitch)
        pixels = 0 if is_columns else self.images * prod(self.y if self.kind == "images" else self.x)
        direct = depth * taps * width + _PIXELS * (width + (pitch if is_columns else 0))
        raised = max(_RAISED, 16 * depth * width) + 9 * depth * width + _TILES * (16 * pitch + 20 * width)
        return pixels * pitch + max(direct, 0 if is_columns else raised)

    def scaled(self, alpha: float, beta: float) -> ConvolutionShape:
        """With other factors."""
        return replace(self, alpha=alpha, beta=beta)


def _find_pitch(channels: int) -> int:
    """The elements from one pixel to the next, as OP_PITCH."""
    return _round_up(channels, 16) + 16


def _round_up(n: int, step: int) -> int:
    return -(-n // step) * step


def write_convolution(shape: ConvolutionShape, operands: str) -> tuple[str, list[str]]:
    """Return the name of a kernel, and the lines that call it.

    Parameters
    ----------
    shape : ConvolutionShape
        The convolution.
    operands : str
        The addresses of x, w, the bias and y, for a gradient by images of y, w, the bias and x, for a gradient by
        kernels of x, y, the addend and w; and of scratch memory.

    Returns
    -------
    name : str
        The name of the kernel.
    lines : list of str
        The call.
    """
    pairs = (shape.x, shape.k, shape.y, shape.strides, shape.dilations, shape.before)
    sizes = [str(n) for n in (shape.images, shape.groups, shape.channels, shape.outputs)]
    sizes += [f"{{{a}, {b}}}" for a, b in pairs]
    declared = f"const op_windows z = {{{', '.join(sizes)}}};"
    if shape.kind == "kernels":
        factors = ", ".join(literal(x, shape.dtype) for x in (shape.alpha, shape.beta))
        name = f"op_correlate_{suffix(shape.dtype)}"
        return name, [declared, f"{name}(z, {operands}, OP_THREADS, {factors});"]
    name = f"op_convolve_{suffix(shape.dtype)}"
    return name, [declared, f"{name}(z, {int(shape.kind == 'images')}, {operands}, OP_THREADS);"]
