"""Losses, optimizers and penalties in a word."""

import re

import pytest

from ortpartial import (
    ElasticLearningPenalty,
    HuberLearningLoss,
    LearningRateAdam,
    LearningRateSGD,
    NoLearningPenalty,
    SoftmaxCrossEntropyLearningLoss,
    SquareLearningLoss,
)
from ortpartial.cli.component_specs import (
    parse_averaging,
    parse_clipping,
    parse_losses,
    parse_penalty,
    parse_rate,
    parse_rate_factors,
)
from ortpartial.exceptions import SettingError
from ortpartial.learning import ExponentialAverage, GradientClipping, LayerwiseDecay, StochasticWeightAverage


@pytest.mark.parametrize(
    ("parse", "word", "piece"),
    [
        (parse_rate, "0.1", LearningRateSGD(0.1)),
        (parse_rate, "1", LearningRateSGD(1.0)),
        (parse_rate, "adam", LearningRateAdam()),
        (parse_rate, "adam:1e-4", LearningRateAdam(1e-4)),
        (parse_rate, "Adam:1e-4:cosine", LearningRateAdam(1e-4, schedule="cosine")),
        (parse_rate, "adam:beta1=0.8:epsilon_hat=true", LearningRateAdam(beta1=0.8, epsilon_hat=True)),
        (parse_penalty, "none", NoLearningPenalty()),
        (parse_penalty, "l2:1e-4", ElasticLearningPenalty(l2=1e-4)),
        (parse_penalty, "elastic:l1=1e-5:l2=1e-4", ElasticLearningPenalty(l1=1e-5, l2=1e-4)),
        (parse_clipping, "1", GradientClipping(norm=1.0)),
        (parse_clipping, "value:0.5", GradientClipping(value=0.5)),
        (parse_clipping, "norm:2:per=weight", GradientClipping(norm=2.0, per="weight")),
        (parse_averaging, "ema:0.99", ExponentialAverage(0.99)),
        (parse_averaging, "swa", StochasticWeightAverage()),
    ],
)
def test_pieces(parse, word, piece):
    assert parse(word) == piece


def test_rate_factors():
    assert parse_rate_factors(["a.*=0.1", "b=2"]) == {"a.*": 0.1, "b": 2.0}
    assert parse_rate_factors(["0.9"]) == LayerwiseDecay(0.9)
    for word in ("a", "a=b"):
        with pytest.raises(SettingError, match=f"--rate-factors: '{word}' is to be NAME=FACTOR, as in 'encoder"):
            parse_rate_factors([word])


def test_losses():
    assert parse_losses(["square"], []) == SquareLearningLoss()
    assert parse_losses(["huber:delta=2"], ["y"]) == HuberLearningLoss(2.0)
    assert parse_losses(["square"], ["a", "b"]) == {"a": SquareLearningLoss(), "b": SquareLearningLoss()}
    assert parse_losses(["a=square", "b=cross_entropy:label_smoothing=0.1"], []) == {
        "a": SquareLearningLoss(), "b": SoftmaxCrossEntropyLearningLoss(label_smoothing=0.1)}


@pytest.mark.parametrize(
    ("parse", "word", "message"),
    [
        (parse_rate, "adm", "--rate: 'adm' is not known. Did you mean 'Adam'?"),
        (parse_rate, "adam:lr=1", "--rate: adam has no setting 'lr'; did you mean 'eta0'?"),
        (parse_rate, "adam:1:cosine:3", "--rate: 'adam:1:cosine:3' does not say which setting of adam is 3: eta0, sch"),
        (parse_rate, "adam:-1", "--rate: LearningRateAdam: eta0 is -1"),
        (parse_clipping, "norm", "--clip is a number, the norm of all gradients, or norm:1:per=weight, or value:0.5"),
        (parse_clipping, "-1", "--clip: GradientClipping: norm is -1.0, a finite number more than 0 was expected."),
        (parse_clipping, "1:2", "--clip is a number"),
        (parse_clipping, "norm:1:per=row", "--clip: GradientClipping: per is 'global' or 'weight', not 'row'."),
        (parse_averaging, "mean", "--average: 'mean' is not known. Did you mean 'swa'?"),
        (parse_penalty, "l2", "--penalty: l2 is to have a weight, as in l2:1e-4."),
        (parse_penalty, "elastic", "--penalty: elastic is to have a weight, as in elastic:l1=1e-4:l2=1e-4."),
        (lambda word: parse_losses([word], []), "mse", "--loss: 'mse' is not known. Did you mean 'square_error'?"),
        (lambda word: parse_losses(["a=square", word], []), "huber", "--loss: 'huber' does not say for which output"),
    ],
)
def test_errors(parse, word, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        parse(word)
