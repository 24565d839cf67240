"""The straight-through estimator: gradients pass through quantization where asked, and nowhere else."""

import io
import pickle
import warnings

import numpy as np
import onnx
import pytest
import torch
from models import assert_close
from onnx import ModelProto, parser
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from sklearn.datasets import load_digits
from torch.nn import functional

from ortpartial import OrtGradientForwardBackward, TrainingSession, build, constant, gradient_model, load, op, variable
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.autodiff import explain_untrained, grad
from ortpartial.exceptions import ModelError, ModelWarning, NoGradientError
from ortpartial.learning import LearningRateAdam
from ortpartial.runtime.session import Session
from ortpartial.torch import OnnxLayer

TEXT = """
<ir_version: 9, opset_import: ["" : 19]>
agraph (float[N, 3] x) => (float[N, 2] y)
<float[3, 2] w = {0.5, -0.25, 0.125, 1, -1, 0.3}, float s = {0.02}, int8 z = {3}, float[2] t = {0.01, 0.005},
 int8[2] u = {0, 0}>
{ a = QuantizeLinear (x, s, z)  b = DequantizeLinear (a, s, z)
  c = QuantizeLinear<axis = 1> (w, t, u)  d = DequantizeLinear<axis = 1> (c, t, u)
  y = MatMul (b, d) }
"""

#: With a bias behind the product.
BIASED = TEXT.replace("{0, 0}>", "{0, 0}, float[2] k = {0.1, 0.2}>").replace("y = MatMul (b, d)",
                                                                            "h = MatMul (b, d)  y = Add (h, k)")


def data():
    # Some of them are beyond what int8 can hold: -2.62 to 2.48 for x, and -0.64 to 0.635 in the second column of w.
    return np.random.default_rng(0).normal(scale=1.5, size=(40, 3)).astype(np.float32)


def quantized(v, scale, zero):
    q = torch.fake_quantize_per_tensor_affine if scale.ndim == 0 else torch.fake_quantize_per_channel_affine
    return q(v, scale, zero, -128, 127) if scale.ndim == 0 else q(v, scale, zero, 1, -128, 127)


def test_gradient_is_that_of_torch():
    model, X = parser.parse_model(TEXT), data()
    loaded = load(model, straight_through=True)
    w = torch.tensor([[0.5, -0.25], [0.125, 1], [-1, 0.3]], requires_grad=True)
    x = torch.tensor(X, requires_grad=True)
    b = quantized(x, torch.tensor(0.02), torch.tensor(3, dtype=torch.int32))
    d = quantized(w, torch.tensor([0.01, 0.005]), torch.zeros(2, dtype=torch.int32))
    (b @ d).sum().backward()
    assert (x.grad == 0).any()
    assert (w.grad == 0).any()
    found = Session(gradient_model(loaded, ["x", "w"], cotangents="ones")).run({"x": X, "w": w.detach().numpy()})
    assert_close(found, {"x_grad": x.grad.numpy(), "w_grad": w.grad.numpy()}, 1e-6)


class FakeQuantized(torch.nn.Module):
    """A network that torch trains for quantization: its weights, by channel, and activations are rounded."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Conv2d(n, 4, 3, padding=1) for n in (2, 4))
        self.last = torch.nn.Linear(64, 3)
        self.register_buffer("scale", torch.tensor([0.003, 0.002, 0.0025, 0.003]))
        self.register_buffer("zero", torch.zeros(4, dtype=torch.int32))

    def convolve(self, layer, x):
        weight = torch.fake_quantize_per_channel_affine(layer.weight, self.scale, self.zero, 0, -128, 127)
        return functional.conv2d(x, weight, layer.bias, padding=1)

    def forward(self, x):
        def rounded(v, scale, zero, low=0, high=255):
            return torch.fake_quantize_per_tensor_affine(v, scale, zero, low, high)

        h = rounded(torch.relu(self.convolve(self.first, rounded(x, 0.02, 10))), 0.012, 0)
        h = h + rounded(self.convolve(self.second, h), 0.01, 0, -128, 127)
        weight = rounded(self.last.weight, 0.001, 0, -128, 127)
        return functional.linear(functional.max_pool2d(h, 2).flatten(1), weight, self.last.bias)


def test_gradients_of_a_network_that_torch_rounds_are_its_own():
    torch.manual_seed(0)
    module, x = FakeQuantized(), torch.randn(5, 2, 8, 8, requires_grad=True)
    y = module(x)
    y.backward(dy := torch.randn_like(y))
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has an exporter that is newer
        torch.onnx.export(module, (x,), file, opset_version=17, dynamo=False, do_constant_folding=False,
                          input_names=["x"])
    model = load(file.getvalue(), straight_through=True)
    expected = {f"{n}_grad": p.grad.numpy() for n, p in [("x", x), *module.named_parameters()]}
    names = [n.removesuffix("_grad") for n in expected]
    weights = {n: model.arrays[n] for n in names if n != "x"}
    assert sorted(weights) == sorted(Optimizer(model).weights_to_train)
    (output,) = model.outputs
    feeds = {"x": x.detach().numpy(), f"{output}_grad": dy.numpy(), **weights}
    assert_close(Session(gradient_model(model, names)).run(feeds), expected, 1e-5)


@pytest.mark.parametrize("axis", [None, 1])
def test_gradient_by_the_scale_is_that_of_learned_step_sizes(axis):
    sizes = [0.02] if axis is None else [0.02, 0.01, 0.005]
    x, zero = data(), np.array(3 if axis is None else [0] * 3, np.int8)
    s = variable("s", "float32", np.shape(sizes if axis else 0.02))
    v = variable("x", "float32", ["N", 3])
    y = op.DequantizeLinear(op.QuantizeLinear(v, s, zero, axis=1), s, zero, axis=1)
    loaded = load(build([v, s], {"y": y}), straight_through=True)
    t, u = torch.tensor(x, requires_grad=True), torch.tensor(sizes, requires_grad=True)
    if axis is None:
        expected = torch._fake_quantize_learnable_per_tensor_affine(t, u, torch.tensor([3.0]), -128, 127, 1.0)
    else:
        expected = torch._fake_quantize_learnable_per_channel_affine(t, u, torch.zeros(3), axis, -128, 127, 1.0)
    dy = np.random.default_rng(1).normal(size=x.shape).astype(np.float32)
    expected.backward(torch.tensor(dy))
    feeds = {"x": x, "s": np.array(sizes, np.float32).reshape(s.shape), "y_grad": dy}
    results = Session(gradient_model(loaded, ["x", "s"])).run(feeds)
    assert_close(results, {"x_grad": t.grad.numpy(), "s_grad": u.grad.numpy().reshape(s.shape)}, 1e-4)


def test_scales_of_blocks_are_those_of_channels_in_another_shape():
    x, sizes = data()[:, 0].reshape(10, 4), np.linspace(0.005, 0.02, 20, dtype=np.float32).reshape(10, 2)
    v, s = variable("x", "float32", ["N", 4]), variable("s", "float32", ["N", 2])
    zero = np.zeros((10, 2), np.int8)
    y = op.DequantizeLinear(op.QuantizeLinear(v, s, zero, axis=1, block_size=2), s, zero, axis=1, block_size=2)
    loaded = load(build([v, s], {"y": y * y}), straight_through=True)
    t, u = torch.tensor(x.reshape(20, 2), requires_grad=True), torch.tensor(sizes.ravel(), requires_grad=True)
    z = torch._fake_quantize_learnable_per_channel_affine(t, u, torch.zeros(20), 0, -128, 127, 1.0)
    (z * z).sum().backward()
    results = Session(gradient_model(loaded, ["x", "s"], cotangents="ones")).run({"x": x, "s": sizes})
    expected = {"x_grad": t.grad.numpy().reshape(10, 4), "s_grad": u.grad.numpy().reshape(10, 2)}
    assert_close(results, expected, 1e-4)


def test_what_is_computed_is_the_same():
    model, X = parser.parse_model(TEXT), data()
    # Not y, since the runtime multiplies integers where it sees these operators before a MatMul.
    models = load(model), load(model, straight_through=True)
    graphs = [build(m.inputs, {n: m.values[n] for n in "bd"}) for m in models]
    expected, found = (Session(graph).run({"x": X}) for graph in graphs)
    for n in "bd":
        np.testing.assert_array_equal(found[n], expected[n])


def test_a_gradient_that_is_lost_is_an_error():
    model = parser.parse_model(TEXT)
    for name, lost in (("x", "a"), ("w", "c")):
        with pytest.raises(NoGradientError, match=rf"\(output '{lost}'\) rounds.*straight_through=True"):
            gradient_model(model, [name])


MLP = """<ir_version: 9, opset_import: ["" : 17]>
agraph (float[N, 4] x) => (float[N, 1] y)
<float[4, 3] v = {0.6, -0.4, 0.9, 1.1, 0.8, -0.3, -0.7, 0.2, 0.5, 0.1, -0.9, 0.4}, float[3] b = {0.1, 0.3, -0.2},
 float[3, 1] w = {0.8, -0.6, 1.2}>
{ g = MatMul (x, v)  h = Add (g, b)  r = Relu (h)  y = MatMul (r, w) }"""


def write_dynamic(path):
    """The model, and the path of what onnxruntime makes of it: DynamicQuantizeLinear, MatMulInteger, Cast and Mul."""
    model = parser.parse_model(MLP)
    onnx.save(model, path / "model.onnx")
    quantize_dynamic(path / "model.onnx", path / "quantized.onnx")
    return model, path / "quantized.onnx"


def test_dynamic_quantization_has_the_gradient_of_the_floats(tmp_path):
    model, path = write_dynamic(tmp_path)
    X = np.array([[0.5, 0.2, -0.4, 0.3], [1, 0.6, 0.9, -0.2]], np.float32)
    b = np.array([0.1, 0.3, -0.2], np.float32)
    for source in (str(path), load(str(path))):
        with pytest.raises(NoGradientError, match=r"DynamicQuantizeLinear.*rounds.*straight_through=True"):
            gradient_model(source, ["x"])
    assert {node.op_type for node in onnx.load(path).graph.node} >= {"DynamicQuantizeLinear", "MatMulInteger"}
    expected, results = (Session(gradient_model(m, ["x", "b"], cotangents="ones")).run({"x": X, "b": b})
                         for m in (model, load(str(path), straight_through=True)))
    assert_close(results, expected, 0.02)


class Calibration(CalibrationDataReader):
    """The rows of one batch."""

    def __init__(self, X):
        self.batches = iter([{"x": X}])

    def get_next(self):
        return next(self.batches, None)


@pytest.mark.parametrize("style", ["weights", "integers"])
def test_static_quantization(style, tmp_path):
    """With weights that stay floats in front of QuantizeLinear, all are trained; with integers there is nothing to."""
    X = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    onnx.save(parser.parse_model(MLP), tmp_path / "model.onnx")
    extra = {"AddQDQPairToWeight": style == "weights"}
    quantize_static(tmp_path / "model.onnx", path := tmp_path / "q.onnx", Calibration(2 * X), extra_options=extra)
    if style == "integers":
        with pytest.raises(ModelError, match=r"its weights are integers; quantize with .*AddQDQPairToWeight"):
            Optimizer(load(path, straight_through=True))
        return
    with pytest.raises(ModelError, match=r"No float initializer.*QuantizeLinear>.*rounds.*straight_through=True"):
        Optimizer(path)
    assert set(Optimizer(load(path, straight_through=True)).weights_to_train) >= {"v", "w"}


def test_scales_of_an_integer_product(tmp_path):
    """Their gradients would be 0 where the product is rounded; that of the result has one after the rounding, too."""
    onnx.save(parser.parse_model(MLP), tmp_path / "model.onnx")
    X = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    quantize_static(tmp_path / "model.onnx", path := tmp_path / "q.onnx", Calibration(X),
                    op_types_to_quantize=["MatMul"], quant_format=QuantFormat.QOperator)
    assert "QLinearMatMul" in {node.op_type for node in onnx.load(path).graph.node}
    for scale in ("x_scale", "v_scale", "w_scale"):
        with pytest.raises(NoGradientError, match=r"QLinearMatMul> .*rounds.*straight_through=True"):
            gradient_model(path, [scale])
        gradient_model(load(path, straight_through=True), [scale])
    gradient_model(path, ["y_scale"])


class Residual(torch.nn.Module):
    """Conv, Relu, MaxPool, Add, GlobalAveragePool and Gemm."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Conv2d(n, 6, 3, padding=1) for n in (2, 6))
        self.last = torch.nn.Linear(6, 3)

    def forward(self, x):
        h = functional.max_pool2d(torch.relu(self.first(x)), 2)
        h = h + torch.relu(self.second(h))
        return self.last(functional.adaptive_avg_pool2d(h, 1).flatten(1))


class Encoder(torch.nn.Module):
    """Attention with its products, Softmax, LayerNormalization and Add."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(self.first(x))


@pytest.mark.parametrize("style", ["dynamic", "QOperator", "QDQ"])
@pytest.mark.parametrize(("module", "shape"), [(Residual, (6, 2, 8, 8)), (Encoder, (6, 5, 8))])
def test_what_onnxruntime_quantizes_has_nearly_the_gradient_of_the_floats(module, shape, style, tmp_path):
    torch.manual_seed(0)
    X, (floats, quantized) = torch.randn(shape), (str(tmp_path / name) for name in ("f.onnx", "q.onnx"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module().eval(), (X,), floats, opset_version=17, dynamo=False, input_names=["x"],
                          output_names=["y"])
    if style == "dynamic":
        quantize_dynamic(floats, quantized, weight_type=QuantType.QUInt8)
    else:
        quantize_static(floats, quantized, Calibration(1.5 * X.numpy()), quant_format=QuantFormat[style],
                        per_channel=True)
    dy = np.random.default_rng(0).normal(size=(6, 3) if module is Residual else shape).astype(np.float32)
    feeds = {"x": X.numpy(), "y_grad": dy}
    a, b = (Session(gradient_model(model, ["x"])).run(feeds)["x_grad"].ravel()
            for model in (load(floats), load(quantized, straight_through=True)))
    # Ranges that are clipped and ties of rounded numbers change single elements.
    assert a @ b > 0.95 * np.linalg.norm(a) * np.linalg.norm(b)
    assert 0.9 < np.linalg.norm(b) / np.linalg.norm(a) < 1.1
    with pytest.raises(NoGradientError, match="rounds"):
        gradient_model(quantized, ["x"])


def test_digits_are_learned_through_rounding(tmp_path):
    X, y = load_digits(return_X_y=True)
    X, rng = (X[:600] / 16).astype(np.float32), np.random.default_rng(0)
    x, weights = variable("x", "float32", ["N", 64]), {}
    for name, shape in (("v", (64, 24)), ("w", (24, 10))):
        weights[name] = constant((rng.normal(size=shape) * 0.2).astype(np.float32), hint=name)
    onnx.save(build([x], {"scores": op.Relu(x @ weights["v"]) @ weights["w"]}), tmp_path / "model.onnx")
    quantize_static(tmp_path / "model.onnx", tmp_path / "q.onnx", Calibration(2 * X), per_channel=True,
                    extra_options={"AddQDQPairToWeight": True})
    optimizer = Optimizer(load(tmp_path / "q.onnx", straight_through=True), learning_loss="cross_entropy",
                          learning_rate=LearningRateAdam(0.01), max_iter=12, batch_size=50, random_state=0)
    assert sorted(optimizer.weights_to_train) == ["v", "w"]
    before = optimizer.score(X, y[:600])
    optimizer.fit(X, y[:600])
    assert optimizer.train_losses_[-1] < 0.3 * optimizer.train_losses_[0]
    # What is trained is the quantized model.
    assert before < 0.4 < 0.85 < optimizer.score(X, y[:600])


def test_a_weight_behind_rounding_is_trained_and_others_are_warned_about():
    with pytest.warns(ModelWarning, match="'w' will not be trained: .*output 'c'.*rounds"):
        optimizer = Optimizer(parser.parse_model(BIASED))
    assert optimizer.weights_to_train == ["k"]
    assert "scale of a quantization" in explain_untrained(load(parser.parse_model(TEXT)), [], ["y"])["t"]
    # Indices, masks and signs have no gradient by nature.
    x = variable("x", "float32", ["N", 3])
    whole = op.Cast(op.Cast(op.Round(x), to=6), to=1) + op.Floor(x)
    (dx,) = grad(op.ReduceSum(whole * x, keepdims=0), [x])
    np.testing.assert_array_equal(Session(build([x], {"dx": dx})).run({"x": data()})["dx"],
                                  np.round(data()) + np.floor(data()))


def test_scales_are_trained_by_name():
    model, X = load(parser.parse_model(TEXT), straight_through=True), data()
    target = X @ np.array([[0.3, -0.2], [0.2, 0.4], [-0.6, 0.1]], np.float32)
    optimizer = Optimizer(model, ["t"], learning_rate=1e-6, max_iter=20, random_state=0).fit(X, target)
    assert optimizer.train_losses_[-1] < optimizer.train_losses_[0]
    (scales,) = optimizer.get_state()
    assert (scales != model.arrays["t"]).all()


def test_every_door_takes_the_setting():
    model, X = load(parser.parse_model(TEXT.replace("0.02", "0.05")), straight_through=True), data()
    target = X @ np.array([[0.3, -0.2], [0.2, 0.4], [-0.6, 0.1]], np.float32)
    expected = Session(gradient_model(model, ["x", "w"], cotangents="ones")).run({"x": X, "w": model.arrays["w"]})
    layer, x = OnnxLayer(model), torch.tensor(X, requires_grad=True)
    for copy in (layer, pickle.loads(pickle.dumps(layer))):
        copy(x).sum().backward()
        assert_close({"x_grad": x.grad.numpy(), "w_grad": copy.w.grad.numpy()}, expected, 1e-5)
        x.grad = None
    assert not any(p.key.startswith("ortpartial") for p in model.proto.metadata_props)
    function = OrtGradientForwardBackward(model)
    (y,), state = function.forward(X)
    weights, inputs = function.backward([np.ones_like(y)], state)
    assert_close({"x_grad": inputs["x"], "w_grad": weights["w"]}, expected, 1e-5)
    settings = {"learning_rate": 0.02, "max_iter": 3, "batch_size": 40, "shuffle": False}
    optimizer = Optimizer(model, **settings)
    stored = [optimizer.get_training_onnx(style, init="model") for style in ("standard", "lowered")]
    weights = optimizer.fit(X, target).get_state()[0]
    for training in stored:
        session = TrainingSession(training)
        for _ in range(3):
            session.step({"x": X, "y_target": target})
        assert_close(session.state, {"w": weights}, 1e-5)
    # A file that was written elsewhere has no mark.
    bare = ModelProto.FromString(stored[0].SerializeToString())
    del bare.metadata_props[:]
    with pytest.raises(ModelError, match=r"training_info.0.*rounds.*straight_through=True"):
        TrainingSession(bare)
    session = TrainingSession(load(bare, straight_through=True))
    assert_close(session.step({"x": X, "y_target": target}), {"loss": np.float32(optimizer.train_losses_[0])}, 1e-5)
    again = Optimizer.from_training_info(stored[0], **settings).fit(X, target)
    assert_close({"w": again.get_state()[0]}, {"w": weights}, 1e-5)


@pytest.mark.parametrize("door", [OnnxLayer, OrtGradientForwardBackward])
def test_no_engine_loses_a_gradient(door):
    """The agent of onnxruntime-training takes rounding for the end of a gradient, and returns zeros."""
    def differentiate():
        opened = door(parser.parse_model(BIASED), ["k"])
        opened(torch.tensor(data(), requires_grad=True)).sum().backward()

    with pytest.raises(NoGradientError, match="rounds"):
        differentiate()


LOOP = """<ir_version: 9, opset_import: ["" : 19]>
agraph (float[3] x, bool c) => (float[3] y) <float s = {0.02}, int8 z = {3}, int64 n = {3}, bool k = {1}> {
  a = QuantizeLinear (x, s, z)
  h = If (c) <then_branch = g () => (float[3] t) { t = DequantizeLinear (a, s, z) },
              else_branch = e () => (float[3] f) { f = Identity (x) }>
  y = Loop (n, k, h) <body = b (int64 i, bool l, float[3] p) => (bool m, float[3] r) {
    m = Identity (l)  q = QuantizeLinear (p, s, z)  d = DequantizeLinear (q, s, z)  r = Mul (d, d) }>
}"""


@pytest.mark.parametrize("branch", [True, False])
def test_branches_and_loops(branch):
    model, x = parser.parse_model(LOOP), np.array([0.91, -0.73, 1.08], np.float32)
    t = torch.tensor(x, requires_grad=True)
    h = torch.fake_quantize_per_tensor_affine(t, 0.02, 3, -128, 127) if branch else t
    for _ in range(3):
        h = torch.fake_quantize_per_tensor_affine(h, 0.02, 3, -128, 127) ** 2
    h.sum().backward()
    with pytest.raises(NoGradientError, match="rounds"):
        gradient_model(model, ["x"])
    graph = gradient_model(load(model, straight_through=True), ["x"], cotangents="ones")
    assert_close(Session(graph).run({"x": x, "c": np.array(branch)}), {"x_grad": t.grad.numpy()}, 1e-5)


def test_integers_that_a_loop_carries_are_not_followed():
    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 19]>
    agraph (float[3] x) => (float[3] y) <float s = {0.02}, int8 z = {3}, int64 n = {3}, bool k = {1}> {
      a = QuantizeLinear (x, s, z)
      b = Loop (n, k, a) <body = g (int64 i, bool l, int8[3] p) => (bool m, int8[3] r) {
        m = Identity (l)  r = Identity (p) }>
      y = DequantizeLinear (b, s, z)
    }""")
    with pytest.raises(NoGradientError, match="Loop>, which reads the result, is not known"):
        gradient_model(load(model, straight_through=True), ["x"])


def test_training():
    # The scales are no weights: nothing is differentiated by them. A weight moves through its quantization.
    model, X = parser.parse_model(TEXT), data()
    target = X @ np.array([[0.3, -0.2], [0.2, 0.4], [-0.6, 0.1]], np.float32)
    optimizer = Optimizer(load(model, straight_through=True), max_iter=200, learning_rate=0.02, random_state=0)
    assert optimizer.weights_to_train == ["w"]
    optimizer.fit(X, target)
    assert optimizer.train_losses_[-1] < 0.25 * optimizer.train_losses_[0]
    again = pickle.loads(pickle.dumps(optimizer)).partial_fit(X, target)
    np.testing.assert_array_equal(again.get_state()[0], optimizer.partial_fit(X, target).get_state()[0])
