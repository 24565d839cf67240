"""Outputs and gradients equal torch's autograd, however many forwards are pending."""

import pickle
import re

import numpy as np
import onnx
import pytest
import torch
from models import linear, mlp, torch_mlp, two_in_two_out, weights_of

from ortpartial import OrtGradientForwardBackward
from ortpartial.autodiff.trainable import resolve_weights
from ortpartial.exceptions import DataError, ModelError, NoGradientError, SettingError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.model.load import load
from ortpartial.runtime.session import Session

ENGINES = ["step", pytest.param("agent", marks=pytest.mark.agent)]


def expected(f, weights, inputs, dys):
    """Outputs, gradients by weights and gradients by inputs, from torch."""
    w, x = ({n: torch.tensor(a, requires_grad=a.dtype.kind == "f") for n, a in v.items()} for v in (weights, inputs))
    ys = f(w, *x.values())
    ys = ys if isinstance(ys, (list, tuple)) else [ys]
    torch.autograd.backward(ys, [torch.tensor(d) for d in dys])
    gradients = [{n: v.grad.numpy() for n, v in t.items() if v.grad is not None} for t in (w, x)]
    return [y.detach().numpy() for y in ys], *gradients


def assert_gradients(gradients, wanted, tol=1e-5):
    assert list(gradients) == list(wanted)
    for n, g in gradients.items():
        assert (g.shape, g.dtype) == (wanted[n].shape, wanted[n].dtype)
        np.testing.assert_allclose(g, wanted[n], rtol=tol, atol=tol)


def real(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def encoder():
    """A little of everything: an embedding, an attention over its rows, a normalization."""
    rng = np.random.default_rng(0)

    def weight(name, *shape):
        return constant(real(rng, *shape), hint=name)

    i, x = variable("i", "int64", ["N", 5]), variable("x", "float32", ["N", 5, 4])
    e = op.Gather(weight("table", 7, 4), i) + x
    p = op.Softmax(op.MatMul(e, op.Transpose(e, perm=[0, 2, 1])) * 0.5)
    h = op.LayerNormalization(p @ e @ weight("W", 4, 4), weight("scale", 4), weight("bias", 4))
    return build([i, x], {"h": op.Gelu(h), "mean": op.ReduceMean(h, [1], keepdims=0)})


def torch_encoder(w, i, x):
    e = w["table"][i] + x
    p = torch.softmax(e @ e.transpose(1, 2) * 0.5, -1)
    h = torch.nn.functional.layer_norm(p @ e @ w["W"], (4,), w["scale"], w["bias"])
    return torch.nn.functional.gelu(h), h.mean(1)


def torch_two(w, a, b, c):
    return (a + b) @ w["w"], a @ w["v"], c @ w["w"]


def cases(rng):
    x = {"x": real(rng, 3, 4)}
    abc = {n: real(rng, 3, 3) for n in "abc"}
    ix = {"i": rng.integers(0, 7, (3, 5)), "x": real(rng, 3, 5, 4)}
    return {
        "mlp": (mlp(), torch_mlp, x, [(3, 1)]),
        "two": (two_in_two_out(), torch_two, abc, [(3, 1), (3, 2), (3, 1)]),
        "encoder": (encoder(), torch_encoder, ix, [(3, 5, 4), (3, 4)]),
    }


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["mlp", "two", "encoder"])
def test_as_autograd(rng, engine, name):
    model, f, inputs, shapes = cases(rng)[name]
    before = model.SerializeToString()
    layer = OrtGradientForwardBackward(model, engine=engine)
    dys = [real(rng, *s) for s in shapes]
    ys, by_weights, by_inputs = expected(f, weights_of(model), inputs, dys)
    outputs, state = layer.forward(inputs)
    for y, e in zip(outputs, ys, strict=True):
        np.testing.assert_allclose(y, e, rtol=1e-5, atol=1e-5)
    weights, gradients = layer.backward(dys, state)
    assert_gradients(weights, {n: by_weights[n] for n in layer.weights_to_train})
    assert_gradients(gradients, by_inputs)
    assert model.SerializeToString() == before


def test_graphs(rng):
    """The two graphs of our own gradient, run by themselves."""
    graphs = OrtGradientForwardBackward(mlp(), ["W1", "b2"], engine="step").graphs
    for graph in graphs.values():
        onnx.checker.check_model(graph, full_check=True)
    forward, backward = Session(graphs["forward"]), Session(graphs["backward"])
    saved = [n for n in forward.outputs if n != "y"]
    assert (forward.inputs, saved) == (["x", "W1", "b2"], [f"saved_{i}" for i in range(len(saved))])
    assert backward.outputs == ["W1_grad", "b2_grad", "x_grad"]
    assert set(backward.inputs) <= {"x", "W1", "b2", "y_grad", *saved}
    weights = weights_of(mlp())
    feeds, dy = {"x": real(rng, 3, 4), **{n: weights[n] for n in ("W1", "b2")}}, real(rng, 3, 1)
    tensors = {**feeds, **forward.run(feeds), "y_grad": dy}
    gradients = backward.run({n: tensors[n] for n in backward.inputs})
    _, by_weights, by_inputs = expected(torch_mlp, weights, {"x": feeds["x"]}, [dy])
    for n, g in [("W1", by_weights["W1"]), ("b2", by_weights["b2"]), ("x", by_inputs["x"])]:
        np.testing.assert_allclose(gradients[f"{n}_grad"], g, rtol=1e-5, atol=1e-6)


def test_no_dependence(rng):
    """The gradient by an input that no output depends on is zeros."""
    x, z, w = variable("x", "float32", ["N", 2]), variable("z", "float32", ["M"]), constant([[1.0], [2.0]], hint="w")
    layer = OrtGradientForwardBackward(build([x, z], {"y": x @ w}), engine="step")
    _, state = layer.forward({"x": real(rng, 3, 2), "z": real(rng, 5)})
    _, inputs = layer.backward([real(rng, 3, 1)], state)
    assert inputs["z"].tolist() == [0] * 5


@pytest.mark.parametrize("engine", ENGINES)
def test_several_pending(rng, engine):
    """Backward in any order, while the caller writes to the arrays it gave and got, and weights change in between."""
    layer = OrtGradientForwardBackward(mlp(), ["b1", "W2", "W1"], engine=engine)
    pending, x = [], np.empty((3, 4), np.float32)
    for i in range(4):
        x[...] = real(rng, 3, 4)
        dy = real(rng, 3, 1)
        weights = {**weights_of(mlp()), **dict(zip(layer.weights_to_train, layer.get_state(), strict=True))}
        (y,), state = layer.forward([x])
        pending.append((dy, state, expected(torch_mlp, weights, {"x": x}, [dy])))
        np.testing.assert_allclose(y, pending[-1][2][0][0], rtol=1e-4, atol=1e-5)
        y[...] = np.nan
        if i % 2:
            layer.set_state([a * 1.5 for a in layer.get_state()])
    layer.forward([x], training=False)
    for k in (2, 0, 3, 1):
        dy, state, (_, by_weights, by_inputs) = pending[k]
        weights, inputs = layer.backward([dy], state)
        assert_gradients(weights, {n: by_weights[n] for n in ("b1", "W2", "W1")}, 1e-4)
        assert_gradients(inputs, by_inputs, 1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_belong_to_the_caller(rng, engine):
    layer = OrtGradientForwardBackward(mlp(), engine=engine)
    kept = []
    for _ in range(3):
        _, state = layer.forward(real(rng, 3, 4))
        weights, inputs = layer.backward([real(rng, 3, 1)], state)
        kept.append([(a, a.copy()) for a in [*weights.values(), *inputs.values()]])
    assert all((a == b).all() for pairs in kept for a, b in pairs)


@pytest.mark.parametrize("engine", ENGINES)
def test_float64(rng, engine):
    layer = OrtGradientForwardBackward(mlp(dtype="float64"), engine=engine)
    x, dy = rng.normal(size=(3, 4)), rng.normal(size=(3, 1))
    _, state = layer.forward(x)
    _, by_weights, by_inputs = expected(torch_mlp, weights_of(mlp(dtype="float64")), {"x": x}, [dy])
    weights, inputs = layer.backward([dy], state)
    assert_gradients(weights, by_weights, 1e-12)
    assert_gradients(inputs, by_inputs, 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_weight_that_is_an_output(rng, engine):
    """The same tensor as weight, output and saved value."""
    x, w = variable("x", "float32", ["N", 2]), constant(np.ones((2, 2), np.float32), hint="w")
    y = op.Sigmoid(x @ w)
    layer = OrtGradientForwardBackward(build([x], {"y": y, "z": y * y}), engine=engine)
    a, dys = real(rng, 3, 2), [real(rng, 3, 2), real(rng, 3, 2)]

    def f(w, x):
        y = torch.sigmoid(x @ w["w"])
        return y, y * y

    _, by_weights, by_inputs = expected(f, {"w": np.ones((2, 2), np.float32)}, {"x": a}, dys)
    outputs, state = layer.forward(a)
    for y in outputs:
        y[...] = 0
    weights, inputs = layer.backward(dys, state)
    assert_gradients(weights, by_weights)
    assert_gradients(inputs, by_inputs)


def test_names_that_gradients_would_take(rng):
    """The agent cannot give way, so that auto takes the other engine."""
    x, w = variable("x", "float32", ["N", 2]), constant(np.ones((2, 2), np.float32), hint="y_grad")
    layer = OrtGradientForwardBackward(build([x], {"y": x @ w}))
    assert layer.engine_ == "step"
    a, dy = real(rng, 3, 2), real(rng, 3, 2)
    _, state = layer.forward(a)
    weights, _ = layer.backward([dy], state)
    np.testing.assert_allclose(weights["y_grad"], a.T @ dy, rtol=1e-5)


def test_auto():
    layer = OrtGradientForwardBackward(linear())
    reasons = {"agent": "right about every operator of the graph", "step": "onnxruntime-training is not installed"}
    assert reasons[layer.engine_] in layer.engine_reason_
    x, w = variable("x", "float32", ["N", 2]), constant(np.ones((2, 2), np.float32), hint="w")
    layer = OrtGradientForwardBackward(build([x], {"y": op.Elu(x @ w)}))
    assert layer.engine_ == "step"
    assert re.search("no test covers its gradient|is not installed", layer.engine_reason_)


def test_state():
    layer = OrtGradientForwardBackward(mlp(), ["b2", "W1"], engine="step")
    state = layer.get_state()
    assert [a.shape for a in state] == [(1,), (4, 8)]
    state[0][...] = 7
    assert layer.get_state()[0] != 7
    layer.set_state(state)
    state[0][...] = 8
    assert layer.get_state()[0] == 7
    with pytest.raises(DataError, match="There are 2 weights and 1 arrays"):
        layer.set_state(state[:1])
    with pytest.raises(DataError, match=re.escape("Weight 'W1' has shape (4, 8), the array (8, 4).")):
        layer.set_state([state[0], state[1].T])


@pytest.mark.parametrize("engine", ENGINES)
def test_errors(engine):
    layer = OrtGradientForwardBackward(two_in_two_out(), engine=engine)
    a = np.ones((2, 3), np.float32)
    with pytest.raises(DataError, match="The model has 3 inputs, 'a', 'b', 'c'; 1 given"):
        layer.forward(a)
    with pytest.raises(DataError, match=r"Unknown input: 'z'\. Expected 'a', 'b', 'c'; got 'a', 'b', 'c', 'z'"):
        layer.forward({**dict.fromkeys("abc", a), "z": a})
    with pytest.raises(DataError, match=r"Missing input: 'c'\. Expected 'a', 'b', 'c'; got 'a', 'b'\."):
        layer.forward(dict.fromkeys("ab", a))
    with pytest.raises(DataError):
        layer.forward([a, a, a[:, :2]])
    outputs, none = layer.forward([a, a, a], training=False)
    assert none is None
    with pytest.raises(DataError, match="There is no state to go back from; call forward with training=True"):
        layer.backward(outputs, none)
    outputs, state = layer.forward([a, a, a])
    with pytest.raises(DataError, match="There are 3 outputs and 1 gradients"):
        layer.backward(outputs[:1], state)
    with pytest.raises(DataError):
        layer.backward([outputs[0], outputs[1][:, :1], outputs[2]], state)


@pytest.mark.parametrize(("dtype", "values", "message"), [
    ("uint8", [[300]], "Input 'x' holds 300, where uint8 holds 0 to 255."),
    ("int32", [[4294967297]], "Input 'x' holds 4294967297, where int32 holds"),
    ("int64", [[0.5]], "Input 'x' holds 0.5, a fraction, where int64 was expected."),
    ("index", [[-1.0]], "Input 'x' holds -1.0, of float64, where whole numbers were expected; convert them"),
])
def test_inputs_fit_their_dtype(dtype, values, message):
    x, w = variable("x", "int64" if dtype == "index" else dtype, ["N", 1]), constant(np.ones((2, 1)), "float32", "w")
    y = op.Gather(w, x)[:, 0] if dtype == "index" else op.Cast(x, to=1) @ w[:1]
    layer = OrtGradientForwardBackward(build([x], {"y": y}), ["w"], engine="step")
    with pytest.raises(DataError, match=f"^{re.escape(message)}"):
        layer.forward([values])
    (y,), state = layer.forward([[[1]]])
    assert y == 1
    with pytest.raises(DataError, match=r"^The gradient of 'y' is <U1, where float32 was expected\."):
        layer.backward([[["a"]]], state)


def test_real_numbers_are_no_indices_of_any_range():
    x, i = variable("x", "float32", ["K", 2]), variable("i", "int64", ["N"])
    w = constant(np.ones((2, 1), np.float32), hint="w")
    layer = OrtGradientForwardBackward(build([x, i], {"y": op.Gather(x, op.Unsqueeze(i, [1])) @ w}), engine="step")
    for f in (layer, pickle.loads(pickle.dumps(layer))):
        with pytest.raises(DataError, match=r"^Input 'i' holds -1\.0, of float64, where whole numbers were expected"):
            f.forward([np.ones((3, 2)), [-1.0]])
        assert f.forward([np.ones((3, 2)), [-1]])[0][0] == [[2]]


@pytest.mark.parametrize("engine", ENGINES)
def test_no_rows(engine):
    x, w = variable("x", "float32", ["N", 2]), constant(np.ones((2, 3), np.float32), hint="w")
    layer = OrtGradientForwardBackward(build([x], {"y": op.Tanh(x @ w)}), engine=engine)
    (y,), state = layer.forward(np.zeros((0, 2), np.float32))
    weights, inputs = layer.backward([np.zeros((0, 3))], state)
    assert (y.shape, inputs["x"].shape, weights["w"].tolist()) == ((0, 3), (0, 2), [[0] * 3] * 2)


@pytest.mark.parametrize(("make", "operator"), [
    (lambda x: op.TopK(x, [1])[0], "TopK"),
    (lambda x: op.Einsum(x, x, equation="ni,nj->ij"), "Einsum"),
], ids=["TopK", "Einsum"])
def test_no_rows_where_an_operator_would_crash(make, operator):
    x, w = variable("x", "float32", ["N", 2]), constant(np.ones(2, np.float32), hint="w")
    layer = OrtGradientForwardBackward(build([x], {"y": make(x * w)}), engine="step")
    with pytest.raises(DataError, match=rf"^Input 'x' has no elements, which crashes <Node .*: {operator}>; leave"):
        layer.forward(np.zeros((0, 2), np.float32))


@pytest.mark.usefixtures("unruled")
def test_errors_at_once():
    x, w = variable("x", "float32", ["N", 2, 2]), constant(np.ones((2, 2), np.float32), hint="w")
    with pytest.raises(NoGradientError, match="operator Unique has neither"):
        OrtGradientForwardBackward(build([x], {"y": op.Unique(x @ w)}), engine="step")
    with pytest.raises(SettingError, match="engine='fast' is not known; leave it at 'auto'"):
        OrtGradientForwardBackward(linear(), engine="fast")


# Which weights


def normalized():
    """A scalar, integers, running statistics, and weights on both sides of an Argmax."""
    x = variable("x", "float32", ["N", 3])
    one = np.ones(3, np.float32)
    names = ["scale", "bias", "mean", "var", "before", "after"]
    weights = {n: constant(one * i, hint=n) for i, n in enumerate(names, 1)}
    temperature = constant(np.array(2, np.float32), hint="temperature")
    y = op.BatchNormalization(x * temperature, *(weights[n] for n in names[:4]), n_outputs=1)[0]
    best = op.ArgMax(x * weights["before"], axis=1)
    return build([x], {"y": y + op.Cast(best, to=1) * weights["after"], "i": best})


def test_weights_by_default():
    assert resolve_weights(load(normalized()), None, ["y"]) == ["scale", "bias", "after"]
    assert resolve_weights(load(normalized()), ["after", "temperature"], ["y"]) == ["after", "temperature"]
    assert resolve_weights(load(normalized()), "mean", ["y"]) == ["mean"]


@pytest.mark.parametrize(
    ("weights", "outputs", "message"),
    [
        (None, ["i"], "No float initializer of rank one or more leads to the outputs 'i' differentiably: ArgMax"),
        (["w"], ["y"], "The weight 'w' is no initializer of the model; its float initializers are"),
        (["scale", "scale"], ["y"], "The weight 'scale' is given twice."),
        ([], ["y"], "weights_to_train is empty; name at least one weight, or leave it out to train all."),
    ],
)
def test_weights_errors(weights, outputs, message):
    with pytest.raises(ModelError, match=re.escape(message)):
        resolve_weights(load(normalized()), weights, outputs)


def test_weights_of_integers():
    x, i = variable("x", "float32", ["N", 3]), constant(np.array([0, 1]), hint="i")
    with pytest.raises(ModelError, match="The weight 'i' holds no real numbers; its float initializers are none"):
        resolve_weights(load(build([x], {"y": op.Gather(x, i, axis=1)})), ["i"], ["y"])


@pytest.mark.parametrize("engine", ENGINES)
def test_inputs_that_are_left_out(rng, engine):
    x, w = variable("x", "float32", ["N", 3]), constant(real(rng, 3, 2), hint="w")
    model = build([x], {"y": x @ w})
    kernel = OrtGradientForwardBackward(model, inputs=[], engine=engine)
    (y,), state = kernel.forward(real(rng, 4, 3))
    weights, inputs = kernel.backward([np.ones_like(y)], state)
    assert list(weights) == ["w"]
    assert inputs == {}
    with pytest.raises(ModelError, match=r"has no input 'w' of real numbers to differentiate by; it has 'x'\."):
        OrtGradientForwardBackward(model, inputs="w")


def test_rounding_before_all_weights(rng):
    """Weights behind rounding have their gradients, once nobody asks for that of the input."""
    x, w = variable("x", "float32", ["N", 3]), constant(real(rng, 3, 2), hint="w")
    rounded = op.DequantizeLinear(op.QuantizeLinear(x, 0.5, np.int8(0)), 0.5, np.int8(0))
    model = build([x], {"y": rounded @ w})
    with pytest.raises(NoGradientError, match="rounds"):
        OrtGradientForwardBackward(model, "w")
    kernel = OrtGradientForwardBackward(model, "w", inputs=[])
    (y,), state = kernel.forward(np.array([[1, 2, 3]], np.float32))
    assert kernel.backward([np.ones_like(y)], state)[0]["w"].tolist() == [[1, 1], [2, 2], [3, 3]]
