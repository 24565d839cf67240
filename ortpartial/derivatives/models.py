"""Derivatives of models as models: directional derivatives, Jacobians, Hessians and their products, and batches."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from math import prod

import numpy as np
from onnx import ModelProto

from ortpartial.arguments import checked
from ortpartial.autodiff import grad, jvp, nodes_between
from ortpartial.checks import check_choice, check_count, is_whole
from ortpartial.docstrings import document
from ortpartial.exceptions import ModelError, ModelWarning, SettingError
from ortpartial.graph import Value, build, constant, op, shape_of, variable
from ortpartial.logs import logger
from ortpartial.model import Model, ModelLike, load
from ortpartial.rewrites import gradient_model, make_portable, select_tensors

from .batching import list_loops, vmap
from .rows import check_rows

__all__ = ["differentiate", "hessian_model", "hvp_model", "jacobian_model", "jvp_model", "vmap_model"]


@document(gradient_model)
@checked
def jvp_model(model: ModelLike, wrt: str | Sequence[str] | None = None,
              outputs: str | Sequence[str] | None = None, *,
              directions: int | str | None = None, suffix: str = "_tangent") -> ModelProto:
    """Directional derivatives of an ONNX model as an ONNX model: ``Σ ∂output/∂name · <tangent>``, by forward mode.

    Its inputs are the inputs of the model, then the initializers of `wrt`, then the tangent ``<name>_tangent`` of every
    name of `wrt` (``<name>_tangent_in`` where it is an output as well). Its outputs are ``<output>_tangent``, each of
    the shape of the output. It takes some two times as long as the model, however many weights there are.

    Parameters
    ----------
    directions : int or str, optional
        Several tangents in one run: tangents, and the tangents of outputs, have a first axis of this size, or of this
        symbolic name.
    suffix : str
        The suffix of a tangent's name.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        A name is unknown, not of a floating-point type or given twice, or the name of a tangent is taken.
    NoGradientError
        An operator on a path from `wrt` to the outputs has no derivative.

    See Also
    --------
    gradient_model : Reverse mode, for few outputs of many inputs.

    References
    ----------
    .. [1] A. Griewank, A. Walther, "Evaluating Derivatives", SIAM 2008, chapter 3.

    Examples
    --------
    >>> x = variable("x", "float32", ["N"])
    >>> tangent = jvp_model(build([x], {"y": op.Sin(x)}), ["x"])
    >>> [i.name for i in tangent.graph.input], [o.name for o in tangent.graph.output]
    (['x', 'x_tangent'], ['y_tangent'])
    """
    task = _Task(model, wrt, outputs)
    clashes = {n: f"{n}{suffix}" + "_in" * (n in task.outputs) for n in task.wrt}
    task.check_free([*clashes.values(), *(f"{y}{suffix}" for y in task.outputs)], suffix)
    tangents = {name: _like(name, task.values[n]) for n, name in clashes.items()}
    pushed = jvp(task.ys, task.xs, list(tangents.values()))
    if directions is not None:
        _check_size("directions", directions, task.model)
        several = {t: _with_axis(n, t, directions) for n, t in tangents.items()}
        pushed, tangents = vmap(pushed, several), dict(zip(tangents, several.values(), strict=True))
    return task.build(tangents, dict(zip((f"{y}{suffix}" for y in task.outputs), pushed, strict=True)), suffix)


@document(gradient_model)
@checked
def hvp_model(model: ModelLike, wrt: str | Sequence[str] | None = None,
              outputs: str | Sequence[str] | None = None, *,
              suffix: str = "_hvp") -> ModelProto:
    """Products of the Hessian with a vector as an ONNX model: ``Σ ∂²(Σ output)/∂name∂other · <tangent of other>``.

    It differentiates the gradient forward, and costs a few times the model, never a Hessian. Its inputs are the inputs
    of the model, then the initializers of `wrt`, then the vector ``<name>_tangent`` of every name of `wrt`; its outputs
    are ``<name>_hvp``, of its shape. Where the rows of outputs depend on their own rows of inputs alone, the products
    are those of each row.

    Parameters
    ----------
    outputs : sequence of str, optional
        Names of the outputs whose elements are summed up; by default all of a floating-point type.
    suffix : str
        The suffix of a product's name.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        A name is unknown, not of a floating-point type or given twice, or the name of a product is taken.
    NoGradientError
        An operator on a path from `wrt` to the outputs has no derivative.

    Warns
    -----
    ModelWarning
        The Hessian is zero by construction.

    References
    ----------
    .. [1] B. A. Pearlmutter, "Fast exact multiplication by the Hessian", Neural Computation 6, 1994.

    Examples
    --------
    >>> x = variable("x", "float32", [3])
    >>> products = hvp_model(build([x], {"y": op.ReduceSum(op.Sin(x), keepdims=0)}), ["x"])
    >>> [i.name for i in products.graph.input], [o.name for o in products.graph.output]
    (['x', 'x_tangent'], ['x_hvp'])
    """
    task = _Task(model, wrt, outputs)
    vectors = {f"{n}_tangent": _like(f"{n}_tangent", x) for n, x in zip(task.wrt, task.xs, strict=True)}
    task.check_free([*vectors, *(f"{n}{suffix}" for n in task.wrt)], suffix)
    gradients = grad(task.ys, task.xs)
    _warn_of_zero(gradients, task.xs)
    products = jvp(gradients, task.xs, list(vectors.values()))
    return task.build(vectors, dict(zip((f"{n}{suffix}" for n in task.wrt), products, strict=True)), suffix)


@document(gradient_model)
@checked
def jacobian_model(model: ModelLike, wrt: str | Sequence[str] | None = None,
                   outputs: str | Sequence[str] | None = None, *,
                   mode: str = "auto", per_row: bool = False, separator: str = "_by_") -> ModelProto:
    """The Jacobian of an ONNX model as an ONNX model: all ``∂output/∂name``.

    Its inputs are the inputs of the model, then the initializers of `wrt`. Its outputs are ``<output>_by_<name>``, of
    the sizes of the output, then of the tensor; or by row, of N, the sizes of a row of the output, then of a row of the
    tensor. All columns, or rows, are computed at once, as a batch.

    Parameters
    ----------
    mode : str
        ``"reverse"``: a gradient for every element of an output. ``"forward"``: a directional derivative for every
        element of a tensor. ``"auto"``: whichever of the two are fewer, ``"reverse"`` where sizes are not known.
    per_row : bool
        The derivatives of each row of the outputs by its own row of the inputs `wrt`, where rows do not mix.
    separator : str
        Stands between the names of an output and of a tensor.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        A name is unknown, not of a floating-point type or given twice, the name of a result is taken; or `per_row` is
        asked for and rows mix, at the node that the message names, or an input has no rows.
    NoGradientError
        An operator on a path from `wrt` to the outputs has no derivative.
    SettingError
        `mode` is none of the three words.

    References
    ----------
    .. [1] A. Griewank, A. Walther, "Evaluating Derivatives", SIAM 2008, chapters 3 and 7.

    Examples
    --------
    >>> x, w = variable("x", "float32", ["N", 2]), constant([[1.0], [2.0]])
    >>> model = build([x], {"y": op.Tanh(x @ w)})
    >>> jacobian = jacobian_model(model, ["x"], per_row=True)
    >>> load(jacobian).outputs
    {'y_by_x': <Value y_by_x float32[Nx1x2]>}
    """
    check_choice("mode", mode, ("auto", "forward", "reverse"))
    task = _Task(model, wrt, outputs, separator)
    task.check_free([f"{y}{separator}{n}" for y in task.outputs for n in task.wrt], separator)
    if per_row:
        task.check_rows()
    results = {f"{a}{separator}{b}": differentiate(y, x, mode, per_row=per_row)
               for a, y in zip(task.outputs, task.ys, strict=True) for b, x in zip(task.wrt, task.xs, strict=True)}
    return task.build({}, results, "_jacobian")


@document(jacobian_model)
@checked
def hessian_model(model: ModelLike, wrt: str | Sequence[str] | None = None,
                  outputs: str | Sequence[str] | None = None, *,
                  per_row: bool = False, separator: str = "_by_") -> ModelProto:
    """The Hessian of an ONNX model as an ONNX model: all ``∂²output/∂name∂other``, forward over reverse.

    Its inputs are the inputs of the model, then the initializers of `wrt`. Its outputs are
    ``<output>_by_<name>_by_<other>``, of the sizes of the output, then of both tensors; or by row, of N, then of the
    sizes of a row of each.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        As for `jacobian_model`.
    NoGradientError
        An operator on a path from `wrt` to the outputs has no derivative.

    Warns
    -----
    ModelWarning
        The Hessian is zero by construction: the model is linear between kinks, as with Relu alone.

    References
    ----------
    .. [1] A. Griewank, A. Walther, "Evaluating Derivatives", SIAM 2008, chapter 5.

    Examples
    --------
    >>> x, w = variable("x", "float32", ["N", 2]), constant([[1.0], [2.0]])
    >>> model = build([x], {"y": op.Tanh(x @ w)})
    >>> load(hessian_model(model, ["x"], per_row=True)).outputs
    {'y_by_x_by_x': <Value y_by_x_by_x float32[Nx1x2x2]>}
    """
    task = _Task(model, wrt, outputs, separator)
    task.check_free([f"{y}{separator}{a}{separator}{b}" for y in task.outputs for a in task.wrt for b in task.wrt],
                    separator)
    if per_row:
        task.check_rows()
    results: dict[str, Value] = {}
    for n, y in zip(task.outputs, task.ys, strict=True):
        first = {a: differentiate(y, x, "reverse", per_row=per_row) for a, x in zip(task.wrt, task.xs, strict=True)}
        _warn_of_zero(list(first.values()), task.xs)
        results |= {f"{n}{separator}{a}{separator}{b}": differentiate(g, x, "forward", per_row=per_row)
                    for a, g in first.items() for b, x in zip(task.wrt, task.xs, strict=True)}
    return task.build({}, results, "_hessian")


@document(gradient_model)
@checked
def vmap_model(model: ModelLike, axes: Mapping[str, int | None] | None = None, out_axes: Mapping[str, int] | int = 0, *,
               size: int | str = "batch") -> ModelProto:
    """An ONNX model for a batch of some of its inputs at once, which have an axis more, as in ``torch.func.vmap``.

    Operators are batched by rules. A few have none, such as a convolution with a batch of kernels: a Scan takes one
    element of the batch after the other, and a line of the log at level INFO names them.

    Parameters
    ----------
    model : Model, onnx.ModelProto, bytes or path
        The model; it is not written to.
    axes : dict of str to int or None, optional
        By name of an input, the place of the new axis, or None for an input that the batch has in common; inputs that
        are not named have it in front.
    out_axes : dict of str to int, or int
        The place of the new axis of outputs.
    size : int or str
        The size of the batch, or its symbolic name.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    ModelError
        A name is no input or output, or an axis is beyond the rank.
    GraphError
        The size of a tensor depends on the elements of a batch.
    SettingError
        No input has the new axis.

    References
    ----------
    .. [1] J. Bradbury et al., "JAX: composable transformations of Python+NumPy programs", 2018.

    Examples
    --------
    >>> x, w = variable("x", "float32", [3]), variable("w", "float32", [3, 2])
    >>> batched = vmap_model(build([x, w], {"y": x @ w}), {"w": None})
    >>> load(batched).inputs, load(batched).outputs
    ({'x': <Value x float32[batchx3]>, 'w': <Value w float32[3x2]>}, {'y': <Value y float32[batchx2]>})
    """
    loaded = load(model)
    axes = dict(axes or {})
    _check_size("size", size, loaded)
    to = dict(out_axes) if isinstance(out_axes, Mapping) else dict.fromkeys(loaded.outputs, out_axes)
    _check_axes("input", axes, loaded.inputs)
    _check_axes("output", to, loaded.outputs)
    places = {n: axes.get(n, 0) for n in loaded.inputs}
    if all(place is None for place in places.values()):
        raise SettingError(f"No input has the axis of the batch; axes is {axes!r}.")
    inputs = {n: x if places[n] is None else _insert_axis(n, x, places[n] or 0, size)
              for n, x in loaded.inputs.items()}
    batched = {x: _move_axis(inputs[n], places[n] or 0, 0) for n, x in loaded.inputs.items() if places[n] is not None}
    outputs = list(loaded.outputs.values())
    if repeated := list_loops(outputs, batched):
        logger.info("vmap_model repeats %s by a Scan", ", ".join(sorted({node.op_type for node in repeated})))
    results = dict(zip(loaded.outputs, vmap(outputs, batched), strict=True))
    moved = {n: _move_axis(y, 0, _check_axis(n, y.rank, to.get(n, 0))) for n, y in results.items()}
    return make_portable(build(inputs, moved, name=f"{loaded.proto.graph.name}_batched"))


def differentiate(y: Value, x: Value, mode: str, *, per_row: bool) -> Value:
    """∂y/∂x, of the sizes of y, then of x; by row, of N, the sizes of a row of y, then of a row of x."""
    inner_y, inner_x = ((v.shape or ())[per_row:] for v in (y, x))
    rows, columns = _count(y, per_row), _count(x, per_row)
    if mode == "auto":
        mode = "forward" if rows is not None and columns is not None and columns < rows else "reverse"
    source, count = (y, rows) if mode == "reverse" else (x, columns)
    seed = Value(source.type, hint="seed")
    result = grad([y], [x], [seed])[0] if mode == "reverse" else jvp([y], [x], [seed])[0]
    basis = _list_unit_vectors(source, count, per_row=per_row)
    (stacked,) = vmap([result], {seed: basis})
    rank = result.rank
    if per_row:  # (K, N, ...) becomes (N, K, ...) or (N, ..., K)
        order = [1, 0, *range(2, rank + 1)] if mode == "reverse" else [*range(1, rank + 1), 0]
    else:
        order = list(range(rank + 1)) if mode == "reverse" else [*range(1, rank + 1), 0]
    ordered = stacked if order == sorted(order) else op.Transpose(stacked, perm=order)
    sizes = [*([op.Shape(y, end=1)] if per_row else []), _sizes(y, per_row), _sizes(x, per_row)]
    shape = (*(y.shape or ())[:per_row], *inner_y, *inner_x)
    return op.Reshape(ordered, op.Concat(*sizes, axis=0), allowzero=1).stated(shape)


def _count(v: Value, start: int) -> int | None:
    """How many elements a value has, or a row of it; None where that is not known."""
    sizes = [n for n in (v.shape or (None,))[start:] if isinstance(n, int)]
    return prod(sizes) if v.shape is not None and len(sizes) == len(v.shape) - start else None


def _sizes(v: Value, start: int) -> Value:
    """The sizes of a value from an axis on."""
    if _count(v, start) is None:
        return op.Shape(v, start=start)
    return constant(np.array((v.shape or ())[start:], np.int64))


def _list_unit_vectors(v: Value, count: int | None, *, per_row: bool) -> Value:
    """All unit vectors of the space of a value, or of its rows, along a new first axis."""
    if count is not None:
        eye: Value = constant(np.eye(count, dtype=v.dtype))
        total = constant([count])
    else:
        total = op.ReduceProd(_sizes(v, per_row), keepdims=1)
        square = op.Expand(constant(np.zeros((), v.dtype)), op.Concat(total, total, axis=0))
        eye = op.EyeLike(square)
    if not per_row:
        return op.Reshape(eye, op.Concat(total, shape_of(v), axis=0), allowzero=1)
    vectors = op.Reshape(eye, op.Concat(total, constant([1]), _sizes(v, 1), axis=0), allowzero=1)
    return op.Expand(vectors, op.Concat(total, op.Shape(v), axis=0))


def _warn_of_zero(gradients: Sequence[Value], xs: Sequence[Value]) -> None:
    """Warn where gradients do not depend on any of the tensors."""
    if not nodes_between(gradients, set(xs), ()) and not set(gradients) & set(xs):
        warnings.warn("The Hessian is zero by construction: the outputs are linear, or linear between kinks, as with "
                      "Relu alone. Smooth activations such as Softplus, Gelu or Tanh have second derivatives.",
                      ModelWarning, stacklevel=3)


def _like(name: str, x: Value) -> Value:
    """An input of the type of a value."""
    return Value(x.type, hint=name)


def _with_axis(name: str, x: Value, size: int | str) -> Value:
    """An input of the type of a value, with a further first axis."""
    return variable(name, x.dtype, None if x.shape is None else (size, *x.shape))


def _insert_axis(name: str, x: Value, place: int, size: int | str) -> Value:
    """An input with a further axis."""
    sizes: list[int | str | None] = [*(x.shape or ())]
    sizes.insert(_check_axis(name, x.rank + 1, place), size)
    return variable(name, x.dtype, sizes)


def _check_axes(what: str, axes: Mapping[str, int | None], values: Mapping[str, Value]) -> None:
    """Refuse places of the axis of a batch that are no whole numbers, or of no input or output."""
    for n, axis in axes.items():
        if n not in values:
            raise ModelError(f"The model has no {what} {n!r}; there are {', '.join(map(repr, values))}.")
        if not is_whole(axis) and (axis is not None or what == "output"):
            raise SettingError(f"The axis of the batch in {n!r} is a whole number, not {axis!r}.")


def _check_size(name: str, size: int | str, model: Model) -> None:
    """Refuse a size of a batch that is neither a count nor a name of its own."""
    if not isinstance(size, str):
        check_count(name, size)
    elif not size or any(size in (x.shape or ()) for x in model.inputs.values()):
        raise SettingError(f"{name} is {size!r}, where a size or a name was expected that no input has.")


def _check_axis(name: str, rank: int, axis: int) -> int:
    """An axis from 0 on."""
    if not -rank <= axis < rank:
        raise ModelError(f"The axis of the batch in {name!r} is {axis}, and it has {rank} axes with it.")
    return axis % rank


def _move_axis(x: Value, source: int, place: int) -> Value:
    """A value whose axis stands elsewhere."""
    order = [i for i in range(x.rank) if i != source % x.rank]
    order.insert(place % x.rank, source % x.rank)
    return x if order == sorted(order) else op.Transpose(x, perm=order)


class _Task:
    """A model with the tensors between which it is differentiated."""

    def __init__(self, model: ModelLike, wrt: Sequence[str] | None, outputs: Sequence[str] | None,
                 separator: str = "_"):
        if not isinstance(separator, str) or not separator:
            raise SettingError(f"separator is {separator!r}, and names are told apart by it; the default is '_by_'.")
        self.model, self.wrt, self.outputs = select_tensors(model, wrt, outputs)
        self.values = self.model.values
        self.xs = [self.values[n] for n in self.wrt]
        self.ys = [self.model.outputs[n] for n in self.outputs]

    def check_free(self, names: Sequence[str], suffix: str) -> None:
        """Refuse names that are taken."""
        if not isinstance(suffix, str) or not suffix:
            raise SettingError(f"suffix is {suffix!r}, and a derivative needs a name of its own.")
        taken: Collection[str] = {*self.values, *self.model.inputs}
        if clashes := [n for i, n in enumerate(names) if n in taken or n in names[:i]]:
            raise ModelError(f"The name {clashes[0]!r} of a derivative is taken; choose another than {suffix!r}.")

    def check_rows(self) -> None:
        """Refuse tensors that are no inputs, and rows that mix."""
        if others := [n for n in self.wrt if n not in self.model.inputs or n in self.model.initializers]:
            raise ModelError(f"{others[0]!r} is no input, so that it has no rows; leave per_row out.")
        check_rows(dict(zip(self.outputs, self.ys, strict=True)), self.xs)

    def build(self, further: Mapping[str, Value], results: Mapping[str, Value], suffix: str) -> ModelProto:
        """The model of derivatives."""
        weights = {n: self.model.initializers[n] for n in self.wrt if n in self.model.initializers}
        inputs = {**self.model.inputs, **weights, **further}
        return make_portable(build(inputs, results, name=f"{self.model.proto.graph.name}{suffix}"))
