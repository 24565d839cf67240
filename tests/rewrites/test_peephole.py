"""Peephole optimization: the same numbers, and which patterns match."""

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from numbered_cases import check_case

from ortpartial.autodiff.grad import grad
from ortpartial.execution.epoch_engine import EpochEngine
from ortpartial.execution.step_engine import StepEngine
from ortpartial.graph import find_inputs
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.learning.losses import resolve_loss
from ortpartial.learning.optimizers import resolve_rate
from ortpartial.learning.penalties import resolve_penalty
from ortpartial.model.load import load
from ortpartial.rewrites.peephole import apply_peepholes
from ortpartial.runtime.device import has_training
from ortpartial.runtime.session import Session
from ortpartial.training import SpecSource, TrainingSpec


def real(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


CONV = [
    ((4, 3, 4, 4), (5, 3, 3, 3), {"padding": 1}),
    ((4, 3, 7, 5), (5, 3, 3, 2), {"stride": (2, 2), "padding": (1, 0)}),
    ((2, 3, 9, 7), (4, 3, 3, 3), {"dilation": (2, 1), "stride": (3, 2)}),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("x", "w", "settings"), CONV)
def test_conv_of_small_images_is_one_product(x, w, settings, bias):
    arrays = {"x": real(*x), "w": real(*w, seed=1), **({"b": real(w[0], seed=2)} if bias else {})}
    values = [variable(n, "float32", a.shape) for n, a in arrays.items()]
    pads = np.broadcast_to(settings.get("padding", 0), 2).tolist() * 2
    y = op.Conv(*values, pads=pads, strides=list(settings.get("stride", (1, 1))),
                dilations=list(settings.get("dilation", (1, 1))))
    model = build(values, apply_peepholes([y]))
    assert "Conv" not in [n.op_type for n in model.graph.node]
    (actual,) = Session(model).run(arrays).values()
    expected = F.conv2d(*map(torch.tensor, arrays.values()), **settings)
    np.testing.assert_allclose(actual, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.usual_limits
@pytest.mark.parametrize(("x", "w", "group"), [
    ((1, 4, 4, 4), (4, 4, 3, 3), 1), ((2, 4, 4, 4), (4, 2, 3, 3), 2), ((2, 4, 9, 9), (4, 4, 3, 3), 1),
    (("N", 4, 4, 4), (4, 4, 3, 3), 1), ((2, 4, 6), (4, 4, 3), 1), ((3, 8, 18, 18), (4, 8, 16, 16), 1),
])
def test_other_convolutions_stay(x, w, group):
    y = op.Conv(variable("x", "float32", x), variable("w", "float32", w), group=group)
    assert apply_peepholes([y]) == [y]


def convolution(seed=3):
    """Two convolutions, a pool and a layer, on images of 8 x 8."""
    x = variable("x", "float32", ["N", 2, 8, 8])
    w = [constant(0.3 * real(*s, seed=seed + i), hint=f"w{i}") for i, s in
         enumerate([(4, 2, 3, 3), (4,), (6, 4, 3, 3), (24, 3)])]
    y = op.MaxPool(op.Relu(op.Conv(x, w[0], w[1], pads=[1] * 4)), kernel_shape=[2, 2], strides=[2, 2])
    y = op.Relu(op.Conv(y, w[2]))
    return build([x], {"y": op.Flatten(y) @ w[3]}), [f"w{i}" for i in range(4)]


@pytest.mark.parametrize("rate", ["SGD", "Nesterov", "Adam"])
def test_training_equals_torch(rate):
    proto, weights = convolution()
    model, x, t = load(proto, variables=weights), real(12, 2, 8, 8, seed=20), real(12, 3, seed=21)
    losses = {"y": resolve_loss("square_error")}
    spec = TrainingSpec(model, tuple(weights), losses, resolve_penalty(None), resolve_rate(rate))
    actual = []
    for kind in (StepEngine, EpochEngine):
        engine = kind(SpecSource(spec))
        engine.start({"x": x, "y_target": t})
        losses = [engine.epoch(np.arange(12), 6) for _ in range(5)]
        actual.append([engine.get(w) for w in weights])
    ws = [torch.tensor(model.arrays[w], requires_grad=True) for w in weights]
    optimizer = {"SGD": lambda: torch.optim.SGD(ws, 0.01), "Adam": lambda: torch.optim.Adam(ws, 1e-3),
                 "Nesterov": lambda: torch.optim.SGD(ws, 0.01, momentum=0.9, nesterov=True)}[rate]()
    for i in range(10):
        optimizer.zero_grad()
        rows = slice(6 * (i % 2), 6 * (i % 2) + 6)
        y = F.max_pool2d(F.relu(F.conv2d(torch.tensor(x[rows]), ws[0], ws[1], padding=1)), 2)
        y = F.relu(F.conv2d(y, ws[2])).flatten(1) @ ws[3]
        F.mse_loss(y, torch.tensor(t[rows])).backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    for a, b, w in zip(*actual, ws, strict=True):
        assert np.array_equal(a, b)
        assert np.abs(a - w.detach().numpy()).max() <= 2e-5 * np.abs(a).max()


def run(outputs, arrays):
    """The values of expressions of variables after peephole optimization, and the operators that compute them."""
    model = build(list(arrays), {f"y{i}": y for i, y in enumerate(apply_peepholes(outputs))})
    actual = Session(model).run({v.hint: a for v, a in arrays.items()})
    return list(actual.values()), [n.op_type for n in model.graph.node]


def scattered(v, x):
    """The gradient of a cross-entropy by its logits, but for its softmax."""
    zeros = constant(np.zeros((4, 3), np.float32))
    return v * x + op.ScatterElements(zeros, np.array([[0], [2], [1], [1]]), -x, axis=1)


LEAVES = A, OTHER, B, ROW, COLUMN, BATCH, KERNEL, IMAGES, BLOCKS = [
    variable(f"v{i}", "float32", s) for i, s in enumerate((
        (4, 3), (4, 3), (3, 2), (3,), (4, 1), (2, 4, 3), (5, 3, 3, 3), (4, 3, 4, 4), (8, 32, 4, 16)))]
NUMBERED = {
    "apply_peepholes 1": lambda: scattered(A, COLUMN),
    "apply_peepholes 2": lambda: 0.5 * A - 0.5 * OTHER,
    "apply_peepholes 3": lambda: BATCH @ B + np.float32([1, 2]),
    "apply_peepholes 4": lambda: A - op.Expand(ROW, [4, 3]),
    "apply_peepholes 5": lambda: grad(op.Relu(A), [A], [OTHER])[0],
    "apply_peepholes 6": lambda: op.Conv(IMAGES, KERNEL),
    "apply_peepholes 7": lambda: A * np.float32(0.1) / np.float32(0.1) + OTHER,
    "apply_peepholes 8": lambda: op.Exp(A - op.ReduceLogSumExp(A, [-1])),
    "apply_peepholes 9": lambda: op.Gelu(A) + grad(op.Gelu(A), [A], [OTHER])[0],
    "apply_peepholes 10": lambda: op.Gemm(A * COLUMN, B),
    "apply_peepholes 11": lambda: op.Gemm(0.5 * A, B),
    "apply_peepholes 12": lambda: op.Gemm(A, op.Unsqueeze(ROW, [0]), np.float32([1]), transB=1),
    "apply_peepholes 13": lambda: op.ReduceMean(A**2, keepdims=0),
    "apply_peepholes 14": lambda: op.ReduceMean(A * ROW, [-1]),
    "apply_peepholes 15": lambda: op.ReduceSum(-A, [0], keepdims=0),
    "apply_peepholes 16": lambda: op.Transpose(BLOCKS, perm=[0, 2, 1, 3]),
}


@pytest.mark.parametrize("case", NUMBERED)
def test_numbered_case(case, limit):
    limit(row_factor_elements=0, column_rows=0)
    y = NUMBERED[case]()
    inputs = find_inputs([y], {v.hint: v for v in LEAVES})
    fast = check_case(case, lambda: apply_peepholes([y])[0])
    arrays = {n: real(*v.shape, seed=i) for i, (n, v) in enumerate(inputs.items())}
    actual, right = (Session(build(inputs, {"y": v})).run(arrays)["y"] for v in (fast, y))
    np.testing.assert_allclose(actual, right, rtol=1e-5, atol=1e-5)


def test_what_is_expanded_is_broadcast():
    x, row, column = (variable(n, "float32", s) for n, s in (("x", (4, 3)), ("row", (3,)), ("column", (4, 1))))
    arrays = {x: real(4, 3), row: real(3, seed=1), column: real(4, 1, seed=2)}
    outputs = [x - op.Expand(row, [4, 3]), op.Expand(column, [4, 3]) / x, 2 * op.Expand(column, [4, 3]) * x]
    actual, op_types = run(outputs, arrays)
    a, b, c = arrays.values()
    for y, right in zip(actual, [a - b, c / a, 2 * c * a], strict=True):
        np.testing.assert_array_equal(y, right)
    assert "Expand" not in op_types


def test_what_is_expanded_beyond_the_other_input_stays():
    column, row = variable("column", "float32", [4, 1]), variable("row", "float32", [3])
    actual, op_types = run([op.Expand(column, [4, 3]) + row], {column: real(4, 1), row: real(3, seed=1)})
    np.testing.assert_array_equal(actual[0], real(4, 1) + real(3, seed=1))
    assert op_types == ["Expand", "Add"]


def test_a_sum_is_negated_after_it():
    x = variable("x", "float32", [4, 3])
    (y,), op_types = run([op.ReduceSum(-x, [0], keepdims=0)], {x: real(4, 3)})
    assert op_types == ["ReduceSum", "Neg"]
    np.testing.assert_array_equal(y, -real(4, 3).sum(0))


def test_factors_fold_into_products():
    a, b, c = (variable(n, "float32", s) for n, s in (("a", (4, 3)), ("b", (3, 2)), ("c", (4, 2))))
    arrays = {a: real(4, 3), b: real(3, 2, seed=1), c: real(4, 2, seed=2)}
    spread = op.Expand(constant(np.float32(3)), [4, 3]) / 2  # all of one number
    y = op.Gemm(spread * a, b * constant(np.full((3, 2), -1, np.float32)), c, alpha=2.0)
    rows = op.MatMul(constant(np.ones(4, np.float32)), 0.5 * op.Gemm(a, b))
    actual, types = run([y, rows], arrays)
    assert "Mul" not in types
    na, nb, nc = arrays.values()
    np.testing.assert_allclose(actual[0], -3 * na @ nb + nc, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(actual[1], 0.5 * (na @ nb).sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 4), ("N", 3, 4), (2, 2, 3, 4)])
def test_bias_of_a_batched_layer_is_fused(shape, first):
    x, w, b = variable("x", "float32", shape), variable("w", "float32", (4, 5)), variable("b", "float32", (5,))
    arrays = {x: real(*(2 if n == "N" else n for n in shape)), w: real(4, 5, seed=1), b: real(5, seed=2)}
    (actual,), types = run([x @ w + b if first else b + x @ w], arrays)
    assert types == ["Flatten", "Gemm", "Reshape"]
    nx, nw, nb = arrays.values()
    np.testing.assert_allclose(actual, nx @ nw + nb, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shapes", [
    ((3, 4), (4, 5), (5,)), ((2, 3, 4), (2, 4, 5), (5,)), ((2, 3, 4), (4, 5), (3, 5)), ((2, 3, 4), (4, 5), (1,)),
    (("N", "M", 4), (4, 5), (5,)), ((2, 3, 4), (4, "K"), (5,)), ((2, 3, 4), (4,), (3,)),
])
def test_other_layers_stay(shapes):
    x, w, b = (variable(n, "float32", s) for n, s in zip("xwb", shapes, strict=True))
    y = x @ w + b
    assert apply_peepholes([y]) == [y]


def test_products_read_twice_are_computed_once():
    x, w, b = variable("x", "float32", (2, 3, 4)), variable("w", "float32", (4, 5)), variable("b", "float32", (5,))
    y = x @ w
    assert apply_peepholes([y + b, op.Exp(y)])[0].node.op_type == "Add"


@pytest.mark.usual_limits
@pytest.mark.parametrize(("rows", "settings", "expected"), [
    (128, {}, ["Reshape", "MatMul", "Add"]), (127, {}, ["Gemm"]), (200, {"alpha": 2.0}, ["Gemm"]),
    ("N", {}, ["Gemm"]),
])
def test_one_column_of_many_rows(rows, settings, expected):
    a, w, b = (variable(n, "float32", s) for n, s in (("a", (rows, 5)), ("w", (1, 5)), ("b", (1,))))
    arrays = {a: real(200 if rows == "N" else rows, 5), w: real(1, 5, seed=1), b: real(1, seed=2)}
    actual, types = run([op.Gemm(a, w, b, transB=1, **settings)], arrays)
    assert types == expected
    na, nw, nb = arrays.values()
    np.testing.assert_allclose(actual[0], settings.get("alpha", 1) * na @ nw.T + nb, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("factor", [np.array([1, 2, 3], np.float32), np.ones((2, 1, 1), np.float32)])
def test_other_factors_stay(factor):
    a, b = variable("a", "float32", (4, 3)), variable("b", "float32", (3, 2))
    y = op.MatMul(factor * a, b)
    assert apply_peepholes([y]) == [y]


def test_float64_factors_are_not_folded_into_gemm():
    """The factors of a Gemm are float32 in the specification."""
    a, b = variable("a", "float64", (4, 3)), variable("b", "float64", (3, 2))
    y = op.Gemm(a * 0.1, b)
    assert apply_peepholes([y]) == [y]


def test_common_factors_are_factored_out():
    a, b, w = (variable(n, "float32", s) for n, s in (("a", (4, 1)), ("b", (4, 1)), ("w", (4, 2))))
    arrays = {a: real(4, 1), b: real(4, 1, seed=1), w: real(4, 2, seed=2)}
    c = op.Expand(constant(np.float32(0.25)), [4, 1])
    actual, types = run([op.Gemm(c * a + (-c) * b, w, transA=1), op.Gemm(c * a - (-c) * b, w, transA=1)], arrays)
    assert sorted(types) == ["Add", "Gemm", "Gemm", "Sub"]
    na, nb, nw = arrays.values()
    np.testing.assert_allclose(actual[0], 0.25 * (na - nb).T @ nw, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(actual[1], 0.25 * (na + nb).T @ nw, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(5,), (4, 3), ()])
def test_a_mean_of_squares_is_a_sum_of_squares(shape):
    x = variable("x", "float32", shape)
    arrays = {x: real(*shape)}
    actual, types = run([op.ReduceMean(x**2, keepdims=0)], arrays)
    assert types == ["ReduceSumSquare", "Div"]
    np.testing.assert_allclose(actual[0], np.square(arrays[x]).mean(), rtol=1e-6)


@pytest.mark.parametrize("y", [
    lambda x: op.ReduceMean(x**3, keepdims=0), lambda x: op.ReduceMean(x**2), lambda x: op.ReduceMean(x**2, [1]),
    lambda x: op.ReduceMean(op.Cast(x, to=10) ** 2, keepdims=0),
])
def test_other_means_stay(y):
    y = y(variable("x", "float32", (4, 3)))
    assert apply_peepholes([y]) == [y]


@pytest.mark.parametrize("shape", [("N", 3, 4), (5, 4)])
@pytest.mark.parametrize("axis", [[-1], "last"])
def test_a_mean_of_products_with_a_row_is_a_product_with_a_column(shape, axis):
    x, s = variable("x", "float32", shape), variable("s", "float32", (4,))
    arrays = {x: real(*(2 if n == "N" else n for n in shape)), s: real(4, seed=1)}
    axis = [len(shape) - 1] if axis == "last" else axis
    for y in (op.ReduceMean(x * s, axis), op.ReduceMean(s * x, axis)):
        actual, types = run([y], arrays)
        assert types == ["Div", "Unsqueeze", "MatMul"]
        np.testing.assert_allclose(actual[0], (arrays[x] * arrays[s]).mean(-1, keepdims=True), rtol=1e-5, atol=1e-6)


def product(x=(5, 4), s=(4,), dtype="float32"):
    return variable("x", dtype, x) * variable("s", dtype, s)


READ_TWICE = product()


@pytest.mark.parametrize("y", [
    [op.ReduceMean(product(), [0])], [op.ReduceMean(product(), [-1], keepdims=0)], [op.ReduceMean(product())],
    [op.ReduceMean(product(s=(1, 4)), [-1])], [op.ReduceMean(product(s=("M",)), [-1])],
    [op.ReduceMean(product((5, 0), (0,)), [-1])], [op.ReduceMean(product(dtype="float16"), [-1])],
    [op.ReduceMean(product(x=(4,)), [-1])], [op.ReduceMean(READ_TWICE, [-1]), READ_TWICE],
])
def test_other_means_of_products_stay(y):
    assert apply_peepholes(y) == y


def test_a_mask_is_one_operator():
    x, dy = variable("x", "float32", (8,)), variable("dy", "float32", (8,))
    arrays = {x: np.array([-np.inf, -1, -1e-38, 0, 1.2e-38, 1e-30, 2, np.inf], np.float32), dy: real(8)}
    actual, types = run([grad(op.Relu(x), [x], [dy])[0]], arrays)
    assert sorted(types) == ["HardSigmoid", "Mul", "Relu"]
    np.testing.assert_array_equal(actual[0], arrays[dy] * [0, 0, 0, 0, 1, 1, 1, 1])


@pytest.mark.parametrize("mask", [
    lambda x: op.Cast(x > 1, to=1), lambda x: op.Cast(x >= 0, to=1), lambda x: op.Cast(x > 0, to=11),
    lambda x: op.Cast(op.Cast(x, to=11) > 0, to=1), lambda x: op.Cast(x > np.zeros((2, 1), np.float32), to=1),
])
def test_other_masks_stay(mask):
    y = mask(op.Relu(variable("x", "float32", (8,))))
    assert apply_peepholes([y]) == [y]


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_and_its_derivative_share_the_normal_cdf(approximate):
    x = variable("x", "float32", (64,))
    y = op.Gelu(x, approximate=approximate)
    (g,) = grad(y, [x], [constant(np.ones(64, np.float32))])
    arrays = {x: np.linspace(-6, 6, 64, dtype=np.float32)}
    actual, types = run([y, g], arrays)
    assert "Gelu" not in types
    assert types.count("Erf") + types.count("Tanh") == 1
    t = torch.tensor(arrays[x], dtype=torch.float64, requires_grad=True)
    expected = F.gelu(t, approximate=approximate)
    expected.sum().backward()
    np.testing.assert_allclose(actual[0], expected.detach(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(actual[1], t.grad, rtol=1e-5, atol=3e-6)
    assert run([y], arrays)[1] == ["Gelu"]


@pytest.mark.parametrize(("shape", "perm"), [
    ((8, 32, 4, 16), (0, 2, 1, 3)), ((32, 4, 32, 16), (2, 0, 1, 3)), ((32, 8, 4, 16), (1, 2, 0, 3)),
    ((1, 64, 1, 32, 4), (3, 2, 1, 0, 4)), (("N", 32, 4, 16), (0, 2, 1, 3)), ((64, "N", 4, 16), (1, 2, 0, 3)),
])
def test_block_swaps_move_right(shape, perm):
    x = variable("x", "float32", shape)
    arrays = {x: real(*(n if isinstance(n, int) else 6 for n in shape))}
    y = op.Transpose(x, perm=list(perm))
    assert apply_peepholes([y]) != [y]
    actual, types = run([y], arrays)
    assert types == ["Reshape", "Transpose", "Reshape"]
    np.testing.assert_array_equal(actual[0], arrays[x].transpose(perm))


@pytest.mark.usual_limits
@pytest.mark.parametrize(("shape", "perm", "dtype"), [
    ((8, 32, 4, 64), (0, 2, 1, 3), "float32"), ((8, 32, 4, 2), (0, 2, 1, 3), "float32"), ((256, 64), (1, 0), "float32"),
    ((4, 8, 2, 16), (0, 2, 1, 3), "float32"), (("N", "M", 4, 16), (0, 2, 1, 3), "float32"),
    ((64, 32, 5, 5), (1, 0, 2, 3), "float32"),
    ((8, 32, 4, 16), (0, 2, 1, 3), "int64"), ((32, 4, 32, 16), (2, 1, 0, 3), "float32"), (None, (1, 0), "float32"),
])
def test_other_transposes_stay(shape, perm, dtype):
    y = op.Transpose(variable("x", dtype, shape), perm=list(perm))
    assert apply_peepholes([y]) == [y]


def test_patterns_stop_at_the_cut():
    x = variable("x", "float32", (4, 3))
    scaled = 2 * x
    y = op.Gemm(scaled, constant(np.ones((3, 2), np.float32)))
    assert apply_peepholes([y], [scaled]) == [y]
    assert apply_peepholes([y]) != [y]


@pytest.mark.parametrize("y", [
    lambda x, w: op.Gemm(x, w, np.ones(1, np.float32), transB=1), lambda x, w: op.MatMul(0 * x, w),
    lambda x, w: op.Transpose(x, perm=[1, 0]), lambda x, w: op.ReduceMean(x**2, keepdims=0), lambda x, w: x + 2 * w,
    lambda x, w: op.Gemm(0 * x, w), lambda x, w: op.Conv(x, w),
])
@pytest.mark.parametrize("shape", [None, ["N", "M"]])
def test_unknown_shapes_stay(y, shape):
    y = y(variable("x", "float32", shape), variable("w", "float32", None))
    assert apply_peepholes([y]) == [y]


def test_a_mask_of_unknown_shape():
    (y,) = apply_peepholes([op.Cast(op.Relu(variable("x", "float32", None)) > 0, to=1)])
    assert y.node.op_type == "HardSigmoid"


@pytest.mark.parametrize("activation", [op.Elu, op.LeakyRelu, op.Relu, op.Selu])
def test_masks_of_activations_alone_may_be_nan(activation):
    """A mask that a model computes of NaN is 0; so it stays what it is."""
    x, dy = variable("x", "float32", (3,)), variable("dy", "float32", (3,))
    arrays = {x: np.array([np.nan, -1, 2], np.float32), dy: np.ones(3, np.float32)}
    y = activation(x + 1)
    actual, types = run([op.Cast(x > 0, to=1), grad(y, [x], [dy])[0], y], arrays)
    np.testing.assert_array_equal(actual[0], [0, 0, 1])
    assert types.count("Greater") == 1
    assert types.count("HardSigmoid") == 1


def test_a_factor_of_0_is_not_folded():
    a, b = variable("a", "float32", (2, 3)), variable("b", "float32", (3, 2))
    y = op.Gemm(constant(np.zeros((2, 3), np.float32)) * a, b)
    assert apply_peepholes([y]) == [y]


@pytest.mark.parametrize(("scale", "shape", "cancels"), [
    (0.02, ["N", 3], True), ([0.1, 0.2, 0.3], ["N", 3], True), ([[0.1, 0.2, 0.3]], [3], False),
    ([0.1, 0.0, 0.3], [3], False),
])
def test_a_scale_cancels_out_where_it_changes_no_shape(scale, shape, cancels):
    """As in the gradient of a dequantization behind a quantization."""
    x, scale = variable("x", "float32", shape), constant(np.array(scale, np.float32))
    (y,) = apply_peepholes([x * scale / scale])
    assert (y == x) == cancels


@pytest.mark.parametrize("shape", [(128, 8192), (2, 64, 8192)], ids=str)
def test_the_gradient_of_large_logits_is_not_scaled_itself(shape):
    h, w = real(*shape[:-1], 4), real(4, shape[-1], seed=1)
    t = np.random.default_rng(0).integers(0, shape[-1], (*shape[:-1], 1))
    values = [variable(n, a.dtype, a.shape) for n, a in (("h", h), ("w", w), ("t", t))]
    y = values[0] @ values[1]
    costs = op.ReduceLogSumExp(y, [-1]) - op.GatherElements(y, values[2], axis=-1)
    gradients = grad(op.ReduceMean(costs, keepdims=0), values[:2])
    models = [build(values, g) for g in (gradients, apply_peepholes(gradients))]
    plain, fast = (Session(m).run({"h": h, "w": w, "t": t}).values() for m in models)
    for a, b in zip(plain, fast, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-6 * abs(a).max())
    inferred = onnx.shape_inference.infer_shapes(models[1]).graph
    large = {v.name for v in inferred.value_info if [d.dim_value for d in v.type.tensor_type.shape.dim] == [*shape]}
    assert [n.op_type for n in inferred.node if n.output[0] in large] == ["MatMul", "Softmax", "ScatterElements"]


@pytest.mark.parametrize(("shape", "perm"), [
    ((4, 12, 16, 20), (0, 3, 2, 1)), ((16, 8, 8), (2, 1, 0)), (("N", "M", 4, 16), (2, 0, 1, 3)),
    ((0, 32, 4, 16), (0, 2, 1, 3)), ((8, 1, 16, 16, 4), (4, 3, 1, 2, 0)),
])
def test_a_transpose_that_does_more_than_swap_two_blocks_stays(limit, shape, perm):
    """Three blocks in reverse order were taken for two that are swapped, and gave another function."""
    limit(moved_elements=0, moved_run=(1, 10**9))
    x = variable("x", "float32", shape)
    arrays = {x: real(*(n if isinstance(n, int) else 6 for n in shape))}
    actual, types = run([op.Transpose(x, perm=list(perm))], arrays)
    np.testing.assert_array_equal(actual[0], arrays[x].transpose(perm))
    assert types == ["Transpose"]


@pytest.mark.skipif(has_training(), reason="onnxruntime 1.19.2 fails to run a ReduceMean with noop_with_empty_axes")
def test_a_mean_over_no_axes_stays():
    """Without axes, noop_with_empty_axes returns what is read."""
    x = variable("x", "float32", (3,))
    (y,), _ = run([op.ReduceMean(x**2, keepdims=0, noop_with_empty_axes=1)], {x: real(3)})
    np.testing.assert_allclose(y, real(3) ** 2, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["mul", "max", "min"])
def test_numbers_scattered_by_other_reductions_stay(reduction):
    v, x = variable("v", "float32", (4, 3)), variable("x", "float32", (4, 1))
    p = variable("p", "int64", (4, 1))
    arrays = {v: real(4, 3), x: real(4, 1, seed=1), p: np.array([[0], [2], [1], [1]])}
    scattered = op.ScatterElements(constant(np.zeros((4, 3), np.float32)), p, -x, axis=1, reduction=reduction)
    (y,), _ = run([v * x + scattered], arrays)
    expected = arrays[v] * arrays[x]
    for i, j in enumerate(arrays[p][:, 0]):
        u = -arrays[x][i, 0]
        expected[i, j] += {"mul": 0.0, "max": max(u, 0), "min": min(u, 0)}[reduction]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("x", [(2, 0, 4), (0, 3, 4), (2, 3, 0)])
def test_layers_of_nothing_stay(x):
    """Sizes of 0 in a Reshape are copied from what it reads."""
    x, w, b = variable("x", "float32", x), variable("w", "float32", (x[-1], 5)), variable("b", "float32", (5,))
    y = x @ w + b
    assert apply_peepholes([y]) == [y]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_factor_that_keeps_sums_finite_stays_within_them(dtype):
    """(a + b) s may overflow where s a + s b does not: gradients in float16 are scaled so that they just fit."""
    a, b, half = variable("a", dtype, (2,)), variable("b", dtype, (2,)), constant(np.array(0.5, dtype))
    (y,), types = run([half * a + half * b], {a: np.full(2, 6e4, dtype), b: np.full(2, 6e4, dtype)})
    np.testing.assert_array_equal(y, np.full(2, 6e4, dtype))
    assert (types == ["Add", "Mul"]) == (dtype == "float32")


def test_a_constant_that_a_factor_makes_infinite_is_left_alone():
    b = variable("b", "float16", (2, 2))
    y = op.MatMul(constant(np.full((2, 2), 400, np.float16)), constant(np.full((2, 2), 400, np.float16)) * b)
    (actual,), types = run([y], {b: np.full((2, 2), 1e-4, np.float16)})
    assert "Mul" in types
    np.testing.assert_allclose(actual, np.full((2, 2), 32), rtol=2e-2)
