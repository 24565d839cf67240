"""Arithmetic on values: the operators of Python, and the methods and functions of numpy, as operators of ONNX."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from onnx import helper

from ortpartial.annotations import ArrayLike, DTypeLike, Formula
from ortpartial.exceptions import GraphError, NotComputedError

from .casting import to_dtype

__all__ = ["Arithmetic", "complete_arithmetic", "join_sizes"]

#: `Value`, which derives from `Arithmetic`.
V = TypeVar("V", bound="Arithmetic[Any]")

#: Functions of numpy that are an operator of ONNX, or of Python where that says more.
_UFUNCS = {
    "absolute": "Abs", "add": "Add", "arccos": "Acos", "arccosh": "Acosh", "arcsin": "Asin", "arcsinh": "Asinh",
    "arctan": "Atan", "arctanh": "Atanh", "bitwise_and": "__and__", "bitwise_or": "__or__", "bitwise_xor": "__xor__",
    "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "divide": "Div", "equal": "Equal", "exp": "Exp", "fabs": "Abs",
    "floor": "Floor", "floor_divide": "__floordiv__", "greater": "Greater", "greater_equal": "GreaterOrEqual",
    "invert": "__invert__", "isinf": "IsInf", "isnan": "IsNaN", "less": "Less", "less_equal": "LessOrEqual",
    "log": "Log", "logical_and": "And", "logical_not": "Not", "logical_or": "Or", "logical_xor": "Xor",
    "matmul": "MatMul", "maximum": "Max", "minimum": "Min", "multiply": "Mul", "negative": "Neg", "power": "Pow",
    "reciprocal": "Reciprocal", "remainder": "__mod__", "rint": "Round", "sign": "Sign", "sin": "Sin", "sinh": "Sinh",
    "sqrt": "Sqrt", "subtract": "Sub", "tan": "Tan", "tanh": "Tanh",
}

#: Other functions of numpy, beside methods of the same name.
_FUNCTIONS: dict[str, Formula] = {
    "amax": lambda op, x, *args, **kwargs: x.max(*args, **kwargs),
    "amin": lambda op, x, *args, **kwargs: x.min(*args, **kwargs),
    "concatenate": lambda op, values, axis=0: op.Concat(*values, axis=axis),
    "dot": lambda op, x, y: op.MatMul(x, y),
    "expand_dims": lambda op, x, axis: op.Unsqueeze(x, np.atleast_1d(axis)),
    "square": lambda op, x: op.Mul(x, x),
    "stack": lambda op, values, axis=0: op.Concat(*(op.Unsqueeze(v, [axis]) for v in values), axis=axis),
    "where": lambda op, condition, x, y: op.Where(condition, x, y),
}


class Arithmetic(Generic[V]):
    """Operators, indexing, methods and functions of a numpy array, as expressions.

    Wherever an operator takes a `Value`, it takes an object that holds a value as `value` and derives from this class.
    """

    #: The operators of ONNX, indexing, and the numbers of a value: `complete_arithmetic` sets them.
    _op: ClassVar[Any]
    _index: ClassVar[Callable[[Any, Any], Any]]
    _find_numbers: ClassVar[Callable[[Any], Any]]

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int | str | None, ...] | None: ...

        @property
        def rank(self) -> int: ...

        @property
        def dtype(self) -> np.dtype: ...

        @property
        def is_float(self) -> bool: ...

        @property
        def value(self) -> V: ...

    # -- operators of Python

    def __add__(self, other: ArrayLike) -> V:
        return self._op.Add(self, other)

    def __radd__(self, other: ArrayLike) -> V:
        return self._op.Add(other, self)

    def __sub__(self, other: ArrayLike) -> V:
        return self._op.Sub(self, other)

    def __rsub__(self, other: ArrayLike) -> V:
        return self._op.Sub(other, self)

    def __mul__(self, other: ArrayLike) -> V:
        return self._op.Mul(self, other)

    def __rmul__(self, other: ArrayLike) -> V:
        return self._op.Mul(other, self)

    def __truediv__(self, other: ArrayLike) -> V:
        return self._op.Div(self, other)

    def __rtruediv__(self, other: ArrayLike) -> V:
        return self._op.Div(other, self)

    def __mod__(self, other: ArrayLike) -> V:
        # Mod has the sign of the dividend for floating-point numbers, numpy that of the divisor.
        return self - self // other * other if self.is_float else self._op.Mod(self, other)

    def __floordiv__(self, other: ArrayLike) -> V:
        # Div rounds whole numbers toward 0, numpy downward.
        return self._op.Floor(self / other) if self.is_float else (self - self % other) / other

    def __rmod__(self, other: object) -> V:
        return other - other // self * self if self.is_float else self._op.Mod(other, self)

    def __rfloordiv__(self, other: Any) -> V:
        return self._op.Floor(other / self) if self.is_float else (other - other % self) / self

    def __pow__(self, other: ArrayLike) -> V:
        return self._op.Pow(self, other)

    def __rpow__(self, other: ArrayLike) -> V:
        return self._op.Pow(other, self)

    def __matmul__(self, other: ArrayLike) -> V:
        return self._op.MatMul(self, other)

    def __rmatmul__(self, other: ArrayLike) -> V:
        return self._op.MatMul(other, self)

    def __neg__(self) -> V:
        return self._op.Neg(self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> V:
        return self._op.Abs(self)

    def __round__(self) -> V:
        return self._op.Round(self)

    def __gt__(self, other: ArrayLike) -> V:
        return self._op.Greater(self, other)

    def __ge__(self, other: ArrayLike) -> V:
        return self._op.GreaterOrEqual(self, other)

    def __lt__(self, other: ArrayLike) -> V:
        return self._op.Less(self, other)

    def __le__(self, other: ArrayLike) -> V:
        return self._op.LessOrEqual(self, other)

    def __and__(self, other: ArrayLike) -> V:
        return (self._op.And if self.dtype == bool else self._op.BitwiseAnd)(self, other)

    def __or__(self, other: ArrayLike) -> V:
        return (self._op.Or if self.dtype == bool else self._op.BitwiseOr)(self, other)

    def __xor__(self, other: ArrayLike) -> V:
        return (self._op.Xor if self.dtype == bool else self._op.BitwiseXor)(self, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> V:
        return (self._op.Not if self.dtype == bool else self._op.BitwiseNot)(self)

    def __getitem__(self, key: object) -> V:
        return self._index(key)

    def __iter__(self) -> Iterator[V]:
        raise TypeError(f"{self!r} cannot be iterated over; where a list of values is expected, write [x], and for the "
                        f"parts of one, op.Split(x, num_outputs=n) or x[i].")

    # -- numbers, where eager evaluation has computed them

    def _numbers(self) -> Any:
        """The numbers, None before they are computed."""
        return self.value._numbers()

    def numpy(self) -> np.ndarray:
        """The numbers of a constant, or of a value computed while `evaluating`.

        Returns
        -------
        numpy.ndarray
            A copy of them; a list of arrays for a sequence.

        Raises
        ------
        NotComputedError
            The value is not computed yet; it is a TypeError.
        """
        if (numbers := self._numbers()) is None:
            raise NotComputedError(f"{self!r} has no numbers before it is computed; write the formula with the "
                                   f"operators of `op`, such as op.Exp for math.exp, then `build` a model and run it.")
        return numbers.copy()

    def item(self) -> Any:
        """The number of a single element, as a number of Python; a NotComputedError before it is computed."""
        return self.numpy().item()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    def __bool__(self) -> bool:
        if (numbers := self._numbers()) is None:
            raise NotComputedError(f"{self!r} has no truth value before it is computed; use op.Where to choose, `&`, "
                                   f"`|` and `~` for and, or and not, and `(a < x) & (x < b)` for a < x < b.")
        return bool(numbers)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    # -- methods of numpy

    def sum(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> V:
        """The sum over axes, all by default."""
        return self._reduce(self._op.ReduceSum, axis, keepdims)

    def mean(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> V:
        """The mean over axes, all by default."""
        return self._reduce(self._op.ReduceMean, axis, keepdims)

    def max(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> V:
        """The maximum over axes, all by default."""
        return self._reduce(self._op.ReduceMax, axis, keepdims)

    def min(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> V:
        """The minimum over axes, all by default."""
        return self._reduce(self._op.ReduceMin, axis, keepdims)

    def prod(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> V:
        """The product over axes, all by default."""
        return self._reduce(self._op.ReduceProd, axis, keepdims)

    def var(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> V:
        """The variance over axes, all by default: the mean of (x - x̄)²."""
        e = self - self.mean(axis, keepdims=True)
        return (e * e).mean(axis, keepdims)

    def std(self, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> V:
        """The standard deviation over axes, all by default."""
        return self._op.Sqrt(self.var(axis, keepdims))

    def _reduce(self, reduction: Any, axis: int | Sequence[int] | None, keepdims: bool) -> Any:
        if axis == ():
            return self
        return reduction(self, None if axis is None else np.atleast_1d(axis), keepdims=int(keepdims))

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> V:
        """The index of the maximum along an axis, by default of the flattened value."""
        x = self.flatten() if axis is None else self
        return self._op.ArgMax(x, axis=axis or 0, keepdims=int(keepdims))

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> V:
        """The index of the minimum along an axis, by default of the flattened value."""
        x = self.flatten() if axis is None else self
        return self._op.ArgMin(x, axis=axis or 0, keepdims=int(keepdims))

    def clip(self, min: object = None, max: object = None) -> V:
        """The value within bounds."""
        return self._op.Clip(self, min, max)

    def round(self) -> V:
        """The nearest whole numbers, halves to even."""
        return self._op.Round(self)

    def astype(self, dtype: DTypeLike) -> Any:
        """The value in another dtype."""
        to = np.dtype(dtype)
        return self if self.dtype == to else self._op.Cast(self, to=helper.np_dtype_to_tensor_dtype(to))

    def reshape(self, *shape: object) -> V:
        """The elements in another shape: sizes, a single -1 among them, or a value that holds them.

        A symbolic size of this value, by its name, is the size that it has when the graph is run.
        """
        (sizes,) = shape if len(shape) == 1 and not isinstance(shape[0], (int, str, np.integer)) else (shape,)
        if not isinstance(sizes, (tuple, list)):
            return self._op.Reshape(self, sizes)
        names = [n for n in self.shape or () if isinstance(n, str)]
        if unknown := [n for n in sizes if isinstance(n, str) and n not in names]:
            raise ValueError(f"reshape: {self!r} has no size {unknown[0]!r}; its symbolic sizes are {names}.")
        parts = [self._size(n) if isinstance(n, str) else n for n in sizes]
        return self._op.Reshape(self, join_sizes(self, parts), allowzero=1 if 0 in parts else None)

    def flatten(self) -> V:
        """The elements along a single axis."""
        return self.reshape(-1)

    def transpose(self, *axes: Any) -> V:
        """The axes in another order, by default reversed."""
        (order,) = axes if len(axes) == 1 and not isinstance(axes[0], int) else (axes,)
        every = range(self.rank)
        return self._op.Transpose(self, perm=[every[a] for a in order] if order else list(reversed(every)))

    @property
    def T(self) -> V:
        """The axes in reversed order."""
        return self.transpose()

    def squeeze(self, axis: int | Sequence[int] | None = None) -> Any:
        """Without axes of size 1, by default all whose size is known to be 1."""
        axes = [i for i, n in enumerate(self.shape or ()) if n == 1] if axis is None else axis
        return self._op.Squeeze(self, np.atleast_1d(axes)) if axes != [] else self

    @property
    def ndim(self) -> int:
        """The number of axes, as `rank`."""
        return self.rank

    def _size(self, name: str) -> V:
        """The size of this symbolic name, as a vector of length 1."""
        axis = (self.shape or ()).index(name)
        return self._op.Shape(self, start=axis, end=axis + 1)

    # -- functions of numpy

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **settings: object) -> V:
        """numpy calls this for np.exp(x) and for array * x."""
        name, formula = _UFUNCS.get(ufunc.__name__, ""), _FUNCTIONS.get(ufunc.__name__)
        if not (name or formula) or method != "__call__" or settings:
            called = f"np.{ufunc.__name__}" + (f".{method}" if method != "__call__" else "")
            options = f" with {', '.join(f'{n}=' for n in settings)}" if settings else ""
            raise TypeError(f"{called}{options} is not defined for {self!r}; write it with the operators of ONNX, "
                            f"which dir(op) lists.")
        if formula:
            return formula(self._op, *inputs)
        if not name.startswith("__"):
            return getattr(self._op, name)(*inputs)
        if isinstance(inputs[0], Arithmetic):
            return getattr(inputs[0], name)(*inputs[1:])
        return getattr(self, name.replace("__", "__r", 1))(inputs[0])

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """numpy calls this for np.sum(x) and its like."""
        name = function.__name__
        if formula := _FUNCTIONS.get(name):
            return formula(self._op, *args, **kwargs)
        method = getattr(type(self), name, None)
        if method is None or not args or not isinstance(args[0], Arithmetic):
            raise TypeError(f"{function.__module__}.{name} is not defined for {self!r}; write it with the operators of "
                            f"ONNX, which dir(op) lists.")
        return method(*args, **kwargs) if callable(method) else getattr(args[0], name)


def complete_arithmetic(**parts: object) -> None:
    """Set a part of `Arithmetic` that is itself written with values: `op`, `index` or `find_numbers`."""
    for name, part in parts.items():
        setattr(Arithmetic, f"_{name}", part)


def join_sizes(x: Arithmetic[V], sizes: Sequence[object]) -> V | np.ndarray:
    """Sizes of a value, or ends of its slices, as a vector: whole numbers, and values of them."""
    if real := [n for n in sizes if isinstance(n, Arithmetic) and n.is_float]:
        raise GraphError(f"{real[0]!r} is no whole number, as a size or the end of a slice is; convert it, such as "
                         f"by astype('int64').")

    def to_whole(numbers: Sequence[object]) -> np.ndarray:
        return to_dtype(numbers, np.int64, f"A size for {x!r}", GraphError, counts=True)

    if not any(isinstance(n, Arithmetic) for n in sizes):
        return to_whole(sizes)
    vectors = [n.astype(np.int64).reshape(1) if isinstance(n, Arithmetic) else to_whole([n]) for n in sizes]
    return Arithmetic._op.Concat(*vectors, axis=0)
