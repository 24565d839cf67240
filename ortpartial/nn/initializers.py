"""Initializers: settings that become the expression of a parameter's first value."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar, TypeAlias

import numpy as np
from onnx import helper

from ortpartial.annotations import ArrayLike, DTypeLike
from ortpartial.checks import check_choice
from ortpartial.exceptions import SettingError
from ortpartial.graph import Value, constant, op, to_dtype
from ortpartial.learning import Piece, check_number, resolve_piece

__all__ = ["Constant", "GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "Initializer", "InitializerLike",
           "LecunNormal", "LecunUniform", "Normal", "Ones", "Orthogonal", "TruncatedNormal", "Uniform", "Zeros",
           "check_sizes", "list_fans", "resolve_initializer"]


class Initializer(Piece):
    """The first value of a parameter: an expression over random operators and constants, without inputs.

    A subclass defines ``__call__(self, shape, dtype="float32", *, seed=None)``. Stored as the initialization of a
    training, its random operators are drawn by `TrainingSession.initialize`, alike on every runtime.

    Examples
    --------
    >>> from ortpartial import nn
    >>> class Ramp(nn.Initializer):
    ...     def __call__(self, shape, dtype="float32", *, seed=None):
    ...         return constant(np.linspace(0, 1, math.prod(shape)).reshape(shape), dtype)
    >>> Ramp()((3,)).array.tolist()
    [0.0, 0.5, 1.0]
    """

    setting: ClassVar[str] = "initializer"

    @abstractmethod
    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", *, seed: int | None = None) -> Value:
        """The first value of a parameter.

        Parameters
        ----------
        shape : sequence of int
            The shape of the parameter.
        dtype : numpy dtype or its name
            Element type of the parameter.
        seed : int, optional
            Seed of the random numbers, less than 2²⁴, as ONNX stores it in a float. Parameters of a model need seeds
            of their own: random operators with equal seeds draw equal numbers.

        Returns
        -------
        Value
        """


@dataclass(frozen=True)
class Constant(Initializer):
    """w = c, for a number or an array of the shape of the parameter.

    Parameters
    ----------
    value : number or array_like
        c.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.Constant(0.5)((2, 3))
    <Value ConstantOfShape float32[2x3]>
    >>> nn.Constant([1, 2, 3])((2, 3))
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.SettingError: Constant: the array has the shape (3,), and the parameter (2, 3).
    """

    value: Any = 0.0

    def __post_init__(self) -> None:
        try:
            array = np.array(self.value)
        except ValueError:  # nested without a shape, or in itself
            array = np.array(None)
        if array.dtype.kind not in "biufV":
            raise SettingError(f"Constant: value is {self.value!r}, a number or an array of numbers was expected.")
        array.flags.writeable = False
        object.__setattr__(self, "value", array if array.ndim else array.item())

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", *, seed: int | None = None) -> Value:
        array = to_dtype(self.value, dtype, "Constant", SettingError)
        if not array.ndim:
            return op.ConstantOfShape(list(check_sizes(shape)), value=array[None]) if len(shape) else constant(array)
        if array.shape != check_sizes(shape):
            raise SettingError(f"Constant: the array has the shape {array.shape}, and the parameter {tuple(shape)}.")
        return constant(array)


@dataclass(frozen=True)
class Zeros(Constant):
    """w = 0.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.Zeros()((2, 3))
    <Value ConstantOfShape float32[2x3]>
    """

    value: Any = field(default=0, init=False, repr=False)


@dataclass(frozen=True)
class Ones(Constant):
    """w = 1.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.Ones()((2, 3))
    <Value ConstantOfShape float32[2x3]>
    """

    value: Any = field(default=1, init=False, repr=False)


@dataclass(frozen=True)
class Uniform(Initializer):
    """w ~ U(low, high).

    Parameters
    ----------
    low, high : float
        The bounds.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.Uniform(-1, 1)((2, 3))
    <Value RandomUniform float32[2x3]>
    """

    low: float = -0.05
    high: float = 0.05

    def __post_init__(self) -> None:
        check_number(self, "low", "high")
        if self.low > self.high:
            raise SettingError(f"Uniform: low is {self.low:g}, a number at most high, {self.high:g}, was expected.")

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", *, seed: int | None = None) -> Value:
        return _draw("RandomUniform", shape, dtype, seed, low=self.low, high=self.high)


@dataclass(frozen=True)
class Normal(Initializer):
    """w ~ N(mean, std²).

    Parameters
    ----------
    mean : float
        The mean.
    std : float
        The standard deviation, at least 0.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.Normal(std=0.02)((2, 3))
    <Value RandomNormal float32[2x3]>
    """

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "mean")
        check_number(self, "std", low=0)

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", *, seed: int | None = None) -> Value:
        return _draw("RandomNormal", shape, dtype, seed, mean=self.mean, scale=self.std)


@dataclass(frozen=True)
class TruncatedNormal(Initializer):
    """w ~ N(mean, std²) where |w - mean| ≤ 2std, as in Keras; the numbers have the standard deviation 0.88 std.

    Parameters
    ----------
    mean : float
        The mean.
    std : float
        The standard deviation before the tails are cut off, at least 0.

    References
    ----------
    .. [1] M. Giles, "Approximating the erfinv function", GPU Computing Gems 2, 2012.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.TruncatedNormal(std=0.02)((2, 3))
    <Value Cast float32[2x3]>
    """

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "mean")
        check_number(self, "std", low=0)

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", *, seed: int | None = None) -> Value:
        bound = math.erf(math.sqrt(2))
        u = _draw("RandomUniform", shape, np.float64, seed, low=-bound, high=bound)
        return _cast(self.mean + self.std * math.sqrt(2) * _invert_erf(u), dtype)


@dataclass(frozen=True)
class GlorotUniform(Initializer):
    """w ~ U(-b, b) with b = gain √(6 / (fan_in + fan_out)).

    Parameters
    ----------
    gain : float
        A factor, more than 0, such as 5/3 before Tanh.

    Notes
    -----
    A weight of the shape [out, in, k...] has fan_in = in·∏k and fan_out = out·∏k.

    References
    ----------
    .. [1] X. Glorot, Y. Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS,
       2010.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.GlorotUniform()((2, 3))
    <Value RandomUniform float32[2x3]>
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "gain", above=0)

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", *, seed: int | None = None) -> Value:
        return _uniform(self.gain * _scale(self, shape, "fan_avg"))(shape, dtype, seed=seed)


@dataclass(frozen=True)
class GlorotNormal(Initializer):
    """w ~ N(0, σ²) with σ = gain √(2 / (fan_in + fan_out)).

    Parameters
    ----------
    gain : float
        A factor, more than 0, such as 5/3 before Tanh.

    Notes
    -----
    A weight of the shape [out, in, k...] has fan_in = in·∏k and fan_out = out·∏k.

    References
    ----------
    .. [1] X. Glorot, Y. Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS,
       2010.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.GlorotNormal()((2, 3))
    <Value RandomNormal float32[2x3]>
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "gain", above=0)

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", *, seed: int | None = None) -> Value:
        return Normal(std=self.gain * _scale(self, shape, "fan_avg"))(shape, dtype, seed=seed)


@dataclass(frozen=True)
class _He(Initializer):
    """Settings of He's initializers."""

    negative_slope: float = 0.0
    mode: str = "fan_in"

    def __post_init__(self) -> None:
        check_number(self, "negative_slope")
        check_choice(f"{type(self).__name__}: mode", self.mode, _MODES)

    def _std(self, shape: Sequence[int]) -> float:
        return math.sqrt(2 / (1 + self.negative_slope**2)) * _scale(self, shape, self.mode)


@dataclass(frozen=True)
class HeUniform(_He):
    """w ~ U(-b, b) with b = √(6 / ((1 + negative_slope²) fan)), for weights before Relu or LeakyRelu.

    Parameters
    ----------
    negative_slope : float
        Slope of LeakyRelu for negative numbers, 0 for Relu. √5 gives b = 1/√fan, which torch draws by default.
    mode : str
        Which fan: ``"fan_in"``, ``"fan_out"`` or their mean, ``"fan_avg"``.

    Notes
    -----
    A weight of the shape [out, in, k...] has fan_in = in·∏k and fan_out = out·∏k.

    References
    ----------
    .. [1] K. He, X. Zhang, S. Ren, J. Sun, "Delving deep into rectifiers", ICCV, 2015.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.HeUniform()((2, 3))
    <Value RandomUniform float32[2x3]>
    """

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", *, seed: int | None = None) -> Value:
        return _uniform(self._std(shape))(shape, dtype, seed=seed)


@dataclass(frozen=True)
class HeNormal(_He):
    """w ~ N(0, σ²) with σ = √(2 / ((1 + negative_slope²) fan)), for weights before Relu or LeakyRelu.

    Parameters
    ----------
    negative_slope : float
        Slope of LeakyRelu for negative numbers, 0 for Relu.
    mode : str
        Which fan: ``"fan_in"``, ``"fan_out"`` or their mean, ``"fan_avg"``.

    Notes
    -----
    A weight of the shape [out, in, k...] has fan_in = in·∏k and fan_out = out·∏k.

    References
    ----------
    .. [1] K. He, X. Zhang, S. Ren, J. Sun, "Delving deep into rectifiers", ICCV, 2015.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.HeNormal(mode="fan_out")((2, 3))
    <Value RandomNormal float32[2x3]>
    """

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", *, seed: int | None = None) -> Value:
        return Normal(std=self._std(shape))(shape, dtype, seed=seed)


@dataclass(frozen=True)
class LecunUniform(Initializer):
    """w ~ U(-b, b) with b = √(3 / fan_in).

    Notes
    -----
    A weight of the shape [out, in, k...] has fan_in = in·∏k and fan_out = out·∏k.

    References
    ----------
    .. [1] Y. LeCun, L. Bottou, G. Orr, K.-R. Müller, "Efficient BackProp", 1998.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.LecunUniform()((2, 3))
    <Value RandomUniform float32[2x3]>
    """

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", *, seed: int | None = None) -> Value:
        return _uniform(_scale(self, shape, "fan_in"))(shape, dtype, seed=seed)


@dataclass(frozen=True)
class LecunNormal(Initializer):
    """w ~ N(0, σ²) with σ = √(1 / fan_in), before Selu.

    Notes
    -----
    A weight of the shape [out, in, k...] has fan_in = in·∏k and fan_out = out·∏k.

    References
    ----------
    .. [1] Y. LeCun, L. Bottou, G. Orr, K.-R. Müller, "Efficient BackProp", 1998.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.LecunNormal()((2, 3))
    <Value RandomNormal float32[2x3]>
    """

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", *, seed: int | None = None) -> Value:
        return Normal(std=_scale(self, shape, "fan_in"))(shape, dtype, seed=seed)


@dataclass(frozen=True)
class Orthogonal(Initializer):
    """w = gain Q, with Q uniform among the matrices of orthonormal columns or, where it is wider than high, rows.

    A tensor of more than two axes is such a matrix of as many rows as its first axis.

    Parameters
    ----------
    gain : float
        A factor, more than 0.

    References
    ----------
    .. [1] A. Saxe, J. McClelland, S. Ganguli, "Exact solutions to the nonlinear dynamics of learning in deep linear
       neural networks", ICLR, 2014.

    Examples
    --------
    >>> from ortpartial import nn
    >>> nn.Orthogonal()((2, 3))
    <Value Cast float32[2x3]>
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "gain", above=0)

    def __call__(self, shape: Sequence[int], dtype: DTypeLike = "float32", *, seed: int | None = None) -> Value:
        rows, *rest = _check_matrix(self, shape)
        columns = math.prod(rest)
        if not rows * columns:
            return Zeros()(shape, dtype)
        # float64 costs little here, and leaves no difference between runtimes in float32.
        g = _draw("RandomNormal", (max(rows, columns), min(rows, columns)), np.float64, seed)
        q = self.gain * _orthonormalize(g)
        q = q if rows >= columns else q.T
        return _cast(op.Reshape(q, list(shape)) if len(rest) > 1 else q, dtype)


_MODES = ("fan_in", "fan_out", "fan_avg")

#: Initializers by name.
INITIALIZERS: dict[str, type[Initializer]] = {
    "uniform": Uniform, "normal": Normal, "truncated_normal": TruncatedNormal, "constant": Constant, "zeros": Zeros,
    "ones": Ones, "glorot_uniform": GlorotUniform, "glorot_normal": GlorotNormal, "he_uniform": HeUniform,
    "he_normal": HeNormal, "lecun_uniform": LecunUniform, "lecun_normal": LecunNormal, "orthogonal": Orthogonal,
}


#: An initializer, or what is one: a class, a name, a number or an array.
InitializerLike: TypeAlias = "Initializer | type[Initializer] | ArrayLike"


def resolve_initializer(choice: InitializerLike) -> Initializer:
    """The initializer for an object, a class, a name, a number or an array.

    Parameters
    ----------
    choice : Initializer, type, str, number or array_like
        An object is returned as it is, a class is constructed with its defaults, a number or an array is a `Constant`.
        A name is one of ``uniform, normal, truncated_normal, constant, zeros, ones, glorot_uniform, glorot_normal,
        he_uniform, he_normal, lecun_uniform, lecun_normal, orthogonal`` or that of a class.

    Returns
    -------
    Initializer

    Raises
    ------
    SettingError
        The name is unknown, and the message lists all names, or the choice has another type.

    Examples
    --------
    >>> resolve_initializer("he_uniform"), resolve_initializer(1)
    (HeUniform(negative_slope=0.0, mode='fan_in'), Constant(value=1))
    >>> resolve_initializer("xavier_uniform")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ortpartial.exceptions.SettingError: initializer: 'xavier_uniform' is not known. Did you mean 'glorot_uniform'? ...
    """
    if isinstance(choice, (Real, np.ndarray, np.generic, list, tuple)):
        return Constant(choice)
    return resolve_piece(Initializer, choice, INITIALIZERS)


def list_fans(shape: Sequence[int]) -> dict[str, float]:
    """How many numbers each output of a weight is computed from, and how many outputs each input counts in.

    Parameters
    ----------
    shape : sequence of int
        The shape [out, in, k...] of a weight, such as that of a product or of a convolution.

    Returns
    -------
    dict of str to float
        ``fan_in`` = in·∏k, ``fan_out`` = out·∏k and their mean, ``fan_avg``; each at least 1.

    Examples
    --------
    >>> list_fans((8, 4, 3, 3))
    {'fan_in': 36, 'fan_out': 72, 'fan_avg': 54.0}
    """
    n_out, n_in, *window = shape
    fans = max(1, n_in * math.prod(window)), max(1, n_out * math.prod(window))
    return {"fan_in": fans[0], "fan_out": fans[1], "fan_avg": sum(fans) / 2}


def check_sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    """Check that a shape is made of whole numbers of at least 0.

    Parameters
    ----------
    shape : sequence of int, or int
        The shape of a parameter.

    Returns
    -------
    tuple of int

    Raises
    ------
    SettingError
        A size is no whole number or negative.
    """
    sizes = shape if isinstance(shape, (tuple, list)) else np.atleast_1d(shape).tolist()
    if wrong := [n for n in sizes if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 0]:
        raise SettingError(f"The shape of a parameter is made of whole numbers of at least 0, not {wrong[0]!r}.")
    return tuple(int(n) for n in sizes)


def _check_matrix(initializer: Initializer, shape: Sequence[int]) -> tuple[int, ...]:
    """The sizes of a weight of at least two axes."""
    sizes = check_sizes(shape)
    if len(sizes) < 2:
        raise SettingError(f"{type(initializer).__name__} initializes weights of the shape [out, in, ...], and the "
                           f"parameter has {list(sizes)}; give it another initializer, such as Zeros().")
    return sizes


def _scale(initializer: Initializer, shape: Sequence[int], mode: str) -> float:
    """√(1 / fan)."""
    return math.sqrt(1 / list_fans(_check_matrix(initializer, shape))[mode])


def _uniform(std: float) -> Uniform:
    """The uniform distribution around 0 of a standard deviation."""
    return Uniform(-math.sqrt(3) * std, math.sqrt(3) * std)


def _draw(op_type: str, shape: Sequence[int], dtype: DTypeLike, seed: int | None, **attributes: float) -> Value:
    """Random numbers of a dtype, drawn in float64 or, for all others, in float32, as runtimes draw no others."""
    sizes, dtype = check_sizes(shape), np.dtype(dtype)
    if not (dtype.kind == "f" or dtype.name == "bfloat16"):
        raise SettingError(f"Random numbers are real, and the parameter has the dtype {dtype}; give it a number or an "
                           f"array as its initializer.")
    drawn = helper.np_dtype_to_tensor_dtype(dtype if dtype == np.float64 else np.dtype(np.float32))
    attributes |= {} if seed is None else {"seed": float(seed)}
    values = getattr(op, op_type)(shape=list(sizes) or [1], dtype=drawn, **attributes)
    return _cast(values if sizes else op.Squeeze(values, [0]), dtype)


def _cast(x: Value, dtype: DTypeLike) -> Value:
    """A value in another dtype."""
    return x if x.dtype == np.dtype(dtype) else x.astype(dtype)


#: Giles' polynomial for erf⁻¹(x) / x in w - 2.5, with w = -log(1 - x²) < 5, from the highest power to the constant.
_ERFINV = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
           -0.00417768164, 0.246640727, 1.50140941)


def _invert_erf(x: Value) -> Value:
    """erf⁻¹(x) for |x| < 0.996, with a relative error of 10⁻⁶."""
    w = -op.Log(1 - x * x) - 2.5
    y: Any = _ERFINV[0]
    for c in _ERFINV[1:]:
        y = c + y * w
    return x * y


def _orthonormalize(g: Value) -> Value:
    """Random orthonormal columns from random normal numbers of the same shape, at least as high as wide.

    The product of reflections H₁ ... Hₙ, where Hₖ takes the normal vector in the last rows of column k to an axis [1]_.
    With reflections I - vvᵀ, with ‖v‖ = √2, that is I - V(I + N)⁻¹Vᵀ with N the part of VᵀV above the
    diagonal [2]_. As Nⁿ = 0, the inverse is (I - N)(I + N²)(I + N⁴) ...

    References
    ----------
    .. [1] G. Stewart, "The efficient generation of random orthogonal matrices", SIAM J. Numer. Anal. 17(3), 1980.
    .. [2] C. Puglisi, "Modification of the Householder method based on the compact WY representation", SIAM J. Sci.
       Stat. Comput. 13(3), 1992.
    """
    columns: Any = (g.shape or ())[1]
    identity = op.EyeLike(g)
    x = op.Trilu(g, upper=0)
    diagonal = op.ReduceSum(x * identity, [0])
    signs = op.Sign(diagonal)
    v = x + identity * signs * op.Sqrt(op.ReduceSumSquare(x, [0]))
    v = v * op.Sqrt(2 / op.ReduceSumSquare(v, [0]))
    n = op.Trilu(v.T @ v, 1, upper=1)
    inverse, power = op.EyeLike(n) - n, 2
    while power < columns:
        n, power = n @ n, 2 * power
        inverse = inverse + inverse @ n
    return (v @ (inverse @ v[:columns].T) - identity) * signs
