import pickle

import numpy as np
import pytest
from models import mlp
from sklearn.base import clone

from ortpartial import (
    Accumulation,
    CosineSchedule,
    ElasticLearningPenalty,
    ExponentialAverage,
    GradientClipping,
    LayerwiseDecay,
    LearningRateAdam,
    LearningRateSGD,
    OnnxRegressor,
    OrtGradientForwardBackwardOptimizer,
    StepSchedule,
    chain,
    nn,
)
from ortpartial.exceptions import SettingError
from ortpartial.learning import expand_chain, replace_settings
from ortpartial.runtime import has_training

X = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32)
Y = X[:, :1] - X[:, 1:2]

PARTS = {
    "learning_penalty": [ElasticLearningPenalty(l2=0.1), ElasticLearningPenalty(l1=0.01, penalize_biases=True)],
    "accumulate": [Accumulation(2), Accumulation(3)],
    "gradient_clipping": [GradientClipping(0.1), GradientClipping(value=0.01), GradientClipping(0.1, per="weight")],
    "schedule": [CosineSchedule(), StepSchedule(2, 0.5)],
    "rate_factors": [{"W1": 0.5}, LayerwiseDecay(0.5)],
    "averaging": [ExponentialAverage(0.9)],
}
RATES = ["Adam", LearningRateSGD(0.1), LearningRateAdam(0.01)]
ENGINES = ["step", "epoch", "native", *["agent"] * has_training()]


def draw(seed, without=()):
    """A chain of random parts, and the settings that it stands for."""
    rng = np.random.default_rng(seed)
    names = [n for n in PARTS if n not in without and rng.random() < 0.5]
    parts = {n: PARTS[n][rng.integers(len(PARTS[n]))] for n in names}
    rate = RATES[rng.integers(len(RATES))]
    before = [parts[n] for n in ("learning_penalty", "accumulate", "gradient_clipping") if n in parts]
    scales = [parts[n] for n in ("schedule", "rate_factors") if n in parts]
    after = [parts["averaging"]] if "averaging" in parts else []
    links = [*before, rate, *(scales if seed % 2 else scales[::-1]), *after]
    settings = {n: part.batches if n == "accumulate" else part for n, part in parts.items() if n != "schedule"}
    settings["learning_rate"] = LearningRateAdam() if rate == "Adam" else rate
    if "schedule" in parts:
        settings["learning_rate"] = replace_settings(settings["learning_rate"], schedule=parts["schedule"])
    return chain(*links), settings


def state(optimizer):
    return [a.tobytes() for kind in ("weight", "optimizer") for a in optimizer.get_state(kind)]


def make(engine, **settings):
    common = {"max_iter": 2, "batch_size": 8, "random_state": 0, "engine": engine}
    return OrtGradientForwardBackwardOptimizer(mlp(3), **common, **settings)


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(n, marks=pytest.mark.slow) for n in range(8, 80))])
def test_it_is_its_settings_to_the_last_bit(seed):
    engine = ENGINES[seed % len(ENGINES)]
    update, settings = draw(seed)
    one, other = make(engine, learning_rate=update), make(engine, **settings)
    assert {n: repr(v) for n, v in one.get_params().items() if n != "model"} == {
        n: repr(v) for n, v in other.get_params().items() if n != "model"}
    assert one.engine_ == other.engine_
    assert state(one.fit(X, Y)) == state(other.fit(X, Y))
    again = pickle.loads(pickle.dumps(one))
    assert state(clone(one).fit(X, Y)) == state(one)
    assert state(again.partial_fit(X, Y)) == state(other.partial_fit(X, Y))


def test_the_settings_record_of_a_stored_training():
    update, _ = draw(3)
    one = make("auto", learning_rate=update).fit(X, Y)
    again = OrtGradientForwardBackwardOptimizer.from_training_info(one.get_training_onnx(), batch_size=8, shuffle=False)
    assert state(again.partial_fit(X, Y)) == state(one.set_params(shuffle=False).partial_fit(X, Y))


@pytest.mark.parametrize("seed", range(3))
def test_it_changes_a_training(seed):
    update, settings = draw(seed)
    one, other = make("step").fit(X, Y), make("step").fit(X, Y)
    one.set_params(learning_rate=update, warm_start=True)
    other.set_params(**settings, warm_start=True)
    assert state(one.fit(X, Y)) == state(other.fit(X, Y))


@pytest.mark.filterwarnings("ignore:The training reached max_iter")
@pytest.mark.parametrize("seed", range(3))
def test_estimators_of_scikit_learn(seed):
    update, settings = draw(seed, without=["rate_factors"])
    rate, penalty = settings.pop("learning_rate"), settings.pop("learning_penalty", None)
    common = {"hidden_layer_sizes": (4,), "max_iter": 2, "batch_size": 8, "random_state": 0, "tol": 0}
    one = OnnxRegressor(learning_rate=update, **common)
    assert clone(one).learning_rate == update
    assert one.get_params()["learning_rate"] is update
    other = OnnxRegressor(learning_rate=rate, penalty=penalty, settings=settings, **common)
    assert state(one.fit(X, Y.ravel()).optimizer_) == state(other.fit(X, Y.ravel()).optimizer_)
    plain = OnnxRegressor(learning_rate=update, warm_start=True, **common).fit(X, Y.ravel())
    plain.set_params(learning_rate="SGD").fit(X, Y.ravel())
    assert plain.optimizer_.gradient_clipping is None
    assert plain.optimizer_.accumulate == 1
    assert plain.optimizer_.learning_penalty.l2 == 1e-4 / 8


class Line(nn.Module):
    def __init__(self):
        self.linear, self.loss = nn.Linear(3, 1), nn.Loss("square_error")

    def forward(self, x):
        return self.linear(x)

    def train_one_batch(self, x, y):
        loss = self.loss(self.forward(x), y)
        self.optimizer(loss)
        return loss


@pytest.mark.parametrize("seed", range(3))
def test_modules(seed):
    update, settings = draw(seed, without=["rate_factors"])
    names = {"learning_rate": "rate", "learning_penalty": "penalty"}

    def train(*args, **settings):
        model = Line().set_optimizer(*args, **settings)
        model.compile(nn.placeholder(["N", 3]), targets=nn.placeholder(["N", 1]), random_state=0)
        model.fit(X, Y, epochs=2, batch_size=8, shuffle=False)
        return [a.tobytes() for a in model.state_dict().values()]

    assert train(update) == train(**{names.get(n, n): v for n, v in settings.items()})


@pytest.mark.parametrize(("links", "message"), [
    ((GradientClipping(1.0), ElasticLearningPenalty(l2=0.1), "Adam"),
     r"chain: a penalty, ElasticLearningPenalty\(.*\), stands behind a GradientClipping; the order is a penalty, an "
     "Accumulation, a GradientClipping, an optimizer, a schedule, factors of rates, a weight average"),
    (("Adam", GradientClipping(1.0)), "a GradientClipping, .*, stands behind an optimizer"),
    (("Adam", "SGD"), "it has an optimizer 2 times; an update has one"),
    ((GradientClipping(1.0),), "it has no optimizer; add one"),
    ((LearningRateAdam(schedule=CosineSchedule()), CosineSchedule()), "has a schedule, and there is another one"),
    ((1.0, "Adam"), "chain: 1.0 is no part of an update; its parts are objects: a penalty"),
    ((GradientClipping, "Adam"), "stands behind|GradientClipping is no part of an update"),
    (("Adamm",), "Adamm"),
    ((Accumulation(2), {"w": 1.0}, "Adam"), "an optimizer, 'Adam', stands behind factors of rates"),
])
def test_what_is_no_chain(links, message):
    with pytest.raises(SettingError, match=message):
        make("step", learning_rate=chain(*links))


def test_a_part_that_is_a_setting_as_well():
    update = chain(GradientClipping(1.0), "Adam")
    with pytest.raises(SettingError, match="gradient_clipping is a part of the chain and a setting beside it"):
        make("step", learning_rate=update, gradient_clipping=2.0)
    with pytest.raises(SettingError, match="gradient_clipping is a part of the chain and a setting beside it"):
        nn.Optimizer(update, gradient_clipping=2.0)
    assert expand_chain({"learning_rate": update, "accumulate": 2})["accumulate"] == 2
    with pytest.raises(SettingError, match="a module's optimizer takes no factors of rates"):
        nn.Optimizer(chain("Adam", {"w": 0.5}))
    with pytest.raises(SettingError, match="accumulate"):
        Accumulation(0)
