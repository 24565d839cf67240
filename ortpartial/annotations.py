"""Types of annotations: names for arguments of several forms, and for objects without a type of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from numpy.typing import ArrayLike, DTypeLike

__all__ = ["ArrayLike", "Attributes", "CallbackLike", "Context", "DTypeLike", "Data", "DataLike", "Entries",
           "Estimator", "Formula", "Function", "Inputs", "Json", "MetricLike", "Record", "Reduced", "Same", "Scoring",
           "Settings", "SparseMatrix", "State"]

#: The data of a user: an array, a frame, a list, a sparse matrix, or a dict of them.
Data: TypeAlias = Any


class SparseMatrix(Protocol):
    """A sparse matrix or array of scipy, or of a package with the same methods."""

    def tocsr(self) -> Any:
        """The same in rows."""


#: The data of a user as fronts are given them: an array, a list, a frame, a tensor, a sparse matrix, a dict of them by
#: name, or an iterable of batches. Editors show it, and type checkers hold users to it; the library has `Data`.
DataLike: TypeAlias = ArrayLike | SparseMatrix | Mapping[str, Any] | Iterable[Any]

#: The attributes of a node by name: numbers, texts, tensors, lists of them, and bodies.
Attributes: TypeAlias = Mapping[str, Any]

#: The inputs of a node, as formulas read them: values, and None for omitted optional inputs.
Inputs: TypeAlias = Sequence[Any]

#: A formula of any inputs and settings, such as the rule of an operator.
Formula: TypeAlias = Callable[..., Any]

#: A function that a decorator returns as it is, or wrapped.
Function = TypeVar("Function", bound=Callable[..., Any])

#: Any type, for functions that return their argument.
Same = TypeVar("Same")

#: Arguments by name.
Settings: TypeAlias = dict[str, Any]

#: An object of JSON.
Json: TypeAlias = dict[str, Any]

#: The result of `__reduce__`, and the description of an object in a pickle or as a key.
Reduced: TypeAlias = tuple[Any, ...]

#: Settings, parameters or states by name, to be read.
Entries: TypeAlias = Mapping[str, Any]

#: The state of an object by name, as a pickle or a checkpoint holds it.
State: TypeAlias = dict[str, Any]

#: The record of an epoch in a history: its losses, metrics and the columns of callbacks by name.
Record: TypeAlias = dict[str, Any]

#: An optimizer, module or estimator of scikit-learn, of which a callback or an export reads attributes.
Estimator: TypeAlias = Any

#: The context of a task of a fit: `TaskContext`, or scikit-learn's `CallbackContext`, which has no stable type.
Context: TypeAlias = Any

#: A callback: an object with hooks, or a function of the optimizer.
CallbackLike: TypeAlias = Any

#: An element of the setting `metrics`: a name, a function of targets and predictions, or a `Metric`.
MetricLike: TypeAlias = Any

#: The `scoring` of scikit-learn: the name of a scorer, or a function of an estimator, X and y; None for its `score`.
Scoring: TypeAlias = str | Callable[..., float] | None
