"""A model of an old opset computes what its file computes: operators whose definition has changed since opset 7."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortpartial.autodiff.grad import grad
from ortpartial.exceptions import ModelError
from ortpartial.graph import build, constant, rewrite, variable
from ortpartial.model.load import load
from ortpartial.runtime.session import Session

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 5, 4)).astype(np.float32)
POSITIVE = np.abs(X) + np.float32(0.1)
QUANTIZED = RNG.integers(0, 255, (2, 3)).astype(np.uint8)
GRID = RNG.uniform(-1, 1, (2, 3, 3, 2)).astype(np.float32)
REGIONS = np.array([[0, 0, 3, 4], [1, 1, 2.5, 3.5]], np.float32)


def f(*numbers):
    return np.array(numbers, np.float32)


def i(*numbers):
    return np.array(numbers, np.int64)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


# Operator -> cases: opsets, inputs of which the arrays after the first ... are constants, attributes.
CASES: list[tuple[str, int, list, dict]] = []


def case(op_type, opsets, *inputs, **attributes):
    CASES.extend((op_type, opset, list(inputs), attributes) for opset in opsets)


for mode in ("nearest", "linear"):
    for scales in ([1, 1, 2, 2], [1, 1, 1.5, 2.5], [1, 1, 3, 1]):
        case("Upsample", [7], X, mode=mode, scales=list(map(float, scales)))
        case("Upsample", [9], X, f(*scales), mode=mode)
        case("Resize", [10], X, f(*scales), mode=mode)
    for scales in ([1, 1, 0.5, 0.5], [1, 1, 0.6, 0.75], [1, 1, 0.4, 1]):
        case("Resize", [10], X, f(*scales), mode=mode)
for mode in ("nearest", "linear", "cubic"):
    for place in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
        for scales in ([1, 1, 2, 2], [1, 1, 0.6, 0.75]):
            case("Resize", [11, 13, 18, 19], X, f(), f(*scales), mode=mode, coordinate_transformation_mode=place)
for op_type in ("Softmax", "LogSoftmax", "Hardmax"):
    case(op_type, [7, 11, 12, 13], X)
    for axis in (0, 1, 2, 3):
        case(op_type, [7, 11, 12, 13], X, axis=axis)
    case(op_type, [11, 12, 13], X, axis=-2)
case("GroupNormalization", [18, 20], normal(2, 4, 3, 3), f(1, 2), f(0.5, -0.5), num_groups=2, epsilon=0.01)
case("BatchNormalization", [7, 9, 14, 15], X, f(1, 2, 3), f(0, 1, 2), f(0.1, 0.2, 0.3), f(1, 2, 0.5), epsilon=0.01)
case("Dropout", [7, 10, 12, 13], X)
case("Clip", [7, 10], X, min=-0.5, max=0.5)
case("Clip", [7, 10], X, max=0.5)
for mode in ("constant", "reflect", "edge"):
    case("Pad", [7, 10], X, pads=[0, 0, 1, 1, 0, 0, 1, 2], mode=mode, value=2.5)
    case("Pad", [11, 13, 18], X, i(0, 0, 1, 1, 0, 0, 1, 2), mode=mode)
case("Slice", [7], X, starts=[1, -3], ends=[100, -1], axes=[2, 3])
case("Slice", [7], X, starts=[0, 1], ends=[1, 3])
case("Slice", [10, 13], X, i(4), i(0), i(2), i(-2))
case("TopK", [7], X, k=2, axis=2)
case("TopK", [10, 11], X, i(2), axis=2)
for op_type in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare"):
    case(f"Reduce{op_type}", [7, 11, 13], POSITIVE, axes=[1, 3], keepdims=0)
    case(f"Reduce{op_type}", [7, 11, 13, 18], POSITIVE)
case("ReduceSum", [7, 11], POSITIVE, axes=[1, 3], keepdims=0)
case("ReduceSum", [13], POSITIVE, i(1, 3), keepdims=0)
case("Squeeze", [7, 11], X[:1], axes=[0])
case("Squeeze", [7, 11, 13], X[:1])
case("Unsqueeze", [7, 11], X, axes=[0, 2])
case("Split", [7, 11], X, axis=2, split=[2, 3])
case("Split", [13], X, i(2, 3), axis=2)
for settings in ({"kernel_shape": [2, 2]}, {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]},
                 {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER"},
                 {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}):
    case("AveragePool", [7, 10, 11, 19], X, **settings)
    case("MaxPool", [7, 8, 10, 11, 12], X, **settings)
    case("LpPool", [7, 11, 18], X, p=2, **settings)
case("AveragePool", [10, 11, 19], X, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1,
     count_include_pad=1)
for op_type, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
    case(op_type, [7, 14], normal(5, 2, 3), normal(1, 4 * gates, 3), normal(1, 4 * gates, 4), normal(1, 8 * gates),
         hidden_size=4)
case("Scatter", [9], X, RNG.integers(0, 5, (2, 3, 2, 4)), normal(2, 3, 2, 4), axis=2)
case("Gemm", [7, 9, 11], X[0, 0], X[0, 1], f(1, 2, 3, 4, 5), alpha=0.5, beta=2.0, transB=1)
case("DequantizeLinear", [10, 13, 19], QUANTIZED, np.float32(0.1), np.uint8(7))
case("DequantizeLinear", [13, 19], QUANTIZED, f(0.1, 0.2, 0.3), np.array([1, 2, 3], np.uint8), axis=1)
case("QuantizeLinear", [10, 13, 19], X, np.float32(0.1), np.uint8(128))
for mode in ("avg", "max"):
    case("RoiAlign", [10, 16], X, REGIONS, i(0, 1), output_height=2, output_width=2, sampling_ratio=2, mode=mode)
for mode in ("bilinear", "nearest", "bicubic"):
    for padding in ("zeros", "border", "reflection"):
        case("GridSample", [16], X, GRID, mode=mode, padding_mode=padding)
case("ArgMax", [7, 11, 12], X, axis=2, keepdims=0)
case("MeanVarianceNormalization", [9, 13], X, axes=[0, 2])
case("InstanceNormalization", [7], X, f(1, 2, 3), f(0, 1, 0))
case("LRN", [7, 13], X, size=3)
case("LpNormalization", [7], X, axis=1, p=1)
case("Flatten", [7, 9, 11, 13], X, axis=2)
case("Cast", [7, 9, 13], X, to=TensorProto.INT32)
case("DepthToSpace", [7, 11], normal(1, 8, 2, 3), blocksize=2)
case("DepthToSpace", [11], normal(1, 8, 2, 3), blocksize=2, mode="CRD")
case("SpaceToDepth", [7, 13], normal(1, 2, 4, 6), blocksize=2)
case("PRelu", [7, 9, 16], X, f(0.1, 0.2, 0.3).reshape(3, 1, 1))
case("Reshape", [7, 13, 14], X, i(0, -1, 2))
case("Sum", [7, 8, 13], X, X)
case("Max", [7, 8, 12], X, 0 * X)
case("Pow", [7, 12], POSITIVE, f(2))
case("DFT", [17], normal(1, 8, 1), axis=1, onesided=1)
case("OneHot", [9, 11], i(0, -1, 2), np.int64(3), f(0, 1), axis=-1)
case("Shape", [13, 15], X)
case("CumSum", [11, 14], X, np.int64(2), reverse=1, exclusive=1)
case("SoftmaxCrossEntropyLoss", [12, 13], X[:, :, 0, 0], i(0, 2))
case("Conv", [7, 11], X, normal(2, 3, 3, 3), auto_pad="SAME_LOWER", strides=[2, 2])
case("ConvTranspose", [7, 11], X, normal(3, 2, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2])


def file_of(op_type, opset, inputs, attributes):
    """A model of one node, whose first input is an input and whose others are initializers."""
    n = len(onnx.defs.get_schema(op_type, opset, "").outputs) if op_type in ("RNN", "GRU", "LSTM", "TopK") else 1
    names = [f"x{k}" for k in range(len(inputs))]
    node = helper.make_node(op_type, names, [f"y{k}" for k in range(2 if op_type == "Split" else n)], **attributes)
    declared = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for name, a in zip(names, inputs, strict=True)]
    integer = {"ArgMax", "Shape", "QuantizeLinear", "Cast"}
    outputs = [helper.make_tensor_value_info(o, 0 if op_type in integer or k else 1, None)
               for k, o in enumerate(node.output)]
    for o in outputs:
        if not o.type.tensor_type.elem_type:
            o.type.Clear()
    stored = [numpy_helper.from_array(np.asarray(a), name) for name, a in zip(names[1:], inputs[1:], strict=True)]
    graph = helper.make_graph([node], "file", declared, outputs, stored)
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))


def run_file(model, feeds):
    """What onnxruntime computes from the file, without optimization."""
    return Session(model.SerializeToString()).run(feeds)


@pytest.mark.parametrize(("op_type", "opset", "inputs", "attributes"), CASES,
                         ids=lambda v: v if isinstance(v, (int, str)) else "")
def test_meaning(op_type, opset, inputs, attributes):
    model, feeds = file_of(op_type, opset, inputs, attributes), {"x0": inputs[0]}
    loaded = load(model)
    found = Session(build(loaded.inputs, loaded.outputs)).run(feeds)
    for name, expected in run_file(model, feeds).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op_type", ["GroupNormalization", "Resize", "Upsample"])
def test_gradient(op_type):
    """Of operators that are written otherwise, by the input and by what was an initializer, beside differences."""
    name, opset, inputs, attributes = next(c for c in CASES if c[0] == op_type and c[3].get("mode") != "nearest")
    loaded = load(file_of(name, opset, inputs, attributes))
    x, *weights = [*loaded.inputs.values(), *(v for v in loaded.initializers.values() if op_type[0] == "G")]
    rng = np.random.default_rng(1)
    y, arrays = loaded.outputs["y0"], [inputs[0].astype(np.float32), *(v.array for v in weights)]
    steps = [rng.normal(size=a.shape).astype(np.float32) for a in arrays]
    dy = rng.normal(size=y.shape).astype(np.float32)
    variables = [x, *(variable(n, v.dtype, v.shape) for n, v in zip("ab", weights, strict=False))]
    (y,) = rewrite([y], dict(zip(weights, variables[1:], strict=True)))
    gradients = grad(y, variables, [constant(dy)])
    session = Session(build(variables, {"y": y, **{f"d{k}": g for k, g in enumerate(gradients)}}))

    def run(h):
        return session.run({v.hint: a + h * s for v, a, s in zip(variables, arrays, steps, strict=True)})

    expected = ((run(1e-2)["y"] - run(-1e-2)["y"]).astype(np.float64) * dy).sum() / 2e-2
    found = sum((run(0)[f"d{k}"].astype(np.float64) * s).sum() for k, s in enumerate(steps))
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_in_a_body():
    """Graphs inside of nodes are upgraded as well."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, X.shape)
    branches = {name: helper.make_graph([helper.make_node("Hardmax", ["x"], [f"y_{name}"], axis=axis)], name, [],
                                        [helper.make_tensor_value_info(f"y_{name}", TensorProto.FLOAT, X.shape)])
                for name, axis in (("then_branch", 1), ("else_branch", 2))}
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph([helper.make_node("If", ["c"], ["y"], **branches)], "file", [x, condition], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    loaded = load(model)
    for c in (True, False):
        feeds = {"x": X, "c": np.array(c)}
        found = Session(build(loaded.inputs, loaded.outputs)).run(feeds)["y"]
        np.testing.assert_array_equal(found, run_file(model, feeds)["y"])


def test_what_no_later_resize_does():
    with pytest.raises(ModelError, match="'y0', written before opset 11, shrinks one axis and stretches another"):
        load(file_of("Resize", 10, [X, f(1, 1, 0.5, 2)], {"mode": "nearest"}))


def test_unknown_operator():
    """The node is named, which the converter's own error does not do."""
    model = file_of("Softmax", 13, [X], {})
    model.graph.node[0].op_type = "Sofmax"
    with pytest.raises(ModelError, match=r"\(Sofmax, output 'y0'\) cannot be read: ONNX has no operator Sofmax at "
                                         r"opset 13. Did you mean Softmax"):
        load(model)
