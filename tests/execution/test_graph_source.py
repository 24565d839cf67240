"""The source of graphs that exist: changing and fixed inputs, known shapes, and the number of the batch."""

import numpy as np
import pytest

from ortpartial.exceptions import DataError
from ortpartial.execution.graph_source import GraphPart, GraphSource
from ortpartial.execution.names import StepNames
from ortpartial.graph import build, op, variable
from ortpartial.model import load
from ortpartial.runtime import Session

X, W, F, K = (variable(n, d, s) for n, d, s in (("x", "float32", ["N", 3]), ("w", "float32", [3]),
                                              ("f", "float32", [3]), ("count", "int64", [])))


@pytest.fixture
def source():
    loss = op.ReduceMean(X * W * F, keepdims=0)
    new = W - 0.5 * op.Cast(K, to=1) * F
    model = load(build([X, W, F, K], {"loss": loss, "w_new": new, "count_new": K + 1}), ties="file")
    state = {"w": np.zeros(3, np.float32), "f": np.ones(3, np.float32), "count": np.zeros((), np.int64)}
    part = GraphPart(model, {"w": "w_new", "count": "count_new"})
    return GraphSource((part,), state, StepNames.beside(["x", "w", "f"]), loss="loss", counter="count")


def test_state(source):
    assert list(source.inputs) == ["x"]
    assert list(source.first) == ["w"]
    assert list(source.kept) == ["f"]
    assert source.dtype == np.float32
    assert source.count_trained() == 3
    assert list(source.parts[0].results) == ["loss"]


def test_known_shapes(source):
    assert source.for_rows(5).inputs["x"].shape == (5, 3)
    with pytest.raises(DataError, match=r"The shapes of the inputs do not fit together: x \(5, 4\)"):
        source.for_shapes({"x": (5, 4)})


def test_the_step_reads_the_number_of_the_batch_from_the_runner(source):
    """The count of batches before it is one less."""
    step = source.compose()
    assert list(step.outputs) == ["loss", "w_new_"] or list(step.outputs) == ["loss", "w_new"]
    arrays = {"x": np.ones((2, 3), np.float32), "w": np.zeros(3, np.float32), "f": np.ones(3, np.float32),
              step.names.iteration: np.array(3)}
    session = Session(step.build())
    outputs = session.run({n: arrays[n] for n in session.inputs})
    assert outputs[step.state["w"]].tolist() == [-1, -1, -1]


def test_parts_return_all(source):
    (step,) = source.compose_parts()
    assert "loss" in step.outputs
