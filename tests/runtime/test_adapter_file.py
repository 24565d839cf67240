"""Adapter files: they are written and read, refused where damaged, and a runtime without adapters says so."""

import struct

import numpy as np
import pytest

from ortpartial.exceptions import ModelError, RuntimeMissingError
from ortpartial.runtime import has_adapter_files, read_adapter_file, runtime_version, write_adapter_file

needs_files = pytest.mark.skipif(not has_adapter_files(), reason="onnxruntime has an AdapterFormat from 1.20 on.")
ARRAYS = {"q_proj.lora_A.weight": np.arange(6, dtype=np.float32).reshape(3, 2), "half": np.ones((2, 0), np.float16),
          "double": np.full((1, 2), np.pi)}


@needs_files
def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "my.onnx_adapter"
    write_adapter_file(ARRAYS, path, 2**31 - 1)
    arrays, version = read_adapter_file(path)
    assert version == 2**31 - 1
    assert arrays.keys() == ARRAYS.keys()
    for name, a in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], a)
        assert arrays[name].dtype == a.dtype
    assert [p.name for p in tmp_path.iterdir()] == ["my.onnx_adapter"]


@needs_files
def test_a_file_that_cannot_be_written_keeps_the_former_one(tmp_path):
    path = tmp_path / "my.onnx_adapter"
    write_adapter_file(ARRAYS, path)
    with pytest.raises(ModelError, match=r"The array 'w' has dtype int64, and an \.onnx_adapter file holds float16, "):
        write_adapter_file({"w": np.ones(2, np.int64)}, path)
    assert read_adapter_file(path)[0].keys() == ARRAYS.keys()
    with pytest.raises(FileNotFoundError, match="create its folder first"):
        write_adapter_file(ARRAYS, tmp_path / "none" / "my.onnx_adapter")


@needs_files
def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "my.onnx_adapter"
    write_adapter_file(ARRAYS, path)
    data = path.read_bytes()
    for damaged in (b"", b"PK", data[: len(data) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match=r"my\.onnx_adapter' is no whole \.onnx_adapter file: [^/]*$"):
            read_adapter_file(path)
    with pytest.raises(FileNotFoundError):
        read_adapter_file(tmp_path / "none.onnx_adapter")


@needs_files
def test_a_newer_format_is_named(tmp_path):
    path = tmp_path / "my.onnx_adapter"
    write_adapter_file(ARRAYS, path)
    data = bytearray(path.read_bytes())
    root = struct.unpack_from("<I", data)[0]
    fields = root - struct.unpack_from("<i", data, root)[0]  # The first field of the root's table is the format.
    struct.pack_into("<i", data, root + struct.unpack_from("<H", data, fields + 4)[0], 2)
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"is of a newer format than onnxruntime \S+ reads; install a newer"):
        read_adapter_file(path)


def test_a_runtime_without_adapter_files(tmp_path, monkeypatch):
    monkeypatch.delattr("onnxruntime.AdapterFormat", raising=False)
    message = rf"onnxruntime {runtime_version()} has no AdapterFormat, which 1\.20 brought; .* ends in \.safetensors"
    with pytest.raises(RuntimeMissingError, match=message):
        write_adapter_file(ARRAYS, tmp_path / "my.onnx_adapter")
    with pytest.raises(RuntimeMissingError, match="has no AdapterFormat"):
        read_adapter_file(tmp_path / "my.onnx_adapter")
