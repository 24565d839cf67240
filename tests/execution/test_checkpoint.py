"""Checkpoint files: their content, the choice in a folder, and messages about damaged and foreign files."""

import errno
import json
import math
import os
import re

import ml_dtypes
import numpy as np
import pytest

from ortpartial.exceptions import CheckpointError, CheckpointWarning, SettingError
from ortpartial.execution.checkpoint import (
    add_checkpoint,
    find_checkpoint,
    list_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from ortpartial.model import read_tensors, write_tensors

STATE = {
    "weights": {"a/b": np.arange(3, dtype=np.float32), "a": {"b": np.ones((), ml_dtypes.bfloat16)}},
    "numbers": [1, 2**60, -(2**200), 0.1, 1e-310, math.inf, -math.inf, True, None],
    "shapes": {(("x", (2, -1)),): 3, "$text": "é", 4: np.zeros((0, 2))},
    "nested": ({"$array": "no array"}, [(), [], {}], np.float32(0.1), np.int64(7), np.bool_(True)),
}


def test_what_is_written_is_read(tmp_path):
    """Numbers to the last bit, with the types of their containers."""
    path = tmp_path / "a.safetensors"
    write_checkpoint(STATE, path)
    state = read_checkpoint(path)
    assert state["weights"]["a/b"].tolist() == [0, 1, 2]
    assert state["weights"]["a"]["b"].dtype == ml_dtypes.bfloat16
    assert state["numbers"] == STATE["numbers"]
    assert state["numbers"][7] is True
    assert list(state["shapes"]) == list(STATE["shapes"])
    assert state["shapes"][4].shape == (0, 2)
    assert state["nested"] == STATE["nested"]
    write_checkpoint({"nan": math.nan}, path)
    assert math.isnan(read_checkpoint(path)["nan"])


@pytest.mark.parametrize("bits", ["PCG64", "MT19937", "Philox", "SFC64", "PCG64DXSM"])
def test_random_states(tmp_path, bits):
    rng = np.random.Generator(getattr(np.random, bits)(3))
    rng.random(5)
    write_checkpoint(rng.bit_generator.state, tmp_path / "a.safetensors")
    state, expected = read_checkpoint(tmp_path / "a.safetensors"), rng.random(9)
    rng.bit_generator.state = state
    np.testing.assert_array_equal(rng.random(9), expected)


def test_the_rest_is_json(tmp_path):
    write_checkpoint({"epoch": 3, "big": 2**70, "weights": {"w": np.ones(2)}}, tmp_path / "a.safetensors")
    arrays, metadata = read_tensors(tmp_path / "a.safetensors")
    assert list(arrays) == ["weights/w"]
    assert metadata["format"] == "ortpartial checkpoint"
    assert json.loads(metadata["state"]) == {"epoch": 3, "big": {"$int": str(2**70)},
                                             "weights": {"w": {"$array": "weights/w"}}}


def test_what_it_cannot_hold(tmp_path):
    with pytest.raises(SettingError, match=r"^What is saved is arrays, .* of them; 'callbacks/0' is a function\.$"):
        write_checkpoint({"callbacks": [print.__class__ and (lambda: 0)]}, tmp_path / "a.safetensors")
    assert not os.listdir(tmp_path)


def test_the_newest_of_a_folder(tmp_path):
    """`keep` of them stay, other files are left alone, and numbers are compared as such."""
    folder = tmp_path / "new" / "checkpoints"
    assert find_checkpoint(folder) is None
    assert list_checkpoints(folder) == []
    folder.mkdir(parents=True)
    assert find_checkpoint(folder) is None
    for name in ("notes.txt", "checkpoint-best.safetensors", "old-checkpoint-000009.safetensors"):
        (folder / name).write_text("mine")
    write_checkpoint({"epoch": 0}, folder / "checkpoint-999999.safetensors")
    files = [add_checkpoint({"epoch": n}, folder, keep=2) for n in range(3)]
    assert [f.name for f in files] == [f"checkpoint-{n}.safetensors" for n in (1000000, 1000001, 1000002)]
    assert list_checkpoints(folder) == files[1:]
    assert len(os.listdir(folder)) == 5
    assert find_checkpoint(folder) == (files[2], {"epoch": 2})
    assert find_checkpoint(files[1]) == (files[1], {"epoch": 1})
    with pytest.raises(FileNotFoundError):
        find_checkpoint(files[0])


def flip_bit(content, place):
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


DAMAGES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "a bit of a weight": lambda content: flip_bit(content, len(content) - 3),
    "a bit of the state": lambda content: flip_bit(content, content.index(b"epoch")),
    "zeros": lambda content: bytes(len(content)),
    "text": lambda content: b"These are my notes." * 9,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one(tmp_path, damage):
    """It is named, and the one before it is used; without one, nothing starts from the beginning unasked."""
    first, second, third = (add_checkpoint({"epoch": n, "w": np.ones(3)}, tmp_path, keep=3) for n in (1, 2, 3))
    third.write_bytes(DAMAGES[damage](third.read_bytes()))
    with pytest.warns(CheckpointWarning, match=rf"^'{re.escape(str(third))}' is .* The training goes on from "
                                               rf"'{re.escape(str(second))}'\.$"):
        path, state = find_checkpoint(tmp_path)
    assert (path, state["epoch"]) == (second, 2)
    with pytest.raises(CheckpointError, match=rf"^'{re.escape(str(third))}' is"):
        find_checkpoint(third)
    for file in (first, second):
        file.write_bytes(third.read_bytes())
    with pytest.raises(CheckpointError, match=r"No other checkpoint is in .*; delete what"):
        find_checkpoint(tmp_path)


def test_every_bit_of_a_small_one(tmp_path):
    """A file with another bit is refused, or holds the same."""
    path = tmp_path / "a.safetensors"
    write_checkpoint({"w": np.ones(1, np.float32)}, path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(flip_bit(whole, place))
        with pytest.raises(CheckpointError, match=r"damaged|no checkpoint of ortpartial|of version 5"):
            read_checkpoint(path)


def test_foreign_ones(tmp_path):
    folder = tmp_path
    first = add_checkpoint({"epoch": 1}, folder, keep=3)
    write_tensors({"w": np.ones(2)}, folder / "checkpoint-000002.safetensors", {"format": "pt"})
    with pytest.warns(CheckpointWarning, match=r"2\.safetensors' is no checkpoint of ortpartial\. The training goes"):
        assert find_checkpoint(folder) == (first, {"epoch": 1})
    write_tensors({}, folder / "checkpoint-000003.safetensors", {"format": "ortpartial checkpoint", "version": "2"})
    with pytest.raises(CheckpointError, match=r"is a checkpoint of version 2, and this release of ortpartial reads "
                                              r"version 1; install the release that wrote it\.$"):
        read_checkpoint(folder / "checkpoint-000003.safetensors")


@pytest.mark.parametrize(("number", "hint"), [(errno.ENOSPC, "nothing was written; free some space"),
                                              (errno.EROFS, "choose a folder that can be written to")])
def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch, number, hint):
    """The former checkpoints remain, and no temporary file."""
    former = add_checkpoint({"epoch": 1}, tmp_path, keep=1)

    def refuse(path, flags=os.O_CREAT, *mode, open=os.open):
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            raise OSError(number, os.strerror(number))
        return open(path, flags, *mode)

    monkeypatch.setattr(os, "fsync" if number == errno.ENOSPC else "open", refuse)
    with pytest.raises(OSError, match=hint) as error:
        add_checkpoint({"epoch": 2}, tmp_path, keep=1)
    assert error.value.errno == number
    assert error.value.filename == str(tmp_path / "checkpoint-000002.safetensors")
    assert os.listdir(tmp_path) == [former.name]
    assert read_checkpoint(former) == {"epoch": 1}
