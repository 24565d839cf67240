"""Gradients of operators of com.microsoft that ONNX lacks or has taken over: beside kernels, differences and torch."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from table import OLD, apart, assert_as_torch, generator, real, rows

from ortpartial import grad, gradient_model, load
from ortpartial.autodiff import expand_composition
from ortpartial.exceptions import NoGradientError
from ortpartial.graph import build, constant, variable
from ortpartial.graph.ops import make_node
from ortpartial.graph.schemas import schema_of
from ortpartial.model.reader import EXPANSIONS
from ortpartial.runtime import Session
from ortpartial.testing import check_gradient


def call(name, *inputs, **attributes):
    return make_node(schema_of(name, "com.microsoft", 1), list(inputs), attributes).outputs[0]


def distances(metric):
    return lambda a, b: call("CDist", a, b, metric=metric)


def inverse(x):
    return call("Inverse", x + 3 * constant(np.eye(3, dtype=x.dtype)))


def torch_inverse(x):
    return torch.linalg.inv(x + 3 * torch.eye(3, dtype=x.dtype))


def packed(quant_type, n, k, block):
    """A product with random numbers of 4 bits, of which the last block may be short."""
    codes = generator(quant_type, n, k).integers(0, 256, (n * k + 1) // 2, np.uint8)

    def f(a, absmax):
        return call("MatMulBnb4", a, constant(codes), absmax, K=k, N=n, block_size=block, quant_type=quant_type)

    return f, [real(2, 3, k), np.abs(real(-(-n * k // block)))]


EXACT = rows(
    ("CDist", distances("sqeuclidean"), [real(4, 3), real(5, 3, seed=1)],
     lambda a, b: ((a[:, None] - b[None]) ** 2).sum(-1)),
    ("CDist by roots", distances("euclidean"), [apart(4, 3), apart(5, 3) + 0.05], torch.cdist),
    ("CDist of one row", distances("sqeuclidean"), [real(1, 3), real(1, 3, seed=1)],
     lambda a, b: ((a[:, None] - b[None]) ** 2).sum(-1)),
    ("Inverse", inverse, [real(3, 3) / 3], torch_inverse),
    ("Inverse of a batch", inverse, [real(2, 1, 3, 3) / 3], torch_inverse),
)


@pytest.mark.parametrize(("f", "args", "torch_f"), EXACT)
def test_in_float64(f, args, torch_f):
    check_gradient(f, args)
    assert_as_torch(f, torch_f, args)


def test_equal_points():
    a = np.ones((1, 2))
    assert_as_torch(distances("euclidean"), torch.cdist, [a, np.concatenate([a, a + 1])])


@pytest.mark.parametrize("quant_type", [0, 1])
@pytest.mark.parametrize(("n", "k", "block"), [(4, 32, 16), (1, 32, 32), (3, 8, 16)])
def test_numbers_of_4_bits(quant_type, n, k, block):
    f, args = packed(quant_type, n, k, block)
    check_gradient(f, args, dtype=np.float32, step=1, rtol=1e-4)


@pytest.mark.parametrize("quant_type", [0, 1])
def test_what_4_bits_stand_for(quant_type):
    """The kernel and the formula dequantize to the same numbers."""
    f, (a, absmax) = packed(quant_type, 4, 32, 16)
    values = [variable("a", "float32", a.shape), variable("m", "float32", absmax.shape)]
    y = f(*values)
    (z,) = expand_composition(y.node, y.node.inputs)
    found = Session(build(values, {"y": y, "z": z})).run(
        {"a": a.astype(np.float32), "m": absmax.astype(np.float32)})
    np.testing.assert_allclose(found["y"], found["z"], rtol=1e-5, atol=1e-5)


def test_settings_without_a_gradient():
    a, m = variable("a", "float32", [2, 32]), variable("m", "float32", [8])
    y = call("MatMulBnb4", a, variable("b", "uint8", [64]), m, K=32, N=4, block_size=16, quant_type=1)
    with pytest.raises(NoGradientError, match=r"com\.microsoft\.MatMulBnb4 with numbers that are computed has no grad"):
        grad(y, [a])


I, F = np.int64, np.float32
YOUNG = pytest.mark.skipif(OLD, reason="onnxruntime 1.19.2 does not know the operator")
REGIONS = np.array([[0.1, 0.2, 0.7, 0.9], [0.6, 0.3, 0.2, 0.8], [-0.2, 0.1, 0.5, 1.3]])
READ = rows(
    ("TransposeMatMul", "TransposeMatMul", [real(4, 3), real(4, 5)], {"transA": 1, "alpha": 0.5}),
    ("TransposeMatMul of batches", "TransposeMatMul", [real(2, 3, 4), real(2, 5, 4)], {"transB": 1}),
    ("Pad", "Pad", [real(2, 3), I([0, 1, 2, 0])], {}),
    ("Pad by a number", "Pad", [real(2, 3), I([1, 0, 0, 1]), F([0.5])], {}),
    ("Pad, reflected", "Pad", [real(2, 3), I([1, 0, 0, 1])], {"mode": "reflect"}),
    ("GatherND", "GatherND", [real(3, 4), I([[0, 1], [2, 3], [0, 1]])], {}),
    ("GridSample", "GridSample", [real(1, 2, 4, 5), np.tanh(real(1, 3, 2, 2))], {}),
    ("GridSample, bicubic", "GridSample", [real(1, 2, 4, 5), np.tanh(real(1, 3, 2, 2))],
     {"mode": "bicubic", "align_corners": 1, "padding_mode": "border"}),
    ("Trilu", "Trilu", [real(3, 4), I(1)], {"upper": 0}),
    ("Range", "Range", [F(0.25), F(2), F(0.5)], {}),
    ("Unique", "Unique", [F([2, 1, 1, 3, 4, 3])], {}),
    ("ScaledSiLU", "ScaledSiLU", [real(2, 3)], {"alpha": 1.5}, YOUNG),
    ("ScaledSiLU by an input", "ScaledSiLU", [real(2, 3), F(0.7)], {}, YOUNG),
    ("SampleOp", "SampleOp", [real(2, 3)], {}),
    ("ConvTransposeWithDynamicPads", "ConvTransposeWithDynamicPads", [real(1, 2, 4, 4), real(2, 3, 3, 3),
                                                                      I([1, 0, 1, 1]), real(3)], {"strides": [2, 1]}),
    ("CropAndResize", "CropAndResize", [real(2, 2, 4, 5), REGIONS, np.int32([0, 1, 1]), np.int32([3, 2])],
     {"extrapolation_value": 0.5}),
    ("CropAndResize to one", "CropAndResize", [real(2, 2, 4, 5), REGIONS, np.int32([0, 1, 1]), np.int32([1, 1])], {}),
    ("CropAndResize of one row", "CropAndResize", [real(2, 2, 1, 5), REGIONS, np.int32([0, 1, 1]), np.int32([2, 3])],
     {}),
)

#: Inputs that are constants, without which a node is read as it is.
STORED = {"ConvTransposeWithDynamicPads": [2], "CropAndResize": [3]}


@pytest.mark.parametrize(("operator", "arrays", "attributes"), READ)
def test_read_as_standard_operators(operator, arrays, attributes):
    """What is read computes what the kernel does, and its gradient loads."""
    arrays = [np.asarray(a, np.float32) if np.asarray(a).dtype == np.float64 else np.asarray(a) for a in arrays]
    kinds = [onnx.helper.np_dtype_to_tensor_dtype(a.dtype) for a in arrays]
    n = 3 if operator == "Unique" else 1
    node = helper.make_node(operator, [f"x{i}" for i in range(len(arrays))], [f"y{i}" for i in range(n)],
                            domain="com.microsoft", **attributes)
    stored = STORED.get(operator, [])
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(f"x{i}", t, a.shape) for i, (t, a) in enumerate(
            zip(kinds, arrays, strict=True)) if i not in stored], [helper.make_tensor_value_info("y0", 1, None)],
        [numpy_helper.from_array(arrays[i], f"x{i}") for i in stored])
    model = helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])
    feeds = {f"x{i}": a for i, a in enumerate(arrays) if i not in stored}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    loaded = load(model)
    assert loaded.outputs["y0"].node.domain == ""
    g = Session(gradient_model(loaded, ["x0"], cotangents="ones")).run(feeds)["x0_grad"]
    assert g.shape == arrays[0].shape
    found = Session(build(loaded.inputs, loaded.outputs)).run(feeds)["y0"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_gradients_of_crops_and_of_transposed_convolutions():
    """By images and by regions; and what is left out is refused by its reason."""
    transposed, crop = (EXPANSIONS["com.microsoft", n] for n in STORED)
    images, size = constant(np.array([0, 1])), constant(np.array([2, 3]))
    check_gradient(lambda x, r: crop([x, r, images, size], {}, [True])[0], [real(2, 1, 4, 5), REGIONS[:2]], order=1)
    pads = constant(np.array([1, 0, 1, 0]))
    check_gradient(lambda x, w: transposed([x, w, pads], {}, [True])[0], [real(1, 2, 3, 3), real(2, 1, 2, 2)], order=1)
    assert transposed([1, 2, variable("p", "int64", [4])], {}, [True]) is None
    assert crop([1, 2, 3, variable("s", "int32", [2])], {}, [True]) is None
    assert crop([1, 2, 3, size], {"mode": "nearest"}, [True]) is None
