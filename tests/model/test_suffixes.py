"""Suffixes: a file of ours under the name of another library's is refused."""

import pytest

from ortpartial.exceptions import SettingError
from ortpartial.model import check_suffix


@pytest.mark.parametrize("name", ["x.pt", "x.PTH", "x.h5", "x.keras", "x.safetensors", "x.pkl"])
def test_suffixes_of_other_libraries(name):
    with pytest.raises(SettingError, match=rf"'{name}' would hold an ONNX model; write 'x\.onnx'\."):
        check_suffix(name, "an ONNX model", ".onnx")


@pytest.mark.parametrize("name", ["x.onnx", "x", "x.model", "a.pt/x.onnx"])
def test_other_suffixes(name):
    check_suffix(name, "an ONNX model", ".onnx")
    check_suffix("x.safetensors", "a checkpoint", ".safetensors")
