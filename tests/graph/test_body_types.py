"""Types around bodies: the sizes that both branches have, the inputs of a body, and bodies that do not fit."""

import re

import pytest
from onnx import TensorProto

from ortpartial.exceptions import GraphError
from ortpartial.graph import op, variable
from ortpartial.graph.body_types import body_inputs, join_types
from ortpartial.graph.values import Subgraph, Value

X, S = variable("x", "float32", [5, 3]), variable("s", "float32", [2])
GOING = variable("going", "bool", [])


def test_the_type_of_either_of_two_values():
    assert Value(join_types(X, variable("y", "float32", [5, "N"]))).shape == (5, None)
    assert Value(join_types(X, S)).shape is None
    assert Value(join_types(X, S)).dtype == "float32"


def test_inputs_of_a_body():
    scan = body_inputs("Scan", [S, X], {"num_scan_inputs": 1, "scan_input_axes": [1]})
    assert [(v.shape, v.hint) for v in scan] == [((2,), "s0"), ((5,), "x0")]
    loop = body_inputs("Loop", [None, None, X], {}, ["i", "c", "carried"])
    assert [(v.shape, v.hint) for v in loop] == [((), "i"), ((), "c"), ((5, 3), "carried")]
    assert [v.type.tensor_type.elem_type for v in loop[:2]] == [TensorProto.INT64, TensorProto.BOOL]


@pytest.mark.parametrize(("op_type", "inputs", "attributes", "names", "message"), [
    ("Scan", [X], {}, (), "Scan needs num_scan_inputs, how many of its 1 inputs are read slice by slice."),
    ("Scan", [X], {"num_scan_inputs": 1, "scan_input_axes": [2]}, (), "along its axis 2, which it does not have."),
    ("Loop", [None, None, X], {}, ("i",), "Loop: the inputs of the body, 1 of them, should be 3."),
])
def test_inputs_that_do_not_fit(op_type, inputs, attributes, names, message):
    with pytest.raises(GraphError, match=re.escape(message)):
        body_inputs(op_type, inputs, attributes, names)


def branch(*outputs):
    return Subgraph((), outputs)


@pytest.mark.parametrize(("then", "other", "message"), [
    (branch(X), branch(X, X), "the outputs of else_branch, 2 of them, should be 1, as many as of then_branch."),
    (branch(X), branch(variable("d", "float64", [5])), "output 0 is float32 and becomes float64; cast one of them."),
    (branch(X), 3, "else_branch is a Subgraph of values, not int."),
    (branch(X), Subgraph((S,), (S,)), "the inputs of else_branch, 1 of them, should be 0: a branch reads what is"),
])
def test_branches_that_do_not_fit(then, other, message):
    with pytest.raises(GraphError, match=re.escape(message)):
        op.If(GOING, then_branch=then, else_branch=other)


def test_a_state_keeps_its_shape():
    s, x = body_inputs("Scan", [S, X], {"num_scan_inputs": 1})
    body = Subgraph((s, x), (op.Concat(s, s, axis=0),))
    with pytest.raises(GraphError, match=r"state 0 is .* and becomes .*; a state keeps its shape\."):
        op.Scan(S, X, body=body, num_scan_inputs=1, n_outputs=1)
