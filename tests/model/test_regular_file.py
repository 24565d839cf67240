"""Regular files: links are followed, and files without an end or waiting for a writer are refused."""

import os
import sys

import pytest

from ortpartial.model import regular_file
from ortpartial.model.regular_file import open_regular, read_regular


def test_a_link_to_a_file_is_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link") == b"content"
    with open_regular(str(tmp_path / "file")) as file:
        assert (file.name, file.read()) == (str(tmp_path / "file"), b"content")


def test_a_file_that_becomes_a_pipe_before_it_is_opened(tmp_path, monkeypatch):
    path, true_open = tmp_path / "file", os.open
    path.touch()

    def exchange(*arguments):
        path.unlink()
        os.mkfifo(path)
        return true_open(*arguments)

    monkeypatch.setattr(os, "open", exchange)
    with pytest.raises(OSError, match="is a pipe, where a regular file is expected"):
        open_regular(path)


def test_a_file_larger_than_the_memory(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(bytes(100))
    monkeypatch.setattr(regular_file, "available_memory", lambda: 99)
    with pytest.raises(OSError, match=r"file' has 0\.0 GiB, where 0\.0 GiB are available\."):
        read_regular(tmp_path / "file")
    open_regular(tmp_path / "file", whole=False).close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other devices")
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_devices(device):
    with pytest.raises(OSError, match=f"^'{device}' is a device, where a regular file is expected\\.$"):
        read_regular(device)
