"""Checks of gradients, `check_gradient`, by central differences, and of old models, `check_upgrade`, by their file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from .autodiff import grad, jvp
from .checks import to_generator
from .exceptions import DataError, GraphError, ModelError
from .graph import Value, build, variable
from .model import Model, load
from .runtime import Session, compare_with_file

__all__ = ["check_gradient", "check_upgrade", "evaluate"]

Expression = Callable[..., "Value | Sequence[Value]"]
Arrays = Mapping[str, np.ndarray]
Compiled = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def evaluate(model: ModelProto, feeds: Arrays) -> dict[str, np.ndarray]:
    """Run a graph in onnxruntime or, where that has no kernel, in onnx's reference evaluator.

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
    return _make_runner(model)(feeds)


def _make_runner(model: ModelProto, reference: bool = True) -> Callable[[Arrays], dict[str, np.ndarray]]:
    """A function that runs a graph, in onnxruntime or, if `reference` allows it, in the reference evaluator."""
    try:
        return Session(model).run
    except ModelError as e:
        # onnxruntime has no kernel, operator or opset of this kind. Any other error is a fault of the graph.
        if not reference or not re.search("implementation|kernel|not a registered function|opset|IR version", str(e)):
            raise
    evaluator = ReferenceEvaluator(model, new_ops=[Erf, LRN, Mean])
    names = [o.name for o in model.graph.output]

    def run(feeds: Arrays) -> dict[str, np.ndarray]:
        # The reference kernels warn of overflows and divisions by zero, which the comparison itself will show.
        try:
            with np.errstate(all="ignore"):
                return dict(zip(names, map(np.asarray, evaluator.run(None, dict(feeds))), strict=True))
        except Exception as e:  # Those of numpy, from anywhere in the kernels.
            raise ModelError(f"onnx's reference evaluator failed to run the graph: {type(e).__name__}: {e}") from e

    return run


class Erf(OpRun):
    """Erf in the dtype of its input; the reference of onnx 1.23.2 computes it in float32."""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.array([math.erf(v) for v in x.ravel()], x.dtype).reshape(x.shape),)


class LRN(OpRun):
    """LRN over all channels; the reference of onnx 1.23.2 stops at the number of images."""

    def _run(self, x: np.ndarray, alpha: float, beta: float, bias: float, size: int) -> tuple[np.ndarray, ...]:
        bands = (slice(max(0, c - (size - 1) // 2), c + size // 2 + 1) for c in range(x.shape[1]))
        total = np.stack([(x[:, band] ** 2).sum(1) for band in bands], axis=1)
        return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)


class Mean(OpRun):
    """Mean with broadcasting; the reference of onnx 1.23.2 does not broadcast the first input."""

    def _run(self, *x: np.ndarray) -> tuple[np.ndarray, ...]:
        return (sum(x[1:], x[0]) / np.asarray(len(x), x[0].dtype),)


def check_upgrade(model: Model | ModelProto | bytes | str | os.PathLike[str], inputs: Arrays | None = None) -> None:
    """Compare the outputs of a model of an older opset with the outputs of its file in onnxruntime.

    `load` upgrades models to opset 21, and makes this comparison itself where a run takes no time: up to 2²⁰ elements
    of weights, 500 nodes, and only operators of ONNX. Tensors count as equal where they differ by rounding: by 1e-4 of
    the largest element in float32, by 1e-6 in float64 and by 2e-2 in types of 16 bits.

    Parameters
    ----------
    model : Model, onnx.ModelProto, bytes or path
        The model.
    inputs : mapping of str to numpy.ndarray, optional
        The inputs to compare at. By default numbers are drawn: real numbers around 0, indices in their range, other
        whole numbers from 0 to 1; an axis without a size has 2 elements if it is the first, and else 4, 32 or 1.

    Raises
    ------
    ModelError
        A node computes something else than in the file; the message names the first, and by how much its output
        differs. Or the model or its file does not run on these inputs.

    Examples
    --------
    >>> x = variable("x", "float32", ["N", 3])
    >>> model = build([x], {"y": abs(x)})
    >>> model.opset_import[0].version = 13
    >>> check_upgrade(model, {"x": np.array([[1, 2, -3]], np.float32)})
    """
    compare_with_file(model if isinstance(model, Model) else load(model), inputs)


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

    Four comparisons: the gradient in float64 with central differences along random directions; with the tangents of
    forward mode, ⟨ȳ, J v⟩ = ⟨Jᵀ ȳ, v⟩; the gradient in float32 with the gradient in float64; the gradient of a graph
    with symbolic sizes with the gradient of the graph with static sizes. For the second order, all but that of forward
    mode are repeated with the gradient as the expression. float64 runs in onnx's reference evaluator where onnxruntime
    has no kernel; float32 runs in onnxruntime if the expression itself does.

    Parameters
    ----------
    f : callable
        A function of a `Value` per argument that returns a value or a sequence of values. It should not fix a dtype; a
        Python number takes the dtype of the other operand.
    args : sequence of numpy.ndarray
        The point at which gradients are compared, away from kinks. Floating-point arguments are rounded to float32.
    wrt : sequence of int, optional
        The arguments to differentiate with respect to; by default all floating-point arguments.
    order : int
        1 for the gradient, 2 for the gradient of the gradient as well.
    symbolic : bool
        Whether `f` accepts arguments with symbolic sizes.
    directions : int
        Number of random directions for each argument.
    skip_kinks : bool
        Whether to leave out elements at which forward and backward differences disagree, of 50 at most.
    dtype : numpy.float64 or numpy.float32
        The dtype of the differences. An operator that exists only in float32 needs that, with a `step` of about 1e-2
        (1 if it is linear in each argument) and an `rtol` of about 5e-3.
    step : float
        The step of the differences. The truncation error is about its square, the rounding error in float64 about
        1e-16 divided by it.
    rtol : float
        Tolerance of the differences, relative to the norms of gradient and direction.
    rtol_float32 : float
        Tolerance in float32, relative to the largest element of the gradient.
    seed : int
        Seed of the random numbers.

    Raises
    ------
    AssertionError
        Two gradients differ; the message says which, by how much, and for which argument.
    NoGradientError
        An operator has no rule.

    Examples
    --------
    >>> from ortpartial.graph import op
    >>> check_gradient(lambda a, b: op.Tanh(a @ b), [np.eye(3), np.ones((3, 2))])
    """
    args = [_round(np.asarray(a)) for a in args]
    wrt = [i for i, a in enumerate(args) if a.dtype == np.float64] if wrt is None else list(wrt)
    if not wrt:
        raise ValueError("No argument is of a floating-point dtype, so there is nothing to differentiate by.")
    differences = _Differences(to_generator("seed", seed), directions, skip_kinks, step, rtol, np.finfo(dtype).eps)
    for k in range(1, order + 1):
        forward = _compile(f, args, dtype)
        cotangents = [_round(differences.rng.normal(size=y.shape)) for y in forward(args)]
        g, g_args = _gradient(f, wrt, len(args)), [*args, *cotangents]
        exact = _compile(g, g_args, dtype)(g_args)
        where = [f"argument {i} (of shape {args[i].shape}), order {k}" for i in wrt]
        differences.compare(forward, args, wrt, cotangents, exact, where)
        if k == 1:
            _compare_modes(f, args, wrt, cotangents, exact, dtype, _static, differences)
        if dtype == np.float64:
            single = _compile(g, g_args, np.float32, reference=not _runs(f, args, np.float32))(g_args)
            _compare("In float32", "in float64", single, exact, where, rtol_float32)
        if symbolic:
            for naming in (_name_each, _name_by_size):
                dynamic = _compile(g, g_args, dtype, naming=naming)(g_args)
                tolerance = 1e-9 if dtype == np.float64 else rtol_float32
                _compare("With symbolic sizes", "with static ones", dynamic, exact, where, tolerance)
            if k == 1:
                _compare_modes(f, args, wrt, cotangents, exact, dtype, _name_each, differences)
        # The gradient of second order is the gradient of g, a function of the arguments and the cotangents.
        wrt = [*wrt, *range(len(args), len(g_args))]
        f, args = g, g_args


def _round(a: np.ndarray) -> np.ndarray:
    """Floating-point numbers in float64, rounded to float32; other arrays as they are."""
    return a.astype(np.float32).astype(np.float64) if a.dtype.kind == "f" else a


def _gradient(f: Expression, wrt: Sequence[int], n: int) -> Expression:
    """The gradient of f with respect to some of its n arguments, as a function of arguments and cotangents."""

    def g(*values: Value) -> list[Value]:
        x, cotangents = values[:n], values[n:]
        return grad(_floats(f(*x)), [x[i] for i in wrt], cotangents)

    return g


Naming = Callable[[int, int, int], "str | int"]


def _compare_modes(f: Expression, args: Sequence[np.ndarray], wrt: Sequence[int], cotangents: Sequence[np.ndarray],
                   gradients: Sequence[np.ndarray], dtype: type, naming: Naming, differences: _Differences) -> None:
    """Compare forward with reverse mode: <ȳ, J v> = <Jᵀ ȳ, v> along a random direction of all arguments."""
    n = len(args)
    directions = [_round(differences.rng.normal(size=args[i].shape)) for i in wrt]

    def push(*values: Value) -> list[Value]:
        return jvp(_floats(f(*values[:n])), [values[i] for i in wrt], values[n:])

    tangents = _compile(push, [*args, *directions], dtype, naming=naming)([*args, *directions])
    forward = [c * t for c, t in zip(cotangents, tangents, strict=True)]
    reverse = [g * v for g, v in zip(gradients, directions, strict=True)]
    difference = abs(sum(p.sum() for p in forward) - sum(p.sum() for p in reverse))
    scale = max(sum(np.abs(p).sum() for p in parts) for parts in (forward, reverse))
    assert difference <= differences.rtol * scale, (
        f"Forward mode gives {sum(p.sum() for p in forward):.9g} along a random direction, and reverse mode "
        f"{sum(p.sum() for p in reverse):.9g}.")


def _floats(outputs: Value | Sequence[Value]) -> list[Value]:
    """The outputs that have a gradient."""
    outputs = [outputs] if isinstance(outputs, Value) else outputs
    return [y for y in outputs if y.is_float]


def _static(argument: int, axis: int, size: int) -> int:
    """Static sizes."""
    return size


def _name_each(argument: int, axis: int, size: int) -> str:
    """Symbolic sizes, no two of which are known to be equal."""
    return f"size_{argument}_{axis}"


def _name_by_size(argument: int, axis: int, size: int) -> str:
    """Symbolic sizes, of which equal sizes have the same name, as of a batch."""
    return f"size_{size}"


def _compile(
    f: Expression,
    args: Sequence[np.ndarray],
    dtype: type = np.float64,
    *,
    naming: Naming = _static,
    reference: bool = True,
) -> Compiled:
    """f as a function of arrays that computes in a dtype and returns float64."""
    dtypes = [dtype if a.dtype.kind == "f" else a.dtype for a in args]
    x = {
        f"x{i}": variable(f"x{i}", d, [naming(i, axis, n) for axis, n in enumerate(a.shape)])
        for i, (a, d) in enumerate(zip(args, dtypes, strict=True))
    }
    y = {f"y{i}": v for i, v in enumerate(_floats(f(*x.values())))}
    run = _make_runner(build(x, y), reference)

    def call(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        outputs = run({name: a.astype(d) for name, a, d in zip(x, arrays, dtypes, strict=True)})
        return [outputs[name].astype(np.float64) for name in y]

    return call


def _runs(f: Expression, args: Sequence[np.ndarray], dtype: type) -> bool:
    """Whether onnxruntime has the kernels to compute f in a dtype."""
    try:
        _compile(f, args, dtype, reference=False)(args)
    except (DataError, GraphError, ModelError):
        return False
    return True


@dataclass(frozen=True)
class _Differences:
    """Central differences along random directions; the settings are as in `check_gradient`."""

    rng: np.random.Generator
    directions: int
    skip_kinks: bool
    step: float
    rtol: float
    eps: float

    def compare(
        self, forward: Compiled, args: Sequence[np.ndarray], wrt: Sequence[int], cotangents: Sequence[np.ndarray],
        gradients: Sequence[np.ndarray], where: Sequence[str],
    ) -> None:
        """Compare each gradient with the differences of its argument."""

        def dot(i: int, x: np.ndarray) -> float:
            outputs = forward([*args[:i], x, *args[i + 1 :]])
            return sum(float(np.sum(c * y, where=np.isfinite(y))) for c, y in zip(cotangents, outputs, strict=True))

        for i, g, name in zip(wrt, gradients, where, strict=True):
            assert g.shape == args[i].shape, f"By {name}: the gradient has shape {g.shape}."
            self._compare_argument(partial(dot, i), args[i], g, name)

    def _compare_argument(self, f: Callable[[np.ndarray], float], x: np.ndarray, g: np.ndarray, name: str) -> None:
        smooth = _find_smooth(f, x, self.rng, self.step) if self.skip_kinks else np.ones(x.shape, bool)
        for _ in range(self.directions if x.size else 0):
            v = self.rng.normal(size=x.shape) * smooth
            difference = (f(x + self.step * v) - f(x - self.step * v)) / (2 * self.step)
            derivative = float(np.sum(g[smooth] * v[smooth]))
            scale = max(np.linalg.norm(g[smooth]) * np.linalg.norm(v), abs(difference))
            noise = 50 * self.eps / self.step * (1 + abs(f(x)))
            assert abs(difference - derivative) <= self.rtol * scale + noise, (
                f"By {name}: along a random direction, central differences give {difference:.9g} and the gradient "
                f"{derivative:.9g}."
            )


def _find_smooth(
    f: Callable[[np.ndarray], float], x: np.ndarray, rng: np.random.Generator, step: float
) -> np.ndarray:
    """A mask of up to 50 random elements of x at which forward and backward differences agree."""
    mask, here = np.zeros(x.shape, bool), f(x)
    for flat in rng.permutation(np.flatnonzero(np.isfinite(x)))[:50]:
        h = np.zeros(x.shape)
        h.flat[flat] = step
        forward, backward = (f(x + h) - here) / step, (here - f(x - h)) / step
        mask.flat[flat] = abs(forward - backward) <= 1e-2 * max(abs(forward), abs(backward), 1e-3)
    return mask


def _compare(what: str, other: str, gradients: Sequence[np.ndarray], expected: Sequence[np.ndarray],
             where: Sequence[str], rtol: float) -> None:
    """Compare gradients with gradients, relative to the largest element of each."""
    for a, b, name in zip(gradients, expected, where, strict=True):
        assert a.shape == b.shape, f"By {name}: {what} the gradient has shape {a.shape}, {other} {b.shape}."
        a, b = a[np.isfinite(b)], b[np.isfinite(b)]
        error, size = np.abs(a - b).max(initial=0), np.abs(b).max(initial=0)
        assert error <= rtol * (size + 0.01), (
            f"By {name}: {what} the gradient is off by {error:.3g} from the one {other}, of elements up to {size:.3g}."
        )
