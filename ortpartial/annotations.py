"""Types of annotations: names for what may be given in several forms, and for what has no type of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from numpy.typing import ArrayLike, DTypeLike

__all__ = ["ArrayLike", "Attributes", "DTypeLike", "Data", "Formula", "Function", "Inputs", "Json", "Reduced",
           "Settings"]

#: The data of a user: an array, a frame, a list, a sparse matrix, or a dict of them.
Data: TypeAlias = Any

#: The attributes of a node by name: numbers, texts, tensors, lists of them, and bodies.
Attributes: TypeAlias = Mapping[str, Any]

#: The inputs of a node, as formulas read them: values, and None for optional ones that are left out.
Inputs: TypeAlias = Sequence[Any]

#: A formula of any inputs and settings, such as the rule of an operator.
Formula: TypeAlias = Callable[..., Any]

#: A function that a decorator returns as it is, or wrapped.
Function = TypeVar("Function", bound=Callable[..., Any])

#: Arguments by name.
Settings: TypeAlias = dict[str, Any]

#: An object of JSON.
Json: TypeAlias = dict[str, Any]

#: What `__reduce__` returns, and what describes an object in a pickle or as a key.
Reduced: TypeAlias = tuple[Any, ...]
