"""The checkpoint file of onnxruntime's on-device training: parameters, state of the optimizer, properties."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ortpartial.arguments import checked
from ortpartial.exceptions import CheckpointError, FileMissingError, SettingError
from ortpartial.model import open_regular, read_regular, write_files

from .tables import Budget, Table, read_root

__all__ = ["Checkpoint", "OptimizerState", "read_checkpoint", "write_checkpoint"]

#: "On-device training checkpoint", and the version of the format that onnxruntime 1.19.2 writes.
_IDENTIFIER, _VERSION = b"ODTC", 2

#: The dtypes of tensors, by their numbers in `TensorDataType` of ONNX Runtime's format.
_DTYPES = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
           10: "float16", 11: "float64", 12: "uint32", 13: "uint64"}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}

#: A FlatBuffer is addressed by 32 bits with a sign.
_LARGEST = 2**31 - 2**20


@dataclass
class OptimizerState:
    """The state of the optimizer of a checkpoint.

    Parameters
    ----------
    step : int
        The number of steps taken.
    learning_rate : float
        The initial learning rate.
    momentums : dict of str to dict of str to numpy.ndarray
        By parameter, its momentums by name: ``momentum0`` and ``momentum1`` of AdamW, none of SGD.

    Examples
    --------
    >>> state = OptimizerState(step=100, learning_rate=0.01)
    >>> write_checkpoint(Checkpoint({"w": np.zeros((2, 1), np.float32)}, optimizers={"group0": state}), "checkpoint")
    >>> read_checkpoint("checkpoint").optimizers["group0"].step
    100
    """

    step: int = 0
    learning_rate: float = 1e-3
    momentums: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)


@dataclass
class Checkpoint:
    """The content of a checkpoint file.

    Parameters
    ----------
    trainable, frozen : dict of str to numpy.ndarray
        The parameters by name. Running statistics of a BatchNormalization are frozen.
    optimizers : dict of str to OptimizerState
        The state of the optimizer by the name of its group, ``"group0"``; empty if it was not saved.
    properties : dict of str to int, float or str
        The properties that the user has stored.
    is_nominal : bool
        Whether there are no numbers yet: a device gets them apart, and every array is of zeros.

    Examples
    --------
    >>> checkpoint = Checkpoint({"w": np.zeros((2, 1), np.float32)}, properties={"epoch": 3})
    >>> write_checkpoint(checkpoint, "checkpoint")
    >>> read_checkpoint("checkpoint").properties
    {'epoch': 3}
    """

    trainable: dict[str, np.ndarray]
    frozen: dict[str, np.ndarray] = field(default_factory=dict)
    optimizers: dict[str, OptimizerState] = field(default_factory=dict)
    properties: dict[str, int | float | str] = field(default_factory=dict)
    is_nominal: bool = False


@checked
def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint of `onnxruntime.training`, on any runtime.

    The file may be a stranger's: every offset in it is checked, and no more is read than the file holds.

    Parameters
    ----------
    path : path
        The file ``checkpoint``. Where the numbers are in a file of their own, as in large models, it is
        ``checkpoint.data`` beside it.

    Returns
    -------
    Checkpoint

    Raises
    ------
    CheckpointError
        There is no such file, or it is no checkpoint; the message says why.

    Examples
    --------
    >>> with open("notes.txt", "w") as file:
    ...     _ = file.write("This is not a checkpoint.")
    >>> read_checkpoint("notes.txt")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.CheckpointError: 'notes.txt' is no checkpoint of onnxruntime.training: it does not begin ...
    """
    path = Path(path)
    if path.is_dir() or not path.exists():
        kind, what = (CheckpointError, "is a folder") if path.is_dir() else (FileMissingError, "does not exist")
        raise kind(f"{str(path)!r} {what}; give the file that generate_artifacts calls 'checkpoint'.")
    try:
        return _read(read_regular(path), path.with_name(f"{path.name}.data"))
    except CheckpointError as e:
        raise CheckpointError(f"{str(path)!r} is no checkpoint of onnxruntime.training: {e}.") from None


def _read(data: bytes, beside: Path) -> Checkpoint:
    """The content of a file; the message of an error completes a sentence about it."""
    root = read_root(data, _IDENTIFIER)
    version = root.number(0, "i")
    if version not in (1, _VERSION):
        raise CheckpointError(f"it is of version {version}, and versions 1 and {_VERSION} are known")
    module = root.table(1)
    if module is None:
        raise CheckpointError("it has no parameters")
    is_nominal = module.number(2, "?", False)
    outside = _Zeros() if is_nominal else _External(beside) if module.number(3, "?", False) else None
    trainable, frozen = (_read_tensors(module.tables(i), outside) for i in (0, 1))
    groups = {_name(g): OptimizerState(g.number(1, "q"), g.number(2, "f", 0.0), {
        _name(p): _read_tensors(p.tables(1), None) for p in g.tables(3)}) for g in root.tables(2)}
    return Checkpoint(trainable, frozen, groups, _read_properties(root.table(3)), is_nominal)


class _External:
    """The file with the numbers of the parameters."""

    def __init__(self, path: Path):
        # A file read next to a stranger's file must not be a link to something else.
        if not path.is_file() or path.is_symlink():
            raise CheckpointError(f"its numbers are in {path.name!r}, which is not beside it")
        with open_regular(path, whole=False) as file:
            is_empty = not os.fstat(file.fileno()).st_size
            self.data = np.empty(0, np.uint8) if is_empty else np.memmap(file, np.uint8, "r")
        self.budget = Budget(self.data.size)

    def slice(self, start: int, size: int) -> np.ndarray:
        if start < 0 or start + size > self.data.size:
            raise CheckpointError("it refers to what lies outside of the file with its numbers")
        self.budget.spend(size)
        return self.data[start : start + size]


class _Zeros:
    """The numbers of a nominal checkpoint, which has shapes alone: of 2 GB at most, as in others."""

    def __init__(self) -> None:
        self.left = _LARGEST

    def slice(self, start: int, size: int) -> np.ndarray:
        """Zeros."""
        self.left -= size
        if self.left < 0:
            raise CheckpointError("its parameters have more than 2 GB")
        return np.zeros(size, np.uint8)


def _name(table: Table) -> str:
    if not (name := table.text(0)):
        raise CheckpointError("it has an entry without a name")
    return name


def _read_tensors(tables: Iterable[Table], outside: _External | _Zeros | None) -> dict[str, np.ndarray]:
    """Tensors by name."""
    tensors: dict[str, np.ndarray] = {}
    for table in tables:
        name = _name(table)
        if name in tensors:
            raise CheckpointError(f"it has {name!r} twice")
        tensors[name] = _read_tensor(name, table, outside)
    return tensors


def _read_tensor(name: str, table: Table, outside: _External | _Zeros | None) -> np.ndarray:
    """A tensor, as a copy that may be written to."""
    dims, code = table.vector(2, "<i8"), table.number(3, "i")
    shape = () if dims is None else tuple(dims.tolist())
    if code not in _DTYPES:
        raise CheckpointError(f"{name!r} has the type {code}, which is none of numbers that it may have")
    dtype = np.dtype(_DTYPES[code])
    if any(n < 0 for n in shape) or len(shape) > 32:
        raise CheckpointError(f"{name!r} has the shape {shape}")
    size = math.prod(shape) * dtype.itemsize
    raw, start = table.vector(4, "u1"), table.number(6, "q", -1)
    if isinstance(outside, _Zeros) or (outside is not None and start >= 0):
        raw = outside.slice(start, size)
    if raw is None:
        raw = np.empty(0, np.uint8)
    if raw.size != size:
        raise CheckpointError(f"{name!r} has {raw.size} bytes, and its shape {shape} asks for {size}")
    return np.frombuffer(bytes(raw), dtype.newbyteorder("<")).astype(dtype).reshape(shape)


def _read_properties(bag: Table | None) -> dict[str, int | float | str]:
    if bag is None:
        return {}
    integers = {_name(p): p.number(1, "q") for p in bag.tables(0)}
    floats = {_name(p): p.number(1, "f", 0.0) for p in bag.tables(1)}
    return {**integers, **floats, **{_name(p): p.text(1) for p in bag.tables(2)}}


@checked
def write_checkpoint(checkpoint: Checkpoint, path: str | os.PathLike[str]) -> None:
    """Write a checkpoint, which `onnxruntime.training.api` of 1.19.2 reads, too.

    Parameters
    ----------
    checkpoint : Checkpoint
        The parameters, states and properties.
    path : path
        The file; it holds its former content or all of the new content, whenever the process ends.

    Raises
    ------
    CheckpointError
        It is larger than the 2 GB that the format allows, or holds a dtype that it has not.
    OSError
        The file cannot be written.

    Examples
    --------
    >>> checkpoint = Checkpoint({"w": np.array([[1.0], [2.0]], np.float32)})
    >>> write_checkpoint(checkpoint, "checkpoint")
    >>> read_checkpoint("checkpoint").trainable["w"].ravel()
    array([1., 2.], dtype=float32)
    """
    if not isinstance(checkpoint, Checkpoint):
        raise SettingError(f"write_checkpoint takes a Checkpoint and then a path, not a {type(checkpoint).__name__}; "
                           f"CheckpointState.save_checkpoint writes a state.")
    if checkpoint.is_nominal:
        raise CheckpointError("A nominal checkpoint has no numbers to write; load the parameters first.")
    path = Path(path)
    write_files({path.name: _Writer().write(checkpoint)}, path.parent)


class _Writer:
    """A checkpoint as a FlatBuffer, which is built from its end."""

    def __init__(self) -> None:
        import flatbuffers  # type: ignore[import-untyped]  # every onnxruntime depends on it

        self.builder: Any = flatbuffers.Builder(1024)

    def write(self, checkpoint: Checkpoint) -> bytes:
        tensors = [*checkpoint.trainable.values(), *checkpoint.frozen.values(),
                   *(a for s in checkpoint.optimizers.values() for m in s.momentums.values() for a in m.values())]
        if (size := sum(a.nbytes for a in tensors)) > _LARGEST:
            raise CheckpointError(f"A checkpoint holds 2 GB, and this one would have {size:,} bytes; save the model "
                                  f"instead, with its external data.")
        b = self.builder
        bag = self._properties(checkpoint.properties) if checkpoint.properties else None
        states = [self._group(name, state) for name, state in sorted(checkpoint.optimizers.items())]
        groups = self._vector(states) if states else None
        module = self._table(3, {i: ("UOffsetTRelative", self._tensors(tensors), 0)
                                 for i, tensors in enumerate((checkpoint.trainable, checkpoint.frozen))})
        fields: dict[int, tuple[str, Any, Any]] = {0: ("Int32", _VERSION, 0), 1: ("UOffsetTRelative", module, 0)}
        fields |= {i: ("UOffsetTRelative", o, 0) for i, o in ((2, groups), (3, bag)) if o is not None}
        b.Finish(self._table(4, fields), file_identifier=_IDENTIFIER)
        return bytes(b.Output())

    def _table(self, count: int, fields: Mapping[int, tuple[str, object, object]]) -> int:
        """A table with some of its fields: the kind of each, its value and its default."""
        self.builder.StartObject(count)
        for slot, (kind, value, default) in fields.items():
            getattr(self.builder, f"Prepend{kind}Slot")(slot, value, default)
        return self.builder.EndObject()

    def _vector(self, offsets: list[int]) -> int:
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return self.builder.EndVector()

    def _tensors(self, tensors: Mapping[str, np.ndarray]) -> int:
        return self._vector([self._tensor(name, a) for name, a in sorted(tensors.items())])

    def _tensor(self, name: str, array: np.ndarray) -> int:
        if array.dtype.name not in _CODES:
            raise CheckpointError(f"{name!r} has the dtype {array.dtype}, which a checkpoint cannot hold.")
        little = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        raw = self.builder.CreateNumpyVector(np.frombuffer(little.tobytes(), np.uint8))
        dims = self.builder.CreateNumpyVector(np.asarray(array.shape, np.int64))
        text = self.builder.CreateString(name)
        # A Tensor has a seventh field, the offset of external data, whose default says that there are none.
        return self._table(7, {0: ("UOffsetTRelative", text, 0), 2: ("UOffsetTRelative", dims, 0),
                               3: ("Int32", _CODES[array.dtype.name], 0), 4: ("UOffsetTRelative", raw, 0)})

    def _group(self, name: str, state: OptimizerState) -> int:
        states = []
        for parameter, momentums in sorted(state.momentums.items()):
            tensors = self._tensors(momentums)
            text = self.builder.CreateString(parameter)
            states.append(self._table(2, {0: ("UOffsetTRelative", text, 0), 1: ("UOffsetTRelative", tensors, 0)}))
        vector, text = self._vector(states), self.builder.CreateString(name)
        return self._table(4, {0: ("UOffsetTRelative", text, 0), 1: ("Int64", state.step, 0),
                               2: ("Float32", state.learning_rate, 0.0), 3: ("UOffsetTRelative", vector, 0)})

    def _properties(self, properties: Mapping[str, int | float | str]) -> int:
        properties = {n: v.item() if isinstance(v, np.generic) else v for n, v in properties.items()}

        def entries(kind: type, write: Callable[[object], tuple[str, object, object]]) -> int:
            offsets = []
            for name, value in sorted(properties.items()):
                if type(value) is kind:
                    content, text = write(value), self.builder.CreateString(name)
                    offsets.append(self._table(2, {0: ("UOffsetTRelative", text, 0), 1: content}))
            return self._vector(offsets)

        if wrong := [n for n, v in properties.items() if not isinstance(n, str) or type(v) not in (int, float, str)
                     or (isinstance(v, int) and not -(2**63) <= v < 2**63)]:
            raise CheckpointError(f"The property {wrong[0]!r} is no int, float or str that a checkpoint holds by a "
                                  f"name: {properties[wrong[0]]!r}.")
        bags = [entries(int, lambda v: ("Int64", v, 0)), entries(float, lambda v: ("Float32", v, 0.0)),
                entries(str, lambda v: ("UOffsetTRelative", self.builder.CreateString(v), 0))]
        return self._table(3, {i: ("UOffsetTRelative", o, 0) for i, o in enumerate(bags)})
