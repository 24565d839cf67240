"""The record of a stored training: an optimizer goes on from it to the bit, and nothing in it is believed."""

import json
import re
from functools import cache

import numpy as np
import onnx
import pytest
from models import data, mlp, two_in_two_out

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import OrtGradientOptimizer, TrainingSession, add_loss_output, build, constant, op, variable
from ortpartial.exceptions import ModelError
from ortpartial.learning import (
    ElasticLearningPenalty,
    GradientClipping,
    LearningRateAdam,
    LearningRateNAdam,
    OneCycleSchedule,
    ReduceOnPlateauSchedule,
    SoftmaxCrossEntropyLearningLoss,
    SoftmaxFocalLearningLoss,
    SquareLearningLoss,
)
from ortpartial.training_info import recognize_training, strip_training_info
from ortpartial.training_info.record import _CLASSES, _KEY, _decode, _encode

X, Y, W = data(24)
LABELS = (Y[:, 0] > 0).astype(np.int64)
ADAM = {"learning_rate": LearningRateAdam(0.01)}


def dropped():
    """A network with a Dropout."""
    x = variable("x", "float32", ["N", 4])
    w1, w2 = constant(np.float32(np.eye(4)), hint="w1"), constant(np.full((4, 1), 0.5, np.float32), hint="w2")
    h, _ = op.Dropout(op.Tanh(x @ w1), constant(np.float32(0.3)), constant(np.array(False)), n_outputs=2)
    return build([x], {"y": h @ w2})


#: What formulas do not know, or do.
SETTINGS = {
    "clipping": {"gradient_clipping": GradientClipping(norm=0.1, per="weight")},
    "accumulation": {**ADAM, "accumulate": 3},
    "averaging": {**ADAM, "averaging": "ema"},
    "factors": {**ADAM, "rate_factors": {"W1": 0.5}, "weights_to_train": ["W1", "b2"]},
    "penalty": {**ADAM, "learning_penalty": ElasticLearningPenalty(l1=1e-3, l2=1e-2, penalize_biases=True)},
    "another setting": {"learning_rate": LearningRateNAdam(0.01, momentum_decay=0.01)},
    "length": {"learning_rate": LearningRateAdam(0.01, schedule=OneCycleSchedule())},
    "plateau": {"learning_rate": LearningRateAdam(0.1, schedule=ReduceOnPlateauSchedule(patience=0, threshold=0.9))},
    "masks": {**ADAM, "train_mode": True},
    "focal loss": {**ADAM, "learning_loss": SoftmaxFocalLearningLoss()},
    "class weights": {**ADAM, "learning_loss": SoftmaxCrossEntropyLearningLoss(class_weight={0: 0.3, 1: 2.0})},
    "float64": {**ADAM, "learning_penalty": ElasticLearningPenalty(l2=0.1)},
}


def state(o):
    return [a.tobytes() for kind in ("weight", "optimizer", "buffer") for a in o.get_state(kind)]


def begin(name):
    """A training of a case, which has begun, and its rows."""
    kind = dropped if name == "masks" else mlp
    sizes = {"outputs": 2} if name in ("focal loss", "class weights") else {}
    sizes |= {"dtype": "float64"} if name == "float64" else {}
    y = LABELS if sizes.get("outputs") else Y
    rows = (X.astype(np.float64), Y.astype(np.float64)) if name == "float64" else (X, y)
    first = Optimizer(kind(**sizes), shuffle=False, batch_size=5, random_state=0, max_iter=2, warm_start=True,
                      callbacks=[lambda o: True], **SETTINGS[name])
    return first.fit(*rows), rows  # It is stopped after one of two epochs.


@pytest.mark.parametrize(("name", "style"), [*((n, "standard") for n in SETTINGS), ("clipping", "lowered"),
                                             ("masks", "lowered")])
def test_a_training_goes_on_to_the_bit(name, style):
    first, rows = begin(name)
    stored = first.get_training_onnx(style)
    again = Optimizer.from_training_info(stored, shuffle=False, batch_size=5)
    if name != "plateau":  # What a schedule remembers of the losses is not stored, but for the step size.
        assert state(again) == state(first)
    assert again.partial_fit(*rows).train_losses_ == first.partial_fit(*rows).train_losses_[-1:]
    assert [a.tobytes() for a in again.get_state()] == [a.tobytes() for a in first.get_state()]
    assert again.learning_loss == first.learning_loss
    assert again.learning_penalty == first.learning_penalty


def test_weights_that_have_joined():
    """Their states began later, from where the optimizer counts."""
    first = Optimizer(mlp(), freeze="W1", shuffle=False, batch_size=5, max_iter=1, warm_start=True, **ADAM).fit(X, Y)
    first.unfreeze("W1").fit(X, Y)
    again = Optimizer.from_training_info(first.get_training_onnx(), shuffle=False, batch_size=5)
    assert first.training.spec.rate_starts
    first.partial_fit(X, Y)
    again.partial_fit(X, Y)
    assert dict(zip(again.weights_to_train, state(again), strict=False)) == dict(
        zip(first.weights_to_train, state(first), strict=False))


def test_a_graph_that_holds_its_loss():
    graph = add_loss_output(mlp(), lambda y, t: abs(y - t) ** 1.5)
    first = OrtGradientOptimizer(graph, shuffle=False, batch_size=5, **ADAM)
    stored = first.partial_fit(X, Y).get_training_onnx()
    again = OrtGradientOptimizer.from_training_info(stored, shuffle=False, batch_size=5)
    assert again.partial_fit(X, Y).train_losses_ == first.partial_fit(X, Y).train_losses_[-1:]
    assert state(again) == state(first)
    partial = Optimizer.from_training_info(stored, shuffle=False, batch_size=5)
    assert partial.get_params()["learning_loss"].name == "loss"
    assert state(partial.partial_fit(X, Y)) == state(first)


def test_losses_of_two_outputs():
    losses = {"price": "square_error", "kind": SoftmaxFocalLearningLoss(gamma=1.5)}
    first = Optimizer(two_in_two_out(), learning_loss=losses)
    assert Optimizer.from_training_info(first.get_training_onnx()).learning_loss == first.learning_loss


def test_what_a_session_has_trained_goes_on(tmp_path):
    first, _ = begin("accumulation")
    session = TrainingSession(first.get_training_onnx())
    for start in (0, 5):
        session.step({"x": X[start : start + 5], "y_target": Y[start : start + 5]})
    session.save(tmp_path / "t.onnx")
    again = Optimizer.from_training_info(tmp_path / "t.onnx", shuffle=False, batch_size=5)
    assert state(again) == state(first.partial_fit(X[:10], Y[:10]))


@pytest.mark.parametrize("kind", _CLASSES.values(), ids=lambda kind: kind.__name__)
def test_every_piece_is_recorded(kind):
    """By its settings, from which an equal one is made."""
    piece = kind(**{"GradientClipping": {"norm": 1.0}}.get(kind.__name__, {}))
    assert _decode(json.loads(json.dumps(_encode(piece)))) == piece


def test_code_of_a_user_is_not_recorded():
    class OwnLoss(SquareLearningLoss):
        pass

    for loss in (OwnLoss(), lambda y, t: abs(y - t)):
        assert not Optimizer(mlp(), learning_loss=loss).get_training_onnx().metadata_props


def test_a_stripped_model_has_no_record():
    model = Optimizer(mlp()).get_training_onnx()
    assert [p.key for p in model.metadata_props] == [_KEY]
    assert not strip_training_info(model).metadata_props


# -- edited and forged


@cache
def write_model():
    """A model that stores a training."""
    return Optimizer(mlp(), **ADAM).get_training_onnx().SerializeToString()


def edit(change):
    """A model whose record is another one, which `change` makes of a dict; and the dict itself is written if it is."""
    model = onnx.ModelProto.FromString(write_model())
    record = json.loads(model.metadata_props[0].value)
    new = change(record)
    model.metadata_props[0].value = new if isinstance(new, str) else json.dumps(record)
    return model


def put(value, *path):
    def change(record):
        for n in path[:-1]:
            record = record[n]
        record[path[-1]] = value
    return change


def test_an_edited_graph_is_recognized_by_its_formulas():
    """The record does not count any more, whatever was edited."""
    model = Optimizer(mlp(), learning_rate=0.1).get_training_onnx()
    algorithm = model.training_info[0].algorithm
    rate = next(t for t in algorithm.initializer if t.name not in ("iteration",) and list(t.dims) == []
                and t.data_type == onnx.TensorProto.FLOAT and np.isclose(onnx.numpy_helper.to_array(t), 0.1))
    rate.CopyFrom(onnx.numpy_helper.from_array(np.float32(0.25), rate.name))
    assert recognize_training(model).settings["learning_rate"].eta0 == 0.25
    model = Optimizer(mlp(), **SETTINGS["clipping"]).get_training_onnx()
    model.training_info[0].algorithm.node[-1].doc_string = "edited"
    with pytest.raises(ModelError, match="The training in the model is none that an optimizer can go on with"):
        recognize_training(model)


@pytest.mark.parametrize(("change", "message"), [
    (lambda r: "", "Expecting value"),
    (lambda r: "[1]", "it has no format"),
    (lambda r: "[" * 100_000, "it is nested too deeply"),
    (lambda r: " " * 2**20 + "{}", "it is 1,048,578 characters long, and 1,048,576 are read"),
    (lambda r: '{"format": 1}', "it lacks 'graphs'"),
    (put(2, "format"), "its format is 2, and this version reads up to 1; install a newer one"),
    (lambda r: '{"format": 1' + "0" * 4000 + "}", "its format is 1000000000, and this"),
    (put("1", "format"), "it has no format"),
    (put("os.system", "settings", "learning_rate", "class"), "'os.system' is no class of this library that a record"),
    (put(["x"], "settings", "learning_rate", "class"), "is no class of this library that a record"),
    (put("FunctionLearningLoss", "settings", "learning_rate", "class"), ""),
    (put("y" * 10**5, "settings", "learning_rate", "class"), "yyy"),
    (put(-1, "settings", "learning_rate", "eta0"), "eta0"),
    (put(10**400, "settings", "learning_rate", "beta1"), ""),
    (put({}, "settings", "learning_rate", "eta0"), "it lacks 'class'"),
    (put(1, "settings", "learning_rate"), ""),
    (put({"class": "array", "dtype": "O", "items": [1]}, "settings", "rate_factors"), "it has an array of 'O'"),
    (put({"class": "array", "dtype": "x", "items": [1]}, "settings", "rate_factors"), "it has an array of 'x'"),
    (put("eval", "settings", "\x1b[2J"), r"it has a setting '\\x1b\[2J'"),
    (put([["W1", "m", "W1_v_"]], "states"), "it lacks 'W1_v_'"),
    (put([["nothing", "m", "W1_m"]], "states"), "it lacks 'nothing'"),
    (put([["W1", "m", "b1_m"]], "states"), r"the state 'm' of 'W1' has the shape \(8,\)"),
    (put(3, "states"), "not iterable"),
    (put("W1_m", "names", "iteration"), "no such numbers"),
    (put({"W1": -1}, "rate_starts"), "no such numbers"),
    (put({"W1": 0.5}, "rate_starts"), "no such numbers"),
    (put(10**400, "average_start"), "no such numbers"),
    (put({"class": "dict", "items": [["z", {"class": "SquareLearningLoss"}]]}, "settings", "learning_loss"),
     "it has a loss of 'z', which is no output"),
], ids=range(28))
def test_forged_records_are_refused_in_a_sentence(change, message):
    with pytest.raises(ModelError) as error:
        recognize_training(edit(change))
    text = str(error.value)
    assert re.match("The metadata 'ortpartial.training' of the model do not describe a training: .*", text), text
    assert re.search(message, text), text
    assert len(text) < 1000
    assert text.isprintable()


@pytest.mark.parametrize("change", [
    put(["W1", "nothing"], "settings", "weights_to_train"), put([1], "settings", "weights_to_train"),
    put("yes", "settings", "train_mode"), put(-1, "settings", "accumulate"), put(1, "settings", "averaging")
    ], ids=range(5))
def test_settings_that_do_not_fit_are_those_of_a_constructor(change):
    with pytest.raises(Exception, match=r"\.$") as error:
        Optimizer.from_training_info(edit(change))
    assert type(error.value).__module__ == "ortpartial.exceptions"
    assert len(str(error.value)) < 1000
