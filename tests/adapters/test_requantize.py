"""Block-quantized weights: read as onnxruntime reads them, and quantized again as its quantizer does."""

import tracemalloc

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import _pybind_state

from ortpartial.adapters.requantize import BlockQuantization, pack, unpack
from ortpartial.runtime.session import Session

N, K, SIZE = 5, 44, 16


def make_weight(bits=4, zeros=None, dtype=np.float32, groups=None):
    """A weight whose last block is not full."""
    rng = np.random.default_rng(0)
    blocks = -(-K // SIZE)
    of_zeros = {None: None, "packed": pack(rng.integers(0, 2**bits, (N, blocks)).astype("u1"), bits),
                "real": rng.uniform(0, 2**bits, (N, blocks)).astype(dtype)}[zeros]
    packed = rng.integers(0, 256, (N, blocks, SIZE * bits // 8)).astype("u1")
    scales = rng.uniform(0.5, 1.5, (N, blocks)).astype(dtype)
    order = rng.permutation(np.arange(K) // SIZE) if groups else None
    return BlockQuantization(packed, scales, of_zeros, (N, K), bits, SIZE, order)


def multiply_identity(w):
    """The weight as onnxruntime's MatMulNBits has it."""
    arrays = {"b": w.packed, "scales": w.scales, "zeros": w.zeros,
              "g_idx": None if w.groups is None else w.groups.astype("i4")}
    names = [n if a is not None else "" for n, a in arrays.items()]
    node = helper.make_node("MatMulNBits", ["x", *names], ["y"], domain="com.microsoft", K=K, N=N, bits=w.bits,
                            block_size=SIZE, accuracy_level=1)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [K, K])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [K, N])],
                              [numpy_helper.from_array(a, n) for n, a in arrays.items() if a is not None])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return Session(helper.make_model(graph, opset_imports=opsets, ir_version=10)).run({"x": np.eye(K, dtype="f4")})["y"]


@pytest.mark.parametrize("settings", [{}, {"zeros": "packed"}, {"zeros": "real"}, {"groups": True},
                                      {"groups": True, "zeros": "real"}])
def test_numbers_are_those_of_onnxruntime(settings):
    w = make_weight(**settings)
    np.testing.assert_allclose(w.dequantize().T, multiply_identity(w), rtol=1e-6, atol=1e-5)
    np.testing.assert_array_equal(w.dequantize(slice(1, 3)), w.dequantize()[1:3])


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("settings", [{}, {"zeros": "packed"}, {"zeros": "real"}, {"groups": True},
                                      {"dtype": np.float16}])
def test_a_weight_that_does_not_change_keeps_its_bytes(bits, settings):
    w = make_weight(bits, **settings)
    same = w.change(lambda rows, chosen: rows)
    for name in ("packed", "scales", "zeros"):
        np.testing.assert_array_equal(getattr(same, name), getattr(w, name))
    assert same.error == same.change == 0


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("settings", [{}, {"zeros": "packed"}, {"zeros": "real"}, {"groups": True}])
@pytest.mark.parametrize("size", [0.01, 2.0])
def test_a_changed_weight_is_near_and_every_row_follows_its_change(bits, settings, size):
    w = make_weight(bits, **settings)
    former = w.dequantize()
    change = size * former.std() * np.random.default_rng(1).standard_normal((N, K)).astype("f4")
    new = w.change(lambda rows, chosen: rows + change[chosen])
    merged = BlockQuantization(new.packed, new.scales, new.zeros, w.shape, bits, SIZE, w.groups).dequantize()
    assert new.error == pytest.approx(np.square(merged - former - change).sum(), rel=1e-4)
    assert new.change == pytest.approx(np.square(change).sum(), rel=1e-3)
    assert new.size == pytest.approx(np.square(former + change).sum(), rel=1e-5)
    assert new.error < {2: 0.4, 4: 0.1, 8: 0.01}[bits] ** 2 * new.size + new.change
    went, was_to = ((a * change).sum(axis=1) for a in (merged - former, change))
    a_step = abs(np.asarray(new.scales, "f4")).max() * abs(change).max()
    if bits > 2 or size < 1:  # Numbers of 2 bits end early.
        np.testing.assert_allclose(went, was_to, rtol=0, atol=a_step)


def test_a_change_far_below_a_step_is_no_more_lost():
    rng = np.random.default_rng(0)
    packed = rng.integers(0, 256, (64, 16, 8)).astype("u1")
    w = BlockQuantization(packed, np.ones((64, 16), "f4"), None, (64, 256), 4, 16)
    a, b, x = (rng.standard_normal(shape).astype("f4") for shape in ((64, 2), (2, 256), (256, 1000)))
    change = 0.04 * a @ b
    new = w.change(lambda rows, chosen: rows + change[chosen])
    merged = BlockQuantization(new.packed, new.scales, None, w.shape, 4, 16).dequantize()
    went = ((merged - w.dequantize()) @ x * (change @ x)).sum() / np.square(change @ x).sum()
    assert abs(change).max() < 0.5
    assert went == pytest.approx(1, abs=0.05)


def test_rows_are_changed_some_at_a_time(monkeypatch):
    w = make_weight(zeros="packed")
    whole = w.change(lambda rows, chosen: rows * 1.5)
    seen = []
    monkeypatch.setattr("ortpartial.adapters.requantize._AT_ONCE", 2 * K)
    parts = w.change(lambda rows, chosen: seen.append(chosen) or rows * 1.5)
    assert seen == [slice(0, 2), slice(2, 4), slice(4, 5)]
    np.testing.assert_array_equal(parts.packed, whole.packed)
    np.testing.assert_array_equal(parts.zeros, whole.zeros)
    assert parts.error == pytest.approx(whole.error)


def test_the_weight_is_never_float_as_a_whole(monkeypatch):
    monkeypatch.setattr("ortpartial.adapters.requantize._AT_ONCE", 2**12)
    packed = np.zeros((512, 32, 8), "u1")
    w = BlockQuantization(packed, np.ones((512, 32), "f4"), None, (512, 512), 4, 16)
    tracemalloc.start()
    w.change(lambda rows, chosen: rows + 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 512 * 512 * 4


quantize = getattr(_pybind_state, "quantize_matmul_4bits", None)


@pytest.mark.skipif(quantize is None, reason="The training build of onnxruntime has no quantizer of 4 bits.")
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_a_weight_that_changes_as_a_whole_is_quantized_as_by_onnxruntime(is_symmetric):
    w = np.random.default_rng(2).standard_normal((48, N)).astype("f4")
    packed, scales = np.zeros((N, 3, 8), "u1"), np.zeros((N, 3), "f4")
    zeros = np.zeros((N, 2), "u1")
    quantize(packed, w, scales, zeros, SIZE, N, 48, is_symmetric)
    former = BlockQuantization(np.zeros_like(packed), -np.ones_like(scales),
                               None if is_symmetric else np.zeros_like(zeros), (N, 48), 4, SIZE)
    new = former.change(lambda rows, chosen: w.T[chosen])
    np.testing.assert_array_equal(new.scales, scales)
    if not is_symmetric:
        np.testing.assert_array_equal(unpack(new.zeros, 4)[:, :3], unpack(zeros, 4)[:, :3])
    assert (new.packed == packed).mean() > 0.9  # A few numbers take one step more.
