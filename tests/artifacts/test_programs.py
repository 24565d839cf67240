"""Steps of a module as expressions: inputs and results of each kind, and buffers in turn where some state stays."""

import numpy as np
import pytest
from onnx.parser import parse_model

from ortpartial.artifacts.checkpoint import Checkpoint
from ortpartial.artifacts.graphs import read_training_graph
from ortpartial.artifacts.optimizers import SGD
from ortpartial.artifacts.programs import EVALUATION, RATE, STEP, UPDATE, ArtifactSource, Training, compose_update
from ortpartial.artifacts.state import CheckpointState
from ortpartial.exceptions import DataError
from ortpartial.execution import StepEngine
from ortpartial.graph import variable
from ortpartial.runtime import CPU

#: The loss is Σ x w, so that the gradient of w is x.
TRAINING = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    training (float[3] x, float[3] w, float[3] buffer, bool[1] reset) => (float loss, bool[1] done)
    {
        y = Mul (x, w)
        loss = ReduceSum <keepdims = 0> (y)
        w_grad = Identity (x)
        done = com.microsoft.InPlaceAccumulatorV2 (buffer, w_grad, reset)
    }"""
EVALUATING = """<ir_version: 8, opset_import: ["": 17]>
    evaluation (float[3] x, float[3] w) => (float[3] y) { y = Mul (x, w) }"""
X = np.float32([1, 2, 3])
ALONE, MORE = Training(updates=False, accumulates=False), Training(updates=False, accumulates=True)


@pytest.fixture
def runner():
    graph = read_training_graph(parse_model(TRAINING), ["w"])
    state = CheckpointState(Checkpoint({"w": np.ones(3, np.float32)}))
    state.open(["w"])
    runner = StepEngine(ArtifactSource(graph, parse_model(EVALUATING), SGD(), state, CPU))
    state.hold(runner)
    runner.set(RATE, np.array(0.5))
    return runner


def read(runner):
    return runner.get("w").tolist(), runner.get("w//grad").tolist()


def test_every_kind_of_step_changes_its_own_state_in_any_order(runner):
    """Parameters stay where gradients are computed, gradients where the optimizer steps, and all in an evaluation."""
    assert runner.step({"x": X}, ALONE)["loss"] == 6
    assert read(runner) == ([1, 1, 1], [1, 2, 3])
    runner.step({"x": X}, MORE)
    assert read(runner) == ([1, 1, 1], [2, 4, 6])
    runner.step({}, UPDATE)
    assert read(runner) == ([0, -1, -2], [2, 4, 6])
    assert runner.step({"x": X}, EVALUATION)["y"].tolist() == [0, -2, -6]
    assert read(runner) == ([0, -1, -2], [2, 4, 6])
    runner.step({"x": X}, Training(updates=True, accumulates=False))
    assert read(runner) == ([-0.5, -2, -3.5], [1, 2, 3])
    runner.step({}, UPDATE)
    assert read(runner) == ([-1, -3, -5], [1, 2, 3])
    runner.step({"x": X}, Training(updates=True, accumulates=True))
    assert read(runner) == ([-2, -5, -8], [2, 4, 6])


@pytest.mark.parametrize("kind", [ALONE, MORE, Training(updates=True, accumulates=True)])
def test_a_step_that_is_refused_leaves_the_state(runner, kind):
    runner.step({"x": X}, ALONE)

    def refuse(outputs):
        raise ArithmeticError(outputs["loss"].item())

    before = read(runner)
    with pytest.raises(ArithmeticError, match="12"):
        runner.step({"x": 2 * X}, kind, refuse)
    assert read(runner) == before


def test_shapes_that_do_not_fit_are_listed():
    model = parse_model(TRAINING.replace("float[3] x", "float[N] x"))
    state = CheckpointState(Checkpoint({"w": np.ones(3, np.float32)}))
    state.open(["w"])
    source = ArtifactSource(read_training_graph(model, ["w"]), None, None, state, CPU)
    with pytest.raises(DataError, match=r"The shapes of the inputs do not fit together: x \(4,\)\. "):
        StepEngine(source).step({"x": np.ones(4, np.float32)}, ALONE)


def test_an_update_as_values():
    w, g = variable("w", "float32", [3]), variable("g", "float32", [3])
    inputs, written = compose_update(SGD(), {"w": w}, {"w": g})
    assert (set(inputs), set(written)) == ({RATE, STEP}, {"w"})
