"""Atomic replacement: a file or folder is as it was or as it is to be, and nothing else stays."""

import errno
import os
import stat

import pytest

from ortpartial.model.atomic import make_folder, replace_file, write_files


def listing(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_file_is_replaced_at_the_end(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"before")
    path.chmod(0o640)
    with replace_file(path) as file:
        file.write(b"after")
        file.flush()
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert listing(tmp_path) == ["a"]


def write_half(path):
    with replace_file(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt


def test_an_interruption_leaves_it(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt):
        write_half(path)
    assert (path.read_bytes(), listing(tmp_path)) == (b"before", ["a"])


def fill_half(path):
    with make_folder(path) as folder:
        (folder / "x").write_bytes(b"1")
        assert not path.exists()
        raise KeyboardInterrupt


def test_a_folder_is_there_as_a_whole_or_not(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fill_half(tmp_path / "deep" / "b")
    assert listing(tmp_path / "deep") == []
    assert write_files({"x": b"1", "y": b"2"}, tmp_path / "c")["y"].read_bytes() == b"2"
    assert listing(tmp_path) == ["c", "deep"]


def test_what_a_killed_writer_left_is_removed(tmp_path):
    left = tmp_path / ".ortpartial-0011223344556677.tmp"
    left.write_bytes(b"half")
    write_files({"x": b"1"}, tmp_path)
    assert listing(tmp_path) == ["x"]


def test_the_error_names_the_path(tmp_path):
    path = tmp_path / "missing" / "a"
    with pytest.raises(FileNotFoundError, match="create its folder first") as e, replace_file(path):
        pass
    assert (e.value.errno, e.value.filename) == (errno.ENOENT, os.fspath(path))
