"""Display of an optimizer: as the call that makes it, and as a table."""

import numpy as np
import onnx
from models import data, mlp

from ortpartial import ElasticLearningPenalty, LearningRateAdam, OrtGradientForwardBackwardOptimizer, load

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


def test_a_table():
    X, y, _ = data()
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), max_iter=2, random_state=np.random.default_rng(0))
    assert "<tr><th>n_iter_</th><td>0</td></tr>" in optimizer._repr_html_()
    html = optimizer.fit(X, y)._repr_html_()
    assert html.startswith("<details open><summary>OrtGradientForwardBackwardOptimizer</summary><table")
    assert "<tr><th>model</th><td>&lt;Model x float32[Nx4] -&gt; y" in html
    assert "<tr><th>max_iter</th><td>2</td></tr>" in html
    assert f"<tr><th>train_losses_[-1]</th><td>{optimizer.train_losses_[-1]:.4g}</td></tr>" in html
