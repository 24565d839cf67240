"""Trainings that go on from a checkpoint, to the last bit, and checkpoints of another training."""

import copy
import re

import numpy as np
import pytest
from models import images, linear, mlp, net
from trainings import ENGINES, X_VAL, Y_VAL, X, Y, optimizer, same

from ortpartial import (
    ElasticLearningPenalty,
    LearningRateAdam,
    LearningRateSGD,
    LossScale,
    SoftmaxCrossEntropyLearningLoss,
)
from ortpartial.exceptions import CheckpointError

SETTINGS = {
    "Adam": {"learning_rate": "Adam"},
    "momentum": {"learning_rate": "SGDNesterov", "learning_penalty": ElasticLearningPenalty(l2=0.01)},
    "schedule": {"learning_rate": LearningRateAdam(schedule="invscaling")},
    "shuffle off": {"shuffle": False},
    "loss scale": {"precision": "float16", "loss_scale": LossScale(growth_interval=3)},
    "first weights": {"init": "random"},
    "generator": {"random_state": np.random.Generator(np.random.MT19937(5))},
    "no seed": {"random_state": None},
}


def continues(make, path, *data):
    """Whether a new optimizer goes on from a checkpoint as the one that wrote it."""
    first = make()
    for _ in range(2):
        first.partial_fit(*data)
    first.save_checkpoint(path)
    again = make()
    again.load_checkpoint(path)
    assert same(again, first)
    assert again.learning_rate_ == first.learning_rate_
    for o in (first, again):
        o.partial_fit(*data)
    buffers = zip(first.get_state("buffer"), again.get_state("buffer"), strict=True)
    return same(first, again) and all((a == b).all() for a, b in buffers)


@pytest.mark.parametrize("engine", ENGINES)
def test_engines(engine, tmp_path):
    assert continues(lambda: optimizer(engine=engine, learning_rate="Adam"), tmp_path / "a.safetensors", X, Y)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(name, tmp_path):
    assert continues(lambda: optimizer(**copy.deepcopy(SETTINGS[name])), tmp_path / "a.safetensors", X, Y)


def test_running_statistics_and_masks(tmp_path):
    assert continues(lambda: optimizer(net(ratio=0.3), train_mode=True), tmp_path / "a.safetensors", *images(40))


def test_what_was_learned_and_is_not_trained_any_more(tmp_path):
    """Weights that are constants now, and a rate that was changed."""
    first = optimizer(weights_to_train=["W1", "b1"])
    first.fit(X, Y)
    first.set_params(weights_to_train=["W2", "b2"], learning_rate=0.01).partial_fit(X, Y)
    first.save_checkpoint(tmp_path / "a.safetensors")
    again = optimizer(weights_to_train=["W2", "b2"])
    again.load_checkpoint(tmp_path / "a.safetensors")
    assert again.get_trained_onnx() == first.get_trained_onnx()
    assert again.learning_rate == LearningRateSGD(0.01)
    assert same(again.partial_fit(X, Y), first.partial_fit(X, Y))


def test_class_weights(tmp_path):
    settings = {"learning_loss": SoftmaxCrossEntropyLearningLoss(class_weight="balanced"), "model": mlp(outputs=3)}
    labels = np.arange(60) % 7 % 3
    first, again = optimizer(**settings).fit(X, labels), optimizer(**settings)
    first.save_checkpoint(tmp_path / "a.safetensors")
    again.load_checkpoint(tmp_path / "a.safetensors")
    assert again.training.class_weights == first.training.class_weights
    assert same(again.partial_fit(X, labels), first.partial_fit(X, labels))


def test_a_plan(tmp_path):
    """A schedule over the whole training keeps its plan."""
    first, again = (optimizer(learning_rate=LearningRateSGD(0.1, schedule="cosine"), max_iter=4) for _ in range(2))
    first.fit(X, Y).save_checkpoint(tmp_path / "a.safetensors")
    again.load_checkpoint(tmp_path / "a.safetensors")
    assert (again.learning_rate_, again.training.batches) == (first.learning_rate_, first.training.batches)


def test_history(tmp_path):
    first, again = optimizer(), optimizer()
    first.fit(X, Y, X_val=X_VAL, y_val=Y_VAL).save_checkpoint(tmp_path / "a.safetensors")
    again.load_checkpoint(tmp_path / "a.safetensors")
    assert again.validation_losses_ == first.validation_losses_


@pytest.mark.parametrize(("model", "settings", "message"), [
    (linear(), {}, "is of another model, which has 2 of the operator MatMul, and this one has 0."),
    (mlp(hidden=9), {}, "is of another training: 'W1' is float32 of shape (4, 8) there, and float32 of shape (4, 9) "
                        "here."),
    (mlp(dtype="float64"), {}, "'W1' is float32 of shape (4, 8) there, and float64 of shape (4, 8) here."),
    (mlp(), {"weights_to_train": ["W1"]}, "'b1' is float32 of shape (8,) there, and nothing here."),
    (mlp(), {"learning_rate": "Adam"}, "is of a training with LearningRateSGD, and this one has LearningRateAdam."),
    (mlp(), {"precision": "float16"}, "is nothing there, and "),
])
def test_another_training(tmp_path, model, settings, message):
    """Nothing changes."""
    path = tmp_path / "a.safetensors"
    optimizer().fit(X, Y).save_checkpoint(path)
    other = optimizer(model, **settings).fit(X, Y)
    before = other.get_state() + other.get_state("optimizer")
    with pytest.raises(CheckpointError, match=re.escape(f"The checkpoint '{path}' ")) as error:
        other.load_checkpoint(path)
    assert message in str(error.value)
    after = other.get_state() + other.get_state("optimizer")
    assert all((a == b).all() for a, b in zip(before, after, strict=True))
    other.partial_fit(X, Y)


def test_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match=rf"^There is no checkpoint in '{tmp_path}'\.$"):
        optimizer().load_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError):
        optimizer().load_checkpoint(tmp_path / "a.safetensors")
