"""A model of an old opset computes the same as its file: operators whose definition has changed since opset 7."""

from itertools import pairwise

import numpy as np
import onnx
import pytest
from once import ON_BOTH
from onnx import TensorProto, helper, numpy_helper, parser

from ortpartial.autodiff.grad import grad
from ortpartial.exceptions import ModelError
from ortpartial.graph import OPSET, build, constant, rewrite, variable
from ortpartial.model.load import load
from ortpartial.runtime.session import Session, runtime_version

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
case("Resize", [10], X, f(1, 1, 0.5, 2), mode="nearest")  # floor along an axis that is stretched, ceil along the other
case("Resize", [10], X, f(1, 1, 1, 1), mode="nearest")
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
    case("Pad", [11, 13, 18, 19], X, i(0, 0, 1, 1, 0, 0, 1, 2), mode=mode)
case("Slice", [7], X, starts=[1, -3], ends=[100, -1], axes=[2, 3])
case("Slice", [7], X, starts=[0, 1], ends=[1, 3])
case("Slice", [10, 11, 13], X, i(4), i(0), i(2), i(-2))
case("TopK", [7], X, k=2, axis=2)
case("TopK", [10, 11], X, i(2), axis=2)
for op_type in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare"):
    case(f"Reduce{op_type}", [7, 11, 13], POSITIVE, axes=[1, 3], keepdims=0)
    case(f"Reduce{op_type}", [7, 11, 13, 18], POSITIVE)
case("ReduceMax", [12], POSITIVE, axes=[1])
case("ReduceMin", [12], POSITIVE, axes=[1])
case("ReduceSum", [7, 11], POSITIVE, axes=[1, 3], keepdims=0)
case("ReduceSum", [13], POSITIVE, i(1, 3), keepdims=0)
case("Squeeze", [7, 11], X[:1], axes=[0])
case("Squeeze", [7, 11, 13], X[:1])
case("Unsqueeze", [7, 11], X, axes=[0, 2])
case("Split", [7, 11], X, axis=2, split=[2, 3], n_outputs=2)
case("Split", [7, 11, 13], X, axis=3, n_outputs=2)
case("Split", [18], X, axis=3, num_outputs=2, n_outputs=2)
case("Split", [13, 18], X, i(2, 3), axis=2, n_outputs=2)
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

case("BatchNormalization", [7, 9, 14], X, f(1, 2, 3), f(0, 1, 2), f(0.1, 0.2, 0.3), f(1, 2, 0.5), momentum=0.8)
case("BatchNormalization", [7], X[:, :, :1, 0], *(POSITIVE[0, :, :1, k] for k in range(4)), spatial=0)
case("BatchNormalization", [7, 9], X, f(1, 2, 3), f(0, 1, 2), f(0.1, 0.2, 0.3), f(1, 2, 0.5), n_outputs=5)
case("Clip", [7, 10], f(-np.inf, 2, np.inf), min=-0.5)
case("Clip", [11, 12], X, np.float32(-0.5), np.float32(0.5))
case("Pad", [7, 10], X.astype(np.float64), pads=[0, 0, 1, 1, 0, 0, 1, 2], value=0.1)
case("Dropout", [7, 10], X, ratio=0.3, n_outputs=2)
case("DFT", [17], normal(1, 4, 8, 1), inverse=1)
case("DFT", [17], normal(1, 4, 8, 1), i(16).reshape(()), axis=2)
case("Resize", [11], X, f(), f(1, 1, 0.5, 2), mode="nearest", coordinate_transformation_mode="tf_half_pixel_for_nn")
case("Resize", [11], X, f(), f(), i(2, 3, 7, 9), mode="linear")
case("Resize", [13, 18], X, None, None, i(2, 3, 7, 9), mode="linear")
case("ReduceMean", [7, 11, 13], X, axes=[-1])
case("Slice", [10, 13], X, i(4), i(0), i(2), i(-2))
case("Squeeze", [7, 11], X[:1])
case("TopK", [7], X, k=3)

# Operators whose later versions only take more types, or say more of what they did before: as they are in the file.
for op_type, opsets in {"Abs": [7], "Ceil": [7], "Erf": [9], "Exp": [7], "Floor": [7], "Identity": [7, 13, 14, 16, 19],
                        "IsInf": [10], "IsNaN": [9, 13], "LeakyRelu": [7], "Neg": [7], "NonZero": [9], "Relu": [7, 13],
                        "Sigmoid": [7], "Sign": [9], "Size": [7, 13, 19], "Softplus": [7], "Softsign": [7], "Tanh": [7],
                        "Transpose": [7, 13]}.items():
    case(op_type, opsets, X)
for op_type in ("Log", "Reciprocal", "Sqrt"):
    case(op_type, [7], POSITIVE)
for op_type, opsets in {"Add": [7, 13], "Div": [7, 13], "Equal": [11, 13], "Greater": [7, 9], "GreaterOrEqual": [12],
                        "Less": [7, 9], "LessOrEqual": [12], "Min": [7, 8, 12], "Max": [7, 12], "Mean": [7, 8],
                        "Mul": [7, 13], "Pow": [7, 12, 13], "Sub": [7, 13], "Sum": [7]}.items():
    case(op_type, opsets, POSITIVE, POSITIVE[::-1])
    if opsets != [7] and op_type not in ("Max", "Mean", "Min"):
        case(op_type, opsets, POSITIVE, f(1, 2, 3, 4))
case("Equal", [7], i(1, 2, 3), i(1, 3, 2))
case("ArgMin", [7, 11, 12], X, axis=1)
case("ArgMax", [7, 11, 12], np.zeros((2, 3), np.float32), axis=1)
case("Cast", [19], X, to=TensorProto.INT64)
case("CastLike", [15, 19], X, np.float64(0))
case("Compress", [9], X, np.array([True, False, True]), axis=1)
case("Concat", [7, 11], X, X, axis=2)
case("ConstantOfShape", [9, 20], i(2, 3), value=helper.make_tensor("v", TensorProto.FLOAT, [1], [2.5]))
case("CumSum", [11], X, np.int32(-1))
case("DepthToSpace", [7], normal(1, 8, 2, 3), blocksize=2)
case("Expand", [8], X, i(2, 2, 3, 5, 4))
case("Flatten", [7], X, axis=0)
case("Gather", [7, 11], X, i(1, 0), axis=1)
case("Gather", [11], X, i(-1), axis=2)
case("GatherElements", [11], X, i(-1, 0, 1, 0).reshape(1, 1, 1, 4), axis=2)
case("GatherND", [11, 12], X, np.array([[0, 1], [1, -1]]))
case("MatMul", [7, 9], X, normal(4, 3))
case("MaxUnpool", [9, 11], X[:, :, :2, :2], np.arange(24).reshape(2, 3, 2, 2) * 4, kernel_shape=[2, 2], strides=[2, 2])
case("MeanVarianceNormalization", [9], X)
case("Mod", [10], i(5, -5, 7), i(3, 3, -4))
case("Mod", [10], X, f(0.3), fmod=1)
case("NegativeLogLikelihoodLoss", [12, 13], X[:, :, 0, 0], i(0, 2))
case("NonMaxSuppression", [10], np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 2, 1, 3]]], np.float32),
     np.array([[[0.9, 0.8, 0.7]]], np.float32), i(3), f(0.5), f(0))
case("OneHot", [9, 11], np.array([0, -4, 3, 2]), np.int64(3), f(0, 1))
case("QLinearMatMul", [10], QUANTIZED, np.float32(0.1), np.uint8(7), QUANTIZED.T.copy(), np.float32(0.2), np.uint8(9),
     np.float32(5), np.uint8(100))
case("Reshape", [7, 14, 19], X, i(0, 0, -1))
case("ScatterElements", [11, 13, 16], X, i(-1, 0, 1, 0).reshape(1, 1, 1, 4), normal(1, 1, 1, 4), axis=2)
case("ScatterND", [11, 13, 16], X, np.array([[0, 1], [1, -1]]), normal(2, 5, 4))
case("Shape", [7, 19], X)
case("Squeeze", [13], X[:1], i(0))
case("Tile", [7], X, i(1, 2, 1, 3))
case("TopK", [11], X, i(2), largest=0)
case("Unsqueeze", [13], X, i(0, -1))
case("Where", [9], X > 0, X, POSITIVE)


def file_of(op_type, opset, inputs, attributes):
    """A model of one node, whose first input is an input and whose others are initializers."""
    attributes = dict(attributes)
    n = len(onnx.defs.get_schema(op_type, opset, "").outputs) if op_type in ("RNN", "GRU", "LSTM", "TopK") else 1
    names = [f"x{k}" if a is not None else "" for k, a in enumerate(inputs)]
    outputs = [onnx.ValueInfoProto(name=f"y{k}") for k in range(attributes.pop("n_outputs", n))]
    node = helper.make_node(op_type, names, [o.name for o in outputs], **attributes)
    declared = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for name, a in zip(names, inputs, strict=True) if name]
    stored = [numpy_helper.from_array(np.asarray(a), name)
              for name, a in zip(names[1:], inputs[1:], strict=True) if name]
    graph = helper.make_graph([node], "file", declared, outputs[:3], stored)  # a later BatchNormalization has 3
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))
    for o in model.graph.output:
        if not o.type.WhichOneof("value"):  # onnx 1.23.2 cannot infer that of a GroupNormalization of groups
            o.type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def run_file(model, feeds):
    """What onnxruntime computes from the file, without optimization."""
    return Session(model.SerializeToString()).run(feeds)


def minor_version():
    return int(runtime_version().split(".")[1])


@pytest.mark.sampled(3)
@ON_BOTH
@pytest.mark.parametrize(("op_type", "opset", "inputs", "attributes"), CASES,
                         ids=lambda v: v if isinstance(v, (int, str)) else "")
def test_meaning(op_type, opset, inputs, attributes):
    if op_type == "QLinearMatMul" and runtime_version().startswith("1.19"):
        pytest.skip("onnxruntime 1.19.2 has no kernel for QLinearMatMul 21")
    if op_type == "AveragePool" and opset < 19 and "ceil_mode" in attributes and 21 <= minor_version() < 30:
        with pytest.raises(ModelError, match=r"AveragePool, output 'y0'. computes something else at opset 21"):
            load(file_of(op_type, opset, inputs, attributes))
        pytest.skip("onnxruntime 1.21 to 1.29 compute it in another way before opset 19: it is refused")
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


def test_before_opset_7():
    """A slope for each channel, which onnx's converter would let stand for those of the last axis."""
    loaded = load(file_of("PRelu", 6, [X[:, :, :3, :3], f(0.1, 0.2, 0.3)], {}))
    found = Session(build(loaded.inputs, loaded.outputs)).run({"x0": X[:, :, :3, :3]})["y0"]
    x = X[:, :, :3, :3]
    np.testing.assert_allclose(found, np.where(x < 0, f(0.1, 0.2, 0.3).reshape(3, 1, 1) * x, x), rtol=1e-6)


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


def scan_of_batches(lengths=""):
    """The sums of products so far, for each example of a batch, as Scan computes them up to opset 8."""
    one = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("s", "a", "b", "t", "p")]
    body = helper.make_graph([helper.make_node("Mul", ["a", "b"], ["p"]), helper.make_node("Add", ["s", "p"], ["t"])],
                             "body", one[:3], one[3:])
    node = helper.make_node("Scan", [lengths, "x0", "x1", "x2"], ["y0", "y1"], body=body, num_scan_inputs=2,
                            directions=[0, 1])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
              for name, shape in (("x0", (2, 3)), ("x1", (2, 5, 3)), ("x2", (2, 5, 3)), ("y0", (2, 3)),
                                  ("y1", (2, 5, 3)))]
    values[3:3] = [helper.make_tensor_value_info("n", TensorProto.INT64, [2])] if lengths else []
    graph = helper.make_graph([node], "file", values[:-2], values[-2:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=8)


def test_scan_of_batches():
    model = scan_of_batches()
    feeds = {"x0": normal(2, 3), "x1": normal(2, 5, 3), "x2": normal(2, 5, 3)}
    loaded = load(model)
    found = Session(build(loaded.inputs, loaded.outputs)).run(feeds)
    for name, expected in run_file(model, feeds).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ModelError, match=r"\(Scan, output 'y0'\) has lengths of its sequences, .* up to opset 8"):
        load(scan_of_batches("n"))


@pytest.mark.parametrize(("op_type", "opset"), [("Dropout", 11), ("GroupNormalization", 18), ("ReduceSum", 11)])
def test_misfits(op_type, opset):
    """A node with inputs that its operator does not have is named."""
    model = file_of(op_type, opset, [X] * 5, {})
    with pytest.raises(ModelError, match=rf"\({op_type}, output 'y0'\) cannot be upgraded: its inputs or"):
        load(model)


def test_unknown_operator():
    """The node is named."""
    model = file_of("Softmax", 13, [X], {})
    model.graph.node[0].op_type = "Sofmax"
    with pytest.raises(ModelError, match=r"\(Sofmax, output 'y0'\) cannot be read: ONNX has no operator Sofmax at "
                                         r"opset \d+. Did you mean Softmax"):
        load(model)


#: Operators that `CASES` leaves out: those with bodies, and those of optionals, which are no tensors. A Constant has no
#: input, and its later versions only add attributes.
ELSEWHERE = {"Constant", "If", "Loop", "OptionalGetElement", "OptionalHasElement", "Scan"}


def versions(op_type):
    return sorted({s.since_version for s in onnx.defs.get_all_schemas_with_history()
                   if s.name == op_type and not s.domain})


def test_every_operator_that_has_changed_is_swept():
    """Each version of each operator that an upgrade from opset 7 or later replaces by another one."""
    names = {s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain}
    missing = []
    for op_type in sorted(names):
        every = versions(op_type)
        for first, following in pairwise(every):
            swept = any(name == op_type and first <= opset < following for name, opset, *_ in CASES)
            if 7 < following <= OPSET and not swept and op_type not in ELSEWHERE:
                missing.append((op_type, first))
    assert missing == []


def form(schema):
    """What a node may have: the options of its inputs and outputs, and its attributes with their defaults."""
    return ([p.option for p in schema.inputs], [p.option for p in schema.outputs],
            {n: (a.type, a.required, a.default_value.SerializeToString()) for n, a in schema.attributes.items()})


def test_later_versions_only_add():
    """From the opset of the library on, no upgrade is needed: what is new is optional, and by default as before."""
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    for op_type in sorted({s.name for s in onnx.defs.get_all_schemas() if not s.domain}):
        for first, following in pairwise(versions(op_type)):
            if following > OPSET:
                before, after = (form(onnx.defs.get_schema(op_type, v, "")) for v in (first, following))
                for options, wider in zip(before[:2], after[:2], strict=True):
                    assert wider[: len(options)] == options, op_type
                    assert {*wider[len(options):]} <= {optional}, op_type
                assert before[2].items() <= after[2].items(), op_type
                assert not any(required for n, (_, required, _) in after[2].items() if n not in before[2]), op_type


@ON_BOTH
@pytest.mark.parametrize("opset", [9, 17, 21, 22])
@pytest.mark.parametrize("inside", [11, 18, 22])
def test_functions_of_another_opset(opset, inside):
    """Each node is read at the opset of its function, with the attributes of the call."""
    total = ("ReduceSum <axes: ints = @axes> (x)" if inside == 11 else "ReduceSum (x, k)")
    if max(opset, inside) > 21 and runtime_version().startswith("1.19"):
        pytest.skip("onnxruntime 1.19.2 has no opset 22")
    model = parser.parse_model(f"""<ir_version: 10, opset_import: ["" : {opset}, "here" : 1]>
        g (float[2, 3, 5] x0) => (float[2, 3, 5] y) {{ a = Softmax <axis = 1> (x0)  y = here.f <axes = [1]> (a) }}
        <domain: "here", opset_import: ["" : {inside}]> f <axes> (x) => (y) {{
        k = Constant <value_ints: ints = @axes> ()  s = {total}  h = Hardmax <axis = 1> (x)  y = Mul(s, h) }}""")
    feeds = {"x0": X[:, :, :, 0]}
    loaded = load(model)
    found = Session(build(loaded.inputs, loaded.outputs)).run(feeds)["y"]

    def flatten(x, version):
        return x.reshape(2, 15) if version < 13 else x

    x = flatten(feeds["x0"], opset)
    a = (np.exp(x) / np.exp(x).sum(1, keepdims=True)).reshape(2, 3, 5)
    b = flatten(a, inside)
    h = (b == b.max(1, keepdims=True)).reshape(2, 3, 5)
    np.testing.assert_allclose(found, a.sum(1, keepdims=True) * h, rtol=1e-5)


def test_among_foreign_operators():
    """They stay as they are, and what reads them is upgraded even where only the model says of which type it is."""
    nodes = [helper.make_node("FusedMatMul", ["x", "x"], ["a"], domain="com.microsoft", transB=1),
             helper.make_node("Clip", ["a"], ["b"], min=-1.0, max=1.0),
             helper.make_node("SimplifiedLayerNormalization", ["b", "s"], ["c"], epsilon=0.01),
             helper.make_node("Softmax", ["c"], ["y"], axis=1)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3, 3]) for name in "xy")
    graph = helper.make_graph(nodes, "file", [x], [y], [numpy_helper.from_array(f(1, 2, 3), "s")])
    model = helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", 10), helper.make_opsetid("com.microsoft", 1)])
    feeds = {"x": normal(2, 3, 3)}
    loaded = load(model)
    assert loaded.values["a"].node.op_type == "FusedMatMul"
    found = Session(build(loaded.inputs, loaded.outputs)).run(feeds)["y"]
    np.testing.assert_allclose(found, run_file(model, feeds)["y"], rtol=1e-5)
