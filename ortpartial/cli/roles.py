"""Roles of columns: columns of a file that feed the inputs of a model, targets, and the meaning of labels.

A trained model stores the roles of the data it was trained on, so that `predict` and `evaluate` need not be told again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from ortpartial.annotations import Data, DTypeLike
from ortpartial.exceptions import DataError, FileMissingError, SettingError
from ortpartial.graph import Value
from ortpartial.learning import BaseLearningLoss
from ortpartial.texts import parse_json
from ortpartial.training_info import TABLES, count_rows, open_arrays, read_table

__all__ = ["Columns", "Roles", "load_roles", "read_columns", "store_roles"]

#: The columns of a file by name: of shape (rows, ...), of numbers or texts.
Columns = Mapping[str, np.ndarray]

#: The key under which a model stores the roles, in its `metadata_props`.
_KEY = "ortpartial.data"

#: The usual names of a target, where it is not called like the output.
_TARGETS = ("y", "target", "targets", "label", "labels")

#: Names of columns that an error lists.
_LISTED = 8


@dataclass(frozen=True)
class Roles:
    """The roles of the columns of a file for a model.

    Parameters
    ----------
    features : dict of str to list of str
        By input, the column that feeds it, or the columns that form it.
    target : list of str
        The columns of the target: of the only trained output, or a column for each of several.
    outputs : list of str
        The trained outputs.
    weight : str, optional
        The column of weights of the rows.
    labels : dict of str to list
        By column, the texts or whole numbers that the labels 0, 1 ... stand for.
    losses : list of str
        The losses as they were said.
    """

    features: Mapping[str, list[str]] = field(default_factory=dict)
    target: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    weight: str | None = None
    labels: Mapping[str, list[Any]] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)

    def with_features(self, columns: Columns, inputs: Mapping[str, Value], chosen: Sequence[str] | None, path: Path
                      ) -> tuple[Roles, list[str]]:
        """The roles with the columns that feed the inputs, and the columns of texts that are left out.

        A column named like an input feeds it; the chosen columns, or else all others of numbers, form the input that is
        left.
        """
        if chosen is None and self.features.keys() == inputs.keys() and not all(n in columns for n in inputs):
            _check_columns([n for names in self.features.values() for n in names], columns, path)
            return self, []
        features = {n: [n] for n in inputs if n in columns}
        left = [n for n in inputs if n not in features]
        if not left:
            return replace(self, features=features), []
        names, texts = self._choose_columns(columns, chosen, features, path)
        if len(left) > 1:
            raise DataError(f"The model has the inputs {_list(inputs)}, and {str(path)!r} has no column {left[0]!r}; "
                            f"it has {_list(columns)}.")
        _check_features(left[0], inputs[left[0]], names, texts, columns, path)
        return replace(self, features={**features, left[0]: names}), [] if chosen else texts

    def _choose_columns(self, columns: Columns, chosen: Sequence[str] | None, features: Collection[str], path: Path
                        ) -> tuple[list[str], list[str]]:
        """The chosen columns, or all others of numbers, and the columns of texts among them."""
        taken = {*features, *self.target, self.weight}
        names = match_columns(chosen, columns, path) if chosen else [
            n for n, a in columns.items() if n not in taken and a.ndim]
        texts = [n for n in names if columns[n].dtype.kind not in "biuf"]
        return names if chosen else [n for n in names if n not in texts], texts

    def with_target(self, columns: Columns, chosen: Sequence[str] | None, path: Path) -> Roles:
        """The roles with the columns of the target: as chosen, or by their names."""
        if chosen is None and self.target:
            _check_columns(self.target, columns, path)
            return self
        if chosen is None and all(o in columns for o in self.outputs):
            chosen = self.outputs
        if chosen is None and len(self.outputs) == 1:
            chosen = [n for n in _TARGETS if n in columns][:1] or None
        if chosen is None:
            raise DataError(f"Say which column is the target, by --target; {str(path)!r} has {_list(columns)}.")
        _check_columns(chosen, columns, path)
        if len(self.outputs) > 1 and sorted(chosen) != sorted(self.outputs):
            raise DataError(f"The trained outputs are {_list(self.outputs)}; the columns of their targets are to have "
                            f"the same names, and --target names {_list(chosen)}.")
        return replace(self, target=list(chosen))

    def with_labels(self, columns: Columns, losses: Mapping[str, BaseLearningLoss], outputs: Mapping[str, Value]
                    ) -> Roles:
        """The roles with the meaning of the labels, in order; known labels stay.

        Labels are numbered where they are texts, or whole numbers of which some are no classes of the output.
        """
        labels = dict(self.labels)
        for name in self.target:
            output = name if len(self.outputs) > 1 else self.outputs[0]
            loss, column = losses[output], columns[name]
            is_text = column.dtype.kind in "US"
            if name in labels or not (is_text or column.dtype.kind in "iu"):
                continue
            if loss.labels(np.zeros((1, 2), np.float32)) is not None and len(self.target) == len(self.outputs):
                values = np.unique(column[column != loss.ignore_index])
                if is_text or _is_misnumbered(values, loss.count_classes(outputs[output].shape or ()) or 2):
                    labels[name] = values.tolist()
            elif is_text:
                raise DataError(f"The target {name!r} is of texts, such as {str(column.flat[0])!r}, and "
                                f"{type(loss).__name__} is for numbers; choose another --loss, such as cross_entropy.")
        return replace(self, labels=labels)

    def select_inputs(self, columns: Columns, inputs: Mapping[str, Value]) -> dict[str, Data]:
        """The data of the inputs, by name: an array, or a table whose columns errors name."""
        arrays: dict[str, Data] = {}
        for n, names in self.features.items():
            if len(names) > 1 or (columns[names[0]].ndim == 1 and names != [n]):
                arrays[n] = Table({name: columns[name] for name in names})
            else:
                array, shape = columns[names[0]], inputs[n].shape
                arrays[n] = array[:, None] if shape is not None and len(shape) == 2 and array.ndim == 1 else array
        return arrays

    def select_target(self, columns: Columns, path: Path) -> Data:
        """The target as an array, or arrays by output where there are several."""
        arrays = {n: self._encode(n, columns[n], path) for n in self.target}
        if len(self.outputs) > 1:
            return arrays
        return next(iter(arrays.values())) if len(arrays) == 1 else Table(arrays)

    def _encode(self, name: str, column: np.ndarray, path: Path) -> np.ndarray:
        """The numbers of labels that have a meaning; a negative label that the loss ignores stays."""
        if (labels := self.labels.get(name)) is None:
            return column
        values = column.astype(np.array(labels).dtype.kind) if column.dtype.kind != "U" else column
        numbers = np.searchsorted(labels, values).clip(max=len(labels) - 1)
        if (unknown := np.argwhere(np.array(labels)[numbers] != values)).size:
            row = unknown[0][0]
            raise DataError(f"The column {name!r} of {str(path)!r} has the label {column[row].tolist()!r} in row "
                            f"{row + 1}, where {_list(labels)} were expected.")
        return numbers

    def select_weight(self, columns: Columns, path: Path) -> np.ndarray | None:
        """The weights of the rows."""
        if self.weight is None:
            return None
        _check_columns([self.weight], columns, path)
        return columns[self.weight]


class Table:
    """Columns of numbers by name, which an optimizer stacks, and names in its errors.

    Parameters
    ----------
    data : dict of str to numpy.ndarray of shape (rows,)
        The columns.
    """

    def __init__(self, data: Columns):
        self.data, self.columns = data, list(data)

    def __getitem__(self, name: str | slice) -> Any:
        """A column, or some rows of all."""
        if isinstance(name, slice):
            return Table({n: a[name] for n, a in self.data.items()})
        return self.data[name]

    def __len__(self) -> int:
        return len(next(iter(self.data.values())))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.stack(list(self.data.values()), axis=1).astype(dtype)


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """Read the columns of a file; nothing is unpickled.

    Parameters
    ----------
    path : pathlib.Path
        An ``.npz``, ``.csv``, ``.parquet``, ``.arrow`` or ``.feather`` file.

    Returns
    -------
    dict of str to numpy.ndarray of shape (rows, ...)

    Raises
    ------
    DataError
        The file is not there, is damaged, or its columns have different numbers of rows.
    """
    if not path.exists():
        raise FileMissingError(f"There is no file {str(path)!r}; give an .npz, .csv, .parquet or .arrow file of rows.")
    if path.suffix.lower() in TABLES:
        columns = read_table(path, texts=True)
    else:
        with open_arrays(path, None, texts=True) as arrays:
            columns = {n: a.read() for n, a in arrays.items()}
        columns = {n: np.char.decode(a, "utf-8") if a.dtype.kind == "S" else a for n, a in columns.items()}
    try:
        count_rows(columns)
    except DataError as e:
        raise DataError(f"{str(path)!r}: {e}") from None
    return columns


def match_columns(patterns: Iterable[str], columns: Columns, path: Path) -> list[str]:
    """The columns that names and patterns stand for, in the order of the patterns and then of the file."""
    matched: list[str] = []
    for pattern in patterns:
        names = [pattern] if pattern in columns else [n for n in columns if fnmatchcase(n, pattern)]
        if not names:
            _check_columns([pattern], columns, path)
        matched += [n for n in names if n not in matched]
    return matched


def _check_columns(names: Iterable[str], columns: Columns, path: Path) -> None:
    """Raise an error for a column that a file does not have."""
    for n in names:
        if n not in columns:
            close = get_close_matches(n, columns, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]!r}?" if close else f"; it has {_list(columns)}."
            raise DataError(f"{str(path)!r} has no column {n!r}{hint}")


def _check_features(name: str, v: Value, names: Sequence[str], texts: Sequence[str], columns: Columns, path: Path
                    ) -> None:
    """Raise an error where columns cannot form an input."""
    if not names:
        raise DataError(f"{str(path)!r} has no column for the input {name!r}; it has {_list(columns)}.")
    if any(columns[n].ndim > 1 for n in names):
        if len(names) == 1:
            return
        raise DataError(f"{str(path)!r} has {_list(names)}, and it is open which feeds the input {name!r}; name it by "
                        f"--features.")
    size = v.shape[1] if v.shape is not None and len(v.shape) == 2 else None
    if isinstance(size, int) and size != len(names):
        others = f", beside texts: {_list(texts)}" if texts else ""
        raise DataError(f"The input {name!r} has {size} columns, and {str(path)!r} has {len(names)} for it: "
                        f"{_list(names)}{others}; name them by --features, and the target by --target.")


def _is_misnumbered(values: np.ndarray, classes: int) -> bool:
    """Whether whole numbers are not 0 to classes - 1, but not more than these either."""
    return 0 < len(values) <= classes and not 0 <= values.min() <= values.max() < classes


def _list(names: Iterable[object]) -> str:
    """The first names."""
    names = list(names)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(map(repr, names[:_LISTED])) + more


def store_roles(model: ModelProto, roles: Roles) -> None:
    """Write roles into a model, in place of former roles.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which is changed.
    roles : Roles
        The roles.
    """
    for entry in [entry for entry in model.metadata_props if entry.key == _KEY]:
        model.metadata_props.remove(entry)
    model.metadata_props.add(key=_KEY, value=json.dumps(asdict(roles), ensure_ascii=False))


def load_roles(model: ModelProto) -> Roles:
    """The roles that a model stores; none where it stores none.

    Parameters
    ----------
    model : onnx.ModelProto
        The model.

    Returns
    -------
    Roles

    Raises
    ------
    SettingError
        They are not as `store_roles` writes them.
    """
    text = next((entry.value for entry in model.metadata_props if entry.key == _KEY), None)
    if text is None:
        return Roles()
    try:
        roles = Roles(**parse_json(text))
        _check_types(roles)
    except (AttributeError, TypeError, ValueError):
        raise SettingError(f"The model has an entry {_KEY!r} in its metadata, which is not as ortpartial writes it; "
                           f"remove it.") from None
    return roles


def _check_types(roles: Roles) -> None:
    """Raise ValueError where an entry is of another type: the model may be of a stranger."""
    lists = [roles.target, roles.outputs, roles.losses, *roles.features.values()]
    names = [n for names in lists for n in names]
    if not all(isinstance(names, list) for names in lists) or not all(isinstance(n, str) for n in names):
        raise ValueError
    for labels in roles.labels.values():
        if not isinstance(labels, list) or not labels or {type(n) for n in labels} not in ({str}, {int}):
            raise ValueError
    if not all(roles.features.values()) or not isinstance(roles.weight, str | None):
        raise ValueError
