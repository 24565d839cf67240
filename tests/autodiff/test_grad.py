"""`grad`: paths, broadcasting, cotangents, bodies and errors of the walk back."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from table import assert_as_torch, gradients, real, rows, torch_gradients

from ortpartial.autodiff import registry
from ortpartial.autodiff.grad import composed, grad
from ortpartial.autodiff.registry import has_rule, vjp
from ortpartial.exceptions import GraphError, NoGradientError
from ortpartial.graph.build import build
from ortpartial.graph.ops import OPSET, constant, make_node, op, variable
from ortpartial.graph.schemas import schema_of
from ortpartial.graph.shaping import cast, unbroadcast
from ortpartial.testing import check_gradient, evaluate


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(registry, "RULES", dict(registry.RULES))
    monkeypatch.setattr(registry, "CONSTANT", set(registry.CONSTANT))


def node_types(inputs, outputs):
    return [node.op_type for node in build(inputs, outputs).graph.node]


def compute(outputs, **feeds):
    """Outputs for arrays by the names of their variables, in the dtype of the arrays."""
    x = {name: variable(name, v.dtype, v.shape) for name, v in feeds.items()}
    return list(evaluate(build(x, {f"y{i}": v for i, v in enumerate(outputs(**x))}), feeds).values())


# The walk.


def test_by_an_intermediate_value():
    def f(x):
        h = op.Tanh(x)
        y = op.ReduceSum(h * h * 3, keepdims=0)
        return [h, *grad(y, [h])]

    h, dh = compute(f, x=real(3))
    np.testing.assert_allclose(dh, 6 * h)


def test_by_an_intermediate_value_and_what_it_is_made_of():
    def f(x):
        h = x * x
        return grad(op.ReduceSum(h * x, keepdims=0), [h, x])

    x = real(3)
    dh, dx = compute(f, x=x)
    np.testing.assert_allclose(dh, x)
    np.testing.assert_allclose(dx, 3 * x**2)


def test_by_a_constant():
    w = constant(np.array([2.0, 3.0]))
    x = variable("x", "float64", [2])
    (dw,) = grad(op.ReduceSum(w * x, keepdims=0), [w])
    (found,) = evaluate(build([x], [dw]), {"x": np.array([5.0, 7.0])}).values()
    assert found.tolist() == [5, 7]


def test_by_the_output_itself():
    x = variable("x", "float32", [3])
    y = op.Exp(x)
    dy = variable("dy", "float32", [3])
    assert grad(y, [y], [dy]) == [dy]


def test_zeros_where_nothing_depends():
    x, z = variable("x", "float32", ["N", 3]), variable("z", "float32", ["N", 2])
    (dz,) = grad(op.ReduceSum(op.Exp(x), keepdims=0), [z])
    (found,) = evaluate(build([z], [dz]), {"z": np.ones((4, 2), np.float32)}).values()
    assert found.tolist() == np.zeros((4, 2)).tolist()
    assert dz.shape == ("N", 2)


def test_zeros_behind_an_operator_without_gradient():
    assert compute(lambda x: grad(op.ReduceSum(op.Floor(x) * 2, keepdims=0), [x]), x=real(2))[0].tolist() == [0, 0]


def test_paths_add_up():
    (dx,) = compute(lambda x: grad(op.ReduceSum(x * op.Exp(x) + op.Sin(x) - x, keepdims=0), [x]), x=np.array([0.5]))
    np.testing.assert_allclose(dx, np.exp(0.5) * 1.5 + np.cos(0.5) - 1)


def test_several_outputs_and_cotangents():
    def f(x, a, b):
        return grad([x * x, op.ReduceSum(x, keepdims=0)], [x], [a, b])

    (dx,) = compute(f, x=np.array([1.0, 2.0]), a=np.array([10.0, 20.0]), b=np.array(3.0))
    assert dx.tolist() == [23, 83]


def test_an_output_without_a_cotangent_counts_with_ones():
    (dx,) = compute(lambda x: grad([x * x, x], [x], [None, None]), x=np.array([1.0, 2.0]))
    assert dx.tolist() == [3, 5]


def test_cotangents_are_one_for_each_output():
    x = variable("x", "float32", [3])
    with pytest.raises(GraphError, match=r"grad: there are 2 outputs and 1 cotangents\."):
        grad([x, x], [x], [x])


def test_a_chain_of_thousands():
    x = variable("x", "float32", [2])
    y = x
    for _ in range(3000):
        y = op.Neg(y)
    (dx,) = grad(y, [x], [x])
    assert len(build([x], [dx]).graph.node) == 3000


def test_shared_expressions_are_walked_once():
    # A ladder in which each step is read twice has 2^40 paths.
    x = variable("x", "float64", [])
    y = x
    for _ in range(40):
        y = y + y
    (dx,) = grad(y, [x])
    (found,) = evaluate(build([x], [dx]), {"x": np.array(1.0)}).values()
    assert found == 2.0**40


def test_only_what_is_asked_for_is_emitted():
    a, b = variable("a", "float32", [3]), variable("b", "float32", [3])
    dy = variable("dy", "float32", [3])
    assert sorted(node_types([a, b, dy], grad(op.Exp(a) * op.Sin(b), [a], [dy]))) == ["Exp", "Mul", "Mul", "Sin"]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_higher_orders(k):
    def f(x):
        y = op.Sin(x)
        for _ in range(k):
            (y,) = grad(op.ReduceSum(y, keepdims=0), [x])
        return [y]

    x = real(4)
    expected = [np.sin, np.cos, lambda v: -np.sin(v), lambda v: -np.cos(v)][k % 4](x)
    np.testing.assert_allclose(compute(f, x=x)[0], expected, rtol=1e-12)


def test_the_product_of_a_hessian_and_a_vector():
    def f(x, a, v):
        (g,) = grad(op.ReduceSum(x * (a @ x), keepdims=0), [x])
        return grad(g, [x], [v])

    a, v = real(3, 3), real(3, seed=1)
    np.testing.assert_allclose(compute(f, x=real(3), a=a, v=v)[0], (a + a.T) @ v)


# Broadcasting.


@pytest.mark.parametrize("b_shape", [("N", 3), ("M", 3), (None, 3), (1, 3), ("M", "K"), (3,), ("K",), (), None])
@pytest.mark.parametrize("n", [1, 4])
def test_a_size_that_turns_out_to_be_one(b_shape, n):
    a, b = variable("a", "float32", ["N", 3]), variable("b", "float32", b_shape)
    rows = n if b_shape and b_shape[0] == "N" else 1
    array = np.ones((rows, 3)[2 - (2 if b_shape is None else len(b_shape)):], np.float32)
    da, db = grad(op.ReduceSum(a * b, keepdims=0), [a, b])
    feeds = {"a": np.ones((n, 3), np.float32), "b": array}
    found = evaluate(build([a, b], {"da": da, "db": db}), feeds)
    assert found["da"].shape == (n, 3)
    assert found["db"].shape == array.shape
    assert found["db"].sum() == 3 * n


@pytest.mark.parametrize(
    ("d", "x", "expected"),
    rows(
        ("same", (2, 3), (2, 3), []),
        ("same symbolic", ("N", 3), ("N", 3), []),
        ("leading", ("N", 3), (3,), ["ReduceSum"]),
        ("one", ("N", 3), (1, 3), ["ReduceSum", "Reshape"]),
        ("scalar", ("N", 3), (), ["ReduceSum"]),
    ),
)
def test_static_axes_need_no_shape(d, x, expected):
    d, x = variable("d", "float32", d), variable("x", "float32", x)
    types = node_types([d, x], {"y": unbroadcast(d, x)})
    assert [t for t in types if t != "Identity"] == expected


# Operators without a rule.

BODIES = rows(
    ("Mish", op.Mish, F.mish, [real(2, 3)]),
    ("ThresholdedRelu", op.ThresholdedRelu, lambda x: F.threshold(x, 1.0, 0.0), [real(2, 3)]),
)


@pytest.mark.parametrize(("f", "torch_f", "args"), BODIES)
def test_the_body_of_the_specification_is_differentiated(f, torch_f, args):
    assert not has_rule(f(*(variable("x", "float64", a.shape) for a in args)).node.op_type)
    assert_as_torch(f, torch_f, args)


# Those of younger opsets, and those that exist in float32 alone.
SINGLE = rows(
    ("MeanVarianceNormalization", lambda x: op.MeanVarianceNormalization(x, axes=[0]),
     lambda x: (x - x.mean(0, keepdim=True)) / x.std(0, correction=0, keepdim=True), [real(4, 3)]),
    ("GroupNormalization", lambda x, s, b: op.GroupNormalization(x, s, b, num_groups=2),
     lambda x, s, b: F.group_norm(x, 2, s, b), [real(2, 4, 3), real(4), real(4, seed=1)]),
    ("SoftmaxCrossEntropyLoss", lambda x: op.SoftmaxCrossEntropyLoss(x, constant([1, 0, 2])),
     lambda x: F.cross_entropy(x, torch.tensor([1, 0, 2])), [real(3, 4)]),
    ("NegativeLogLikelihoodLoss", lambda x: op.NegativeLogLikelihoodLoss(x, constant([1, 0, 2])),
     lambda x: F.nll_loss(x, torch.tensor([1, 0, 2])), [real(3, 4)]),
)


@pytest.mark.parametrize(("f", "torch_f", "args"), SINGLE)
def test_a_body_in_float32(f, torch_f, args):
    def outputs(**x):
        y = f(*x.values())
        return [y, *grad(y if isinstance(y, (list, tuple)) else [y], list(x.values()))]

    args = [a.astype(np.float32) for a in args]
    y, *found = compute(outputs, **{f"x{i}": a for i, a in enumerate(args)})
    x = [torch.tensor(a, requires_grad=True) for a in args]
    expected = torch_f(*x)
    np.testing.assert_allclose(y, expected.detach(), rtol=1e-4, atol=1e-5)
    for a, b in zip(found, torch.autograd.grad(expected.sum(), x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_one_input_given_twice_to_a_body_counts_twice_and_not_four_times():
    check_gradient(lambda x: op.PRelu(x, x), [np.array([-0.5, 0.7])])


def test_what_an_operator_computes_is_its_rule():
    @composed("ThresholdedRelu")
    def _(x, *, alpha):
        return x * cast(x > alpha, x)

    check_gradient(lambda x: op.ThresholdedRelu(x, alpha=0.5), [real(2, 3) + 0.01])


def test_the_body_of_a_body():
    # Mish is x · Tanh(Softplus(x)); without the rule of Softplus its own body is opened.
    del registry.RULES["", "Softplus"]
    assert_as_torch(op.Mish, F.mish, [real(2, 3)])


@pytest.mark.usefixtures("unruled")
def test_no_rule_and_no_body_is_an_error_that_names_node_operator_and_way_out():
    x = variable("x", "float32", [2, 2])
    y, *_ = make_node(schema_of("Unique", "", OPSET), [x], {}, name="volume").outputs
    with pytest.raises(NoGradientError) as e:
        grad(y, [x])
    for part in ("volume", "Unique", "neither a rule nor a body", "ortpartial.vjp('Unique')", "weights_to_train"):
        assert part in str(e.value)


def test_no_rule_is_needed_where_no_gradient_flows():
    x, w = variable("x", "float32", [2, 2]), variable("w", "float32", [])
    (dw,) = grad(op.Unique(x).stated([4]) * w, [w])
    assert "Unique" in node_types([x], [dw])


def test_an_output_whose_gradient_is_unknown_is_an_error():
    @vjp("Dropout")
    def _(x, *, dy):
        return dy

    vjp("LayerNormalization")(lambda x, scale, *, dy: dy)
    x, scale = variable("x", "float32", [2, 3]), variable("scale", "float32", [3])
    mean = op.LayerNormalization(x, scale, n_outputs=3)[1]
    with pytest.raises(NoGradientError, match=r"LayerNormalization.*other than the first"):
        grad(mean, [x])


def test_cast_keeps_nothing_alive():
    x, like = variable("x", "bool", [3]), variable("like", "float32", [3])
    assert node_types([x], {"y": cast(x, like)}) == ["Cast"]
    assert cast(like, like) is like


def test_the_whole_of_a_network_as_torch_does_it():
    def f(x, w1, b1, w2, scale):
        h = op.LayerNormalization(op.Relu(x @ w1 + b1), scale)
        return op.ReduceMean(op.LogSoftmax(h @ w2), keepdims=0)

    def torch_f(x, w1, b1, w2, scale):
        h = F.layer_norm(torch.relu(x @ w1 + b1), (4,), scale)
        return torch.log_softmax(h @ w2, -1).mean()

    args = [real(5, 3), real(3, 4), real(4), real(4, 2), real(4, seed=1)]
    for a, b in zip(gradients(f, args), torch_gradients(torch_f, args), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-12)
    check_gradient(f, args, directions=1)


def test_a_name_in_place_of_a_value():
    x = variable("x", "float32", ["N"])
    with pytest.raises(GraphError, match=r"grad differentiates values by values, not 'w'; load"):
        grad(x * x, ["w"])
    with pytest.raises(GraphError, match=r"variable: the shape of 'x' is 3; a sequence was expected, such as \[3\]"):
        variable("x", "float32", 3)
