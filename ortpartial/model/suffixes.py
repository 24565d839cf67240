"""Suffixes of files: the suffixes of other libraries, under which no file of ours is written."""

from __future__ import annotations

import os
from pathlib import Path

from ortpartial.exceptions import SettingError

__all__ = ["FOREIGN_SUFFIXES", "check_suffix"]

#: Endings of the files of other libraries.
FOREIGN_SUFFIXES = frozenset({".bin", ".ckpt", ".h5", ".hdf5", ".joblib", ".keras", ".pb", ".pickle", ".pkl", ".pt",
                              ".pth", ".safetensors", ".tflite"})


def check_suffix(path: str | os.PathLike[str], content: str, suffix: str) -> None:
    """Check that a file to be written does not end as that of another library, which could not read it.

    Parameters
    ----------
    path : path
        The file.
    content : str
        The content, for the message.
    suffix : str
        How its files end, such as ``".onnx"``.

    Raises
    ------
    SettingError
        It ends as a file of another library.

    Examples
    --------
    >>> check_suffix("model.pt", "an ONNX model", ".onnx")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.SettingError: 'model.pt' would hold an ONNX model; write 'model.onnx'.
    """
    file = Path(os.fspath(path))
    if file.suffix.lower() in FOREIGN_SUFFIXES - {suffix}:
        raise SettingError(f"{os.fspath(path)!r} would hold {content}; write {os.fspath(file.with_suffix(suffix))!r}.")
