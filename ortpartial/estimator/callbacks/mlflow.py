"""A log of a training in MLflow: a run with its settings, and a metric for each column of its history."""

from __future__ import annotations

from importlib import import_module
from numbers import Real
from typing import Any

from ortpartial.annotations import Data, Estimator, Record, Scoring
from ortpartial.exceptions import RuntimeMissingError

from .base import EpochCallback, FitRun

__all__ = ["MLflow"]

#: Settings are logged up to this length, which MLflow allows.
_LONGEST = 500


class MLflow(EpochCallback):
    """Log the settings of an estimator and the record of every epoch in MLflow.

    Where a run is active, the fit is logged into it, and it goes on afterwards; otherwise a fit is a run of its
    own, which is marked as failed if an error ends it.

    Parameters
    ----------
    run_name : str, optional
        The name of the run.
    tags : dict of str to str, optional
        Tags of the run.
    scoring : str or callable, optional
        A score to be logged, as scikit-learn names it.
    X_val, y_val : array_like, optional
        The data that are scored; by default the training data.

    Raises
    ------
    RuntimeMissingError
        The package mlflow is not installed.

    Examples
    --------
    Where mlflow is not installed:

    >>> from unittest.mock import patch
    >>> with patch.dict("sys.modules", mlflow=None):
    ...     MLflow("first")
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.RuntimeMissingError: MLflow() needs the package mlflow: pip install mlflow.
    """

    def __init__(self, run_name: str | None = None, *, tags: dict[str, str] | None = None, scoring: Scoring = None,
                 X_val: Data = None, y_val: Data = None):
        self.run_name, self.tags = run_name, tags
        super().__init__(scoring, X_val, y_val)
        _import()

    def _begin_fit(self, run: FitRun) -> None:
        mlflow = _import()
        if not (is_given := mlflow.active_run() is not None):
            mlflow.start_run(run_name=self.run_name, tags=self.tags)
        run.values["is_given"] = is_given
        settings = run.estimator.get_params(deep=False)
        mlflow.log_params({n: str(v)[:_LONGEST] for n, v in settings.items() if n not in ("model", "callbacks")})

    def _end_epoch(self, run: FitRun, record: Record, fitted_estimator: Estimator) -> None:
        metrics = {n: float(v) for n, v in record.items() if isinstance(v, Real) and n != "epoch"}
        _import().log_metrics(metrics, step=record["epoch"])

    def _tear_down(self, run: FitRun) -> None:
        if not run.values.get("is_given", True):
            _import().end_run("FINISHED" if run.has_ended else "FAILED")


def _import() -> Any:
    try:
        return import_module("mlflow")
    except ImportError:
        raise RuntimeMissingError("MLflow() needs the package mlflow: pip install mlflow.") from None
