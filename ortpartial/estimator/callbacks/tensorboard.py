"""A log of a training for TensorBoard: a scalar for each column of its history."""

from __future__ import annotations

import os
import time
from numbers import Real

from ortpartial.annotations import Data, Estimator, Record, Scoring
from ortpartial.exceptions import RuntimeMissingError

from .base import EpochCallback, FitRun, check_place

__all__ = ["TensorBoard"]


class TensorBoard(EpochCallback):
    """Write the record of every epoch as scalars that TensorBoard shows, by the package tensorboard alone.

    Parameters
    ----------
    folder : path
        Where the event files are written, a file for each fit; ``tensorboard --logdir`` shows them.
    scoring : str or callable, optional
        A score to be written, as scikit-learn names it.
    X_val, y_val : array_like, optional
        The data that are scored; by default the training data.

    Raises
    ------
    RuntimeMissingError
        The package tensorboard is not installed.

    Examples
    --------
    >>> TensorBoard("runs/first")
    TensorBoard(folder='runs/first', scoring=None, X_val=None, y_val=None)
    """

    def __init__(self, folder: str | os.PathLike[str] = "runs", *, scoring: Scoring = None, X_val: Data = None,
                 y_val: Data = None):
        self.folder = check_place("folder", folder)
        super().__init__(scoring, X_val, y_val)
        _import()

    def _begin_fit(self, run: FitRun) -> None:
        run.values["writer"] = _import()[0](self.folder)

    def _end_epoch(self, run: FitRun, record: Record, fitted_estimator: Estimator) -> None:
        _, Event, Summary = _import()
        scalars = [Summary.Value(tag=n, simple_value=float(v)) for n, v in record.items()
                   if isinstance(v, Real) and n != "epoch"]
        event = Event(step=record["epoch"], wall_time=time.time(), summary=Summary(value=scalars))
        run.values["writer"].add_event(event)
        run.values["writer"].flush()

    def _tear_down(self, run: FitRun) -> None:
        run.values["writer"].close()


def _import() -> tuple[Data, Data, Data]:
    """The writer of event files, and the messages in them."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise RuntimeMissingError("TensorBoard() needs the package tensorboard: pip install tensorboard.") from None
    return EventFileWriter, Event, Summary
