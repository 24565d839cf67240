"""Mixed precision of a module: that of the optimizer, with its words; skipped updates, losses, and files."""

import numpy as np
import pytest
from models import assert_close, data

from ortpartial import OrtGradientForwardBackwardOptimizer, TrainingSession, nn, op
from ortpartial.exceptions import ModelError, SettingError
from ortpartial.graph import cond, topological
from ortpartial.learning import LearningRateAdam
from ortpartial.rewrites import LossScale

X, Y, _ = data(40)
#: So large that the first gradients overflow float32, which happens on any runtime.
HUGE = LossScale(init_scale=2.0**126, growth_interval=4)


class Layers(nn.Module):
    def __init__(self, between=(), rate=0.05, **settings):
        self.first, self.last, self.between = nn.Linear(4, 8), nn.Linear(8, 1), list(between)
        self.set_optimizer(rate, **settings)

    def forward(self, x):
        h = op.Tanh(self.first(x))
        for layer in self.between:
            h = layer(h)
        return self.last(h)


def fit(make=Layers, y=Y, engine="auto", **settings):
    module = make().compile(nn.placeholder(["N", 4]), random_state=0, engine=engine, **settings)
    return module.fit(X, y, epochs=3, batch_size=10, shuffle=False)


def optimizer(**settings):
    """The optimizer on the same network."""
    proto = Layers().compile(nn.placeholder(["N", 4]), random_state=0).to_onnx()
    return OrtGradientForwardBackwardOptimizer(proto, batch_size=10, shuffle=False, **settings)


def count_products(module):
    """The products of a step by the dtype of what they read."""
    step = module._program.runner.source.for_rows(10).compose()
    return [node.reads[0].dtype.name for node in topological(list(step.outputs.values()))
            if node.op_type in ("Gemm", "MatMul")]


@pytest.mark.parametrize("settings", [{"loss_scale": 256.0}, {"loss_scale": HUGE}], ids=["fixed", "adapted"])
@pytest.mark.parametrize("engine", ["step", "epoch"])
def test_it_is_that_of_the_optimizer(settings, engine):
    """The first steps of a scale that is too large are skipped, and are not counted by the schedule."""
    rate = LearningRateAdam(0.01, schedule="invscaling")
    settings = {"precision": "float16", "engine": engine, **settings}
    module, plain = (fit(lambda: Layers(rate=rate), y=99 * Y, **s) for s in (settings, {}))
    other = optimizer(learning_rate=rate, max_iter=3, **settings).fit(X, 99 * Y)
    np.testing.assert_allclose([r["loss"] for r in module.history_], other.train_losses_, rtol=1e-3)
    assert_close(module.state_dict(), other.trained_coef_, 1e-3)
    assert any((a != plain.state_dict()[n]).any() for n, a in module.state_dict().items())
    if settings["loss_scale"] is HUGE:
        skipped = int(module._program.get("precision.skipped_steps"))
        assert skipped > 0
        assert int(module._program.get("optimizer.iteration")) == 12 - skipped
        assert module.history_[-1]["learning_rate"] == pytest.approx(other.history_[-1]["learning_rate"])


def test_all_products_of_the_training_are_low_and_none_elsewhere():
    module = fit(precision="float16")
    assert set(count_products(module)) == {"float16"}
    assert "float16" not in count_products(fit())
    outputs = module.train_one_batch(X[:10], Y[:10])
    assert [a.dtype.name for a in outputs] == ["float32", "float32"]
    assert module.eval()(X).dtype == np.float32
    loss = module._program.evaluate([X, Y])[1]
    assert loss == pytest.approx(((module(X) - Y) ** 2).mean(), rel=1e-6)  # not rounded to 11 bits


class Norm(Layers):
    def __init__(self):
        super().__init__([nn.BatchNorm1d(8), nn.Dropout(0.2)], "adam")


class OwnLoss(Layers):
    """Two optimizers in turn, and a loss that is written out."""

    def __init__(self):
        super().__init__()
        self.of_first, self.of_last = nn.Optimizer("adam", [self.first]), nn.Optimizer(0.05, [self.last])

    def train_one_batch(self, x, t):
        e = self.forward(x) - t
        self.of_first((e * e).mean())
        e = self.forward(x) - t
        loss = (e * e).mean()
        self.of_last(loss)
        return e, loss


@pytest.mark.parametrize("make", [Norm, OwnLoss])
def test_any_step(make):
    low, plain = (fit(make, precision=p).state_dict() for p in ("float16", None))
    for n, a in plain.items():
        np.testing.assert_allclose(low[n], a, atol=0.03 * np.abs(a).max(), err_msg=n)
    assert any((low[n] != a).any() for n, a in plain.items())
    if make is Norm:
        assert (low["between.0.running_mean"] != plain["between.0.running_mean"]).any()


def test_a_file_has_the_scale(tmp_path):
    module = fit(precision="float16", loss_scale=HUGE)
    module.save(tmp_path / "model.onnx")
    session = TrainingSession(tmp_path / "model.onnx")
    session.step({"x": X[:10], "target": Y[:10]})
    module.train_one_batch(X[:10], Y[:10])
    for n, a in module.state_dict().items():
        np.testing.assert_array_equal(session.state[n], a, n)
    assert session.state["precision.loss_scale"] == module._program.get("precision.loss_scale")


@pytest.mark.parametrize(("settings", "error", "message"), [
    ({"precision": "float8"}, SettingError, "precision is None, 'float16' or 'bfloat16', not 'float8'"),
    ({"loss_scale": 2.0}, SettingError, "loss_scale belongs to precision"),
    ({"precision": "float16", "engine": "native"}, SettingError,
     "precision='float16' trains with engine='step' or 'epoch', not 'native'"),
    ({"precision": "float16", "use_graph": False}, SettingError, "use_graph=False runs operators one by one"),
    ({"checkpointing": ["h"]}, SettingError, "checkpointing is None or 'auto' for a module, whose values have no"),
    ({"checkpointing": "some"}, SettingError, "checkpointing is None, 'auto' or a list"),
])
def test_settings(settings, error, message):
    with pytest.raises(error, match=message):
        fit(**settings)


def test_a_branch_is_refused():
    class Branched(Layers):
        def forward(self, x):
            y = super().forward(x)
            return cond(x.sum() > 0, lambda: y, lambda: -y)

    with pytest.raises(ModelError, match="has a graph inside, and precision='float16' trains none that has one"):
        fit(Branched, precision="float16")
