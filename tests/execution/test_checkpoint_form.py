"""A checkpoint with the right checksum may be forged: each part of it is checked before any is used."""

import numpy as np
import pytest
from once import ON_NEWEST

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, nn, op, variable
from ortpartial.callbacks import Checkpoint
from ortpartial.exceptions import CheckpointError
from ortpartial.execution.checkpoint import _hash, list_checkpoints, read_checkpoint, write_checkpoint
from ortpartial.model import write_tensors

WRONG = [None, -1, "x", [], {}, 2**70, float("nan"), np.zeros((3, 3), np.float32), np.array(2**62)]
X = np.ones((8, 4), np.float32)


def make():
    x, w = variable("x", "float32", ["N", 4]), constant(np.ones((4, 1), np.float32), hint="w")
    return OrtGradientForwardBackwardOptimizer(build([x], {"y": op.Relu(x @ w)}), max_iter=2, batch_size=4)


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "c.safetensors"
    make().fit(X, X[:, :1]).save_checkpoint(path)
    return read_checkpoint(path)


def walk(state, path=()):
    """The path of every part."""
    yield path
    parts = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, (list, tuple)) else ()
    for key, part in parts:
        yield from walk(part, (*path, key))


def put(state, path, value):
    """The state with another part at a path."""
    if not path:
        return value
    if isinstance(state, dict):
        return {n: put(v, path[1:], value) if n == path[0] else v for n, v in state.items()}
    return type(state)(put(v, path[1:], value) if i == path[0] else v for i, v in enumerate(state))


@ON_NEWEST
def test_every_part(state, record_property):
    """A wrong part is refused, and the optimizer trains on as if nothing had been; or it does no harm."""
    expected, optimizer = make().partial_fit(X, X[:, :1]).get_trained_onnx(), make()
    refused, paths = 0, list(walk(state))
    for i, path in enumerate(paths):
        try:
            optimizer.training.restore(put(state, path, WRONG[i % len(WRONG)]), "The test")
        except CheckpointError:
            refused += 1
        else:
            optimizer.partial_fit(X, X[:, :1])
            optimizer = make()
    assert refused > len(paths) // 2
    record_property("count", f"{refused} of {len(paths)} states refused")
    assert optimizer.partial_fit(X, X[:, :1]).get_trained_onnx() == expected


def make_module():
    return nn.Sequential(nn.Linear(4, 1)).set_optimizer("adam").compile(nn.placeholder(["N", 4]), random_state=0)


@pytest.fixture(scope="module")
def module_state(tmp_path_factory):
    folder = tmp_path_factory.mktemp("module")
    make_module().fit(X, X[:, :1], epochs=1, batch_size=4, callbacks=[Checkpoint(folder)])
    return read_checkpoint(list_checkpoints(folder)[-1])


def test_doors_write_the_same_parts_by_the_same_names(state, module_state):
    shared = ("form", "engine", "batches", "progress", "random", "place", "callbacks")
    assert {*shared} <= state.keys() & module_state.keys()
    for name in ("engine", "progress", "place"):
        assert state[name].keys() == module_state[name].keys(), name
    assert module_state.keys() - {*shared} == {"module", "rate_scale"}


def test_a_door_refuses_the_checkpoint_of_another(state, module_state, tmp_path):
    write_checkpoint(state, tmp_path / "optimizer.safetensors")
    write_checkpoint(module_state, tmp_path / "module.safetensors")
    with pytest.raises(CheckpointError, match=r"module\.safetensors' is of a Sequential, and this is an optimizer\.$"):
        make().load_checkpoint(tmp_path / "module.safetensors")
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors' is of an optimizer, and this is a Sequential"):
        make_module().fit(X, X[:, :1], resume=tmp_path / "optimizer.safetensors")


def test_a_module_refuses_a_forged_part_as_if_nothing_had_been(module_state, tmp_path):
    expected, module, path = make_module().state_dict(), make_module(), tmp_path / "forged.safetensors"
    for name in ("engine", "batches", "progress", "random", "place", "callbacks", "rate_scale"):
        write_checkpoint({**module_state, name: "x"}, path)
        with pytest.raises(CheckpointError, match=f"is damaged: its '{name}' is not what a training writes"):
            module.fit(X, X[:, :1], resume=path)
    assert module.history_ == []
    for name, array in expected.items():
        np.testing.assert_array_equal(module.state_dict()[name], array, name)


@pytest.mark.parametrize("text", [
    "[" * 10**5, '{"a":{"$array":"lost"}}', '{"a":{"$array":[1]}}', '{"a":{"$int":"x"}}', '{"a":{"$dict":5}}',
    '{"a":{"$dict":[[[1],2]]}}', '{"a":{"$int":"%s"}}' % ("9" * 10_000), "[1]", "5", "{"], ids=lambda text: text[:20])
def test_text(text, tmp_path):
    """Read with the right checksum."""
    file = tmp_path / "c.safetensors"
    write_tensors({}, file, {"format": "ortpartial checkpoint", "version": "1", "sha256": _hash(text, {}),
                             "state": text})
    with pytest.raises(CheckpointError, match=r"c.safetensors' is damaged: (what it describes is|it holds) no state"):
        read_checkpoint(file)
