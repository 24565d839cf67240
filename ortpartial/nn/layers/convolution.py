"""Convolutions and transposed convolutions of sequences, images and volumes."""

from __future__ import annotations

from math import prod, sqrt
from typing import Any, ClassVar

from ortpartial.annotations import DTypeLike
from ortpartial.checks import check_choice, check_whole
from ortpartial.docstrings import document
from ortpartial.exceptions import SettingError
from ortpartial.graph import Value, op

from ..initializers import Uniform
from ..parameter import Parameter
from .layer import Layer
from .sizes import Sizes, check_axes, check_dtype, check_size, check_windows, expand_sizes, read_size

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

#: The axes of an input by the number of spatial ones.
LAYOUTS = {1: "NCL", 2: "NCHW", 3: "NCDHW"}

#: torch's padding modes, by the names that ONNX's Pad gives them.
_PADDING_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


class _Convolution(Layer):
    """The windows and weights that convolutions and transposed convolutions share."""

    dims: ClassVar[int]

    def _set_windows(self, kernel_size: Sizes, stride: Sizes, dilation: Sizes, groups: int) -> None:
        """Read the settings of the windows."""
        self.kernel_size = self._expand("kernel_size", kernel_size)
        self.stride, self.dilation = self._expand("stride", stride), self._expand("dilation", dilation)
        (self.groups,) = expand_sizes(groups, 1, f"{type(self).__name__}: groups")

    def _expand(self, name: str, sizes: Sizes | str, low: int = 1) -> tuple[int, ...]:
        """A setting for each spatial axis."""
        return expand_sizes(sizes, self.dims, f"{type(self).__name__}: {name}", low)

    def _set_channels(self, in_channels: int | None, out_channels: int, bias: bool, dtype: DTypeLike) -> None:
        """Read the numbers of channels, and make the weights if both are known."""
        self.in_channels: int | None = None
        self.out_channels, self._has_bias, self.dtype = out_channels, bias, dtype
        self.weight: Any = None
        self.bias: Any = None
        if in_channels is not None:
            self._make(in_channels)

    def _make(self, n: int) -> None:
        """Make the weights for n channels."""
        for name, channels in (("in_channels", n), ("out_channels", self.out_channels)):
            if check_whole(f"{type(self).__name__}: {name}", channels, 0) % self.groups:
                raise SettingError(f"{type(self).__name__}: {name} is {channels}, which {self.groups} groups do not "
                                   f"divide.")
        self.in_channels = n
        shape = self._weight_shape(n)
        fan_in = prod(shape[1:])
        first = Uniform(-1 / sqrt(fan_in), 1 / sqrt(fan_in)) if fan_in else 0.0
        self.weight = Parameter(shape, first, dtype=self.dtype)
        if self._has_bias:
            self.bias = Parameter([self.out_channels], first, dtype=self.dtype)

    def _weight_shape(self, n: int) -> tuple[int, ...]:
        raise NotImplementedError

    def _check(self, x: Value) -> None:
        """Check the axes and the channels of an input."""
        check_axes(x, LAYOUTS[self.dims])
        if self.in_channels is None:
            self._make(read_size(x, 1))
        check_size(x, 1, self.in_channels, "channels")
        check_dtype(x, self.dtype)

    @property
    def _extents(self) -> list[int]:
        """How many elements a window spans along each axis."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel_size, self.dilation, strict=True)]


class _Conv(_Convolution):
    """A convolution."""

    def __init__(self, in_channels: int | None, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1, bias: bool = True,
                 padding_mode: str = "zeros", *, dtype: DTypeLike = "float32"):
        self._set_windows(kernel_size, stride, dilation, groups)
        self.padding, self.padding_mode = padding, padding_mode
        check_choice(f"{type(self).__name__}: padding_mode", padding_mode, _PADDING_MODES)
        self._pads = self._resolve_padding(padding)
        self._set_channels(in_channels, out_channels, bias, dtype)

    def _resolve_padding(self, padding: Sizes | str) -> list[int]:
        """The elements added before each axis, then after each."""
        if isinstance(padding, str) and padding == "valid":
            return [0] * 2 * self.dims
        if not isinstance(padding, str) or padding != "same":
            return [*self._expand("padding", padding, 0)] * 2
        if set(self.stride) != {1}:
            raise SettingError(f"{type(self).__name__}: padding='same' keeps the size, which stride={self.stride} does "
                               f"not; give the padding as numbers.")
        total = [e - 1 for e in self._extents]
        return [n // 2 for n in total] + [n - n // 2 for n in total]

    def _weight_shape(self, n: int) -> tuple[int, ...]:
        return self.out_channels, n // self.groups, *self.kernel_size

    def forward(self, x: Value) -> Value:
        self._check(x)
        check_windows(x, self._extents, self._pads)
        pads = self._pads
        if self.padding_mode != "zeros" and any(pads):
            before, after = pads[: self.dims], pads[self.dims:]
            least = [max(pair) + (self.padding_mode == "reflect") for pair in zip(before, after, strict=True)]
            if self.padding_mode != "replicate":
                check_windows(x, least, [0] * 2 * self.dims, f"{self.padding_mode} padding takes")
            x = op.Pad(x, [0, 0, *before, 0, 0, *after], mode=_PADDING_MODES[self.padding_mode])
            pads = [0] * 2 * self.dims
        return op.Conv(x, self.weight, self.bias, kernel_shape=self.kernel_size, strides=self.stride, pads=pads,
                       dilations=self.dilation, group=self.groups)


class Conv1d(_Conv):
    """The convolution of sequences (N, C, L) with a kernel; see `Conv2d` for its parameters and attributes.

    References
    ----------
    ``torch.nn.Conv1d``.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> model = nn.Conv1d(2, 4, 3, padding="same").compile(nn.placeholder(["N", 2, 9]))
    >>> model(np.zeros((1, 2, 9), np.float32)).shape
    (1, 4, 9)
    """

    dims = 1


class Conv2d(_Conv):
    """The convolution of images (N, C, H, W) with a kernel.

    The first W and b are drawn from U(-1/√n, 1/√n), where n is the number of elements that an output is computed from.

    Parameters
    ----------
    in_channels : int or None
        C, the number of channels of x; None for that of the first x, which makes the weights.
    out_channels : int
        The number of channels of y.
    kernel_size : int or tuple of int
        The size of the kernel along each spatial axis.
    stride : int or tuple of int
        The distance of the windows.
    padding : int, tuple of int, "same" or "valid"
        How many elements are added on both sides of each spatial axis; ``"same"`` for so many that y has the size of
        x, ``"valid"`` for none.
    dilation : int or tuple of int
        The distance of the elements of a window.
    groups : int
        The number of groups of channels that are convolved apart.
    bias : bool
        Whether b is added.
    padding_mode : {"zeros", "reflect", "replicate", "circular"}
        The kind of padding.
    dtype : numpy dtype or its name
        The element type of W and b.

    Attributes
    ----------
    weight : Parameter of shape (out_channels, in_channels / groups, ...)
        W, the kernels.
    bias : Parameter of shape (out_channels,) or None
        b.

    References
    ----------
    ``torch.nn.Conv2d``.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> model = nn.Conv2d(3, 8, 5, stride=2, padding=2).compile(nn.placeholder(["N", 3, 16, 16]))
    >>> model(np.zeros((1, 3, 16, 16), np.float32)).shape
    (1, 8, 8, 8)
    """

    dims = 2


class Conv3d(_Conv):
    """The convolution of volumes (N, C, D, H, W) with a kernel; see `Conv2d` for its parameters and attributes.

    References
    ----------
    ``torch.nn.Conv3d``.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> model = nn.Conv3d(1, 2, 3).compile(nn.placeholder(["N", 1, 4, 4, 4]))
    >>> model(np.zeros((1, 1, 4, 4, 4), np.float32)).shape
    (1, 2, 2, 2, 2)
    """

    dims = 3


class _ConvTranspose(_Convolution):
    """A transposed convolution."""

    def __init__(self, in_channels: int | None, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes = 0, output_padding: Sizes = 0, groups: int = 1, bias: bool = True, dilation: Sizes = 1,
                 padding_mode: str = "zeros", *, dtype: DTypeLike = "float32"):
        self._set_windows(kernel_size, stride, dilation, groups)
        if not isinstance(padding_mode, str) or padding_mode != "zeros":
            raise SettingError(f"{type(self).__name__}: padding_mode is {padding_mode!r}; a transposed convolution has "
                               f"only 'zeros'.")
        self.padding, self.padding_mode = self._expand("padding", padding, 0), padding_mode
        self.output_padding = self._expand("output_padding", output_padding, 0)
        # onnxruntime 1.32 refuses more, and 1.19.2 computes it wrong; torch allows all that is less than the dilation.
        if any(p >= stride for p, stride in zip(self.output_padding, self.stride, strict=True)):
            raise SettingError(f"{type(self).__name__}: output_padding is {output_padding!r}; less than the stride, "
                               f"{stride!r}, was expected.")
        self._set_channels(in_channels, out_channels, bias, dtype)

    def _weight_shape(self, n: int) -> tuple[int, ...]:
        return n, self.out_channels // self.groups, *self.kernel_size

    def forward(self, x: Value) -> Value:
        self._check(x)
        return op.ConvTranspose(x, self.weight, self.bias, kernel_shape=self.kernel_size, strides=self.stride,
                                pads=[*self.padding] * 2, output_padding=self.output_padding, dilations=self.dilation,
                                group=self.groups)


class ConvTranspose1d(_ConvTranspose):
    """The transposed convolution of sequences; see `ConvTranspose2d` for its parameters and attributes.

    References
    ----------
    ``torch.nn.ConvTranspose1d``.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> model = nn.ConvTranspose1d(2, 4, 2, stride=2).compile(nn.placeholder(["N", 2, 5]))
    >>> model(np.zeros((1, 2, 5), np.float32)).shape
    (1, 4, 10)
    """

    dims = 1


@document(Conv2d)
class ConvTranspose2d(_ConvTranspose):
    """The transposed convolution of images (N, C, H, W): the gradient of a convolution by its input.

    Along an axis of the size n, y has (n - 1)·stride - 2·padding + dilation·(kernel_size - 1) + output_padding + 1
    elements.

    Parameters
    ----------
    padding : int or tuple of int
        How many elements are cut off on both sides of each spatial axis of y.
    output_padding : int or tuple of int
        How many elements fewer are cut off at the end, less than the stride.
    padding_mode : {"zeros"}
        There is no other.

    Attributes
    ----------
    weight : Parameter of shape (in_channels, out_channels / groups, ...)
        W, the kernels.
    bias : Parameter of shape (out_channels,) or None
        b.

    References
    ----------
    ``torch.nn.ConvTranspose2d``.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> model = nn.ConvTranspose2d(8, 3, 4, stride=2, padding=1).compile(nn.placeholder(["N", 8, 5, 5]))
    >>> model(np.zeros((1, 8, 5, 5), np.float32)).shape
    (1, 3, 10, 10)
    """

    dims = 2


class ConvTranspose3d(_ConvTranspose):
    """The transposed convolution of volumes; see `ConvTranspose2d` for its parameters and attributes.

    References
    ----------
    ``torch.nn.ConvTranspose3d``.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import nn
    >>> model = nn.ConvTranspose3d(2, 1, 2, stride=2).compile(nn.placeholder(["N", 2, 3, 3, 3]))
    >>> model(np.zeros((1, 2, 3, 3, 3), np.float32)).shape
    (1, 1, 6, 6, 6)
    """

    dims = 3
