"""The state of a training is read, overwritten and stored bit for bit."""

import gc
import re

import numpy as np
import onnx
import onnxruntime
import pytest
from models import linear, mlp, weights_of
from trainings import ENGINES, W, X, Y, linear_engine, optimizer

from ortpartial.estimator.state import TrainingState
from ortpartial.exceptions import ConvergenceError, DataError, SettingError
from ortpartial.learning.optimizers import LearningRateAdam
from ortpartial.learning.penalties import ElasticLearningPenalty
from ortpartial.model import external_data, write


@pytest.mark.parametrize("engine", ENGINES)
def test_trained_onnx(engine):
    model = mlp()
    o = optimizer(model, weights_to_train=["W2", "b1"], engine=engine).fit(X, Y)
    found = o.get_trained_onnx()
    onnx.checker.check_model(found, full_check=True)
    session = onnxruntime.InferenceSession(found.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": X})
    np.testing.assert_allclose(o.predict(X), y, rtol=1e-6, atol=1e-6)
    assert o.predict(X).shape == (60, 1)
    after = weights_of(found)
    assert all((after[n] == a).all() for n, a in o.trained_coef_.items())
    for t, u in zip(found.graph.initializer, model.graph.initializer, strict=True):
        if t.name in o.trained_coef_:
            t.CopyFrom(u)
    assert found == model


def test_trained_onnx_of_a_model_with_external_data(tmp_path):
    """The data come along, and everything else stays: opset, metadata, names, documentation."""
    model = linear(300)
    model.opset_import[0].version, model.doc_string, model.graph.initializer[0].doc_string = 22, "words", "the slope"
    model.metadata_props.add(key="author", value="nobody")
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="weights", size_threshold=100)
    rows = np.ones((20, 300), np.float32) / 300
    found = optimizer(tmp_path / "model.onnx").fit(rows, rows[:, :1]).get_trained_onnx()
    before = onnx.load(tmp_path / "model.onnx")
    assert (weights_of(found)["coef"] != weights_of(before)["coef"]).any()
    for t, u in zip(found.graph.initializer, before.graph.initializer, strict=True):
        t.raw_data = u.raw_data
    assert found == before


@pytest.mark.parametrize("engine", ENGINES)
def test_state(engine):
    """What another optimizer is told of weights and states is all that it needs to go on alike."""
    rate = LearningRateAdam(schedule="invscaling")
    a = optimizer(learning_rate=rate, engine=engine).fit(X, Y)
    b = optimizer(learning_rate=rate, engine=engine, shuffle=False)
    b.set_state(a.get_state())
    b.set_state(a.get_state("optimizer"), kind="optimizer")
    a.shuffle = False
    a.partial_fit(X, Y)
    b.partial_fit(X, Y)
    for kind in ("weight", "optimizer"):
        assert all((u == v).all() for u, v in zip(a.get_state(kind), b.get_state(kind), strict=True))


def test_names_of_states():
    o = optimizer(weights_to_train=["b2", "W1"], learning_rate=LearningRateAdam())
    assert [a.shape for a in o.get_state()] == [(1,), (4, 8)]
    assert [a.shape for a in o.get_state("optimizer")] == [(1,), (1,), (4, 8), (4, 8), ()]
    assert list(o.trained_coef_) == ["b2", "W1"]
    assert optimizer().fit(X, Y).get_state("optimizer") == [30]


@pytest.mark.parametrize(
    ("state", "kind", "error", "message"),
    [
        ([np.zeros((4, 1))], "weight", DataError, "There are 2 arrays of kind 'weight' and 1 given; set_state takes"),
        ([np.zeros((4, 1)), np.zeros(2)], "weight", DataError,
         "The array for 'intercept' has shape (2,), where (1,) was expected."),
        ([np.zeros((4, 1)), [np.nan]], "weight", DataError, "The array for 'intercept' is not finite."),
        ([np.zeros((4, 1)), [1e300]], "weight", DataError, "The array for 'intercept' is not finite."),
        ([np.zeros((4, 1)), ["a"]], "weight", DataError, "The array for 'intercept' is <U1, where float32 was"),
        ([], "buffers", SettingError, "kind is 'weight', 'optimizer' or 'buffer', not 'buffers'."),
    ],
)
def test_state_errors(state, kind, error, message):
    o = optimizer(linear())
    before = o.get_state()
    with pytest.raises(error, match=re.escape(message)):
        o.set_state(state, kind=kind)
    assert all((a == b).all() for a, b in zip(before, o.get_state(), strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_arrays_survive(engine):
    """What is handed out belongs to the caller: neither training nor the end of the optimizer changes it."""
    o = optimizer(learning_rate=LearningRateAdam(), engine=engine).fit(X, Y)
    arrays = [*o.get_state(), *o.get_state("optimizer"), o.predict(X), o.losses(X, Y), *o.trained_coef_.values()]
    outputs, state = o.forward(X, training=True)
    weights, inputs = o.backward([np.ones_like(Y)], state)
    arrays += [*outputs, *weights.values(), *inputs.values()]
    kept = [a.copy() for a in arrays]
    o.fit(X, Y, W)
    o.predict(X)
    del o, state
    gc.collect()
    junk = [np.full((64, 64), np.nan, np.float32) for _ in range(500)]
    assert all((a == b).all() for a, b in zip(arrays, kept, strict=True))
    arrays[0][...] = 0
    del junk


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("penalty", [None, ElasticLearningPenalty(l2=0.1)], ids=["free", "penalty"])
def test_save_onnx_graph(tmp_path, engine, penalty):
    o = optimizer(learning_rate=LearningRateAdam(), learning_penalty=penalty, engine=engine).fit(X, Y, W)
    raw, files = o.save_onnx_graph(bytes), o.save_onnx_graph(tmp_path / "graphs")
    own = {"step": {"step"}, "epoch": {"epoch", "step"}, "agent": {"forward", "forward_backward"}}[engine]
    assert set(raw) == set(files) == {"predict", "losses", "learning_loss", "learning_rate", "learning_penalty"} | own
    for name, content in raw.items():
        assert files[name] == tmp_path / "graphs" / f"{name}.onnx"
        assert files[name].read_bytes() == content
        if name != "forward_backward":
            onnx.checker.check_model(content, full_check=True)
        onnxruntime.InferenceSession(files[name], providers=["CPUExecutionProvider"])
    assert raw["predict"] == o.get_trained_onnx().SerializeToString()


def test_save(tmp_path):
    """What is written is the trained model, which onnxruntime runs and from which a training goes on."""
    o = optimizer().fit(X, Y)
    assert o.save(tmp_path / "trained.onnx") is None  # so that it may be a callback, of which True ends the training
    assert onnx.load(tmp_path / "trained.onnx") == o.get_trained_onnx()
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], o.predict(X), rtol=1e-6, atol=1e-6)
    assert (optimizer(tmp_path / "trained.onnx").get_state()[0] == o.get_state()[0]).all()


def test_save_over_the_model_that_is_trained(tmp_path, monkeypatch):
    """Also where its weights are external data."""
    monkeypatch.setattr(external_data, "MESSAGE", 0)
    monkeypatch.setattr(external_data, "BIG", 64)
    path = tmp_path / "model.onnx"
    write(mlp(hidden=100), path)
    o = optimizer(path).fit(X, Y)
    for _ in range(2):
        o.partial_fit(X, Y)
        o.save(path)
        assert (optimizer(path).predict(X) == o.predict(X)).all()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_failed_training_is_not_saved(tmp_path):
    """Where a weight has become infinite without a loss that is, in the last step of a callback for example."""
    o = optimizer(linear()).fit(X, Y)
    o.save(tmp_path / "model.onnx")
    files = o.save_onnx_graph(tmp_path / "graphs")
    before = {p: p.read_bytes() for p in (tmp_path / "model.onnx", *files.values())}
    o._engine.set("coef", np.full((4, 1), np.inf, np.float32))
    for write_it, path in ((o.save, "model.onnx"), (o.save_onnx_graph, "graphs")):
        with pytest.raises(ConvergenceError, match=r"'coef' is no longer finite, .* get_trained_onnx\(\) returns the"):
            write_it(tmp_path / path)
    assert {p: p.read_bytes() for p in before} == before
    assert np.isinf(weights_of(o.get_trained_onnx())["coef"]).all()


def test_a_folder_for_graphs_is_not_named_like_a_model(tmp_path):
    o = optimizer()
    message = f"writes several graphs into a folder, .* write the trained model with save\\('{tmp_path}/model.onnx'\\)"
    with pytest.raises(SettingError, match=message):
        o.save_onnx_graph(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_state_without_an_optimizer():
    """Arrays are overwritten together: where one does not fit, all stay."""
    engine = linear_engine()
    state = TrainingState(engine.source.spec, engine)
    before = state.get("weight")
    with pytest.raises(DataError, match="'intercept' is not finite"):
        state.set([np.ones((4, 1)), [np.inf]], "weight")
    assert all((a == b).all() for a, b in zip(before, state.get("weight"), strict=True))
    state.set([np.ones((4, 1)), [2.0]], "weight")
    state.set([9], "optimizer")
    assert weights_of(state.to_model())["intercept"] == state.arrays["intercept"] == 2
    assert (state.list_names("optimizer"), state.take_snapshot().iteration) == (["iteration"], 9)
