"""The graphs of training information: combined, as a plain step, and the model without them."""

import numpy as np
import onnx
import pytest
from models import weights_of
from training_models import WHOLE, by_hand

from ortpartial.exceptions import ModelError
from ortpartial.runtime import Session
from ortpartial.training_info.graphs import (
    build_step,
    combine_graphs,
    lowered_step,
    mutable,
    pairs,
    store_inputs,
    strip_training_info,
)

MODEL = by_hand(WHOLE)


def test_inputs_become_initializers():
    graph = onnx.parser.parse_graph("g (float[1] x, float[2] w) => (float[2] y) { y = Add(x, w) }")
    store_inputs(graph, {"w": np.float32([1, 2])})
    assert [i.name for i in graph.input] == ["x"]
    assert [onnx.numpy_helper.to_array(t).tolist() for t in graph.initializer] == [[1, 2]]


def test_the_model_without_them():
    stripped = strip_training_info(MODEL)
    assert not stripped.training_info
    assert [o.domain for o in stripped.opset_import] == [""]
    assert len(MODEL.training_info) == 1
    assert weights_of(stripped) == weights_of(MODEL)


def test_bindings():
    info = MODEL.training_info[0]
    assert pairs(info.update_binding) == {"w": "w_new"}
    assert list(mutable(MODEL)) == ["w"]


def test_the_combined_graph():
    combined = combine_graphs(MODEL)
    onnx.checker.check_model(combined)
    assert [n.op_type for n in combined.graph.node] == ["Mul", "Sub", "Mul", "ReduceMean", "Gradient", "Mul", "Sub"]
    assert [i.name for i in combined.graph.input] == ["x", "t"]


def test_a_step_reads_what_it_changes():
    assert list(build_step(MODEL).inputs) == ["x", "t", "w"]
    assert build_step(MODEL, 0, {"x": (3,), "t": (3,)}).inputs["x"].shape == (3,)


def test_a_plain_step():
    """w - ½ mean(2 (w x - t) x)."""
    step = lowered_step(MODEL)
    assert {n.domain for n in step.graph.node} == {""}
    x, t = np.float32([1, 2]), np.float32([0, 2])
    outputs = Session(step).run({"x": x, "t": t, "w": np.float32(2)})
    assert outputs["w_new"] == 2 - 0.5 * (2 * (2 * x - t) * x).mean()
    assert {p.key: p.value for p in step.metadata_props} == {"w": "w_new"}
    with pytest.raises(ModelError, match=r"has 1 entries of training_info, and there is no training_info\[1\]"):
        lowered_step(MODEL, 1)
