"""Modules of torch as users export them: their calls, state, control flow and operators, with example inputs."""

import math
from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as f
from torch.utils._pytree import tree_flatten
from torch.utils.checkpoint import checkpoint

#: Name of a module, a factory of it, and of its inputs.
MODULES: dict[str, "Exported"] = {}


@dataclass(frozen=True)
class Exported:
    """A module with the inputs of a call.

    Parameters
    ----------
    make : callable
        Makes the module.
    inputs : callable
        Makes positional arguments, a tuple, whose floating-point tensors need a gradient.
    named : callable
        Makes arguments by name.
    training : bool
        Whether it is also tried in training mode.
    tolerance : float
        Of outputs and gradients, relative to the largest number of each.
    """

    make: Any
    inputs: Any
    named: Any = field(default=dict)
    training: bool = False
    tolerance: float = 2e-5


class Function(nn.Module):
    """A function with parameters of some shapes."""

    def __init__(self, function, shapes=()):
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(s) / 2) for s in shapes])

    def forward(self, *inputs):
        return self.function(*inputs, *self.weights)


def real(*shape, low=None, high=None, dtype=torch.float32):
    """Normal numbers, or uniform ones between two bounds."""
    t = torch.randn(shape) if low is None else torch.rand(shape) * (high - low) + low
    return t.to(dtype)


def whole(n, *shape):
    return torch.randint(n, shape)


def truth(*shape):
    return torch.rand(shape) > 0.4


def add(name, make, inputs, **settings):
    assert name not in MODULES, name
    MODULES[name] = Exported(make, inputs, **settings)


def add_function(name, function, inputs, *shapes, **settings):
    """A function of inputs, then parameters of these shapes."""
    add(name, lambda: Function(function, shapes), inputs, **settings)


def xw(function):
    """A function of a linear layer, so that parameters have a gradient through it."""
    return lambda x, w: function(x @ w)


# -- elementwise functions behind a product -------------------------------------------------------------------------

for name, function in {
    "abs": torch.abs, "acos": lambda x: torch.acos(x.tanh() * 0.9), "asin": lambda x: torch.asin(x.tanh() * 0.9),
    "atan": torch.atan, "ceil": lambda x: torch.ceil(x) * x, "cos": torch.cos, "cosh": torch.cosh, "erf": torch.erf,
    "erfc": torch.erfc, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "floor": lambda x: x.floor() + x,
    "frac": torch.frac, "log": lambda x: torch.log(x.exp() + 1), "log10": lambda x: torch.log10(x * x + 1),
    "log1p": lambda x: torch.log1p(x * x), "log2": lambda x: torch.log2(x * x + 1), "neg": torch.neg,
    "reciprocal": lambda x: torch.reciprocal(x * x + 1), "round": lambda x: torch.round(x) + x * x,
    "rsqrt": lambda x: torch.rsqrt(x * x + 1), "sigmoid": torch.sigmoid, "sign": lambda x: torch.sign(x) * x,
    "sin": torch.sin, "sinh": torch.sinh, "sqrt": lambda x: torch.sqrt(x * x + 1), "square": torch.square,
    "tan": lambda x: torch.tan(x / 4), "tanh": torch.tanh, "trunc": lambda x: torch.trunc(x) - x,
    "clamp": lambda x: x.clamp(-0.5, 0.5), "clamp_min": lambda x: x.clamp(min=0.1),
    "clamp_tensor": lambda x: torch.clamp(x, torch.tensor(-0.3), torch.tensor(0.4)),
    "celu": f.celu, "elu": f.elu, "gelu": f.gelu, "gelu_tanh": lambda x: f.gelu(x, approximate="tanh"),
    "hardsigmoid": f.hardsigmoid, "hardswish": f.hardswish, "hardtanh": f.hardtanh, "leaky_relu": f.leaky_relu,
    "logsigmoid": f.logsigmoid, "mish": f.mish, "relu": f.relu, "relu6": f.relu6, "selu": f.selu, "silu": f.silu,
    "softplus": f.softplus, "softsign": f.softsign, "softshrink": f.softshrink, "hardshrink": f.hardshrink,
    "tanhshrink": f.tanhshrink, "threshold": lambda x: f.threshold(x, 0.1, 0.2), "softmin": lambda x: f.softmin(x, 1),
    "glu": lambda x: f.glu(x, 1), "softmax": lambda x: x.softmax(-1), "log_softmax": lambda x: x.log_softmax(-1),
    "pow": lambda x: x.pow(2) + x.abs().pow(1.5), "powers": lambda x: (x.abs() + 0.1) ** x.tanh(),
    "remainder": lambda x: torch.remainder(x, 0.7), "fmod": lambda x: torch.fmod(x, 0.7),
    "maximum": lambda x: torch.maximum(x, x.flip(0)), "minimum": lambda x: torch.minimum(x, x * x),
    "atan2": lambda x: torch.atan2(x, x.abs() + 1), "hypot": lambda x: torch.hypot(x, x + 2),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3), "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "addcdiv": lambda x: torch.addcdiv(x, x, x * x + 1), "logaddexp": lambda x: torch.logaddexp(x, x * 2),
    "xlogy": lambda x: torch.special.xlogy(x, x * x + 1), "nan_to_num": torch.nan_to_num,
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 0.1), "where": lambda x: torch.where(x > 0, x * 2, x.exp()),
    "where_scalar": lambda x: torch.where(x > 0, x, 0.0), "isfinite": lambda x: x * torch.isfinite(x),
    "normalize": lambda x: f.normalize(x, dim=1), "layer_norm_function": lambda x: f.layer_norm(x, (4,)),
}.items():
    add_function(name, xw(function), lambda: (real(3, 5),), (5, 4))

# -- reductions, order and position ---------------------------------------------------------------------------------

for name, function in {
    "sum": lambda x: x.sum(), "sum_axis": lambda x: x.sum(1), "sum_axes": lambda x: x.sum((0, 2), keepdim=True),
    "mean": lambda x: x.mean(), "mean_axis": lambda x: x.mean(-1, keepdim=True), "var": lambda x: x.var(1),
    "var_biased": lambda x: x.var(1, unbiased=False), "std": lambda x: x.std(2), "std_all": lambda x: x.std(),
    "var_mean": lambda x: torch.var_mean(x, 1), "prod": lambda x: x.prod(1), "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin((1, 2)), "max_axis": lambda x: x.max(2), "min_axis": lambda x: x.min(1),
    "max_all": lambda x: x.max(), "logsumexp": lambda x: x.logsumexp(1), "norm": lambda x: x.norm(),
    "norm_axis": lambda x: x.norm(dim=1), "norm_1": lambda x: torch.linalg.vector_norm(x, 1, dim=1),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, math.inf, dim=2), "cumsum": lambda x: x.cumsum(1),
    "argmax": lambda x: (x.argmax(1), x * 2), "sort": lambda x: x.sort(2),
    "sort_descending": lambda x: x.sort(1, descending=True)[0], "argsort": lambda x: x.gather(1, x.argsort(1)),
    "topk": lambda x: x.topk(2, 2), "topk_smallest": lambda x: x.topk(2, 1, largest=False)[0],
    "kthvalue": lambda x: x.kthvalue(2, 1)[0], "median": lambda x: x.median(1)[0],
    "all_any": lambda x: ((x > -9).all(), (x > 0).any(1), x * x), "count": lambda x: (x > 0).sum(1) * x.sum(1),
    "flip": lambda x: x.flip(1), "roll": lambda x: x.roll(1, 2), "repeat": lambda x: x.repeat(2, 1, 2),
    "tile": lambda x: torch.tile(x, (1, 2, 1)), "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "expand": lambda x: x[:, :1].expand(-1, 4, -1) * 2, "broadcast_to": lambda x: x[:1].broadcast_to(5, 3, 4),
    "permute": lambda x: x.permute(2, 0, 1), "transpose": lambda x: x.transpose(1, 2), "swapaxes": lambda x:
    x.swapaxes(0, 2), "movedim": lambda x: x.movedim(0, 2), "reshape": lambda x: x.reshape(x.shape[0], -1),
    "view": lambda x: x.view(-1, 4), "flatten": lambda x: x.flatten(1), "unflatten": lambda x: x.unflatten(2, (2, 2)),
    "squeeze": lambda x: x[:, :1].squeeze(1), "unsqueeze": lambda x: x.unsqueeze(1) * x.unsqueeze(2),
    "split": lambda x: x.split([1, 3], 2), "chunk": lambda x: x.chunk(2, 2), "unbind": lambda x: x.unbind(1),
    "tensor_split": lambda x: torch.tensor_split(x, 2, 2), "narrow": lambda x: x.narrow(2, 1, 2),
    "select": lambda x: x.select(1, -1), "slices": lambda x: x[:, 1:, ::2], "ellipsis": lambda x: x[..., -1],
    "negative_index": lambda x: x[:, -2], "none_index": lambda x: x[:, None, 0], "diagonal": lambda x:
    torch.diagonal(x, dim1=1, dim2=2), "tril": lambda x: x.tril(), "triu": lambda x: x.triu(1),
    "pad": lambda x: f.pad(x, (1, 2)), "pad_value": lambda x: f.pad(x, (1, 0, 2, 1), value=0.5),
    "pad_negative": lambda x: f.pad(x, (-1, 1)), "pad_reflect": lambda x: f.pad(x, (1, 2), mode="reflect"),
    "pad_replicate": lambda x: f.pad(x, (2, 1), mode="replicate"),
    "pad_circular": lambda x: f.pad(x, (1, 1), mode="circular"), "cat": lambda x: torch.cat([x, x * 2], 1),
    "stack": lambda x: torch.stack([x, x.exp()], 1),
    "hstack": lambda x: torch.hstack([x, x]), "cdist": lambda x: torch.cdist(x, x + 1), "unfold": lambda x:
    x.unfold(2, 2, 1), "index_select": lambda x: x.index_select(1, torch.tensor([2, 0])), "take_along_dim": lambda x:
    x.take_along_dim(x.argmax(1, keepdim=True), 1), "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x * 2),
    "einsum_sum": lambda x: torch.einsum("bij->b", x), "baddbmm": lambda x: torch.baddbmm(x[:, :, :3], x,
                                                                                          x.transpose(1, 2)),
    "cosine_similarity": lambda x: f.cosine_similarity(x, x.flip(0), dim=2), "pairwise_distance": lambda x:
    f.pairwise_distance(x, x.flip(1) + 1), "outer": lambda x: torch.outer(x[0, 0], x[1, 1]), "dot": lambda x:
    torch.dot(x[0, 0], x[1, 1]), "mv": lambda x: torch.mv(x[0], x[1, 0]), "addmm": lambda x:
    torch.addmm(x[0, :, :3], x[0], x[1].t(), beta=0.5, alpha=2), "kron": lambda x: torch.kron(x[0], x[1]),
    "cross": lambda x: torch.linalg.cross(x, x.flip(0) * 2, dim=1), "diff": lambda x: torch.diff(x, dim=2),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, 1], indexing="ij"), "one_hot": lambda x: x @
    f.one_hot(torch.tensor([0, 2, 1, 3]), 5).float(), "arange": lambda x: x + torch.arange(x.shape[2]),
    "full_like": lambda x: x * torch.full_like(x, 3.0), "eye": lambda x: x @ torch.eye(4), "logcumsumexp": lambda x:
    x.logcumsumexp(1), "cumprod": lambda x: x.cumprod(1), "trace": lambda x: x[0, :, :3].trace(), "det": lambda x:
    torch.det(x[:, :, :3]), "bucketize": lambda x: x * torch.bucketize(x.detach(), torch.tensor([-1.0, 0, 1])),
    "aminmax": lambda x: torch.aminmax(x, dim=1), "quantile": lambda x: x.quantile(0.5, 1), "unique": lambda x:
    (x.detach().round().unique(), x), "nonzero": lambda x: (x > 0).nonzero(), "masked_select": lambda x: x[x > 0],
}.items():
    add_function(name, lambda x, w, function=function: function(x * w), lambda: (real(2, 3, 4),), (4,))

# -- indexing with tensors, writes in place -------------------------------------------------------------------------


def write(change):
    """A function that changes a copy of x w in place."""

    def apply(x, w):
        y = (x @ w).clone()
        change(y)
        return y * 2

    return apply


def write_rows(y):
    y[0] = y[1] * 3


def write_part(y):
    y[:, 1:3] += 1


def write_mask(y):
    y[y > 0] = 0.5


def write_input(x):
    x.mul_(2)
    return x + 1


def fill_in_loop(x):
    y = torch.zeros_like(x)
    for i in range(3):
        y[:, i] = x[:, i] * (i + 1)
    return y


def stack_in_loop(x):
    states = [x[:, 0]]
    for i in range(1, 4):
        states.append(states[-1].tanh() + x[:, i])
    return torch.stack(states, 1)


for name, change in {
    "add_": lambda y: y.add_(1), "mul_": lambda y: y.mul_(y.detach().clone()), "relu_": f.relu_, "clamp_": lambda y:
    y.clamp_(-0.5, 0.5), "zero_": lambda y: y[:, 0].zero_(), "fill_": lambda y: y[1].fill_(2), "copy_": lambda y:
    y[0].copy_(y[1] * 2), "masked_fill_": lambda y: y.masked_fill_(y > 0, 3), "write_rows": write_rows, "write_part":
    write_part, "write_mask": write_mask, "index_add_": lambda y: y.index_add_(0, torch.tensor([0, 2]), y[:2] * 2),
    "index_copy_": lambda y: y.index_copy_(0, torch.tensor([0, 2]), y[:2] * 2), "index_fill_": lambda y:
    y.index_fill_(1, torch.tensor([0, 2]), 3.0), "index_put_": lambda y: y.index_put_((torch.tensor([0, 1]),
                                                                                     torch.tensor([1, 2])),
                                                                                    torch.tensor([1.0, 2])),
    "scatter_": lambda y: y.scatter_(1, torch.tensor([[0], [1], [2]]), 1.5), "unsqueeze_": lambda y: y.unsqueeze_(1),
}.items():
    add_function(name, write(change), lambda: (real(3, 5),), (5, 4))
add_function("write_to_the_input", lambda x, w: write_input(x * w), lambda: (real(3, 4).mul(1),), (4,))
add_function("fill_in_loop", xw(fill_in_loop), lambda: (real(3, 5),), (5, 4))
add_function("stack_in_loop", xw(stack_in_loop), lambda: (real(3, 5),), (5, 4))
add_function("gather", lambda x, i, w: (x @ w).gather(1, i), lambda: (real(3, 5), whole(4, 3, 2)), (5, 4))
add_function("index", lambda x, i, w: (x @ w)[i], lambda: (real(3, 5), whole(3, 6)), (5, 4))
add_function("two_indices", lambda x, i, j, w: (x @ w)[i, j], lambda: (real(3, 5), whole(3, 6), whole(4, 6)), (5, 4))
add_function("index_and_slice", lambda x, i, w: (x @ w)[:, i], lambda: (real(3, 5), whole(4, 2)), (5, 4))
add_function("mask_input", lambda x, m, w: (x @ w).masked_fill(~m, -1.0), lambda: (real(3, 5), truth(3, 4)), (5, 4))
add_function("bool_logic", lambda x, m, w: (x @ w) * (m & (x[:, :4] > 0) | ~m).float(),
             lambda: (real(3, 5), truth(3, 4)), (5, 4))
add_function("scatter", lambda x, i, w: torch.zeros(3, 6).scatter(1, i, x @ w),
             lambda: (real(3, 5), torch.stack([torch.randperm(6)[:4] for _ in range(3)])), (5, 4))
add_function("scatter_add", lambda x, i, w: torch.zeros(3, 6).scatter_add(1, i, x @ w),
             lambda: (real(3, 5), whole(6, 3, 4)), (5, 4))
add_function("scatter_reduce", lambda x, i, w: torch.zeros(3, 6).scatter_reduce(1, i, x @ w, "amax"),
             lambda: (real(3, 5), whole(6, 3, 4)), (5, 4))
add_function("index_put_accumulate", lambda x, i, w: torch.zeros(4, 4).index_put((i,), x @ w, accumulate=True),
             lambda: (real(3, 5), whole(4, 3)), (5, 4))
add_function("index_add", lambda x, i, w: torch.zeros(4, 4).index_add(0, i, x @ w), lambda: (real(3, 5), whole(4, 3)),
             (5, 4))
add_function("embedding_function", f.embedding, lambda: (whole(6, 3, 2),), (6, 4))
add_function("isin", lambda x, i, w: (x @ w) * torch.isin(i, torch.tensor([1, 2])), lambda:
             (real(3, 5), whole(4, 3, 4)), (5, 4))
add_function("integer_arithmetic", lambda x, i, w: ((x @ w) * (i // 2 + i % 3), i * 2 - 1), lambda:
             (real(3, 5), whole(9, 3, 4)), (5, 4))
add_function("shifts", lambda x, i, w: ((x @ w) * (i >> 1), i & 3, i ^ 1), lambda: (real(3, 5), whole(9, 3, 4)), (5, 4))
add_function("double", lambda x, w: (x @ w.double()).tanh(), lambda: (real(3, 5, dtype=torch.float64),), (5, 4))
add_function("to_double_and_back", lambda x, w: (x.double() @ w.double()).float(), lambda: (real(3, 5),), (5, 4))
add_function("half", lambda x, w: (x @ w.half()).float(), lambda: (real(3, 5, dtype=torch.float16),), (5, 4),
             tolerance=2e-2)
add_function("scalar_input", lambda x, s, w: (x @ w) * s, lambda: (real(3, 5), real()), (5, 4))
add_function("detached", lambda x, w: (x @ w) * (x @ w).detach(), lambda: (real(3, 5),), (5, 4))


# -- layers ---------------------------------------------------------------------------------------------------------

class First(nn.Module):
    """The first output of a module."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *inputs):
        return self.module(*inputs)[0]


def image(*shape):
    return lambda: (real(*(shape or (2, 4, 6, 6))),)


for name, make, inputs in [
    ("Linear", lambda: nn.Linear(5, 4), image(3, 5)),
    ("Linear_without_bias", lambda: nn.Linear(5, 4, bias=False), image(2, 3, 5)),
    ("Bilinear", lambda: nn.Bilinear(3, 4, 2), lambda: (real(2, 3), real(2, 4))),
    ("Identity", lambda: nn.Sequential(nn.Identity(), nn.Linear(4, 4)), image(2, 4)),
    ("Conv1d", lambda: nn.Conv1d(4, 3, 3, padding=1), image(2, 4, 7)),
    ("Conv2d", lambda: nn.Conv2d(4, 3, 3, stride=2, padding=1), image()),
    ("Conv2d_groups", lambda: nn.Conv2d(4, 4, 3, groups=2, dilation=2), image()),
    ("Conv2d_depthwise", lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), image()),
    ("Conv2d_same", lambda: nn.Conv2d(4, 3, 3, padding="same"), image()),
    ("Conv2d_reflect", lambda: nn.Conv2d(4, 3, 3, padding=1, padding_mode="reflect"), image()),
    ("Conv2d_circular", lambda: nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular"), image()),
    ("Conv3d", lambda: nn.Conv3d(2, 3, 2), image(1, 2, 4, 4, 4)),
    ("ConvTranspose1d", lambda: nn.ConvTranspose1d(4, 3, 3, stride=2), image(2, 4, 5)),
    ("ConvTranspose2d", lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1), image()),
    ("ConvTranspose2d_groups", lambda: nn.ConvTranspose2d(4, 4, 3, groups=2), image()),
    ("MaxPool1d", lambda: nn.Sequential(nn.Conv1d(4, 4, 1), nn.MaxPool1d(2)), image(2, 4, 6)),
    ("MaxPool2d", lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.MaxPool2d(3, 2, 1)), image()),
    ("MaxPool2d_ceil", lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.MaxPool2d(2, 2, ceil_mode=True)),
     image(2, 4, 5, 5)),
    ("MaxPool2d_indices", lambda: nn.MaxPool2d(2, return_indices=True), image()),
    ("MaxPool3d", lambda: nn.MaxPool3d(2), image(1, 2, 4, 4, 4)),
    ("AvgPool1d", lambda: nn.AvgPool1d(2), image(2, 4, 6)),
    ("AvgPool2d", lambda: nn.AvgPool2d(3, 2, 1), image()),
    ("AvgPool2d_uncounted", lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), image()),
    ("AvgPool3d", lambda: nn.AvgPool3d(2), image(1, 2, 4, 4, 4)),
    ("AdaptiveAvgPool2d", lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)), image()),
    ("AdaptiveAvgPool2d_divisor", lambda: nn.AdaptiveAvgPool2d((3, 2)), image()),
    ("AdaptiveMaxPool2d", lambda: nn.AdaptiveMaxPool2d((3, 2)), image()),
    ("LPPool2d", lambda: nn.LPPool2d(2, 2), lambda: (real(2, 4, 6, 6, low=0.1, high=1),)),
    ("GroupNorm", lambda: nn.GroupNorm(2, 4), image()),
    ("LayerNorm", lambda: nn.LayerNorm(6), image()),
    ("LayerNorm_plain", lambda: nn.LayerNorm((6, 6), elementwise_affine=False), image()),
    ("RMSNorm", lambda: nn.RMSNorm(6), image()),
    ("InstanceNorm2d", lambda: nn.InstanceNorm2d(4, affine=True), image()),
    ("LocalResponseNorm", lambda: nn.LocalResponseNorm(3), image()),
    ("PReLU", lambda: nn.PReLU(), image()),
    ("PReLU_channels", lambda: nn.PReLU(4), image()),
    ("PixelShuffle", lambda: nn.PixelShuffle(2), image()),
    ("PixelUnshuffle", lambda: nn.PixelUnshuffle(2), image()),
    ("ChannelShuffle", lambda: nn.ChannelShuffle(2), image()),
    ("ZeroPad2d", lambda: nn.ZeroPad2d((1, 2, 0, 1)), image()),
    ("ReflectionPad2d", lambda: nn.ReflectionPad2d(2), image()),
    ("ReplicationPad2d", lambda: nn.ReplicationPad2d(2), image()),
    ("Upsample_nearest", lambda: nn.Upsample(scale_factor=2), image()),
    ("Upsample_bilinear", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), image()),
    ("Upsample_corners", lambda: nn.Upsample(size=(9, 8), mode="bilinear", align_corners=True), image()),
    ("Upsample_bicubic", lambda: nn.Upsample(scale_factor=2, mode="bicubic"), image()),
    ("Unfold", lambda: nn.Unfold(2), image()),
    ("Fold", lambda: nn.Fold((4, 4), 2, stride=2), image(1, 8, 4)),
    ("Embedding", lambda: nn.Embedding(7, 4), lambda: (whole(7, 3, 2),)),
    ("Embedding_padding", lambda: nn.Embedding(7, 4, padding_idx=0), lambda: (whole(7, 3, 2),)),
    ("EmbeddingBag", lambda: nn.EmbeddingBag(7, 4, mode="sum"), lambda: (whole(7, 3, 2),)),
    ("LSTM", lambda: nn.LSTM(4, 3, batch_first=True), image(2, 5, 4)),
    ("LSTM_bidirectional", lambda: First(nn.LSTM(4, 3, 2, bidirectional=True)), image(5, 2, 4)),
    ("LSTM_projected", lambda: First(nn.LSTM(4, 3, proj_size=2)), image(5, 2, 4)),
    ("GRU", lambda: nn.GRU(4, 3), lambda: (real(5, 2, 4), real(1, 2, 3))),
    ("GRU_bidirectional", lambda: First(nn.GRU(4, 3, 2, batch_first=True, bidirectional=True)), image(2, 5, 4)),
    ("RNN", lambda: nn.RNN(4, 3), image(5, 2, 4)),
    ("RNN_relu", lambda: First(nn.RNN(4, 3, nonlinearity="relu")), image(5, 2, 4)),
    ("LSTMCell", lambda: nn.LSTMCell(4, 3), image(2, 4)),
    ("GRUCell", lambda: nn.GRUCell(4, 3), image(2, 4)),
    ("Softmax2d", lambda: nn.Softmax2d(), image()),
    ("CosineSimilarity", lambda: nn.CosineSimilarity(), lambda: (real(3, 4), real(3, 4))),
    ("MultiheadAttention", lambda: nn.MultiheadAttention(4, 2, batch_first=True),
     lambda: (real(2, 3, 4), real(2, 3, 4), real(2, 3, 4))),
    ("MultiheadAttention_output", lambda: First(nn.MultiheadAttention(4, 2)),
     lambda: (real(3, 2, 4), real(3, 2, 4), real(3, 2, 4))),
    ("TransformerEncoderLayer", lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), image(2, 3, 8)),
    ("TransformerEncoderLayer_first", lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, norm_first=True,
                                                                         activation="gelu"), image(3, 2, 8)),
    ("TransformerDecoderLayer", lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0), lambda:
     (real(3, 2, 8), real(4, 2, 8))),
    ("Transformer", lambda: nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True),
     lambda: (real(2, 3, 8), real(2, 4, 8))),
    ("AlphaDropout", lambda: nn.Sequential(nn.Linear(4, 4), nn.AlphaDropout(0.5)), image(2, 4)),
    ("Dropout", lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)), image(2, 4)),
]:
    add(name, make, inputs, tolerance=5e-5)
for name, make, inputs in [
    ("BatchNorm1d", lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), image(5, 4)),
    ("BatchNorm2d", lambda: nn.Sequential(nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3), nn.ReLU()), image()),
    ("BatchNorm3d", lambda: nn.BatchNorm3d(2), image(2, 2, 3, 3, 3)),
    ("BatchNorm_plain", lambda: nn.BatchNorm2d(4, affine=False), image()),
    ("BatchNorm_momentum", lambda: nn.BatchNorm2d(4, momentum=0.3), image()),
    ("BatchNorm_twice", lambda: nn.Sequential(*[nn.BatchNorm1d(4)] * 2), image(5, 4)),
]:
    add(name, make, inputs, training=True, tolerance=5e-5)

# -- losses within the module ---------------------------------------------------------------------------------------

for name, loss, target in [
    ("mse_loss", f.mse_loss, lambda: real(3, 4)), ("l1_loss", f.l1_loss, lambda: real(3, 4)),
    ("smooth_l1_loss", f.smooth_l1_loss, lambda: real(3, 4)), ("huber_loss", f.huber_loss, lambda: real(3, 4)),
    ("mse_loss_elements", lambda y, t: f.mse_loss(y, t, reduction="none"), lambda: real(3, 4)),
    ("mse_loss_sum", lambda y, t: f.mse_loss(y, t, reduction="sum"), lambda: real(3, 4)),
    ("cross_entropy", f.cross_entropy, lambda: whole(4, 3)),
    ("cross_entropy_smoothed", lambda y, t: f.cross_entropy(y, t, label_smoothing=0.1), lambda: whole(4, 3)),
    ("cross_entropy_ignored", lambda y, t: f.cross_entropy(y, t, ignore_index=1), lambda: torch.tensor([1, 0, 3])),
    ("cross_entropy_weighted", lambda y, t: f.cross_entropy(y, t, torch.tensor([1.0, 2, 3, 4])), lambda: whole(4, 3)),
    ("cross_entropy_shares", f.cross_entropy, lambda: real(3, 4).softmax(1)),
    ("nll_loss", lambda y, t: f.nll_loss(y.log_softmax(1), t), lambda: whole(4, 3)),
    ("bce_with_logits", f.binary_cross_entropy_with_logits, lambda: truth(3, 4).float()),
    ("bce", lambda y, t: f.binary_cross_entropy(y.sigmoid(), t), lambda: truth(3, 4).float()),
    ("kl_div", lambda y, t: f.kl_div(y.log_softmax(1), t, reduction="batchmean"), lambda: real(3, 4).softmax(1)),
    ("poisson_nll", f.poisson_nll_loss, lambda: whole(4, 3, 4).float()),
    ("hinge_embedding", f.hinge_embedding_loss, lambda: truth(3, 4).float() * 2 - 1),
    ("soft_margin", lambda y, t: f.soft_margin_loss(y, t.detach()), lambda: truth(3, 4).float() * 2 - 1),
    ("gaussian_nll", lambda y, t: f.gaussian_nll_loss(y, t, torch.ones(3, 4)), lambda: real(3, 4)),
    ("triplet_margin", lambda y, t: f.triplet_margin_loss(y, t, y.flip(0)), lambda: real(3, 4)),
    ("multi_margin", f.multi_margin_loss, lambda: whole(4, 3)),
    ("loss_and_outputs", lambda y, t: (f.cross_entropy(y, t), y, y.argmax(1)), lambda: whole(4, 3)),
]:
    add_function(name, lambda x, t, w, loss=loss: loss(x @ w, t), lambda target=target: (real(3, 5), target()), (5, 4))

# -- calls: optional, nested and named inputs; outputs in structures --------------------------------------------------

Pair = namedtuple("Pair", "scores hidden")


@dataclass
class Fields:
    scores: torch.Tensor
    hidden: torch.Tensor


class Head(nn.Module):
    """A linear layer with ways to call it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)


class Optional(Head):
    def forward(self, x, mask=None, scale=None):
        y = self.linear(x)
        if mask is not None:
            y = y * mask
        return y if scale is None else y * scale


class Named(Head):
    def forward(self, x, *, mask, scale=2.0):
        return self.linear(x) * mask * scale


class Many(Head):
    def forward(self, *inputs):
        return self.linear(sum(inputs))


class ManyNamed(Head):
    def forward(self, x, **others):
        return self.linear(x + sum(others.values()))


class Nested(Head):
    def forward(self, x, pair):
        return self.linear(x + pair[0] * pair[1])


class DictInput(Head):
    def forward(self, batch):
        return self.linear(batch["x"] * batch["scale"])


class Defaults(Head):
    def forward(self, x, times=2, name="a", flag=True):
        y = self.linear(x) * times
        return y.relu() if flag and name == "a" else y


class Returns(Head):
    """Returns the scores and the hidden layer as `pack` has it."""

    def __init__(self, pack):
        super().__init__()
        self.pack = pack

    def forward(self, x):
        y = self.linear(x)
        return self.pack(y.softmax(1), y)


x4 = image(2, 4)
add("optional_left_out", Optional, x4)
add("optional_none", Optional, lambda: (real(2, 4), None))
add("optional_given", Optional, lambda: (real(2, 4), truth(2, 3).float()))
add("optional_between", Optional, lambda: (real(2, 4), None, real(1)))
add("optional_by_name", Optional, x4, named=lambda: {"scale": real(1)})
add("named", Named, x4, named=lambda: {"mask": real(2, 3)})
add("many", Many, lambda: (real(2, 4), real(2, 4), real(2, 4)))
add("many_named", ManyNamed, x4, named=lambda: {"a": real(2, 4), "b": real(2, 4)})
add("nested_tuple", Nested, lambda: (real(2, 4), (real(2, 4), real(2, 4))))
add("nested_list", Nested, lambda: (real(2, 4), [real(2, 4), real(2, 4)]))
add("dict_input", DictInput, tuple, named=lambda: {"batch": {"x": real(2, 4), "scale": real(2, 4)}})
add("defaults", Defaults, x4)
add("python_numbers", Defaults, lambda: (real(2, 4), 3, "b", True))
for name, pack in {
    "returns_tuple": lambda a, b: (a, b), "returns_list": lambda a, b: [a, b], "returns_dict": lambda a, b:
    {"scores": a, "hidden": b}, "returns_namedtuple": lambda a, b: Pair(a, b), "returns_nested": lambda a, b:
    (a, (b, [a * 2])), "returns_nested_dict": lambda a, b: {"a": {"b": a}, "c": [b]}, "returns_twice": lambda a, b:
    (a, b, a), "returns_dataclass": lambda a, b: Fields(a, b), "returns_none": lambda a, b: (a, None, b),
}.items():
    add(name, lambda pack=pack: Returns(pack), x4)


# -- state ----------------------------------------------------------------------------------------------------------

class Buffers(Head):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.randn(4))
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("hidden", torch.full((4,), 2.0), persistent=False)
        self.register_buffer("index", torch.tensor([0, 2, 1, 3]))

    def forward(self, x):
        return self.linear((x[:, self.index] - self.mean) * self.scale * self.hidden)


class Counting(Head):
    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(4))

    def forward(self, x):
        return self.linear(x + self.rows.clone())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, i):
        return self.head(self.embedding(i).tanh())


class Unused(Head):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.linear(x) * self.scale


class Twice(Head):
    def __init__(self):
        super().__init__()
        self.square = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(self.square(self.square(x).relu()))


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(self.frozen(x).tanh())


class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.named = nn.ModuleDict({"a": nn.LayerNorm(4), "b": nn.Tanh()})
        self.weights = nn.ParameterDict({"w": nn.Parameter(torch.randn(4)), "b": nn.Parameter(torch.randn(4))})

    def forward(self, x):
        for step in self.steps:
            x = self.named["b"](self.named["a"](step(x) + x))
        return x * self.weights["w"] + self.weights["b"]


class ReturnsWeights(Head):
    def forward(self, x):
        return self.linear(x), self.linear.weight, x


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return dy * s * (1 + x * (1 - s))


class Custom(Head):
    def forward(self, x):
        return Swish.apply(self.linear(x))


class Checkpointed(Head):
    def forward(self, x):
        return checkpoint(lambda y: self.linear(y).exp(), x, use_reentrant=False)


class Branches(Head):
    def forward(self, x):
        y = self.linear(x)
        return y.relu() if x.shape[0] > 1 else y.tanh()


class Loops(Head):
    def forward(self, x):
        y = x
        for i in range(x.shape[1]):
            y = y + x[:, i : i + 1] * (i + 1)
        return self.linear(y)


class Rows(Head):
    """Sizes of the inputs in the computation."""

    def forward(self, x):
        n = x.shape[0]
        mask = torch.ones(n, n).tril()
        return self.linear(mask @ x / n + torch.arange(n).unsqueeze(1))


class WithoutGradient(Head):
    def forward(self, x):
        with torch.no_grad():
            scale = self.linear(x).abs().amax()
        return self.linear(x) / scale


class Autocast(Head):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return self.linear(x.float()).tanh()


class WeightNorm(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.linear = norm(nn.Linear(4, 3))

    def forward(self, x):
        return self.linear(x)


class Hooked(Head):
    def __init__(self):
        super().__init__()
        self.linear.register_forward_hook(lambda module, inputs, y: y * 2)
        self.linear.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))

    def forward(self, x):
        return self.linear(x)


class Complete(nn.Module):
    """A function of several integer and real inputs, as language models have."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(9, 8), nn.Embedding(5, 8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 9)

    def forward(self, tokens, mask, labels):
        n = tokens.shape[1]
        x = self.norm(self.words(tokens) + self.places(torch.arange(n)))
        causal = torch.full((n, n), -math.inf).triu(1)
        y, _ = self.attention(x, x, x, attn_mask=causal, key_padding_mask=~mask, need_weights=False)
        scores = self.head(x + y)
        return f.cross_entropy(scores.flatten(0, 1), labels.flatten()), scores


class Attention(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.qkv, self.out, self.settings = nn.Linear(8, 24), nn.Linear(8, 8), settings

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = f.scaled_dot_product_attention(q, k, v, **self.settings)
        return self.out(y.transpose(1, 2).flatten(2))


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("inv_freq", 1 / 10 ** (torch.arange(0, 8, 2) / 8), persistent=False)

    def forward(self, x):
        angles = torch.outer(torch.arange(x.shape[1]).float(), self.inv_freq)
        cos, sin = (torch.cat([g(angles)] * 2, -1) for g in (torch.cos, torch.sin))
        y = self.linear(x)
        a, b = y.chunk(2, -1)
        return y * cos + torch.cat([-b, a], -1) * sin


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        every = torch.stack([e(x) for e in self.experts], 1)
        picked = every.gather(1, chosen.unsqueeze(-1).expand(-1, -1, 4))
        return (picked * weights.unsqueeze(-1)).sum(1)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        y = self.one(x)
        y = f.relu_(y)
        y = self.two(y)
        y += x
        return f.interpolate(y, scale_factor=2) + f.grid_sample(x, torch.zeros(x.shape[0], 1, 1, 2))


for name, make, inputs in [
    ("buffers", Buffers, x4), ("counting", Counting, x4), ("tied", Tied, lambda: (whole(6, 3, 2),)),
    ("unused", Unused, x4), ("used_twice", Twice, x4), ("frozen", Frozen, x4), ("containers", Containers, x4),
    ("returns_weights", ReturnsWeights, x4), ("custom_function", Custom, x4), ("checkpointed", Checkpointed, x4),
    ("branches", Branches, x4), ("loops", Loops, x4), ("rows", Rows, x4), ("without_gradient", WithoutGradient, x4),
    ("autocast", Autocast, x4), ("hooked", Hooked, x4), ("experts", Experts, x4), ("residual", Residual, image()),
    ("weight_norm", lambda: WeightNorm(nn.utils.parametrizations.weight_norm), x4),
    ("spectral_norm", lambda: WeightNorm(nn.utils.parametrizations.spectral_norm), x4),
    ("orthogonal", lambda: WeightNorm(lambda m: nn.utils.parametrizations.orthogonal(m, orthogonal_map="cayley")), x4),
    ("complete", Complete, lambda: (whole(9, 2, 4), torch.tensor([[True] * 4, [True, True, False, False]]),
                                    whole(9, 2, 4))),
    ("attention", Attention, image(2, 3, 8)), ("attention_causal", lambda: Attention(is_causal=True), image(2, 3, 8)),
    ("attention_mask", lambda: Attention(attn_mask=torch.ones(3, 3).tril().bool()), image(2, 3, 8)),
    ("attention_scale", lambda: Attention(scale=0.7), image(2, 3, 8)), ("rotary", Rotary, image(2, 3, 8)),
]:
    add(name, make, inputs)


class Plain(Head):
    def forward(self, x):
        return self.linear(x).tanh()


add("strided_input", Plain, lambda: (real(4, 2).t(),))
add("view_input", Plain, lambda: (real(5, 4)[1:3],))
add("expanded_input", Plain, lambda: (real(1, 4).expand(3, 4),))
add("every_second_input", Plain, lambda: (real(3, 8)[:, ::2],))
add("channels_last_input", lambda: nn.Conv2d(4, 3, 3), lambda:
    (real(2, 4, 6, 6).to(memory_format=torch.channels_last),))
add("no_gradient_wanted", lambda: Plain().requires_grad_(False), x4)


def flat_tensors(outputs):
    """All tensors of what a module returns, in order; None is left out."""
    if isinstance(outputs, Fields):
        outputs = [outputs.scores, outputs.hidden]
    return [t for t in tree_flatten(outputs)[0] if isinstance(t, torch.Tensor)]
