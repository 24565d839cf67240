"""Gradient clipping, accumulation and weight averages: as in torch, and the same in all engines."""

import pickle

import numpy as np
import pytest
import torch
from models import assert_close, data, images, mlp, net, torch_mlp, two_in_two_out, weights_of
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch_steps import ENGINES, IN_EVERY_ENGINE

from ortpartial import (
    ElasticLearningPenalty,
    ExponentialAverage,
    GradientClipping,
    LearningRateAdam,
    LearningRateAdamW,
    LearningRateSGD,
    LossScale,
    StochasticWeightAverage,
    TrainingSession,
)
from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import ModelError

ROWS, BATCH, EPOCHS = 53, 10, 9  # 54 steps, of which the last of each epoch is on three rows
SETTINGS = {
    "norm": {"gradient_clipping": 0.3},
    "norm of each": {"gradient_clipping": GradientClipping(norm=0.1, per="weight")},
    "value": {"gradient_clipping": GradientClipping(value=0.05)},
    "value and norm": {"gradient_clipping": GradientClipping(value=0.05, norm=0.1)},
    "accumulate": {"accumulate": 4},
    "ema": {"averaging": ExponentialAverage(0.9)},
    "swa": {"averaging": StochasticWeightAverage(start=20, every=3)},
    "swa of a share": {"averaging": "swa"},
    "all": {"gradient_clipping": 0.2, "accumulate": 3, "averaging": StochasticWeightAverage(start=5)},
}
RATES = {
    "sgd": (LearningRateSGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "adam": (LearningRateAdam(0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
}
#: It overflows at first, and again whenever it has grown.
SCALE = LossScale(2.0**20, growth_interval=3)
A_SETTING = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)


def clip(parameters, clipping):
    """What torch does for a clipping."""
    if isinstance(clipping, float):
        clip_grad_norm_(parameters, clipping)
        return
    if clipping.value:
        clip_grad_value_(parameters, clipping.value)
    if clipping.norm:
        for each in [[p] for p in parameters] if clipping.per == "weight" else [parameters]:
            clip_grad_norm_(each, clipping.norm)


def train_torch(X, y, make_rate, gradient_clipping=None, accumulate=1, averaging=None, epochs=EPOCHS):
    """The weights of a loop in torch, and their averages."""
    start, every = 0, 1
    if averaging is not None and not isinstance(averaging, ExponentialAverage):
        start, every = (40, 1) if averaging == "swa" else (averaging.start, averaging.every)
    average = get_ema_multi_avg_fn(averaging.decay) if isinstance(averaging, ExponentialAverage) else None
    weights = torch.nn.ParameterDict({n: torch.tensor(a) for n, a in weights_of(mlp(dtype="float64")).items()})
    averaged = AveragedModel(weights, multi_avg_fn=average)
    rate, updates = make_rate(weights.parameters()), 0
    batches = [torch.arange(ROWS)[i : i + BATCH] for i in range(0, ROWS, BATCH)] * epochs
    for k, rows in enumerate(batches, 1):
        loss = torch.nn.functional.mse_loss(torch_mlp(weights, torch.tensor(X)[rows]), torch.tensor(y)[rows])
        (loss / accumulate).backward()
        if k % accumulate == 0:
            if gradient_clipping is not None:
                clip(list(weights.parameters()), gradient_clipping)
            rate.step()
            rate.zero_grad()
            updates += 1
            if updates > start and (updates - start) % every == 0:
                averaged.update_parameters(weights)
    return ({n: p.detach().numpy() for n, p in each.items()} for each in (weights, averaged.module))


@A_SETTING
@pytest.mark.parametrize("rate", RATES)
def test_fifty_steps_of_torch(settings, rate):
    X, y, _ = data(ROWS, dtype="float64")
    setting, make_rate = RATES[rate]
    o = Optimizer(mlp(dtype="float64"), learning_rate=setting, shuffle=False, max_iter=EPOCHS, **settings).fit(X, y)
    weights, averages = train_torch(X, y, make_rate, **settings)
    assert_close(o.trained_coef_, weights, 1e-11)
    plain = Optimizer(mlp(dtype="float64"), learning_rate=setting, shuffle=False, max_iter=EPOCHS).fit(X, y)
    if settings.keys() != {"averaging"}:
        assert any(abs(o.trained_coef_[n] - a).max() > 1e-4 for n, a in plain.trained_coef_.items())
    if "averaging" in settings:
        before = o.trained_coef_
        o.use_average = True
        assert_close(o.trained_coef_, averages, 1e-11)
        assert any(abs(o.trained_coef_[n] - a).max() > 1e-4 for n, a in before.items())


@IN_EVERY_ENGINE
def test_fifty_steps_of_torch_with_all_settings_at_once(engine):
    """The averages are used wherever weights are used and not trained."""
    X, y, _ = data(ROWS, dtype="float64")
    settings = {"gradient_clipping": SETTINGS["value and norm"]["gradient_clipping"], "accumulate": 3,
                "averaging": ExponentialAverage(0.9)}

    def make_rate(parameters):
        first, *others = parameters  # W1, W2, b1, b2
        first.requires_grad_(False)
        return torch.optim.AdamW([{"params": [p], "lr": lr, "weight_decay": decay} for p, lr, decay in zip(
            others, (0.001, 0.02, 0.02), (0.3, 0.0, 0.0), strict=True)])

    o = Optimizer(mlp(dtype="float64"), learning_rate=LearningRateAdamW(0.01, weight_decay=0.3, no_decay="vectors"),
                  rate_factors={"W2": 0.1, "*": 2.0}, freeze="W1", shuffle=False, max_iter=3 * EPOCHS,
                  **ENGINES[engine], **settings).fit(X, y)
    weights, averages = train_torch(X, y, make_rate, epochs=3 * EPOCHS, **settings)
    assert_close(o.trained_coef_, {n: weights[n] for n in o.weights_to_train}, 1e-11)
    o.use_average = True
    predicted = torch_mlp({n: torch.tensor(a) for n, a in averages.items()}, torch.tensor(X)).numpy()
    assert_close(o.trained_coef_, {n: averages[n] for n in o.weights_to_train}, 1e-11)
    assert_close({"y": o.predict(X)}, {"y": predicted}, 1e-11)
    assert_close({"loss": o.losses(X, y)}, {"loss": ((predicted - y) ** 2).mean(1)}, 1e-11)
    assert o.score(X, y) == pytest.approx(1 - ((predicted - y) ** 2).sum() / ((y - y.mean()) ** 2).sum(), abs=1e-11)
    assert_close(weights_of(o.get_trained_onnx()), averages, 1e-11)
    style = "lowered" if "checkpointing" in ENGINES[engine] else "standard"
    session, again = TrainingSession(o.get_training_onnx(style)), pickle.loads(pickle.dumps(o)).partial_fit(X, y)
    for start in range(0, ROWS, BATCH):
        session.step({"x": X[start : start + BATCH], "y_target": y[start : start + BATCH]})
    again.use_average = False
    assert_close({n: session.state[n] for n in again.weights_to_train}, again.trained_coef_, 1e-11)


def states(o):
    """All arrays of a training by name."""
    named = zip(o._spec.states, o.get_state("optimizer"), strict=False)
    return {**o.trained_coef_, **dict(named), **{str(i): a for i, a in enumerate(o.get_state("buffer"))}}


def assert_same(a, b):
    for n, v in states(a).items():
        np.testing.assert_array_equal(v, states(b)[n], err_msg=n)
    np.testing.assert_allclose(a.train_losses_, b.train_losses_, rtol=1e-12)


def weighted(**settings):
    """Two outputs, weights of rows, a penalty and a smaller last batch."""
    X, y, w = data(47)
    o = Optimizer(two_in_two_out(), learning_loss={"price": "square_error", "kind": "softmax_cross_entropy"},
                  learning_rate=LearningRateAdam(0.02, schedule="cosine"), random_state=0, max_iter=3,
                  learning_penalty=ElasticLearningPenalty(l1=0.01, l2=0.01), **settings)
    return o.fit({"a": X[:, :3], "b": X[:, 1:]}, {"price": y, "kind": (y[:, 0] > 0).astype(int)}, w)


@A_SETTING
def test_engines(settings):
    step = weighted(engine="step", **settings)
    assert_same(weighted(engine="epoch", **settings), step)
    inplace = weighted(engine="step", checkpointing="auto", **settings)
    assert inplace._engine.copies == 1
    assert inplace._engine.overwrites
    assert_close(states(inplace), {n: a for n, a in states(step).items() if a.any()}, 1e-5)


@pytest.mark.agent
@A_SETTING
def test_agent(settings):
    step, agent = (weighted(engine=engine, **settings) for engine in ("step", "agent"))
    assert_close(states(agent), {n: a for n, a in states(step).items() if a.any()}, 1e-5)


@pytest.mark.parametrize("name", ["value and norm", "ema", "swa of a share", "all"])
def test_train_mode_mixed_precision_and_pickles(name):
    """The loss scale makes gradients overflow: such a step is skipped and changes nothing."""
    X, y = images(47)

    def optimizer(engine="epoch"):
        return Optimizer(net(0.3), train_mode=True, precision="float16", loss_scale=SCALE, engine=engine,
                         learning_rate="Adam", random_state=0, max_iter=6, **SETTINGS[name])

    whole = optimizer().fit(X, y)
    assert_same(whole, optimizer("step").fit(X, y))
    assert 0 < whole.get_state("buffer")[-1] < 30
    assert np.isfinite(whole.train_losses_).all()
    part = optimizer()
    for _ in range(2):
        part = pickle.loads(pickle.dumps(part.partial_fit(X, y).partial_fit(X, y).partial_fit(X, y)))
    assert_same(part, whole)


@pytest.mark.parametrize("name", ["value and norm", "all"])
def test_checkpoints(name, tmp_path):
    X, y, _ = data(47)

    def optimizer():
        return Optimizer(mlp(), learning_rate="Adam", random_state=0, max_iter=4, **SETTINGS[name])

    def change(o):
        if o.n_iter_ == 2:
            o.set_params(gradient_clipping=0.1, averaging="ema")

    whole, path = optimizer().set_params(callbacks=[change]).fit(X, y), tmp_path / "state.safetensors"

    def save(o):
        if o.n_iter_ == 3:
            o.save_checkpoint(path)

    optimizer().set_params(callbacks=[change, save]).fit(X, y)
    again = optimizer()
    again.load_checkpoint(path)
    assert again.averaging == ExponentialAverage()
    assert_same(again.partial_fit(X, y), whole)


def test_a_skipped_step_changes_nothing():
    X, y = images(10)
    o = Optimizer(net(), precision="float16", loss_scale=LossScale(2.0**126), accumulate=2, averaging="ema",
                  learning_rate="Adam", gradient_clipping=1.0, random_state=0)
    before = states(o)
    o.partial_fit(X, y)
    after = states(o)
    assert o.get_state("buffer")[-1] == 1
    assert all((after[n] == a).all() for n, a in before.items() if n in o._spec.states or n in o.trained_coef_)


@pytest.mark.parametrize("style", ["standard", "lowered"])
@pytest.mark.parametrize("name", ["value and norm", "all"])
def test_training_in_a_model(name, style):
    """A `TrainingSession` goes on with all of it, and so does an optimizer, by the record of the settings alone."""
    X, y, _ = data(50)
    o = Optimizer(mlp(), learning_rate="Adam", shuffle=False, **SETTINGS[name]).partial_fit(X, y)
    model = o.get_training_onnx(style)
    session, again = TrainingSession(model), Optimizer.from_training_info(model, shuffle=False)
    for start in range(0, 50, 10):
        session.step({"x": X[start : start + 10], "y_target": y[start : start + 10]})
    o.partial_fit(X, y)
    assert_close(session.state, states(o), 1e-6)
    again.partial_fit(X, y)
    assert all((a == b).all() for a, b in zip(states(again).values(), states(o).values(), strict=True))
    del model.metadata_props[:]
    with pytest.raises(ModelError, match=r"none that an optimizer can go on with: .* TrainingSession"):
        Optimizer.from_training_info(model)
