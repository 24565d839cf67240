"""Labels and weights in a training that a model stores: as in `fit`, and labels out of range refused as there."""

import numpy as np
import onnx
import pytest
from models import assert_close, linear
from onnx.parser import parse_model

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial import TrainingSession
from ortpartial.exceptions import DataError, SettingError
from ortpartial.graph.build import build
from ortpartial.graph.ops import constant, op, variable
from ortpartial.learning.losses import SoftmaxCrossEntropyLearningLoss as Loss

styles = pytest.mark.parametrize("style", ["standard", "lowered"])


def tagger(tokens=4):
    x = variable("x", "int64", ["N", tokens])
    table, w = (constant(np.random.default_rng(i).normal(size=s).astype(np.float32), hint=n)
                for i, (n, s) in enumerate((("table", (7, 3)), ("w", (3, 5)))))
    return build([x], {"scores": op.Tanh(op.Gather(table, x)) @ w})


def example(rng, tokens=4):
    labels = rng.integers(0, 5, (6, tokens))
    labels[rng.uniform(size=labels.shape) < 0.5] = -100
    return rng.integers(0, 7, (6, tokens)), labels, rng.uniform(size=labels.shape).astype(np.float32)


@styles
@pytest.mark.parametrize("weighted", [False, True, "elements"])
@pytest.mark.parametrize("tokens", [4, "T"])
@pytest.mark.parametrize("settings", [{}, {"label_smoothing": 0.1, "class_weight": [1, 2, 0, 1, 0.5]}], ids=str)
def test_a_session_takes_the_steps_of_fit(rng, style, weighted, tokens, settings, tmp_path):
    o = Optimizer(tagger(tokens), learning_loss=Loss(axis=-1, **settings), learning_rate=0.5)
    onnx.save(o.get_training_onnx(style, weighted=weighted), tmp_path / "training.onnx")
    session = TrainingSession(tmp_path / "training.onnx")
    for k in range(4):
        X, labels, w = example(rng)
        if k == 2:
            labels[:] = -100
        w = {False: None, True: w[:, 0], "elements": w}[weighted]
        o.partial_fit(X, labels, w)
        name = {False: None, True: "sample_weight", "elements": "scores_weight"}[weighted]
        loss = session.step({"x": X, "scores_target": labels, **({} if w is None else {name: w})})["loss"]
        np.testing.assert_allclose(loss, o.train_losses_[-1], rtol=1e-6)
        assert_close({n: session.state[n] for n in o.trained_coef_}, o.trained_coef_, 1e-6)


@styles
def test_labels_out_of_range_are_refused(rng, style):
    o = Optimizer(tagger(), learning_loss=Loss(axis=-1))
    session = TrainingSession(o.get_training_onnx(style))
    X, labels, _ = example(rng)
    before = session.state
    for label, found in ((5, "0 to 5"), (-1, "-1 to 4"), (2**40, f"0 to {2**40}")):
        wrong = np.arange(24).reshape(6, 4) % 5
        wrong[2, 1], wrong[0, 0] = label, 0
        message = (f"Input 'scores_target' has labels from {found}, where 0 to 4 were expected by "
                   r"training_info\[0\], or -100 for what does not count\.")
        for s in (session, TrainingSession(session.training_model())):
            with pytest.raises(DataError, match=message):
                s.step({"x": X, "scores_target": wrong})
    with pytest.raises(DataError, match=r"Input 'x' has indices from 7 to 7, where -7 to 6 were expected by node"):
        session.step({"x": np.full((6, 4), 7), "scores_target": labels})
    assert all((a == before[n]).all() for n, a in session.state.items()), "a step that is refused has no effect"


def test_labels_of_the_operator_are_refused():
    """In a training of another library, whose loss is the operator of the standard."""
    model = parse_model("""<ir_version: 8, opset_import: ["": 21, "ai.onnx.preview.training": 1]>
        f (float[N, 2] x) => (float[N, 3] y) <float[2, 3] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }""")
    step = parse_model("""<ir_version: 8, opset_import: ["": 21, "ai.onnx.preview.training": 1]>
        step (float[N, 3] y, float[2, 3] w, float[N, 2] x, int64[N] t) => (float loss, float[2, 3] w_new) {
            loss = SoftmaxCrossEntropyLoss <ignore_index = -1> (y, t)
            g = ai.onnx.preview.training.Gradient <xs = ["w"], zs = ["x", "t"], y = "loss"> (w, x, t)
            w_new = Sub(w, g) }""").graph
    del step.input[:3]
    info = model.training_info.add()
    info.algorithm.CopyFrom(step)
    info.update_binding.add(key="w", value="w_new")
    session = TrainingSession(model)
    x = np.ones((2, 2), np.float32)
    assert np.isfinite(session.step({"x": x, "t": [2, -1]})["loss"])
    with pytest.raises(DataError, match=r"Input 't' has labels from 3 to 3, where 0 to 2 were expected by node"):
        session.step({"x": x, "t": [3, -1]})


def test_other_targets_have_no_range():
    model = Optimizer(linear()).get_training_onnx()
    assert not [p for i in model.training_info[0].algorithm.input for p in i.metadata_props]
    assert np.isfinite(TrainingSession(model).step({"x": np.ones((2, 4)), "y_target": [[-1], [7]]})["loss"])


def test_errors():
    o = Optimizer(tagger(), learning_loss=Loss(axis=-1, class_weight="balanced"))
    with pytest.raises(SettingError, match="class_weight='balanced' takes the weights of classes from the labels that"):
        o.get_training_onnx()
    with pytest.raises(SettingError, match="weighted is 'tokens'; expected False, True or 'elements'"):
        Optimizer(tagger(), learning_loss=Loss(axis=-1)).get_training_onnx(weighted="tokens")
