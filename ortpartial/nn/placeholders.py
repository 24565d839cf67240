"""Placeholders: the inputs of a module, before there are arrays, and the arrays that fit them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from ortpartial.annotations import Data
from ortpartial.exceptions import DataError
from ortpartial.execution import SparseRows
from ortpartial.graph import Value, read_array, to_dtype, variable
from ortpartial.model import Range, check_indices

__all__ = ["check_sizes", "convert", "list_arguments", "name_all", "to_placeholder"]


def convert(arrays: Sequence[Data], inputs: Mapping[str, Value], ranges: Mapping[str, Range] = MappingProxyType({})
            ) -> dict[str, np.ndarray]:
    """Arrays that fit placeholders, by name, with indices in their ranges."""
    converted = {}
    for (n, v), x in zip(inputs.items(), arrays, strict=True):
        if isinstance(x, SparseRows):
            a: Any = x.convert(partial(to_dtype, dtype=v.dtype, what=f"The input {n!r}"))
        else:
            a = to_dtype(x, v.dtype, f"The input {n!r}")
        converted[n] = a
        sizes = zip(a.shape, v.shape or (), strict=False)
        if a.ndim != v.rank or any(m != s for m, s in sizes if isinstance(s, int)):
            raise DataError(f"The input {n!r} has the shape {a.shape}, and the module was compiled for {v.type_name}.")
    check_sizes(inputs, list(converted.values()))
    check_indices(ranges, converted)
    return converted


def check_sizes(inputs: Mapping[str, Value], arrays: Sequence[np.ndarray]) -> dict[str, int]:
    """The sizes of arrays by name; an error where a name has two sizes, as these might be broadcast."""
    sizes: dict[str, int] = {}
    owners: dict[str, str] = {}
    for (n, v), a in zip(inputs.items(), arrays, strict=True):
        for size, name in zip(a.shape, v.shape or (), strict=False):
            if isinstance(name, str) and sizes.setdefault(name, size) != size:
                raise DataError(f"The size {name!r} is {sizes[name]} in {owners[name]!r} and {size} in {n!r}; where "
                                f"they may differ, compile on placeholders with other names of sizes.")
            if isinstance(name, str):
                owners.setdefault(name, n)
    return sizes


def to_placeholder(x: Data, name: str, dtype: np.dtype | None, rows: str = "N") -> Value:
    """A placeholder of this name; of an array, for any number of rows, and real numbers in the dtype of weights."""
    if isinstance(x, Value):
        return variable(name, x.dtype, x.shape)
    a = read_array(x, repr(name))
    if a.dtype == object:
        raise DataError(f"{name!r} is a {type(x).__name__}, where a placeholder or an array was expected.")
    return variable(name, dtype if dtype is not None and a.dtype.kind == "f" else a.dtype,
                    [rows, *a.shape[1:]] if a.ndim else [])


def name_all(inputs: Sequence[Data], arguments: Sequence[str], kind: str, taken: Collection[str]) -> list[str]:
    """A name for each input that is not taken: its own, that of the argument, or of its kind."""
    names: list[str] = []
    for i, x in enumerate(inputs):
        argument = arguments[i] if i < len(arguments) else kind if len(inputs) == 1 else f"{kind}_{i}"
        name = (x.hint if isinstance(x, Value) else "") or argument
        while name in taken or name in names:
            name += "_"
        names.append(name)
    return names


def list_arguments(function: Callable[..., object]) -> list[str]:
    """The names of a function's positional parameters, but for a variable number of arguments."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds]
