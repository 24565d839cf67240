"""Types and numbers of numpy as C has them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["BFLOAT16", "C_TYPES", "literal", "suffix"]

#: Numbers of this type are floats in C, rounded to it.
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

#: The types of elements in C.
C_TYPES = {np.dtype(dtype): name for dtype, name in (
    ("float32", "float"), ("float64", "double"), ("int64", "int64_t"), ("int32", "int32_t"), ("int16", "int16_t"),
    ("int8", "int8_t"), ("uint64", "uint64_t"), ("uint32", "uint32_t"), ("uint16", "uint16_t"), ("uint8", "uint8_t"),
    ("bool", "uint8_t"))}


def literal(value: Any, dtype: np.dtype) -> str:
    """A number in C.

    Parameters
    ----------
    value : number
        The number.
    dtype : numpy.dtype
        Its type.

    Returns
    -------
    str

    Examples
    --------
    >>> literal(0.1, np.dtype("float32")), literal(-3, np.dtype("int64")), literal(True, np.dtype(bool))
    ('0.1f', 'INT64_C(-3)', '1')
    """
    if dtype.kind == "f":
        number = dtype.type(value)
        if not np.isfinite(number):
            return "NAN" if np.isnan(number) else "INFINITY" if number > 0 else "(-INFINITY)"
        is_plain = number == 0 or 1e-3 <= abs(number) < 1e7
        write = np.format_float_positional if is_plain else np.format_float_scientific
        text = write(number, unique=True, trim="0") + "f" * (dtype.itemsize == 4)
        return f"({text})" if number < 0 or (number == 0 and np.signbit(number)) else text
    if dtype.kind == "b":
        return str(int(value))
    if dtype == np.int64 and int(value) == -(2**63):
        return "INT64_MIN"
    if dtype == np.int32 and int(value) == -(2**31):
        return "INT32_MIN"
    name = f"{'U' * (dtype.kind == 'u')}INT{8 * dtype.itemsize}_C"
    return f"{name}({int(value)})"


def suffix(dtype: np.dtype) -> str:
    """How the functions of the prelude for a type end: ``f`` for float, ``d`` for double, else as in ``i64``."""
    return {"float32": "f", "float64": "d"}.get(dtype.name, f"{dtype.kind.replace('b', 'u')}{8 * dtype.itemsize}")
