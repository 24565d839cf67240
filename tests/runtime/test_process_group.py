"""A group of processes: here one alone, whose sums and gathers are its own arrays; and errors without a group."""

import sys

import numpy as np
import pytest

from ortpartial.exceptions import RuntimeMissingError, SettingError
from ortpartial.runtime import Buffer
from ortpartial.runtime.process_group import ProcessGroup, connect_processes

dist = pytest.importorskip("torch.distributed")


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield ProcessGroup()
    dist.destroy_process_group()


def test_one_process(group):
    assert (group.rank, group.size) == (0, 1)
    assert group.broadcast({"a": 1}) == {"a": 1}


def test_sums_and_what_was_sent(group):
    """A buffer is replaced in place, again and again."""
    buffer = Buffer(np.arange(6, dtype=np.float32))
    for _ in range(2):
        group.all_reduce(buffer)
    assert buffer.numpy().tolist() == [0, 1, 2, 3, 4, 5]
    assert group.bytes_sent == 48


def test_arrays_of_all(group):
    a = np.arange(4).reshape(2, 2)
    gathered = group.all_gather(a)
    assert gathered.shape == (1, 2, 2)
    assert (gathered[0] == a).all()


def test_without_a_group():
    with pytest.raises(SettingError, match=r"distributed=True needs torch\.distributed\.init_process_group\('gloo'\)"):
        ProcessGroup()


def test_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RuntimeMissingError, match=r"distributed=True needs torch: run `pip install '\.\[torch\]'`"):
        ProcessGroup()


def test_processes_are_connected_once(tmp_path, monkeypatch):
    """Those that torchrun has started, which says so in the environment; a group that is there stays."""
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SettingError, match="are started by torchrun: `torchrun --nproc_per_node=2 -m ortpartial train"):
        connect_processes().__enter__()
    started = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    with connect_processes() as is_first:
        assert is_first
        with connect_processes() as is_first:
            assert is_first
        assert dist.is_initialized()
    assert not dist.is_initialized()


def test_connection_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    with pytest.raises(RuntimeMissingError, match=r"Several processes need torch: run `pip install"):
        connect_processes().__enter__()
