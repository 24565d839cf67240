"""Replayed steps equal the step engine's, and the host reads their losses in time.

A device that is the CPU stands for the GPU: its memory is its own, and a recording is run as it is.
"""

import pickle
import threading
from dataclasses import replace

import numpy as np
import pytest
from models import assert_close, data, images, mlp, net, two_in_two_out

from ortpartial import GradientClipping, build, constant, op, variable
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import ConvergenceError, ConvergenceWarning, DeadlineError, ModelError
from ortpartial.execution import cuda_graph_engine as captured
from ortpartial.execution.cuda_graph_engine import CudaGraphEngine, cuda_graph_step
from ortpartial.learning.losses import SoftmaxCrossEntropyLearningLoss
from ortpartial.learning.optimizers import (
    LearningRateAdafactor,
    LearningRateAdagrad,
    LearningRateAdam,
    LearningRateAdamW,
    LearningRateLAMB,
    LearningRateLion,
    LearningRateNAdam,
    LearningRateRAdam,
    LearningRateRMSProp,
    LearningRateSGD,
    LearningRateSGDNesterov,
)
from ortpartial.learning.penalties import ElasticLearningPenalty
from ortpartial.learning.schedules import ReduceOnPlateauSchedule
from ortpartial.runtime import buffer, device
from ortpartial.runtime import session as runtime
from ortpartial.runtime.buffer import Buffer
from ortpartial.runtime.device import Device
from ortpartial.runtime.session import Binding, Session
from ortpartial.training import SpecSource

pytestmark = pytest.mark.filterwarnings("ignore:Duplicate provider")
RATES = [LearningRateSGD(0.05, schedule="invscaling"), LearningRateSGDNesterov(0.02), LearningRateAdam(0.01),
         LearningRateAdamW(0.01), LearningRateAdagrad(0.05), LearningRateRMSProp(0.01),
         LearningRateNAdam(0.01), LearningRateRAdam(0.01), LearningRateLion(0.001), LearningRateLAMB(0.01),
         LearningRateAdafactor(0.1, weight_decay=0.1, no_decay="vectors")]


@pytest.fixture
def stand_in(monkeypatch):
    """A device "cuda" that is the CPU; the OrtValues that were made there."""
    made, borrowing = [], buffer.to_ortvalue

    def owning(array, where):
        if where.shares_memory:
            return borrowing(array, where)
        made.append(array.copy())
        return borrowing(made[-1], where)

    monkeypatch.setitem(device._PROVIDERS, "cuda", "CPUExecutionProvider")
    monkeypatch.setattr(Device, "ort", Device().ort)
    for module in (buffer, runtime):
        monkeypatch.setattr(module, "to_ortvalue", owning)
    return made


def optimizer(model=None, **settings):
    return Optimizer(mlp() if model is None else model, **{"random_state": 0, "max_iter": 3, **settings})


def pair(model=None, **settings):
    """The same training in steps on the CPU, and as "auto" does it on the device."""
    return optimizer(model, engine="step", **settings), optimizer(model, device="cuda", **settings)


def programs(o):
    """The programs by kind, rows of a batch, and thread."""
    return {(key.kind, key.shapes[0][1][0], key.thread): program for key, program in o._engine._programs.items()}


def everything(o):
    return [a for kind in ("weight", "optimizer", "buffer") for a in o.get_state(kind)]


def assert_same(found, expected):
    """Bit for bit, losses included."""
    assert isinstance(found._engine, CudaGraphEngine)
    assert (found.engine_, found.engine_reason_) == ("step", "the device records a step once, and replays it without "
                                                             "the host (experimental)")
    assert found.train_losses_ == expected.train_losses_
    for a, b in zip(everything(found), everything(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_log_says_that_it_is_experimental(stand_in, caplog):
    Optimizer(mlp(), device="cuda", max_iter=1)
    (message,) = {r.getMessage() for r in caplog.records if r.levelname == "WARNING"}
    assert message == "the CUDA graph engine is experimental: no GPU has run it yet; engine='epoch' does without it"


@pytest.mark.parametrize("rate", RATES, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_same_steps(stand_in, monkeypatch, rate, weighted):
    """Over several looks, with an uneven last batch."""
    monkeypatch.setattr(captured, "_LOOK", 4)
    X, y, w = data(195)
    settings = {"learning_rate": rate, "learning_penalty": ElasticLearningPenalty(0.01, 0.1)}
    near, far = (o.fit(X, y, w if weighted else None) for o in pair(**settings))
    assert_same(far, near)
    assert near.train_losses_[0] != near.train_losses_[1]


@pytest.mark.parametrize("rate", RATES, ids=lambda r: type(r).__name__)
def test_a_step_to_be_recorded_has_no_branches(stand_in, rate):
    graph = cuda_graph_step(SpecSource(replace(optimizer(learning_rate=rate)._spec, device="cuda").for_batch(10)))
    assert "If" not in {node.op_type for node in graph.graph.node}


@pytest.mark.parametrize("settings", [
    {"gradient_clipping": 0.1}, {"accumulate": 3, "averaging": "swa"},
    {"gradient_clipping": GradientClipping(0.1, 0.01, "weight"), "accumulate": 2, "averaging": "ema"}])
def test_clipping_accumulation_and_averages(stand_in, settings):
    X, y, w = data(45)
    near, far = (o.fit(X, y, w) for o in pair(learning_rate="Adam", **settings))
    assert_same(far, near)
    graph = cuda_graph_step(SpecSource(replace(far._spec, device="cuda").for_batch(10)))
    assert "If" not in {node.op_type for node in graph.graph.node}


def test_weights_that_join(stand_in):
    X, y, _ = data(53)
    near, far = (o.fit(X, y) for o in pair(
        learning_rate="Adam", freeze="W1", rate_factors={"b*": 0.5},
        callbacks=[lambda o: None if o.n_iter_ > 1 else o.unfreeze("W1")]))
    assert_same(far, near)
    assert far.weights_to_train == ["W1", "b1", "W2", "b2"]


def test_a_scale_of_the_step_size(stand_in):
    """A recording reads the number that is set between two epochs."""
    X, y, _ = data(45)
    plateau = ReduceOnPlateauSchedule(factor=0.5, patience=0, threshold=0.9)
    near, far = (o.fit(X, y) for o in pair(learning_rate=LearningRateSGD(0.05, schedule=plateau), max_iter=5))
    assert_same(far, near)
    assert far.learning_rate_scale_ == near.learning_rate_scale_ == 0.5**4


@pytest.mark.parametrize("batch_size", [1, 7, 10, 100])
def test_any_batch(stand_in, batch_size):
    X, y, _ = data(23)
    near, far = (o.fit(X, y) for o in pair(batch_size=batch_size))
    assert_same(far, near)


@pytest.mark.parametrize("settings", [{"train_mode": True}, {"precision": "float16", "loss_scale": 8.0},
                                      {"precision": "float16"}], ids=["train_mode", "fixed", "scaled"])
def test_modes(stand_in, settings):
    X, y = images(50)
    near, far = (o.fit(X, y) for o in pair(net(0.3 if "train_mode" in settings else None), **settings))
    assert_same(far, near)


def test_two_outputs(stand_in):
    rng = np.random.default_rng(0)
    X = {n: rng.normal(size=(25, 3)).astype(np.float32) for n in "abc"}
    y = {"price": X["a"][:, :1], "kind": rng.integers(0, 2, 25)}
    loss = {"price": "square_error", "kind": "softmax_cross_entropy"}
    near, far = (o.fit(X, y) for o in pair(two_in_two_out(), learning_loss=loss))
    assert_same(far, near)


@pytest.mark.parametrize("class_weight", [None, [1, 2]])
def test_labels_that_do_not_count(stand_in, class_weight):
    rng = np.random.default_rng(0)
    X = {n: rng.normal(size=(25, 3)).astype(np.float32) for n in "abc"}
    y = {"price": X["a"][:, :1], "kind": np.where(rng.uniform(size=25) < 0.5, -100, rng.integers(0, 2, 25))}
    loss = {"price": "square_error", "kind": SoftmaxCrossEntropyLearningLoss(class_weight=class_weight)}
    w = {"price": rng.uniform(size=25), "kind": None}
    near, far = (o.fit(X, y, w) for o in pair(two_in_two_out(), learning_loss=loss))
    assert_same(far, near)


def test_float64(stand_in):
    X, y, w = data(33, dtype="float64")
    near, far = (o.fit(X, y, w) for o in pair(mlp(dtype="float64"), learning_rate="Adam"))
    assert_same(far, near)


def test_names_that_the_model_has_itself(stand_in):
    x = variable("order", "float32", ["N", 4])
    w = constant(np.ones((4, 1), np.float32), hint="losses")
    model = build([x], {"position": x @ w})
    X, y, _ = data(23)
    near, far = (o.fit(X, y) for o in pair(model))
    assert_same(far, near)


def test_goes_on(stand_in):
    """In rows of other numbers, of which those that have room are put where the first ones were, and from a pickle."""
    X, y, w = data(60)
    near, far = pair(learning_rate="Adam", warm_start=True)
    kept = []
    for o in (near, far):
        o.fit(X[:40], y[:40])
        kept.append(list(o._engine._programs.values()))
        o.partial_fit(X[40:53], y[40:53])
    assert_same(far, near)
    assert programs(far)["captured", 10, threading.get_ident()] is kept[1][0]
    resident = far._engine._resident
    again = X[:40].copy()
    for o in (near, far):
        again[...] = X[:40]
        o.fit(again, y[:40])
        again[...] = X[20:]  # The same array with other numbers in it.
        o.fit(again, y[:40])
    assert_same(far, near)
    assert far._engine._resident is resident
    for o in (near, far):
        o.fit(X, y)
    assert far._engine._resident is not resident
    for o in (near, far):
        assert "sample_weight" not in [i.name for i in o._engine.graphs()["step"].graph.input]
        o.fit(X, y, w)
        assert "sample_weight" in [i.name for i in o._engine.graphs()["step"].graph.input]
    assert_same(far, near)
    copied = pickle.loads(pickle.dumps(far))
    assert_same(copied.partial_fit(X, y), near.partial_fit(X, y))


def test_batches_from_an_iterable(stand_in):
    X, y, w = data(35)
    batches = [(X[i : i + 10], y[i : i + 10], w[i : i + 10]) for i in range(0, 35, 10)]
    near, far = (o.fit(batches) for o in pair())
    assert_same(far, near)
    assert {key[:2] for key in programs(far)} == {("captured", 10), ("captured", 5)}


def test_the_data_given_are_never_written_to(stand_in):
    X, y, _ = data(30)
    before, o = X.copy(), optimizer(device="cuda", warm_start=True).fit(X, y)
    o.fit(X[::-1].copy(), y)
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("batches", [False, True])
def test_divergence(stand_in, batches):
    X, y, _ = data(60)
    X[33] = 1e30
    near, far = pair(learning_rate=1e3, batch_size=5)
    given = [(X[i : i + 5], y[i : i + 5]) for i in range(0, 60, 5)] if batches else X
    said = []
    for o in (near, far):
        with pytest.raises(ConvergenceError) as error:
            o.fit(given, None if batches else y)
        said.append(str(error.value))
    assert said[0] == said[1]
    assert_same(far, near)
    far.exc = False
    with pytest.warns(ConvergenceWarning, match="The loss is"):
        far.fit(given, None if batches else y)


def test_the_time_is_up(stand_in, monkeypatch):
    """It is looked at before each step: what was taken until then is kept, and what comes after goes on from there."""
    run = Binding.run
    monkeypatch.setattr(Binding, "run", lambda self, options=None: run(self))  # A replay hears of no end.
    X, y, _ = data(2000)
    near, far = pair(batch_size=1, max_iter=100, warm_start=True, learning_rate="Adam", shuffle=False)
    far.timeout = 0.3
    with pytest.raises(DeadlineError, match=r"not over after 0\.3 s"):
        far.fit(X, y)
    steps = int(far.get_state("optimizer")[-1])
    assert steps > 0
    near.max_iter, near.timeout = 1, None
    for _ in range(steps // 2000):
        near.fit(X, y)
    near.fit(X[: steps % 2000], y[: steps % 2000]) if steps % 2000 else None
    for a, b in zip(everything(far), everything(near), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_host_does_nothing_but_launch(stand_in, monkeypatch):
    """Beside the run of a step no memory is written, and what is read is the losses, once a look."""
    X, y, _ = data(1000)
    far = optimizer(device="cuda", warm_start=True, max_iter=1).fit(X, y)
    calls = {"fill": 0, "numpy": 0}

    def counted(name):
        former = getattr(Buffer, name)

        def called(self, *arguments):
            calls[name] += self.device.kind == "cuda"
            return former(self, *arguments)

        return called

    for name in calls:
        monkeypatch.setattr(Buffer, name, counted(name))
    far._engine.epoch(np.arange(1000), 10)
    assert calls == {"fill": 4, "numpy": 1}


def test_recordings(stand_in, monkeypatch):
    """Two of each step, each on a session of its own that is asked to record, and runs in one thread."""
    opened, former = [], Session._open
    monkeypatch.setattr(Session, "_open", lambda s, *a: opened.append(s.device.providers[0][1]) or former(s, *a))
    X, y, _ = data(25)
    far = optimizer(device="cuda:1").fit(X, y)
    assert opened == [{"device_id": "1", "use_tf32": "0", "enable_cuda_graph": "1"}] * 4
    first = programs(far)
    assert {key[:2] for key in first} == {("captured", 10), ("captured", 5)}
    thread = threading.Thread(target=lambda: far.partial_fit(X, y))
    thread.start()
    thread.join()
    assert len(far._engine._programs) == 4
    far.partial_fit(X, y)
    assert len(far._engine._programs) == 4
    assert all(programs(far)[key] is program for key, program in first.items())


def refuse(monkeypatch, message, after=0):
    """Let sessions that are asked to record be refused, all but the first ones."""
    former, asked = Session._open, []

    def opened(self, *arguments):
        if self.device.capture:
            asked.append(self)
            if len(asked) > after:
                raise RuntimeError(message)
        return former(self, *arguments)

    monkeypatch.setattr(Session, "_open", opened)


@pytest.mark.parametrize("after", [0, 2])
def test_where_onnxruntime_refuses(stand_in, monkeypatch, after):
    """Epochs are run as they are without, even if only the last batch is refused; the reason is onnxruntime's."""
    refuse(monkeypatch, "Some nodes are on the CPU.", after)
    X, y, w = data(53)
    near, far = (o.fit(X, y, w).partial_fit(2 * X, y, w) for o in pair(learning_rate="Adam"))
    assert far.train_losses_ == pytest.approx(near.train_losses_, rel=1e-12)
    for a, b in zip(everything(far), everything(near), strict=True):
        np.testing.assert_array_equal(a, b)
    assert far.engine_ == "epoch"
    assert far.engine_reason_.startswith("the device does not record a step: onnxruntime ")
    assert far.engine_reason_.endswith("Some nodes are on the CPU.")
    assert set(far._engine.graphs()) == {"epoch", "step"}


@pytest.mark.parametrize("operator", ["NonZero", "RandomNormalLike"])
def test_what_is_not_recorded(stand_in, operator):
    """Numbers that the runtime draws would be the same in every step, and sizes that follow from the data as well."""
    x, w = variable("x", "float32", ["N", 4]), constant(np.ones((4, 1), np.float32), hint="w")
    other = op.RandomNormalLike(x) if operator[0] == "R" else op.Cast(op.ReduceSum(op.NonZero(x)), to=1)
    X, y, _ = data(20)
    far = optimizer(build([x], {"y": (x + 0 * other) @ w}), device="cuda").fit(X, y)
    assert far.engine_ == "epoch"
    assert far.engine_reason_.startswith(f"the device does not record a step: {operator} (node ")
    assert far.engine_reason_.endswith(" is another one in each step.")


def test_a_model_that_nothing_runs(stand_in, monkeypatch):
    """What is wrong with or without a recording is said as it is without."""
    former = Session._load
    monkeypatch.setattr(Session, "_load", lambda *a: former(*a) and (_ for _ in ()).throw(ModelError("No kernel.")))
    X, y, _ = data(20)
    with pytest.raises(ModelError, match=r"^No kernel\.$"):
        optimizer(device="cuda").fit(X, y)


def test_who_asks_for_an_engine_gets_it(stand_in):
    for engine in ("step", "epoch"):
        o = optimizer(device="cuda", engine=engine)
        assert (o.engine_, o.engine_reason_, isinstance(o._engine, CudaGraphEngine)) == (engine, "asked for", False)
    assert not isinstance(optimizer()._engine, CudaGraphEngine)


def test_sizes_of_rows_that_change(stand_in):
    """Rows of another length are not put where the first ones were, even if they are fewer."""
    x, w = variable("x", "float32", ["N", "M"]), constant(np.ones((1, 1), np.float32), hint="w")
    near, far = pair(build([x], {"y": op.ReduceMean(x, [1], keepdims=1) @ w}))
    X, y, _ = data(40)
    for o in (near, far):
        o.fit(X, y).partial_fit(np.hstack([X[:20], X[20:]]), y[:20])
    assert_same(far, near)


def test_graph(stand_in):
    """The graph itself: a step of a linear model, in numpy."""
    x, w = variable("x", "float32", ["N", 2]), constant(np.zeros((2, 1), np.float32), hint="w")
    o = optimizer(build([x], {"y": x @ w}), learning_rate=0.5, device="cuda")
    graph = cuda_graph_step(o._engine.source.for_rows(2))
    session = Session(graph)
    rng = np.random.default_rng(0)
    X, t, w = (rng.normal(size=s).astype(np.float32) for s in ((5, 2), (5, 1), (2, 1)))
    order = np.tile([[4, 1], [0, 3]], (50, 1))
    feeds = {"x": X, "y_target": t, "order": order, "position": np.array(3), "iteration": np.array(9),
             "losses": np.arange(100, dtype=np.float32), "w": w}
    found = session.run({n: feeds[n] for n in session.inputs})
    e = X[[0, 3]] @ w - t[[0, 3]]
    np.testing.assert_allclose(found["w_new"], w - 0.5 * X[[0, 3]].T @ e, rtol=1e-5)
    assert found["position_new"] == 4
    np.testing.assert_allclose(found["losses_new"], np.where(np.arange(100) == 3, (e**2).mean(), np.arange(100)),
                               rtol=1e-6)


@pytest.mark.cuda
@pytest.mark.parametrize("rate", RATES, ids=lambda r: type(r).__name__)
def test_recorded_on_cuda(rate):
    """On a device, over several looks: recorded steps are those that are run one by one."""
    X, y, w = data(3005)
    step, recorded = (optimizer(engine=e, device="cuda", learning_rate=rate).fit(X, y, w) for e in ("step", "auto"))
    assert (recorded.engine_, recorded._engine._refused) == ("step", False)
    assert_close(recorded.trained_coef_, step.trained_coef_, 1e-5)
    np.testing.assert_allclose(recorded.train_losses_, step.train_losses_, rtol=1e-5)
    again = pickle.loads(pickle.dumps(recorded)).partial_fit(X[:100], y[:100])
    assert_close(again.trained_coef_, step.partial_fit(X[:100], y[:100]).trained_coef_, 1e-5)


@pytest.mark.cuda
def test_a_convolution_recorded_on_cuda():
    X, y = images()
    step, recorded = (optimizer(net(), engine=e, device="cuda").fit(X, y) for e in ("step", "auto"))
    assert not recorded._engine._refused
    assert_close(recorded.trained_coef_, step.trained_coef_, 1e-4)
