"""Requantization of block-quantized weights: rows are dequantized, changed and quantized again in the form they had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

__all__ = ["BlockQuantization", "Requantized", "pack", "unpack"]

#: About as many numbers are float at a time, whatever the size of the weight.
_AT_ONCE = 2**18

#: Products of a step and a change below it are none.
_TINY = 1e-30


def unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """The whole numbers in rows of bytes, the first in the lowest bits.

    Parameters
    ----------
    packed : numpy.ndarray of uint8, shape (rows, bytes)
        The bytes.
    bits : int
        How many a number has: 2, 4 or 8.

    Returns
    -------
    numpy.ndarray of uint8, shape (rows, bytes * 8 / bits)

    Examples
    --------
    >>> unpack(np.array([[0x21, 0x43]], np.uint8), 4)
    array([[1, 2, 3, 4]], dtype=uint8)
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[..., None] >> shifts) & np.uint8(2**bits - 1)).reshape(len(packed), -1)


def pack(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Whole numbers as rows of bytes, the inverse of `unpack`; a last byte that is not full ends in zeros.

    Parameters
    ----------
    numbers : numpy.ndarray of uint8, shape (rows, columns)
        The numbers, below 2 ** bits.
    bits : int
        How many a number has: 2, 4 or 8.

    Returns
    -------
    numpy.ndarray of uint8, shape (rows, bytes)

    Examples
    --------
    >>> [hex(b) for b in pack(np.array([[1, 2, 3]], np.uint8), 4)[0]]
    ['0x21', '0x3']
    """
    each = 8 // bits
    full = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % each)))
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(full.reshape(len(full), -1, each) << shifts, axis=2)


@dataclass(frozen=True)
class Requantized:
    """A weight that was changed and quantized again.

    Parameters
    ----------
    packed, scales : numpy.ndarray
        The weight, in the shapes and dtypes that it had.
    zeros : numpy.ndarray or None
        Its zero points, likewise.
    error, change, size : float
        The sums of squares of the rounding errors, of the wanted change, and of the wanted weight.
    """

    packed: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    error: float
    change: float
    size: float


@dataclass(frozen=True)
class BlockQuantization:
    """How a matrix is quantized: (number - zero point) * scale, with a scale for each block of columns of a row.

    Parameters
    ----------
    packed : numpy.ndarray of uint8, shape (rows, ...)
        The numbers, the first of a byte in the lowest bits.
    scales : numpy.ndarray, shape (rows * blocks,) or (rows, blocks)
        The scales; float16, bfloat16 or float32.
    zeros : numpy.ndarray or None
        The zero points: packed as uint8, or real numbers in the dtype of the scales.
    shape : tuple of int
        Rows and columns.
    bits : int
        How many a number has: 2, 4 or 8.
    block_size : int
        How many columns a block has.
    groups : numpy.ndarray of int, shape (columns,), optional
        The block of each column, ``g_idx``; without it, blocks are neighbors.
    is_shared : bool, default=False
        Whether all rows share a scale, which grows where a change asks for it, and a zero point, which stays.
    """

    packed: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    shape: tuple[int, int]
    bits: int
    block_size: int
    groups: np.ndarray | None = None
    is_shared: bool = False
    blocks: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "blocks", -(-self.shape[1] // self.block_size))

    def dequantize(self, rows: slice = slice(None)) -> np.ndarray:
        """The matrix, or some rows of it.

        Parameters
        ----------
        rows : slice, default=all
            Which rows.

        Returns
        -------
        numpy.ndarray of float32, shape (rows, columns)
        """
        return (self._read_numbers(rows)[:, : self.shape[1]] - self._spread(self._read_zeros(rows))) * self._spread(
            self._read_scales(rows))

    def change(self, change: Callable[[np.ndarray, slice], np.ndarray]) -> Requantized:
        """Change the matrix, some rows at a time, and quantize it again.

        The scale of a block fits its former numbers, or its least and its greatest number as in onnxruntime's
        quantizer, whichever is nearer; a block that is multiplied keeps its numbers. Most changes of an adapter are
        less than half a step, and nearest numbers would be the former numbers. So some numbers of a row, nearest to the
        next step, take a step more, until the row has gone along its change as far as wanted.

        Parameters
        ----------
        change : callable
            From rows, of float32, and their slice to the changed rows.

        Returns
        -------
        Requantized
        """
        at_once = max(1, _AT_ONCE // self.shape[1])
        chunks = [slice(i, min(i + at_once, self.shape[0])) for i in range(0, self.shape[0], at_once)]
        growth = max(self._measure_growth(change, rows) for rows in chunks) if self.is_shared else None
        parts = [self._change_rows(rows, change, growth) for rows in chunks]
        packed, scales, zeros = (np.concatenate(arrays) for arrays in zip(*(p[:3] for p in parts), strict=True))
        return Requantized(packed.reshape(self.packed.shape), scales.reshape(self.scales.shape),
                           None if self.zeros is None else zeros.reshape(self.zeros.shape),
                           *np.sum([p[3] for p in parts], axis=0).tolist())

    def _measure_growth(self, change: Callable[[np.ndarray, slice], np.ndarray], rows: slice) -> float:
        """By how much the scale of all rows has to grow so that numbers of these can hold the change; at least 1."""
        zeros = self._read_zeros(rows)
        steps = change(self.dequantize(rows), rows) / self._read_scales(rows)
        return float(max(1.0, np.max(steps / (2**self.bits - 1 - zeros), initial=1.0, where=steps > 0),
                         np.max(-steps / zeros, initial=1.0, where=steps < 0)))

    def _change_rows(self, rows: slice, change: Callable[[np.ndarray, slice], np.ndarray],
                     growth: float | None) -> tuple[np.ndarray, ...]:
        """The bytes, scales and zero points of changed rows, and sums of squares of error, change and rows."""
        former = self.dequantize(rows)
        w = change(former, rows).astype(np.float32, copy=False)
        if growth is None:
            scales, zeros = self._choose_scales(w, former, rows)
        else:
            scales, zeros = self._store(self._read_scales(rows) * growth), self._read_zeros(rows)
        scale, zero = self._spread(scales), self._spread(zeros)
        numbers = self._follow(self._round(w, scale, zero), w, w - former, scale, zero)
        squares = [np.square(a, dtype=np.float64).sum() for a in ((numbers - zero) * scale - w, w - former, w)]
        codes = self._read_numbers(rows)  # The padding of the last block stays as it is.
        codes[:, : self.shape[1]] = numbers
        return pack(codes, self.bits), scales.astype(self.scales.dtype), self._write_zeros(zeros), np.array(squares)

    def _choose_scales(self, w: np.ndarray, former: np.ndarray, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Scales and zero points by which the nearest numbers are nearer: of the former numbers, or of the range."""
        zeros = self._read_zeros(rows)
        scales = self._fit_numbers(w, former, self._read_scales(rows))
        wide_scales, wide_zeros = self._fit_range(w, zeros)
        exact = 1e-10 * self._reduce(np.add, np.square(w))
        is_wide = self._measure(w, wide_scales, wide_zeros) + exact < self._measure(w, scales, zeros)
        return np.where(is_wide, wide_scales, scales), np.where(is_wide, wide_zeros, zeros)

    def _measure(self, w: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> np.ndarray:
        """The sum of the squared rounding errors of each block."""
        scale, zero = self._spread(scales), self._spread(zeros)
        return self._reduce(np.add, np.square((self._round(w, scale, zero) - zero) * scale - w))

    def _round(self, w: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        """The nearest numbers, as floats."""
        steps = np.divide(w, scale, out=np.zeros_like(w), where=scale != 0)
        return np.clip(np.rint(steps + zero), 0, 2**self.bits - 1)

    def _follow(self, numbers: np.ndarray, w: np.ndarray, change: np.ndarray, scale: np.ndarray,
                zero: np.ndarray) -> np.ndarray:
        """Numbers of which some are a step further, so that each row follows its change as far as wanted."""
        error = (numbers - zero) * scale - w
        lack = -(error * change).sum(axis=1, keepdims=True)
        further = numbers + np.sign(change) * np.sign(scale) * np.sign(lack)
        can_go = (further != numbers) & (further >= 0) & (further <= 2**self.bits - 1)
        gain = np.where(can_go, np.abs(scale * change), 0)
        cost = np.square((further - zero) * scale - w) - np.square(error)
        price = np.divide(cost, gain, out=np.full_like(cost, np.inf), where=gain > _TINY)
        order = np.argsort(price, axis=1)
        gained = np.take_along_axis(gain, order, axis=1)
        is_taken = np.cumsum(gained, axis=1) - gained / 2 < np.abs(lack)
        goes = np.zeros_like(can_go)
        np.put_along_axis(goes, order, is_taken, axis=1)
        return np.where(goes & can_go, further, numbers)

    def _read_numbers(self, rows: slice) -> np.ndarray:
        return unpack(self.packed.reshape(self.shape[0], -1)[rows], self.bits)

    def _read_scales(self, rows: slice) -> np.ndarray:
        return self.scales.reshape(self.shape[0], -1)[rows].astype(np.float32)

    def _read_zeros(self, rows: slice) -> np.ndarray:
        """The zero points of rows as real numbers: the middle where there are none."""
        if self.zeros is None:
            return np.full((len(range(*rows.indices(self.shape[0]))), self.blocks), 2.0 ** (self.bits - 1), np.float32)
        zeros = self.zeros.reshape(self.shape[0], -1)[rows]
        if zeros.dtype == np.uint8:
            zeros = unpack(zeros, self.bits)[:, : self.blocks]
        return zeros.astype(np.float32)

    def _write_zeros(self, zeros: np.ndarray) -> np.ndarray:
        """Zero points in the form of the file's."""
        if self.zeros is None or self.zeros.dtype != np.uint8:
            return zeros.astype(self.scales.dtype)
        return pack(zeros.astype(np.uint8), self.bits)

    def _spread(self, of_blocks: np.ndarray) -> np.ndarray:
        """Numbers of blocks, repeated for their columns."""
        if self.groups is not None:
            return of_blocks[:, self.groups]
        return np.repeat(of_blocks, self.block_size, axis=1)[:, : self.shape[1]]

    def _reduce(self, ufunc: np.ufunc, w: np.ndarray) -> np.ndarray:
        """A ufunc over the columns of each block, 0 where it has none."""
        if self.groups is None:
            return ufunc.reduceat(w, np.arange(0, self.shape[1], self.block_size), axis=1)
        groups, starts = np.unique(np.sort(self.groups), return_index=True)
        result = np.zeros((len(w), self.blocks), w.dtype)
        result[:, groups] = ufunc.reduceat(w[:, np.argsort(self.groups, kind="stable")], starts, axis=1)
        return result

    def _fit_numbers(self, w: np.ndarray, former: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """The scales by which the former numbers are nearest to the matrix."""
        along, size = self._reduce(np.add, w * former), self._reduce(np.add, former * former)
        return self._store(scales * np.divide(along, size, out=np.ones_like(size), where=size > 0))

    @cached_property
    def _is_positive(self) -> bool:
        """Whether all scales are positive, as some quantizers have them."""
        return bool((self.scales > 0).all())

    def _store(self, scales: np.ndarray) -> np.ndarray:
        """Scales as the file can have them, in float32."""
        return scales.astype(self.scales.dtype).astype(np.float32)

    def _fit_range(self, w: np.ndarray, zeros: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scales, and zero points if the file has some, by the range of each block, as onnxruntime's quantizer does."""
        low, high = self._reduce(np.minimum, w), self._reduce(np.maximum, w)
        highest = 2**self.bits - 1
        if self.zeros is None and self._is_positive:
            scales = np.maximum(high, -low) / np.float32(2 ** (self.bits - 1) - 1)
        elif self.zeros is None:  # The number of the largest size becomes the lowest, which has no opposite.
            scales = np.where(high > -low, high, low) / np.float32(-(2 ** (self.bits - 1)))
        else:
            low, high = np.minimum(low, 0), np.maximum(high, 0)
            scales = (high - low) / np.float32(highest)
            zeros = np.divide(-low, scales, out=np.zeros_like(low), where=scales > 0)
            if self.zeros.dtype == np.uint8:
                zeros = np.clip(np.rint(zeros), 0, highest)
        return self._store(scales), zeros
