"""Checkpoints: files that hold the state of a training, written whole or not at all, checked when they are read.

A checkpoint is a safetensors file: its tensors are the arrays of the state, and its metadata hold the rest as JSON.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ortpartial.annotations import Entries, Json, State
from ortpartial.exceptions import CheckpointError, CheckpointWarning, FileMissingError, ModelError, SettingError
from ortpartial.model import check_suffix, read_tensors, write_tensors
from ortpartial.texts import parse_json

__all__ = ["add_checkpoint", "decode", "encode", "find_checkpoint", "list_checkpoints", "parse_state",
           "read_checkpoint", "write_checkpoint"]

_VERSION = 1

#: The files of a folder, by their number.
_NAME, _PATTERN = "checkpoint-{:06}.safetensors", re.compile(r"checkpoint-(\d{6,})\.safetensors")

#: Readers of JSON take larger whole numbers for floats.
_WHOLE = 2**53


def write_checkpoint(state: Entries, path: str | os.PathLike[str], kind: str = "checkpoint") -> None:
    """Write a state to a file, which holds either its former content or the whole state, whenever the process ends.

    Parameters
    ----------
    state : dict of str to object
        Dicts, lists and tuples of arrays, numbers, texts and None.
    path : path
        The file.
    kind : str
        The kind of the file, which is not read as another.

    Raises
    ------
    SettingError
        The state holds something else, or the file ends as that of another library.
    OSError
        The file cannot be written; the former file remains.

    Examples
    --------
    >>> write_checkpoint({"epoch": 3, "weights": {"w": np.zeros(2)}}, "a.safetensors")
    >>> read_checkpoint("a.safetensors")
    {'epoch': 3, 'weights': {'w': array([0., 0.])}}
    """
    check_suffix(path, f"a {kind}", ".safetensors")
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(encode(state, "", arrays), separators=(",", ":"), allow_nan=False)
    metadata = {"format": f"ortpartial {kind}", "version": str(_VERSION), "sha256": _hash(text, arrays), "state": text}
    write_tensors(arrays, path, metadata)


def read_checkpoint(path: str | os.PathLike[str], kind: str = "checkpoint") -> State:
    """Read the state in a file.

    Parameters
    ----------
    path : path
        The file.
    kind : str
        As for `write_checkpoint`.

    Returns
    -------
    dict of str to object
        The state that `write_checkpoint` was given.

    Raises
    ------
    CheckpointError
        The file is damaged, none that `write_checkpoint` writes, or of a later version.
    OSError
        It cannot be read.
    """
    try:
        arrays, metadata = read_tensors(path)
    except FileMissingError:
        raise
    except ModelError as e:
        raise CheckpointError(str(e)) from None
    if metadata.get("format") != f"ortpartial {kind}":
        raise CheckpointError(f"{str(path)!r} is no {kind} of ortpartial.")
    version = metadata.get("version", "")
    if re.fullmatch("[0-9]{1,9}", version) and int(version) > _VERSION:
        raise CheckpointError(f"{str(path)!r} is a {kind} of version {version}, and this release of ortpartial "
                              f"reads version {_VERSION}; install the release that wrote it.")
    text = metadata.get("state", "")
    if version != str(_VERSION) or _hash(text, arrays) != metadata.get("sha256"):
        raise CheckpointError(f"{str(path)!r} is damaged: its checksum is not that of its content.")
    return parse_state(text, arrays, repr(str(path)))


def list_checkpoints(folder: str | os.PathLike[str]) -> list[Path]:
    """List the checkpoints in a folder, the newest last; other files are left out.

    Parameters
    ----------
    folder : path
        The folder, which need not be there.

    Returns
    -------
    list of pathlib.Path
    """
    root = Path(folder)
    names = os.listdir(root) if root.is_dir() else []
    numbers = sorted((int(match[1]), name) for name in names if (match := _PATTERN.fullmatch(name)))
    return [root / name for _, name in numbers]


def find_checkpoint(path: str | os.PathLike[str]) -> tuple[Path, State] | None:
    """Find a checkpoint and read it: a file, or the newest in a folder that is whole.

    Parameters
    ----------
    path : path
        A file, or a folder, which need not be there.

    Returns
    -------
    tuple of pathlib.Path and dict, or None
        The file and its state; None where a folder holds no checkpoint.

    Raises
    ------
    CheckpointError
        The file, or every checkpoint in the folder, is damaged or none of this library.
    OSError
        A file cannot be read.

    Warns
    -----
    CheckpointWarning
        A checkpoint is damaged or none of this library; the checkpoint before it is read.

    Examples
    --------
    >>> for epoch in range(3):
    ...     file = add_checkpoint({"epoch": epoch}, "checkpoints", keep=2)
    >>> [file.name for file in list_checkpoints("checkpoints")]
    ['checkpoint-000002.safetensors', 'checkpoint-000003.safetensors']
    >>> find_checkpoint("checkpoints")[1]
    {'epoch': 2}
    """
    place = Path(path)
    if place.is_file() or place.suffix == ".safetensors":
        return place, read_checkpoint(place)
    reasons = []
    for file in reversed(list_checkpoints(place)):
        try:
            state = read_checkpoint(file)
        except CheckpointError as e:
            reasons.append(str(e))
            continue
        if reasons:
            warnings.warn(f"{' '.join(reasons)} The training goes on from {str(file)!r}.", CheckpointWarning,
                          stacklevel=2)
        return file, state
    if reasons:
        raise CheckpointError(f"{' '.join(reasons)} No other checkpoint is in {str(place)!r}; delete what is there to "
                              f"start from the beginning.")
    return None


def add_checkpoint(state: Entries, folder: str | os.PathLike[str], keep: int) -> Path:
    """Write a state to a folder as its newest checkpoint, and delete the oldest.

    Parameters
    ----------
    state : dict of str to object
        As for `write_checkpoint`.
    folder : path
        The folder, which is made if it is not there.
    keep : int
        How many checkpoints stay in the folder, at least 1.

    Returns
    -------
    pathlib.Path
        The new file.

    Raises
    ------
    OSError
        The file cannot be written; the former files remain.
    """
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    former = list_checkpoints(root)
    last = _PATTERN.fullmatch(former[-1].name) if former else None
    path = root / _NAME.format(int(last[1]) + 1 if last else 1)
    write_checkpoint(state, path)
    for file in list_checkpoints(root)[:-keep]:
        file.unlink(missing_ok=True)
    return path


def _hash(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """The checksum of a text and of arrays with their names, dtypes and shapes."""
    checksum = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        a = np.asarray(arrays[name], order="C")
        checksum.update(f"{name} {a.dtype.name} {a.shape}".encode())
        checksum.update(a.reshape(-1).view(np.uint8).data)
    return checksum.hexdigest()


def encode(value: object, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Write a value as JSON has it; an array becomes its name.

    Objects that JSON lacks are dicts with a single key, which begins with "$".

    Parameters
    ----------
    value : object
        Dicts, lists and tuples of arrays, numbers, texts and None.
    name : str
        The name of the value, with which the names of its arrays begin.
    arrays : dict of str to numpy.ndarray
        The arrays by name, to which the arrays of the value are added.

    Returns
    -------
    object

    Raises
    ------
    SettingError
        The value holds something else.

    Examples
    --------
    >>> arrays = {}
    >>> encode({"epoch": 3, "weights": np.zeros(2)}, "state", arrays)
    {'epoch': 3, 'weights': {'$array': 'state/weights'}}
    >>> arrays
    {'state/weights': array([0., 0.])}
    """
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufcV":
        while name in arrays:  # Keys may have slashes, too.
            name += "'"
        arrays[name] = value.astype(value.dtype.newbyteorder("="), copy=False)
        return {"$array": name}
    if isinstance(value, Mapping):
        return _encode_mapping(value, name, arrays)
    if isinstance(value, (list, tuple)):
        elements = [encode(v, f"{name}/{i}", arrays) for i, v in enumerate(value)]
        return elements if isinstance(value, list) else {"$tuple": elements}
    if isinstance(value, int) and abs(value) >= _WHOLE:
        return {"$int": str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    raise SettingError(f"What is saved is arrays, numbers, texts, and lists and dicts of them; {name!r} is {kind}.")


def _encode_mapping(value: Mapping[Any, Any], name: str, arrays: dict[str, np.ndarray]) -> Json:
    """Write a dict, of any keys, as JSON has it."""
    if all(isinstance(n, str) and not n.startswith("$") for n in value):
        return {n: encode(v, f"{name}/{n}".lstrip("/"), arrays) for n, v in value.items()}
    pairs = [(encode(n, f"{name}/{i}.key", arrays), encode(v, f"{name}/{i}", arrays))
             for i, (n, v) in enumerate(value.items())]
    return {"$dict": pairs}


def parse_state(text: str, arrays: Mapping[str, np.ndarray], origin: str) -> State:
    """Read a state that was written as JSON by `encode`.

    Parameters
    ----------
    text : str
        The JSON, which may be forged: a checksum proves no author.
    arrays : dict of str to numpy.ndarray
        The arrays by name.
    origin : str
        Where it is from, for the error.

    Returns
    -------
    dict of str to object

    Raises
    ------
    CheckpointError
        It is not the text that `encode` writes of a dict.
    """
    try:
        state = decode(parse_json(text), arrays)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as e:
        raise CheckpointError(f"{origin} is damaged: what it describes is no state ({type(e).__name__}).") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{origin} is damaged: it holds no state.")
    return state


def decode(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Read the result of `encode`.

    Parameters
    ----------
    value : object
        The result.
    arrays : dict of str to numpy.ndarray
        The arrays by name.

    Returns
    -------
    object
        The object that it was given.

    Examples
    --------
    >>> decode({"$tuple": [1, {"$float": "inf"}]}, {})
    (1, inf)
    """
    if isinstance(value, list):
        return [decode(v, arrays) for v in value]
    if not isinstance(value, dict):
        return value
    kind: str = next(iter(value), "")
    content: Any = value.get(kind)
    if kind == "$array":
        return arrays[content]
    if kind == "$dict":
        return {decode(n, arrays): decode(v, arrays) for n, v in content}
    if kind == "$tuple":
        return tuple(decode(v, arrays) for v in content)
    if kind in ("$int", "$float"):
        return int(content) if kind == "$int" else float(content)
    return {n: decode(v, arrays) for n, v in value.items()}
