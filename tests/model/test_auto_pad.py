"""auto_pad SAME and ceil_mode by their definitions: values, indices and gradients, sizes known and not."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

from ortpartial import (
    LearningRateSGD,
    OrtGradientForwardBackward,
    OrtGradientForwardBackwardOptimizer,
    grad,
    gradient_model,
    nn,
)
from ortpartial.graph import build, constant, op, variable
from ortpartial.kits import TrainingKit
from ortpartial.model.load import load
from ortpartial.model.specialize import specialize
from ortpartial.runtime.session import Session, import_onnxruntime
from ortpartial.torch import OnnxLayer

KINDS = ("Conv", "AveragePool", "MaxPool", "LpPool")


def pads_of(sizes, kernel, strides, dilations, auto):
    """The pads before each axis, then after, as ONNX defines them."""
    total = [max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
             for n, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)]
    less, more = [t // 2 for t in total], [t - t // 2 for t in total]
    return [*less, *more] if auto == "SAME_UPPER" else [*more, *less]


def pad(x, pads, number=0.0):
    r = len(pads) // 2
    return F.pad(x, [p for i in reversed(range(r)) for p in (pads[i], pads[r + i])], value=number)


class Case:
    """A node with auto_pad SAME, and what it computes."""

    def __init__(self, seed, kind=None, symbolic=None):
        rng = np.random.default_rng(seed)
        self.kind = kind or KINDS[seed % 4]
        r = self.r = int(rng.integers(1, 4))
        self.auto = ("SAME_UPPER", "SAME_LOWER")[int(rng.integers(2))]
        self.kernel, self.strides = ([int(v) for v in rng.integers(1, 5, r)] for _ in range(2))
        self.dilations = [int(v) for v in rng.integers(1, 3, r)] if rng.random() < 0.4 else [1] * r
        self.symbolic = bool(rng.random() < 0.4) if symbolic is None else symbolic
        self.group, self.include = int(rng.integers(1, 3)), int(rng.integers(2))
        # A window of a dilated pool that sees padding alone has no mean.
        self.x = rng.normal(size=(2, 2, *rng.integers(5, 9, r))).astype(np.float32)
        self.w = rng.normal(size=(4, 2 // self.group, *self.kernel)).astype(np.float32)

    def proto(self):
        settings = {"auto_pad": self.auto, "strides": self.strides, "dilations": self.dilations,
                    "kernel_shape": self.kernel}
        reads, stored = ["x"], []
        if self.kind == "Conv":
            settings["group"], reads, stored = self.group, ["x", "w"], [numpy_helper.from_array(self.w, "w")]
        elif self.kind == "AveragePool":
            settings["count_include_pad"] = self.include
        shape = ["N", 2, *(f"D{i}" for i in range(self.r))] if self.symbolic else list(self.x.shape)
        node = helper.make_node(self.kind, reads, ["y"], **settings)
        graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def __call__(self, x, w):
        pads = pads_of(self.x.shape[2:], self.kernel, self.strides, self.dilations, self.auto)
        convolve = (F.conv1d, F.conv2d, F.conv3d)[self.r - 1]

        def sums(v):
            ones = torch.ones(2, 1, *self.kernel, dtype=torch.float64)
            return convolve(v, ones, None, self.strides, 0, self.dilations, 2)

        if self.kind == "Conv":
            return convolve(pad(x, pads), w, None, self.strides, 0, self.dilations, self.group)
        if self.kind == "MaxPool":
            f = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[self.r - 1]
            return f(pad(x, pads, -np.inf), self.kernel, self.strides, 0, self.dilations)
        if self.kind == "LpPool":
            return torch.sqrt(sums(pad(x.square(), pads)))
        return sums(pad(x, pads)) / sums(pad(torch.ones_like(x), pads, float(self.include)))

    def expect(self):
        """The output, and the gradients of its sum by x and, of a Conv, by w."""
        x, w = (torch.from_numpy(a).double().requires_grad_() for a in (self.x, self.w))
        y = self(x, w)
        wrt = [x, w] if self.kind == "Conv" else [x]
        return [y.detach().numpy(), *(d.numpy() for d in torch.autograd.grad(y.sum(), wrt))]

    def __repr__(self):
        return f"{self.kind} {self.auto} {self.x.shape[2:]} {self.kernel} {self.strides} {self.dilations}"


def check(case):
    y, *gradients = case.expect()
    proto = case.proto()
    loaded = load(proto)
    for model in (proto, build(loaded.inputs, loaded.outputs)):
        np.testing.assert_allclose(Session(model).run({"x": case.x})["y"], y, 1e-4, 1e-5, err_msg=f"{case!r}")
    names = ["x", "w"] if case.kind == "Conv" else ["x"]
    model = gradient_model(proto, names, ["y"], cotangents="ones")
    feeds = {"x": case.x} | ({"w": case.w} if "w" in [i.name for i in model.graph.input] else {})
    # As a user runs the file, without our session.
    session = import_onnxruntime().InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for n, expected in zip(names, gradients, strict=True):
        actual = session.run([f"{n}_grad"], feeds)[0]
        np.testing.assert_allclose(actual, expected, 1e-4, 1e-4, err_msg=f"{case!r} by {n}")


@pytest.mark.parametrize("seed", range(40))
def test_a_sample_of_windows(seed):
    check(Case(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 1000))
def test_windows(seed):
    check(Case(seed))


#: Onnxruntime 1.19.2 loses elements of the first axis, 1.19 to 1.32 of pools; a random chain met it.
IMAGES = np.random.default_rng(1).normal(size=(4, 2, 7, 5, 3)).astype(np.float32)
SETTINGS = {"auto_pad": "SAME_UPPER", "strides": [3, 2, 1]}
PADS = pads_of((7, 5, 3), (1, 2, 3), (3, 2, 1), (1, 1, 1), "SAME_UPPER")
POOL_PADS = pads_of((3, 3, 3), (1, 2, 1), (3, 2, 1), (1, 1, 1), "SAME_UPPER")
KERNEL = np.random.default_rng(2).normal(size=(3, 2, 1, 2, 3)).astype(np.float32)
TARGETS = np.random.default_rng(3).normal(size=(4, 3, 1, 2, 3)).astype(np.float32)


def network(symbolic, batch="N"):
    x = variable("x", "float32", [batch, 2, "D", "H", "W"] if symbolic else [batch, *IMAGES.shape[1:]])
    y = op.MaxPool(op.Conv(x, constant(KERNEL, hint="w"), **SETTINGS), kernel_shape=[1, 2, 1], **SETTINGS)
    return build([x], {"y": y.stated([batch, *TARGETS.shape[1:]])})


def in_torch(w):
    y = F.conv3d(pad(torch.from_numpy(IMAGES).double(), PADS), w, stride=(3, 2, 1))
    return F.max_pool3d(pad(y, POOL_PADS, -np.inf), (1, 2, 1), (3, 2, 1))


def train_in_torch():
    """The weight after one step with the rate 0.1."""
    w = torch.from_numpy(KERNEL).double().requires_grad_()
    loss = (in_torch(w) - torch.from_numpy(TARGETS)).square().mean()
    return (w - 0.1 * torch.autograd.grad(loss, w)[0]).detach().numpy()


@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes known", "sizes unknown"])
@pytest.mark.parametrize("engine", ["step", "epoch", "auto"])
def test_training_and_prediction(engine, symbolic):
    o = OrtGradientForwardBackwardOptimizer(network(symbolic), ["w"], learning_rate=0.1, max_iter=1, batch_size=4,
                                            shuffle=False, engine=engine)
    y = in_torch(torch.from_numpy(KERNEL).double()).numpy()
    np.testing.assert_allclose(o.fit(IMAGES, TARGETS).get_state()[0], train_in_torch(), 1e-5, 1e-6)
    predicted = in_torch(torch.from_numpy(o.get_state()[0]).double()).numpy()
    np.testing.assert_allclose(o.predict(IMAGES), predicted, 1e-4, 1e-5)
    pair = OrtGradientForwardBackward(network(symbolic), ["w"])
    np.testing.assert_allclose(pair.forward([IMAGES], training=False)[0][0], y, 1e-4, 1e-5)


@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes known", "sizes unknown"])
def test_layers(symbolic):
    layer, w = OnnxLayer(network(symbolic), trainable=["w"]), torch.from_numpy(KERNEL).double().requires_grad_()
    y = layer(torch.from_numpy(IMAGES))
    np.testing.assert_allclose(y.detach().numpy(), in_torch(w).detach().numpy(), 1e-4, 1e-5)
    y.sum().backward()
    expected = torch.autograd.grad(in_torch(w).sum(), w)[0]
    np.testing.assert_allclose(layer.get_parameter(layer.state_names["w"]).grad, expected, 1e-4, 1e-5)


def test_kits(tmp_path):
    o = OrtGradientForwardBackwardOptimizer(network(False), ["w"], learning_rate=0.1, batch_size=4)
    o.export_step(tmp_path, targets=())
    kit = TrainingKit(tmp_path)
    kit.step(dict(zip([t.name for t in kit.manifest.inputs], [IMAGES, TARGETS], strict=True)))
    np.testing.assert_allclose(kit.state["w"], train_in_torch(), 1e-5, 1e-6)


@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes known", "sizes unknown"])
def test_sizes_that_become_known(symbolic):
    model = specialize(load(network(symbolic)), batch={"x": IMAGES.shape})
    y = Session(build(model.inputs, model.outputs)).run({"x": IMAGES})["y"]
    np.testing.assert_allclose(y, in_torch(torch.from_numpy(KERNEL).double()).numpy(), 1e-4, 1e-5)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8"])
def test_indices(dtype, auto, order):
    """A Pad stands before a pool of unknown sizes; the places are those in the input, and its numbers never win."""
    array = np.random.default_rng(4).permutation(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).astype(dtype)
    array = array if dtype == "uint8" else -array
    kernel, strides = [2, 3], [3, 2]
    x = variable("x", dtype, ["N", 3, "H", "W"])
    settings = {"kernel_shape": kernel, "strides": strides, "auto_pad": auto, "storage_order": order}
    y, places = op.MaxPool(x, **settings, n_outputs=2)
    loaded = load(build([x], {"y": y, "places": places}))
    actual = Session(build(loaded.inputs, loaded.outputs)).run({"x": array})
    pads = pads_of((4, 5), kernel, strides, (1, 1), auto)
    expected, flat = F.max_pool2d(pad(torch.from_numpy(array).double(), pads, -np.inf), kernel, strides,
                                  return_indices=True)
    width = 5 + pads[1] + pads[3]
    i, j = flat // width - pads[0], flat % width - pads[1]
    image = torch.arange(6).reshape(2, 3, 1, 1) * 20
    np.testing.assert_array_equal(actual["y"], expected)
    np.testing.assert_array_equal(actual["places"], image + (i + 4 * j if order else 5 * i + j))


@pytest.mark.parametrize("sizes", [(2, 2, 9), ("N", 2, "T")], ids=["sizes known", "sizes unknown"])
@pytest.mark.parametrize("operator", ["ConvInteger", "QLinearConv", "FusedConv"])
def test_other_convolutions(operator, sizes):
    """The last two of 9 elements lie behind the last window."""
    rng = np.random.default_rng(5)
    x, w = rng.integers(0, 6, (2, 2, 9)).astype(np.uint8), rng.integers(0, 3, (3, 2, 2)).astype(np.uint8)
    zero = 0 if operator == "FusedConv" else 2
    image, kernel = (torch.from_numpy(a).double() for a in (x, w))
    expected = F.conv1d(pad(image - zero, pads_of((9,), (2,), (5,), (1,), "SAME_UPPER")), kernel, stride=5)
    settings = {"strides": [5], "auto_pad": "SAME_UPPER"}
    v = variable("x", "uint8", sizes)
    if operator == "ConvInteger":
        y = op.ConvInteger(v, constant(w), constant(np.uint8(zero)), **settings)
    elif operator == "QLinearConv":
        one, offset = constant(np.float32(1)), constant(np.uint8(100))
        y = op.QLinearConv(v, one, constant(np.uint8(zero)), constant(w), one, constant(np.uint8(0)), one, offset,
                           **settings)
        expected = expected + 100
    else:
        nodes = [helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
                 helper.make_node("FusedConv", ["f", "w"], ["y"], domain="com.microsoft", activation="Relu",
                                  **settings)]
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.UINT8, sizes)],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                                  [numpy_helper.from_array(w.astype(np.float32), "w")])
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        y = load(helper.make_model(graph, opset_imports=imports, ir_version=10))
    loaded = y if operator == "FusedConv" else load(build([v], {"y": y}))
    np.testing.assert_array_equal(Session(build(loaded.inputs, loaded.outputs)).run({"x": x})["y"], expected)


@pytest.mark.parametrize(("strides", "sizes", "kept"), [([2], ["N", 2, "T"], True), ([4], ["N", 2, "T"], False),
                                                      ([1], ["N", 2, "T"], False), ([2], ["N", 2, 7], False)])
def test_what_is_right_remains(strides, sizes, kept):
    """Where sizes are unknown and no element lies between windows, no operator is added."""
    x = variable("x", "float32", sizes)
    loaded = load(build([x], {"y": op.MaxPool(x, kernel_shape=[3], strides=strides, auto_pad="SAME_LOWER")}))
    nodes = {node.op_type: node for node in build(loaded.inputs, loaded.outputs).graph.node}
    assert any(a.name == "auto_pad" for a in nodes["MaxPool"].attribute) == kept
    assert ("Pad" in nodes) == (strides == [4])


# -- windows of pools that ceil_mode adds


class Rounded:
    """A pool with ceil_mode and random windows, and what it computes by its definition."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.kind, n = ("AveragePool", "MaxPool", "LpPool")[seed % 3], rng.integers(3, 8, 2)
        k, s, d = rng.integers(1, 4, 2), rng.integers(1, 5, 2), rng.integers(1, 3, 2)
        extents = (k - 1) * d + 1
        before, after = rng.integers(0, k), np.maximum(rng.integers(0, k), extents - n)
        self.counts = bool(rng.integers(0, 2)) and self.kind == "AveragePool"
        self.symbolic = bool(rng.integers(0, 2))
        self.settings = {"kernel_shape": k.tolist(), "strides": s.tolist(), "dilations": d.tolist(),
                         "pads": [*before.tolist(), *after.tolist()], "ceil_mode": 1,
                         **({"count_include_pad": int(self.counts)} if self.kind == "AveragePool" else {})}
        self.x = rng.permutation(2 * n.prod()).reshape(2, 1, *n).astype(np.float32) / n.prod() + 0.5
        self.axes = list(zip(n, k, s, d, before, after, strict=True))
        #: Along each axis, the places of each window in x, and how many places it has in x and its padding.
        self.windows = []
        for size, e, step, gap, b, a in zip(n, extents, s, d, before, after, strict=True):
            starts = [i for i in range(-b, size, step) if i < size and i - step + e < size + a]
            self.windows.append([([j for j in range(i, i + e, gap) if 0 <= j < size],
                                  sum(j < size + a for j in range(i, i + e, gap))) for i in starts])

    def proto(self):
        sizes = ["H", "W"] if self.symbolic else list(self.x.shape[2:])
        nodes = [helper.make_node("Mul", ["x", "w"], ["h"]), helper.make_node(self.kind, ["h"], ["y"], **self.settings)]
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, *sizes])],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                                  [numpy_helper.from_array(np.ones(1, np.float32), "w")])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)

    def write(self, x):
        return getattr(op, self.kind)(x, **self.settings)

    def __call__(self, x):
        rows = []
        for i, above in self.windows[0]:
            for j, across in self.windows[1]:
                seen = x[:, :, i][:, :, :, j].flatten(2)
                total = above * across if self.counts else seen.shape[2]
                rows.append({"MaxPool": seen.amax(2), "AveragePool": seen.sum(2) / total,
                             "LpPool": seen.square().sum(2).sqrt()}[self.kind])
        return torch.stack(rows, 2).reshape(2, 1, *map(len, self.windows))


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 300), marks=pytest.mark.slow)])
def test_windows_that_rounding_up_adds(seeds, record_property):
    """By definition, a window begins in the input or in the padding before it; onnxruntime and onnx differ in that."""
    behind = 0
    for seed in seeds:
        case = Rounded(seed)
        if any(not places for axis in case.windows for places, _ in axis):
            continue  # A window of padding alone has no largest element and no mean.
        x = torch.from_numpy(case.x).double().requires_grad_()
        y = case(x)
        layer = OrtGradientForwardBackward(case.proto(), ["w"], engine="step")
        (output,), state = layer.forward({"x": case.x})
        np.testing.assert_allclose(output, y.detach().numpy(), rtol=1e-5, err_msg=f"{seed}")
        dy = np.random.default_rng(seed).normal(size=output.shape).astype(np.float32)
        _, dx = layer.backward([dy], state)
        expected = torch.autograd.grad(y, x, torch.from_numpy(dy).double())[0].numpy()
        np.testing.assert_allclose(dx["x"], expected, atol=1e-5, err_msg=f"{seed}")
        if seed % 3 == 1:
            optimizer = OrtGradientForwardBackwardOptimizer(case.proto(), ["w"], max_iter=1, batch_size=2)
            assert optimizer.fit(case.x, output).predict(case.x).shape == output.shape
        rounded = [-(-(n + b + a - (k - 1) * d - 1) // s) + 1 for n, k, s, d, b, a in case.axes]
        behind += rounded != list(y.shape[2:])
    assert behind > len(seeds) // 6
    record_property("pools", (len(seeds), behind))


@pytest.mark.parametrize("seed", [7, 24, *(
    pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 60) if seed != 24)])
def test_windows_that_rounding_up_adds_in_code(seed):
    """Those of a file: built, in a module that is compiled, and eagerly; with their gradient."""
    case = Rounded(seed)
    if any(not places for axis in case.windows for places, _ in axis):
        pytest.skip("onnx defines no largest element and no mean of a window of padding alone.")
    rows = case.x.astype(np.float32)
    x = torch.from_numpy(rows).double().requires_grad_()
    y = case(x)
    expected = torch.autograd.grad(y.square().sum(), x)[0].numpy()
    v = variable("x", "float32", ["N", 1, "H", "W"] if case.symbolic else case.x.shape)
    z = case.write(v)
    session = Session(build([v], {"y": z, "dx": grad(op.ReduceSumSquare(z, keepdims=0), [v])[0]}))
    found = session.run({"x": rows})
    np.testing.assert_allclose(found["y"], y.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(found["dx"], expected, atol=1e-4)
    for use_graph in (True, False):
        module = Pool(case).set_optimizer(LearningRateSGD(1.0))
        module.compile([nn.placeholder(rows.shape)], use_graph=use_graph)
        module.train_one_batch(rows)
        np.testing.assert_allclose(1 - module.w.numpy(), [(expected * rows).sum()], rtol=1e-3)


class Pool(nn.Module):
    """A pool of a scaled input, and the sum of its squares as the loss."""

    def __init__(self, case):
        self.case, self.w = case, nn.Parameter([1], 1.0)

    def forward(self, x):
        return self.case.write(x * self.w.value)

    def train_one_batch(self, x):
        loss = op.ReduceSumSquare(self.forward(x), keepdims=0)
        self.optimizer(loss)
        return loss
