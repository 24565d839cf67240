"""Random chains of operators on large tensors, each written twice: in the notation and in torch.

`draw_chain` draws a network from a seed. Its torch side is a list of functions of what was computed before and of the
weights, so that torch computes it in any dtype.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from onnx import ModelProto

from ortpartial.graph import Value, build, constant, op, variable

__all__ = ["SAMPLE", "Chain", "Draft", "draw_chain", "measure", "size_of", "take_steps"]

Tensors = Mapping[str, torch.Tensor]
#: From the tensors so far and the weights to the next tensor.
Function = Callable[[Sequence[torch.Tensor], Tensors], torch.Tensor]


@dataclass
class Chain:
    """A network as a model and as functions of torch."""

    seed: int
    model: ModelProto
    weights: dict[str, np.ndarray]
    x: np.ndarray
    t: np.ndarray
    functions: list[Function]
    names: list[str]
    kinks: int

    def __call__(self, x: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """The output, by torch."""
        tensors = [x]
        for f in self.functions:
            tensors.append(f(tensors, weights))
        return tensors[-1]


@dataclass
class Draft:
    """A chain that is being drawn: the last value, and what torch computes for it in float64."""

    rng: np.random.Generator
    size: int
    batch: int
    values: list[Value] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    kinks: int = 0
    #: The axis of an open size, None where all sizes are stated.
    open: int | None = None

    @property
    def y(self) -> Value:
        """The last value."""
        return self.values[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the last value, the open one included."""
        return tuple(self.tensors[-1].shape)

    def add(self, value: Value, f: Function) -> None:
        """Go on with a value, and what torch computes for it."""
        with torch.no_grad():
            tensor = f(self.tensors, self.doubles())
        self.values.append(value)
        self.tensors.append(tensor)
        self.functions.append(f)

    def mark(self) -> tuple[Any, ...]:
        """The place to which `go_back` returns."""
        return len(self.values), list(self.weights), self.kinks, self.open

    def go_back(self, mark: tuple[Any, ...]) -> None:
        """Leave out what was added since."""
        count, names, self.kinks, self.open = mark
        del self.values[count:], self.tensors[count:], self.functions[count - 1:]
        self.weights = {n: self.weights[n] for n in names}

    def doubles(self) -> dict[str, torch.Tensor]:
        """The weights in float64."""
        return {n: torch.from_numpy(a).double() for n, a in self.weights.items()}

    def weight(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> tuple[Value, str]:
        """A new weight and its name."""
        name = f"w{len(self.weights)}"
        self.weights[name] = (self.rng.normal(size=shape) * scale + mean).astype(np.float32)
        return constant(self.weights[name], hint=name), name

    def reshape(self, sizes: Sequence[int], axis: int | None = None) -> None:
        """Reshape, the open size at this axis."""
        self.open = None if self.open is None else axis
        written = [-1 if i == self.open else n for i, n in enumerate(sizes)]
        self.add(op.Reshape(self.y, written), lambda h, w: h[-1].reshape(*sizes))

    def choose(self, *options: Any) -> Any:
        """One of some options."""
        return options[int(self.rng.integers(len(options)))]

    def axis(self, least: int = 1) -> int | None:
        """An axis of a stated size, of at least so many elements."""
        axes = [i for i, n in enumerate(self.shape) if n >= least and i != self.open]
        return self.choose(*axes) if axes else None

    def threshold(self) -> float:
        """A number in a gap between the elements, so that rounding moves none of them to its other side."""
        flat = np.sort(self.tensors[-1].numpy().ravel())
        if len(flat) < 2:
            return float(flat[0]) - 0.5
        at = int(self.rng.uniform(0.2, 0.7) * len(flat))
        near = flat[max(0, at - 1000): at + 1000]
        gap = int(np.diff(near).argmax())
        return float(np.float32((near[gap] + near[gap + 1]) / 2))

    def rescale(self) -> None:
        """Bring the elements to about 1 where products have made them large or small."""
        size = self.tensors[-1].square().mean().sqrt().item()
        if not 0.1 < size < 5 and size > 0:
            factor = float(np.float32(2.0 ** np.round(np.log2(1 / size))))
            self.add(self.y * factor, lambda h, w: h[-1] * factor)
            self.names.append(f"scaled by {factor}")


# Steps return False where they do not apply.


def permute(c: Draft, perm: Sequence[int]) -> None:
    c.open = None if c.open is None else list(perm).index(c.open)
    c.add(op.Transpose(c.y, perm=list(perm)), lambda h, w: h[-1].permute(*perm))


def transpose(c: Draft) -> bool:
    """Any permutation; half of them move a few blocks of axes, in any order or reversed."""
    r = len(c.shape)
    if r < 2:
        return False
    perm = list(c.rng.permutation(r))
    if c.rng.random() < 0.6:
        count = int(c.rng.integers(2, min(r, 5) + 1))
        cuts = sorted(c.rng.choice(np.arange(1, r), count - 1, replace=False).tolist())
        blocks = [list(range(a, b)) for a, b in zip([0, *cuts], [*cuts, r], strict=True)]
        order = list(range(count))[::-1] if c.rng.random() < 0.5 else list(c.rng.permutation(count))
        if c.rng.random() < 0.5 and count > 2:  # The first block stays.
            order = [0, *(i for i in order if i)]
        perm = [a for i in order for a in blocks[i]]
    permute(c, [int(a) for a in perm])
    return True


def turn_images(c: Draft) -> bool:
    """The axes of an image in reverse, with few channels last: what a move to the right could be taken for."""
    n = prod(c.shape)
    last = c.choose(4, 8, 16, 20, 28)
    if c.open is not None or n % (last * 4) or n < 64:
        return False
    rest, sizes = n // last, []
    for _ in range(int(c.rng.integers(2, 4))):
        factors = [f for f in range(2, min(rest, 64)) if rest % f == 0 and rest // f > 1]
        if not factors:
            break
        sizes.append(c.choose(*factors))
        rest //= sizes[-1]
    sizes = [rest, *sizes, last]
    c.reshape(sizes)
    r = len(sizes)
    keeps_last = c.rng.random() < 0.5
    first = int(c.rng.integers(0, max(1, r - 2)))
    middle = list(range(first, r - 1 if keeps_last else r))[::-1]
    permute(c, [*range(first), *middle, *([r - 1] if keeps_last else [])])
    return True


def reshape(c: Draft) -> bool:
    """Axes merged, or one split in two, or axes of size 1."""
    s, r = list(c.shape), len(c.shape)
    kind = c.choose("merge", "split", "split", "insert")
    if kind == "merge" and r > 2:
        i = int(c.rng.integers(r - 1))
        if c.open not in (i, i + 1):
            at = None if c.open is None else c.open - (c.open > i)
            c.reshape([*s[:i], s[i] * s[i + 1], *s[i + 2:]], at)
            return True
    elif kind == "split" and r < 6 and (i := c.axis(4)) is not None:
        factors = [f for f in range(2, s[i]) if s[i] % f == 0]
        if factors:
            f = c.choose(*factors)
            at = None if c.open is None else c.open + (c.open > i)
            c.reshape([*s[:i], f, s[i] // f, *s[i + 1:]], at)
            return True
    elif kind == "insert" and r < 6:
        i = int(c.rng.integers(r + 1))
        if c.open is not None:
            c.open += c.open >= i
        c.add(op.Unsqueeze(c.y, [i]), lambda h, w: h[-1].unsqueeze(i))
        return True
    return False


def as_images(c: Draft, most: int = 64, r: int | None = None) -> bool:
    """Turn the value into a batch of images of at most so many channels."""
    if c.open is not None:
        return c.open == 0 and 3 <= len(c.shape) <= 5 and c.shape[1] <= most and (r is None or len(c.shape) == r + 2)
    r = int(c.choose(1, 2, 2, 2, 3)) if r is None else r
    n = prod(c.shape)
    if len(c.shape) == r + 2 and c.shape[1] <= most:
        return True
    batch = c.choose(*[b for b in (1, 2, 4, 8, 3, 16) if n % b == 0])
    rest = n // batch
    channels = c.choose(*[f for f in range(1, most + 1) if rest % f == 0])
    rest //= channels
    sizes = []
    for i in range(r - 1):
        near = round(rest ** (1 / (r - i)))
        sizes.append(min((f for f in range(1, min(rest, 4 * near + 2) + 1) if rest % f == 0),
                         key=lambda f: abs(f - near)))
        rest //= sizes[-1]
    c.reshape([batch, channels, *sizes, rest])
    return True


def draw_window(c: Draft, least: int = 1) -> tuple[list[int], list[int], list[int], list[int], dict[str, Any]]:
    """Kernel, strides, dilations, pads, and the attributes that say so."""
    sizes = c.shape[2:]
    kernel = [int(min(n, c.rng.integers(least, 6))) for n in sizes]
    dilations = [int(c.rng.integers(1, 3)) if (k - 1) * 2 < n else 1 for k, n in zip(kernel, sizes, strict=True)]
    strides = [int(c.choose(1, 1, 2, 3)) for _ in sizes]
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    auto = c.choose("NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    r = len(sizes)
    if auto == "NOTSET":
        pads = [int(c.rng.integers(0, k)) for k in kernel * 2]
        settings = {"pads": pads}
    elif auto == "VALID":
        pads, settings = [0] * 2 * r, {"auto_pad": auto}
    else:
        total = [max(0, (-(-n // s) - 1) * s + e - n) for n, s, e in zip(sizes, strides, extent, strict=True)]
        less, more = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = [*less, *more] if auto == "SAME_UPPER" else [*more, *less]
        settings = {"auto_pad": auto}
    return kernel, strides, dilations, pads, {**settings, "strides": strides, "dilations": dilations}


def pad_torch(x: torch.Tensor, pads: Sequence[int], number: float = 0.0) -> torch.Tensor:
    """A tensor with a number around it, by pads in ONNX's order."""
    r = len(pads) // 2
    return F.pad(x, [p for i in reversed(range(r)) for p in (pads[i], pads[r + i])], value=number)


def convolve(c: Draft) -> bool:
    """Conv with groups, strides, dilations and padding of every kind."""
    if not as_images(c):
        return False
    n, channels, *sizes = c.shape
    group = c.choose(*[g for g in (1, 1, 1, 2, 3, 4, channels) if channels % g == 0])
    if group == channels and channels > 1:
        outputs = channels * c.choose(1, 1, 2)
    else:
        outputs = group * int(c.rng.integers(1, 1 + max(1, 48 // group)))
    kernel, strides, dilations, pads, settings = draw_window(c)
    places = prod(sizes) / prod(strides)
    depth = channels // group * prod(kernel)
    if n * outputs * places > 2 * c.size or n * outputs * places * depth > 2**29:
        return False
    w, name = c.weight(outputs, channels // group, *kernel, scale=depth ** -0.5)
    has_bias = bool(c.rng.random() < 0.5)
    b, bias = c.weight(outputs) if has_bias else (None, "")
    f = (F.conv1d, F.conv2d, F.conv3d)[len(sizes) - 1]
    c.add(op.Conv(c.y, w, b, group=group, **settings), lambda h, w: f(
        pad_torch(h[-1], pads), w[name], w[bias] if has_bias else None, strides, 0, dilations, group))
    return True


def convolve_transposed(c: Draft) -> bool:
    """ConvTranspose with groups, strides, dilations and output_padding."""
    if not as_images(c, 32):
        return False
    n, channels, *sizes = c.shape
    r = len(sizes)
    group = c.choose(*[g for g in (1, 1, 2, 4) if channels % g == 0])
    outputs = group * int(c.rng.integers(1, 1 + max(1, 16 // group)))
    kernel, strides, dilations = ([int(c.rng.integers(1, k)) for _ in sizes] for k in (4, 3, 3))
    pads = [int(c.rng.integers(0, k)) for k in kernel]
    # onnxruntime 1.32 refuses an output_padding of the stride or more, which dilations allow.
    extra = [int(c.rng.integers(0, s)) for s in strides]
    if n * outputs * prod(sizes) * prod(strides) * channels // group * prod(kernel) > 2**28:
        return False
    if n * outputs * prod(sizes) * prod(strides) > 2 * c.size or any(
            (m - 1) * s - 2 * p + d * (k - 1) + e + 1 < 1
            for m, s, p, d, k, e in zip(sizes, strides, pads, dilations, kernel, extra, strict=True)):
        return False
    w, name = c.weight(channels, outputs // group, *kernel, scale=(channels // group * prod(kernel)) ** -0.5)
    f = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[r - 1]
    c.add(op.ConvTranspose(c.y, w, group=group, strides=strides, dilations=dilations, pads=pads * 2,
                           output_padding=extra),
          lambda h, w: f(h[-1], w[name], None, strides, pads, extra, group, dilations))
    return True


def pool(c: Draft) -> bool:
    """MaxPool and AveragePool."""
    if not as_images(c, 128):
        return False
    r = len(c.shape) - 2
    kernel, strides, dilations, pads, settings = draw_window(c)
    if c.choose("max", "mean") == "max":
        f = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[r - 1]
        c.add(op.MaxPool(c.y, kernel_shape=kernel, **settings), lambda h, w: f(
            pad_torch(h[-1], pads, -np.inf), kernel, strides, 0, dilations))
        c.kinks += 1
        return True
    if settings.get("auto_pad", "").startswith("SAME") and any(d > 1 for d in dilations):
        settings, pads = {"strides": strides}, [0] * 2 * r  # torch's have no dilations.
    settings.pop("dilations", None)
    counts = int(c.choose(0, 1))
    f = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[r - 1]

    def mean(h: Sequence[torch.Tensor], w: Tensors) -> torch.Tensor:
        ones = pad_torch(torch.ones_like(h[-1]), pads, float(counts))
        return f(pad_torch(h[-1], pads), kernel, strides, 0) / f(ones, kernel, strides, 0)

    c.add(op.AveragePool(c.y, kernel_shape=kernel, count_include_pad=counts, **settings), mean)
    return True


def pool_globally(c: Draft) -> bool:
    """Squeeze and excitation: each channel times the sigmoid of its mean."""
    if not as_images(c, 128):
        return False
    axes = list(range(2, len(c.shape)))
    c.add(c.y * op.Sigmoid(op.GlobalAveragePool(c.y)),
          lambda h, w: h[-1] * torch.sigmoid(h[-1].mean(axes, keepdim=True)))
    return True


def multiply(c: Draft) -> bool:
    """A product of the last axis with a matrix, or of a matrix with the last but one."""
    r = len(c.shape)
    if r < 2:
        return False
    kind = c.choose("right", "right", "bias", "left", "batched")
    n = c.shape[-2 if kind == "left" else -1]
    m = int(c.rng.integers(1, 65)) if c.rng.random() < 0.8 else int(c.choose(1, n))
    if n > 1024 or (r - 2 if kind == "left" else r - 1) == c.open or prod(c.shape) // n * m > 2 * c.size:
        return False
    if kind == "left":
        w, name = c.weight(m, n, scale=n ** -0.5)
        c.add(op.MatMul(w, c.y), lambda h, w: w[name] @ h[-1])
    elif kind == "batched" and r > 2 and c.open != r - 3 and c.shape[-3] * n * m < 2**18:
        w, name = c.weight(c.shape[-3], n, m, scale=n ** -0.5)
        c.add(c.y @ w, lambda h, w: h[-1] @ w[name])
    else:
        w, name = c.weight(n, m, scale=n ** -0.5)
        c.add(c.y @ w, lambda h, w: h[-1] @ w[name])
        if kind == "bias":
            b, bias = c.weight(m)
            c.add(c.y + b, lambda h, w: h[-1] + w[bias])
    return True


def gemm(c: Draft) -> bool:
    """Gemm of the value as a matrix, with every attribute."""
    s, r = c.shape, len(c.shape)
    if c.open not in (None, 0) or r < 2:
        return False
    axis = 1 if c.open == 0 else int(c.rng.integers(1, r))
    rows, n = prod(s[:axis]), prod(s[axis:])
    if max(rows, n) > 2**14 and n > 512:
        return False
    turned = bool(c.open is None and rows < 512 and c.rng.random() < 0.4)
    depth, left = (rows, n) if turned else (n, rows)
    m = int(c.rng.integers(1, 40))
    if depth > 4096 or left * m > 2 * c.size:
        return False
    trans_b, alpha, beta = int(c.choose(0, 1)), float(c.choose(1.0, 0.5, -2.0)), float(c.choose(1.0, 0.25))
    w, name = c.weight(*((m, depth) if trans_b else (depth, m)), scale=depth ** -0.5)
    b, bias = c.weight(*c.choose((m,), (1, m), (1, 1)))
    c.add(op.Flatten(c.y, axis=axis), lambda h, w: h[-1].reshape(rows, n))

    def product(h: Sequence[torch.Tensor], w: Tensors) -> torch.Tensor:
        return alpha * (h[-1].T if turned else h[-1]) @ (w[name].T if trans_b else w[name]) + beta * w[bias]

    c.add(op.Gemm(c.y, w, b, transA=int(turned), transB=trans_b, alpha=alpha, beta=beta), product)
    return True


def attend(c: Draft) -> bool:
    """Attention of the value with itself, its mask by Where."""
    s, r = c.shape, len(c.shape)
    if r < 3 or r - 2 == c.open or r - 1 == c.open or s[-2] > 128 or prod(s[:-1]) * s[-2] > 2 * c.size:
        return False
    factor, n = float(np.float32(s[-1] ** -0.5)), s[-2]
    perm = [*range(r - 2), r - 1, r - 2]
    masked = bool(c.rng.random() < 0.5)
    q, first = c.weight(s[-1], s[-1], scale=s[-1] ** -0.5) if s[-1] <= 256 else (None, "")
    mask = np.tril(np.ones((n, n), bool))
    x = c.y
    scores = (x if q is None else x @ q) * factor @ op.Transpose(x, perm=perm)
    by_hand = c.choose(True, False)
    if masked:
        scores = op.Where(constant(mask), scores, constant(np.float32(-1e9)))
    if by_hand:
        e = op.Exp(scores - op.ReduceMax(scores, [-1]))
        p = e / op.ReduceSum(e, [-1])
    else:
        p = op.Softmax(scores, axis=-1)

    def attention(h: Sequence[torch.Tensor], w: Tensors) -> torch.Tensor:
        x = h[-1]
        scores = (x @ w[first] if first else x) * factor @ x.transpose(-1, -2)
        if masked:
            scores = torch.where(torch.from_numpy(mask), scores, -1e9)
        return torch.softmax(scores, -1) @ x

    c.add(p @ x, attention)
    return True


def some_axes(c: Draft) -> list[int]:
    """Axes to reduce: the last, some last ones, or any."""
    r = len(c.shape)
    kind = c.choose("last", "tail", "any")
    if kind == "last":
        return [r - 1]
    if kind == "tail":
        return list(range(int(c.rng.integers(0, r)), r))
    return sorted(c.rng.choice(r, int(c.rng.integers(1, r + 1)), replace=False).tolist())


def broadcast_shape(c: Draft, axes: Sequence[int] | None = None) -> list[int]:
    """The shape of a weight along some axes, which broadcasts; leading axes of size 1 may be left out."""
    r = len(c.shape)
    if axes is None:
        axes = [i for i in range(r) if c.rng.random() < 0.5]
    sizes = [n if i in axes and i != c.open else 1 for i, n in enumerate(c.shape)]
    if prod(sizes) > 2**14:
        sizes = [n if i == r - 1 != c.open else 1 for i, n in enumerate(c.shape)]
    if prod(sizes) > 2**14:
        sizes = [1] * r
    while sizes and sizes[0] == 1 and c.rng.random() < 0.7:
        sizes.pop(0)
    return sizes or [1]


def normalize(c: Draft) -> bool:
    """A norm by hand, written in one of several ways, with scale and bias."""
    axes = some_axes(c)
    if prod(c.shape[a] for a in axes) < 4:
        return False
    x = c.y
    kind = c.choose("layer", "layer", "rms", "deviation")
    mean = op.ReduceMean(x, axes)
    centered = x if kind == "rms" else x - mean
    squares = op.Pow(centered, 2.0) if c.rng.random() < 0.5 else centered * centered
    v = op.ReduceMean(squares, axes)
    if kind == "deviation":
        v = op.ReduceMean(x * x, axes) - mean * mean
    root = op.Sqrt(v + 1e-2)
    normalized = centered / root if c.rng.random() < 0.5 else centered * op.Reciprocal(root)
    (scale, first), (b, second) = (c.weight(*broadcast_shape(c, axes), mean=m) for m in (1.0, 0.0))

    def norm(h: Sequence[torch.Tensor], w: Tensors) -> torch.Tensor:
        x = h[-1]
        v = x.square().mean(axes, keepdim=True) if kind == "rms" else x.var(axes, correction=0, keepdim=True)
        centered = x if kind == "rms" else x - x.mean(axes, keepdim=True)
        return centered / torch.sqrt(v + 1e-2) * w[first] + w[second]

    c.add(normalized * scale + b, norm)
    return True


def normalize_by_operator(c: Draft) -> bool:
    """LayerNormalization, InstanceNormalization or GroupNormalization."""
    r = len(c.shape)
    kind = c.choose("layer", "layer", "instance", "group")
    if kind == "layer":
        axis = int(c.rng.integers(1, r)) if r > 1 else 0
        sizes = c.shape[axis:]
        if (c.open is not None and c.open >= axis) or not 4 <= prod(sizes) <= 2**14:
            return False
        (w, first), (b, second) = c.weight(*sizes, mean=1.0), c.weight(*sizes)
        c.add(op.LayerNormalization(c.y, w, b, axis=axis), lambda h, w: F.layer_norm(
            h[-1], sizes, w[first], w[second]))
        return True
    if r < 3 or c.open not in (None, 0) or prod(c.shape[2:]) < 4 or c.shape[1] > 2**12:
        return False
    channels = c.shape[1]
    groups = channels if kind == "instance" else c.choose(*[g for g in range(1, min(channels, 8) + 1)
                                                             if channels % g == 0])
    (w, first), (b, second) = c.weight(channels, mean=1.0), c.weight(channels)
    y = op.InstanceNormalization(c.y, w, b) if kind == "instance" else op.GroupNormalization(
        c.y, w, b, num_groups=groups)
    c.add(y, lambda h, w: F.group_norm(h[-1], groups, w[first], w[second]))
    return True


def soften(c: Draft) -> bool:
    """Softmax: by hand in three ways, or by the operator, over any axis."""
    axis = int(c.rng.integers(len(c.shape)))
    n = c.shape[axis]
    if n < 2:
        return False
    x, kind = c.y, c.choose("maximum", "logsumexp", "plain", "operator", "log", "log by hand")
    if kind == "maximum":
        e = op.Exp(x - op.ReduceMax(x, [axis]))
        y = e / op.ReduceSum(e, [axis])
    elif kind == "logsumexp":
        y = op.Exp(x - op.ReduceLogSumExp(x, [axis]))
    elif kind == "plain":
        e = op.Exp(op.Tanh(x))
        y, x = e / op.ReduceSum(e, [axis]), None
    elif kind == "operator":
        y = op.Softmax(x, axis=axis)
    else:
        y = op.LogSoftmax(x, axis=axis) if kind == "log" else x - op.ReduceLogSumExp(x, [axis])
    is_log, is_plain = kind.startswith("log ") or kind == "log", kind == "plain"

    def softmax(h: Sequence[torch.Tensor], w: Tensors) -> torch.Tensor:
        x = torch.tanh(h[-1]) if is_plain else h[-1]
        return torch.log_softmax(x, axis) if is_log else torch.softmax(x, axis) * n

    c.add(y if is_log else y * float(n), softmax)
    return True


#: Reductions, in the notation and in torch; the sum of squares of many would be large.
REDUCTIONS: dict[str, Callable[[torch.Tensor, list[int], bool], torch.Tensor]] = {
    "ReduceMean": lambda x, a, k: x.mean(a, keepdim=k),
    "ReduceSum": lambda x, a, k: x.sum(a, keepdim=k),
    "ReduceLogSumExp": lambda x, a, k: torch.logsumexp(x, a, keepdim=k),
    "ReduceSumSquare": lambda x, a, k: x.square().sum(a, keepdim=k),
    "ReduceL2": lambda x, a, k: x.square().sum(a, keepdim=k).sqrt(),
    "ReduceMax": lambda x, a, k: x.amax(a, keepdim=k),
}


def reduce(c: Draft) -> bool:
    """A reduction that stays, or is combined with the value."""
    axes, name = some_axes(c), c.choose(*REDUCTIONS)
    n = prod(c.shape[a] for a in axes)
    if n < 2:
        return False
    c.kinks += name == "ReduceMax"
    f, reduction = getattr(op, name), REDUCTIONS[name]
    if n <= 16 and c.open not in axes and prod(c.shape) // n >= 256 and c.rng.random() < 0.5:
        if c.open is not None:
            c.open -= sum(a < c.open for a in axes)
        c.add(f(c.y, axes, keepdims=0), lambda h, w: reduction(h[-1], axes, False))
        return True
    c.add(c.y + op.Tanh(f(c.y, axes) / float(n)), lambda h, w: h[-1] + torch.tanh(reduction(h[-1], axes, True) / n))
    return True


def mean_of_squares(c: Draft) -> bool:
    """The value by the root of the mean of all its squares."""
    c.add(c.y / op.Sqrt(op.ReduceMean(op.Pow(c.y, 2.0), keepdims=0) + 0.1),
          lambda h, w: h[-1] / torch.sqrt(h[-1].square().mean() + 0.1))
    return True


def mean_of_products(c: Draft) -> bool:
    """The mean of products with a row, beside the value."""
    n = c.shape[-1]
    if n > 4096 or c.open == len(c.shape) - 1:
        return False
    w, name = c.weight(n)
    c.add(c.y + op.ReduceMean(c.y * w, [-1]), lambda h, w: h[-1] + (h[-1] * w[name]).mean(-1, keepdim=True))
    return True


def mask(c: Draft) -> bool:
    """A mask of a comparison, of many kinds; its threshold is far from every element."""
    number = c.threshold()
    c.kinks += 1
    x = c.y
    shifted = x - number
    kind = c.choose("relu", "relu", "where", "cast", "clip", "max", "abs", "leaky", "prelu", "where by another")
    table: dict[str, tuple[Callable[[], Value], Callable[[torch.Tensor], torch.Tensor]]] = {
        "relu": (lambda: op.Relu(shifted), lambda x: torch.relu(x - number)),
        "where": (lambda: op.Where(x > number, x, 0.3 * x), lambda x: torch.where(x > number, x, 0.3 * x)),
        "cast": (lambda: x * op.Cast(shifted > 0.0, to=1), lambda x: x * (x > number)),
        "clip": (lambda: op.Clip(x, number, number + 2.0), lambda x: torch.clamp(x, number, number + 2.0)),
        "max": (lambda: op.Max(x, number), lambda x: torch.clamp(x, min=number)),
        "abs": (lambda: op.Abs(shifted), lambda x: (x - number).abs()),
        "leaky": (lambda: op.LeakyRelu(shifted, alpha=0.125), lambda x: F.leaky_relu(x - number, 0.125)),
        "where by another": (lambda: op.Where(op.LessOrEqual(shifted, 0.0), op.Tanh(x), 1.0),
                             lambda x: torch.where(x <= number, torch.tanh(x), 1.0)),
    }
    if kind == "prelu":
        w, name = c.weight(*broadcast_shape(c), scale=0.3)
        c.add(op.PRelu(shifted, w), lambda h, w: torch.where(h[-1] > number, h[-1] - number,
                                                             w[name] * (h[-1] - number)))
        return True
    value, f = table[kind]
    c.add(value(), lambda h, w: f(h[-1]))
    return True


def broadcast(c: Draft) -> bool:
    """A weight that is broadcast, or an expression of one."""
    w, name = c.weight(*broadcast_shape(c))
    x = c.y
    kind = c.choose("add", "sub", "mul", "div", "reverse", "expand")
    if kind == "expand" and c.open is not None:
        kind = "mul"
    shape = list(c.shape)
    table: dict[str, tuple[Callable[[], Value], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
        "add": (lambda: x + w, lambda x, w: x + w),
        "sub": (lambda: w - x, lambda x, w: w - x),
        "mul": (lambda: x * w, lambda x, w: x * w),
        "div": (lambda: x / (1.0 + w * w), lambda x, w: x / (1 + w * w)),
        "reverse": (lambda: w / (1.0 + op.Abs(w) + x * x), lambda x, w: w / (1 + w.abs() + x * x)),
        "expand": (lambda: op.Expand(op.Tanh(w), shape) * x, lambda x, w: torch.tanh(w) * x),
    }
    value, f = table[kind]
    c.add(value(), lambda h, w: f(h[-1], w[name]))
    return True


def activate(c: Draft) -> bool:
    """Smooth functions, by hand and by operators."""
    half, root = np.float32(0.5), np.float32(2**-0.5)
    x = c.y
    table: dict[str, tuple[Callable[[], Value], Callable[[torch.Tensor], torch.Tensor]]] = {
        "gelu by hand": (lambda: half * x * (1.0 + op.Erf(x * root)), F.gelu),
        "gelu divided": (lambda: x * (1.0 + op.Erf(x / np.float32(2**0.5))) * half, F.gelu),
        "gelu": (lambda: op.Gelu(x), F.gelu),
        "gelu tanh": (lambda: op.Gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh")),
        "gelu tanh by hand": (
            lambda: half * x * (1.0 + op.Tanh(np.float32((2 / np.pi) ** 0.5) * (x + 0.044715 * x * x * x))),
            lambda x: F.gelu(x, approximate="tanh")),
        "silu": (lambda: x * op.Sigmoid(x), F.silu),
        "softplus": (lambda: op.Softplus(x), F.softplus),
        "tanh": (lambda: op.Tanh(x), torch.tanh),
        "exp": (lambda: op.Exp(-op.Tanh(x)), lambda x: torch.exp(-torch.tanh(x))),
        "log": (lambda: op.Log(1.0 + x * x), lambda x: torch.log(1 + x * x)),
        "power": (lambda: op.Pow(1.0 + x * x, 0.75) - x ** 3.0 * 0.1, lambda x: (1 + x * x) ** 0.75 - x**3 * 0.1),
        "root": (lambda: op.Sqrt(1.0 + x * x), lambda x: torch.sqrt(1 + x * x)),
        "negation": (lambda: -(-x * 0.5) - x * 0.125 + 0.125 * op.Tanh(x),
                     lambda x: 0.375 * x + 0.125 * torch.tanh(x)),
        "factors": (lambda: op.Tanh(x) * 0.25 - op.Sin(x) * 0.25, lambda x: 0.25 * (torch.tanh(x) - torch.sin(x))),
    }
    value, f = table[c.choose(*table)]
    c.add(value(), lambda h, w: f(h[-1]))
    return True


def cut(c: Draft) -> bool:
    """A slice with any start and step, also backwards."""
    if (i := c.axis(3)) is None:
        return False
    n, steps = c.shape[i], int(c.choose(1, 1, 2, -1, -2))
    places = np.arange(n)[slice(n - 1, None, steps) if steps < 0 else slice(int(c.rng.integers(0, n // 3 + 1)),
                                                                              n - int(c.rng.integers(0, n // 3)),
                                                                              steps)]
    start, end = int(places[0]), int(places[-1]) + (1 if steps > 0 else -1)
    end = end if end >= 0 else -n - 1
    index = torch.from_numpy(places.copy())
    c.add(op.Slice(c.y, [start], [end], [i], [steps]), lambda h, w: h[-1].index_select(i, index))
    return True


def gather(c: Draft) -> bool:
    """Gather with repeats."""
    if (i := c.axis(2)) is None:
        return False
    places = c.rng.integers(0, c.shape[i], max(1, int(c.shape[i] * c.rng.uniform(0.5, 1.2))))
    if prod(c.shape) * len(places) > 2 * c.size * c.shape[i]:
        return False
    c.add(op.Gather(c.y, constant(places), axis=i), lambda h, w: h[-1].index_select(i, torch.from_numpy(places)))
    return True


def join(c: Draft) -> bool:
    """Concat with a function of the value."""
    if (i := c.axis()) is None or 2 * prod(c.shape) > 2 * c.size:
        return False
    c.add(op.Concat(c.y, op.Tanh(c.y * 0.5), axis=i), lambda h, w: torch.cat([h[-1], torch.tanh(h[-1] * 0.5)], i))
    return True


def gate(c: Draft) -> bool:
    """Split in two, one half the gate of the other."""
    if (i := c.axis(2)) is None or c.shape[i] % 2:
        return False
    first, second = op.Split(c.y, axis=i, num_outputs=2)

    def glu(h: Sequence[torch.Tensor], w: Tensors) -> torch.Tensor:
        a, b = h[-1].chunk(2, i)
        return a * torch.sigmoid(b)

    c.add(first * op.Sigmoid(second), glu)
    return True


def pad(c: Draft) -> bool:
    """Zeros, or a number, around an axis."""
    if (i := c.axis(2)) is None or prod(c.shape) > 1.5 * c.size:
        return False
    before, after, number = int(c.rng.integers(0, 3)), int(c.rng.integers(0, 3)), float(c.choose(0.0, 1.5))
    r = len(c.shape)
    pads = [0] * 2 * r
    pads[i], pads[r + i] = before, after
    c.add(op.Pad(c.y, pads, np.float32(number)), lambda h, w: pad_torch(h[-1], pads, number))
    return True


def add_former(c: Draft) -> bool:
    """A residual: the sum with a former value of the same shape."""
    places = [i for i, v in enumerate(c.values[:-1]) if v.shape == c.y.shape and v.is_static]
    if not places or c.open is not None:
        return False
    i, sign = c.choose(*places), float(c.choose(1.0, 0.5, -1.0))
    former = c.values[i]
    c.add(c.y + (former if sign == 1 else former * sign), lambda h, w: h[-1] + h[i] * sign)
    return True


def add_turned(c: Draft) -> bool:
    """The sum with the value itself, its last two axes swapped, or turned to and fro."""
    s, r = c.shape, len(c.shape)
    if r < 2 or c.open is not None:
        return False
    perm = [*range(r - 2), r - 1, r - 2]
    if s[-1] == s[-2]:
        c.add(c.y + op.Transpose(op.Tanh(c.y), perm=perm), lambda h, w: h[-1] + torch.tanh(h[-1]).transpose(-1, -2))
    else:
        turned = op.Sin(op.Transpose(c.y, perm=perm))
        c.add(c.y + op.Transpose(turned, perm=perm), lambda h, w: h[-1] + torch.sin(h[-1]))
    return True


def embed(c: Draft) -> bool:
    """Rows of a table, chosen by constant indices, added along the last axes."""
    r = len(c.shape)
    if r < 2 or c.open in (r - 1, r - 2) or c.shape[-1] > 512 or c.shape[-2] > 2**13:
        return False
    places = c.rng.integers(0, 17, c.shape[-2])
    w, name = c.weight(17, c.shape[-1])
    c.add(c.y + op.Gather(w, constant(places)), lambda h, w: h[-1] + w[name][torch.from_numpy(places)])
    return True


#: Steps, and how often each is drawn.
STEPS: dict[Callable[[Draft], bool], int] = {
    transpose: 8, turn_images: 4, reshape: 4, convolve: 6, convolve_transposed: 1, pool: 2, pool_globally: 1,
    multiply: 6, gemm: 2, attend: 2, normalize: 4, normalize_by_operator: 2, soften: 3, reduce: 3, mean_of_squares: 1,
    mean_of_products: 1, mask: 4, broadcast: 4, activate: 4, cut: 2, gather: 2, join: 1, gate: 1, pad: 1, add_former: 2,
    add_turned: 2, embed: 1}


def draw_shape(rng: np.random.Generator, size: int) -> list[int]:
    """Sizes of three to five axes, of about so many elements, the first of them that of the batch."""
    r, batch = int(rng.integers(3, 6)), int(rng.choice([2, 4, 4, 8, 16]))
    rest, sizes = max(8.0, size / batch), []
    for i in range(r - 2):
        n = max(2, round(rest ** (1 / (r - 1 - i)) * float(rng.choice([0.5, 0.75, 1.0, 1.5, 2.0]))))
        sizes.append(n if n < 8 or rng.random() < 0.3 else n // 4 * 4)
        rest /= sizes[-1]
    return [batch, *sizes, max(2, round(rest))]


def draw_chain(seed: int, size: int, steps: int = 7) -> Chain:
    """A network of a seed.

    Parameters
    ----------
    seed : int
        Of all its random numbers.
    size : int
        About the number of elements of its values.
    steps : int
        About the number of steps.

    Returns
    -------
    Chain
    """
    rng = np.random.default_rng(seed)
    shape = draw_shape(rng, size)
    is_open = bool(rng.random() < 0.25)
    c = Draft(rng, size, shape[0], open=0 if is_open else None)
    x = variable("x", "float32", ["N" if is_open else shape[0], *shape[1:]])
    rows = rng.normal(size=shape).astype(np.float32)
    c.values.append(x)
    c.tensors.append(torch.from_numpy(rows).double())
    kinds, odds = list(STEPS), np.array(list(STEPS.values())) / sum(STEPS.values())
    while len(c.names) < steps or not c.weights:
        step = broadcast if len(c.names) >= steps else kinds[rng.choice(len(kinds), p=odds)]
        before, mark = c.shape, c.mark()
        if step(c) and 16 * prod(c.shape) >= min(size, prod(shape)):
            c.names.append(f"{step.__name__} {list(before)} {list(c.shape)}")
            c.rescale()
        else:
            c.go_back(mark)
    _finish(c)
    if not c.weights:
        return draw_chain(seed + 2**20, size, steps)
    model = build([x], {"y": c.y})
    t = rng.normal(size=c.shape).astype(np.float32)
    return Chain(seed, model, c.weights, rows, t, c.functions, c.names, c.kinks)


def _finish(c: Draft) -> None:
    """A row for each row of the batch: the open axis first, or all elements but those of an incomplete row."""
    if c.open is not None:
        if c.open:
            permute(c, [c.open, *(i for i in range(len(c.shape)) if i != c.open)])
        c.reshape([c.batch, prod(c.shape[1:])], 0)
        return
    n, total = c.batch, prod(c.shape)
    rest = total // n
    if not rest:
        c.add(op.Expand(op.Reshape(c.y, [1, -1]), [n, total]), lambda h, w: h[-1].reshape(1, -1).expand(n, total))
    elif total % n:
        c.add(op.Reshape(op.Slice(op.Reshape(c.y, [-1]), [0], [n * rest]), [n, rest]),
              lambda h, w: h[-1].reshape(-1)[: n * rest].reshape(n, rest))
    else:
        c.reshape([n, rest])


def take_steps(chain: Chain, rate: float, count: int, dtype: torch.dtype = torch.float64) -> dict[str, np.ndarray]:
    """The weights after steps of gradient descent on the mean of squares, by torch."""
    weights = {n: torch.from_numpy(a).to(dtype).requires_grad_() for n, a in chain.weights.items()}
    x, t = torch.from_numpy(chain.x).to(dtype), torch.from_numpy(chain.t).to(dtype)
    for _ in range(count):
        gradients = torch.autograd.grad((chain(x, weights) - t).square().mean(), list(weights.values()))
        weights = {n: (w - rate * g).detach().requires_grad_()
                   for (n, w), g in zip(weights.items(), gradients, strict=True)}
    return {n: w.detach().numpy() for n, w in weights.items()}


#: The seeds of chains that always run.
SAMPLE = range(1000, 1020)


def size_of(seed: int) -> int:
    """About the number of elements of the values of a chain; those of `SAMPLE` are small but for every tenth."""
    most = 14.0 if seed in SAMPLE and seed % 10 else 21.0
    return int(2 ** np.random.default_rng(seed).uniform(10, most))


def measure(actual: np.ndarray, expected: np.ndarray, kinks: int = 0) -> float:
    """max|a - e| / max|e|, where kinks leave out one element of 500, as rounding may take it to the other side."""
    error = abs(actual.astype(np.float64) - expected).ravel()
    if not np.isfinite(error).all():
        return np.inf
    error = np.sort(error)[len(error) - 1 - (len(error) // 500 if kinks else 0)]
    largest = abs(expected).max()
    return float(error / largest) if largest > 0 else float(error)
