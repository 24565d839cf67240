"""Walks over expressions: their order, the nodes they reach, and the boundary of a gradient."""

import numpy as np
import pytest

from ortpartial.autodiff import grad
from ortpartial.graph import constant, op, variable
from ortpartial.graph.control_flow import cond
from ortpartial.graph.walk import find_boundary, find_inputs, find_reached, topological, walk_back, walk_nodes

X, W = variable("x", "float32", [3]), variable("w", "float32", [3])
H = op.Tanh(X * W)
Y = H + op.Relu(H)


def kinds(nodes):
    return [n.op_type for n in nodes]


def test_each_node_stands_behind_what_it_reads():
    assert kinds(topological([Y])) == ["Mul", "Tanh", "Relu", "Add"]
    assert kinds(topological([Y], cut=[H])) == ["Relu", "Add"]
    assert topological([X]) == []


def test_a_chain_deeper_than_the_stack_of_python():
    v = X
    for _ in range(5000):
        v = -v
    assert len(topological([v])) == 5000
    assert len(list(walk_back([v], lambda v: False))) == 5001


def test_walking_back_stops():
    assert X not in set(walk_back([Y], lambda v: v is H))
    assert H in set(walk_back([Y], lambda v: v is H))
    assert X in set(walk_back([Y], lambda v: False))


def test_inputs_and_cuts_that_are_reached():
    other = variable("other", "float32", [])
    assert find_inputs([Y], {"x": X, "o": other}) == {"x": X}
    assert find_reached([Y], [H, X, other]) == {H}


def test_the_boundary_of_a_gradient():
    """The gradient of tanh(x w) by w reads x and the result, and not what lies before."""
    (g,) = grad(op.ReduceSum(H, keepdims=0), [W])
    boundary = find_boundary([g], [H], [X, W])
    assert H in boundary
    assert X in boundary
    assert W not in boundary


def test_nodes_of_bodies_are_walked():
    y = cond(variable("c", "bool", []), lambda: op.Exp(X), lambda: X)
    (y,) = y if isinstance(y, (list, tuple)) else (y,)
    assert "Exp" not in kinds(topological([y]))
    assert "Exp" in kinds(walk_nodes(topological([y])))


@pytest.mark.parametrize("roots", [[], [constant(np.float32(1))]])
def test_nothing_to_walk(roots):
    assert list(find_inputs(roots, {"x": X})) == []
