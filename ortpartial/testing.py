"""Is the gradient of an expression right? `check_gradient` asks central differences; use it for rules of your own."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from .autodiff import grad
from .exceptions import DataError, GraphError, ModelError
from .graph import Value, build, variable
from .runtime import Session

__all__ = ["check_gradient", "evaluate"]

Expression = Callable[..., "Value | Sequence[Value]"]
Arrays = Mapping[str, np.ndarray]
Compiled = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def evaluate(model: ModelProto, feeds: Arrays) -> dict[str, np.ndarray]:
    """The outputs of a graph, from onnxruntime or, where it has no kernel, from onnx's reference evaluator.

    Parameters
    ----------
    model : onnx.ModelProto
        The graph.
    feeds : mapping of str to numpy.ndarray
        An array for each input.

    Returns
    -------
    dict of str to numpy.ndarray
        An array for each output.

    Examples
    --------
    >>> x = variable("x", "float64", ["N"])
    >>> evaluate(build([x], {"y": x * x}), {"x": np.array([3.0])})
    {'y': array([9.])}
    """
    return _runner(model)(feeds)


def _runner(model: ModelProto, reference: bool = True) -> Callable[[Arrays], dict[str, np.ndarray]]:
    """What runs a graph again and again; onnxruntime alone unless the reference evaluator may help out."""
    try:
        return Session(model).run
    except ModelError as e:
        # No kernel, no such operator, or an opset that is too young: anything else is a fault of the graph.
        if not reference or not re.search("implementation|kernel|not a registered function|opset|IR version", str(e)):
            raise
    evaluator = ReferenceEvaluator(model, new_ops=[Erf, LRN, Mean])
    names = [o.name for o in model.graph.output]

    def run(feeds: Arrays) -> dict[str, np.ndarray]:
        # Kernels of the reference warn of overflows and divisions by zero; what they give is judged afterwards.
        with np.errstate(all="ignore"):
            return dict(zip(names, map(np.asarray, evaluator.run(None, dict(feeds))), strict=True))

    return run


class Erf(OpRun):
    """The reference of onnx 1.23.2 computes this one in float32, whatever it is given."""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.array([math.erf(v) for v in x.ravel()], x.dtype).reshape(x.shape),)


class LRN(OpRun):
    """The reference of onnx 1.23.2 leaves out the channels beyond the number of images."""

    def _run(self, x: np.ndarray, alpha: float, beta: float, bias: float, size: int) -> tuple[np.ndarray, ...]:
        bands = (slice(max(0, c - (size - 1) // 2), c + size // 2 + 1) for c in range(x.shape[1]))
        total = np.stack([(x[:, band] ** 2).sum(1) for band in bands], axis=1)
        return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)


class Mean(OpRun):
    """The reference of onnx 1.23.2 does not broadcast the first argument."""

    def _run(self, *x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (sum(x[1:], x[0]) / np.asarray(len(x), x[0].dtype),)


def check_gradient(
    f: Expression,
    args: Sequence[np.ndarray],
    *,
    wrt: Sequence[int] | None = None,
    order: int = 2,
    symbolic: bool = True,
    directions: int = 2,
    skip_kinks: bool = False,
    dtype: type = np.float64,
    step: float = 1e-5,
    rtol: float = 1e-6,
    rtol_float32: float = 1e-4,
    seed: int = 0,
) -> None:
    """Compare the gradient of an expression with central differences.

    First in float64, along random directions. Then the gradient in float32 is compared with that in float64, then the
    one of a graph in which no size is known with that of the graph in which all are. Then the same for the gradient
    itself, seen as one more expression, which is the second order. float64 runs through onnx's reference evaluator
    where onnxruntime has no kernel; float32 runs in onnxruntime if the expression itself does.

    Parameters
    ----------
    f : callable
        From one `Value` an argument to a value or a sequence of values. It should not fix a dtype: Python's numbers
        take that of the values beside them.
    args : sequence of numpy.ndarray
        Where the gradient is compared, away from kinks. Floating-point arguments are rounded to float32.
    wrt : sequence of int, optional
        Which arguments are differentiated by; all the floating-point ones by default.
    order : int
        1 for the gradient, 2 for that of the gradient, too.
    symbolic : bool
        Whether `f` accepts arguments whose sizes are not known.
    directions : int
        Number of random directions an argument.
    skip_kinks : bool
        Leave out elements at which differences forward and backward disagree (at most 50 elements are looked at).
    dtype : numpy.float64 or numpy.float32
        What differences are taken in. An operator that exists in float32 alone needs the latter, and with it a `step`
        of about 1e-2 (1 where it is linear in each argument) and an `rtol` of about 5e-3.
    step : float
        Of the differences: truncation costs about its square, rounding in float64 about 1e-16 divided by it.
    rtol : float
        Tolerance of the differences, relative to the lengths of gradient and direction.
    rtol_float32 : float
        Tolerance in float32, relative to the largest element of the gradient.
    seed : int
        Of the random numbers.

    Raises
    ------
    AssertionError
        Two of these gradients differ; the message says which, by how much, and for which argument.
    NoGradientError
        An operator has no rule.

    Examples
    --------
    >>> from ortpartial.graph import op
    >>> check_gradient(lambda a, b: op.Tanh(a @ b), [np.eye(3), np.ones((3, 2))])
    """
    args = [_rounded(np.asarray(a)) for a in args]
    wrt = [i for i, a in enumerate(args) if a.dtype == np.float64] if wrt is None else list(wrt)
    if not wrt:
        raise ValueError("No argument is of a floating-point dtype, so there is nothing to differentiate by.")
    rng = np.random.default_rng(seed)
    for k in range(1, order + 1):
        forward = _compile(f, args, dtype)
        cotangents = [_rounded(rng.normal(size=y.shape)) for y in forward(args)]
        g, given = _gradient(f, wrt, len(args)), [*args, *cotangents]
        exact = _compile(g, given, dtype)(given)
        where = [f"argument {i} ({_kind(args[i])}), order {k}" for i in wrt]
        _compare_differences(forward, args, wrt, cotangents, exact, where, rng, directions, skip_kinks, step, rtol,
                             np.finfo(dtype).eps)
        if dtype == np.float64:
            single = _compile(g, given, np.float32, reference=not _runs(f, args, np.float32))(given)
            _compare("In float32", "in float64", single, exact, where, rtol_float32)
        if symbolic:
            for naming in (_each_its_own, _by_size):
                dynamic = _compile(g, given, dtype, naming=naming)(given)
                tolerance = 1e-9 if dtype == np.float64 else rtol_float32
                _compare("With symbolic sizes", "with static ones", dynamic, exact, where, tolerance)
        # The gradient is an expression of the arguments and the cotangents, and this is the next to look at.
        wrt = [*wrt, *range(len(args), len(given))]
        f, args = g, given


def _rounded(a: np.ndarray) -> np.ndarray:
    """Floating-point numbers in float64 that float32 can hold as well; others as they are."""
    return a.astype(np.float32).astype(np.float64) if a.dtype.kind == "f" else a


def _kind(a: np.ndarray) -> str:
    """The shape of an argument as messages give it."""
    return f"of shape {a.shape}"


def _gradient(f: Expression, wrt: Sequence[int], n: int) -> Expression:
    """The gradient of f by some of its n arguments, an expression of the arguments and the cotangents."""

    def g(*values: Value) -> list[Value]:
        x, cotangents = values[:n], values[n:]
        return grad(_floats(f(*x)), [x[i] for i in wrt], cotangents)

    return g


def _floats(outputs: Value | Sequence[Value]) -> list[Value]:
    """The outputs that have a gradient."""
    outputs = [outputs] if isinstance(outputs, Value) else outputs
    return [y for y in outputs if y.is_float]


Naming = Callable[[int, int, int], "str | int"]


def _static(argument: int, axis: int, size: int) -> int:
    """Every size is known."""
    return size


def _each_its_own(argument: int, axis: int, size: int) -> str:
    """No two sizes are known to be the same."""
    return f"size_{argument}_{axis}"


def _by_size(argument: int, axis: int, size: int) -> str:
    """Sizes that are the same are known to be, as those of a batch."""
    return f"size_{size}"


def _compile(
    f: Expression,
    args: Sequence[np.ndarray],
    dtype: type = np.float64,
    *,
    naming: Naming = _static,
    reference: bool = True,
) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """f as a function of arrays, computed in a dtype and given back in float64."""
    dtypes = [dtype if a.dtype.kind == "f" else a.dtype for a in args]
    x = {
        f"x{i}": variable(f"x{i}", d, [naming(i, axis, n) for axis, n in enumerate(a.shape)])
        for i, (a, d) in enumerate(zip(args, dtypes, strict=True))
    }
    y = {f"y{i}": v for i, v in enumerate(_floats(f(*x.values())))}
    run = _runner(build(x, y), reference)

    def call(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        found = run({name: a.astype(d) for name, a, d in zip(x, arrays, dtypes, strict=True)})
        return [found[name].astype(np.float64) for name in y]

    return call


def _runs(f: Expression, args: Sequence[np.ndarray], dtype: type) -> bool:
    """Whether onnxruntime can compute the expression itself in a dtype."""
    try:
        _compile(f, args, dtype, reference=False)(args)
    except (DataError, GraphError, ModelError):
        return False
    return True


def _compare_differences(
    forward: Compiled, args: Sequence[np.ndarray], wrt: Sequence[int], cotangents: Sequence[np.ndarray],
    gradients: Sequence[np.ndarray], where: Sequence[str], rng: np.random.Generator, directions: int,
    skip_kinks: bool, step: float, rtol: float, eps: float,
) -> None:
    """Gradients against central differences, along random directions of one argument at a time."""

    def total(i: int, x: np.ndarray) -> float:
        outputs = forward([*args[:i], x, *args[i + 1 :]])
        return sum(float(np.sum(c * y, where=np.isfinite(y))) for c, y in zip(cotangents, outputs, strict=True))

    for i, g, name in zip(wrt, gradients, where, strict=True):
        x = args[i]
        assert g.shape == x.shape, f"By {name}: the gradient has shape {g.shape}."
        smooth = _smooth(partial(total, i), x, rng, step) if skip_kinks else np.ones(x.shape, bool)
        for _ in range(directions if x.size else 0):
            v = rng.normal(size=x.shape) * smooth
            numeric = (total(i, x + step * v) - total(i, x - step * v)) / (2 * step)
            found = float(np.sum(g[smooth] * v[smooth]))
            scale = max(np.linalg.norm(g[smooth]) * np.linalg.norm(v), abs(numeric))
            noise = 50 * eps / step * (1 + abs(total(i, x)))
            assert abs(numeric - found) <= rtol * scale + noise, (
                f"By {name}: along a random direction, central differences give {numeric:.9g} and the gradient "
                f"{found:.9g}."
            )


def _smooth(f: Callable[[np.ndarray], float], x: np.ndarray, rng: np.random.Generator, step: float) -> np.ndarray:
    """Where f has a derivative by an element of x, as far as differences tell."""
    mask, here = np.zeros(x.shape, bool), f(x)
    for flat in rng.permutation(np.flatnonzero(np.isfinite(x)))[:50]:
        h = np.zeros(x.shape)
        h.flat[flat] = step
        forward, backward = (f(x + h) - here) / step, (here - f(x - h)) / step
        mask.flat[flat] = abs(forward - backward) <= 1e-2 * max(abs(forward), abs(backward), 1e-3)
    return mask


def _compare(what: str, other: str, gradients: Sequence[np.ndarray], expected: Sequence[np.ndarray],
             where: Sequence[str], rtol: float) -> None:
    """Gradients against gradients, relative to the largest element of each."""
    for a, b, name in zip(gradients, expected, where, strict=True):
        assert a.shape == b.shape, f"By {name}: {what} the gradient has shape {a.shape}, {other} {b.shape}."
        a, b = a[np.isfinite(b)], b[np.isfinite(b)]
        error, size = np.abs(a - b).max(initial=0), np.abs(b).max(initial=0)
        assert error <= rtol * (size + 0.01), (
            f"By {name}: {what} the gradient is off by {error:.3g} from the one {other}, of elements up to {size:.3g}."
        )
