"""Display of an optimizer: as the call that makes it, and as a card."""

from xml.etree import ElementTree

import onnx
from models import data, mlp

from ortpartial import (
    ElasticLearningPenalty,
    LearningRateAdam,
    OrtGradientForwardBackwardOptimizer,
    build,
    constant,
    load,
    variable,
)

MODEL = "<Model x float32[Nx4] -> y float32[Nx1]; nodes: 5, initializers: 4 (49 numbers)>"


def test_only_what_was_set():
    assert repr(OrtGradientForwardBackwardOptimizer(mlp())) == f"OrtGradientForwardBackwardOptimizer({MODEL})"
    settings = {"learning_rate": LearningRateAdam(0.01, schedule="step"), "learning_loss": "huber", "max_iter": 100,
                "learning_penalty": ElasticLearningPenalty(l2=0.5), "batch_size": 5, "callbacks": [print]}
    text = repr(OrtGradientForwardBackwardOptimizer(load(mlp()), ["W1", "b1"], **settings))
    assert text == (f"OrtGradientForwardBackwardOptimizer({MODEL}, ['W1', 'b1'], learning_loss='huber', "
                    f"learning_rate=LearningRateAdam(eta0=0.01, schedule=StepSchedule()), "
                    f"learning_penalty=ElasticLearningPenalty(l2=0.5), batch_size=5, callbacks=(print,))")


def test_what_is_long_is_cut():
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), ["W1", "b1", "W2", "b2"],
                                                    learning_loss=lambda y, t: abs(y - t))
    optimizer.set_params(max_iter=3, callbacks=[print] * 9)
    assert repr(optimizer) == (f"OrtGradientForwardBackwardOptimizer({MODEL}, ['W1', 'b1', 'W2', 'b2'], "
                               f"learning_loss=<lambda>, max_iter=3, callbacks=(print, print, print, print, ...))")


def test_a_path_is_shown(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(mlp(), path)
    assert repr(OrtGradientForwardBackwardOptimizer(path)) == f"OrtGradientForwardBackwardOptimizer({str(path)!r})"


def test_a_card():
    X, y, _ = data()
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), ["W2", "b2"], max_iter=2, engine="step")
    html = optimizer._repr_html_()
    assert "<tr><th>n_iter_</th><td>0</td></tr>" in html
    assert "<svg" not in html
    html = optimizer.fit(X, y, X_val=X, y_val=y)._repr_html_()
    assert html.startswith("<details open><summary><b>OrtGradientForwardBackwardOptimizer</b></summary><table")
    assert "<tr><th>model</th><td>&lt;Model x float32[Nx4] -&gt; y" in html
    assert "<tr><th>max_iter</th><td>2</td></tr>" in html
    assert "<tr><th>engine_</th><td>step: asked for</td></tr>" in html
    assert f"<tr><th>train_losses_[-1]</th><td>{optimizer.train_losses_[-1]:.4g}</td></tr>" in html
    assert f"<tr><th>validation_losses_[-1]</th><td>{optimizer.validation_losses_[-1]:.4g}</td></tr>" in html
    assert html.count("<polyline") == 2
    assert "<summary>weights: 9 of 49 numbers are trained</summary>" in html
    assert "not among those to train" in html
    ElementTree.fromstring(html.replace(" open>", ">"))


def test_names_are_escaped():
    x = variable("x", "float32", ["N", 1])
    html = OrtGradientForwardBackwardOptimizer(build([x], {"y": x @ constant([[1.0]], hint="<script>")}))._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html
