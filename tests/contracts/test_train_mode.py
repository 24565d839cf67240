"""Training mode: steps equal those of torch, and resumed, replayed and exported trainings agree."""

import copy
import io
import pickle
import warnings

import numpy as np
import onnx
import pytest
import torch
from models import assert_close, images, net, normalization, parameter, weights_of
from onnx import numpy_helper

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import ConvergenceWarning, ModelError, ModelWarning, SettingError
from ortpartial.graph.build import build
from ortpartial.graph.control_flow import scan
from ortpartial.graph.ops import constant, op, variable
from ortpartial.learning.optimizers import LearningRateAdam, LearningRateSGD
from ortpartial.model.load import load
from ortpartial.runtime.session import Session

ENGINES = ["step", "epoch"]
STATISTICS = ["mean1", "var1", "mean2", "var2"]
X, Y = images()


def dropped(ratio=0.5, n=20):
    """y = w · Dropout(x): with X of ones, a mask times w."""
    x = variable("x", "float32", ["N", n])
    return build([x], {"y": op.Dropout(x, constant(np.float32(ratio).reshape(()))) * parameter("w", n)})


def optimizer(model=None, engine="step", **settings):
    first = {"random_state": 0, "max_iter": 5, "learning_rate": LearningRateAdam(0.01), "train_mode": True}
    return Optimizer(net() if model is None else model, engine=engine, **first | settings)


def everything(o):
    return [o.train_losses_, *(a.tolist() for kind in ("weight", "optimizer", "buffer") for a in o.get_state(kind))]


def torch_net(w, x):
    """The outputs, and the means and variances of the batch at both normalizations."""
    statistics = {}

    def normalized(h, i, eps):
        axes = [0, *range(2, h.ndim)]
        statistics[f"mean{i}"], statistics[f"var{i}"] = h.mean(axes), h.var(axes, correction=0)
        return torch.nn.functional.batch_norm(h, None, None, w[f"scale{i}"], w[f"b{i}"], training=True, eps=eps)

    h = torch.relu(normalized(torch.nn.functional.conv2d(x, w["K"]), 1, 1e-3))
    return normalized(h.flatten(1) @ w["W"], 2, 1e-5), statistics


@pytest.mark.parametrize("engine", ENGINES)
def test_fifty_steps_of_torch(engine):
    """Running variances are population variances; those of torch are larger by n / (n - 1)."""
    o = optimizer(engine=engine).fit(X, Y)
    assert o.weights_to_train == ["K", "scale1", "b1", "W", "scale2", "b2"]
    w = {n: torch.tensor(a, dtype=torch.float64) for n, a in weights_of(net()).items()}
    rate = torch.optim.Adam([w[n].requires_grad_() for n in o.weights_to_train], lr=0.01)
    rng = np.random.default_rng(0)
    rng.integers(-(2**31), 2**31, 2)  # the seed of the masks is drawn first
    x, y = (torch.tensor(a, dtype=torch.float64) for a in (X, Y))
    for _ in range(5):
        order = rng.permutation(100)
        for rows in order.reshape(10, 10):
            out, batch = torch_net(w, x[rows])
            rate.zero_grad()
            ((out - y[rows]) ** 2).mean().backward()
            rate.step()
            for n, b in batch.items():
                momentum = 0.8 if n[-1] == "1" else 0.9
                w[n] = w[n] * momentum + b.detach() * (1 - momentum)
    arrays = {n: a.detach().numpy() for n, a in w.items()}
    statistics = dict(zip(STATISTICS, o.get_state("buffer"), strict=False))
    assert_close({**o.trained_coef_, **statistics}, arrays, 5e-5)
    # The trained model is in inference mode, with the current statistics.
    trained = o.get_trained_onnx()
    assert_close(weights_of(trained), arrays, 5e-5)
    assert [n.op_type for n in trained.graph.node] == [n.op_type for n in net().graph.node]
    expected = Session(trained).run({"x": X})["y"]
    np.testing.assert_allclose(o.predict(X), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(o.losses(X, Y), ((expected - Y) ** 2).mean(1), rtol=1e-5)
    np.testing.assert_allclose(o.forward([X])[0][0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ratio", [None, 0.3])
@pytest.mark.parametrize("rows", [100, 97])
def test_step_and_epoch_are_the_same_to_the_last_bit(ratio, rows):
    a, b = (optimizer(net(ratio), engine).fit(X[:rows], Y[:rows]) for engine in ENGINES)
    assert everything(a) == everything(b)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ratio", [0.25, 0.5])
def test_masks(engine, ratio):
    """With inputs of one and targets of zero, a step of w shows which elements were kept."""
    o = optimizer(dropped(ratio, 2000), engine, learning_rate=LearningRateSGD(0.1), batch_size=1, max_iter=1)
    ones, zeros = np.ones((1, 2000), np.float32), np.zeros((1, 2000), np.float32)
    kept = []
    for _ in range(200):
        before = o.get_state()[0]
        kept.append(o.partial_fit(ones, zeros).get_state()[0] != before)
    kept = np.array(kept)
    error = np.sqrt(ratio * (1 - ratio) / 2000)
    assert abs(kept.mean() - (1 - ratio)) < 4 * error / np.sqrt(200)
    assert 0.7 < kept.mean(1).std() / error < 1.3
    after = before * (1 - 0.1 * 2 / 2000 / (1 - ratio) ** 2)
    np.testing.assert_allclose(o.get_state()[0][kept[-1]], after[kept[-1]], rtol=1e-5)
    np.testing.assert_allclose(o.predict(ones), o.get_state()[0][None])


@pytest.mark.parametrize("model", [net, dropped])
def test_checkpointing(model):
    """Gradient checkpointing keeps one copy of the weights, and the same masks, weights and statistics."""
    x, y = (X, Y) if model is net else (np.ones((30, 20), np.float32), np.ones((30, 20), np.float32))
    plain, lean = (optimizer(model(), checkpointing=c).fit(x, y) for c in (None, "auto"))
    assert (plain._engine.copies, lean._engine.copies) == (2, 1)
    for kind in ("weight", "optimizer", "buffer"):
        for a, b in zip(lean.get_state(kind), plain.get_state(kind), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    again = pickle.loads(pickle.dumps(lean)).partial_fit(x, y)
    assert everything(again) == everything(lean.partial_fit(x, y))


@pytest.mark.parametrize("engine", ENGINES)
def test_random_state_decides(engine):
    a, b, c = (optimizer(net(0.5), engine, random_state=seed).fit(X, Y) for seed in (0, 0, 1))
    assert everything(a) == everything(b)
    assert everything(a) == everything(a.fit(X, Y))
    assert a.train_losses_ != c.train_losses_


def test_masks_of_every_step_differ():
    o = optimizer(dropped(), shuffle=False, learning_rate=LearningRateSGD(1e-30), max_iter=20, batch_size=1)
    o.fit(np.ones((5, 20), np.float32), np.zeros((5, 20), np.float32))
    assert len(set(o.train_losses_)) == 20


@pytest.mark.parametrize("engine", ENGINES)
def test_a_training_in_two_halves(engine):
    whole = optimizer(net(0.5), engine, max_iter=6).fit(X, Y)
    half = optimizer(net(0.5), engine, max_iter=3).fit(X, Y)
    again = pickle.loads(pickle.dumps(half))
    other = optimizer(net(0.5), engine, max_iter=3, random_state=9, warm_start=True)
    for kind in ("weight", "optimizer", "buffer"):
        other.set_state(half.get_state(kind), kind)
    other._rng, other.train_losses_ = copy.deepcopy(half._rng), list(half.train_losses_)
    for o in (half.set_params(warm_start=True), again.set_params(warm_start=True), other):
        assert everything(o.fit(X, Y)) == everything(whole)


def test_a_pickle_keeps_a_seed_drawn_at_random():
    o = optimizer(net(0.5), random_state=None, max_iter=2).fit(X, Y)
    again = pickle.loads(pickle.dumps(o))
    assert everything(again) == everything(o)
    assert everything(again.partial_fit(X, Y)) == everything(o.partial_fit(X, Y))
    assert (optimizer(net(0.5), random_state=None).get_state("buffer")[-1] != o.get_state("buffer")[-1]).any()


@pytest.mark.parametrize("engine", ENGINES)
def test_divergence_keeps_the_last_finite_step(engine):
    """The state equals that of a training which ended at this step, masks and statistics included."""
    def rate():
        return LearningRateSGD(30.0)

    diverged = optimizer(net(0.2), engine, learning_rate=rate(), raise_on_divergence=False, max_iter=100, shuffle=False)
    with pytest.warns(ConvergenceWarning):
        diverged.fit(X * 1e4, Y * 1e10)
    k = diverged.get_state("optimizer")[-1]
    assert 0 < k < 1000
    other = optimizer(net(0.2), learning_rate=rate(), shuffle=False)
    for i in range(k):
        rows = slice(i % 10 * 10, i % 10 * 10 + 10)
        other.partial_fit(X[rows] * 1e4, Y[rows] * 1e10)
    assert everything(diverged)[1:] == everything(other)[1:]


def test_a_model_that_was_exported_in_training_mode():
    model = net(0.5)
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            node.attribute.add(name="training_mode", type=onnx.AttributeProto.INT, i=1)
            node.output.extend(f"{n}_{node.output[0]}" for n in ("mean", "var"))
        elif node.op_type == "Dropout":
            node.input.extend([""] * (2 - len(node.input)) + ["on"])
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "on"))
    exported, plain = (optimizer(m).fit(X, Y) for m in (model, net(0.5)))
    assert everything(exported) == everything(plain)
    np.testing.assert_array_equal(exported.predict(X), plain.predict(X))


def test_without_train_mode_the_model_runs_as_exported():
    o = optimizer(net(0.5), train_mode=False).fit(X, Y)
    assert o.get_state("buffer") == []
    after = weights_of(o.get_trained_onnx())
    assert all((after[n] == weights_of(net())[n]).all() for n in STATISTICS)


def test_a_model_without_training_mode():
    model, b = net(statistics=False), optimizer(net(statistics=False), train_mode=False, shuffle=False).fit(X, Y)
    with pytest.warns(ModelWarning, match="train_mode=True changes nothing, as the model has no Dropout and no"):
        a = optimizer(model, shuffle=False).fit(X, Y)
    assert a.train_losses_ == b.train_losses_
    assert [len(o.get_state("buffer")) for o in (a, b)] == [1, 0]


def test_one_normalization_twice():
    """Statistics that two nodes share are updated by the first, then by the second."""
    x, own = variable("x", "float32", ["N", 2]), [parameter(n, 2, positive=n != "b") for n in ("s", "b", "mean", "var")]
    h, = op.BatchNormalization(x, *own, n_outputs=1)
    y, = op.BatchNormalization(3 * h + 1, *own, n_outputs=1)
    X2, first = X[:, :, 0, 0], weights_of(model := build([x], {"y": y}))
    o = optimizer(model, batch_size=100).partial_fit(X2, Y)
    mean, var = X2.mean(0), X2.var(0)
    second = 3 * ((X2 - mean) / np.sqrt(var + 1e-5) * first["s"] + first["b"]) + 1
    for name, batches, statistic in zip(("mean", "var"), ((mean, second.mean(0)), (var, second.var(0))),
                                    o.get_state("buffer"), strict=False):
        r = first[name]
        for b in batches:
            r = r * 0.9 + b * 0.1
        np.testing.assert_allclose(statistic, r, rtol=1e-5)


def test_only_what_is_trained_moves():
    x, y = variable("x", "float32", ["N", 2]), variable("z", "float32", ["N", 2])
    a, b = normalization(x @ parameter("W", 2, 2), 2, 1), normalization(y @ parameter("V", 2, 2), 2, 2)
    o = optimizer(build([x, y], {"a": a, "b": b}), learning_loss={"a": "square_error"}).fit(X[:, :, 0, 0], {"a": Y})
    assert [len(a) for a in o.get_state("buffer")] == [2, 2, 2]
    assert (weights_of(o.get_trained_onnx())["mean2"] == weights_of(o._spec.model.proto)["mean2"]).all()


def test_settings():
    o = optimizer(net(0.5)).fit(X, Y)
    assert o.get_params()["train_mode"] is True
    quiet = o.set_params(train_mode=False)
    assert quiet.get_state("buffer") == []
    assert set(o.save_onnx_graph(bytes)) >= {"predict", "step", "losses"}
    for graph in optimizer(net(0.5), "epoch").save_onnx_graph(bytes).values():
        onnx.checker.check_model(onnx.ModelProto.FromString(graph), full_check=True)


@pytest.mark.parametrize(("settings", "message"), [
    ({"engine": "agent"}, "train_mode=True trains with engine='step' or 'epoch', in one process, not engine='agent'"),
    ({"distributed": True}, "in one process, not distributed=True"),
])
def test_who_cannot(settings, message):
    with pytest.raises(SettingError, match=message):
        optimizer(**settings)


def shared():
    x, own = variable("x", "float32", ["N", 2]), [parameter(n, 2, positive=True) for n in ("s", "b", "var")]
    return build([x], {"y": op.BatchNormalization(x, own[0], own[1], own[1], own[2], n_outputs=1)[0]})


def in_a_loop():
    x = variable("x", "float32", ["N", 3, 2])
    own = [parameter(n, 2, positive=True) for n in ("s", "b", "mean", "var")]
    y = scan(lambda row: [op.BatchNormalization(row, *own, n_outputs=1)[0]], [], [op.Transpose(x, perm=[1, 0, 2])])
    return build([x], {"y": y})


@pytest.mark.parametrize(("model", "weights", "message"), [
    (net(), ["K", "mean1"], "'mean1' is a running statistic, which train_mode=True updates by itself"),
    (shared(), ["s"], "'b' is a running statistic, and .*BatchNormalization.* reads it for something else"),
    (in_a_loop(), ["s"], "BatchNormalization.* is in the body of a branch or a loop"),
], ids=["trained", "merged", "loop"])
def test_which_models_cannot(model, weights, message):
    with pytest.raises(ModelError, match=message):
        optimizer(model, weights_to_train=weights)


# Exports of torch


def module():
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.Flatten(), torch.nn.Dropout(),
              torch.nn.Linear(27, 2)]
    return torch.nn.Sequential(*layers)


def export(m, **settings):
    """By either exporter; tracing updates running statistics, so that it is the module after the export that counts."""
    stream, rows = io.BytesIO(), torch.tensor(X[:4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.13.0 warns about its own code, and that one exporter is deprecated.
        if settings["dynamo"]:
            return torch.onnx.export(m, (rows,), dynamic_shapes=({0: "N"},), verbose=False, **settings).model_proto
        torch.onnx.export(m, (rows,), stream, opset_version=17, input_names=["x"], dynamic_axes={"x": {0: "N"}},
                          **settings)
    return onnx.load_from_string(stream.getvalue())


#: Settings of torch's exporters that keep both.
KEEPING = {"TorchScript": {"dynamo": False, "training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False},
           "dynamo": {"dynamo": True, "optimize": False}}


@pytest.mark.parametrize("settings", KEEPING.values(), ids=KEEPING)
def test_training_exports(settings):
    """They train in both modes, and predict in inference mode, where no row depends on another."""
    m = module().train()
    model = export(m, **settings)
    expected = m.eval()(torch.tensor(X)).detach()
    for o in (optimizer(model), optimizer(model, train_mode=False), optimizer(load(model), train_mode=False)):
        assert {node.op_type for node in o.get_trained_onnx().graph.node} >= {"BatchNormalization", "Dropout"}
        assert o.weights_to_train == [n for n, _ in m.named_parameters()]
        np.testing.assert_allclose(o.predict(X), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(o.predict(X[:7]), o.predict(X)[:7], rtol=1e-5, atol=1e-6)
        before = o.get_state("buffer")[:2]
        o.partial_fit(X, Y)
        assert all((a != b).any() for a, b in zip(before, o.get_state("buffer"), strict=False))
        again = pickle.loads(pickle.dumps(o)).set_params(batch_size=3)
        np.testing.assert_array_equal(again.predict(X), o.predict(X))


@pytest.mark.parametrize("settings", [{"dynamo": False}, {"dynamo": True}], ids=["TorchScript", "dynamo"])
def test_exports_that_fold_the_modes(settings):
    model = export(module().eval(), **settings)
    with pytest.warns(ModelWarning) as caught:
        optimizer(model)
    assert "ortpartial.torch.export(module, *example), which keeps BatchNormalization" in str(caught[0].message)
    assert len(caught) == 1
    assert caught[0].filename == __file__


@pytest.mark.parametrize("train_mode", [False, True])
def test_statistics_that_are_not_stored(train_mode):
    """torch's exporters write a BatchNormalization without running statistics in this way."""
    x = variable("x", "float32", ["N", 2])
    mean = op.ReduceMean(x, [0], keepdims=0)
    y, *_ = op.BatchNormalization(x, parameter("s", 2), parameter("b", 2), mean, op.Abs(mean), training_mode=1,
                                  n_outputs=3)
    with pytest.warns(ModelWarning, match="<Node .*BatchNorm.*> was exported in training mode and has no running"):
        o = optimizer(build([x], {"y": y}), train_mode=train_mode)
    assert not np.allclose(o.predict(X[:7, :, 0, 0]), o.predict(X[:, :, 0, 0])[:7], rtol=1e-3)
