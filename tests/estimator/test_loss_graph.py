"""Losses that are written into graphs, and found in them."""

import json

import numpy as np
import onnx
import pytest
from models import data, mlp, two_in_two_out

from ortpartial import NegLogLearningLoss, SoftmaxCrossEntropyLearningLoss, add_loss_output, build, op, variable
from ortpartial.estimator.loss_graph import find_loss
from ortpartial.exceptions import ModelError, ModelWarning, SettingError
from ortpartial.learning import resolve_loss
from ortpartial.model import load
from ortpartial.runtime import Session
from ortpartial.training import LossOutput


def run(model, feeds):
    session = Session(model)
    return session.run({n: a for n, a in feeds.items() if n in session.inputs})


@pytest.mark.parametrize("weighted", [True, False])
def test_the_output_is_the_mean(weighted):
    X, y, w = data(7)
    model = add_loss_output(mlp(), weighted=weighted)
    onnx.checker.check_model(model, full_check=True)
    outputs = run(model, {"x": X, "y_target": y, "sample_weight": w})
    w = w if weighted else np.ones(7)
    assert outputs["loss"].shape == ()
    np.testing.assert_allclose(outputs["loss"], (w[:, None] * (outputs["y"] - y) ** 2).sum() / w.sum(), rtol=1e-5)


def test_several_outputs_have_a_loss_each():
    losses = {"price": "square_error", "kind": "softmax_cross_entropy"}
    model = add_loss_output(two_in_two_out(), losses, weighted=False, loss_output_name="cost")
    assert [i.name for i in model.graph.input] == ["a", "b", "c", "price_target", "kind_target"]
    written, targets, weights = find_loss(load(model), "cost")
    assert list(written) == ["price", "kind"]
    assert targets == {"price_target": "price", "kind_target": "kind"}
    assert weights is None


def test_an_old_model_is_upgraded():
    x = variable("x", "float32", ["N", 2])
    old = build([x], {"y": op.Relu(x)})
    old.opset_import[0].version = 15
    model = add_loss_output(old)
    assert [o.version for o in model.opset_import] == [21]
    assert len(old.graph.output) == 1


@pytest.mark.parametrize(
    "loss",
    ["square_error", "huber", NegLogLearningLoss(pos_weight=(1, 3.5)),
     SoftmaxCrossEntropyLearningLoss(class_weight={0: 0.25}, label_smoothing=0.1)])
def test_a_loss_of_the_library_is_recognized(loss):
    model = add_loss_output(mlp(outputs=2), loss)
    losses, targets, weights = find_loss(load(model), "loss")
    assert losses["y"] == resolve_loss(loss)
    assert (targets, weights) == ({"y_target": "y"}, "sample_weight")


NOTES = {"call": {"losses": {"y": "__import__('os')"}}, "expression": {"losses": {"y": "1 + 1"}},
         "nesting": {"losses": {"y": "(" * 9999}}, "setting": {"losses": {"y": "HuberLearningLoss(delta=-1)"}},
         "targets": {"targets": {}}, "digest": {"digest": 0}}


def change(model, how):
    """The model after somebody has changed it."""
    if how == "node":
        next(n for n in model.graph.node if n.op_type == "Pow").op_type = "Mul"
    elif how == "foreign note":
        model.metadata_props[0].value = "7"
    elif how in NOTES:
        model.metadata_props[0].value = json.dumps({**json.loads(model.metadata_props[0].value), **NOTES[how]})
    elif how == "scaled":
        model.graph.node.add(op_type="Add", input=["loss", "loss"], output=["twice"])
        model.graph.output.append(model.graph.output[-1])
        model.graph.output[-1].name = "twice"
    return model


@pytest.mark.parametrize(("how", "name"), [
    ("node", "loss"), ("scaled", "twice"), ("foreign note", "loss"), *((how, "loss") for how in NOTES)])
def test_a_loss_that_was_changed_is_taken_as_it_is(how, name):
    model = load(change(add_loss_output(mlp(), "square_error"), how))
    losses, _, _ = find_loss(model, name)
    assert isinstance(losses[name], LossOutput)


def test_roles_of_inputs_and_outputs():
    x, t, w, c = (variable(n, "float32", ["N"]) for n in ("x", "t", "row_w", "c"))
    cost = op.Abs(x - t) * w
    model = load(build([x, t, w, c], {"y": x * 2, "cost": cost, "far": x + c,
                                      "loss": op.ReduceSum(cost, keepdims=0) / op.ReduceSum(w, keepdims=0)}))
    losses, _, weights = find_loss(model, "loss", "t", "row_w")
    assert losses["loss"] == LossOutput(("t",), "row_w", ("y",))
    assert weights == "row_w"
    assert find_loss(model, "loss")[0]["loss"] == LossOutput((), None, ("y", "cost")), "an output depends on them"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"loss_output_name": "y"}, SettingError, "The model has a tensor 'y'; give the loss another name by "),
        ({"loss": SoftmaxCrossEntropyLearningLoss(class_weight="balanced")}, SettingError,
         r"class_weight='balanced' takes the weights of classes from all labels, which a graph does not have"),
        ({"loss": {"z": "huber"}}, SettingError, "learning_loss names 'z', which is no output of the model: 'y'"),
    ],
)
def test_what_a_graph_cannot_hold(arguments, error, message):
    with pytest.raises(error, match=message):
        add_loss_output(mlp(outputs=2), **arguments)


def test_an_output_of_unknown_rank():
    model = mlp()
    model.graph.node.append(onnx.helper.make_node("Reshape", ["y", "s"], ["z"]))
    model.graph.input.append(onnx.helper.make_tensor_value_info("s", onnx.TensorProto.INT64, ["R"]))
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    with pytest.raises(ModelError, match="The rank of the output 'z' is not known, so that its target has none"):
        add_loss_output(model)


def test_probabilities():
    x = variable("x", "float32", ["N", 3])
    with pytest.warns(ModelWarning, match="ends in Softmax") as warned:
        add_loss_output(build([x], {"y": op.Softmax(x, axis=1)}), "softmax_cross_entropy")
    assert warned[0].filename == __file__
