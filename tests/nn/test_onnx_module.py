import io

import numpy as np
import pytest
import torch
from ml_nodes import ml_model
from models import assert_close, data, images, mlp, net, parameter, two_in_two_out, weights_of
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, helper, numpy_helper

from ortpartial import OrtGradientForwardBackwardOptimizer, nn
from ortpartial.exceptions import GraphError, ModelError
from ortpartial.graph import build, cond, constant, loop, op, scan, variable
from ortpartial.model import load
from ortpartial.runtime import Session


class Embedded(nn.Module):
    """A graph between two layers."""

    def __init__(self, model, n_in, n_out, **settings):
        self.first, self.body = nn.Linear(3, n_in), nn.Module.from_onnx(model, **settings)
        self.last = nn.Linear(n_out, 2)

    def forward(self, x):
        return self.last(self.body(self.first(x)))


def trained(model, X, y, steps=3, rate=0.05, **settings):
    """The weights of a graph that is trained by itself as a module."""
    module = nn.Module.from_onnx(model, **settings)
    module.set_optimizer(rate).compile(module.placeholders, random_state=0)
    for _ in range(steps):
        module.train_one_batch(*X, y) if isinstance(X, tuple) else module.train_one_batch(X, y)
    return module


def loops():
    """Weights inside of a loop, a scan and a branch."""
    x = variable("x", "float32", ["N", 4])
    w, u, b = parameter("w", 4, 4), parameter("u", 4), parameter("b", 4, 1)
    h = loop(lambda i, going, v: (None, op.Tanh(v @ w)), 3, x)
    s, hs = scan(lambda s, v: (op.Tanh(s + v * u), s * v), op.Mul(u, 0.0), h)
    h = cond(s.sum() > 1e6, lambda: h * 2, lambda: h + hs * u)
    return build([x], {"y": h @ b})


def words():
    """Whole numbers as input."""
    x = variable("ids", "int64", ["N", "L"])
    h = op.ReduceMean(op.Gather(parameter("table", 9, 4), x), [1], keepdims=0)
    return build([x], {"y": h @ parameter("w", 4, 1)})


X, Y, _ = data(12)
CASES = {
    "mlp": (mlp(), X, Y),
    "net": (net(), images(6)[0], images(6)[1]),
    "loops": (loops(), X, Y),
    "words": (words(), np.random.default_rng(0).integers(0, 9, (12, 5)), Y),
    "float64": (mlp(dtype="float64"), X.astype(np.float64), Y.astype(np.float64)),
}


@pytest.mark.parametrize("use_graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_of_the_optimizer_on_the_same_file(name, use_graph):
    model, x, y = CASES[name]
    o = OrtGradientForwardBackwardOptimizer(model, learning_rate=0.05, max_iter=3, batch_size=len(y), shuffle=False,
                                            train_mode=name == "net").fit(x, y)
    expected = weights_of(o.get_trained_onnx())
    module = nn.Module.from_onnx(model)
    module.set_optimizer(0.05).compile(module.placeholders, use_graph=use_graph)
    for _ in range(3):
        module.train_one_batch(x, y)
    state = module.state_dict()
    assert {n for n, w in expected.items() if w.dtype.kind == "f" and w.ndim} <= state.keys()
    assert_close(state, {n: expected[n] for n in state}, 2e-6)
    assert any((state[n] != weights_of(model)[n]).any() for n in state)
    assert_allclose(module.eval()(x), o.predict(x), rtol=1e-4, atol=1e-5)
    feeds = {module.input_names[0]: x}
    assert_allclose(Session(module.to_onnx()).run(feeds)["output"], o.predict(x), rtol=1e-4, atol=1e-5)


def test_an_embedded_model_has_the_gradients_of_torch():
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 5))
    file = io.BytesIO()
    torch.onnx.export(inner, (torch.ones(1, 4),), file, dynamo=False, input_names=["x"], output_names=["y"],
                      dynamic_axes={"x": {0: "batch"}}, verbose=False)
    model = Embedded(file.getvalue(), 4, 5).set_optimizer(0.1).compile(nn.placeholder(["N", 3]), random_state=0)
    twin = torch.nn.ModuleDict({"first": torch.nn.Linear(3, 4), "body": inner, "last": torch.nn.Linear(5, 2)})
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in twin.named_parameters()]
    twin.load_state_dict({n: torch.from_numpy(w) for n, w in model.state_dict().items()})
    x, y = X[:, :3], np.hstack([Y, -Y])
    sgd = torch.optim.SGD(twin.parameters(), 0.1)
    for _ in range(5):
        _, loss = model.train_one_batch(x, y)
        sgd.zero_grad()
        expected = torch.nn.functional.mse_loss(twin["last"](inner(twin["first"](torch.from_numpy(x)))),
                                                torch.from_numpy(y))
        expected.backward()
        sgd.step()
        assert_allclose(loss, expected.detach().numpy(), rtol=1e-5)
    assert_close(model.state_dict(), {n: w.detach().numpy() for n, w in twin.state_dict().items()}, 1e-5)


def test_a_frozen_model_stays_as_it_is():
    x, y = X[:, :3], np.hstack([Y, -Y])
    for settings, parameters in (({"trainable": ()}, 4), ({}, 8)):
        model = Embedded(mlp(), 4, 1, **settings)
        assert len(list(model.parameters())) == parameters
        assert [n for n, _ in model.named_parameters(buffers=True)][2:6] == ["body.W1", "body.b1", "body.W2", "body.b2"]
        model.set_optimizer("adam", parameters=None if settings else [model.first, model.last])
        model.compile(nn.placeholder(["N", 3])).train_one_batch(x, y)
        moved = {n for n, w in model.state_dict().items() if n.startswith("body") and
                 (w != weights_of(mlp())[n.removeprefix("body.")]).any()}
        assert moved == set()
    module = trained(mlp(), X, Y, trainable=["W*"])
    assert {n for n, w in module.state_dict().items() if (w != weights_of(mlp())[n]).any()} == {"W1", "W2"}
    assert isinstance(module.b1, nn.Buffer)
    with pytest.raises(ModelError, match=r"'W3'"):
        nn.Module.from_onnx(mlp(), "W3")


@pytest.mark.parametrize("use_graph", [True, False], ids=["graph", "eager"])
def test_dropout_and_batch_normalization_are_in_the_mode_of_the_module(use_graph):
    x, y = images(6)
    module = nn.Module.from_onnx(net(ratio=0.3))
    module.set_optimizer(0.01).compile(module.placeholders, use_graph=use_graph, random_state=0)
    first, second = module(x), module(x)
    assert (first != second).any()
    assert_allclose(module.eval()(x), module(x))
    before = module.state_dict()
    module.train()
    h = module.train_one_batch(x, y)[0]
    after = module.state_dict()
    assert all((before[n] != after[n]).any() for n in after)
    assert not np.isnan(h).any()
    assert [n for n, p in module.weights.items() if isinstance(p, nn.Buffer)] == ["mean1", "var1", "mean2", "var2"]
    module.body = None  # Attributes of a module may be set as those of any other.


def test_masks_and_statistics_without_a_graph_are_those_of_the_graph():
    x, y = images(6)
    states = []
    for use_graph in (True, False):
        module = nn.Module.from_onnx(net(ratio=0.3))
        module.set_optimizer("adam").compile(module.placeholders, use_graph=use_graph, random_state=0)
        for _ in range(3):
            module.train_one_batch(x, y)
        states.append(module.state_dict())
    assert_close(states[1], states[0], 1e-5)


def test_several_inputs_and_outputs():
    class Both(nn.Module):
        def __init__(self):
            self.body = nn.Module.from_onnx(two_in_two_out())

        def forward(self, a, b):
            price, kind, _ = self.body(a, c=b, b=b)
            return {"price": price, "kind": self.body(a, b, b)[1] + kind}

    model = Both().compile([nn.placeholder(["N", 3]), nn.placeholder(["N", 3])])
    a, b = X[:, :3], X[:, 1:]
    w = weights_of(two_in_two_out())
    outputs = model(a, b)
    assert_allclose(outputs["price"], (a + b) @ w["w"], rtol=1e-5, atol=1e-6)
    assert_allclose(outputs["kind"], 2 * a @ w["v"], rtol=1e-5, atol=1e-6)
    assert model.body.input_names == ["a", "b", "c"]
    assert model.body.output_names == ["price", "kind", "unused"]


def test_each_call_of_a_random_graph_draws():
    x = variable("x", "float32", ["N", 2])
    module = nn.Module.from_onnx(build([x], {"y": x * parameter("w", 2) + op.RandomNormal(shape=[2])}))

    class Twice(nn.Module):
        def __init__(self):
            self.body = module

        def forward(self, x):
            return self.body(x), self.body(x)

    for use_graph in (True, False):
        model = Twice().compile(nn.placeholder(["N", 2]), use_graph=use_graph)
        a, b = model(X[:2, :2])
        assert (a != b).all()
        assert use_graph or (model(X[:2, :2])[0] != a).all()


def test_weights_that_are_constants_or_attributes_are_those_of_load():
    model = ml_model("LinearRegressor", {"y": TensorProto.FLOAT}, coefficients=[1.0, 2.0, 3.0], intercepts=[0.5])
    module = nn.Module.from_onnx(model)
    assert list(module.weights) == list(load(model).initializers)
    module.set_optimizer(0.1).compile(module.placeholders).train_one_batch(X[:, :3], Y)
    assert all((p.numpy() != load(model).arrays[n]).any() for n, p in module.weights.items())
    w = numpy_helper.from_array(np.ones((3, 2), np.float32))
    nodes = [helper.make_node("Constant", [], ["w"], value=w), helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, ["N", 3])],
                              [helper.make_tensor_value_info("y", 1, None)])
    module = nn.Module.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    assert list(module.weights) == list(load(module._model.proto).initializers)


def test_sizes_follow_from_the_inputs():
    x = variable("x", "float32", ["batch", "time", 4])
    h = op.Reshape(x, op.Concat(op.Shape(x, start=0, end=1), np.int64([-1, 2, 2]), axis=0))
    model = build([x], {"y": op.Transpose(h, perm=[0, 2, 1, 3]) @ parameter("w", 2, 3)})
    module = nn.Module.from_onnx(model)

    class Shapes(nn.Module):
        def __init__(self):
            self.body, self.shape = module, None

        def forward(self, x):
            y = self.body(x)
            self.shape = y.shape
            return y

    outer = Shapes().compile(nn.placeholder(["N", 5, 4]))
    assert outer.shape == ("N", 2, 5, 3)
    assert outer(np.ones((3, 5, 4), np.float32)).shape == (3, 2, 5, 3)


@pytest.mark.parametrize(("inputs", "message"), [
    ([nn.placeholder(["N", 5])], r"^body \(OnnxModule\): The input 'x' of the ONNX model is float32\[Nx4\], and <V"),
    ([nn.placeholder(["N", 4], "float64")], r"The input 'x' of the ONNX model is float32\[Nx4\], and <Value .*float64"),
    ([nn.placeholder(["N", 2, 4])], r"The input 'x' of the ONNX model is float32\[Nx4\], and <Value .*Nx2x4"),
    ([nn.placeholder(["N", 4])] * 2, r"The ONNX model takes the inputs x; it was given 2 by position"),
])
def test_inputs_that_do_not_fit(inputs, message):
    class Outer(nn.Module):
        def __init__(self):
            self.body = nn.Module.from_onnx(mlp())

        def forward(self, *x):
            return self.body(*x)

    with pytest.raises(GraphError, match=message):
        Outer().compile(inputs)


def test_a_shared_running_statistic_is_refused_in_training():
    x, mean = variable("x", "float32", ["N", 2]), constant(np.zeros(2, np.float32), hint="mean")
    ones = [constant(np.ones(2, np.float32), hint=n) for n in ("scale", "var")]
    y = op.BatchNormalization(x, ones[0], constant(np.zeros(2, np.float32), hint="b"), mean, ones[1], n_outputs=1)[0]
    module = nn.Module.from_onnx(build([x], {"y": y + mean}))
    module.set_optimizer("sgd").compile(module.placeholders)
    with pytest.raises(ModelError, match=r"'mean' is a running statistic, and .* reads it for something else"):
        module.train_one_batch(X[:, :2], X[:, :2])


def test_a_weight_has_its_name(tmp_path):
    (tmp_path / "model.onnx").write_bytes(mlp().SerializeToString())
    module = nn.Module.from_onnx(tmp_path / "model.onnx")
    assert module.W1 is module.weights["W1"]
    with pytest.raises(AttributeError, match=r"OnnxModule has no attribute 'W3'; its weights are 'W1', 'b1', 'W2'"):
        _ = module.W3
    assert_array_equal(module.W1.numpy(), weights_of(mlp())["W1"])
