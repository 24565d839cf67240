"""Normalization: by the statistics of the batch, or of each row."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from ortpartial.annotations import DTypeLike
from ortpartial.autodiff import broadcast_channels
from ortpartial.checks import check_count
from ortpartial.docstrings import document
from ortpartial.exceptions import SettingError
from ortpartial.graph import Value, constant, op, stop_gradient

from ..parameter import Buffer, Parameter
from ..trace import current_trace
from .layer import Layer
from .sizes import Sizes, check_axes, check_size, expand_sizes, read_size

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d",
           "InstanceNorm3d", "LayerNorm", "RMSNorm"]


class _ChannelNorm(Layer):
    """A normalization of each channel, which may keep running statistics."""

    layouts: ClassVar[tuple[str, ...]]

    def __init__(self, num_features: int | None, eps: float, momentum: float | None, affine: bool,
                 track_running_stats: bool, *, bias: bool, dtype: DTypeLike):
        self.num_features: int | None = None
        self.eps, self.momentum, self.affine, self.dtype = eps, momentum, affine, dtype
        self.track_running_stats = track_running_stats
        self._has_bias = bias
        self.weight: Any = None
        self.bias: Any = None
        self.running_mean: Any = None
        self.running_var: Any = None
        self.num_batches_tracked: Any = None
        if num_features is not None:
            self._make(num_features)

    def _make(self, n: int) -> None:
        """Make the weights and the running statistics for n channels."""
        self.num_features = n
        if self.affine:
            self.weight = Parameter([n], 1.0, dtype=self.dtype)
            self.bias = Parameter([n], 0.0, dtype=self.dtype) if self._has_bias else None
        if self.track_running_stats:
            self.running_mean, self.running_var = (Buffer([n], first, dtype=self.dtype) for first in (0.0, 1.0))
            self.num_batches_tracked = Buffer([], 0, dtype="int64")

    def _prepare(self, x: Value) -> tuple[Value, Value]:
        """Check the input; scale and shift."""
        check_axes(x, *self.layouts)
        if self.num_features is None:
            self._make(read_size(x, 1))
        assert self.num_features is not None
        check_size(x, 1, self.num_features, "channels")
        scale, shift = (constant(np.full(self.num_features, n, self.dtype)) if p is None else p.value
                        for p, n in ((self.weight, 1), (self.bias, 0)))
        return scale, shift

    def _normalize_by_running(self, x: Value, scale: Value, shift: Value) -> Value:
        """The normalization in evaluation mode."""
        return op.BatchNormalization(x, scale, shift, self.running_mean, self.running_var, epsilon=self.eps)

    def _move_running(self, x: Value, mean: Value, variance: Value, axes: Sequence[int], momentum: Any) -> None:
        """Move the running statistics toward the batch's: the mean and the biased variance over axes of x."""
        sizes = [(x.shape or ())[axis] for axis in axes]
        if all(isinstance(n, int) for n in sizes):
            n: Any = prod(sizes)
            unbiased = variance * (n / max(n - 1, 1))
        else:
            n = op.ReduceProd(op.Gather(op.Shape(x), [*axes]), keepdims=0).astype(x.dtype)
            unbiased = variance * (n / op.Max(n - 1, 1))
        for buffer, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            _write(buffer, stop_gradient(buffer.value * (1 - momentum) + new.astype(self.dtype) * momentum))


def _write(buffer: Buffer, value: Value) -> None:
    """Give a buffer another value after the batch."""
    trace = current_trace()
    assert trace is not None
    trace.write(buffer, value)


class _BatchNorm(_ChannelNorm):
    """Normalization by the statistics of the batch."""

    def __init__(self, num_features: int | None, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
                 track_running_stats: bool = True, *, bias: bool = True, dtype: DTypeLike = "float32"):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias=bias, dtype=dtype)

    def forward(self, x: Value) -> Value:
        scale, shift = self._prepare(x)
        if self.track_running_stats and not self.training:
            return self._normalize_by_running(x, scale, shift)
        axes = [0, *range(2, x.rank)]
        mean = op.ReduceMean(x, axes, keepdims=0)
        centered = x - broadcast_channels(mean, x)
        variance = op.ReduceMean(centered * centered, axes, keepdims=0)
        if self.track_running_stats:
            batches = self.num_batches_tracked.value + 1
            _write(self.num_batches_tracked, batches)
            momentum = 1 / batches.astype(self.dtype) if self.momentum is None else self.momentum
            self._move_running(x, mean, variance, axes, momentum)
        factor = scale.astype(x.dtype) / op.Sqrt(variance + self.eps)
        return centered * broadcast_channels(factor, x) + broadcast_channels(shift.astype(x.dtype), x)


class BatchNorm1d(_BatchNorm):
    """Normalization of the features of rows (N, C), or of the channels of sequences (N, C, L); see `BatchNorm2d`.

    References
    ----------
    ``torch.nn.BatchNorm1d``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> model = nn.BatchNorm1d(1).compile(nn.placeholder(["N", 1]))
    >>> model(np.float32([[1], [3]])).round(2).tolist()
    [[-1.0], [1.0]]
    """

    layouts = ("NC", "NCL")


class BatchNorm2d(_BatchNorm):
    """Normalization of the channels of images (N, C, H, W): (x - mean) / √(variance + eps) · weight + bias.

    In training mode, mean and variance are the batch's, and the running statistics follow them; in evaluation mode, the
    running statistics are taken.

    Parameters
    ----------
    num_features : int or None
        C, the number of channels of x; None for that of the first x.
    eps : float
        ε, which is added to the variance.
    momentum : float or None
        How far the running statistics move toward the batch's, as a share of the way; None for their mean over all
        batches.
    affine : bool
        Whether there are a weight and a bias.
    track_running_stats : bool
        Whether there are running statistics; without, the batch's are taken in evaluation mode as well.
    bias : bool
        Whether there is a bias beside the weight.
    dtype : numpy dtype or its name
        The element type of the parameters and of the running statistics.

    Attributes
    ----------
    weight, bias : Parameter of shape (C,) or None
        At first 1 and 0.
    running_mean, running_var : Buffer of shape (C,) or None
        The running mean and the running unbiased variance, at first 0 and 1.
    num_batches_tracked : Buffer of shape () or None
        int64, the number of batches that they follow.

    References
    ----------
    ``torch.nn.BatchNorm2d``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> model = nn.BatchNorm2d(3).compile(nn.placeholder(["N", 3, 4, 4]))
    >>> y = model(np.ones((2, 3, 4, 4), np.float32))
    >>> model.running_mean.numpy().tolist(), model.eval().training
    ([0.1, 0.1, 0.1], False)
    """

    layouts = ("NCHW",)


class BatchNorm3d(_BatchNorm):
    """Normalization of the channels of volumes (N, C, D, H, W); see `BatchNorm2d`.

    References
    ----------
    ``torch.nn.BatchNorm3d``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.BatchNorm3d(2).compile(nn.placeholder(["N", 2, 4, 4, 4]))
    <BatchNorm3d, 4 parameters>
    """

    layouts = ("NCDHW",)


class _InstanceNorm(_ChannelNorm):
    """Normalization by the statistics of each channel of each row."""

    def __init__(self, num_features: int | None, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
                 track_running_stats: bool = False, *, bias: bool = True, dtype: DTypeLike = "float32"):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias=bias, dtype=dtype)

    def forward(self, x: Value) -> Value:
        scale, shift = self._prepare(x)
        if self.track_running_stats and not self.training:
            return self._normalize_by_running(x, scale, shift)
        if self.track_running_stats:
            axes = list(range(2, x.rank))
            means = op.ReduceMean(x, axes, keepdims=1)
            variances = op.ReduceMean((x - means) * (x - means), axes, keepdims=0)
            mean, variance = op.ReduceMean(means, [0, *axes], keepdims=0), op.ReduceMean(variances, [0], keepdims=0)
            self._move_running(x, mean, variance, axes, self.momentum)
        return op.InstanceNormalization(x, scale, shift, epsilon=self.eps)


class InstanceNorm1d(_InstanceNorm):
    """Normalization of each channel of each sequence (N, C, L); see `InstanceNorm2d`.

    References
    ----------
    ``torch.nn.InstanceNorm1d``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> model = nn.InstanceNorm1d(1).compile(nn.placeholder(["N", 1, 2]))
    >>> model(np.float32([[[1, 3]]])).round(2).tolist()
    [[[-1.0, 1.0]]]
    """

    layouts = ("NCL",)


class InstanceNorm2d(_InstanceNorm):
    """Normalization of each channel of each image (N, C, H, W): (x - mean) / √(variance + eps) · weight + bias.

    Parameters
    ----------
    num_features : int or None
        C, the number of channels of x; None for that of the first x.
    eps, momentum, affine, track_running_stats, bias, dtype
        As for `BatchNorm2d`. Running statistics follow the means over the images; `num_batches_tracked` stays
        0, as in torch.

    References
    ----------
    ``torch.nn.InstanceNorm2d``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.InstanceNorm2d(3, affine=True).compile(nn.placeholder(["N", 3, 4, 4]))
    <InstanceNorm2d, 6 parameters>
    """

    layouts = ("NCHW",)


class InstanceNorm3d(_InstanceNorm):
    """Normalization of each channel of each volume (N, C, D, H, W); see `InstanceNorm2d`.

    References
    ----------
    ``torch.nn.InstanceNorm3d``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.InstanceNorm3d(3, affine=True).compile(nn.placeholder(["N", 3, 4, 4, 4]))
    <InstanceNorm3d, 6 parameters>
    """

    layouts = ("NCDHW",)


@document(BatchNorm2d)
class GroupNorm(Layer):
    """Normalization of each group of channels of each row: (x - mean) / √(variance + eps) · weight + bias.

    Parameters
    ----------
    num_groups : int
        The number of groups.
    num_channels : int
        C, the number of channels of x, (N, C, ...).
    dtype : numpy dtype or its name
        The element type of the parameters.

    Attributes
    ----------
    weight, bias : Parameter of shape (C,) or None
        At first 1 and 0.

    References
    ----------
    ``torch.nn.GroupNorm``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.GroupNorm(2, 6).compile(nn.placeholder(["N", 6, 4, 4]))
    <GroupNorm, 12 parameters>
    """

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *,
                 bias: bool = True, dtype: DTypeLike = "float32"):
        if num_channels % check_count("GroupNorm: num_groups", num_groups):
            raise SettingError(f"GroupNorm: num_channels is {num_channels}, which {num_groups} groups do not divide.")
        self.num_groups, self.num_channels, self.eps, self.dtype = num_groups, num_channels, eps, dtype
        self.weight = Parameter([num_channels], 1.0, dtype=dtype) if affine else None
        self.bias = Parameter([num_channels], 0.0, dtype=dtype) if affine and bias else None

    def forward(self, x: Value) -> Value:
        check_size(x, 1, self.num_channels, "channels")
        scale, shift = (np.full(self.num_channels, n, self.dtype) if p is None else p
                        for p, n in ((self.weight, 1), (self.bias, 0)))
        if x.rank == 2:  # The operator of onnxruntime has a third axis.
            return op.Squeeze(self._normalize(op.Unsqueeze(x, [2]), scale, shift), [2])
        return self._normalize(x, scale, shift)

    def _normalize(self, x: Value, scale: Any, shift: Any) -> Value:
        return op.GroupNormalization(x, scale, shift, num_groups=self.num_groups, epsilon=self.eps).stated(x.shape)


class _RowNorm(Layer):
    """A normalization over the last axes."""

    def _set_shape(self, normalized_shape: Sizes) -> None:
        """Read the shape of the normalized axes."""
        shape = normalized_shape if isinstance(normalized_shape, (tuple, list)) else [normalized_shape]
        self.normalized_shape = expand_sizes(list(shape), len(shape), f"{type(self).__name__}: normalized_shape")

    def _check(self, x: Value) -> list[int]:
        """Check the sizes; the axes, counted from the end."""
        axes = list(range(-len(self.normalized_shape), 0))
        for axis, n in zip(axes, self.normalized_shape, strict=True):
            check_size(x, axis, n, "features" if len(axes) == 1 else f"elements along axis {axis}")
        return axes


@document(BatchNorm2d)
class LayerNorm(_RowNorm):
    """Normalization over the last axes: (x - mean) / √(variance + eps) · weight + bias.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        The sizes of the last axes of x.
    elementwise_affine : bool
        Whether there are a weight and a bias.
    dtype : numpy dtype or its name
        The element type of the parameters.

    Attributes
    ----------
    weight, bias : Parameter of shape normalized_shape or None
        At first 1 and 0.

    References
    ----------
    ``torch.nn.LayerNorm``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> model = nn.LayerNorm(2).compile(nn.placeholder(["N", 2]))
    >>> model(np.float32([[1, 3]])).round(2).tolist()
    [[-1.0, 1.0]]
    """

    def __init__(self, normalized_shape: Sizes, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True,
                 *, dtype: DTypeLike = "float32"):
        self._set_shape(normalized_shape)
        self.eps, self.elementwise_affine, self.dtype = eps, elementwise_affine, dtype
        self.weight = Parameter(self.normalized_shape, 1.0, dtype=dtype) if elementwise_affine else None
        self.bias = Parameter(self.normalized_shape, 0.0, dtype=dtype) if elementwise_affine and bias else None

    def forward(self, x: Value) -> Value:
        axes = self._check(x)
        scale = np.ones(self.normalized_shape, self.dtype) if self.weight is None else self.weight
        return op.LayerNormalization(x, scale, self.bias, axis=axes[0], epsilon=self.eps)


class RMSNorm(_RowNorm):
    """Normalization by the root mean square over the last axes: x / √(mean(x²) + eps) · weight.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        The sizes of the last axes of x.
    eps : float, optional
        By default the machine epsilon of the element type of x.
    elementwise_affine : bool
        Whether there is a weight.
    dtype : numpy dtype or its name
        The element type of the weight.

    Attributes
    ----------
    weight : Parameter of shape normalized_shape or None
        At first 1.

    References
    ----------
    ``torch.nn.RMSNorm``.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.RMSNorm(2).compile(nn.placeholder(["N", 2]))(np.float32([[1, 7]])).round(2).tolist()
    [[0.2, 1.4]]
    """

    def __init__(self, normalized_shape: Sizes, eps: float | None = None, elementwise_affine: bool = True, *,
                 dtype: DTypeLike = "float32"):
        self._set_shape(normalized_shape)
        self.eps, self.elementwise_affine, self.dtype = eps, elementwise_affine, dtype
        self.weight = Parameter(self.normalized_shape, 1.0, dtype=dtype) if elementwise_affine else None

    def forward(self, x: Value) -> Value:
        # RMSNormalization is of opset 23, which onnxruntime 1.19 does not read. It fuses these nodes with a power, in
        # float64 as well, in which it then fails.
        axes = self._check(x)
        eps = float(ml_dtypes.finfo(x.dtype).eps) if self.eps is None else self.eps
        square = x * x if x.dtype == np.float64 else x**2
        y = x / op.Sqrt(op.ReduceMean(square, axes, keepdims=1) + eps)
        return y if self.weight is None else y * self.weight
