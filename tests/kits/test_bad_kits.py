"""Training kits that are damaged or forged, and data and settings that do not fit: each ends in one sentence."""

import copy
import json
import resource
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortpartial import (
    OrtGradientForwardBackwardOptimizer,
    TrainingKit,
    build,
    constant,
    op,
    run_kit,
    variable,
    write_kit,
)
from ortpartial.exceptions import DataError, ModelError, OrtPartialError, SettingError
from ortpartial.learning import LearningRateSGDNesterov
from ortpartial.model import write_tensors

DATA = {"x": np.ones((8, 3), np.float32), "y_target": np.arange(8) % 2}


@pytest.fixture(scope="module")
def optimizer():
    x, w, b = variable("x", "float32", ["N", 3]), constant(np.eye(3, dtype=np.float32)[:, :2], hint="w"), constant(
        np.ones(2, np.float32), hint="b")
    return OrtGradientForwardBackwardOptimizer(
        build([x], {"y": x @ w + b}), learning_loss="softmax_cross_entropy", learning_rate=LearningRateSGDNesterov(0.1))


@pytest.fixture(scope="module")
def original(optimizer, tmp_path_factory):
    """A small kit, which is copied before it is changed."""
    folder = tmp_path_factory.mktemp("kits") / "kit"
    optimizer.export_step(folder, targets=())
    write_tensors(DATA, folder / "data.safetensors")
    return TrainingKit(folder)


@pytest.fixture
def folder(original, tmp_path):
    return Path(shutil.copytree(original.folder, tmp_path / "kit"))


@pytest.fixture(scope="module")
def expected(original):
    return attempt(original.folder)


def attempt(folder: Path) -> bytes:
    """What two steps make of a kit: its state and its model."""
    kit = TrainingKit(folder)
    kit.train(folder / "data.safetensors", 2, batch_size=4)
    return b"".join(a.tobytes() for a in kit.state.values()) + kit.model().SerializeToString()


def refuse(folder: Path, expected: bytes) -> str:
    """The error of a kit, which is one sentence, or "" where it trains as the original does."""
    try:
        trained = attempt(folder)
    except (OrtPartialError, OSError) as e:
        return str(e)
    assert trained == expected
    return ""


def list_places(value, place=()):
    """All places in a manifest, as tuples of keys and indices."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*place, key)
            yield from list_places(value[key], (*place, key))


def change_place(manifest, place, *values):
    """A manifest with another value in a place, or without it."""
    changed = copy.deepcopy(manifest)
    container = changed
    for key in place[:-1]:
        container = container[key]
    if values:
        container[place[-1]] = values[0]
    else:
        del container[place[-1]]
    return changed


def test_every_value_of_a_manifest_is_checked(folder, expected):
    path = folder / "kit.json"
    manifest = json.loads(path.read_text())
    refused = set()
    for place in list_places(manifest):
        for values in ((), (None,), (True,), (-1,), (1.5,), ("../x",), (10**30,), ([],), ({},)):
            path.write_text(json.dumps(change_place(manifest, place, *values)))
            if refuse(folder, expected):
                refused.add(place)
    assert set(list_places(manifest)) - refused == set()


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, '{"format": "ortpartial.kit", "version": 1}', "\xff",
                                  '{"format": "ortpartial.kit", "version": ' + "9" * 5000 + "}"])
def test_texts_that_are_no_manifest(folder, text):
    (folder / "kit.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelError, match=r"kit\.json is no manifest of a training kit\."):
        TrainingKit(folder)


@pytest.mark.parametrize("file", ["../step.onnx", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "a" * 256])
def test_a_manifest_names_files_of_its_folder_alone(folder, file):
    path = folder / "kit.json"
    path.write_text(json.dumps(change_place(json.loads(path.read_text()), ("steps", 0, "file"), file)))
    with pytest.raises(ModelError, match=r"kit\.json is no manifest of a training kit\."):
        TrainingKit(folder)


def test_tensors_that_are_swapped_do_not_train(folder):
    """Weights and momenta have the same shapes: only their names tell them apart."""
    path = folder / "kit.json"
    manifest = json.loads(path.read_text())
    tensors = manifest["state"]["tensors"]
    pairs = [(i, j) for j in range(len(tensors)) for i in range(j) if tensors[i]["shape"] == tensors[j]["shape"]]
    assert pairs
    for i, j in pairs:
        swapped = copy.deepcopy(manifest)
        swapped["state"]["tensors"][i], swapped["state"]["tensors"][j] = tensors[j], tensors[i]
        path.write_text(json.dumps(swapped))
        with pytest.raises(ModelError, match=r"step\.onnx is damaged: its inputs and outputs are not those of kit"):
            run_kit(folder, DATA, 1, batch_size=4)


@pytest.mark.parametrize("change", [
    lambda weights: weights.pop(), lambda weights: weights[0].update(offset=weights[0]["offset"] + 4),
    lambda weights: weights[0].update(offset=10**30), lambda weights: weights[0].update(offset=weights[1]["offset"])])
def test_weights_that_are_not_in_their_places_end_in_no_model(folder, change):
    manifest = json.loads((folder / "kit.json").read_text())
    change(manifest["model"]["weights"])
    (folder / "kit.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match=r"model\.onnx is not that of kit\.json: export the kit again\."):
        TrainingKit(folder).model()


@pytest.mark.parametrize(("file", "message"), [
    ("state.safetensors", "state.safetensors is damaged"), ("model.onnx", "model.onnx is "),
    ("step.onnx", "cannot run step.onnx: "), ("data.safetensors", "is no safetensors file, or a damaged one")])
def test_files_that_are_cut_short(folder, file, message, expected):
    data = (folder / file).read_bytes()
    for size in (0, 1, 7, 8, 9, 20, len(data) // 2, len(data) - 1):
        (folder / file).write_bytes(data[:size])
        assert message in refuse(folder, expected), size
    (folder / file).unlink()
    assert "There is no file" in refuse(folder, expected)


def test_every_bit_of_a_state_counts(folder, expected, rng):
    data = (folder / "state.safetensors").read_bytes()
    for place in rng.integers(0, len(data), 60):
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.integers(8)
        (folder / "state.safetensors").write_bytes(flipped)
        assert "state.safetensors is damaged: restore a copy of it, or export" in refuse(folder, expected), place


def test_the_step_of_another_kit(folder, tmp_path):
    x, w = variable("x", "float32", ["N", 3]), constant(np.ones((3, 2), np.float32), hint="w")
    other = OrtGradientForwardBackwardOptimizer(build([x], {"y": op.Tanh(x @ w)}))
    other.export_step(tmp_path / "other", targets=())
    shutil.copy(tmp_path / "other" / "step.onnx", folder)
    with pytest.raises(ModelError, match=r"step\.onnx is damaged: its inputs and outputs are not those of kit\.json\."):
        run_kit(folder, DATA, 1, batch_size=4)
    shutil.copy(tmp_path / "other" / "state.safetensors", folder)
    with pytest.raises(ModelError, match=r"state\.safetensors is the state of another kit"):
        TrainingKit(folder)


@pytest.mark.parametrize(("x", "message"), [
    (np.array([["a", "b", "c"]] * 8), "is <U1, where float32 was expected"),
    ([[1.0, 2.0], [3.0]], "has rows of 1 to 2 elements, where all were expected to have as many; pad them"),
    (np.float32(3), r"has the shape \[\], where \[N, 3\] is expected"),
    (None, r"has the shape \[\], where \[N, 3\] is expected"),
    (np.ma.masked_greater(DATA["x"], 0), "has masked values"),
])
def test_data_that_are_no_numbers(original, x, message):
    for call in (original.step, original.train):
        with pytest.raises(DataError, match=f"Input 'x' {message}"):
            call({**DATA, "x": x})


def test_data_without_rows_or_names(original):
    empty = {n: a[:0] for n, a in DATA.items()}
    with pytest.raises(DataError, match=r"The batch has no rows\."):
        original.step(empty)
    with pytest.raises(DataError, match=r"The data have 0 rows, fewer than a batch of 10\."):
        original.train(empty)
    for data in (tuple(DATA.values()), None, 3, DATA["x"]):
        with pytest.raises(DataError, match=r"The data are of type \w+; expected a dict with an array for each input"):
            original.train(data)
    assert original.steps_taken == 0


@pytest.mark.parametrize("settings", [
    {"batch_size": 0}, {"batch_size": 1.5}, {"batch_size": "8"}, {"batch_size": True}, {"batch_sizes": 8},
    {"batch_sizes": [True]}, {"batch_sizes": "ab"}, {"batch_sizes": []}, {"targets": None}, {"targets": 3}])
def test_settings_of_an_export(optimizer, tmp_path, settings):
    with pytest.raises(SettingError, match=f"{next(iter(settings))} "):
        optimizer.export_step(tmp_path / "kit", **{"targets": (), **settings})
    assert not (tmp_path / "kit").exists()


def test_a_state_that_cannot_be_saved_leaves_the_former_one(folder):
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    kit = TrainingKit(folder)
    kit.train(DATA, 3, batch_size=4)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # as a disk that is full
    try:
        with pytest.raises(OSError, match=r"nothing was written.*state\.safetensors"):
            kit.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    kit.state["w"] = kit.state["w"].astype(np.float64)
    with pytest.raises(ModelError, match=r"The state 'w' is float64 \[3, 2\], where float32 \[3, 2\] is expected\."):
        kit.save()
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_models_that_no_kit_holds(optimizer, tmp_path):
    proto = optimizer.get_training_onnx("lowered")
    two = onnx.ModelProto()
    two.CopyFrom(proto)
    two.training_info.add().CopyFrom(proto.training_info[0])
    with pytest.raises(ModelError, match="A kit holds one training step, and the model has 2 entries of training_info"):
        write_kit(two, tmp_path / "kit")
    del two.training_info[:]
    with pytest.raises(ModelError, match="the model has 0 entries of training_info"):
        write_kit(two, tmp_path / "kit")
    with pytest.raises(ModelError, match="The 7 bytes given are no ONNX model"):
        write_kit(b"garbage", tmp_path / "kit")
    assert not (tmp_path / "kit").exists()
