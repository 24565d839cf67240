"""Run-time guards: numbers that would crash onnxruntime raise an error that names the node, others pass unchanged."""

import time

import numpy as np
import onnx
import pytest
from run_time_values import ROWS, feeds, model

from ortpartial import OrtGradientForwardBackward
from ortpartial.exceptions import DataError, ModelError
from ortpartial.graph import build, constant, op, variable
from ortpartial.model import guard_bound, load
from ortpartial.model.run_time_guards import _evaluate
from ortpartial.runtime import Session
from ortpartial.training import forward_graph

#: By row: numbers that crashed or hung a runtime, and what the error says.
DANGEROUS = {
    "ArrayFeatureExtractor Y": ([0, -(2**31)], "ArrayFeatureExtractor of 'r0' has indices that are out of range"),
    "Col2Im block_shape": ([2, 0], "Col2Im of 'r' has blocks and an image_shape that its input does not fit"),
    "Col2Im image_shape": ([3, 5], "Col2Im of 'r' has blocks and an image_shape that its input does not fit"),
    "Loop M": (2**31, "Loop of 'r' has a trip count that takes hours, and no other end"),
    "Loop M with a condition": (2**62, "Loop of 'r' has a trip count that takes hours, and no other end"),
    "MaxUnpool I": (np.full((1, 1, 4, 4), 16), "MaxUnpool of 'r' has indices of elements that its output lacks"),
    "Pad pads reflect": ([0, 0, 0, 10**7], "Pad of 'r' has pads that its input is too small for in mode 'reflect'"),
    "Range delta real": (1e-30, "Range of 'l' has too many elements, or an end that is not a number"),
    "Range limit real": (np.nan, "Range of 'l' has too many elements, or an end that is not a number"),
    "Range start": (-(2**63), "Range of 'l' has too many elements, or an end that is not a number"),
    "RoiAlign batch_indices": ([0, 0, 0, 10**6], "RoiAlign of 'r' has batch_indices that are no rows of its input"),
    "RoiAlign batch_indices max": ([-1, 0, 0, 0], "RoiAlign of 'r' has batch_indices that are no rows of its input"),
    "STFT frame_length": (0, "STFT of 'r' has a frame_length that is not positive"),
    "com.microsoft.CropAndResize batch_indices": ([0, 0, 10**6], "CropAndResize of 'r0' has batch_indices that are no"),
    "com.microsoft.GroupQueryAttention seqlens_k": ([-5], "GroupQueryAttention of 'r0' has seqlens_k that are out of"),
    "com.microsoft.GroupQueryAttention total_sequence_length": (0, "GroupQueryAttention of 'r0' has"),
    "com.microsoft.MatMulNBits g_idx": (np.full(32, 2**31 - 1), "MatMulNBits of 'r0' has indices that are out of rang"),
    "com.microsoft.MultiHeadAttention key_padding_mask": ([4, -(10**6)], "has lengths of sequences that are negative"),
    "com.microsoft.RotaryEmbedding position_ids": ([[0, 1, 2, 10**6]], "RotaryEmbedding of 'r0' has indices that are"),
    "com.microsoft.WordConvEmbedding Sequence": (np.full((2, 3), 2**31 - 1), "WordConvEmbedding of 'r0' has indices"),
    "Tile repeats": ([2, 2**62 + 1], "failed to run the graph|refuses an input"),
}


@pytest.mark.parametrize("name", DANGEROUS)
def test_dangerous_numbers_raise_an_error(name):
    numbers, message = DANGEROUS[name]
    layer = OrtGradientForwardBackward(model(ROWS[name], computed=True, weight="behind"), ["w"], engine="step")
    with pytest.raises((DataError, ModelError), match=message):
        layer.forward(feeds(np.asarray(numbers, ROWS[name].valid.dtype), computed=True))
    layer.forward(feeds(ROWS[name].valid, computed=True))


@pytest.mark.parametrize(("name", "number"), [
    ("ArrayFeatureExtractor Y", -(2**31)), ("Loop M", 2**31), ("MaxUnpool I", 16), ("RoiAlign batch_indices", 10**6),
    ("com.microsoft.CropAndResize batch_indices", 10**6), ("com.microsoft.MatMulNBits g_idx", 2**31 - 1)])
def test_errors_tell_the_number(name, number):
    layer = OrtGradientForwardBackward(model(ROWS[name], computed=True, weight="behind"), ["w"], engine="step")
    with pytest.raises(DataError, match=rf": {number}\.$"):
        layer.forward(feeds(np.asarray(DANGEROUS[name][0], ROWS[name].valid.dtype), computed=True))


def test_a_guard_for_engines_without_the_kernels():
    """It adds 0 where onnxruntime's kernel computes, and its condition holds where the kernel refuses."""
    x, i = variable("x", "float32", [4, 3]), variable("i", "int64", [2, 3])
    node = op.GatherElements(x, i).node
    _, guarded = guard_bound(node, node.inputs)
    session = Session(build([i], {"i_out": guarded}))
    good = np.array([[0, 3, -4], [1, -1, 2]])
    np.testing.assert_array_equal(session.run({"i": good})["i_out"], good)
    with pytest.raises(DataError, match=r"^A GatherElements has an index that is not in -4 to 3: -5\.$"):
        session.run({"i": good - 1})
    constant_node = op.GatherElements(x, constant(good)).node
    assert guard_bound(constant_node, constant_node.inputs) == list(constant_node.inputs)


@pytest.mark.parametrize("name", ["Col2Im block_shape", "Loop M", "MaxUnpool I", "Pad pads reflect", "Pad pads wrap",
                                  "Range start", "RoiAlign batch_indices", "Tile repeats", "TopK K"])
def test_guards_do_not_change_numbers(name):
    row = model(ROWS[name], computed=True)
    arrays = feeds(ROWS[name].valid, computed=True)
    (y,), _ = OrtGradientForwardBackward(row, engine="step").forward(arrays)
    (expected,) = onnx.reference.ReferenceEvaluator(row).run(None, arrays)
    np.testing.assert_allclose(y, expected, atol=1e-5)


def stored(name, numbers):
    """The model of a row with these numbers for `i`, as an initializer."""
    proto = model(ROWS[name], computed=False)
    (i,) = [v for v in proto.graph.input if v.name == "i"]
    proto.graph.input.remove(i)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(numbers, ROWS[name].valid.dtype), "i"))
    return proto


@pytest.mark.parametrize("name", ["Col2Im block_shape", "Pad pads reflect", "RoiAlign batch_indices", "Tile repeats"])
def test_numbers_that_are_known_cost_nothing(name):
    proto = stored(name, ROWS[name].valid)
    kinds = [n.op_type for n in forward_graph(load(proto), []).graph.node]
    assert sorted(kinds) == sorted(n.op_type for n in proto.graph.node)


@pytest.mark.parametrize("name", ["Col2Im block_shape", "Col2Im image_shape", "Pad pads reflect", "STFT frame_length"])
def test_dangerous_constants_are_refused(name):
    numbers, message = DANGEROUS[name]
    with pytest.raises(ModelError, match=message):
        load(stored(name, numbers))


def test_indices_of_images_are_checked_where_they_come_from():
    layer = OrtGradientForwardBackward(model(ROWS["RoiAlign batch_indices"], computed=False), engine="step")
    with pytest.raises(DataError, match=r"Input 'i' of RoiAlign .* has an index that is not in 0 to 0: 1\."):
        layer.forward(feeds(np.array([0, 0, 0, 1]), computed=False))


def test_a_condition_is_not_followed_beyond_a_variable():
    """Guards of all layers were followed to the beginning of the model, a time quadratic in its layers."""
    x = variable("x", "int64", ["N"])
    y = x
    for _ in range(3000):
        y += x
    bad = op.Less(y, 0)
    start = time.process_time()
    assert all(_evaluate(bad) is None for _ in range(100))
    assert time.process_time() - start < 0.1
    assert not _evaluate(op.Less(constant(np.int64(1)), 0))
