"""Words: the same for the same thing at every door, by a page; words of other libraries are accepted or hinted."""

import inspect
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import ortpartial
from ortpartial import (
    OrtGradientForwardBackwardOptimizer,
    OrtGradientOptimizer,
    adapters,
    add_dora,
    add_lora,
    build,
    callbacks,
    constant,
    kits,
    nn,
    plots,
    variable,
)
from ortpartial.exceptions import ArgumentError
from ortpartial.model import read_adapter

PAGE = Path(__file__).parents[2] / "docs/reference/words.md"
#: Where a word of other libraries is a parameter: that is said on the page, or it means something else there.
EXCEPTIONS = {
    ("Module.fit", "epochs"), ("Module.set_optimizer", "rate"), ("Optimizer", "rate"), ("TrainingKit.train", "seed"),
    ("run_kit", "seed"), ("TrainingSession.initialize", "seed"), ("Module.from_onnx", "trainable"),
    ("OnnxModule", "trainable"),
    ("find_learning_rate", "optimizer"),  # an object that trains
    # scikit-learn's
    ("BaseOnnxEstimator", "learning_rate_init"), ("OnnxClassifier", "learning_rate_init"),
    ("BaseOnnxEstimator.set_params", "params"),
    ("OrtGradientForwardBackwardOptimizer.set_params", "params"), ("Manifest", "weights"),
    ("Optimizer.reduce", "weights"),
}


def read_rows():
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    return [[re.findall(r"`([^`]+)`", cell) for cell in line.split("|")[1:-1]] for line in lines]


ROWS = read_rows()
FOREIGN = {word for _, _, _, accepted, hinted in ROWS for word in [*accepted, *hinted]}


def list_signatures():
    """Every public function, constructor and method once, where it is defined; `artifacts` has onnxruntime's words."""
    seen = {}
    for room in (ortpartial, nn, adapters, callbacks, kits, plots):
        for name in room.__all__:
            value = getattr(room, name, None)
            if inspect.isfunction(value):
                seen.setdefault(value, name)
            elif inspect.isclass(value) and value.__module__.startswith("ortpartial"):
                for kind in value.__mro__:
                    for attribute, method in vars(kind).items():
                        method = getattr(method, "__func__", method)
                        if inspect.isfunction(method) and kind.__module__.startswith("ortpartial"):
                            is_constructor = attribute == "__init__"
                            if is_constructor or not attribute.startswith("_"):
                                seen.setdefault(method, kind.__name__ if is_constructor else
                                                f"{kind.__name__}.{attribute}")
    return [(name, list(inspect.signature(function).parameters)) for function, name in seen.items()]


def test_public_signatures_have_our_words():
    signatures = list_signatures()
    assert len(signatures) > 200
    wrong = {(n, p) for n, parameters in signatures for p in parameters if p in FOREIGN}
    assert wrong - EXCEPTIONS == set()
    assert EXCEPTIONS - wrong == set(), "an exception that is none any more"


x = variable("x", "float32", ["N", 2])
MODEL = build([x], {"y": x @ constant(np.ones((2, 3), np.float32), hint="fc.weight")})


@pytest.mark.parametrize(("word", "hinted"), [
    (row[1][0], n) for row in ROWS for n in row[4] if row[1][0] != "eta0"])
def test_hints_of_an_optimizer(word, hinted):
    with pytest.raises(ArgumentError, match=rf"has no setting '{hinted}'; did you mean '{word}'\?"):
        OrtGradientForwardBackwardOptimizer(MODEL, **{hinted: 1})


@pytest.mark.parametrize("hinted", next(row[4] for row in ROWS if row[1] == ["eta0"]))
def test_hints_of_step_sizes(hinted):
    with pytest.raises(ArgumentError, match=rf"has no setting '{hinted}'; did you mean 'eta0'\?"):
        ortpartial.LearningRateAdam(**{hinted: 0.1})


def test_epochs_are_accepted():
    assert OrtGradientForwardBackwardOptimizer(MODEL, epochs=3).get_params()["max_iter"] == 3
    with pytest.raises(ortpartial.exceptions.SettingError, match="max_iter is given twice, under another name"):
        OrtGradientForwardBackwardOptimizer(MODEL, epochs=3, max_iter=3)
    scalar = build([x], {"loss": ortpartial.op.ReduceMean(x @ constant(np.ones((2, 1), np.float32), hint="w"),
                                                          keepdims=0)})
    assert OrtGradientOptimizer(scalar, epochs=3).max_iter == 3


def test_a_former_name_warns_until_its_removal():
    with pytest.warns(FutureWarning, match=r"'exc' is a former name .* goes in version 0\.3; its name is raise_on_"):
        optimizer = OrtGradientForwardBackwardOptimizer(MODEL, exc=False)
    assert optimizer.raise_on_divergence is False
    assert "exc" not in optimizer.get_params()
    with pytest.warns(FutureWarning, match="raise_on_divergence"):
        optimizer.set_params(exc=True)
    assert optimizer.raise_on_divergence
    with pytest.warns(FutureWarning, match="raise_on_divergence"):
        optimizer.exc = False
    with pytest.warns(FutureWarning, match="raise_on_divergence"):
        assert optimizer.exc is optimizer.raise_on_divergence is False
    with pytest.warns(FutureWarning), pytest.raises(ortpartial.exceptions.SettingError, match="given twice"):
        OrtGradientForwardBackwardOptimizer(MODEL, exc=False, raise_on_divergence=False)


@pytest.mark.parametrize("add", [add_lora, add_dora])
def test_words_of_adapters_are_accepted(add):
    adapter = read_adapter(add(MODEL, target_modules="fc", r=2, lora_alpha=4, lora_dropout=0.5))
    assert (adapter.rank, adapter.alpha, adapter.dropout, len(adapter.targets)) == (2, 4, 0.5, 1)
    for wrong in ({"r": 2, "rank": 2}, {"target_modules": "fc"}):
        with pytest.raises(ArgumentError, match=r"which .* is another word for; give one of them"):
            add(MODEL, "fc", **wrong)
    with pytest.raises(ArgumentError, match=r"takes no 'ranks'; did you mean 'rank'\?"):
        add(MODEL, "fc", ranks=2)


@pytest.mark.parametrize(("word", "advice"), [
    ("max_iter", "did you mean 'epochs'"),
    ("exc", "its name is raise_on_divergence"), ("seed", "compile takes random_state"),
    ("eta0", "the step size stands"), ("random_state", "compile takes random_state")])
def test_words_of_a_fit_of_a_module(word, advice):
    module = nn.Linear(2, 1).set_optimizer("sgd").compile(nn.placeholder(["N", 2]))
    with pytest.raises(ArgumentError, match=f"fit takes no '{word}'; {advice}"):
        module.fit(np.ones((4, 2), np.float32), np.ones((4, 1), np.float32), **{word: 1})


@pytest.mark.parametrize("kind", ["OnnxRegressor", "OnnxClassifier"])
def test_epochs_are_accepted_by_estimators(kind):
    pytest.importorskip("sklearn", reason="an optional part")
    make = getattr(ortpartial, kind)
    assert make(epochs=3).get_params()["max_iter"] == 3
    assert "epochs" not in make._get_param_names()
    with pytest.raises(ArgumentError, match="has no setting 'lr'; did you mean 'learning_rate'"):
        make(lr=3)
    with pytest.raises(ArgumentError, match=r"fit takes no 'epochs'; .* as in set_params\(max_iter=...\)"):
        make().fit(np.eye(2), [0, 1], epochs=3)


def test_save_writes_the_same_at_every_door(tmp_path):
    """A file that any runtime runs: with `with_training` it holds the training, too, whatever the default."""
    X = np.float32([[1, 2], [3, 4]])
    optimizer = OrtGradientForwardBackwardOptimizer(MODEL, max_iter=1, learning_rate=1e-3).fit(X, X @ np.ones((2, 3)))
    module = nn.Linear(2, 3).set_optimizer("adam").compile(nn.placeholder(["N", 2]))
    module.fit(X, X @ np.ones((2, 3)), epochs=1)
    session = ortpartial.TrainingSession(optimizer.get_training_onnx())
    for door, default in ((optimizer, False), (module, True), (session, True)):
        for settings in ({}, {"with_training": True}, {"with_training": False}):
            door.save(path := tmp_path / "m.onnx", **settings)
            holds_training = len(onnx.load(path).training_info) > 0
            assert holds_training == settings.get("with_training", default)
            runtime = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            expected = (optimizer if door is session else door).predict(X)
            np.testing.assert_allclose(runtime.run(None, {runtime.get_inputs()[0].name: X})[0], expected, rtol=1e-6)
        with pytest.raises(ortpartial.exceptions.SettingError, match=r"with_training is True or False, not 1\.5"):
            door.save(path, with_training=1.5)
    with pytest.raises(ortpartial.exceptions.SettingError, match="state stands in the training of a file"):
        module.save(path, {"epoch": 1}, with_training=False)
    optimizer.save(path, with_training=True)
    again = OrtGradientForwardBackwardOptimizer.from_training_info(path)
    np.testing.assert_array_equal(again.get_state()[0], optimizer.get_state()[0])
