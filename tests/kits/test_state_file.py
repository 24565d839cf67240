"""The state of a kit: its tensors are read again, and a file that is damaged or of another kit is refused."""

import numpy as np
import pytest

from ortpartial.exceptions import ModelError
from ortpartial.kits.manifest import Tensor
from ortpartial.kits.state_file import pack_state, read_state

ARRAYS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "k": np.array(3, np.int64)}
TENSORS = [Tensor("w", "float32", (2, 3)), Tensor("k", "int64", ())]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "state.safetensors"
    path.write_bytes(pack_state(ARRAYS, 41))
    return path


def test_packed_and_read(path):
    arrays, steps = read_state(path, TENSORS)
    assert steps == 41
    assert list(arrays) == ["w", "k"]
    assert all((arrays[n] == a).all() and arrays[n].dtype == a.dtype for n, a in ARRAYS.items())


@pytest.mark.parametrize("place", [3, 60, -1])
def test_a_changed_byte(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"state\.safetensors is damaged: restore a copy of it, or export the kit"):
        read_state(path, TENSORS)


@pytest.mark.parametrize("tensors", [TENSORS[:1], [Tensor("w", "float32", (3, 2)), TENSORS[1]],
                                     [Tensor("v", "float32", (2, 3)), TENSORS[1]]])
def test_the_state_of_another_kit(path, tensors):
    with pytest.raises(ModelError, match=r"is the state of another kit: its tensors are not those of kit\.json\."):
        read_state(path, tensors)


def test_a_name_that_the_format_reserves():
    with pytest.raises(ModelError, match=r"The state has a tensor '__metadata__', a name that safetensors"):
        pack_state({"__metadata__": ARRAYS["w"]}, 0)
