"""Forged headers: JSON of other types, huge, not finite, twice, deep or with NUL ends in a clear error."""

import json

import numpy as np
import pytest
from forgeries import forge, forge_header, forge_json

from ortpartial import (
    OrtGradientForwardBackwardOptimizer,
    TrainingKit,
    build,
    constant,
    export_c,
    load_adapter,
    op,
    read_c_state,
    save_adapter,
    variable,
)
from ortpartial.exceptions import OrtPartialError
from ortpartial.execution.checkpoint import _hash
from ortpartial.model import read_tensors, write_tensors

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
Y = np.ascontiguousarray(X[:, :2])


def model():
    x = variable("x", "float32", ["N", 4])
    w, v = constant(np.ones((4, 3), np.float32), hint="fc.weight"), constant(np.ones((3, 2), np.float32), hint="v")
    return build([x], {"y": op.Tanh(x @ w) @ v})


def make():
    return OrtGradientForwardBackwardOptimizer(model(), learning_rate="adam", max_iter=1, batch_size=4, random_state=0)


def forge_state(path, rng):
    """A checkpoint with another state, behind a right checksum, or other metadata."""
    arrays, texts = read_tensors(path)
    if rng.integers(4):
        texts["state"] = forge(json.loads(texts["state"]), rng)
        texts["sha256"] = _hash(texts["state"], arrays)
    else:
        texts[["format", "version", "sha256", "state"][rng.integers(4)]] = ["²", "9" * 5000, "", "\0", "-1"][
            rng.integers(5)]
    write_tensors(arrays, path, texts)


def resume(path):
    optimizer = make()
    optimizer.load_checkpoint(path)
    optimizer.partial_fit(X, Y)


def run_kit(path):
    kit = TrainingKit(path.parent)
    kit.step({"x": X[:4], "y_target": Y[:4]})
    kit.model()


def read_c(path):
    read_c_state(path.parent, (path.parent / "state.bin").read_bytes() if (path.parent / "state.bin").exists() else b"")


READERS = {"checkpoint.safetensors": (resume, [forge_state, forge_header]), "kit/kit.json": (run_kit, [forge_json]),
           "kit/state.safetensors": (run_kit, [forge_header]), "c/training.json": (read_c, [forge_json]),
           "adapter.safetensors": (lambda path: load_adapter(model(), path), [forge_header])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """True files of every kind."""
    from ortpartial import add_lora

    folder = tmp_path_factory.mktemp("true")
    optimizer = make().fit(X, Y)
    optimizer.save_checkpoint(folder / "checkpoint.safetensors")
    optimizer.export_step(folder / "kit", batch_size=4)
    export_c(optimizer, folder / "c", batch_size=4)
    save_adapter(add_lora(model(), "fc", rank=2, random_state=0), folder / "adapter.safetensors")
    return folder


def ends_clearly(folder, name, seeds):
    """The seeds of files that end in no clear error, with what they end in."""
    use, forgeries = READERS[name]
    path, unclear = folder / name, []
    true = path.read_bytes()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        forgeries[rng.integers(len(forgeries))](path, rng)
        try:
            use(path)
        except (OrtPartialError, OSError) as e:
            if len(str(e)) >= 1000 or not str(e).replace("\n", "").isprintable():
                unclear.append((seed, "a long message", str(e)[:100]))
        except Exception as e:
            unclear.append((seed, type(e).__name__, str(e)[:200]))
        finally:
            path.write_bytes(true)
    return unclear


@pytest.mark.parametrize("name", READERS)
def test_a_forged_file_ends_in_a_clear_error(name, folder):
    assert ends_clearly(folder, name, range(25)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many_forged_files_end_in_clear_errors(name, folder):
    assert ends_clearly(folder, name, range(1000, 2000)) == []
