"""Does the optimizer keep what it promises: fit, predict, score, states, pickles, errors?"""

import copy
import gc
import pickle
import re

import numpy as np
import onnx
import onnxruntime
import pytest
from models import assert_close, data, linear, mlp, two_in_two_out, weights_of
from sklearn.metrics import accuracy_score, r2_score

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.builder import build
from ortpartial.exceptions import (
    ConvergenceError,
    ConvergenceWarning,
    DataError,
    DeviceError,
    GraphError,
    ModelError,
    NoGradientError,
    SettingError,
)
from ortpartial.graph import constant, op, variable
from ortpartial.learning_loss import ElasticLearningLoss, SquareLearningLoss
from ortpartial.learning_penalty import ElasticLearningPenalty
from ortpartial.learning_rate import LearningRateAdam, LearningRateSGD, LearningRateSGDNesterov

ENGINES = ["step", "epoch", pytest.param("agent", marks=pytest.mark.agent)]
X, Y, W = data(60)
X_VAL, Y_VAL, _ = data(25, seed=4)


def optimizer(model=None, **settings):
    settings = {"random_state": 0, "max_iter": 5, "learning_rate": 0.05, **settings}
    return Optimizer(mlp() if model is None else model, **settings)


def same(a, b):
    """Two optimizers in the very same state."""
    kinds = ("weight", "optimizer")
    pairs = [p for kind in kinds for p in zip(a.get_state(kind), b.get_state(kind), strict=True)]
    return a.train_losses_ == b.train_losses_ and a.n_iter_ == b.n_iter_ and all((u == v).all() for u, v in pairs)


# Training


@pytest.mark.parametrize("engine", ENGINES)
def test_head_of_the_design(engine):
    train_session = Optimizer(
        linear(), ["coef", "intercept"],
        learning_rate=LearningRateSGDNesterov(),
        learning_loss=ElasticLearningLoss(l1_weight=0.1, l2_weight=0.9),
        learning_penalty=ElasticLearningPenalty(l1=0.1, l2=0.9), engine=engine)  # fmt: skip
    train_session.fit(X, Y, W)
    state_tensors = train_session.get_state()
    losses = train_session.train_losses_
    assert [a.shape for a in state_tensors] == [(4, 1), (1,)]
    assert len(losses) == train_session.n_iter_ == 100
    assert losses[-1] < losses[0]
    assert (train_session.engine_, train_session.engine_reason_) == (engine, "asked for")


def test_fit():
    o = optimizer()
    assert o.fit(X, Y, W, X_VAL, Y_VAL) is o
    assert (len(o.train_losses_), len(o.validation_losses_), o.n_iter_) == (5, 5, 5)
    assert o.train_losses_[-1] < o.train_losses_[0]
    assert np.isclose(o.validation_losses_[-1], o.losses(X_VAL, Y_VAL).mean())
    assert repr(o).startswith("OrtGradientForwardBackwardOptimizer(W1, b1, W2, b2; learning_loss=SquareLearningLoss()")


@pytest.mark.parametrize(("every", "count"), [(0.1, 10), (0.25, 4), (1, 20), (7, 3), (1000, 1), (1e-9, 20)])
def test_validation(every, count):
    o = optimizer(max_iter=20, validation_every=every).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    assert len(o.validation_losses_) == count
    assert same(o, optimizer(max_iter=20).fit(X, Y))


def test_train_losses_are_those_before_each_step():
    o = optimizer(shuffle=False, max_iter=1, batch_size=60)
    before = o.losses(X, Y)
    o.fit(X, Y, W)
    assert np.isclose(o.train_losses_[0], np.average(before, weights=W))


def test_fit_starts_again_and_warm_start_goes_on():
    once, again, warm = optimizer(max_iter=6), optimizer(max_iter=6), optimizer(max_iter=3, warm_start=True)
    once.fit(X, Y)
    assert same(once, again.fit(X, Y).fit(X, Y))
    assert same(once, warm.fit(X, Y).fit(X, Y))
    step_by_step = optimizer()
    for _ in range(6):
        assert step_by_step.partial_fit(X, Y) is step_by_step
    assert same(once, step_by_step)


def test_fit_takes_other_data_the_next_time():
    o = optimizer().fit(X, Y).fit(X[:33], Y[:33], W[:33])
    assert same(o, optimizer().fit(X[:33], Y[:33], W[:33]))


@pytest.mark.parametrize("seed", [0, np.random.default_rng(0), np.random.SeedSequence(0)], ids=type)
def test_random_state(seed):
    a, b = (optimizer(random_state=copy.deepcopy(seed)).fit(X, Y) for _ in range(2))
    assert same(a, b)
    assert not same(a, optimizer(random_state=1).fit(X, Y))


def test_fewer_rows_than_a_batch():
    assert same(optimizer(shuffle=False).fit(X[:3], Y[:3]), optimizer(batch_size=3, shuffle=False).fit(X[:3], Y[:3]))


@pytest.mark.parametrize("answer", [True, None, 1])
def test_callbacks(answer):
    seen = []
    o = optimizer(callbacks=[lambda o: answer, lambda o: seen.append(o.n_iter_)])
    o.fit(X, Y)
    assert seen == ([1] if answer is True else [1, 2, 3, 4, 5])


def test_interrupted():
    def interrupt(o):
        if o.n_iter_ == 2:
            raise KeyboardInterrupt

    o = optimizer(callbacks=[interrupt])
    with pytest.raises(KeyboardInterrupt):
        o.fit(X, Y)
    assert same(o, optimizer(max_iter=2).fit(X, Y))
    o.callbacks = ()
    for _ in range(3):
        o.partial_fit(X, Y)
    assert same(o, optimizer().fit(X, Y))


def test_verbose(capsys):
    optimizer(verbose=1).fit(X, Y, X_val=X_VAL, y_val=Y_VAL)
    bar = capsys.readouterr().err
    assert "5/5" in bar
    assert re.search(r"loss=[\d.]+, validation=[\d.]+", bar)
    optimizer().fit(X, Y)
    assert capsys.readouterr() == ("", "")


# Divergence


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("exc", [True, False])
def test_divergence(engine, exc):
    """The weights are those of the last finite step: one more batch and they are not."""
    o = optimizer(linear(), learning_rate=30.0, engine=engine, exc=exc)
    with pytest.raises(ConvergenceError) if exc else pytest.warns(ConvergenceWarning) as caught:
        o.fit(X, Y)
    message = str(caught.value if exc else caught[0].message)
    found = re.match(r"The loss is .* at iteration (\d+) \(epoch (\d+)\) with LearningRateSGD\(eta0=30.0, .*\); the "
                     r"weights are those of iteration (\d+)\. Lower the rate, or scale X and y\.", message)  # fmt: skip
    at, epoch, last = map(int, found.groups())
    assert (last, epoch, o.n_iter_, len(o.train_losses_)) == (at - 1, (at - 1) // 6 + 1, epoch - 1, epoch - 1)
    assert all(np.isfinite(a).all() for a in o.get_state())
    expected = optimizer(linear(), learning_rate=30.0, engine=engine, max_iter=epoch - 1)
    expected.fit(X, Y)
    order = expected._rng.permutation(60)[: (last - 6 * (epoch - 1)) * 10]
    if len(order):
        expected.shuffle = False
        expected.partial_fit(X[order], Y[order])
    assert all((a == b).all() for a, b in zip(o.get_state(), expected.get_state(), strict=True))
    if not exc:
        assert caught[0].filename == __file__
    o.predict(X)


def test_goes_on_after_divergence():
    o = optimizer(linear(), learning_rate=30.0)
    with pytest.raises(ConvergenceError):
        o.fit(X, Y)
    o.set_state([np.zeros((4, 1)), np.zeros(1)])
    assert o.partial_fit(X[:10], Y[:10]).n_iter_ >= 1


# Inference


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


def test_predict_does_not_disturb_training():
    a, b = optimizer(callbacks=[lambda o: o.predict(X[:1]) is None]), optimizer()
    assert same(a.fit(X, Y), b.fit(X, Y))


@pytest.mark.parametrize("weighted", [None, W], ids=["plain", "weighted"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_score_is_r2(weighted, outputs):
    o, y = optimizer(mlp(outputs=outputs)), np.hstack([Y] * outputs) + X[:, :outputs]
    assert np.isclose(o.fit(X, y).score(X, y, weighted), r2_score(y, o.predict(X), sample_weight=weighted), rtol=1e-6)


def test_score_of_counts_is_that_of_their_mean():
    counts = np.random.default_rng(0).poisson(np.exp(X[:, :1]))
    o = optimizer(linear(), learning_loss="poisson", learning_rate="Adam", max_iter=30).fit(X, counts)
    assert np.isclose(o.score(X, counts), r2_score(counts, np.exp(o.predict(X))), rtol=1e-6)


@pytest.mark.parametrize("constant_prediction", [2.0, 3.0])
def test_score_of_a_constant(constant_prediction):
    o = optimizer(linear())
    o.set_state([np.zeros((4, 1)), [constant_prediction]])
    y = np.full((60, 1), 2.0)
    assert o.score(X, y) == r2_score(y, o.predict(X))


@pytest.mark.parametrize("weighted", [None, W], ids=["plain", "weighted"])
@pytest.mark.parametrize(("loss", "outputs"), [("log_loss", 1), ("softmax_cross_entropy", 3)])
def test_score_is_accuracy(weighted, loss, outputs):
    labels = np.digitize(X[:, 0], [-0.5, 0.5]) if outputs > 1 else (X[:, 0] > 0).astype(int)
    o = optimizer(mlp(outputs=outputs), learning_loss=loss, learning_rate=0.3, max_iter=20).fit(X, labels)
    raw = o.predict(X)
    found = raw.argmax(1) if outputs > 1 else raw[:, 0] > 0
    assert np.isclose(o.score(X, labels, weighted), accuracy_score(labels, found, sample_weight=weighted))
    assert o.score(X, labels) > 0.8


def test_losses_are_one_per_row_in_order():
    o = optimizer(mlp(outputs=2), learning_penalty=ElasticLearningPenalty(l2=1))
    y = np.hstack([Y, Y])
    found = o.losses(X, y)
    assert found.shape == (60,)
    np.testing.assert_allclose(found, ((o.predict(X) - y) ** 2).mean(1), rtol=1e-5)
    np.testing.assert_allclose(o.losses(X[::-1], y[::-1]), found[::-1], rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_forward_and_backward(engine):
    o = optimizer(linear(), engine=engine)
    with pytest.raises(DataError, match="There is no state to go back from; call forward with training=True"):
        o.backward([Y], None)
    (y,), none = o.fit(X, Y).forward(X)
    assert none is None
    np.testing.assert_allclose(y, o.predict(X), rtol=1e-6)
    before = o.get_state()
    _, state = o.forward([X], training=True)
    weights, inputs = o.backward([np.ones_like(Y)], state)
    np.testing.assert_allclose(weights["coef"], X.sum(0)[:, None], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(inputs["x"], np.tile(o.trained_coef_["coef"].T, (60, 1)), rtol=1e-6)
    assert all((a == b).all() for a, b in zip(before, o.get_state(), strict=True))


# State


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
        ([np.zeros((4, 1))], "weight", DataError, "There are 2 arrays of kind 'weight' and 1 given."),
        ([np.zeros((4, 1)), np.zeros(2)], "weight", DataError,
         "The array for 'intercept' has shape (2,), where (1,) was expected."),
        ([np.zeros((4, 1)), [np.nan]], "weight", DataError, "The array for 'intercept' is not finite."),
        ([np.zeros((4, 1)), [1e300]], "weight", DataError, "The array for 'intercept' is not finite."),
        ([np.zeros((4, 1)), ["a"]], "weight", DataError, "The array for 'intercept' does not hold numbers."),
        ([], "buffers", SettingError, "kind is 'weight', 'optimizer' or 'buffer', not 'buffers'."),
    ],
)  # fmt: skip
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
def test_two_optimizers_of_one_model(engine):
    """Trained in turn, batch by batch, they go the ways that they go alone."""
    model, rates = mlp(), [LearningRateAdam(0.01), LearningRateSGD(0.1)]
    pair = [optimizer(model, engine=engine, learning_rate=rate) for rate in rates]
    alone = [optimizer(mlp(), engine=engine, learning_rate=rate) for rate in rates]
    for _ in range(3):
        for o in pair:
            o.partial_fit(X, Y)
    for o, single in zip(pair, alone, strict=True):
        for _ in range(3):
            single.partial_fit(X, Y)
        assert same(o, single)
    del pair[0], o
    gc.collect()
    assert same(pair[0].partial_fit(X, Y), alone[1].partial_fit(X, Y))


def test_what_is_given_is_copied():
    state = [np.zeros((4, 1), np.float32), np.zeros(1, np.float32)]
    o = optimizer(linear())
    o.set_state(state)
    o.fit(X, Y)
    assert not any(a.any() for a in state)
    o.set_state(state)
    state[0][...] = 7
    assert not o.get_state()[0].any()


# Pickles


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["copy", "pickle"])
def test_copies_go_on_bit_for_bit(engine, clone):
    a = optimizer(learning_rate=LearningRateAdam(0.01), engine=engine, warm_start=True).fit(X, Y, W, X_VAL, Y_VAL)
    b = clone(a)
    assert same(a, b)
    assert (b.engine_, b.validation_losses_, repr(b)) == (a.engine_, a.validation_losses_, repr(a))
    a.fit(X, Y, W)
    assert not same(a, b)
    assert same(a, b.fit(X, Y, W))
    assert (a.predict(X) == b.predict(X)).all()


def test_a_copy_taken_by_a_callback():
    copies = []
    a = optimizer(callbacks=[lambda o: copies.append(copy.deepcopy(o))]).fit(X, Y)
    b = copies[1]
    b.callbacks = ()
    for _ in range(3):
        b.partial_fit(X, Y)
    assert same(a, b)


def test_a_pickle_of_a_model_from_a_file(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(linear(300), path, save_as_external_data=True, location="weights", size_threshold=100)
    o = optimizer(path)
    (tmp_path / "weights").unlink()
    x = np.ones((20, 300), np.float32) / 300
    assert same(o.fit(x, x[:, :1]), pickle.loads(pickle.dumps(o)))


# Graphs


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
    assert raw["predict"] == o.get_trained_onnx().SerializeToString()


# Several inputs and outputs


@pytest.mark.parametrize("engine", ENGINES)
def test_several_inputs_and_outputs(engine, rng):
    inputs = {n: rng.normal(size=(40, 3)).astype(np.float32) for n in "abc"}
    read = {n: inputs[n] for n in "ab"}
    y = {"price": (inputs["a"] + inputs["b"])[:, :1], "kind": (inputs["a"][:, 0] > 0).astype(int)}
    losses = {"price": "square_error", "kind": "softmax_cross_entropy"}
    o = optimizer(two_in_two_out(), learning_loss=losses, engine=engine, max_iter=30)
    assert o.weights_to_train == ["w", "v"]
    assert o.learning_loss["price"] == SquareLearningLoss()
    o.fit(read, y)
    assert o.train_losses_[-1] < o.train_losses_[0] / 2
    found = o.predict(read)
    assert list(found) == ["price", "kind"]
    assert all((found[n] == a).all() for n, a in o.predict(inputs).items())
    score = o.score(inputs, y)
    assert np.isclose(score["price"], r2_score(y["price"], found["price"]), rtol=1e-6)
    assert score["kind"] == accuracy_score(y["kind"], found["kind"].argmax(1))
    alone = optimizer(two_in_two_out(), learning_loss={"price": "square_error"}, engine=engine)
    assert (alone.weights_to_train, list(alone.trained_coef_)) == (["w"], ["w"])
    alone.set_state([o.trained_coef_["w"]])
    p = np.exp(found["kind"] - found["kind"].max(1, keepdims=True))
    nll = -np.log((p / p.sum(1, keepdims=True))[np.arange(40), y["kind"]])
    rows = alone.losses(read, {"price": y["price"]})
    np.testing.assert_allclose(rows, alone.losses(read, y["price"]))
    np.testing.assert_allclose(o.losses(read, y), rows + nll, rtol=1e-4)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        ({"a": X[:, :3]}, {"price": Y, "kind": Y}, "'b' is missing; its inputs are 'a', 'b'."),
        (X[:, :3], {"price": Y, "kind": Y}, "The model has the inputs 'a', 'b'; give a dict of arrays by name."),
        ({"a": X[:, :3], "b": X[:, :3], "z": Y}, {"price": Y, "kind": Y}, "'z' is no input of the model"),
        ({"a": X[:, :3], "b": X[:, :3]}, Y, "The trained outputs are 'price', 'kind'; give y as a dict by name."),
        ({"a": X[:, :3], "b": X[:, :3]}, {"price": Y}, "'kind' is missing from y; they are 'price', 'kind'."),
        ({"a": X[:, :3], "b": X[:, :3]}, {"price": Y, "kind": Y, "z": Y}, "'z' is no trained output"),
        ({"a": X[:, :3], "b": X[:, :3]}, {"price": Y, "kind": Y}, "y['kind'] has shape (60, 1), where (60, 2)"),
    ],
)  # fmt: skip
def test_errors_of_several(X, y, message):
    o = optimizer(two_in_two_out(), learning_loss={"price": "square_error", "kind": "absolute_error"})
    with pytest.raises(DataError, match=re.escape(message)):
        o.fit(X, y)


# Settings and data


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"max_iter": 0}, SettingError, "max_iter is a whole number of at least 1, not 0."),
        ({"max_iter": 2.5}, SettingError, "max_iter is a whole number of at least 1, not 2.5."),
        ({"batch_size": True}, SettingError, "batch_size is a whole number of at least 1, not True."),
        ({"validation_every": 0}, SettingError, "validation_every is a share of max_iter or a number of epochs, not 0"),
        ({"validation_every": np.nan}, SettingError, "a share of max_iter or a number of epochs, not nan."),
        ({"validation_every": np.inf}, SettingError, "a share of max_iter or a number of epochs, not inf."),
        ({"validation_every": "all"}, SettingError, "a share of max_iter or a number of epochs, not 'all'."),
        ({"callbacks": [3]}, SettingError, "callbacks are functions of the optimizer; 3 cannot be called."),
        ({"callbacks": print}, SettingError,
         "callbacks is a sequence of functions of the optimizer, not <built-in function print>."),
        ({"random_state": -1}, SettingError, "random_state is None, a seed from 0 on or a Generator, not -1."),
        ({"random_state": "a"}, SettingError, "random_state is None, a seed from 0 on or a Generator, not 'a'."),
        ({"learning_rate": "Sgdd"}, SettingError, "learning_rate: 'Sgdd' is not known."),
        ({"learning_rate": -1.0}, SettingError, "LearningRateSGD: eta0 is -1.0"),
        ({"learning_loss": "square"}, SettingError, "learning_loss: 'square' is not known."),
        ({"learning_loss": {}}, SettingError, "learning_loss is an empty dict; name at least one output."),
        ({"learning_loss": {"z": "elastic"}}, SettingError, "names 'z', which is no output of the model: 'y'."),
        ({"learning_penalty": 0.1}, SettingError, "learning_penalty: 0.1 is a float"),
        ({"engine": "fast"}, SettingError, "engine is 'auto', 'agent', 'epoch', 'step', not 'fast'."),
        ({"device": "tpu"}, DeviceError, "The device is 'tpu'"),
        ({"weights_to_train": []}, ModelError, "weights_to_train is empty; name at least one weight"),
        ({"weights_to_train": ["W1", "W1"]}, ModelError, "The weight 'W1' is given twice."),
        ({"weights_to_train": ["W9"]}, ModelError,
         "The weight 'W9' is no initializer of the model; its float initializers are 'W1', 'b1', 'W2', 'b2'."),
    ],
)  # fmt: skip
def test_settings_errors(settings, error, message):
    with pytest.raises(error, match=re.escape(message)):
        optimizer(**settings)


def model_of(f, *weights, shape=("N", 2)):
    """y = f(x, *weights)."""
    x = variable("x", "float32", shape)
    ws = [constant(np.ones(s, np.float32), hint=f"w{i}") for i, s in enumerate(weights)]
    return build([x], {"y": f(x, *ws)})


@pytest.mark.parametrize(
    ("model", "settings", "error", "message"),
    [
        (model_of(lambda x: x * x), {}, ModelError, "No float initializer of rank one or more leads to"),
        (model_of(lambda x, w: op.Floor(w) * x, (2,)), {"weights_to_train": "w0"}, ModelError,
         "No gradient leads from 'y' to the weight 'w0', so that it would not be trained; leave it out."),
        (two_in_two_out(), {"learning_loss": {"kind": "log_loss"}, "weights_to_train": "w"}, ModelError,
         "No gradient leads from 'kind' to the weight 'w'"),
        (model_of(lambda x: op.Cast(x, to=7)), {}, SettingError, "has the outputs 'y', 0 of them of real numbers"),
        (two_in_two_out(), {}, SettingError, "the outputs 'price', 'kind', 'unused', 3 of them of real"),
        (model_of(lambda x, w: op.DFT(x @ w), (2, 2), shape=("N", 2, 2)), {}, NoGradientError, "DFT has neither"),
        (model_of(lambda x, w: op.ReduceSum(x * w, keepdims=0), (2,)), {}, GraphError, "is a scalar"),
        (model_of(lambda x, w: x * w, (2,), shape=None), {}, GraphError, "The rank of"),
        (model_of(lambda x, w: w * w, (2,)), {}, ModelError, "The outputs 'y' depend on no input of the model."),
        (model_of(lambda x, w: x * w, (2,), shape=("N",)), {"learning_loss": "cross_entropy"}, GraphError,
         "scores of shape (N, C) or (N, C, d, ...) were expected"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_trained(model, settings, error, message):
    with pytest.raises(error, match=re.escape(message)):
        optimizer(model, **settings)


@pytest.mark.parametrize(
    ("X", "y", "more", "message"),
    [
        (X[:, :3], Y, {}, "Input 'x' has shape (60, 3), where (N, 4) was expected."),
        (np.where(X[7, 2] == X, np.nan, X), Y, {}, "Input 'x' contains NaN or infinity; impute or drop those rows."),
        (X.astype(str), Y, {}, "Input 'x' has dtype <U32, where float32 was expected; encode it as numbers first."),
        (X[:0], Y[:0], {}, "There are no rows in X."),
        (None, Y, {}, "Input 'x' is None, where an array of float32 was expected."),
        (X, Y[:59], {}, "y has 59 rows and X has 60."),
        (X, np.hstack([Y, Y]), {}, "y has shape (60, 2), where (60, 1) was expected, as the output has."),
        (X, np.where(Y[3] == Y, np.inf, Y), {}, "y contains NaN or infinity; impute or drop those rows."),
        (X, Y, {"sample_weight": W[:59]}, "sample_weight has 59 elements and X has 60 rows."),
        (X, Y, {"sample_weight": -W}, "sample_weight has negative weights"),
        (X, Y, {"sample_weight": 0 * W}, "All sample weights are zero."),
        (X, Y, {"X_val": X}, "X_val and y_val belong together; one of them is missing."),
        (X, Y, {"X_val": X, "y_val": Y[:3]}, "y has 3 rows and X has 60."),
    ],
)
def test_data_errors(X, y, more, message):
    o = optimizer(linear())
    with pytest.raises(DataError, match=re.escape(message)):
        o.fit(X, y, **more)
    assert (o.n_iter_, o.train_losses_) == (0, [])


@pytest.mark.parametrize(("label", "found"), [(3, "0 to 3"), (-1, "-1 to 2")])
def test_labels_out_of_range(label, found):
    labels = np.arange(60) % 3
    labels[5] = label
    o = optimizer(mlp(outputs=3), learning_loss="cross_entropy")
    with pytest.raises(DataError, match=f"y has labels from {found}, where 0 to 2 were expected"):
        o.fit(X, labels)
    with pytest.raises(DataError, match=r"y has numbers from 0.0 to 2.0, where labels of 0 and 1 were expected"):
        optimizer(learning_loss="log_loss").fit(X, np.arange(60) % 3)


def test_targets_of_one_axis():
    assert same(optimizer().fit(X, Y[:, 0]), optimizer().fit(X, Y))
    flat = model_of(lambda x, w: op.ReduceSum(x * w, [1], keepdims=0), (2,))
    assert same(optimizer(flat).fit(X[:, :2], Y), optimizer(flat).fit(X[:, :2], Y[:, 0]))


def test_sizes_that_the_model_does_not_declare():
    """(N,) against (N, 1) is never broadcast, even where nothing says that the output has one column."""
    x = variable("x", "float32", ["N", 4])
    w, sizes = constant(np.ones((4, 1), np.float32), hint="w"), variable("sizes", "float32", ["N", "M"])
    model = build([x, sizes], {"y": op.Reshape(x @ w, op.Concat(op.Shape(x, end=1), op.Shape(sizes, start=1), axis=0))})
    o = optimizer(model)
    feeds = {"x": X, "sizes": np.zeros((60, 1))}
    assert same(o.fit(feeds, Y), optimizer(linear(4), weights_to_train=["coef"]).fit(X, Y)) is False
    assert same(optimizer(model).fit(feeds, Y[:, 0]), o)
    with pytest.raises(DataError, match=re.escape("y has shape (60, 3), where (60, 1) was expected")):
        o.fit(feeds, np.hstack([Y] * 3))


def test_fixed_batch_dimension():
    o = optimizer(linear(rows=20), batch_size=20).fit(X, Y)
    free = optimizer(linear(), batch_size=20).fit(X, Y)
    assert same(o, free)
    np.testing.assert_allclose(o.predict(X), free.predict(X), rtol=1e-6)
    np.testing.assert_allclose(o.losses(X, Y), free.losses(X, Y), rtol=1e-5)
    with pytest.raises(DataError, match="Input 'x' has a fixed batch dimension of 20 and there are 30 rows"):
        o.predict(X[:30])
    with pytest.raises(DataError, match=r"a fixed batch dimension of 20 and batch_size is 10; .* or use batch_size=20"):
        optimizer(linear(rows=20)).fit(X, Y)


def test_float64():
    x, y, w = data(60, dtype="float64")
    o = optimizer(mlp(dtype="float64")).fit(x, y, w, x, y)
    assert {a.dtype for a in [*o.get_state(), o.predict(x), o.losses(x, y)]} == {np.dtype(np.float64)}
    assert_close(optimizer().fit(X, Y, W).trained_coef_, o.trained_coef_, 1e-5)


def test_a_trained_exponent():
    """Nothing that is built counts on the first content of a weight, not even where a square has a shortcut."""
    x = variable("x", "float32", ["N", 1])
    p = constant(np.array(2, np.float32), hint="p")
    o = optimizer(build([x], {"y": op.Pow(x, p)}), weights_to_train=["p"], shuffle=False, max_iter=1, batch_size=60)
    x, t, p = np.abs(X[:, :1].astype(float)) + 0.5, Y.astype(float), 2.0
    for _ in range(3):
        o.partial_fit(x, t)
        p -= 0.05 * (2 * (x**p - t) * x**p * np.log(x)).mean()
    assert np.isclose(o.trained_coef_["p"], p, rtol=1e-5)


def test_the_model_given_is_never_written_to():
    model = mlp()
    before = model.SerializeToString()
    o = optimizer(model, learning_rate=LearningRateSGD(0.1))
    o.fit(X, Y).set_state([a + 1 for a in o.get_state()])
    model.graph.initializer[0].raw_data = b"\0" * len(model.graph.initializer[0].raw_data)
    assert (weights_of(o.fit(X, Y).get_trained_onnx())["W1"] != 0).all()
    model = onnx.load_from_string(before)
    optimizer(model).fit(X, Y).get_trained_onnx().graph.initializer[0].raw_data = b""
    assert model.SerializeToString() == before
