"""Translation of the errors of onnxruntime."""

import numpy as np
import onnx
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
    with pytest.raises(DataError, match=r"^A Gather has an index that is not in -3 to 2: 7\.$"):
        session.run({"x": np.ones(3, np.float32), "i": np.array([7])})


def test_run_error_of_a_graph_that_others_have_written():
    """The range is what onnxruntime says, and of the sizes that are not known nothing is."""
    model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["" : 21]>
        g (float[3] x, int64[N] i, int64[N,1] j) => (float[N] y, float[N] z) {
            [n1] y = Gather(x, i) [n2] z = GatherND(x, j) }''')
    session = Session(model)
    feeds = {"x": np.ones(3, np.float32), "i": np.array([0]), "j": np.array([[0]])}
    with pytest.raises(DataError, match=r"^Node 'n1' \(Gather\) has an index that is not in -3 to 2: -4\.$"):
        session.run({**feeds, "i": np.array([-4])})
    with pytest.raises(DataError, match=r"^Node 'n2' \(GatherND\) has an index that is out of range: 8\.$"):
        session.run({**feeds, "j": np.array([[8]])})
