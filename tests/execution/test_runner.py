"""All engines take the steps that torch takes."""

import pickle
import sys
import threading

import numpy as np
import pytest
import torch
from models import assert_close, data, linear, mlp, torch_linear, torch_mlp, weights_of

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import DataError, DeviceError, SettingError
from ortpartial.execution import WeightedMean, select_for_fit, shape_policy
from ortpartial.execution import runner as engine_module
from ortpartial.execution.epoch_engine import EpochEngine
from ortpartial.execution.rows import Batch
from ortpartial.execution.step_engine import StepEngine
from ortpartial.graph import build, constant, op, variable
from ortpartial.learning.optimizers import LearningRateAdam, LearningRateSGD, LearningRateSGDNesterov
from ortpartial.learning.penalties import ElasticLearningPenalty
from ortpartial.learning.schedules import OptimalSchedule
from ortpartial.runtime import buffer, device
from ortpartial.runtime import session as runtime
from ortpartial.runtime.device import Device
from ortpartial.runtime.session import Session
from ortpartial.training.engine_selection import select_for_backward

ENGINES = ["step", "epoch", pytest.param("agent", marks=pytest.mark.agent)]
MODELS = {"linear": (linear, torch_linear), "mlp": (mlp, torch_mlp)}
RATES = {
    "sgd": (LearningRateSGD(0.05), lambda p: torch.optim.SGD(p, lr=0.05)),
    "momentum": (LearningRateSGDNesterov(0.02, nesterov=False), lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9)),
    "nesterov": (LearningRateSGDNesterov(0.02), lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True)),
    "adam": (LearningRateAdam(0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
}
L1, L2 = 0.01, 0.1


def optimizer(model, engine="step", **settings):
    return Optimizer(model, engine=engine, random_state=0, **{"max_iter": 5, **settings})


def torch_training(model, forward, make_rate, X, y, sample_weight, penalty, *, epochs=5, batch_size=10, eta=None,
                   names=None):
    """Weights and losses after the same batches in torch, in float64."""
    w = {n: torch.tensor(a, dtype=torch.float64) for n, a in weights_of(model).items()}
    trained = [v.requires_grad_() for n, v in w.items() if names is None or n in names]
    rate, rng = make_rate(trained), np.random.default_rng(0)
    s = np.ones(len(X)) if sample_weight is None else sample_weight
    X, y, s = (torch.tensor(a, dtype=torch.float64) for a in (X, y, s))
    losses, k = [], 0
    for _ in range(epochs):
        order, total = rng.permutation(len(X)), 0.0
        for start in range(0, len(X), batch_size):
            rows, k = torch.tensor(order[start : start + batch_size]), k + 1
            loss = (s[rows] * ((forward(w, X[rows]) - y[rows]) ** 2).mean(1)).sum() / s[rows].sum()
            total += (loss.detach() * s[rows].sum()).item()
            cost = sum(L1 * v.abs().sum() + L2 / 2 * (v * v).sum() for v in trained if v.ndim > 1) if penalty else 0
            rate.zero_grad()
            (loss + cost).backward()
            if eta is not None:
                rate.param_groups[0]["lr"] = eta(k)
            rate.step()
        losses.append(total / s.sum().item())
    return {n: v.detach().numpy() for n, v in w.items()}, losses


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("penalty", [False, True], ids=["free", "penalty"])
def test_follows_torch(engine, name, rate, weighted, penalty):
    make, forward = MODELS[name]
    model, (X, y, s), (setting, make_rate) = make(), data(195), RATES[rate]
    s = s if weighted else None
    cost = ElasticLearningPenalty(L1, L2) if penalty else None
    found = optimizer(model, engine, learning_rate=setting, learning_penalty=cost).fit(X, y, s)
    expected, losses = torch_training(model, forward, make_rate, X, y, s, penalty)
    assert_close(found.trained_coef_, expected, 1e-5)
    np.testing.assert_allclose(found.train_losses_, losses, rtol=1e-5)


@pytest.mark.agent
@pytest.mark.parametrize("rate", RATES)
def test_engines_agree(rate):
    X, y, s = data(195)
    step, agent = (optimizer(mlp(), e, learning_rate=RATES[rate][0]).fit(X, y, s) for e in ("step", "agent"))
    assert_close(step.trained_coef_, agent.trained_coef_, 1e-5)
    assert_close(dict(enumerate(step.get_state("optimizer"))), dict(enumerate(agent.get_state("optimizer"))), 1e-4)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("rate", "eta"),
    [
        (LearningRateSGD(0.05, schedule="invscaling"), lambda k: 0.05 / k**0.5),
        (LearningRateSGD(schedule=OptimalSchedule(alpha=0.05)), lambda k: 1 / (0.05 * (0.05**-0.75 + k))),
    ],
    ids=["invscaling", "optimal"],
)
def test_schedules(engine, rate, eta):
    X, y, _ = data(55)
    found = optimizer(linear(), engine, learning_rate=rate).fit(X, y)
    expected, _ = torch_training(linear(), torch_linear, RATES["sgd"][1], X, y, None, False, eta=eta)
    assert_close(found.trained_coef_, expected, 1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_float64(engine):
    X, y, s = data(55, dtype="float64")
    found = optimizer(mlp(dtype="float64"), engine, learning_rate=RATES["adam"][0]).fit(X, y, s)
    expected, _ = torch_training(mlp(dtype="float64"), torch_mlp, RATES["adam"][1], X, y, s, False)
    assert found.trained_coef_["W1"].dtype == np.float64
    assert_close(found.trained_coef_, expected, 1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("names", [["b2", "W1"], ["W2"], ["b1"], ["b2", "W2", "b1", "W1"]], ids=" ".join)
def test_weights_in_any_order_and_subset(engine, names):
    model, (X, y, _) = mlp(), data(50)
    found = optimizer(model, engine, weights_to_train=names).fit(X, y)
    assert list(found.trained_coef_) == names
    after = weights_of(found.get_trained_onnx())
    assert all((after[n] == a).all() for n, a in weights_of(model).items() if n not in names)
    rate = lambda w: torch.optim.SGD(w, lr=0.01)  # noqa: E731
    expected, _ = torch_training(model, torch_mlp, rate, X, y, None, False, names=names)
    assert_close(after, expected, 1e-5)


@pytest.mark.parametrize("batch_size", [1, 7, 10, 100])
def test_every_row_once_an_epoch(monkeypatch, batch_size):
    seen = []
    gather = Batch.gather
    monkeypatch.setattr(Batch, "gather", lambda self, rows: [seen.append(rows.copy()), gather(self, rows)])
    X, y, _ = data(23)
    optimizer(linear(), batch_size=batch_size, max_iter=3).fit(X, y)
    rows = np.concatenate(seen).reshape(3, 23)
    assert (np.sort(rows) == np.arange(23)).all()
    assert not (rows[0] == rows[1]).all()
    sizes = [min(batch_size, 23 - start) for start in range(0, 23, batch_size)]
    assert [len(s) for s in seen] == sizes * 3


def test_without_shuffle_the_order_is_that_of_the_data():
    X, y, _ = data(30)
    a = optimizer(linear(), shuffle=False).fit(X, y)
    b = Optimizer(linear(), shuffle=False, random_state=7, max_iter=5).fit(X, y)
    assert all((u == v).all() for u, v in zip(a.get_state(), b.get_state(), strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_weight_of_zero_leaves_a_row_out(engine):
    X, y, s = data(40)
    s[25:] = 0
    found = optimizer(linear(), engine, batch_size=40).fit(X, y, s)
    expected = optimizer(linear(), engine, batch_size=25).fit(X[:25], y[:25], s[:25])
    assert_close(found.trained_coef_, expected.trained_coef_, 1e-5)
    np.testing.assert_allclose(found.train_losses_, expected.train_losses_, rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_model_given_is_never_written_to(engine):
    model, (X, y, _) = mlp(), data()
    before = model.SerializeToString()
    optimizer(model, engine).fit(X, y).get_trained_onnx()
    assert model.SerializeToString() == before


def test_choice():
    assert select_for_fit("auto") == (EpochEngine, "one graph an epoch runs on any onnxruntime and is the fastest")
    assert select_for_backward("epoch", linear()) == ("step", "forward and backward apart know no epoch")
    assert select_for_fit("step") == (StepEngine, "asked for")
    with pytest.raises(SettingError, match="engine='fast' is not known; leave it at 'auto'"):
        select_for_fit("fast")
    with pytest.raises(SettingError, match="engine='fast' is not known"):
        select_for_backward("fast", linear())


@pytest.mark.agent
def test_agent_is_chosen_for_backward():
    assert select_for_backward("auto", linear())[0] == "agent"


def test_programs_of_many_batch_sizes_do_not_pile_up():
    X, y, _ = data(40)
    o = optimizer(linear(), batch_size=40)
    for rows in range(1, 40):
        o.partial_fit(X[:rows], y[:rows])
    assert [key.shapes[0][1] for key in o._engine._programs] == [(1, 4), (2, 4), (-1, -1)]
    assert o._engine.iteration == o.n_iter_ == 39


@pytest.mark.filterwarnings("ignore:Duplicate provider")
def test_memory_of_a_device(monkeypatch):
    """The way of a GPU, whose memory numpy cannot read, taken by a device that is the CPU: the same, bit for bit."""
    X, y, w = data(33)
    near = optimizer(mlp(), learning_rate="Adam").fit(X, y, w)
    kept, borrowing = [], buffer.to_ortvalue

    def owning(array, device):
        kept.append(array if device.shares_memory else array.copy())
        return borrowing(kept[-1], device)

    monkeypatch.setitem(device._PROVIDERS, "cuda", "CPUExecutionProvider")
    monkeypatch.setattr(Device, "ort", Device().ort)
    for module in (buffer, runtime):
        monkeypatch.setattr(module, "to_ortvalue", owning)
    far = optimizer(mlp(), learning_rate="Adam", device="cuda").fit(X, y, w)
    assert all(b.array is None for side in far._engine.buffers for b in side.values())
    assert far.train_losses_ == near.train_losses_
    assert all((a == b).all() for a, b in zip(far.get_state(), near.get_state(), strict=True))
    assert (far.predict(X) == near.predict(X)).all()
    far.partial_fit(X, y, w)
    near.partial_fit(X, y, w)
    assert all((a == b).all() for a, b in zip(far.get_state("optimizer"), near.get_state("optimizer"), strict=True))
    with pytest.raises(DeviceError, match=r"engine='agent' trains on the CPU alone, not on 'cuda'; use engine='step'"):
        optimizer(mlp(), engine="agent", device="cuda")


@pytest.mark.filterwarnings("ignore:Duplicate provider")
@pytest.mark.parametrize("engine", ["step", "epoch"])
def test_the_number_of_a_device_is_meant_everywhere(monkeypatch, engine):
    """Sessions, and memory that is not the host's, are on the device that was named, and on no other."""
    seen, kept, borrowing, opening = set(), [], buffer.to_ortvalue, Session._open

    def placed(array, device):
        seen.add(str(device))
        kept.append(array if device.shares_memory else array.copy())
        return borrowing(kept[-1], device)

    def opened(self, *arguments):
        seen.add(self.device.providers[0][1]["device_id"])
        return opening(self, *arguments)

    monkeypatch.setitem(device._PROVIDERS, "cuda", "CPUExecutionProvider")
    monkeypatch.setattr(Device, "ort", Device().ort)
    for module in (buffer, runtime):
        monkeypatch.setattr(module, "to_ortvalue", placed)
    monkeypatch.setattr(Session, "_open", opened)
    X, y, w = data(33)
    o = optimizer(mlp(), learning_rate="Adam", device="cuda:1", engine=engine).fit(X, y, w, X, y)
    o.predict(X)
    assert seen == {"cpu", "cuda:1", "1"}


@pytest.mark.cuda
@pytest.mark.parametrize("name", MODELS)
def test_cuda(name):
    X, y, w = data(33)
    near, far = (optimizer(MODELS[name][0](), learning_rate="Adam", device=d).fit(X, y, w) for d in ("cpu", "cuda"))
    assert_close(far.trained_coef_, near.trained_coef_, 1e-5)
    np.testing.assert_allclose(far.train_losses_, near.train_losses_, rtol=1e-5)
    np.testing.assert_allclose(far.predict(X), near.predict(X), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(far.losses(X, y), near.losses(X, y), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("long", "rows", "chunk"), [
    (0, 64, 2000), (10**9, 0, 2000), (10**9, 64, 2000), (10**9, 64, 2)],
    ids=["long", "many rows", "short", "chunks"])
def test_an_epoch_in_one_run_or_several_is_the_same(monkeypatch, limit, long, rows, chunk):
    """Whether an epoch is one run or several, and how long a chunk of it is, changes no bit."""
    limit(scanned_step=long, scanned_rows=rows)
    monkeypatch.setattr("ortpartial.execution.epoch_engine._CHUNK", chunk)
    X, y, w = data(53)
    found, expected = (optimizer(mlp(), engine=e, learning_rate="Adam").fit(X, y, w) for e in ("epoch", "step"))
    assert found.train_losses_ == pytest.approx(expected.train_losses_, rel=1e-12)
    states = [o.get_state() + o.get_state("optimizer") for o in (found, expected)]
    assert all((a == b).all() for a, b in zip(*states, strict=True))
    assert any(key.kind == "epoch" for key in found._engine._programs) == (long > 0 < rows)


def calls(f):
    """Functions that Python calls, its own and those in C: unlike time, the same number on a busy machine."""
    count = 0

    def called(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        f()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(("engine", "most"), [("step", 10), ("epoch", 0)])
def test_what_a_step_costs_beside_onnxruntime(engine, most):
    """A step of the step engine calls little, and one of the epoch engine nothing."""
    X, y, _ = data(2000)
    o = optimizer(mlp(), engine, warm_start=True, max_iter=1)
    o.fit(X, y)  # compiles
    few, many = (calls(lambda n=n: o.fit(X[:n], y[:n])) for n in (1000, 2000))
    assert (many - few) / 100 <= most


def test_a_short_fit_starts_no_thread(monkeypatch):
    X, y, _ = data(20)
    o = optimizer(linear()).fit(X, y)
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread"))
    assert calls(lambda: o.fit(X, y)) < 600


# -- batches of many shapes ----------------------------------------------------------------------------------------


def words(rows="N"):
    """The mean of embedded words, through a layer: rows of any length."""
    rng = np.random.default_rng(0)
    x = variable("x", "int64", [rows, "L"])
    table, w = (constant(rng.normal(size=s).astype(np.float32), hint=n) for n, s in (("table", (9, 4)), ("w", (4, 1))))
    return build([x], {"y": op.ReduceMean(op.Tanh(op.Gather(table, x, axis=0)), [1], keepdims=0) @ w})


def batches_of(shapes):
    rng = np.random.default_rng(1)
    return [(rng.integers(0, 9, shape), rng.normal(size=(shape[0], 1)).astype(np.float32)) for shape in shapes]


SHAPES = [(rows, length) for rows in (8, 5, 8) for length in (3, 7, 2, 5, 3, 4, 6)]


@pytest.mark.parametrize("engine", ENGINES)
def test_batches_of_many_shapes_share_a_program(engine, monkeypatch):
    """Two shapes have programs of their own, the others one; nothing is compiled later, and the numbers are torch's."""
    batches = batches_of(SHAPES)
    o = optimizer(words(), engine, learning_rate=LearningRateAdam(0.01), max_iter=1, warm_start=True).fit(batches)
    programs = dict(o._engine._programs)
    assert [dict(key.shapes)["x"] for key in programs] == [(8, 3), (8, 7), (-1, -1)]
    monkeypatch.setattr(Session, "_open", lambda *_: pytest.fail("a program was compiled again"))
    o.fit(batches)
    o.partial_fit(*batches[2])
    assert o._engine._programs == programs

    table, w = (torch.tensor(weights_of(words())[n], requires_grad=True) for n in ("table", "w"))
    adam = torch.optim.Adam([table, w], lr=0.01)
    for x, y in [*batches, *batches, batches[2]]:
        adam.zero_grad()
        ((torch.tanh(table[torch.tensor(x)]).mean(1) @ w - torch.tensor(y)) ** 2).mean().backward()
        adam.step()
    assert_close(o.trained_coef_, {"table": table.detach().numpy(), "w": w.detach().numpy()}, 1e-4)


@pytest.mark.parametrize("engine", ["step", "epoch"])
def test_many_shapes_train_reproducibly(engine, monkeypatch):
    """Also after a fit before, from a pickle in between, and by both engines: programs are chosen by counting steps."""
    monkeypatch.setattr(shape_policy, "_PAYS_AFTER", 4)
    batches = batches_of(SHAPES)
    expected = optimizer(words(), "step", max_iter=4).fit(batches)
    o = optimizer(words(), engine, max_iter=4).fit(batches_of([(3, 3)])).fit(batches)
    half = pickle.loads(pickle.dumps(optimizer(words(), engine, max_iter=2, warm_start=True).fit(batches))).fit(batches)
    assert any(dict(key.shapes)["x"] == (8, 2) for key in half._engine._programs)
    for other in (o, half):
        for a, b in zip(other.get_state(), expected.get_state(), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("length", "threads"), [(2, 1), (12_000, None)])
def test_threads_of_a_program_for_all_shapes(monkeypatch, length, threads):
    """As many as the first batch would use; what is assumed for unknown sizes would be too large, or too small."""
    used, former = [], Session.__init__

    def opened(self, model, **settings):
        used.append((model.graph.name, settings["threads"]))
        former(self, model, **settings)

    monkeypatch.setattr(Session, "__init__", opened)
    o = optimizer(words(), max_iter=1).fit(batches_of([(8, length), (8, length + 1), (8, length + 2)]))
    assert [key.threads for key in o._engine._programs] == [None, None, threads]
    assert used[-1] == ("step", threads)


def test_programs_of_former_trainings_make_room():
    o = optimizer(words(), max_iter=1)
    for rows in range(1, 30):
        o.fit(batches_of([(rows, 3), (rows, 4)]))
    assert len(o._engine._programs) == engine_module._PROGRAMS


def test_shapes_that_do_not_fit_together():
    a, b = variable("a", "float32", ["N", "A"]), variable("b", "float32", ["N", "B"])
    model = build([a, b], {"y": op.ReduceMean(a + b, [1]) * constant(np.ones(1, np.float32), hint="w")})
    with pytest.raises(DataError, match="does not take inputs of these shapes"):
        optimizer(model).fit({"a": np.ones((4, 2), np.float32), "b": np.ones((4, 3), np.float32)}, np.ones((4, 1)))


def test_a_mean_whose_losses_come_in_parts():
    """To the bit that of all in one; what waits counts before."""
    losses, weights = np.random.default_rng(0).random((2, 100))
    whole, parts = WeightedMean(), WeightedMean()
    whole.add(float(losses @ weights), float(weights.sum()))
    for start, stop in ((0, 1), (1, 40), (40, 99)):
        parts.collect(losses[start:stop], weights[start:stop], 100)
        assert parts.value == pytest.approx(np.average(losses[:stop], weights=weights[:stop]))
    again, before = WeightedMean.from_state(parts.state), parts.value
    for mean in (parts, again):
        assert (mean.waiting, mean.total, mean.value) == (99, 0, before)
        mean.collect(losses[99:], weights[99:], 100)
        assert (mean.waiting, mean.total, mean.weight, mean.value) == (0, whole.total, whole.weight, whole.value)
