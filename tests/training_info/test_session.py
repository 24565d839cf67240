"""A session runs the training of a model as the standard specifies, and as `fit` does."""

import re

import numpy as np
import onnx
import pytest
from models import assert_close, data, images, linear, mlp, net, weights_of
from training_models import INFERENCE, WHOLE, by_hand, changed

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingSession, to_training_info
from ortpartial.exceptions import ConvergenceError, DataError, ModelError, SettingError
from ortpartial.graph import build, constant, op, variable
from ortpartial.learning.optimizers import (
    LearningRateAdagrad,
    LearningRateAdam,
    LearningRateAdamW,
    LearningRateRMSProp,
    LearningRateSGD,
    LearningRateSGDNesterov,
)
from ortpartial.learning.penalties import ElasticLearningPenalty
from ortpartial.model import external_data
from ortpartial.training_info.graphs import combine_graphs

RATES = [
    LearningRateSGD(0.05, schedule="invscaling"),
    LearningRateSGDNesterov(0.01, schedule="invscaling"),
    LearningRateSGDNesterov(0.01, nesterov=False),
    LearningRateAdagrad(0.1),
    LearningRateAdam(0.01),
    LearningRateAdam(0.01, epsilon_hat=True, schedule="invscaling"),
    LearningRateAdamW(0.01, weight_decay=0.1),
    LearningRateRMSProp(0.01, momentum=0.9, centered=True),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rate", RATES, ids=[f"{type(r).__name__}{i}" for i, r in enumerate(RATES)])
@pytest.mark.parametrize("style", ["standard", "lowered"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_a_training_equals_fit_step_for_step(rate, style, dtype, weighted):
    X, y, w = data(dtype=dtype)
    optimizer = OrtGradientForwardBackwardOptimizer(
        mlp(dtype=dtype), learning_rate=rate, learning_penalty=ElasticLearningPenalty(0.001, 0.002), batch_size=20)
    session = TrainingSession.from_model(optimizer.get_training_onnx(style, weighted=weighted))
    for k in range(12):
        rows = slice(k * 20 % 60, k * 20 % 60 + 20)
        optimizer.shuffle = False
        optimizer.partial_fit(X[rows], y[rows], w[rows] if weighted else None)
        feeds = {"x": X[rows], "y_target": y[rows], **({"sample_weight": w[rows]} if weighted else {})}
        loss = session.step(feeds)["loss"]
        assert abs(loss - optimizer.train_losses_[-1]) <= 1e-6 * loss
        for n, a in optimizer.trained_coef_.items():
            assert abs(session.state[n] - a).max() <= 1e-6 * abs(a).max(), (k, n)
    assert session.state["iteration"] == 12


@pytest.mark.parametrize("style", ["standard", "lowered"])
@pytest.mark.parametrize("ratio", [None, 0.5])
def test_a_training_in_training_mode_equals_fit(style, ratio):
    """Masks and running statistics are included, and go on from the state of the optimizer."""
    optimizer = OrtGradientForwardBackwardOptimizer(
        net(ratio), learning_rate="Adam", shuffle=False, train_mode=True, random_state=0, max_iter=2)
    X, y = images()
    optimizer.fit(X, y)
    model = optimizer.get_training_onnx(style)
    onnx.checker.check_model(combine_graphs(model), full_check=True)
    session = TrainingSession(model)
    for k in range(12):
        rows = slice(k * 10 % 100, k * 10 % 100 + 10)
        optimizer.partial_fit(X[rows], y[rows])
        loss = session.step({"x": X[rows], "y_target": y[rows]})["loss"]
        assert abs(loss - optimizer.train_losses_[-1]) <= 1e-5 * loss
    after = weights_of(optimizer.get_trained_onnx())
    assert {"mean1", "var1", "mean2", "var2"} < set(session.state)
    for n in after.keys() & session.state.keys():
        assert abs(session.state[n] - after[n]).max() <= 2e-5 * abs(after[n]).max(), n
    inference = weights_of(session.inference_model())
    assert all((inference[n] == session.state[n]).all() for n in ("mean1", "var2", "W"))
    seed = session.state.get("seed")
    assert (seed is None) == (ratio is None)
    seeds = [seed]
    for again in (0, 0, 1):
        session.initialize(again)
        assert all((session.state[n] == weights_of(net())[n]).all() for n in ("mean1", "var2"))
        seeds.append(session.state.get("seed"))
    if ratio is not None:
        assert (seeds[1] == seeds[2]).all()
        assert len({s.tobytes() for s in seeds}) == 3


@pytest.mark.parametrize("style", ["standard", "lowered"])
def test_initialize_and_what_is_saved_in_between(style, tmp_path):
    X, y, _ = data()
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), learning_rate="Adam", max_iter=1).fit(X, y)
    session = TrainingSession(optimizer.get_training_onnx(style))
    session.initialize(seed=0)
    first = session.state
    bound = np.sqrt(6 / 12)
    assert abs(first["W1"]).max() < bound
    assert first["W1"].std() > 0.4 * bound
    np.testing.assert_array_equal(first["b1"], weights_of(mlp())["b1"])
    assert all((a == 0).all() for n, a in first.items() if n not in optimizer.weights_to_train)
    feeds = {"x": X, "y_target": y}
    losses = [session.step(feeds)["loss"].item() for _ in range(20)]
    assert losses[-1] < losses[0]
    session.save(tmp_path / "model.onnx")
    again = TrainingSession(str(tmp_path / "model.onnx"))
    for _ in range(3):
        assert again.step(feeds)["loss"] == session.step(feeds)["loss"]
    for each in (session, again):
        each.initialize(seed=0)
        assert all((each.state[n] == a).all() for n, a in first.items())
    session.initialize(seed=1)
    assert (session.state["W1"] != first["W1"]).all()


def test_the_first_weights_may_be_those_of_the_model():
    X, y, _ = data()
    optimizer = OrtGradientForwardBackwardOptimizer(linear(), max_iter=1).fit(X, y)
    session = TrainingSession(optimizer.get_training_onnx(init="model"))
    session.initialize()
    for n, a in weights_of(linear()).items():
        np.testing.assert_array_equal(session.state[n], a)


def test_a_training_goes_on_elsewhere():
    X, y, _ = data()
    settings = {"learning_rate": "Adam", "shuffle": False, "batch_size": 60, "warm_start": True}
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), max_iter=5, **settings).fit(X, y)
    session = TrainingSession(optimizer.get_training_onnx())
    for _ in range(5):
        session.step({"x": X, "y_target": y})
    optimizer.fit(X, y)
    for n, a in optimizer.trained_coef_.items():
        assert abs(session.state[n] - a).max() <= 1e-6 * abs(a).max()
    inference = session.inference_model()
    assert not inference.training_info
    assert {n.name for n in inference.graph.initializer} == {n.name for n in mlp().graph.initializer}


def test_random_numbers_of_the_nodes_themselves():
    text = """start () => (float w0) {
        a = RandomNormal <shape = [1], mean = 3.0, scale = 0.5%s> ()
        none = Constant <value_ints = [0]> ()
        w0 = Squeeze(a, none)
    }"""

    def values(seed, seed_of_session=None):
        session = TrainingSession(changed(text % seed))
        weights = []
        for _ in range(100):
            session.initialize(seed_of_session)
            weights.append(session.state["w"].item())
        return weights

    assert len(set(values(""))) > 90
    assert abs(np.mean(values("")) - 3) < 0.3
    assert len(set(values(", seed = 4.0"))) == 1
    assert len(set(values("", 4))) == 1
    assert values(", seed = 4.0", 5)[0] == values("", 5)[0]


ONE = np.ones(1, np.float32)


def test_by_hand():
    session = TrainingSession(by_hand(WHOLE))
    assert session.state == {"w": 2}
    session.initialize()
    assert session.state == {"w": 5}
    out = session.step({"x": ONE, "t": ONE})
    assert {n: a.tolist() for n, a in out.items()} == {"loss": 16, "y": [5]}  # the outputs are those before the update
    assert session.state == {"w": 1}
    assert repr(session) == "<TrainingSession x float32[N], t float32[N] -> loss, y; state: 1 (1 numbers)>"


def test_entries_run_in_order_and_may_update_the_same_initializer():
    # One document of the standard wants a key in one entry alone, the other describes descent in blocks.
    second = "next (float[N] t) => (float w_twice) { two = Constant <value_float = 2.0> ()\n w_twice = Mul(w, two) }"
    session = TrainingSession(by_hand(WHOLE, (None, second, [], [("w", "w_twice")])))
    session.step({"x": ONE, "t": ONE})
    assert session.state == {"w": 2 * (2 - 1)}


def test_what_processes_exchange_is_read_by_the_next_entry():
    """Another process adds 10 after the first entry and 0 after the second; where it is lost, nothing changes."""
    second = "next (float[N] t) => (float w_twice) { two = Constant <value_float = 2.0> ()\n w_twice = Mul(w, two) }"
    added = [10, 0, None]

    def exchange(buffer):
        if (number := added.pop(0)) is None:
            raise ConnectionError("lost")
        buffer.numpy()[...] += number

    model = by_hand(WHOLE, (None, second, [], [("w", "w_twice")]))
    session = TrainingSession(model, exchanges={"w": exchange})
    session.step({"x": ONE, "t": ONE})
    assert session.state == {"w": 2 * (2 - 1 + 10)}
    with pytest.raises(ConnectionError):
        session.step({"x": ONE, "t": ONE})
    assert session.state == {"w": 22}


def test_an_update_may_be_an_output_of_the_inference_graph():
    # One document of the standard allows it, the other does not speak of it.
    inference = INFERENCE.replace("float[N]", "float")
    session = TrainingSession(by_hand((None, None, [], [("w", "y")]), inference=inference))
    session.step({"x": np.float32(3)})
    assert session.state == {"w": 6}
    assert session.outputs == []


def test_an_algorithm_sees_the_initializers_of_another_entry():
    counting = """count (float z) => (int64 k_new) <int64 k = {0}> { one = Constant <value_int = 1> ()
        k_new = Add(k, one) }"""
    reading = """read (float u) => (float w_new) { c = Cast <to = 1> (k)
        w_new = Mul(c, u) }"""
    session = TrainingSession(by_hand((None, counting, [], [("k", "k_new")]), (None, reading, [], [("w", "w_new")])))
    assert session.inputs == ["u"]
    for _ in range(3):
        session.step({"u": np.float32(10)})
    assert session.state == {"w": 30, "k": 3}


def test_whole_numbers_that_change_are_no_constants():
    # The number of steps may decide about shapes, which are computed beforehand where they are constant.
    counting = """count (float z) => (int64 n_new, float[M] ones) { one = Constant <value_int = 1> ()
        n_new = Add(n, one)
        axis = Constant <value_ints = [0]> ()
        shape = Unsqueeze(n_new, axis)
        ones = Expand(z, shape) }"""
    session = TrainingSession(by_hand((None, counting, [], [("n", "n_new")])))
    assert [session.step({"z": np.float32(1)})["ones"].size for _ in range(3)] == [4, 5, 6]


def test_a_step_that_fails_leaves_the_state_as_it_was():
    second = "next (float[3] v) => (float q) { q = ReduceSum <keepdims = 0> (v) }"
    session = TrainingSession(by_hand(WHOLE, (None, second, [], [])))
    with pytest.raises(DataError):
        session.step({"x": ONE, "t": ONE, "v": np.ones(2, np.float32)})
    assert session.state == {"w": 2}


def test_two_entries_that_update_one_initializer_over_many_steps():
    """A state that two entries update has three buffers; a step that fails in between has no effect."""
    inference = INFERENCE.replace("float[N]", "float[2]")
    first = "a (float[2] t) => (float w_new, int64 n_new) { s = ReduceSum <keepdims = 0> (t)\n w_new = Add(w, s)\n" \
            "n_new = Add(n, n) }"
    second = """b (float[2] u, int64[1] i) => (float w_twice, float seen) {
        two = Constant <value_float = 2.0> ()
        w_twice = Mul(w, two)
        g = Gather(u, i)
        seen = ReduceSum <keepdims = 0> (g) }"""
    session = TrainingSession(by_hand((None, first, [], [("w", "w_new"), ("n", "n_new")]),
                                      (None, second, [], [("w", "w_twice")]), inference=inference))
    x = np.ones(2, np.float32)
    w, n = 2, 3
    for k in range(7):
        if k in (2, 3, 5):
            with pytest.raises((DataError, ModelError)):
                session.step({"t": 5 * x, "u": x, "i": [7]})
        assert session.state == {"w": w, "n": n}
        assert session.step({"t": k * x, "u": x, "i": [1]}) == {"seen": 1}
        w, n = 2 * (w + 2 * k), 2 * n
    session.initialize()
    assert session.state == {"w": 2, "n": 3}


def test_two_initializers_may_become_the_same():
    both = "a (float[N] t) => (float w_new, float v_new) <float v = {7.0}> { v_new = Neg(w)\n w_new = Identity(v_new) }"
    for update in ([("w", "w_new"), ("v", "v_new")], [("w", "v_new"), ("v", "v_new")]):
        session = TrainingSession(by_hand((None, both, [], update)))
        for sign in (-1, 1, -1):
            session.step({"t": ONE} if "t" in session.inputs else {})
            assert session.state == {"w": 2 * sign, "v": 2 * sign}


def test_batches_of_every_size():
    """The first two sizes have programs of their own, all others share one; all take the steps of `fit`."""
    X, y, _ = data()
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(), shuffle=False, batch_size=60)
    session = TrainingSession(optimizer.get_training_onnx())
    for rows in [*range(1, 12), *range(1, 12)]:
        optimizer.partial_fit(X[:rows], y[:rows])
        session.step({"x": X[:rows], "y_target": y[:rows]})
        assert_close(session.state, optimizer.trained_coef_, 1e-5)
    assert len(session._runner._programs) == 3


def test_inputs_are_read_and_outputs_are_given_anew():
    session = TrainingSession(by_hand(WHOLE))
    x, t = ONE.copy(), ONE.copy()
    first = session.step({"x": x, "t": t})
    x[:] = 3
    second = session.step({"x": x, "t": t})
    assert (first["loss"], first["y"], second["y"]) == (1, 2, 3)
    assert session.step({"x": np.stack([x, x], 1)[:, 1], "t": t})["y"] == 3 * (1 - 0.5 * 2 * 2 * 3)


@pytest.mark.parametrize(("feeds", "message"), [
    ({"x": np.ones((1, 2), np.float32), "t": ONE}, r"The input 'x' has shape \(1, 2\), and the steps read \['N'\]"),
    ({"x": ONE}, "Missing input: 't'. Expected 'x', 't'; got 'x'."),
    ({"x": ONE, "t": ["a"]}, "The input 't' is <U1, where float32 was expected"),
    ({"x": ONE, "t": ONE, "u": ONE}, "Unknown input: 'u'. Expected 'x', 't'; got 'x', 't', 'u'."),
], ids=["shape", "missing", "type", "unknown"])
def test_step_messages(feeds, message):
    with pytest.raises(DataError, match=message):
        TrainingSession(by_hand(WHOLE)).step(feeds)


def test_inputs_may_be_of_another_precision():
    session = TrainingSession(by_hand(WHOLE))
    assert session.step({"x": [1.0], "t": np.ones(1, np.int32)})["loss"].dtype == np.float32


@pytest.mark.parametrize(("dtype", "values", "message"), [
    ("uint8", [[300]], "The input 'x' holds 300, where uint8 holds 0 to 255."),
    ("uint8", [[-1]], "The input 'x' holds -1, where uint8 holds 0 to 255."),
    ("int32", [[4294967297]], "The input 'x' holds 4294967297, where int32 holds"),
    ("int64", np.array([[2**63]], np.uint64), "The input 'x' holds 9223372036854775808, where int64 holds"),
    ("int64", [[0.5]], "The input 'x' holds 0.5, a fraction, where int64 was expected."),
    ("index", [[-1.0]], "The input 'x' holds -1.0, of float64, where whole numbers were expected; convert them"),
], ids=["large", "negative", "int32", "uint64", "fraction", "index"])
def test_inputs_fit_their_dtype(dtype, values, message):
    x, w = variable("x", "int64" if dtype == "index" else dtype, ["N", 1]), constant(np.ones((2, 1)), "float32", "w")
    y = op.Gather(w, x)[:, 0] if dtype == "index" else op.Cast(x, to=1) @ w[:1]
    session = TrainingSession(OrtGradientForwardBackwardOptimizer(build([x], {"y": y}), ["w"]).get_training_onnx())
    before = session.state["w"]
    with pytest.raises(DataError, match=f"^{re.escape(message)}"):
        session.step({"x": values, "y_target": [[1]]})
    assert (session.state["w"] == before).all()
    session.step({"x": [[1]], "y_target": [[5]]})
    assert (session.state["w"] != before).any()


def test_an_input_that_no_step_reads_may_be_given():
    inference = INFERENCE.replace("(float[N] x)", "(float[N] x, float[N] other)")
    session = TrainingSession(by_hand(WHOLE, inference=inference))
    assert session.inputs == ["x", "t"]
    assert session.step({"x": ONE, "t": ONE, "other": ONE})["loss"] == 1


def test_the_model_given_is_not_written_to():
    model = by_hand(WHOLE)
    before = model.SerializeToString()
    session = TrainingSession(model)
    session.step({"x": ONE, "t": ONE})
    assert session.training_model().SerializeToString() != before
    assert model.SerializeToString() == before
    session.state["w"][...] = 7
    assert session.state == {"w": 1}


def test_a_failed_training_is_not_saved(tmp_path):
    """What was saved before remains; the model is to be had all the same."""
    X, y, _ = data()
    session = TrainingSession(OrtGradientForwardBackwardOptimizer(mlp(), learning_rate=3e38).get_training_onnx())
    session.save(tmp_path / "model.onnx")
    before = (tmp_path / "model.onnx").read_bytes()
    session.step({"x": X, "y_target": y})
    with pytest.raises(ConvergenceError, match=r"'W\d' is no longer finite, and nothing is written; .* training_model"):
        session.save(tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == before
    failed = session.training_model()
    TrainingSession(failed).save(tmp_path / "model.onnx")  # It has begun with these numbers, so that they are meant.
    assert onnx.load(tmp_path / "model.onnx") == failed


def test_what_is_saved_with_external_data(tmp_path, monkeypatch):
    """Weights and states of more than a protobuf message, and the constants of the initialization."""
    monkeypatch.setattr(external_data, "MESSAGE", 0)
    monkeypatch.setattr(external_data, "BIG", 64)
    X, y, _ = data()
    optimizer = OrtGradientForwardBackwardOptimizer(mlp(hidden=50), learning_rate="Adam", max_iter=1).fit(X, y)
    session = TrainingSession(optimizer.get_training_onnx(init="model"))
    path = tmp_path / "model.onnx"
    for _ in range(2):
        session.step({"x": X, "y_target": y})
        session.save(path)
        again = TrainingSession(path)
        assert all((again.state[n] == a).all() for n, a in session.state.items())
    again.initialize()
    assert (again.state["W1"] == weights_of(mlp(hidden=50))["W1"]).all()
    assert len(list(tmp_path.iterdir())) == 2


def test_careless_mistakes():
    session = TrainingSession(OrtGradientForwardBackwardOptimizer(linear()).get_training_onnx())
    x, y = np.ones((6, 4), np.float32), np.ones((6, 1), np.float32)
    with pytest.raises(DataError, match=r"A step reads a dict of arrays by name, \{'x': \.\.\., 'y_target': \.\.\.\}"):
        session.step(x)
    with pytest.raises(DataError, match="The input 'x' has 6 rows and 'y_target' has 5; give as many of both"):
        session.step({"x": x, "y_target": y[:5]})
    assert session.step({"x": x, "y_target": y})["loss"] > 0
    with pytest.raises(SettingError, match="seed is None, a seed from 0 on or a Generator, not 'a'"):
        session.initialize("a")
    with pytest.raises(SettingError, match="training is an optimizer or a TrainingSpec, not a ModelProto"):
        to_training_info(linear())
