"""Tables in files: columns of CSV, Parquet and Arrow files, by name."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ortpartial.exceptions import DataError, RuntimeMissingError
from ortpartial.installation import install_command
from ortpartial.model import open_regular
from ortpartial.texts import is_number

__all__ = ["TABLES", "read_table", "write_table"]

#: The ends of the names of tables.
TABLES = (".csv", ".parquet", ".arrow", ".feather")

#: Words for a missing number in a .csv file.
_MISSING = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "NULL"})


def read_table(path: Path, texts: bool = False) -> dict[str, np.ndarray]:
    r"""Read the columns of a table.

    Parameters
    ----------
    path : pathlib.Path
        A ``.csv`` file whose first line names the columns, or a ``.parquet``, ``.arrow`` or ``.feather`` file, which
        pyarrow reads.
    texts : bool
        Whether columns may be of texts, and numbers may be missing, which are NaN then.

    Returns
    -------
    dict of str to numpy.ndarray of shape (rows, ...)
        Of integers where all are; a column of lists of equal length has an axis more.

    Raises
    ------
    DataError
        The file is no such table, names no columns or a column twice, or has texts among numbers.
    RuntimeMissingError
        pyarrow is not installed.
    OSError
        It cannot be read.

    Examples
    --------
    >>> _ = Path("animals.csv").write_text("legs,kind\n4,cat\n2,bird\n")
    >>> {n: a.tolist() for n, a in read_table(Path("animals.csv"), texts=True).items()}
    {'legs': [4, 2], 'kind': ['cat', 'bird']}
    """
    return _read_csv(path, texts) if path.suffix.lower() == ".csv" else _read_arrow(path, texts)


def _read_csv(path: Path, texts: bool) -> dict[str, np.ndarray]:
    try:
        with io.TextIOWrapper(open_regular(path), newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            lines = [(reader.line_num, fields) for fields in reader if fields]
    except (UnicodeDecodeError, csv.Error) as e:
        raise DataError(f"{str(path)!r} is no text of comma-separated values: {e}.") from None
    if not header or all(map(is_number, header)):
        raise DataError(f"The first line of {str(path)!r} does not name the columns.")
    _check_names(header, path)
    for line, fields in lines:
        if len(fields) != len(header):
            raise DataError(f"Line {line} of {str(path)!r} has {len(fields)} values, and there are {len(header)} "
                            f"columns.")
    columns = {}
    for name, column in zip(header, zip(*(fields for _, fields in lines), strict=True), strict=False):
        try:
            columns[name] = _to_numbers(column, is_complete=not texts)
        except ValueError:
            if texts:
                columns[name] = np.array(column)
                continue
            line, text = next((line, text) for (line, _), text in zip(lines, column, strict=True)
                              if not is_number(text))
            raise DataError(f"Line {line} of {str(path)!r} has {text!r} in the column {name!r}, which is no "
                            f"number.") from None
    return columns or {name: np.zeros(0) for name in header}


def _check_names(names: Sequence[str], path: Path) -> None:
    if twice := [n for n, times in Counter(names).items() if times > 1]:
        raise DataError(f"{str(path)!r} has two columns of the name {twice[0]!r}.")


def _to_numbers(texts: Sequence[str], is_complete: bool) -> np.ndarray:
    """Texts as integers, or else as real numbers, of which some may be missing."""
    try:
        return np.array([int(text) for text in texts], np.int64)
    except (ValueError, OverflowError):
        pass
    if is_complete or not any(text in _MISSING for text in texts):
        return np.array([float(text) for text in texts])
    return np.array([np.nan if text in _MISSING else float(text) for text in texts])


def _import_pyarrow(path: Path) -> Any:
    try:
        import pyarrow.feather
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise RuntimeMissingError(f"pyarrow, which reads and writes files such as {str(path)!r}, is not installed: "
                                  f"run {install_command('cli')}, or use .csv or .npz.") from None
    return pyarrow


def _read_arrow(path: Path, texts: bool) -> dict[str, np.ndarray]:
    pa = _import_pyarrow(path)
    open_regular(path, whole=False).close()
    try:
        table = pa.parquet.read_table(path) if path.suffix.lower() == ".parquet" else _read_ipc(pa, path)
    except pa.ArrowInvalid as e:
        raise DataError(f"{str(path)!r} is no {path.suffix} file, or one that was cut short: {e}") from None
    _check_names(table.column_names, path)
    columns = {n: _to_array(pa, table[n], n, path) for n in table.column_names}
    if wrong := [n for n, a in columns.items() if not texts and a.dtype.kind not in "biuf"]:
        raise DataError(f"{str(path)!r} has {columns[wrong[0]].dtype} in the column {wrong[0]!r}, and no numbers.")
    return columns


def _read_ipc(pa: Any, path: Path) -> Any:
    """A table of an Arrow file, or of a stream of batches that was written to a file."""
    with pa.memory_map(str(path)) as source:
        try:
            return pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source).read_all()


def _to_array(pa: Any, column: Any, name: str, path: Path) -> np.ndarray:
    """A column as an array: of texts where it is neither of numbers nor of lists of numbers."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if isinstance(column.type, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        rows = column.to_pylist()
        if None in rows or len({len(row) for row in rows}) > 1:
            raise DataError(f"{str(path)!r} has lists of different lengths in the column {name!r}.")
        array = np.array(rows)
        return array.astype(np.float32) if pa.types.is_float32(column.type.value_type) else array
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return np.asarray(column.to_numpy())
    if pa.types.is_boolean(column.type) and not column.null_count:
        return np.array(column.to_pylist(), bool)
    return np.array(["" if v is None else str(v) for v in column.to_pylist()], str)


def write_table(columns: Mapping[str, np.ndarray], file: BinaryIO, path: Path) -> None:
    """Write columns to a file.

    Parameters
    ----------
    columns : dict of str to numpy.ndarray of shape (rows,)
        Numbers or texts by name.
    file : binary file
        Where to write.
    path : pathlib.Path
        Its name, whose suffix, among `TABLES`, is the format.

    Raises
    ------
    RuntimeMissingError
        pyarrow is not installed, and the file is no ``.csv`` file.

    Examples
    --------
    >>> file = io.BytesIO()
    >>> write_table({"y": np.float32([0.1, 2]), "label": np.array(["cat", "bird"])}, file, Path("out.csv"))
    >>> file.getvalue().decode().split()
    ['y,label', '0.1,cat', '2.0,bird']
    """
    if path.suffix.lower() == ".csv":
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        # As text, a number of float32 has the digits that it needs, and not the digits of a float64.
        writer.writerows(zip(*(a.astype(str).tolist() for a in columns.values()), strict=True))
        text.detach()
        return
    pa = _import_pyarrow(path)
    table = pa.table({n: pa.array(a.tolist() if a.dtype.kind == "U" else a) for n, a in columns.items()})
    if path.suffix.lower() == ".parquet":
        pa.parquet.write_table(table, file)
    else:
        pa.feather.write_feather(table, file)
