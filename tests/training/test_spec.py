"""The training spec: specialized to a batch, the states of each weight, and requirements of a loss."""

import pytest
from models import mlp, net

from ortpartial import ElasticLearningPenalty, LearningRateSGD, OrtGradientForwardBackwardOptimizer
from ortpartial.exceptions import SettingError
from ortpartial.learning import WeightDecay
from ortpartial.training.spec import forward_bytes, known_shape, program_bytes


def spec_of(model=None, **settings):
    return OrtGradientForwardBackwardOptimizer(model or mlp(), **settings).training.spec


def test_specialized_to_a_batch():
    spec = spec_of()
    assert spec.for_batch(5).outputs["y"].shape == (5, 1)
    assert spec.for_batch({"x": (7, 4)}).outputs["y"].shape == (7, 1)
    assert spec.outputs["y"].shape[0] == "N"


def test_states_by_weight():
    spec = spec_of(learning_rate="Adam", accumulate=2, averaging="ema")
    assert list(spec.shapes_of_states("W1")) == ["m", "v", "accumulated", "average"]
    assert spec.states["W1_m"] == ("W1", "m")
    assert set(spec.shapes_of_states("W1").values()) == {(4, 8)}
    assert spec_of().states == {}


class Clash(WeightDecay):
    state = ("average",)

    def update(self, w, g, average, *, k):
        return g, (average,)


def test_a_state_that_the_training_has():
    with pytest.raises(SettingError, match="Clash has a state 'average', which the training itself has; give it"):
        OrtGradientForwardBackwardOptimizer(mlp(), learning_rate=Clash(), averaging="ema")


def test_what_follows_from_its_pieces():
    spec = spec_of(learning_penalty=ElasticLearningPenalty(l2=0.1), learning_rate=LearningRateSGD(0.1, weight_decay=0.1,
                                                                                                no_decay="b*"))
    assert {"W1", "W2"} <= set(spec.penalized)
    assert (spec.rates["W1"].weight_decay, spec.rates["b1"].weight_decay) == (0.1, 0.0)
    assert spec.own_loss is None
    assert spec.predictions == ("y",)
    assert spec.counts_alike


def test_sizes():
    model = spec_of().for_batch(5).model
    assert forward_bytes(model) == 4 * (5 * 8 * 3 + 5 * 2)
    assert program_bytes(model) >= 2 * forward_bytes(model)
    assert known_shape(spec_of(net()).trained["K"]) == (3, 2, 3, 3)
