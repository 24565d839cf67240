"""Gradients of convolutions and pooling."""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from once import ON_BOTH
from table import NOTHING, OLD, apart, real, rows

from ortpartial.autodiff.grad import grad
from ortpartial.graph import op, topological, variable
from ortpartial.graph.build import build
from ortpartial.limits import Limits, use_limits
from ortpartial.testing import check_gradient, evaluate

# onnxruntime has no float64 kernel for these operators, and onnx's reference evaluator does not compute all of them.
# They are linear in each argument, though, so a step of one in float32 is a difference without truncation.


def whole(*shape: int, seed: int = 0) -> np.ndarray:
    """Small integers, so that float32 computes sums of their products without rounding."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def compiled(f: Callable, args: Sequence[np.ndarray], names: Callable[[int, int, int], str | int]) -> Callable:
    """f as a function of arrays, its arguments declared with sizes or names."""
    x = [variable(f"x{i}", a.dtype, [names(i, k, n) for k, n in enumerate(a.shape)]) for i, a in enumerate(args)]
    y = f(*x)
    model = build(x, {f"y{i}": v for i, v in enumerate(y if isinstance(y, (list, tuple)) else [y])})
    return lambda args: list(evaluate(model, {v.hint: a for v, a in zip(x, args, strict=True)}).values())


def static(i: int, axis: int, n: int) -> int:
    return n


def batch(i: int, axis: int, n: int) -> str | int:
    return "N" if axis == 0 and i in (0, 3, 4) else n


def symbolic(i: int, axis: int, n: int) -> str:
    return f"size_{i}_{axis}"


def check_linear(f: Callable, args: Sequence[np.ndarray], *, order: int = 2, names: Sequence = (batch, symbolic)):
    """Compare gradients with steps of one in each argument, then with those where sizes are not known."""
    for _ in range(order):
        run, n = compiled(f, args, static), len(args)
        dys = [whole(*y.shape, seed=7 + i) for i, y in enumerate(run(args))]

        def g(*values, f=f, n=n):
            y = f(*values[:n])
            return grad(y, values[:n], values[n:])

        given = [*args, *dys]
        found = compiled(g, given, static)(given)
        for i, (a, d) in enumerate(zip(args, found, strict=True)):
            assert d.shape == a.shape
            step = whole(*a.shape, seed=20 + i)
            ends = zip(dys, run([*args[:i], a + step, *args[i + 1 :]]), run(args), strict=True)
            change = sum(float(np.sum(dy * (y1 - y0), dtype=np.float64)) for dy, y1, y0 in ends)
            assert change == pytest.approx(float(np.sum(d * step, dtype=np.float64)), rel=1e-5, abs=1e-3), i
        for name in names:
            for d, expected in zip(compiled(g, given, name)(given), found, strict=True):
                np.testing.assert_allclose(d, expected, rtol=1e-5, atol=1e-4)
        f, args = g, given


def conv(kernel, **attributes):
    return lambda *x: op.Conv(*x, kernel_shape=kernel, **attributes)


CONV = rows(
    ("one axis", [3], (2, 2, 7), (3, 2, 3), {}),
    ("one axis, all", [3], (2, 2, 9), (4, 1, 3), {"group": 2, "strides": [2], "dilations": [2], "pads": [2, 1]}),
    ("two axes", [3, 2], (2, 2, 5, 4), (3, 2, 3, 2), {}),
    ("pads", [3, 2], (2, 2, 5, 4), (3, 2, 3, 2), {"pads": [1, 0, 2, 1]}),
    ("strides", [3, 2], (2, 2, 7, 6), (3, 2, 3, 2), {"strides": [2, 3]}),
    ("strides that leave a rest", [2, 2], (2, 2, 6, 7), (3, 2, 2, 2), {"strides": [3, 4]}),
    ("strides and pads that leave a rest", [3, 3], (1, 2, 6, 7), (3, 2, 3, 3),
     {"strides": [2, 3], "pads": [1, 1, 1, 1]}),
    ("a rest larger than the pads", [2, 2], (1, 1, 8, 9), (2, 1, 2, 2), {"strides": [4, 4], "pads": [0, 1, 1, 1]}),
    ("dilations", [3, 2], (2, 2, 7, 6), (3, 2, 3, 2), {"dilations": [2, 3]}),
    ("strides and dilations", [3, 2], (2, 2, 9, 8), (3, 2, 3, 2), {"strides": [2, 3], "dilations": [2, 3]}),
    ("groups", [3, 3], (2, 4, 5, 5), (6, 2, 3, 3), {"group": 2}),
    ("depthwise", [3, 3], (2, 3, 5, 5), (3, 1, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    ("depthwise, two of each", [3, 3], (2, 2, 6, 5), (4, 1, 3, 3), {"group": 2, "strides": [2, 2]}),
    ("all at once", [3, 2], (2, 4, 9, 8), (6, 2, 3, 2),
     {"group": 2, "strides": [2, 3], "dilations": [2, 1], "pads": [2, 1, 0, 1]}),
    ("a kernel of one", [1, 1], (2, 2, 4, 4), (3, 2, 1, 1), {}),
    ("a kernel of one, strides", [1, 1], (2, 2, 4, 5), (3, 2, 1, 1), {"strides": [2, 3]}),
    ("a kernel of one, pads", [1, 1], (2, 2, 4, 5), (3, 2, 1, 1), {"pads": [1, 0, 1, 2]}),
    ("a kernel of one, groups", [1, 1], (2, 4, 4, 5), (6, 2, 1, 1), {"group": 2}),
    ("a kernel of all", [4, 4], (2, 2, 4, 4), (3, 2, 4, 4), {}),
    ("VALID", [3, 2], (2, 2, 6, 5), (3, 2, 3, 2), {"auto_pad": "VALID", "strides": [2, 2]}),
    ("three axes", [2, 3, 2], (1, 2, 4, 5, 4), (2, 2, 2, 3, 2), {"strides": [2, 1, 1], "pads": [1, 0, 0, 0, 1, 1]}),
    ("three axes, groups", [2, 2, 2], (2, 2, 4, 3, 4), (2, 1, 2, 2, 2), {"group": 2, "dilations": [2, 1, 2]}),
    ("SAME_UPPER", [3, 2], (2, 2, 6, 5), (3, 2, 3, 2), {"auto_pad": "SAME_UPPER"}),
    ("SAME_LOWER", [3, 2], (2, 2, 6, 5), (3, 2, 3, 2), {"auto_pad": "SAME_LOWER"}),
)

SAME = [
    pytest.param(kernel, sizes, {"auto_pad": auto, "strides": strides, "group": group},
                 id=f"{auto}-{kernel}-{strides}-{group}")
    for auto, (kernel, sizes, strides), group in product(
        ["SAME_UPPER", "SAME_LOWER"],
        [([3, 2], (6, 5), [2, 2]), ([2, 4], (5, 7), [3, 2]), ([1, 2], (5, 4), [2, 3]), ([3], (7,), [2])],
        [1, 2],
    )
]


@pytest.fixture(params=["one product for all images", "one for each"])
def form(request, limit):
    """Both forms of a product with few columns."""
    if request.param == "one for each":
        limit(few_windows=0, small_kernel=0)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("form")
@pytest.mark.parametrize(("kernel", "x", "w", "attributes"), CONV)
def test_conv(kernel, x, w, attributes):
    check_linear(conv(kernel, **attributes), [whole(*x), whole(*w, seed=1), whole(w[0], seed=2)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kernel", "sizes", "attributes"), SAME)
def test_conv_padded_to_the_same_size(kernel, sizes, attributes):
    args = [whole(2, 4, *sizes), whole(2, 4 // attributes["group"], *kernel, seed=1)]
    check_linear(conv(kernel, **attributes), args)


@pytest.mark.parametrize("attributes", [{"auto_pad": "SAME_LOWER", "strides": [2, 3]}, {"auto_pad": "SAME_UPPER"},
                                        {"strides": [2, 2], "pads": [1, 0, 0, 1]}])
@pytest.mark.parametrize("f", [op.Conv, op.ConvTranspose])
def test_a_kernel_whose_size_is_not_written(f, attributes):
    check_linear(lambda x, w: f(x, w, **attributes), [whole(2, 3, 5, 6), whole(3, 3, 3, 2, seed=1)], order=1)


def test_a_kernel_whose_size_is_not_written_with_dilations():
    """Conv has none with auto_pad on onnxruntime 1.19 to 1.31."""
    same = {"auto_pad": "SAME_UPPER", "strides": [2, 2], "dilations": [2, 3]}
    check_linear(lambda x, w: op.ConvTranspose(x, w, **same), [whole(2, 3, 5, 6), whole(3, 3, 3, 2, seed=1)], order=1)


def conv_transpose(kernel, **attributes):
    return lambda *x: op.ConvTranspose(*x, kernel_shape=kernel, **attributes)


CONV_TRANSPOSE = rows(
    ("one axis", [3], (2, 3, 4), (3, 2, 3), {}),
    ("one axis, all", [3], (2, 4, 4), (4, 1, 3), {"group": 2, "strides": [2], "dilations": [2], "pads": [2, 1]}),
    ("two axes", [3, 2], (2, 3, 4, 3), (3, 2, 3, 2), {}),
    ("pads", [3, 2], (2, 3, 4, 4), (3, 2, 3, 2), {"pads": [1, 0, 2, 1]}),
    ("strides", [3, 2], (2, 3, 3, 4), (3, 2, 3, 2), {"strides": [2, 3]}),
    ("dilations", [3, 2], (2, 3, 3, 4), (3, 2, 3, 2), {"dilations": [2, 3]}),
    ("output padding", [3, 3], (2, 3, 3, 4), (3, 2, 3, 3),
     {"strides": [2, 3], "pads": [1, 1, 1, 1], "output_padding": [1, 2]}),
    ("groups", [3, 2], (2, 4, 3, 4), (4, 3, 3, 2), {"group": 2}),
    ("a kernel of one", [1, 1], (2, 3, 3, 4), (3, 2, 1, 1), {}),
    ("a kernel of one, output padding", [1, 1], (2, 3, 3, 4), (3, 2, 1, 1),
     {"strides": [2, 2], "output_padding": [1, 0]}),
    ("depthwise", [2, 2], (2, 3, 3, 4), (3, 1, 2, 2), {"group": 3, "strides": [2, 2]}),
    ("all at once", [3, 2], (2, 4, 3, 4), (4, 3, 3, 2),
     {"group": 2, "strides": [2, 3], "dilations": [2, 1], "pads": [2, 1, 0, 1], "output_padding": [1, 0]}),
    ("VALID", [3, 2], (2, 3, 3, 4), (3, 2, 3, 2), {"auto_pad": "VALID", "strides": [2, 2]}),
    ("SAME_UPPER", [3, 2], (2, 3, 3, 4), (3, 2, 3, 2), {"auto_pad": "SAME_UPPER"}),
    ("SAME_LOWER", [3, 2], (2, 3, 3, 4), (3, 2, 3, 2), {"auto_pad": "SAME_LOWER"}),
    ("SAME_UPPER strides", [3, 4], (2, 3, 3, 4), (3, 2, 3, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    ("SAME_LOWER strides", [3, 4], (2, 3, 3, 4), (3, 2, 3, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ("three axes", [2, 3, 2], (1, 2, 3, 2, 3), (2, 2, 2, 3, 2), {"strides": [2, 1, 1], "pads": [1, 0, 0, 0, 1, 1]}),
    ("three axes, groups", [2, 2, 2], (1, 4, 3, 2, 3), (4, 1, 2, 2, 2), {"group": 2, "dilations": [2, 1, 2]}),
)

OUTPUT_SHAPE = rows(
    ("as long as can be", {"strides": [2, 2], "output_shape": [8, 10]}),
    ("odd padding", {"strides": [2, 2], "output_shape": [7, 9]}),
    ("odd padding, upper", {"strides": [2, 2], "output_shape": [7, 9], "auto_pad": "SAME_UPPER"}),
    ("odd padding, lower", {"strides": [2, 2], "output_shape": [7, 9], "auto_pad": "SAME_LOWER"}),
    ("even padding", {"strides": [2, 2], "output_shape": [6, 8]}),
    ("output padding", {"strides": [2, 2], "output_shape": [7, 9], "output_padding": [1, 1]}),
    ("groups", {"strides": [2, 2], "output_shape": [6, 9], "group": 2}),
    ("longer than what is added up", {"strides": [2, 2], "output_shape": [9, 9]}),
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kernel", "x", "w", "attributes"), CONV_TRANSPOSE)
def test_conv_transpose(kernel, x, w, attributes):
    b = w[1] * attributes.get("group", 1)
    check_linear(conv_transpose(kernel, **attributes), [whole(*x), whole(*w, seed=1), whole(b, seed=2)])


@pytest.mark.parametrize("attributes", OUTPUT_SHAPE)
def test_conv_transpose_to_a_given_size(attributes):
    args = [whole(2, 4, 3, 4), whole(4, 2, 4, 4, seed=1)]
    check_linear(conv_transpose([4, 4], **attributes), args)


AVERAGE = [
    pytest.param(x, {"kernel_shape": kernel, "count_include_pad": include, "ceil_mode": ceil, **attributes},
                 id=f"{name}-include{include}-ceil{ceil}")
    for (name, x, kernel, attributes), include, ceil in product(
        [
            ("one axis", (2, 2, 7), [3], {"strides": [2], "pads": [1, 0]}),
            ("plain", (2, 2, 6, 5), [3, 2], {}),
            ("strides", (2, 2, 6, 7), [2, 2], {"strides": [2, 2]}),
            ("strides apart", (2, 2, 7, 8), [2, 1], {"strides": [3, 2]}),
            ("pads", (2, 2, 5, 4), [3, 3], {"pads": [1, 0, 2, 1]}),
            ("pads and strides", (1, 2, 6, 7), [3, 3], {"pads": [1, 1, 1, 1], "strides": [2, 3]}),
            ("dilations", (2, 2, 6, 7), [2, 3], {"dilations": [2, 2]}),
            ("all", (1, 2, 8, 9), [2, 3], {"dilations": [2, 2], "strides": [2, 3], "pads": [1, 0, 1, 2]}),
            ("three axes", (1, 2, 4, 5, 4), [2, 3, 2], {"strides": [2, 2, 1], "pads": [1, 0, 0, 0, 1, 1]}),
        ],
        [0, 1],
        [0, 1],
    )
]
AVERAGE += [
    pytest.param((2, 2, 6, 7), {"kernel_shape": [3, 2], "count_include_pad": include, "auto_pad": auto,
                                "strides": strides}, id=f"{auto}-{strides}-include{include}")
    for include, auto, strides in product([0, 1], ["SAME_UPPER", "SAME_LOWER", "VALID"], [[1, 1], [2, 2]])
]


@pytest.mark.sampled(2)
@ON_BOTH
@pytest.mark.parametrize(("x", "attributes"), AVERAGE)
def test_average_pool(x, attributes):
    if OLD and attributes["count_include_pad"] and attributes.get("ceil_mode") and attributes["kernel_shape"] == [2, 1]:
        pytest.skip("onnxruntime 1.19.2 counts a window that begins behind the image")
    if OLD and attributes["count_include_pad"] and attributes.get("ceil_mode"):
        # onnxruntime 1.19.2 counts what is neither in the image nor in its padding, but for float64, which is lowered.
        precision = {"dtype": np.float32, "step": 1, "rtol": 5e-3}
        return check_gradient(lambda x: op.AveragePool(x, **attributes), [whole(*x)], order=1, **precision)
    check_linear(lambda x: op.AveragePool(x, **attributes), [whole(*x)])


CAUSAL = rows(
    ("alone", {}, 2), ("with a bias and a past", {}, 4), ("silu", {"activation": "silu"}, 4),
    ("swish", {"activation": "swish"}, 3),
)


@pytest.mark.parametrize(("attributes", "n"), CAUSAL)
def test_causal_convolution(attributes, n):
    # No runtime has a kernel for it.
    check_gradient(lambda *x: list(op.CausalConvWithState(*x, **attributes)),
                   [real(2, 3, 5), real(3, 1, 3), real(3), real(2, 3, 2)][:n],
                   dtype=np.float32, step=1e-2, rtol=5e-3)


MAXIMUM = rows(
    ("one axis", (2, 2, 7), {"kernel_shape": [3], "strides": [2]}),
    ("plain", (2, 2, 6, 5), {"kernel_shape": [3, 2]}),
    ("strides", (2, 2, 6, 7), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("pads", (2, 2, 5, 4), {"kernel_shape": [3, 3], "pads": [1, 0, 2, 1]}),
    ("dilations", (2, 2, 6, 7), {"kernel_shape": [2, 3], "dilations": [2, 2]}),
    ("ceil", (2, 2, 6, 7), {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
    ("ceil and pads", (2, 2, 6, 7), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [1, 1, 1, 1]}),
    ("all", (1, 2, 8, 9), {"kernel_shape": [2, 3], "strides": [2, 3], "dilations": [2, 2], "pads": [1, 0, 1, 2],
                           "ceil_mode": 1}),
    ("storage order", (2, 2, 5, 4), {"kernel_shape": [2, 2], "storage_order": 1}),
    ("storage order and pads", (2, 2, 5, 4), {"kernel_shape": [3, 2], "storage_order": 1, "pads": [1, 1, 1, 1]}),
    ("three axes", (1, 2, 4, 5, 4), {"kernel_shape": [2, 3, 2], "strides": [2, 1, 1], "pads": [1, 0, 0, 0, 1, 1]}),
    ("three axes, storage order", (1, 2, 4, 3, 4), {"kernel_shape": [2, 2, 2], "storage_order": 1}),
    ("SAME_UPPER", (2, 2, 6, 7), {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("SAME_LOWER", (2, 2, 6, 7), {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ("VALID", (2, 2, 6, 7), {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "VALID"}),
)


@pytest.mark.parametrize(("x", "attributes"), MAXIMUM)
def test_max_pool(x, attributes):
    check_gradient(lambda x: op.MaxPool(x, **attributes), [apart(*x)], directions=1)


NORM = rows(
    ("p 1", {"p": 1}),
    ("p 2", {"p": 2}),
    ("p 3", {"p": 3}),
    ("pads", {"pads": [1, 0, 1, 1], "p": 3}),
    ("SAME_UPPER", {"auto_pad": "SAME_UPPER"}),
    ("VALID", {"auto_pad": "VALID"}),
    ("dilations", {"dilations": [2, 1]}),
)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("attributes", NORM)
def test_lp_pool(attributes):
    check_gradient(lambda x: op.LpPool(x, kernel_shape=[2, 2], **attributes), [real(2, 2, 5, 4)], directions=1)


CEILED = rows(
    ("ceil_mode", {"ceil_mode": 1, "strides": [2, 2]}),
    ("ceil_mode, pads and dilations", {"ceil_mode": 1, "strides": [2, 3], "pads": [1, 0, 0, 1], "dilations": [2, 1]}),
    ("SAME_LOWER and strides", {"auto_pad": "SAME_LOWER", "strides": [2, 1]}),
)


@pytest.mark.parametrize("attributes", CEILED)
def test_lp_pool_in_float32(attributes):
    # The reference of onnx 1.23.2 weighs the elements of a window that is cut off.
    check_gradient(lambda x: op.LpPool(x, kernel_shape=[2, 2], **attributes), [real(2, 2, 5, 4)], directions=1,
                   dtype=np.float32, step=1e-2, rtol=5e-3)


def assert_as_torch_single(f, torch_f, args):
    """`assert_as_torch` in float32, where neither onnxruntime nor the reference evaluator is right in float64."""
    args = [a.astype(np.float32) for a in args]
    x = [torch.tensor(a, requires_grad=True) for a in args]
    y = torch_f(*x)
    dy = real(*y.shape, seed=5).astype(np.float32)
    found = compiled(lambda *v: grad(f(*v[:-1]), v[:-1], v[-1:]), [*args, dy], static)([*args, dy])
    for d, expected in zip(found, torch.autograd.grad(y, x, torch.tensor(dy)), strict=True):
        np.testing.assert_allclose(d, expected.numpy(), rtol=1e-4, atol=1e-5)


def test_lp_pool_with_strides():
    for p in (2, 3):  # torch takes odd powers of negative numbers as they are
        assert_as_torch_single(lambda x, p=p: op.LpPool(x, kernel_shape=[2, 2], strides=[2, 2], p=p),
                               lambda x, p=p: F.lp_pool2d(x, p, 2, 2), [abs(real(2, 2, 5, 4))])


GLOBAL = rows(
    ("GlobalAveragePool", op.GlobalAveragePool, lambda x, axes: x.mean(axes, keepdim=True)),
    ("GlobalMaxPool", op.GlobalMaxPool, lambda x, axes: x.amax(axes, keepdim=True)),
    ("GlobalLpPool", op.GlobalLpPool, lambda x, axes: (x * x).sum(axes, keepdim=True).sqrt()),
    ("GlobalLpPool 1", lambda x: op.GlobalLpPool(x, p=1), lambda x, axes: x.abs().sum(axes, keepdim=True)),
    ("GlobalLpPool 3", lambda x: op.GlobalLpPool(x, p=3), lambda x, axes: (x.abs() ** 3).sum(axes, True) ** (1 / 3)),
)


@pytest.mark.parametrize("shape", [(2, 2, 5), (2, 2, 3, 4), (1, 2, 2, 3, 2)], ids=str)
@pytest.mark.parametrize(("f", "torch_f"), GLOBAL)
def test_global_pools(f, torch_f, shape):
    axes = tuple(range(2, len(shape)))
    assert_as_torch_single(f, lambda x: torch_f(x, axes), [apart(*shape)])


@pytest.mark.parametrize("f", [op.GlobalAveragePool, op.GlobalMaxPool])
def test_global_pools_by_differences(f):
    check_gradient(f, [apart(2, 2, 3, 4)])


TORCH = rows(
    ("Conv", conv([3, 2], strides=[2, 1], pads=[1, 2, 1, 2]), lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2)),
     [(2, 3, 5, 4), (4, 3, 3, 2), (4,)]),
    ("Conv, groups", conv([3, 3], group=2, dilations=[2, 1]), lambda x, w: F.conv2d(x, w, groups=2, dilation=(2, 1)),
     [(2, 4, 7, 5), (6, 2, 3, 3)]),
    ("Conv, depthwise", conv([3], group=4, strides=[2], pads=[1, 1]),
     lambda x, w: F.conv1d(x, w, groups=4, stride=2, padding=1), [(2, 4, 8), (4, 1, 3)]),
    ("Conv, three axes", conv([2, 3, 2]), F.conv3d, [(1, 2, 4, 5, 4), (3, 2, 2, 3, 2)]),
    ("Conv SAME_UPPER", conv([5, 3], auto_pad="SAME_UPPER"), lambda x, w: F.conv2d(x, w, padding="same"),
     [(2, 2, 5, 6), (3, 2, 5, 3)]),
    ("ConvTranspose", conv_transpose([3, 2], strides=[2, 3], pads=[1, 0, 1, 0], output_padding=[1, 2]),
     lambda x, w, b: F.conv_transpose2d(x, w, b, (2, 3), (1, 0), (1, 2)), [(2, 3, 4, 3), (3, 4, 3, 2), (4,)]),
    ("ConvTranspose, groups", conv_transpose([3, 3], group=2, dilations=[2, 1]),
     lambda x, w: F.conv_transpose2d(x, w, groups=2, dilation=(2, 1)), [(2, 4, 3, 4), (4, 3, 3, 3)]),
    ("ConvTranspose, three axes", conv_transpose([2, 3, 2]), F.conv_transpose3d, [(1, 2, 3, 2, 3), (2, 3, 2, 3, 2)]),
    ("AveragePool", lambda x: op.AveragePool(x, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 1, 1, 1]),
     lambda x: F.avg_pool2d(x, (3, 2), (2, 1), 1, count_include_pad=False), [(2, 2, 6, 5)]),
    ("AveragePool with pads", lambda x: op.AveragePool(x, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
     lambda x: F.avg_pool2d(x, 3, 1, 1), [(2, 2, 6, 5)]),
    ("AveragePool, ceil", lambda x: op.AveragePool(x, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
     lambda x: F.avg_pool2d(x, 2, ceil_mode=True), [(2, 2, 5, 7)]),
    ("MaxPool", lambda x: op.MaxPool(x, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 1, 1, 1]),
     lambda x: F.max_pool2d(x, (3, 2), (2, 1), 1), [(2, 2, 6, 5)]),
    ("MaxPool, dilations and ceil", lambda x: op.MaxPool(x, kernel_shape=[2, 2], strides=[2, 2], dilations=[2, 1],
     ceil_mode=1), lambda x: F.max_pool2d(x, 2, 2, dilation=(2, 1), ceil_mode=True), [(2, 2, 7, 7)]),
    ("MaxPool, three axes", lambda x: op.MaxPool(x, kernel_shape=[2, 2, 2]), lambda x: F.max_pool3d(x, 2, 1),
     [(2, 2, 3, 4, 3)]),
)


@pytest.mark.parametrize(("f", "torch_f", "shapes"), TORCH)
def test_as_torch(f, torch_f, shapes):
    assert_as_torch_single(f, torch_f, [apart(*shape, seed=i) for i, shape in enumerate(shapes)])


@pytest.mark.parametrize("attributes", [{}, {"strides": [2, 1]}, {"pads": [1, 0, 0, 1]}])
def test_conv_in_float64(attributes):
    # By onnx's reference evaluator, which is slow and does not know groups in ConvTranspose.
    check_gradient(conv([3, 2], **attributes), [real(2, 2, 5, 4), real(3, 2, 3, 2, seed=1), real(3, seed=2)],
                   directions=1)


def test_ties_of_max_pool_go_to_the_first():
    x = np.zeros((1, 1, 2, 2), np.float32)
    f = compiled(lambda x: grad(op.MaxPool(x, kernel_shape=[2, 2]), [x]), [x], static)
    assert f([x])[0].ravel().tolist() == [1, 0, 0, 0]


POOLS = rows(
    ("halves", (2, 3, 6, 4), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("halves and leaves a rest", (2, 3, 7, 5), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("overlaps", (2, 3, 4, 5), {"kernel_shape": [2, 2]}),
    ("three in a row, dilated", (1, 2, 9, 6), {"kernel_shape": [3, 1], "dilations": [2, 1], "strides": [1, 2]}),
)


@pytest.mark.parametrize(("shape", "attributes"), POOLS)
def test_max_pool_by_masks_is_max_pool_by_indices(shape, attributes):
    def g(x, dy):
        return grad(op.MaxPool(x, **attributes), [x], [dy])

    x = np.random.default_rng(0).integers(0, 3, shape).astype(np.float32)  # with many ties
    y = op.MaxPool(variable("x", "float32", shape), **attributes)
    given = [x, whole(*y.shape, seed=1)]
    masks, indices = (compiled(g, given, names)(given)[0] for names in (static, symbolic))
    assert np.array_equal(masks, indices)
    assert "ScatterElements" not in nodes(y, y.node.inputs, y.node.inputs[0])


def test_windows_behind_an_image_have_no_gradient():
    # onnxruntime 1.19.2 gives such a window an element of the output, 1.31.1 and the specification do not.
    x = whole(1, 1, 6)
    y = lambda x: op.AveragePool(x, kernel_shape=[2], strides=[3], ceil_mode=1)  # noqa: E731
    dy = np.ones(compiled(y, [x], static)([x])[0].shape, np.float32)
    f = compiled(lambda x, dy: grad(y(x), [x], [dy]), [x, dy], static)
    assert f([x, dy])[0].ravel().tolist() == [0.5, 0.5, 0, 0.5, 0.5, 0]


def nodes(y, inputs, wrt):
    dy = variable("dy", "float32", y.shape)
    return [node.op_type for node in build([*inputs, dy], grad(y, [wrt], [dy])).graph.node]


@pytest.mark.usual_limits
def test_gradients_of_a_batch_need_few_nodes():
    x, w = variable("x", "float32", ["N", 4, 8, 18]), variable("w", "float32", [4, 4, 3, 3])
    b = variable("b", "float32", [4])
    y = op.Conv(x, w, b, strides=[2, 3], pads=[1, 1, 1, 1])
    assert nodes(y, [w], x) == ["ConvTranspose"]
    some = ["Shape", "Greater"]  # which a batch of known size does without
    assert nodes(y, [x], w) == [*some, "Transpose", "Transpose", "Conv", "Slice", "Transpose", "Where"]
    y1 = op.Conv(x, w, b, pads=[1, 1, 1, 1])
    assert nodes(y1, [x], w) == [*some, "Transpose", "Transpose", "Conv", "Transpose", "Where"]
    assert nodes(y, [], b) == ["ReduceSum"]
    point = variable("w", "float32", [4, 4, 1, 1])
    assert nodes(op.Conv(x, point), [x], point) == ["Transpose", "Flatten", "Transpose", "Flatten", "Gemm", "Reshape"]
    assert nodes(op.ConvTranspose(x, w, strides=[2, 2]), [w], x) == ["Conv"]
    assert nodes(op.AveragePool(x, kernel_shape=[2, 2], strides=[2, 2]), [], x) == [
        "Reshape", "ConvTranspose", "Reshape"]


def test_few_places_are_one_product_for_all_images():
    x, w = variable("x", "float32", [8, 4, 4, 4]), variable("w", "float32", [5, 4, 3, 3])
    y = op.Conv(x, w, pads=[1, 1, 1, 1])
    assert nodes(y, [w], x) == ["Transpose", "Reshape", "Flatten", "Gemm", "Reshape", "Transpose", "Col2Im"]
    assert nodes(y, [x], w) == ["Transpose", "Transpose", "Conv", "Transpose"]


@NOTHING
@pytest.mark.parametrize("f", [
    op.Conv, op.ConvTranspose, lambda x, w: op.AveragePool(x, kernel_shape=[2, 2]),
    lambda x, w: op.MaxPool(x, kernel_shape=[2, 2]),
])
def test_an_empty_batch(f):
    # Not with pads: onnxruntime 1.31.1 never returns from a Conv that has pads and no channels.
    x, w = variable("x", "float32", ["N", 2, 4, 5]), variable("w", "float32", [2, 2, 3, 3])
    model = build([x, w], {f"d{i}": d for i, d in enumerate(grad(f(x, w), [x, w]))})
    feeds = {"x": np.zeros((0, 2, 4, 5), np.float32), "w": whole(2, 2, 3, 3)}
    dx, dw = evaluate(model, feeds).values()
    assert dx.shape == (0, 2, 4, 5)
    assert np.array_equal(dw, np.zeros((2, 2, 3, 3)))


@pytest.mark.parametrize(("batch", "asked"), [("N", 1), (None, 1), (0, 1), (3, 0)])
@pytest.mark.parametrize("f", [op.Conv, op.ConvTranspose])
def test_a_batch_that_may_be_empty_is_asked_for_its_size(f, batch, asked):
    # What a Conv without channels gives differs from run to run on onnxruntime 1.31.1.
    x, w = variable("x", "float32", [batch, 2, 9, 9]), variable("w", "float32", [2, 2, 3, 3])
    found = grad(f(x, w), [x, w])
    assert [sum(n.op_type == "Where" for n in topological([d])) for d in found] == [0, asked]


def test_padding_is_asked_for_where_it_depends_on_sizes_alone():
    x, w = variable("x", "float32", ["N", 2, "H", "W"]), variable("w", "float32", [2, 2, 3, 3])
    assert nodes(op.Conv(x, w, auto_pad="SAME_UPPER"), [w], x) == ["ConvTranspose"]
    assert "Mod" in nodes(op.Conv(x, w, auto_pad="SAME_UPPER", strides=[2, 2]), [x, w], x)


@pytest.mark.parametrize("f", [lambda x: op.LpPool(x, kernel_shape=[2, 2], p=3), lambda x: op.GlobalLpPool(x, p=3)])
def test_a_norm_of_zero_has_no_gradient(f):
    x = np.zeros((1, 1, 2, 3), np.float32)
    assert not compiled(lambda x: grad(f(x), [x]), [x], static)([x])[0].any()


def test_a_kernel_of_which_nothing_is_known():
    x, w, dy = whole(2, 3, 5, 4), whole(2, 3, 3, 2, seed=1), whole(2, 2, 3, 3, seed=2)
    a, b, d = variable("x", "float32", x.shape), variable("w", "float32", None), variable("dy", "float32", dy.shape)
    found = evaluate(build([a, b, d], grad(op.Conv(a, b), [a, b], [d])), {"x": x, "w": w, "dy": dy})
    expected = compiled(lambda a, b, d: grad(op.Conv(a, b), [a, b], [d]), [x, w, dy], static)([x, w, dy])
    for v, e in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(v, e)


@pytest.mark.parametrize(("f", "n"), rows(
    ("Conv", conv([3, 2], strides=[2, 2], pads=[1, 0, 0, 1]), 2),
    ("Conv, SAME_LOWER", conv([3, 2], strides=[2, 2], auto_pad="SAME_LOWER"), 2),
    ("ConvTranspose", conv_transpose([3, 2], strides=[2, 2], pads=[1, 0, 0, 1]), 2),
    ("AveragePool", lambda x: op.AveragePool(x, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 0, 1]), 1),
    ("MaxPool", lambda x: op.MaxPool(x, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 0, 1]), 1),
))
def test_one_size_of_an_image_is_known_and_another_is_not(f, n):
    args = [apart(2, 3, 6, 7).astype(np.float32), whole(3, 3, 3, 2, seed=1)][:n]
    given = [*args, *(whole(*y.shape, seed=2) for y in compiled(f, args, static)(args))]

    def g(*values):
        return grad(f(*values[:n]), values[:n], values[n:])

    expected = compiled(g, given, static)(given)
    for i in (2, 3):
        found = compiled(g, given, lambda k, axis, size, i=i: f"size_{k}" if axis == i and k != 1 else size)(given)
        for d, e in zip(found, expected, strict=True):
            np.testing.assert_allclose(d, e, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("pads", "is_cropped"), [([1, 1, 1, 1], False), ([0, 0, 0, 0], True)])
def test_the_margin_that_no_window_sees_is_left_out_of_the_gradient_by_kernels(pads, is_cropped):
    """Windows of three that move by two see neither the last of eight pixels nor a pad behind: a limit decides."""
    x, w = variable("x", "float32", [2, 3, 8, 8]), variable("w", "float32", [4, 3, 3, 3])
    energy = op.ReduceSum(op.Conv(x, w, pads=pads, strides=[2, 2]) ** 2, keepdims=0)
    with use_limits(Limits(), everywhere=False):
        assert "Slice" in [node.op_type for node in topological(grad(energy, [w]))]
    with use_limits(Limits(unseen_margin=1), everywhere=False):
        (dw,) = grad(energy, [w])
    assert ("Slice" in [node.op_type for node in topological([dw])]) == is_cropped
    images, kernels = whole(2, 3, 8, 8), torch.from_numpy(whole(4, 3, 3, 3, seed=1)).requires_grad_()
    (F.conv2d(torch.from_numpy(images), kernels, stride=2, padding=pads[0]) ** 2).sum().backward()
    computed = evaluate(build([x, w], {"dw": dw}), {"x": images, "w": kernels.detach().numpy()})["dw"]
    np.testing.assert_array_equal(computed, kernels.grad.numpy())
