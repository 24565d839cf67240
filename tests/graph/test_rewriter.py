"""Rewriting: values are replaced wherever they are read, and the rest is kept."""

import numpy as np
from control_graphs import ONE, checked, positive, tree, x_

from ortpartial.graph import op
from ortpartial.graph.control_flow import cond, scan
from ortpartial.graph.rewriter import rewrite
from ortpartial.testing import evaluate


def test_rewritten_goes_into_bodies():
    x, w, v = x_(), x_(name="w"), x_(name="v")

    def f(s, x):
        return (cond(positive(s), lambda: s * op.Exp(w), lambda: op.Softplus(s)),)

    y = scan(f, x, xs := x_((2, 3), "xs"))
    (same,) = rewrite([y], {})
    assert same is y
    (other,) = rewrite([y], {w: v})
    model = checked([x, xs, v], {"y": other})
    assert tree(model.graph) == [("Scan", ["ReduceSum", "Greater", ("If", ["Softplus"], ["Exp", "Mul"])])]
    (relu,) = rewrite([y], {}, lambda n, inputs: [op.Relu(inputs[0]) + 1] if n.op_type == "Softplus" else None)
    inside = tree(checked([x, xs, w], {"y": relu}).graph)[0][1]
    assert inside[-1] == ("If", ["Relu", "Add"], ["Exp", "Mul"])


def test_rewritten_keeps_what_is_handed_out():
    s, xs, w, v = x_(name="s"), x_((5, 3), "xs"), x_(name="w"), x_(name="v")
    y = scan(lambda s, x: (op.Exp(s * w) * x,), s, xs)
    exp = y.node.bodies[0].nodes[1]
    (tap,) = rewrite([y.node.tap(exp.outputs[0])], {w: v})
    model = checked([s, xs, v], {"e": tap})
    assert evaluate(model, {"s": ONE, "xs": np.zeros((5, 3), np.float32), "v": ONE * 0})["e"].tolist() == [[1] * 3] * 5
