"""Translation of the errors of onnxruntime."""

import numpy as np
import pytest

from ortpartial.exceptions import DataError, ModelError
from ortpartial.graph.build import build
from ortpartial.graph.ops import op, variable
from ortpartial.runtime.session import Session


def doubled():
    x = variable("x", "float32", ["N"])
    return build([x], {"y": 2 * x})


def test_load_error_says_why():
    with pytest.raises(ModelError, match=r"^onnxruntime \S+ does not load the graph: Failed to load model because "
                                         r"protobuf parsing failed\.$"):
        Session(b"no model")
    model = doubled()
    model.graph.node[0].op_type = "Nonsense"
    with pytest.raises(ModelError, match="No Op registered for Nonsense") as e:
        Session(model)
    assert "onnxruntime_src" not in str(e.value)
    assert "ONNXRuntimeError" not in str(e.value)
    model = doubled()
    model.opset_import[0].version = 99
    with pytest.raises(ModelError, match=r"the model has opset 99, and the newest that it knows is \d+\.$"):
        Session(model.SerializeToString())
    assert Session(model).outputs == Session(doubled()).outputs  # Unlike bytes, a model is converted.


def test_run_error_names_the_node():
    x, i = variable("x", "float32", [3]), variable("i", "int64", ["N"])
    session = Session(build([x, i], {"y": op.Gather(x, i)}))
    with pytest.raises(DataError, match=r"Gather node 'Gather_node_0': indices element out of data bounds, idx=7"):
        session.run({"x": np.ones(3, np.float32), "i": np.array([7])})
