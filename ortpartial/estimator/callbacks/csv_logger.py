"""A log of a training as a table: a row of a .csv file for each epoch."""

from __future__ import annotations

import csv
import os
from io import StringIO, TextIOWrapper
from pathlib import Path

from ortpartial.annotations import Data, Estimator, Record, Scoring
from ortpartial.execution import TaskContext
from ortpartial.model import open_regular, replace_file

from .base import EpochCallback, FitRun, check_place

__all__ = ["CSVLogger"]

#: Columns of a training that stand first; those without values yet are empty.
_COLUMNS = ("epoch", "iteration", "seconds", "learning_rate", "loss", "validation_loss")


class CSVLogger(EpochCallback):
    """Write the record of every epoch to a .csv file, which is complete after each.

    Parameters
    ----------
    path : path
        The file. Its folder is made where it is missing.
    append : bool, optional
        Whether rows are added to the file. By default they are where the training goes on from an earlier fit,
        as with `warm_start` or from a checkpoint; rows of epochs that it repeats are left out. Fits inside of a search
        or of another meta-estimator are added, each with its place in it.
    scoring : str or callable, optional
        A score to be written, as scikit-learn names it.
    X_val, y_val : array_like, optional
        The data that are scored; by default the training data.

    Raises
    ------
    OSError
        The file cannot be written.

    Examples
    --------
    >>> import numpy as np
    >>> from ortpartial import OrtGradientForwardBackwardOptimizer as Optimizer, build, constant, variable
    >>> x, w = variable("x", "float32", ["N", 1]), constant([[0.0]], hint="w")
    >>> X = np.ones((50, 1), np.float32)
    >>> optimizer = Optimizer(build([x], {"y": x @ w}), max_iter=3, callbacks=[CSVLogger("log.csv")]).fit(X, 3 * X)
    >>> with open("log.csv") as file:
    ...     print(file.readline().strip(), len(file.readlines()))
    epoch,iteration,seconds,learning_rate,loss,validation_loss 3
    """

    def __init__(self, path: str | os.PathLike[str], *, append: bool | None = None, scoring: Scoring = None,
                 X_val: Data = None, y_val: Data = None):
        self.path, self.append = check_place("path", path), append
        super().__init__(scoring, X_val, y_val)

    def _begin_fit(self, run: FitRun) -> None:
        file, view = Path(self.path), run.view
        file.parent.mkdir(parents=True, exist_ok=True)
        is_inside = run.context.parent is not None
        done = view.epoch if view is not None else 0
        is_added = bool(done) or is_inside if self.append is None else self.append
        header, rows = _read(file) if is_added else ([], [])
        if done and self.append is None and not is_inside:  # The rows of epochs after the one that it goes on from.
            rows = [row for row in rows if not row["epoch"].isdigit() or int(row["epoch"]) <= done]
        first = [*(["fit"] if is_inside else []), *(_COLUMNS if view is not None else ("epoch", "seconds"))]
        run.values["header"] = [*header, *(n for n in first if n not in header)]
        if not is_inside or run.values["header"] != header:
            _write(file, run.values["header"], rows)

    def _end_epoch(self, run: FitRun, record: Record, fitted_estimator: Estimator) -> None:
        if run.context.parent is not None:
            record = {"fit": _find_place(run.context), **record}
        file, header = Path(self.path), run.values["header"]
        if missing := [n for n in record if n not in header]:
            header += missing
            _write(file, header, _read(file)[1])
        with file.open("a", newline="", encoding="utf-8") as stream:
            csv.DictWriter(stream, header, restval="").writerow(record)


def _find_place(context: TaskContext | None) -> str:
    """The numbers of the tasks that lead to a fit inside of others."""
    place = []
    while context is not None:
        place.append(str(context.task_id))
        context = context.parent
    return "/".join(place[-2::-1])


def _read(file: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The header and the rows of a file, empty where there is none."""
    if not file.exists():
        return [], []
    with TextIOWrapper(open_regular(file), newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream, restval="")
        rows = list(reader)
        return list(reader.fieldnames or []), rows


def _write(file: Path, header: list[str], rows: list[dict[str, str]]) -> None:
    """Write a file anew."""
    text = StringIO(newline="")
    writer = csv.DictWriter(text, header, restval="")
    writer.writeheader()
    writer.writerows(rows)
    with replace_file(file) as stream:
        stream.write(text.getvalue().encode())
