"""Opset downgrade: older forms and function bodies, on the runtime and beside torch."""

import numpy as np
import pytest
import torch
from numbered_cases import check_case
from onnx import TensorProto, helper
from table import rows
from torch.nn import functional as F

from ortpartial import OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import ModelError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.rewrites.downgrade import downgrade_opset
from ortpartial.runtime.session import Session

X = np.random.default_rng(0).normal(scale=3, size=(2, 3, 4, 5))
W = np.ones(5, np.float32)
NEW = rows(
    ("Swish", lambda x: op.Swish(x, alpha=2.0), lambda x: x * torch.sigmoid(2 * x)),
    ("RMSNormalization", lambda x: op.RMSNormalization(x, W, epsilon=1e-3), lambda x: F.rms_norm(x, (5,), None, 1e-3)),
)


def model(f):
    x = variable("x", "float32", ["N", 3, 4, 5])
    return build([x], {"y": f(x) * 2})


def new_cast():
    """A Cast of opset 24."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], "cast", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])


NUMBERED = {
    "downgrade_opset 1": lambda: downgrade_opset(new_cast(), 21),
    "downgrade_opset 2": lambda: downgrade_opset(model(op.Swish), 21),
}


@pytest.mark.parametrize("case", NUMBERED)
def test_numbered_case(case):
    check_case(case, NUMBERED[case])


@pytest.mark.parametrize(("f", "in_torch"), NEW)
def test_new_operators_on_an_old_runtime(f, in_torch):
    """Operators newer than opset 21, the newest of onnxruntime 1.19.2, run and train there by their function bodies."""
    young = model(f)
    old = downgrade_opset(young, 21)
    assert max(o.version for o in young.opset_import) > 21 >= max(o.version for o in old.opset_import)
    expected = 2 * in_torch(torch.tensor(X)).numpy()
    for graph in (young, old):
        actual = Session(graph).run({"x": X.astype(np.float32)})["y"]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_error_of_a_new_operator_without_body():
    x = variable("x", "float32", ["N", 4])
    with pytest.raises(ModelError, match=r"CumProd> is of opset 26, this runtime knows opsets up to 21, and ONNX"):
        downgrade_opset(build([x], {"y": op.CumProd(x, 1)}), 21)


def test_newer_forms_of_old_operators():
    """A node that uses no new attribute is written in its form of opset 21."""

    def cast(**settings):
        cast = helper.make_node("Cast", ["x"], ["y"], "c", to=TensorProto.FLOAT, **settings)
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "xy")
        graph = helper.make_graph([cast], "cast", [x], [y])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])

    for settings in ({}, {"round_mode": "up"}):
        actual = downgrade_opset(cast(**settings), 21)
        assert (actual.opset_import[0].version, len(actual.graph.node[0].attribute)) == (21, 1)
    with pytest.raises(ModelError, match="<Node c: Cast> cannot be written for opset 21, the runtime's newest: "):
        downgrade_opset(cast(round_mode="down"), 21)


def test_a_new_operator_is_trained():
    x, w = variable("x", "float32", ["N", 4]), constant(np.eye(4, dtype=np.float32), hint="w")
    o = OrtGradientForwardBackwardOptimizer(build([x], {"y": op.Swish(x @ w)}), shuffle=False, max_iter=1, batch_size=8)
    X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    w = torch.eye(4, dtype=torch.float64, requires_grad=True)
    ((F.silu(torch.tensor(X, dtype=torch.float64) @ w) - 1) ** 2).mean().backward()
    (actual,) = o.fit(X, np.ones((8, 4))).get_state()
    np.testing.assert_allclose(actual, np.eye(4) - 0.01 * w.grad.numpy(), rtol=1e-5, atol=1e-7)
