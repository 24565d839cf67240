"""Gradients through weights of 2 to 8 bits: as of the product with the dequantized weight, which stays packed."""

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from once import ON_BOTH
from onnx import numpy_helper

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, grad, op, variable
from ortpartial.autodiff.trainable import find_default_weights
from ortpartial.exceptions import NoGradientError
from ortpartial.graph.ops import Operators
from ortpartial.model import load
from ortpartial.runtime.session import Session
from ortpartial.runtime.session_options import session_options

ms = Operators("com.microsoft")
IS_OLD = onnxruntime.__version__.startswith("1.19.")
N = 6

# Bits, columns, columns of a block, and what else: zero points, groups, the bias, rows of scales in one row.
CASES = {
    "4 bits": (4, 64, 16, {}),
    "one block": (4, 32, 32, {}),
    "a block that is not full": (4, 40, 16, {}),
    "zero points": (4, 48, 16, {"zero": "packed"}),
    "real zero points": (4, 64, 32, {"zero": "real"}),
    "groups": (4, 64, 16, {"groups": "equal", "zero": "real"}),
    "groups of several sizes": (4, 64, 16, {"groups": "any"}),
    "a bias": (4, 32, 16, {"bias": True}),
    "scales in one row": (4, 64, 16, {"flat": True, "zero": "real"}),
    "8 bits": (8, 64, 16, {}),
    "8 bits and zero points": (8, 48, 16, {"zero": "packed"}),
    "2 bits": (2, 64, 16, {}),
    "2 bits and zero points": (2, 64, 16, {"zero": "packed"}),
}


def pack(numbers, bits):
    """Rows of whole numbers as bytes, the first number in the lowest bits."""
    each = 8 // bits
    padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % each))).reshape(len(numbers), -1, each)
    return (padded << np.arange(0, 8, bits)).sum(2).astype(np.uint8)


def draw(case):
    """The inputs of a case, the numbers of the weight, its zero points and its blocks, all by column."""
    bits, k, size, more = CASES[case]
    rng = np.random.default_rng(0)
    blocks = -(-k // size)
    numbers = rng.integers(0, 2**bits, (N, blocks * size))
    zero = rng.integers(0, 2**bits, (N, blocks)) if "zero" in more else np.full((N, blocks), 2 ** (bits - 1))
    if more.get("zero") == "real":
        zero = zero + rng.uniform(size=zero.shape).astype(np.float32)
    of_column = np.arange(k) // size
    if "groups" in more:
        of_column = rng.permutation(of_column) if more["groups"] == "equal" else rng.integers(0, blocks, k)
    scales = rng.uniform(0.1, 1, (N, blocks)).astype(np.float32)
    stored = {"packed": lambda: pack(zero, bits), "real": lambda: zero.astype(np.float32)}.get(more.get("zero"))
    arrays = {"b": pack(numbers, bits).reshape(N, blocks, -1), "scales": scales}
    arrays["zero"] = None if stored is None else stored()
    arrays["groups"] = of_column.astype(np.int32) if "groups" in more else None
    arrays["bias"] = rng.normal(size=N).astype(np.float32) if "bias" in more else None
    if "flat" in more:
        arrays |= {n: arrays[n].reshape(-1) for n in ("scales", "zero")}
    return arrays, numbers[:, :k] - zero[:, of_column], scales, of_column


def make_product(case, x, **attributes):
    """The product, the values of its inputs by name, and what `draw` draws beside them."""
    bits, k, size, _ = CASES[case]
    arrays, *drawn = draw(case)
    values = {n: None if a is None else constant(a, hint=n) for n, a in arrays.items()}
    y = ms.MatMulNBits(x, *values.values(), K=k, N=N, bits=bits, block_size=size, **attributes)
    return y, values, drawn


@ON_BOTH
@pytest.mark.parametrize("case", CASES)
def test_gradient(case):
    bits, k, *_ = CASES[case]
    if IS_OLD and bits != 4:
        pytest.skip(f"onnxruntime {onnxruntime.__version__} has no MatMulNBits of {bits} bits.")
    x, dy = variable("x", "float32", ["b", "s", k]), variable("dy", "float32", ["b", "s", N])
    y, values, (centered, scales, of_column) = make_product(case, x)
    wrt = {"x": x, **{n: v for n, v in values.items() if v is not None and v.is_float}}
    model = build([x, dy], {"y": y, **{f"d_{n}": d for n, d in zip(wrt, grad(y, list(wrt.values()), [dy]),
                                                                   strict=True)}})
    rng = np.random.default_rng(1)
    rows, d = rng.normal(size=(2, 3, k)).astype(np.float32), rng.normal(size=(2, 3, N)).astype(np.float32)
    found = Session(model).run({"x": rows, "dy": d})
    weight = centered * scales[:, of_column]
    bias = 0 if values["bias"] is None else values["bias"].array
    np.testing.assert_allclose(found["y"], rows @ weight.T + bias, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["d_x"], d @ weight, rtol=1e-4, atol=1e-4)
    dw = np.einsum("bsn,bsk->nk", d, rows)
    expected = {"scales": np.zeros(scales.shape), "zero": np.zeros(scales.shape), "bias": d.sum((0, 1))}
    for i in range(scales.shape[1]):
        columns = of_column == i
        expected["scales"][:, i] = (dw * centered)[:, columns].sum(1)
        expected["zero"][:, i] = -dw[:, columns].sum(1) * scales[:, i]
    for n in set(wrt) - {"x"}:
        np.testing.assert_allclose(found[f"d_{n}"], expected[n].reshape(wrt[n].shape), rtol=1e-4, atol=1e-3, err_msg=n)


@ON_BOTH
@pytest.mark.parametrize("case", ["4 bits", "zero points", "groups", "8 bits"])
def test_big_weight_is_dequantized_in_parts(case, limit):
    if IS_OLD and case == "8 bits":
        pytest.skip(f"onnxruntime {onnxruntime.__version__} has no MatMulNBits of 8 bits.")
    _, k, *_ = CASES[case]
    limit(dequantized_elements=4 * k)
    x, dy = variable("x", "float32", ["b", k]), variable("dy", "float32", ["b", N])
    y, _, (centered, scales, of_column) = make_product(case, x)
    model = build([x, dy], {"dx": grad(y, [x], [dy])[0]})
    assert sum(node.op_type == "DequantizeLinear" for node in model.graph.node) == (2 if case == "8 bits" else 4)
    d = np.random.default_rng(1).normal(size=(3, N)).astype(np.float32)
    found = Session(model).run({"x": np.zeros((3, k), np.float32), "dy": d})
    np.testing.assert_allclose(found["dx"], d @ (centered * scales[:, of_column]), rtol=1e-4, atol=1e-4)


@pytest.mark.usual_limits
@pytest.mark.parametrize("case", ["4 bits", "groups of several sizes", "real zero points"])
def test_weight_stays_packed(case, tmp_path):
    """The packed weight is once in the graph and in what onnxruntime makes of it, and no float32 is of its size."""
    _, k, *_ = CASES[case]
    x, dy = variable("x", "float32", ["b", k]), variable("dy", "float32", ["b", N])
    y, values, _ = make_product(case, x)
    model = build([x, dy], grad(y, [x, values["scales"]], [dy]))
    options = session_options(1, model.graph)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    Session(model, options=options)
    for graph in (model.graph, onnx.load(options.optimized_model_filepath).graph):
        arrays = [numpy_helper.to_array(t) for t in graph.initializer]
        assert max(a.size for a in arrays if a.dtype == np.float32) < N * k / 4
        assert sum(a.nbytes >= values["b"].array.nbytes for a in arrays if a.dtype == np.uint8) == 1


def test_rounded_activations_pass_straight_through():
    """At accuracy_level 4 the forward pass rounds, and the gradient is that of the product."""
    _, k, *_ = CASES["4 bits"]
    x, dy = variable("x", "float32", ["b", k]), variable("dy", "float32", ["b", N])
    found = []
    for level in (1, 4):
        y, *_ = make_product("4 bits", x, accuracy_level=level)
        rng = np.random.default_rng(1)
        feeds = {"x": rng.normal(size=(4, k)).astype(np.float32), "dy": rng.normal(size=(4, N)).astype(np.float32)}
        found.append(Session(build([x, dy], {"dx": grad(y, [x], [dy])[0]})).run(feeds)["dx"])
    np.testing.assert_array_equal(*found)


def test_weight_before_is_trained():
    """A weight in front of a packed one is trained; scales are not, unless they are named."""
    rng = np.random.default_rng(0)
    x = variable("x", "float32", ["b", 8])
    w = constant(rng.normal(size=(8, 64)).astype(np.float32) / 8, hint="w")
    y, _, (centered, scales, of_column) = make_product("4 bits", x @ w)
    model = load(build([x], {"y": y}))
    assert {v.hint for v in find_default_weights(model, ["y"])} == {"w"}
    rows, target = rng.normal(size=(16, 8)).astype(np.float32), rng.normal(size=(16, N)).astype(np.float32)
    optimizer = OrtGradientForwardBackwardOptimizer(model.proto, ["w"], learning_rate=0.001, max_iter=1, batch_size=16)
    optimizer.fit(rows, target)
    weight = (centered * scales[:, of_column]).T
    expected = rows.T @ (rows @ w.array @ weight - target) @ weight.T
    step = w.array - optimizer.get_state()[0]
    np.testing.assert_allclose(step / abs(step).max(), expected / abs(expected).max(), atol=1e-3)


def test_what_has_no_gradient_says_so():
    x, zero = variable("x", "float32", ["b", 64]), variable("zero", "uint8", [N, 2])
    b, scales = constant(np.zeros((N, 4, 8), np.uint8)), constant(np.ones((N, 4), np.float32))
    y = ms.MatMulNBits(x, b, scales, zero, K=64, N=N, bits=4, block_size=16)
    with pytest.raises(NoGradientError, match="MatMulNBits with a zero point that is computed has no gradient"):
        grad(op.ReduceSum(y), [x])
    values = [constant(a) for a in (np.zeros((N, 4, 8), np.uint8), np.ones((N, 4), np.float32),
                                    np.zeros((N, 2), np.uint8), np.arange(64, dtype=np.int32) % 4)]
    with pytest.raises(NoGradientError, match="MatMulNBits with g_idx and packed zero points has no gradient"):
        grad(op.ReduceSum(ms.MatMulNBits(x, *values, K=64, N=N, bits=4, block_size=16)), [x])
    y = ms.MatMulNBits(x, constant(np.zeros((N, 4, 6), np.uint8)), constant(np.ones((N, 4), np.float32)), K=64, N=N,
                       bits=3, block_size=16)
    with pytest.raises(NoGradientError, match="MatMulNBits of 3 bits has no gradient; 2, 4 and 8 have"):
        grad(op.ReduceSum(y), [x])


# The type of the table, bits, the axis of the rows and that of the blocks, and whether there are zero points.
TABLES = {"4 bits": ("uint8", 4, 0, 1, False), "4 bits and zero points": ("uint8", 4, 0, 1, True),
          "8 bits": ("uint8", 8, 0, 1, True), "2 bits": ("uint8", 2, 0, 1, False),
          "int4": ("int4", 4, 0, 1, True), "uint4": ("uint4", 4, 1, 0, False)}


@ON_BOTH
@pytest.mark.parametrize("case", TABLES)
def test_rows_of_a_packed_table(case):
    """Embeddings in few bits: a gradient by their scales, and by what is behind them."""
    kind, bits, axis, blocks, has_zero = TABLES[case]
    if IS_OLD:
        pytest.skip("onnxruntime 1.19.2 has no GatherBlockQuantized.")
    rng = np.random.default_rng(0)
    shape = [7, 7]
    shape[blocks] = 32
    few = [n // 16 if i == blocks else n for i, n in enumerate(shape)]
    low, high = (-8, 8) if kind == "int4" else (0, 2**bits)
    numbers, zero = (rng.integers(low, high, s) for s in (shape, few))
    scales = rng.uniform(0.1, 1, few).astype(np.float32)
    usual = 2 ** (bits - 1) if kind == "uint8" else 0
    centered = numbers - np.repeat(zero if has_zero else np.full(few, usual), 16, blocks)

    def store(v):
        return pack(v, bits) if kind == "uint8" else v.astype(getattr(ml_dtypes, kind))

    ids = variable("ids", "int64", ["b", "s"])
    s = constant(scales, hint="scales")
    stored = constant(store(zero)) if has_zero else None
    y = ms.GatherBlockQuantized(constant(store(numbers)), ids, s, stored, bits=bits, block_size=16, gather_axis=axis,
                                quantize_axis=blocks)
    assert [n for n in y.shape if isinstance(n, int)] == [n for i, n in enumerate(shape) if i != axis]
    dy = variable("dy", "float32", y.shape)
    rows = np.array([[1, 4, 1], [6, 0, 2]])
    table = centered * np.repeat(scales, 16, blocks)
    expected = np.take(table, rows, axis)
    d = rng.normal(size=expected.shape).astype(np.float32)
    found = Session(build([ids, dy], {"y": y, "ds": grad(y, [s], [dy])[0]})).run({"ids": rows, "dy": d})
    np.testing.assert_allclose(found["y"], expected, rtol=1e-5)
    d_table = np.zeros(shape)
    np.add.at(d_table if axis == 0 else d_table.T, rows, d if axis == 0 else np.moveaxis(d, 0, -1))
    sums = (d_table * centered).reshape([*few[:blocks], -1, 16, *few[blocks + 1 :]]).sum(blocks + 1)
    np.testing.assert_allclose(found["ds"], sums, rtol=1e-4, atol=1e-4)
