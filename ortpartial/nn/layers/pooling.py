"""Pooling: the largest element or the mean of each window of sequences, images and volumes."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

import numpy as np

from ortpartial.docstrings import document
from ortpartial.exceptions import GraphError, SettingError
from ortpartial.graph import Value, constant, op

from .convolution import LAYOUTS
from .layer import Layer
from .sizes import Sizes, check_axes, check_windows, expand_sizes

__all__ = ["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "MaxPool1d", "MaxPool2d",
           "MaxPool3d"]


class _Pool(Layer):
    """The settings of the windows, which pools share."""

    dims: ClassVar[int]

    def _set_windows(self, kernel_size: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes, ceil_mode: bool
                     ) -> None:
        """Read the settings of the windows."""
        what, n = type(self).__name__, self.dims
        self.kernel_size = expand_sizes(kernel_size, n, f"{what}: kernel_size")
        self.stride = self.kernel_size if stride is None else expand_sizes(stride, n, f"{what}: stride")
        self.padding = expand_sizes(padding, n, f"{what}: padding", 0)
        self.dilation = expand_sizes(dilation, n, f"{what}: dilation")
        self.ceil_mode = ceil_mode
        self._extents = [(k - 1) * d + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True)]
        if any(2 * p > e for p, e in zip(self.padding, self._extents, strict=True)):
            raise SettingError(f"{what}: padding is {padding!r}, and at most half of a window was expected.")

    def _resolve(self, x: Value) -> tuple[list[int], bool]:
        """The elements added before each axis and after each, and whether sizes are still rounded up.

        A pool of onnxruntime 1.19.2 with ceil_mode has windows that begin behind x, so that the rounding up at the end
        is added here where sizes are known.
        """
        check_axes(x, LAYOUTS[self.dims])
        pads = [*self.padding] * 2
        check_windows(x, self._extents, pads)
        sizes = (x.shape or ())[2:]
        if not self.ceil_mode:
            return pads, False
        if not all(isinstance(n, int) for n in sizes):
            windows = zip(self._extents, self.stride, self.padding, strict=True)
            if any(stride + padding > extent for extent, stride, padding in windows):  # One may begin behind x.
                raise GraphError(f"with ceil_mode, stride={self.stride} and padding={self.padding} need spatial sizes "
                                 f"that are known, and x is {x.type_name}.")
            return pads, True
        ends = [_last_end(int(n or 0), *rest) for n, *rest in zip(sizes, self._extents, self.stride, self.padding,
                                                                  strict=True)]
        if any(end >= k for end, k in zip(ends, self.kernel_size, strict=True)):  # which onnxruntime refuses
            return pads, True
        return [*self.padding, *ends], False


def _last_end(n: int, extent: int, stride: int, padding: int) -> int:
    """The elements behind an axis of the size n that windows see if sizes are rounded up; none begins there."""
    count = -(-(n + 2 * padding - extent) // stride) + 1
    if (count - 1) * stride >= n + padding:
        count -= 1
    return max(padding, (count - 1) * stride + extent - n - padding)


class _MaxPool(_Pool):
    """The largest elements."""

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
                 return_indices: bool = False, ceil_mode: bool = False):
        self._set_windows(kernel_size, stride, padding, dilation, ceil_mode)
        self.return_indices = return_indices

    def forward(self, x: Value) -> Any:
        pads, rounded_up = self._resolve(x)
        y = op.MaxPool(x, kernel_shape=self.kernel_size, strides=self.stride, pads=pads, dilations=self.dilation,
                       ceil_mode=int(rounded_up))
        if not self.return_indices:
            return y
        assert y.node is not None
        sizes = (x.shape or ())[2:]
        size = prod(sizes) if all(isinstance(n, int) for n in sizes) else op.ReduceProd(  # type: ignore[arg-type]
            op.Shape(x, start=2), keepdims=0)
        return y, op.Mod(y.node.outputs[1], size)


class MaxPool1d(_MaxPool):
    """The largest element of each window of sequences (N, C, L); see `MaxPool2d` for the parameters.

    References
    ----------
    ``torch.nn.MaxPool1d``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.MaxPool1d(2).compile(nn.placeholder(["N", 1, 4]))(np.float32([[[1, 3, 2, 0]]])).tolist()
    [[[3.0, 2.0]]]
    """

    dims = 1


class MaxPool2d(_MaxPool):
    """The largest element of each window of images (N, C, H, W).

    Parameters
    ----------
    kernel_size : int or tuple of int
        The number of elements of a window along each spatial axis.
    stride : int or tuple of int, optional
        The distance of the windows, by default `kernel_size`.
    padding : int or tuple of int
        How many elements -∞ are added on both sides of each spatial axis.
    dilation : int or tuple of int
        The distance of the elements of a window.
    return_indices : bool
        Whether the places of the elements are returned as well: y, places. They are counted in the image of a channel.
    ceil_mode : bool
        Whether the number of windows is rounded up, so that the last may reach beyond the end.

    References
    ----------
    ``torch.nn.MaxPool2d``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.MaxPool2d(3, stride=2, padding=1).compile(nn.placeholder(["N", 8, 16, 16]))
    <MaxPool2d, 0 parameters>
    """

    dims = 2


class MaxPool3d(_MaxPool):
    """The largest element of each window of volumes (N, C, D, H, W); see `MaxPool2d` for the parameters.

    References
    ----------
    ``torch.nn.MaxPool3d``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.MaxPool3d(2).compile(nn.placeholder(["N", 1, 4, 4, 4]))(np.ones((1, 1, 4, 4, 4), np.float32)).shape
    (1, 1, 2, 2, 2)
    """

    dims = 3


class _AvgPool(_Pool):
    """The means."""

    count_include_pad: bool
    divisor_override: int | None

    def forward(self, x: Value) -> Value:
        pads, rounded_up = self._resolve(x)
        pads_count = self.count_include_pad and any(self.padding)
        if rounded_up and (pads_count or self.divisor_override):
            raise GraphError(f"with ceil_mode, {'padding' if pads_count else 'divisor_override'} needs spatial sizes "
                             f"that are known, and x is {x.type_name}.")
        settings = {"kernel_shape": self.kernel_size, "strides": self.stride}
        if self.divisor_override:
            mean = op.AveragePool(x, pads=pads, count_include_pad=1, **settings)
            return mean * (prod(self.kernel_size) / self.divisor_override)
        if pads_count and pads != [*self.padding] * 2:  # What rounding up adds does not count.
            x = op.Pad(x, [0, 0, *self.padding, 0, 0, *self.padding])
            pads, pads_count = [p - own for p, own in zip(pads, [*self.padding] * 2, strict=True)], False
        return op.AveragePool(x, pads=pads, count_include_pad=int(pads_count), ceil_mode=int(rounded_up), **settings)


class AvgPool1d(_AvgPool):
    """The mean of each window of sequences (N, C, L).

    Parameters
    ----------
    kernel_size, stride, padding, ceil_mode, count_include_pad
        As for `AvgPool2d`.

    References
    ----------
    ``torch.nn.AvgPool1d``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.AvgPool1d(2).compile(nn.placeholder(["N", 1, 4]))(np.float32([[[1, 3, 2, 0]]])).tolist()
    [[[2.0, 1.0]]]
    """

    dims = 1
    divisor_override = None

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True):
        self._set_windows(kernel_size, stride, padding, 1, ceil_mode)
        self.count_include_pad = count_include_pad


@document(MaxPool2d)
class AvgPool2d(_AvgPool):
    """The mean of each window of images (N, C, H, W).

    Parameters
    ----------
    padding : int or tuple of int
        How many zeros are added on both sides of each spatial axis.
    count_include_pad : bool
        Whether the zeros count.
    divisor_override : int, optional
        The divisor of sums, in place of the number of elements.

    References
    ----------
    ``torch.nn.AvgPool2d``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.AvgPool2d(2).compile(nn.placeholder(["N", 1, 2, 2]))(np.float32([[[[1, 2], [3, 6]]]])).tolist()
    [[[[3.0]]]]
    """

    dims = 2

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True, divisor_override: int | None = None):
        self._set_windows(kernel_size, stride, padding, 1, ceil_mode)
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override
        if divisor_override == 0:
            raise SettingError(f"{type(self).__name__}: divisor_override is 0, and another number was expected.")


class AvgPool3d(AvgPool2d):
    """The mean of each window of volumes (N, C, D, H, W); see `AvgPool2d` for the parameters.

    References
    ----------
    ``torch.nn.AvgPool3d``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.AvgPool3d(2).compile(nn.placeholder(["N", 1, 4, 4, 4]))(np.ones((1, 1, 4, 4, 4), np.float32)).shape
    (1, 1, 2, 2, 2)
    """

    dims = 3


class _AdaptiveAvgPool(Layer):
    """The mean of as many windows as are asked for."""

    dims: ClassVar[int]

    def __init__(self, output_size: int | tuple[int | None, ...] | list[int | None] | None):
        what = f"{type(self).__name__}: output_size"
        each = output_size if isinstance(output_size, (tuple, list)) else [output_size] * self.dims
        numbers = expand_sizes([1 if n is None else n for n in each], self.dims, what)
        self.output_size = tuple(n if given is not None else None for n, given in zip(numbers, each, strict=True))

    def forward(self, x: Value) -> Value:
        check_axes(x, LAYOUTS[self.dims])
        sizes = list((x.shape or ())[2:])
        wanted = [n if m is None else m for n, m in zip(sizes, self.output_size, strict=True)]
        if all(m == 1 for m in wanted):
            return op.GlobalAveragePool(x)
        if all(isinstance(n, int) and isinstance(m, int) and n % m == 0 for n, m in zip(sizes, wanted, strict=True)):
            window = [n // m for n, m in zip(sizes, wanted, strict=True)]  # type: ignore[operator]
            return x if set(window) == {1} else op.AveragePool(x, kernel_shape=window, strides=window)
        for axis, (n, m) in enumerate(zip(sizes, wanted, strict=True), 2):
            if n != m:
                x = _average_along(x, axis, n, m)
        return x


def _average_along(x: Value, axis: int, n: Any, m: Any) -> Value:
    """The means of m windows along either of the last two axes, whose size is n."""
    if m == 1:
        return op.ReduceMean(x, [axis], keepdims=1)
    if not isinstance(n, int):
        raise GraphError(f"the windows follow from axis {axis} of {x!r}, whose size is not known; only output_size=1 "
                         f"does without it.")
    shares = constant(_window_shares(n, m).astype(x.dtype))
    return x @ shares.T if axis == x.rank - 1 else shares @ x


def _window_shares(n: int, m: int) -> np.ndarray:
    """The share of each of n elements in the mean of each of m windows, (m, n)."""
    shares = np.zeros((m, n))
    for i in range(m):
        start, stop = i * n // m, -(-(i + 1) * n // m)
        shares[i, start:stop] = 1 / (stop - start)
    return shares


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """The mean of as many windows of sequences (N, C, L) as are asked for; see `AdaptiveAvgPool2d`.

    Parameters
    ----------
    output_size : int or None
        The number of windows.

    References
    ----------
    ``torch.nn.AdaptiveAvgPool1d``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.AdaptiveAvgPool1d(2).compile(nn.placeholder(["N", 1, 3]))(np.float32([[[1, 3, 5]]])).tolist()
    [[[2.0, 4.0]]]
    """

    dims = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """The mean of as many windows of images (N, C, H, W) as are asked for.

    Of m windows of n elements, number i begins at ⌊i·n/m⌋ and ends before ⌈(i + 1)·n/m⌉.

    Parameters
    ----------
    output_size : int, None, or tuple of them
        The number of windows along H and W, None for the size of x. Other numbers than 1 need sizes that are known.

    References
    ----------
    ``torch.nn.AdaptiveAvgPool2d``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> model = nn.AdaptiveAvgPool2d(1).compile(nn.placeholder(["N", 8, "H", "W"]))
    >>> model(np.ones((2, 8, 5, 4), np.float32)).shape
    (2, 8, 1, 1)
    """

    dims = 2
