"""A checkpoint with the right checksum may be forged: each part of it is checked before any is used."""

import numpy as np
import pytest
from once import ON_NEWEST

from ortpartial import OrtGradientForwardBackwardOptimizer, build, constant, op, variable
from ortpartial.estimator.checkpoint import _hash, read_checkpoint
from ortpartial.exceptions import CheckpointError
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
