"""Pickles of expressions: the same graph again, at any depth, with shared nodes."""

import copy
import io
import itertools
import pickle
import threading

import cloudpickle
import numpy as np
import pytest
from onnx import defs

from ortpartial.autodiff import grad
from ortpartial.exceptions import GraphError
from ortpartial.graph import (
    Operators,
    cond,
    constant,
    find_inputs,
    loop,
    op,
    scan,
    stop_gradient,
    topological,
    variable,
)
from ortpartial.graph.build import build


def pickled(v):
    return pickle.loads(pickle.dumps(v))


def test_no_graph_is_too_deep():
    x = variable("x", "float32", ["N"])
    y = x
    for _ in range(10_000):
        y = op.Sin(y)
    held = cloudpickle.dumps((x, y))
    assert len(held) < 1_000_000
    u, v = pickle.loads(held)
    assert len(topological([v])) == 10_000
    assert find_inputs([v], {"x": u}) == {"x": u}
    assert pickled(y.node).op_type == "Sin"


def test_a_list_of_many_values():
    deep = [variable("x", "float32", ["N"])]
    for _ in range(1500):
        deep.append(deep[-1] + 1)
    again = pickled(deep)
    assert all(b.node.inputs[0] is a for a, b in itertools.pairwise(again))


def test_values_share_what_they_shared():
    x, w = variable("x", "float32", ["N", 3]), constant(np.ones((3, 2), np.float32), hint="w")
    h = op.Tanh(x @ w)
    values, indices = op.TopK(h, [1])
    outputs = {"h": h, "values": values, "indices": indices, "stated": h.stated(("M", 2))}
    again, (x_, w_), (dw,) = pickled((outputs, (x, w), grad(h.sum(), [w])))
    assert build([x_], {**again, "dw": dw}) == build([x], {**outputs, "dw": grad(h.sum(), [w])[0]})
    assert again["values"].node is again["indices"].node
    assert again["stated"] == again["h"]
    assert again["h"].node.inputs[0].node.inputs == (x_, w_)
    assert [(v.hint, v.type) for v in again.values()] == [(v.hint, v.type) for v in outputs.values()]


def test_of_several_dumps_of_one_pickler():
    x = variable("x", "float32", [2])
    h, stream = op.Exp(x), io.BytesIO()
    pickler = pickle.Pickler(stream)
    pickler.dump(h)
    pickler.dump(h * x)
    unpickler = pickle.Unpickler(io.BytesIO(stream.getvalue()))
    assert unpickler.load() is unpickler.load().node.inputs[0]


def test_while_another_thread_pickles():
    deep = [variable("x", "float32", [2])]
    for _ in range(1500):
        deep.append(deep[-1] + 1)
    pickler = pickle.Pickler(io.BytesIO())
    pickler.dump(deep)
    lengths = []
    thread = threading.Thread(target=lambda: lengths.append(len(pickle.dumps(deep[-1]))))
    thread.start()
    thread.join()
    assert lengths


def test_bodies():
    x, n = variable("x", "float32", ["N", 3]), variable("n", "int64", [])
    y = cond(x.sum() > 0, lambda: op.Exp(x), lambda: stop_gradient(x) * 2)
    z, _ = scan(lambda s, row: (s + row * y[0], row), x[0], x)
    t = loop(lambda i, going, v: (None, v * z), n, z)
    gradient = grad((t * t).sum(), [x])
    again = pickled((x, n, y, t, gradient))
    assert build(again[:2], [*again[2:4], *again[4]]) == build([x, n], [y, t, *gradient])
    body = z.node.bodies[0]
    assert [node.op_type for node in pickled(body).nodes] == [node.op_type for node in body.nodes]


def test_a_copy_is_the_value_itself():
    y = op.Exp(variable("x", "float32", [2]))
    for v in (y, y.node, op, op.Exp):
        assert copy.copy(v) is v
        assert copy.deepcopy(v) is v


def test_operators():
    assert pickled(op) is op
    assert pickled(op.Softmax) is op.Softmax
    other = pickled(Operators("ai.onnx.ml"))
    assert repr(other.Scaler) == repr(Operators("ai.onnx.ml").Scaler)


def test_an_operator_that_nothing_declares():
    schema = defs.OpSchema("Mine", "test.pickling", 1, inputs=[defs.OpSchema.FormalParameter("X", "T")],
                           outputs=[defs.OpSchema.FormalParameter("Y", "T")],
                           type_constraints=[("T", ["tensor(float)"], "")])
    defs.register_schema(schema)
    held = pickle.dumps(Operators("test.pickling").Mine(variable("x", "float32", [2])))
    assert pickle.loads(held).node.domain == "test.pickling"
    defs.deregister_schema("Mine", 1, "test.pickling")
    held = held.replace(b"Mine", b"Your")
    with pytest.raises(GraphError, match=r"version 1 of the operator test.pickling.Your, which is not known here"):
        pickle.loads(held)
