"""The check of rewrites: silent on trainings of every kind, and it names a rewrite that computes something else."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from models import data, images, mlp, net, parameter, two_in_two_out

from ortpartial import (
    ElasticLearningPenalty,
    OnnxRegressor,
    OrtGradientForwardBackward,
    OrtGradientOptimizer,
    add_loss_output,
    build,
    op,
    variable,
)
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.estimator import spec_door
from ortpartial.exceptions import RewriteError
from ortpartial.native import compile_library, find_compiler
from ortpartial.native.compiler import FLAGS
from ortpartial.rewrites import peephole, select_rewrites, simplify
from ortpartial.runtime import has_training
from ortpartial.training import GraphFunction, SpecSource

X, Y, W = data(32)
A, B = images(8)


@pytest.fixture(autouse=True)
def _compile_fast(monkeypatch):
    flags = [flag if flag != "-O3" else "-O0" for flag in FLAGS] + ["-DOP_LANES=1"]
    monkeypatch.setattr("ortpartial.native.compile_library", partial(compile_library, flags=flags))


ENGINES = ["step", "epoch", *(["native"] if find_compiler() else []), *(["agent"] if has_training() else [])]


def fit(model, X, y, *weights, **settings):
    return Optimizer(model, **{"batch_size": 8, "max_iter": 1, "random_state": 0, "check": True, **settings}).fit(
        X, y, *weights)


def turned():
    """Images that are turned round, whose Transpose is of no form that is faster."""
    x = variable("x", "float32", ["N", 12, 16, 20])
    h = op.Transpose(x * parameter("s", 12, 16, 20), perm=[0, 3, 2, 1])
    return build([x], {"y": op.Reshape(h, [0, -1]) @ parameter("w", 3840, 2)})


TRAININGS = {
    "mlp": lambda **s: fit(mlp(), X, Y, **s),
    "weighted rows": lambda **s: fit(mlp(), X, Y, W, **s),
    "a smaller last batch": lambda **s: fit(mlp(), X, Y, **{**s, "batch_size": 12}),
    "Adam": lambda **s: fit(mlp(), X, Y, learning_rate="Adam",
                             learning_penalty=ElasticLearningPenalty(l1=0.1, l2=0.1), **s),
    "accumulated and clipped": lambda **s: fit(mlp(), X, Y, accumulate=2, gradient_clipping=0.1, averaging="ema", **s),
    "float64": lambda **s: fit(mlp(dtype="float64"), *(a.astype(np.float64) for a in (X, Y)), **s),
    "classes": lambda **s: fit(mlp(outputs=3), X, np.arange(32) % 3, learning_loss="softmax_cross_entropy", **s),
    "images": lambda **s: fit(net(), A, B, **s),
    "turned images": lambda **s: fit(turned(), np.ones((8, 12, 16, 20), np.float32), np.ones((8, 2), np.float32), **s),
}


@pytest.mark.parametrize(("training", "engine"), [
    *((training, "auto") for training in TRAININGS),
    # onnxruntime-training 1.19.2 is wrong about BatchNormalization, which the agent refuses.
    *((training, engine) for training in ("weighted rows", "images", "turned images") for engine in ENGINES
      if (training, engine) != ("images", "agent"))])
def test_silence(training, engine):
    """The weights are those of a training without a check."""
    trained, plain = (TRAININGS[training](engine=engine, check=check) for check in (True, False))
    assert trained.engine_ == plain.engine_
    for a, b in zip(trained.get_state(), plain.get_state(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("settings", [{"train_mode": True}, {"precision": "float16"}, {"checkpointing": "auto"},
                                      {"train_mode": True, "engine": "step", "learning_rate": "Adam"}],
                         ids=lambda s: "-".join(s))
def test_silence_of_settings(settings):
    fit(net(0.3), A, B, **settings)


def test_batches_of_an_iterable():
    Optimizer(mlp(), max_iter=1, check=True).fit([(X[:8], Y[:8]), (X[8:], Y[8:])])


def test_several_outputs():
    rows = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    Optimizer(two_in_two_out(), learning_loss={"price": "square_error", "kind": "absolute_error"}, check=True,
              max_iter=1).fit({"a": rows, "b": rows}, {"price": rows[:, :1], "kind": rows[:, 1:]})


def test_a_loss_in_the_model():
    OrtGradientOptimizer(add_loss_output(mlp()), max_iter=1, check=True).fit(X, Y)


def wrong(pattern):
    """A rewrite that computes one part in a hundred too much."""

    def rewrite(*args):
        y = pattern(*args)
        return y if y is None else [1.01 * v for v in y] if isinstance(y, list) else 1.01 * y

    rewrite.__name__ = pattern.__name__
    return rewrite


def tall():
    """A product of many rows, and the mean of squares as the loss."""
    x = variable("x", "float32", ["N", 4])
    return build([x], {"y": op.Gemm(x, parameter("w", 1, 4), parameter("b", 1), transB=1)})


ROWS = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)


@pytest.mark.parametrize("engine", ["step", "epoch"])
@pytest.mark.parametrize(("pattern", "op_type"), [("_gemm_by_column", "Gemm"), ("_mean_of_squares", "ReduceMean")])
def test_a_wrong_rewrite_is_named(pattern, op_type, engine, monkeypatch):
    changed = [wrong(p) if p.__name__ == pattern else p for p in peephole._PATTERNS[op_type]]
    monkeypatch.setitem(peephole._PATTERNS, op_type, changed)
    before = Optimizer(tall(), engine=engine)
    with pytest.raises(RewriteError, match=rf"A step by engine '{engine}' is not that of the model as it is written: "
                                           rf"the (loss|gradient by '[wb]') differs by .* Without '{pattern[1:]}' they "
                                           rf"agree\. Report"):
        fit(tall(), ROWS, ROWS[:, :1], engine=engine, batch_size=256)
    fit(tall(), ROWS, ROWS[:, :1], engine=engine, batch_size=256, check=False)
    assert before.get_state()


def test_a_wrong_simplification_is_named(monkeypatch):
    monkeypatch.setattr(simplify, "_fold_constants", wrong(simplify._fold_constants))
    x = variable("x", "float32", ["N", 4])
    scale = op.Sqrt(op.Cast(op.Shape(x)[1:], to=1))
    model = build([x], {"y": (x @ parameter("w", 4, 2)) * scale})
    with pytest.raises(RewriteError, match="Without 'fold_constants' or 'fold_shape' they agree"):
        fit(model, X, np.ones((32, 2), np.float32))


def test_a_wrong_engine_is_named(monkeypatch):
    if find_compiler() is None:
        pytest.skip("there is no C compiler")
    compose = SpecSource.compose

    def change(source, weighting, *, branches=True, **settings):
        step = compose(source, weighting, branches=branches, **settings)
        outputs = {n: v if branches or not n.startswith("W1") else 1.5 * v for n, v in step.outputs.items()}
        return replace(step, outputs=outputs)

    monkeypatch.setattr(SpecSource, "compose", change)
    with pytest.raises(RewriteError, match=r"the gradient by 'W1' .* By engine 'step' they agree"):
        fit(mlp(), X, Y, engine="native")


def test_an_estimator_checks_its_first_step(monkeypatch):
    engines = []
    monkeypatch.setattr(spec_door, "check_rewrites", lambda engine, data: engines.append((engine.name, len(data["X"]))))
    OnnxRegressor(settings={"check": True}, batch_size=8).fit(X, Y[:, 0])
    assert engines == [("epoch", 8)]


def test_selection():
    x = variable("x", "float32", [8, 4])
    y = {"y": op.ReduceMean(x**2, keepdims=0)}

    def operators(left_out):
        with select_rewrites(left_out) as reports:
            outputs = peephole.apply_peepholes(list(y.values()))
        return [outputs[0].node.op_type, *(case for report in reports for case in report.applied)]

    assert operators([]) == ["Div", "mean_of_squares"]
    assert operators(["mean_of_squares"]) == operators("*") == ["ReduceMean"]


def test_a_setting_that_is_no_flag():
    with pytest.raises(ValueError, match="check"):
        partial(Optimizer, mlp())(check="yes")


@pytest.mark.parametrize("engine", ["auto", "step"])
def test_forward_and_backward_apart(engine):
    apart, plain = (OrtGradientForwardBackward(net(), engine=engine, check=check) for check in (True, False))
    for rows in (A, A[:3]):
        np.testing.assert_array_equal(apart.forward(rows)[0], plain.forward(rows)[0])


def test_a_wrong_gradient_of_forward_and_backward(monkeypatch):
    """Not a rewrite is at fault, but the graph that is run."""
    graph = GraphFunction.graph
    monkeypatch.setattr(GraphFunction, "graph", lambda self, *args, **kwargs: graph(
        GraphFunction(self.leaves, {n: 2 * y for n, y in self.outputs.items()}) if self.is_gradient else self,
        *args, **kwargs))
    apart = OrtGradientForwardBackward(mlp(), engine="step", check=True)
    with pytest.raises(RewriteError, match=r"A pass by engine 'step' .* Without any rewrite they differ as well"):
        apart.forward(X)
