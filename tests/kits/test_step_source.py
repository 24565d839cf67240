"""Steps of a kit as a source: files as they are, their values for machine code, and the state that a caller sees."""

import copy
import pickle

import numpy as np
import pytest
from kits import make_data, write_kit_and_data
from step_engines import list_step_engines

from ortpartial import TrainingKit
from ortpartial.exceptions import DeviceError, ModelError, SettingError
from ortpartial.execution import StepEngine
from ortpartial.kits.manifest import read_manifest
from ortpartial.kits.state_file import read_state
from ortpartial.kits.step_source import FileStep, KitSource
from ortpartial.runtime import CPU, Session


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small kit with a step for any size of batches."""
    return write_kit_and_data(tmp_path_factory.mktemp("kits") / "kit", "linear", "adam").folder


def batch(rows, start=0):
    return {n: a[start : start + rows] for n, a in make_data("linear").items()}


def test_a_step_is_the_run_of_its_file(folder):
    """To the last bit, with the state in buffers that take turns."""
    manifest = read_manifest(folder)
    state, _ = read_state(folder / "state.safetensors", manifest.state)
    source = KitSource(folder, manifest, state, CPU).for_kind("step.onnx")
    assert isinstance(source.compose(), FileStep)
    runner, session = StepEngine(source), Session((folder / "step.onnx").read_bytes())
    for rows in (32, 7, 20, 1):
        feeds = batch(rows)
        outputs = runner.step(feeds, "step.onnx")
        results = session.run(dict(zip(session.inputs, [*feeds.values(), *state.values()], strict=True)))
        arrays = list(results.values())
        state = dict(zip(state, arrays[len(manifest.outputs) :], strict=True))
        assert all((a == b).all() for a, b in zip(outputs.values(), arrays, strict=False))
        assert all((runner.get(n) == a).all() for n, a in state.items())


@pytest.mark.parametrize("engine", list_step_engines())
def test_engines(folder, engine):
    plain, kit = TrainingKit(folder), TrainingKit(folder, engine=engine)
    losses = [k.train(make_data("linear"), 6) for k in (plain, kit)]
    assert (kit.engine_, kit.engine_reason_, plain.engine_) == (engine, "asked for", "step")
    np.testing.assert_allclose(*losses, rtol=1e-5)
    for name, a in plain.state.items():
        np.testing.assert_allclose(kit.state[name], a, rtol=1e-4, atol=1e-7)
    outputs = [k.step(batch(32)) for k in (plain, kit)]
    assert outputs[0].keys() == outputs[1].keys()


def test_engines_and_devices_that_are_not_there(folder):
    with pytest.raises(SettingError, match="engine='epoch' takes no single steps; leave it at 'auto'"):
        TrainingKit(folder, engine="epoch")
    with pytest.raises(DeviceError, match="nowhere"):
        TrainingKit(folder, device="nowhere")


def test_the_next_step_takes_over_what_is_written_to_the_state(folder):
    kits = [TrainingKit(folder) for _ in range(3)]
    name = next(iter(kits[0].state))
    kits[0].state[name] *= 2
    kits[1].state[name][...] = 2 * kits[1].state[name]
    kits[2].state = {**kits[2].state, name: 2 * kits[2].state[name]}
    losses = [k.step(batch(32))["loss"].item() for k in kits]
    assert losses[0] == losses[1] == losses[2] != TrainingKit(folder).step(batch(32))["loss"].item()
    shown = kits[0].state
    former = {n: a.copy() for n, a in shown.items()}
    kits[0].step(batch(32))
    assert all((shown[n] == a).all() for n, a in former.items()), "no step changes what was asked for"
    assert (kits[0].state[name] != former[name]).any()
    kits[0].state[name] = np.zeros(3)
    with pytest.raises(ModelError, match=rf"The state '{name}' is float64 \[3\], where float32 .* is expected\."):
        kits[0].step(batch(32))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda kit: pickle.loads(pickle.dumps(kit))])
def test_a_copy_goes_on_by_itself(folder, again):
    kit = TrainingKit(folder)
    kit.train(make_data("linear"), 2)
    other = again(kit)
    losses = other.train(make_data("linear"), 2)
    assert (kit.steps_taken, other.steps_taken) == (2, 4)
    assert (kit.train(make_data("linear"), 2) == losses).all()
    assert all((other.state[n] == a).all() for n, a in kit.state.items())
