"""Models of derivatives, beside torch.func."""

import logging

import numpy as np
import onnx
import pytest
import torch
from table import real
from torch.func import hessian, jacfwd, jacrev, jvp, vmap

from ortpartial import gradient_model
from ortpartial.derivatives import hessian_model, hvp_model, jacobian_model, jvp_model, vmap_model
from ortpartial.exceptions import ModelError, ModelWarning, SettingError
from ortpartial.graph import build, constant, op, scan, variable
from ortpartial.model import load
from ortpartial.testing import evaluate

# torch 2.13.0 warns of its own use of torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

W, B, V = real(4, 6), real(6), real(6, 3)


def network(x, w=W):
    return op.Softmax(op.Tanh(x @ constant(w, hint="w") + B) @ V)


def torch_network(x, w=None):
    w = torch.tensor(W) if w is None else w
    return torch.softmax(torch.tanh(x @ w + torch.tensor(B)) @ torch.tensor(V), -1)


def model_of(f=network, shape=("N", 4)):
    x = variable("x", "float64", shape)
    return build([x], {"y": f(x)})


X, T = torch.tensor(real(5, 4)), torch.tensor(real(5, 4, seed=1))
SHAPES = pytest.mark.parametrize("shape", [(5, 4), ("N", 4), (None, None)], ids=["static", "symbolic", "unknown"])


def run(model, **feeds):
    return evaluate(model, {i.name: np.asarray(feeds[i.name]) for i in model.graph.input})


def close(a, b):
    assert a.shape == tuple(b.shape)
    np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-9, atol=1e-12)


@SHAPES
def test_jvp(shape):
    close(run(jvp_model(model_of(shape=shape), ["x"]), x=X, x_tangent=T)["y_tangent"],
          jvp(torch_network, (X,), (T,))[1])


def test_jvp_by_weights():
    model, t = jvp_model(model_of(), ["x", "w"]), torch.tensor(real(4, 6, seed=2))
    assert [i.name for i in model.graph.input] == ["x", "w", "x_tangent", "w_tangent"]
    close(run(model, x=X, w=W, x_tangent=T, w_tangent=t)["y_tangent"],
          jvp(torch_network, (X, torch.tensor(W)), (T, t))[1])


@SHAPES
def test_several_directions(shape):
    many = torch.tensor(real(3, 5, 4))
    model = jvp_model(model_of(shape=shape), ["x"], directions="K")
    close(run(model, x=X, x_tangent=many)["y_tangent"], vmap(lambda t: jvp(torch_network, (X,), (t,))[1])(many))


def test_the_tangent_of_a_product_is_two_products():
    x, w = variable("x", "float32", ["N", 4]), variable("w", "float32", [4, 3])
    kinds = [node.op_type for node in jvp_model(build([x, w], {"y": x @ w}), ["x", "w"]).graph.node]
    assert sorted(kinds) == ["Add", "MatMul", "MatMul"]


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
@SHAPES
def test_jacobian(shape, mode):
    close(run(jacobian_model(model_of(shape=shape), ["x"], mode=mode), x=X)["y_by_x"], jacrev(torch_network)(X))


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
def test_jacobian_by_row(mode):
    model = jacobian_model(model_of(), ["x"], mode=mode, per_row=True)
    close(run(model, x=X)["y_by_x"], vmap(jacfwd(torch_network))(X))


def test_jacobian_of_weights():
    result = run(jacobian_model(model_of(), ["w", "x"]), x=X, w=W)
    close(result["y_by_w"], jacrev(torch_network, 1)(X, torch.tensor(W)))
    close(result["y_by_x"], jacrev(torch_network)(X))


@SHAPES
def test_hessian(shape):
    close(run(hessian_model(model_of(shape=shape), ["x"]), x=X)["y_by_x_by_x"], hessian(torch_network)(X))


def test_hessian_by_row():
    close(run(hessian_model(model_of(), ["x"], per_row=True), x=X)["y_by_x_by_x"], vmap(hessian(torch_network))(X))


def test_hessian_product():
    def energy(x):
        return torch.tanh(x @ torch.tensor(W)).square().sum()

    model = model_of(lambda x: op.ReduceSum(op.Tanh(x @ W) ** 2, keepdims=0))
    close(run(hvp_model(model, ["x"]), x=X, x_tangent=T)["x_hvp"], jvp(torch.func.grad(energy), (X,), (T,))[1])


def test_hessian_between_tensors():
    x, w = variable("x", "float64", [3]), constant(real(3), hint="w")
    model = build([x], {"y": op.ReduceSum(op.Sin(x * w), keepdims=0)})
    result = run(hessian_model(model, ["x", "w"]), x=real(3), w=real(3))
    expected = hessian(lambda x, w: torch.sin(x * w).sum(), (0, 1))(*[torch.tensor(real(3))] * 2)
    for i, a in enumerate("xw"):
        for j, b in enumerate("xw"):
            close(result[f"y_by_{a}_by_{b}"], expected[i][j])


def test_third_order():
    """A derivative of a derivative, by applying the function to its own result."""
    model = jvp_model(hvp_model(model_of(lambda x: op.ReduceSum(x ** 4, keepdims=0)), ["x"]), ["x"], suffix="_third")
    ones = np.ones((2, 4))
    result = run(model, x=2 * ones, x_tangent=ones, x_third=ones)["x_hvp_third"]
    np.testing.assert_allclose(result, 24 * 2 * ones)


def test_recurrent_network():
    def f(x):
        return scan(lambda s, v: (op.Tanh(s * 0.5 + v), s), op.ReduceSum(x, [0], keepdims=0), x)[1]

    def g(x):
        s, states = x.sum(0), []
        for v in x:
            states.append(s)
            s = torch.tanh(s * 0.5 + v)
        return torch.stack(states)

    close(run(jvp_model(model_of(f), ["x"]), x=X, x_tangent=T)["y_tangent"], jvp(g, (X,), (T,))[1])
    close(run(jacobian_model(model_of(f), ["x"]), x=X)["y_by_x"], jacrev(g)(X))


def test_vmap(caplog):
    x, w = variable("x", "float64", ["N", 4]), variable("w", "float64", [4, 2])
    model = build([x, w], {"y": op.Softmax(x @ w)})
    many = torch.tensor(real(3, 4, 2))
    batched = vmap_model(model, {"x": None}, size=3)
    assert [(n, v.shape) for n, v in load(batched).inputs.items()] == [("x", ("N", 4)), ("w", (3, 4, 2))]
    close(run(batched, x=X, w=many)["y"], vmap(lambda v: torch.softmax(X @ v, -1))(many))
    turned = vmap_model(model, {"x": None, "w": -1}, {"y": 1})
    assert load(turned).outputs["y"].shape == ("N", "batch", 2)
    close(run(turned, x=X, w=many.movedim(0, -1))["y"], vmap(lambda v: torch.softmax(X @ v, -1))(many).movedim(0, 1))
    caplog.set_level(logging.INFO)
    kernels = variable("k", "float64", [2, 1, 3])
    vmap_model(build([i := variable("i", "float64", [1, 1, 8]), kernels], {"y": op.Conv(i, kernels)}))
    assert "vmap_model repeats Conv by a Scan" in caplog.text


def test_zero_hessians_are_told_of():
    with pytest.warns(ModelWarning, match="zero by construction"):
        model = hessian_model(model_of(lambda x: op.Relu(x @ W)), ["x"])
    assert not run(model, x=X)["y_by_x_by_x"].any()
    with pytest.warns(ModelWarning, match="zero by construction"):
        hvp_model(model_of(lambda x: x @ W), ["x"])


@pytest.mark.parametrize("make", [jvp_model, hvp_model, jacobian_model, hessian_model, gradient_model])
def test_mistakes(make):
    with pytest.raises(ModelError, match="no tensor 'z'; there are 'x'"):
        make(model_of(), ["z"])
    with pytest.raises(ModelError, match="no output 'z'; there are 'y'"):
        make(model_of(), ["x"], ["z"])
    with pytest.raises(ModelError, match="No output of the model holds real numbers"):
        make(model_of(lambda x: op.ArgMax(x)), ["x"])
    with pytest.raises((ModelError, SettingError), match="is ''"):
        make(model_of(), ["x"], **{"separator" if make in (jacobian_model, hessian_model) else "suffix": ""})


def test_further_mistakes():
    with pytest.raises(ModelError, match=r"Softmax> mixes the rows .*; leave per_row out"):
        jacobian_model(model_of(lambda x: op.Softmax(x, axis=0)), ["x"], per_row=True)
    with pytest.raises(ModelError, match="'w' is no input, so that it has no rows"):
        hessian_model(model_of(), ["w"], per_row=True)
    with pytest.raises(SettingError, match="mode"):
        jacobian_model(model_of(), ["x"], mode="coloured")
    with pytest.raises(ModelError, match="no input 'z'; there are 'x'"):
        vmap_model(model_of(), {"z": 0})
    with pytest.raises(SettingError, match="No input has the axis of the batch"):
        vmap_model(model_of(), {"x": None})
    with pytest.raises(ModelError, match="axis of the batch in 'x' is 5, and it has 3 axes"):
        vmap_model(model_of(), {"x": 5})
    for wrong in (0, -1, 2.5, True, "", "N"):
        with pytest.raises(SettingError, match="directions"):
            jvp_model(model_of(), ["x"], directions=wrong)
        with pytest.raises(SettingError, match="size"):
            vmap_model(model_of(), size=wrong)
    with pytest.raises(SettingError, match="axes is a dict by name"):
        vmap_model(model_of(), [0])
    with pytest.raises(SettingError, match=r"in 'x' is a whole number, not 1\.5"):
        vmap_model(model_of(), {"x": 1.5})
    with pytest.raises(SettingError, match="in 'y' is a whole number, not 'y'"):
        vmap_model(model_of(), None, "y")
    with pytest.raises(SettingError, match="per_row is True or False"):
        jacobian_model(model_of(), ["x"], per_row="yes")
    taken = build([x := variable("x", "float32", [2])], {"y": x * 2, "y_tangent": x * 3})
    with pytest.raises(ModelError, match="'y_tangent' of a derivative is taken"):
        jvp_model(taken, ["x"], ["y"])


def test_results_are_checked_models():
    for make in (jvp_model, hvp_model, jacobian_model, hessian_model):
        onnx.checker.check_model(make(model_of(), ["x"]), full_check=True)
