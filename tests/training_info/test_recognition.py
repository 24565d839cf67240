"""An optimizer goes on with the training that a model stores, to the bit."""

import re

import numpy as np
import onnx
import pytest
from models import data, linear, mlp, two_in_two_out
from training_models import ALGORITHM, WHOLE, by_hand

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import TrainingSession, op, strip_training_info
from ortpartial.exceptions import ModelError, ModelWarning
from ortpartial.learning import (
    ElasticLearningPenalty,
    HuberLearningLoss,
    LearningRateAdagrad,
    LearningRateAdam,
    LearningRateAdamW,
    LearningRateSGD,
    LearningRateSGDNesterov,
    SquareLearningLoss,
    StepSchedule,
    WarmUpSchedule,
)
from ortpartial.training_info import recognize_training

X, Y, W = data(24)
RATES = [
    LearningRateSGD(0.03, schedule=WarmUpSchedule(StepSchedule(n=9, factor=0.3), n=3)),
    LearningRateAdam(0.01, beta1=0.8),
    LearningRateAdamW(0.01, weight_decay=0.1, no_decay=["b1", "b2"]),
]
STANDARD = [LearningRateSGD(0.03), LearningRateAdagrad(0.1), LearningRateAdam(0.01, beta1=0.8, epsilon_hat=True),
            LearningRateSGDNesterov(0.01, momentum=0.7), LearningRateSGDNesterov(0.01, momentum=0.7, nesterov=False)]


def unrecorded(model):
    """A model as a former version has written it, or another library: without the record of its settings."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    del copy.metadata_props[:]
    return copy


def state(o):
    return [a.tobytes() for kind in ("weight", "optimizer", "buffer") for a in o.get_state(kind)]


def check_continued(first, stored, *args, **settings):
    """Check that an optimizer goes on from a model as the first one does."""
    again = Optimizer.from_training_info(stored, shuffle=False, batch_size=5, **settings)
    assert state(again) == state(first)
    assert again.partial_fit(*args).train_losses_ == first.partial_fit(*args).train_losses_[-1:]
    assert state(again) == state(first)
    return again


def trained(model, *args, **settings):
    return Optimizer(model, shuffle=False, batch_size=5, random_state=0, **settings).partial_fit(*args)


@pytest.mark.parametrize("rate", RATES, ids=lambda rate: type(rate).__name__)
def test_an_export_goes_on(rate, tmp_path):
    """By its record, and by that alone."""
    first = trained(mlp(), X, Y, W, learning_rate=rate, learning_loss=HuberLearningLoss(0.3),
                    learning_penalty=ElasticLearningPenalty(l1=1e-3, l2=1e-2))
    onnx.save(first.get_training_onnx(weighted=True), tmp_path / "t.onnx")
    with pytest.raises(ModelError, match="the update of 'W1' is neither w - rate · gradient nor an optimizer of the s"):
        recognize_training(unrecorded(onnx.load(tmp_path / "t.onnx")))
    again = check_continued(first, tmp_path / "t.onnx", X, Y, W)
    pieces = ("learning_rate", "learning_loss", "learning_penalty", "weights_to_train")
    assert [getattr(again, n) for n in pieces] == [getattr(first, n) for n in pieces]
    assert again.get_trained_onnx() == first.get_trained_onnx()


def test_what_a_session_has_trained_goes_on(tmp_path):
    first = trained(mlp(), X, Y, learning_rate="Adam")
    session = TrainingSession(first.get_training_onnx())
    for rows in (slice(0, 5), slice(5, 10)):
        session.step({"x": X[rows], "y_target": Y[rows]})
    session.save(tmp_path / "t.onnx")
    first.partial_fit(X[:10], Y[:10])
    again = Optimizer.from_training_info(tmp_path / "t.onnx", shuffle=False, batch_size=5)
    assert again.get_state("optimizer")[-1] == 7
    assert state(again) == state(first)


def test_fit_goes_on_and_settings_are_added():
    first = trained(mlp(), X, Y, learning_rate="Adam")
    again = Optimizer.from_training_info(first.get_training_onnx(), shuffle=False, batch_size=5, max_iter=3)
    again.fit(X, Y)
    for _ in range(3):
        first.partial_fit(X, Y)
    assert state(again) == state(first)
    other = Optimizer.from_training_info(first.get_training_onnx(), learning_loss="huber")
    assert (other.learning_loss, other.learning_rate) == (HuberLearningLoss(), LearningRateAdam())
    with pytest.raises(TypeError, match="has no setting 'max_iters'; did you mean 'max_iter'"):
        Optimizer.from_training_info(first.get_training_onnx(), max_iters=3)


def test_several_outputs_and_some_weights():
    losses = {"price": "square_error", "kind": "softmax_cross_entropy"}
    first = Optimizer(two_in_two_out(), learning_loss=losses)
    again = Optimizer.from_training_info(unrecorded(first.get_training_onnx()))
    assert again.learning_loss == first.learning_loss
    first = Optimizer(mlp(), ["W2"])
    assert Optimizer.from_training_info(first.get_training_onnx()).weights_to_train == ["W2"]


# -- what the standard has operators for, and models of others


@pytest.mark.parametrize("rate", STANDARD, ids=lambda rate: type(rate).__name__)
@pytest.mark.parametrize("loss", ["square_error", "absolute_error", "log_loss", "softmax_cross_entropy"])
def test_the_notation_of_the_standard_is_recognized(rate, loss):
    y = (Y > 0).astype(np.int64) if loss in ("log_loss", "softmax_cross_entropy") else Y
    model = mlp(outputs=2 if loss == "softmax_cross_entropy" else 1)
    first = trained(model, X, y.reshape(-1) if "cross" in loss else y, learning_rate=rate, learning_loss=loss)
    again = check_continued(first, unrecorded(first.get_training_onnx()), X, y.reshape(-1) if "cross" in loss else y)
    assert (again.learning_rate, again.learning_loss) == (first.learning_rate, first.learning_loss)


def test_weights_of_rows():
    first = trained(mlp(), X, Y, W, learning_rate=0.1)
    check_continued(first, unrecorded(first.get_training_onnx(weighted=True)), X, Y, W)


def test_a_model_by_hand():
    model, t = by_hand(WHOLE), np.array([1.0, 3.0, -1.0], np.float32)
    x = np.array([0.5, -1.0, 2.0], np.float32)
    again, session = Optimizer.from_training_info(model, batch_size=3, shuffle=False), TrainingSession(model)
    assert (again.learning_rate, again.learning_loss) == (LearningRateSGD(0.5), SquareLearningLoss())
    for _ in range(3):
        session.step({"x": x, "t": t})
        again.partial_fit(x, t)
        np.testing.assert_array_equal(again.trained_coef_["w"], session.state["w"])


CROSS_ENTROPY = """step (int64[N] t) => (float[2,3] w_new, float[2,3] m_new, float[2,3] v_new, int64 k_new, float loss)
    <float rate = {0.01}, int64 one = {1}, int64 k = {0}, float[2,3] m = {0,0,0,0,0,0}, float[2,3] v = {0,0,0,0,0,0}> {
    loss = %s
    g = ai.onnx.preview.training.Gradient <xs = ["w"], zs = ["x", "t"], y = "loss"> (w, x, t)
    k_new = Add(k, one)
    w_new, m_new, v_new = ai.onnx.preview.training.Adam <alpha = 0.9, beta = 0.999, epsilon = 1e-7>
        (rate, k_new, w, g, m, v)
}"""
SCORES = """<ir_version: 8, opset_import: ["": 21, "ai.onnx.preview.training": 1]>
inference (float[N,2] x) => (float[N,3] y) <float[2,3] w = {0.1, 0.2, 0.3, 0.4, 0.5, -0.6}> { y = MatMul(x, w) }"""


@pytest.mark.parametrize("loss", ["SoftmaxCrossEntropyLoss(y, t)", "NegativeLogLikelihoodLoss(p, t)",
                                  "SoftmaxCrossEntropyLoss <reduction = \"mean\"> (y, t)"])
def test_cross_entropy_and_adam_by_hand(loss):
    text = CROSS_ENTROPY % loss
    if "(p," in loss:
        text = text.replace("    loss =", "    p = LogSoftmax <axis = 1> (y)\n    loss =")
    update = [(n, f"{n}_new") for n in ("w", "m", "v", "k")]
    model = by_hand((None, text, [], update), inference=SCORES)
    x, t = X[:9, :2], np.arange(9) % 3
    again, session = Optimizer.from_training_info(model, batch_size=9, shuffle=False), TrainingSession(model)
    assert again.learning_rate == LearningRateAdam(0.01, epsilon=1e-7, epsilon_hat=True)
    for _ in range(3):
        session.step({"x": x, "t": t})
        again.partial_fit(x, t)
    assert again.get_state("optimizer")[-1] == 3
    np.testing.assert_allclose(again.trained_coef_["w"], session.state["w"], rtol=1e-6)


# -- what is not recognized


UPDATE = [("w", "w_new")]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (by_hand((None, ALGORITHM.replace("s = Mul(rate, g)", "s = Abs(g)"), [], UPDATE)),
         "the update of 'w' is neither w - rate · gradient nor an optimizer of the standard"),
        (by_hand((None, ALGORITHM.replace("Mul(rate, g)", "Mul(loss, g)"), [], UPDATE)),
         "the update of 'w' is neither w - rate · gradient nor an optimizer of the standard"),
        (by_hand((None, ALGORITHM.replace("ReduceMean", "ReduceMax"), [], UPDATE)), "its loss is none of the library"),
        (by_hand((None, ALGORITHM.replace("s = Mul(rate, g)", "h = Neg(g)\n s = Mul(rate, h)"), [], UPDATE)),
         "the update of 'w' is neither w - rate · gradient nor an optimizer of the standard"),
        (by_hand((None, ALGORITHM.replace("(w, x, t)", "(rate, x, t)"), [], UPDATE)),
         "it has Gradient nodes of 0 tensors, where one was expected"),
        (by_hand(WHOLE, WHOLE), "it has 2 entries, where one was expected"),
        (by_hand((None, ALGORITHM.replace("loss = ReduceMean", "once = ReduceMean").replace(
            "g = ", "loss = Add(once, once)\n g = "), [], UPDATE)), "it has two losses of 'y'"),
    ],
)
def test_other_trainings_are_refused(model, message):
    with pytest.raises(ModelError, match=f"an optimizer can go on with: {re.escape(message)}.*TrainingSession"):
        Optimizer.from_training_info(model)


def test_a_loss_of_ones_own():
    class OwnLoss(SquareLearningLoss):
        def __call__(self, y, t):
            return op.Abs(y - t) ** 3.0

    model = Optimizer(linear(), learning_loss=OwnLoss()).get_training_onnx()
    with pytest.raises(ModelError, match="its loss is none of the library"):
        recognize_training(model)


@pytest.mark.parametrize(("settings", "message"), [
    ({"learning_loss": "huber"}, "its loss is none of the library that is recognized"),
    ({"learning_penalty": ElasticLearningPenalty(l2=0.1)}, "its loss is none of the library that is recognized"),
    ({"rate_factors": {"b1": 0.5}}, "it updates weights by different optimizers"),
    ({"accumulate": 2}, "the update of 'W1' is neither w - rate · gradient nor an optimizer of the standard"),
], ids=str)
def test_what_is_not_recognized_is_said_in_a_sentence(settings, message):
    first = Optimizer(mlp(), **settings)
    with pytest.raises(ModelError, match=rf"{message}\. TrainingSession goes on with any\."):
        Optimizer.from_training_info(unrecorded(first.get_training_onnx()))


def write_adam(attributes="", t="k_new", g="g", states="mv"):
    """Adam with other attributes, other inputs, or states that change places."""
    text = CROSS_ENTROPY.replace("<alpha = 0.9, beta = 0.999, epsilon = 1e-7>", attributes)
    text = text.replace("(rate, k_new, w, g, m, v)", f"(rate, {t}, w, {g}, m, v)") % "SoftmaxCrossEntropyLoss(y, t)"
    update = [("w", "w_new"), *((n, f"{new}_new") for n, new in zip("mv", states, strict=True)), ("k", "k_new")]
    return by_hand((None, text, [], update), inference=SCORES)


@pytest.mark.parametrize("change", [
    {"attributes": "<norm_coefficient = 0.1>"}, {"attributes": "<norm_coefficient_post = 0.1>"}, {"t": "k"},
    {"t": "one"}, {"g": "m"}, {"states": "vm"}], ids=str)
def test_an_adam_of_others_that_differs_is_refused(change):
    with pytest.raises(ModelError, match="the update of 'w' is neither w - rate · gradient nor an optimizer"):
        recognize_training(write_adam(**change))
    rate = recognize_training(write_adam()).settings["learning_rate"]
    assert rate == LearningRateAdam(0.01, epsilon=1e-6, epsilon_hat=True)


def test_no_training():
    with pytest.raises(ModelError, match="The model has no training_info; to_training_info writes one"):
        Optimizer.from_training_info(linear())


def test_the_constructor_says_that_a_training_is_there():
    model = Optimizer(linear()).get_training_onnx()
    with pytest.warns(ModelWarning, match=r"The model stores a training, which is not read: "
                                          r"OrtGradientForwardBackwardOptimizer\.from_training_info\(model\)") as w:
        Optimizer(model)
    assert [one.filename for one in w] == [__file__]
    stripped = strip_training_info(model)
    Optimizer(stripped)
