"""`gradient_model`: names, errors and orders, and numbers equal to torch's."""

import re

import numpy as np
import onnx
import pytest
import torch
from models import assert_close, data, linear, mlp, torch_mlp, two_in_two_out, weights_of
from onnx import parser

from ortpartial import build, constant, gradient_model, load, op, variable
from ortpartial.exceptions import ModelError, NoGradientError, SettingError
from ortpartial.graph.control_flow import cond, loop
from ortpartial.runtime.session import Session

ROWS = 6


def names(model):
    return [i.name for i in model.graph.input], [o.name for o in model.graph.output]


def run(model, feeds):
    """What a bare session computes of the feeds that the model asks for."""
    onnx.checker.check_model(model, full_check=True)
    return Session(model).run({i.name: feeds[i.name] for i in model.graph.input})


def leaf(a):
    return torch.tensor(a, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("source", ["proto", "bytes", "path"])
def test_weights_and_inputs_of_a_network(source, tmp_path):
    model, (X, _, _), rng = mlp(), data(ROWS), np.random.default_rng(0)
    given = {"proto": model, "bytes": model.SerializeToString(), "path": tmp_path / "mlp.onnx"}[source]
    onnx.save(model, tmp_path / "mlp.onnx")
    found = gradient_model(given, ["b1", "x", "W2", "W1"])
    assert names(found) == (["x", "b1", "W2", "W1", "y_grad"], ["b1_grad", "x_grad", "W2_grad", "W1_grad"])
    assert {o.domain for o in found.opset_import} == {""}
    weights, dy = weights_of(model), rng.normal(size=(ROWS, 1)).astype(np.float32)
    w = {n: leaf(a) for n, a in {**weights, "x": X}.items()}
    torch_mlp(w, w["x"]).backward(torch.tensor(dy, dtype=torch.float64))
    assert_close(run(found, {**weights, "x": X, "y_grad": dy}), {f"{n}_grad": w[n].grad.numpy() for n in
                 ("b1", "x", "W2", "W1")}, 1e-6)
    assert sorted(names(gradient_model(given))[1]) == ["W1_grad", "W2_grad", "b1_grad", "b2_grad"]


def test_inputs_are_read_anew_where_weights_change():
    # A weight that is an input has no content that the graph may count on.
    model, (X, _, _) = linear(), data(ROWS)
    found = gradient_model(model, ["x"])
    assert names(found)[0] == ["x", "y_grad"]
    found = gradient_model(model, ["x", "coef"])
    dy, coef = np.ones((ROWS, 1), np.float32), np.arange(4, dtype=np.float32)[:, None]
    assert_close(run(found, {"x": X, "coef": coef, "y_grad": dy}), {"x_grad": dy @ coef.T, "coef_grad": X.T @ dy}, 1e-6)


def test_second_order():
    x = variable("x", "float64", ["N", 3])
    model = build([x], {"y": op.ReduceSum(op.Tanh(x) * op.Exp(x), [1], keepdims=0)})
    first = gradient_model(model, ["x"], cotangents="ones")
    second = gradient_model(first, ["x"], suffix="_grad2")
    assert names(second) == (["x", "x_grad_grad2"], ["x_grad2"])
    third = gradient_model(second, ["x"], cotangents="ones", suffix="_grad3")
    rng = np.random.default_rng(1)
    X, v = rng.normal(size=(2, ROWS, 3))
    t = leaf(X)
    (d1,) = torch.autograd.grad((torch.tanh(t) * torch.exp(t)).sum(), t, create_graph=True)
    (d2,) = torch.autograd.grad((d1 * torch.tensor(v)).sum(), t, create_graph=True)
    (d3,) = torch.autograd.grad(d2.sum(), t)
    feeds = {"x": X, "x_grad_grad2": v}
    assert_close(run(first, feeds), {"x_grad": d1.detach().numpy()}, 1e-12)
    assert_close(run(second, feeds), {"x_grad2": d2.detach().numpy()}, 1e-12)
    assert_close(run(third, feeds), {"x_grad3": d3.detach().numpy()}, 1e-12)


def test_outputs_are_chosen_and_added_up():
    model, rng = two_in_two_out(), np.random.default_rng(2)
    feeds = {n: rng.normal(size=(ROWS, 3)).astype(np.float32) for n in "abc"}
    w = weights_of(model)
    one = gradient_model(model, "a", ["kind"])
    assert names(one) == (["a", "b", "c", "kind_grad"], ["a_grad"])
    dk, dp = (rng.normal(size=(ROWS, n)).astype(np.float32) for n in (2, 1))
    both = gradient_model(model, ["a", "b"], ["price", "kind"])
    assert names(both)[0] == ["a", "b", "c", "price_grad", "kind_grad"]
    grads = {"a_grad": dp @ w["w"].T + dk @ w["v"].T, "b_grad": dp @ w["w"].T}
    assert_close(run(both, {**feeds, "kind_grad": dk, "price_grad": dp}), grads, 1e-6)
    assert_close(run(one, {**feeds, "kind_grad": dk}), {"a_grad": dk @ w["v"].T}, 1e-6)
    # What an output does not depend on has a gradient of zero.
    (zero,) = run(gradient_model(model, ["c"], ["price"], cotangents="ones"), feeds).values()
    assert zero.shape == (ROWS, 3)
    assert not zero.any()


def test_weights_shared():
    x, w = variable("x", "float64", ["N", 3]), constant(np.eye(3) + 0.1, hint="w")
    model = build([x], {"y": op.Tanh(x @ w) @ w})
    X = np.random.default_rng(3).normal(size=(ROWS, 3))
    t = leaf(np.eye(3) + 0.1)
    (torch.tanh(torch.tensor(X) @ t) @ t).sum().backward()
    found = run(gradient_model(model, cotangents="ones"), {"x": X, "w": np.eye(3) + 0.1})
    assert_close(found, {"w_grad": t.grad.numpy()}, 1e-12)


TEXT = """
<ir_version: 9, opset_import: ["" : 18]>
agraph (double[N, 3] x, int64[N] i) => (double[N, 3] y, int64[N] j) {
   h = Tanh (x)
   k = Exp (h)
   y = Mul (h, k)
   j = Add (i, i)
}
"""


def test_intermediate_tensors():
    model = parser.parse_model(TEXT)
    found = gradient_model(model, ["k", "h", "x"], cotangents="ones")
    assert names(found) == (["x", "i"], ["k_grad", "h_grad", "x_grad"])
    X = np.random.default_rng(4).normal(size=(ROWS, 3))
    h = np.tanh(X)
    dh = np.exp(h) * (1 + h)
    feeds = {"x": X, "i": np.zeros(ROWS, np.int64)}
    assert_close(run(found, feeds), {"k_grad": h, "h_grad": dh, "x_grad": dh * (1 - h * h)}, 1e-12)
    # An output is a tensor as well, if its cotangent has another name than its gradient.
    (d,) = run(gradient_model(model, ["y"], cotangents="ones"), feeds).values()
    assert (d == 1).all()


def test_control_flow():
    x, w = variable("x", "float64", ["N", 3]), constant(np.full((3, 3), 0.3) + np.eye(3), hint="w")
    h = cond(op.ReduceSum(x, keepdims=0) > 0, lambda: op.Tanh(x @ w), lambda: x * 2)
    model = build([x], {"y": loop(lambda i, going, h: (going, op.Exp(op.Tanh(h @ w))), 3, h)})
    found = gradient_model(model, ["x", "w"], cotangents="ones")
    for sign in (1, -1):
        X = sign * np.abs(np.random.default_rng(5).normal(size=(ROWS, 3)))
        t, v = leaf(X), leaf(np.full((3, 3), 0.3) + np.eye(3))
        h = torch.tanh(t @ v) if sign > 0 else t * 2
        for _ in range(3):
            h = torch.exp(torch.tanh(h @ v))
        h.sum().backward()
        expected = {"x_grad": t.grad.numpy(), "w_grad": v.grad.numpy()}
        assert_close(run(found, {"x": X, "w": v.detach().numpy()}), expected, 1e-10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wrt": ["z"]}, "The model has no tensor 'z'; there are 'x', 'i', and all tensors that a node"),
        ({"wrt": ["x"], "outputs": ["z"]}, "The model has no output 'z'; there are 'y', 'j'."),
        ({"wrt": ["i"]}, "'i' is of int64 and has no gradient; name a tensor of real numbers."),
        ({"wrt": ["x"], "outputs": ["j"]}, "'j' is of int64 and has no gradient"),
        ({"wrt": ["x", "x"]}, "'x' is given twice in wrt"),
        ({"wrt": []}, "wrt is empty"),
        ({"wrt": ["x"], "outputs": []}, "No output of the model holds real numbers"),
        ({}, "No float initializer of rank one or more leads to the outputs 'y'"),
    ],
)
def test_names_that_cannot_be(settings, message):
    with pytest.raises(ModelError, match=re.escape(message)):
        gradient_model(parser.parse_model(TEXT), **settings)


def test_a_tensor_that_is_an_output_and_in_wrt():
    """Its cotangent and its gradient, which the other outputs add to, have names of their own."""
    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 21]> g (double[N] x) => (double[N] h, double[N] y)
                               { h = Exp(x) y = Mul(h, h) }""")
    first = gradient_model(model, ["h", "x"])
    assert names(first) == (["x", "h_grad_in", "y_grad"], ["h_grad", "x_grad"])
    x, h, dh, dy = np.array([0.5, 1]), np.exp([0.5, 1]), np.array([2.0, 3]), np.array([5.0, 7])
    found, total = run(first, {"x": x, "h_grad_in": dh, "y_grad": dy}), dh + dy * 2 * h
    assert_close(found, {"h_grad": total, "x_grad": total * h}, 1e-12)
    second = gradient_model(first, ["h_grad_in"], ["h_grad"], suffix="_grad2")
    assert names(second) == (["x", "h_grad_in", "y_grad", "h_grad_grad2"], ["h_grad_in_grad2"])


def test_pool_and_unpool():
    """SegNet: what was largest goes back to where it was."""
    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 21]>
        g (float[N, 3, H, W] x) => (float[N, 3, A, B] y) {
            p, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) h = Exp(p) s = Shape(x)
            y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (h, i, s) }""")
    x = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    h, i = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    y = torch.nn.functional.max_unpool2d(torch.exp(h), i, 2, output_size=x.shape[2:])
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    y.backward(dy)
    found = run(gradient_model(model, ["x"]), {"x": x.detach().numpy(), "y_grad": dy.numpy()})
    assert_close(found, {"x_grad": x.grad.numpy()}, 1e-6)


def test_names_taken():
    first = gradient_model(linear(), ["coef"])
    with pytest.raises(ModelError, match=r"The name 'coef_grad' of a gradient is taken; choose another suffix"):
        gradient_model(first, ["coef"])
    assert names(gradient_model(first, ["x"], suffix="_bar"))[1] == ["x_bar"]


def test_settings():
    with pytest.raises(SettingError, match="cotangents is 'input' or 'ones', not 'zeros'"):
        gradient_model(linear(), cotangents="zeros")
    with pytest.raises(SettingError, match="suffix is '', and a gradient needs a name"):
        gradient_model(linear(), suffix="")


@pytest.mark.usefixtures("unruled")
def test_operator_without_a_gradient():
    x = variable("x", "float32", ["N", 3])
    model = build([x], {"y": op.Hardmax(x), "z": op.Exp(x)})
    assert names(gradient_model(model, ["x"], ["z"]))[1] == ["x_grad"]
    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 21]>
        agraph (float[N, 8] x) => (float[a] y) { y = Unique (x) }""")
    with pytest.raises(NoGradientError, match="operator Unique has neither a rule nor a body"):
        gradient_model(model, ["x"])


HEADS = """
<ir_version: 9, opset_import: ["" : 18]>
agraph (double[N, S, 12] x) => (double[a, b, c, d] y)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] rest = {-1}, int64[1] three = {3}>
{ s = Shape (x) n = Slice (s, zero, one) m = Slice (s, one, two) k = Concat<axis = 0> (n, m, rest, three)
  h = Reshape (x, k) t = Transpose<perm = [0, 2, 1, 3]> (h) u = Transpose<perm = [0, 2, 3, 1]> (h) y = MatMul (t, u) }
"""


@pytest.mark.parametrize("rest", [-1, 4])
def test_sizes_that_cancel_out_are_known(rest):
    model = parser.parse_model(HEADS.replace("{-1}", f"{{{rest}}}"))
    assert load(model).values["h"].shape == ("N", "S", 4, 3)
    found = gradient_model(model, ["x"])
    # So nothing can have been broadcast, and sizes are copied, not computed.
    made = {n.op_type for n in found.graph.node}
    assert made == {"Add", "Concat", "MatMul", "Reshape", "Shape", "Slice", "Transpose"}
    for rows in (2, 0) if rest == 4 else (2,):  # onnxruntime finds no size for -1 among no elements
        X = np.random.default_rng(6).normal(size=(rows, 5, 12))
        t = leaf(X)
        h = t.reshape(rows, 5, 4, 3).transpose(1, 2)
        dy = np.random.default_rng(7).normal(size=(rows, 4, 5, 5))
        (h @ h.transpose(2, 3)).backward(torch.tensor(dy))
        (found_dx,) = run(found, {"x": X, "y_grad": dy}).values()
        np.testing.assert_allclose(found_dx, t.grad.numpy(), atol=1e-12)


def test_sizes_that_do_not_cancel_out_stay_unknown():
    other = HEADS.replace("Slice (s, one, two)", "Slice (s, zero, one)")
    assert load(parser.parse_model(other)).values["h"].shape[2] != 4
