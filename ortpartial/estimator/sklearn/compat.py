"""Callbacks and validation of data, which versions of scikit-learn from 1.4 on have in different places."""

from __future__ import annotations

from ortpartial.annotations import Data, Estimator, Function
from ortpartial.exceptions import ArgumentError, DataError, OrtPartialError

__all__ = ["CallbackSupportMixin", "validate_data", "with_callbacks"]

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # before 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing: this version of scikit-learn has no callbacks."""

    def with_callbacks(method: Function) -> Function:
        """The method as it is."""
        return method

try:
    from sklearn.utils.validation import validate_data as _validate
except ImportError:  # before 1.6

    def _validate(estimator: Estimator, X: Data, y: Data = "no_validation", **settings: object) -> Data:
        return estimator._validate_data(X, y, **settings)


def validate_data(estimator: Estimator, X: Data, y: Data = "no_validation", **settings: object) -> Data:
    """X, or X and y, as arrays that were checked; errors are those of the library, in scikit-learn's words."""
    try:
        return _validate(estimator, X, y, **settings)
    except (TypeError, ValueError) as e:
        if isinstance(e, OrtPartialError):
            raise
        kind = DataError if isinstance(e, ValueError) else ArgumentError
        raise kind(str(e)) from e
