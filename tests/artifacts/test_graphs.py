"""Roles of the tensors of a training model, and its gradient graph in standard operators."""

import numpy as np
import onnx
import pytest
from onnx import helper
from training_artifacts import STORED, TRAININGS, make_batches

from ortpartial.artifacts import lower_training_model, read_checkpoint
from ortpartial.artifacts.graphs import read_eval_graph, read_training_graph
from ortpartial.exceptions import ModelError
from ortpartial.runtime import Session


def load_stored(name, kind="training"):
    return onnx.load(STORED / name / f"{kind}_model.onnx")


@pytest.mark.parametrize("name", TRAININGS)
def test_roles_are_those_of_the_checkpoint(name):
    graph, content = read_training_graph(load_stored(name)), read_checkpoint(STORED / name / "checkpoint")
    assert set(graph.gradients) == set(content.trainable)
    assert set(graph.statistics) == set(content.frozen)
    assert set(graph.parameters) == {*content.trainable, *content.frozen}
    assert len(graph.inputs) == len(make_batches(name)[0])
    assert len(graph.outputs) == 1


def test_lowered_graphs_run_on_any_runtime():
    lowered, content = lower_training_model(load_stored("cnn")), read_checkpoint(STORED / "cnn" / "checkpoint")
    assert {node.domain for node in lowered.graph.node} == {""}
    assert {o.domain for o in lowered.opset_import} == {""}
    x, y = make_batches("cnn")[0]
    outputs = Session(lowered).run({"input_0": x, "labels": y, **content.trainable})
    assert [n.removesuffix("_grad") for n in list(outputs)[1:]] == list(content.trainable)
    # A small step against the gradient makes the loss smaller by its square.
    moved = {n: a - 1e-3 * outputs[f"{n}_grad"] for n, a in content.trainable.items()}
    loss = next(iter(outputs))
    after = Session(lowered).run({"input_0": x, "labels": y, **moved})[loss]
    square = sum(float((outputs[f"{n}_grad"] ** 2).sum()) for n in moved)
    assert float(outputs[loss] - after) == pytest.approx(1e-3 * square, rel=0.05)


def test_eval_models_are_valid():
    model = read_eval_graph(load_stored("mobilenet", "eval"))
    onnx.checker.check_model(model, full_check=True)


def change(name, edit):
    model = load_stored(name)
    edit(model.graph)
    return model


def add_accumulator(*inputs):
    def edit(graph):
        graph.node.append(helper.make_node("InPlaceAccumulatorV2", inputs, ["out"], name="acc", domain="com.microsoft"))

    return edit


@pytest.mark.parametrize(
    ("model", "parameters", "message"),
    [
        (load_stored("mlp", "eval"), None, "accumulates no gradients: it is no training_model.onnx"),
        (change("mlp", add_accumulator("a", "b")), None, r"'acc' \(InPlaceAccumulatorV2\) has not the inputs"),
        (change("mlp", add_accumulator("a", "scores_grad", "c")), None, "a gradient of 'scores', which is no input"),
        (load_stored("mlp"), ["0.weight"], "the parameter '0.bias', and the checkpoint does not"),
    ],
)
def test_other_models_are_refused(model, parameters, message):
    with pytest.raises(ModelError, match=message):
        read_training_graph(model, parameters)


def test_the_model_of_the_user_is_not_written_to():
    model = load_stored("mobilenet")
    before = model.SerializeToString()
    read_training_graph(model)
    assert model.SerializeToString() == before
    assert np.frombuffer(before, np.uint8).size
