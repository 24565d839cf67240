"""Files of the safetensors format: every dtype, agreement with the library of that name, and damaged files."""

import json
import os

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ortpartial.exceptions import ModelError
from ortpartial.model import read_tensors, write_tensors

DTYPES = [np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.float16, ml_dtypes.bfloat16, np.int32, np.uint32,
          np.float32, np.int64, np.uint64, np.float64, np.complex64]
ARRAYS = {str(np.dtype(d)): np.arange(6).reshape(2, 3).astype(d) for d in DTYPES} | {
    "scalar": np.array(3.5), "empty": np.zeros((0, 4), np.float32), "strided": np.arange(12.0).reshape(3, 4).T,
    "big-endian": np.arange(3, dtype=">f4"), "name / with 'signs' é": np.ones(1)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.safetensors"


def test_every_dtype_and_shape(path):
    write_tensors(ARRAYS, path, {"text": "é\n"})
    arrays, metadata = read_tensors(path)
    assert arrays.keys() == ARRAYS.keys()
    assert metadata == {"text": "é\n"}
    for n, a in ARRAYS.items():
        assert arrays[n].dtype == a.dtype.newbyteorder("<")
        assert arrays[n].flags.writeable
        assert arrays[n].shape == a.shape
        np.testing.assert_array_equal(arrays[n], a)
    write_tensors({}, path)
    assert read_tensors(path) == ({}, {})


def test_the_library_reads_and_writes_the_same(path):
    write_tensors(ARRAYS, path, {"a": "b"})
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"a": "b"}
        assert set(file.keys()) == ARRAYS.keys()
        bfloat16 = file.get_tensor("bfloat16")
    np.testing.assert_array_equal(bfloat16, ARRAYS["bfloat16"])
    common = {n: a for n, a in ARRAYS.items() if n != "bfloat16"}
    write_tensors(common, path)
    for n, a in load_file(path).items():
        np.testing.assert_array_equal(a, common[n])
    save_file({n: np.ascontiguousarray(a) for n, a in common.items() if n != "scalar"}, path, {"c": "d"})
    arrays, metadata = read_tensors(path)
    assert metadata == {"c": "d"}
    for n, a in arrays.items():
        np.testing.assert_array_equal(a, common[n])


@pytest.mark.parametrize("header", [
    b"", b"{", b"[]", b"[[[[", b"[" * 10**5, b"\xff\xfe", b"null", b'{"w":3}', b'{"w":{}}', b'{"__metadata__":3}',
    *(json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **change}}).encode() for change in (
        {"dtype": "F99"}, {"dtype": []}, {"shape": [3]}, {"shape": [-2]}, {"shape": "2"}, {"shape": [2.5]},
        {"data_offsets": [0, 10**18]}, {"data_offsets": [4, 12]}, {"data_offsets": [8, 0]}, {"data_offsets": [0]},
        {"shape": [1], "data_offsets": [0, 4]}, {"shape": [10**30]}))])
def test_what_is_no_safetensors_file(path, header):
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ModelError, match=r"a.safetensors' is no safetensors file, or a damaged one\.$"):
        read_tensors(path)


def test_a_part_of_a_file(path):
    """A file that was cut anywhere, or goes on, is refused."""
    write_tensors({"w": np.ones(3), "b": np.ones(1, np.float16)}, path)
    whole = path.read_bytes()
    for part in [*(whole[:n] for n in range(len(whole))), whole + b"\0"]:
        path.write_bytes(part)
        with pytest.raises(ModelError, match="damaged"):
            read_tensors(path)


def test_what_numpy_cannot_hold(path):
    with pytest.raises(ModelError, match=r"The array 'w' has dtype float8_e5m2, which a safetensors file cannot"):
        write_tensors({"w": np.ones(2, ml_dtypes.float8_e5m2)}, path)
    header = json.dumps({"w": {"dtype": "F8_E5M2", "shape": [8], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ModelError, match=r"a\.safetensors' has a tensor that numpy cannot hold: .*float8_e5m2'\.$"):
        read_tensors(path)


def test_errors(path, monkeypatch):
    with pytest.raises(ModelError, match=r"The array 'w' has dtype complex128, which a safetensors file cannot hold\."):
        write_tensors({"w": np.ones(2, complex)}, path)
    with pytest.raises(FileNotFoundError, match=r"There is no file '.*a\.safetensors'\."):
        read_tensors(path)
    with pytest.raises(IsADirectoryError):
        read_tensors(path.parent)
    write_tensors({"w": np.ones(2)}, path)

    def refuse(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match=r"No space left on device; nothing was written; free some space"):
        write_tensors({"w": np.zeros(2)}, path)
    assert read_tensors(path)[0]["w"].tolist() == [1, 1]
    assert os.listdir(path.parent) == [path.name]
