"""scipy's optimizers on ONNX models: values, exact gradients, Hessians and Jacobians as functions of a flat vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from ortpartial.annotations import ArrayLike
from ortpartial.arguments import checked
from ortpartial.autodiff import grad, jvp
from ortpartial.checks import check_names
from ortpartial.derivatives import differentiate
from ortpartial.docstrings import document
from ortpartial.exceptions import DataError, ModelError
from ortpartial.graph import Value, build, op
from ortpartial.model import ModelLike, load
from ortpartial.rewrites import make_portable, select_tensors
from ortpartial.runtime import Session

__all__ = ["Objective", "objective"]


@checked
def objective(model: ModelLike, wrt: str | Sequence[str] | None = None, *,
              output: str | None = None, data: Mapping[str, ArrayLike] | None = None) -> Objective:
    """An output of a model as a function of some of its inputs and weights, for ``scipy.optimize``.

    Parameters
    ----------
    model : Model, onnx.ModelProto, bytes or path
        The model.
    wrt : str or sequence of str, optional
        The inputs or initializers that vary; by default the inputs that `data` does not have.
    output : str, optional
        The output, of a floating-point type; by default the first of them.
    data : dict of str to array_like, optional
        The other inputs, which do not vary. An array given for a name of `wrt` states its shape, where the model leaves
        sizes open.

    Returns
    -------
    Objective

    Raises
    ------
    ModelError
        A name is unknown or not of a floating-point type, or the shape of a tensor of `wrt` is not known.
    DataError
        An input has no array.
    NoGradientError
        An operator between `wrt` and the output has no derivative.

    Examples
    --------
    Rosenbrock's function by a method that reads products of the Hessian:

    >>> from ortpartial.graph import variable
    >>> from scipy.optimize import minimize
    >>> x = variable("x", "float64", [2])
    >>> f = objective(build([x], {"y": (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2}))
    >>> result = minimize(f.value_and_gradient, [-1.2, 1.0], jac=True, hessp=f.hessian_product, method="trust-ncg")
    >>> result.x.round(6).tolist()
    [1.0, 1.0]
    """
    return Objective(model, wrt, output, data or {})


class Objective:
    """A function of a flat vector, with its derivatives, each a graph that is made on first use.

    The vector is that of all tensors of `wrt`, one behind the other, each in C order. Numbers are converted to the
    dtype of the model, and results to float64. `objective` makes one.

    Attributes
    ----------
    x0 : numpy.ndarray
        The vector that the model has: of initializers and of arrays in `data`, zeros elsewhere.
    n_evaluations : int
        The number of runs so far.

    Examples
    --------
    >>> from ortpartial.graph import variable
    >>> x = variable("x", "float64", [3])
    >>> f = objective(build([x], {"y": x * x * x}))
    >>> f.value([1, 2, 3]), f.gradient([1, 2, 3]).tolist(), f.hessian([1, 2, 3]).diagonal().tolist()
    (36.0, [3.0, 12.0, 27.0], [6.0, 12.0, 18.0])
    """

    def __init__(self, model: ModelLike, wrt: str | Sequence[str] | None,
                 output: str | None, data: Mapping[str, ArrayLike]):
        loaded = load(model)
        if wrt is None:
            wrt = [n for n, x in loaded.inputs.items() if n not in data and x.is_float]
        names = check_names("wrt", [wrt] if isinstance(wrt, str) else wrt, ModelError)
        self._model, self._names, outputs = select_tensors(loaded, names, None if output is None else [output])
        self._output = self._model.outputs[outputs[0]]
        self._xs = [self._model.values[n] for n in self._names]
        self._inputs = {**self._model.inputs,
                        **{n: self._model.initializers[n] for n in self._names if n in self._model.initializers}}
        self._data = self._read(data)
        starts = {n: self._find_start(n, loaded.values[n]) for n in self._names}
        self._shapes = {n: a.shape for n, a in starts.items()}
        self.x0 = np.concatenate([a.ravel() for a in starts.values()])
        self.n_evaluations = 0

    def value(self, x: ArrayLike) -> float:
        """The output at x, its elements added up.

        Parameters
        ----------
        x : array_like
            The vector.

        Returns
        -------
        float
        """
        return float(self._run(self._value, x)["value"].sum(dtype=np.float64))

    @document(value)
    def gradient(self, x: ArrayLike) -> np.ndarray:
        """The gradient of `value`.

        Returns
        -------
        numpy.ndarray
            Of the size of x.
        """
        return self.value_and_gradient(x)[1]

    @document(value)
    def value_and_gradient(self, x: ArrayLike) -> tuple[float, np.ndarray]:
        """Both in one run, for ``minimize(..., jac=True)``.

        Returns
        -------
        value : float
        gradient : numpy.ndarray
        """
        result = self._run(self._gradient, x)
        return float(result.pop("value").sum(dtype=np.float64)), self._join(result)

    def hessian_product(self, x: ArrayLike, p: ArrayLike) -> np.ndarray:
        """The product of the Hessian of `value` with a vector, without the Hessian.

        Parameters
        ----------
        x, p : array_like
            The vector, and another one of its size.

        Returns
        -------
        numpy.ndarray
        """
        return self._join(self._run(self._product, x, p))

    @document(value)
    def hessian(self, x: ArrayLike) -> np.ndarray:
        """The Hessian of `value`.

        Returns
        -------
        numpy.ndarray
            Of shape (n, n).
        """
        return self._join_blocks(self._run(self._hessian, x), self.x0.size)

    @document(value)
    def residuals(self, x: ArrayLike) -> np.ndarray:
        """All elements of the output at x, for ``least_squares`` and ``root``.

        Returns
        -------
        numpy.ndarray
            Of m numbers.
        """
        return np.float64(self._run(self._value, x)["value"]).ravel()

    @document(value)
    def jacobian(self, x: ArrayLike) -> np.ndarray:
        """The Jacobian of `residuals`.

        Returns
        -------
        numpy.ndarray
            Of shape (m, n).
        """
        return self._join_blocks(self._run(self._jacobian, x), -1)

    @document(value)
    def split(self, x: ArrayLike) -> dict[str, np.ndarray]:
        """The tensors that a vector consists of, by name.

        Returns
        -------
        dict of str to numpy.ndarray
        """
        try:
            flat, tensors, start = np.asarray(x, np.float64).ravel(), {}, 0
        except (TypeError, ValueError):
            raise DataError(f"A vector of {self.x0.size} numbers was expected, not {x!r}.") from None
        if flat.size != self.x0.size:
            names = ", ".join(map(repr, self._names))
            raise DataError(f"The vector has {flat.size} numbers, and {names} have {self.x0.size}.")
        for n, v in zip(self._names, self._xs, strict=True):
            size = int(np.prod(self._shapes[n], dtype=np.int64))
            tensors[n] = flat[start : start + size].reshape(self._shapes[n]).astype(v.dtype)
            start += size
        return tensors

    @cached_property
    def _value(self) -> Session:
        return self._compile({"value": self._output})

    @cached_property
    def _gradient(self) -> Session:
        gradients = grad([self._output], self._xs)
        return self._compile({"value": self._output, **dict(zip(map(_key, self._names), gradients, strict=True))})

    @cached_property
    def _product(self) -> Session:
        vectors = {f"{n}//vector": Value(x.type, hint=f"{n}//vector")
                   for n, x in zip(self._names, self._xs, strict=True)}
        products = jvp(grad([self._output], self._xs), self._xs, list(vectors.values()))
        return self._compile(dict(zip(map(_key, self._names), products, strict=True)), vectors)

    @cached_property
    def _hessian(self) -> Session:
        total = op.ReduceSum(self._output, keepdims=0)
        gradients = dict(zip(self._names, grad([total], self._xs), strict=True))
        return self._compile({_key(f"{a}//{b}"): differentiate(g, x, "forward", per_row=False)
                              for a, g in gradients.items() for b, x in zip(self._names, self._xs, strict=True)})

    @cached_property
    def _jacobian(self) -> Session:
        return self._compile({_key(n): differentiate(self._output, x, "auto", per_row=False)
                              for n, x in zip(self._names, self._xs, strict=True)})

    def _compile(self, results: Mapping[str, Value], further: Mapping[str, Value] | None = None) -> Session:
        return Session(make_portable(build({**self._inputs, **(further or {})}, results)))

    def _run(self, session: Session, x: ArrayLike, p: ArrayLike | None = None) -> dict[str, np.ndarray]:
        """The results at a vector, and along another one."""
        self.n_evaluations += 1
        feeds = {**self._data, **self.split(x)}
        if p is not None:
            feeds |= {f"{n}//vector": a for n, a in self.split(p).items()}
        return dict(session.run(feeds))

    def _join(self, parts: Mapping[str, np.ndarray]) -> np.ndarray:
        """Tensors as a vector."""
        return np.concatenate([np.float64(parts[_key(n)]).ravel() for n in self._names])

    def _join_blocks(self, blocks: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
        """Blocks of derivatives as a matrix, whose columns are the numbers of the vector."""
        sizes = {n: int(np.prod(s, dtype=np.int64)) for n, s in self._shapes.items()}
        if rows < 0:
            return np.hstack([np.float64(blocks[_key(n)]).reshape(-1, sizes[n]) for n in self._names])
        return np.block([[np.float64(blocks[_key(f"{a}//{b}")]).reshape(sizes[a], sizes[b]) for b in self._names]
                         for a in self._names])

    def _read(self, data: Mapping[str, ArrayLike]) -> dict[str, np.ndarray]:
        """The data, as arrays in the dtypes of the inputs."""
        if unknown := [n for n in data if n not in self._inputs]:
            raise DataError(f"data has {unknown[0]!r}; there are {', '.join(map(repr, self._inputs))}.")
        if missing := [n for n in self._inputs if n not in data and n not in self._names]:
            raise DataError(f"Input {missing[0]!r} has no array; give data={{{missing[0]!r}: ...}}, or name it in wrt.")
        arrays = {}
        for n, array in data.items():
            try:
                arrays[n] = np.ascontiguousarray(array, self._inputs[n].dtype)
            except (TypeError, ValueError) as e:
                raise DataError(f"data[{n!r}] is no array of {self._inputs[n].dtype}: {e}") from None
        return arrays

    def _find_start(self, name: str, x: Value) -> np.ndarray:
        """The tensor that the model or the data has, zeros where they have none."""
        if (start := self._data.get(name, x.array)) is not None:
            return np.asarray(start, np.float64)
        if not x.is_static:
            raise ModelError(f"The shape of {name!r} is {x.type_name}; give an array in data that states its sizes.")
        return np.zeros([int(n) for n in x.shape or () if n is not None])


def _key(name: str) -> str:
    """The name of a result about a tensor."""
    return f"{name}//derivative"
