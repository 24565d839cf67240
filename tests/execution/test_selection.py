"""The choice of an engine: by its name, by the device, and by the number of steps."""

from types import SimpleNamespace

import numpy as np
import pytest
from models import mlp
from trainings import linear_engine

from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer
from ortpartial.exceptions import SettingError
from ortpartial.execution import selection
from ortpartial.execution.selection import needs_one_copy, select_for_device, select_for_fit, select_for_length
from ortpartial.training import SpecSource, TrainingSpec


def test_names():
    assert [select_for_fit(n)[0].name for n in ("auto", "epoch", "step")] == ["epoch", "epoch", "step"]
    assert select_for_fit("step")[1] == "asked for"
    with pytest.raises(SettingError, match="engine='fast' is not known; leave it at 'auto', which takes the fastest"):
        select_for_fit("fast")


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr("ortpartial.native.find_compiler", lambda: None)
    engine, reason = select_for_fit("native")
    assert engine.name == "epoch"
    assert reason == "there is no C compiler that works, which engine='native' needs"


def test_devices():
    assert select_for_device("auto", "cpu")[0].name == "epoch"
    with pytest.raises(SettingError, match="engine='fast' is not known"):
        select_for_device("fast", "cpu")


def test_an_engine_that_was_asked_for_stays():
    engine = linear_engine()
    engine.reason = "asked for"
    assert select_for_length(engine, 10, 10**9) == (type(engine), "asked for")


@pytest.mark.parametrize(("gigabytes", "one"), [(0.1, True), (0.5, False)])
def test_memory_of_two_copies(monkeypatch, gigabytes, one):
    """Two copies of 18 MB of weights and their moments, the weights of the model and gradients: 0.14 GB."""
    monkeypatch.setattr(selection, "available_memory", lambda: int(gigabytes * 2**30))
    source = SpecSource(Optimizer(mlp(hidden=750_000), learning_rate="Adam").training.spec)
    assert needs_one_copy("auto", source) == one
    assert needs_one_copy("step", source), "it saves memory"
    assert not needs_one_copy("epoch", source)


@pytest.mark.parametrize("engine", ["auto", "step"])
def test_small_weights_never_ask_for_memory(monkeypatch, engine):
    monkeypatch.setattr(selection, "available_memory", None)
    assert not needs_one_copy(engine, SpecSource(Optimizer(mlp()).training.spec))


def compiled(monkeypatch, threads, cores):
    """The engine of very many steps of a small network, where a step takes so many threads."""
    monkeypatch.setattr("ortpartial.native.find_compiler", lambda: "cc")
    monkeypatch.setattr("ortpartial.native.compile_library", lambda source, headers: None)
    monkeypatch.setattr(selection, "cores", lambda: cores)
    monkeypatch.setattr(TrainingSpec, "threads", lambda self: threads)
    engine = Optimizer(mlp(hidden=32, features=16)).training.engine
    return select_for_length(engine, 200, 10**9)[0].name


@pytest.mark.parametrize(("threads", "cores", "engine"), [
    (1, 1, "native"), (1, 64, "native"), (None, 1, "native"), (None, 64, "epoch")])
def test_compiled_steps_compete_with_all_cores(monkeypatch, threads, cores, engine):
    """Whether a step is compiled follows from the number of cores where onnxruntime uses them."""
    assert compiled(monkeypatch, threads, cores) == engine


def test_a_choice_is_made_once(monkeypatch):
    """A fit that goes on asks again, and the steps are neither composed nor translated for that."""
    counted = []
    monkeypatch.setattr(selection, "_choose_for_length", lambda *length: counted.append(length[1:]))
    monkeypatch.setattr("ortpartial.native.find_compiler", lambda: "cc")
    engine = Optimizer(mlp()).training.engine
    kinds = {select_for_length(engine, rows, 10**6)[0].name for rows in (8, 8, 16, 8, 8)}
    assert (kinds, counted) == ({"epoch"}, [(8, 10**6), (16, 10**6), (8, 10**6)])


@pytest.mark.parametrize(("steps", "weights", "are_many"), [
    (199, 10**9, False), (200, 10**9, True), (4999, 100, False), (5000, 1, True)])
def test_few_steps_are_looked_at_where_they_multiply_for_seconds(steps, weights, are_many):
    source = SimpleNamespace(first={"w": np.broadcast_to(np.float32(0), (weights,))})
    assert selection._are_many(source, 32, steps) is are_many
