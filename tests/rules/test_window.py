"""Are the gradients of convolutions and pools right?"""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from table import OLD, apart, assert_as_torch, real, rows

from ortpartial.exceptions import NoGradientError
from ortpartial.gradient import grad
from ortpartial.graph import build, op, variable
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
    ("a kernel of all", [4, 4], (2, 2, 4, 4), (3, 2, 4, 4), {}),
    ("VALID", [3, 2], (2, 2, 6, 5), (3, 2, 3, 2), {"auto_pad": "VALID", "strides": [2, 2]}),
    ("three axes", [2, 3, 2], (1, 2, 4, 5, 4), (2, 2, 2, 3, 2), {"strides": [2, 1, 1], "pads": [1, 0, 0, 0, 1, 1]}),
    ("three axes, groups", [2, 2, 2], (2, 2, 4, 3, 4), (2, 1, 2, 2, 2), {"group": 2, "dilations": [2, 1, 2]}),
    ("SAME_UPPER", [3, 2], (2, 2, 6, 5), (3, 2, 3, 2), {"auto_pad": "SAME_UPPER"}),
    ("SAME_LOWER", [3, 2], (2, 2, 6, 5), (3, 2, 3, 2), {"auto_pad": "SAME_LOWER"}),
)  # fmt: skip

SAME = [
    pytest.param(kernel, sizes, {"auto_pad": auto, "strides": strides, "group": group},
                 id=f"{auto}-{kernel}-{strides}-{group}")
    for auto, (kernel, sizes, strides), group in product(
        ["SAME_UPPER", "SAME_LOWER"],
        [([3, 2], (6, 5), [2, 2]), ([2, 4], (5, 7), [3, 2]), ([1, 2], (5, 4), [2, 3]), ([3], (7,), [2])],
        [1, 2],
    )
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "x", "w", "attributes"), CONV)
def test_conv(kernel, x, w, attributes):
    check_linear(conv(kernel, **attributes), [whole(*x), whole(*w, seed=1), whole(w[0], seed=2)])


@pytest.mark.parametrize(("kernel", "sizes", "attributes"), SAME)
def test_conv_padded_to_the_same_size(kernel, sizes, attributes):
    args = [whole(2, 4, *sizes), whole(2, 4 // attributes["group"], *kernel, seed=1)]
    check_linear(conv(kernel, **attributes), args, names=[batch], order=1)


